/* The control tree. Dots separate the nodes of a path; {} stands for the next variable argument:
 * a pointer for by_handle, a string for a name, a size_t for an index. docs/capi.md lists the
 * paths. */

#ifndef UMF_RS_UMF_EXPERIMENTAL_CTL_H
#define UMF_RS_UMF_EXPERIMENTAL_CTL_H

#include <umf/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a node.
 * @param path of the node; a variable argument follows for each {}.
 * @param arg where the value is written.
 * @param size of arg in bytes: that of the type of the node.
 * Errors: INVALID_CTL_PATH if there is no such node, INVALID_ARGUMENT for a wrong size or value. */
umf_result_t umfCtlGet(const char *path, void *arg, size_t size, ...);

/* Sets a node.
 * @param path of the node; a variable argument follows for each {}.
 * @param arg the value.
 * @param size of arg in bytes: that of the type of the node.
 * Errors: INVALID_CTL_PATH if there is no such node, INVALID_ARGUMENT for a wrong size or value. */
umf_result_t umfCtlSet(const char *path, void *arg, size_t size, ...);

/* Runs a node.
 * @param path of the node; a variable argument follows for each {}.
 * @param arg argument of the node, or NULL.
 * @param size of arg in bytes: that of the type of the node.
 * Errors: INVALID_CTL_PATH if there is no such node, INVALID_ARGUMENT for a wrong size or value. */
umf_result_t umfCtlExec(const char *path, void *arg, size_t size, ...);

#ifdef __cplusplus
}
#endif

#endif
