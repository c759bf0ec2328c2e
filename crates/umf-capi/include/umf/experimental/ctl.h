/* The control tree. Dots separate the nodes of a path; {} stands for the next variable argument: a pointer
 * for by_handle, a string for a name, a size_t for an index. docs/capi.md lists the paths. */

#ifndef UMF_RS_UMF_EXPERIMENTAL_CTL_H
#define UMF_RS_UMF_EXPERIMENTAL_CTL_H

#include <umf/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a node. */
umf_result_t umfCtlGet(const char *path, void *arg, size_t size, ...);

/* Sets a node. */
umf_result_t umfCtlSet(const char *path, void *arg, size_t size, ...);

/* Runs a node. */
umf_result_t umfCtlExec(const char *path, void *arg, size_t size, ...);

#ifdef __cplusplus
}
#endif

#endif
