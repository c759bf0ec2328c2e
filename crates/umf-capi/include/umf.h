/* Start and end of the library. Both calls are optional: the first provider, pool or query
 * starts the library. */

#ifndef UMF_RS_UMF_H
#define UMF_RS_UMF_H

#include <umf/base.h>
#include <umf/memory_pool.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the library. Calls are counted. */
umf_result_t umfInit(void);

/* Undoes one umfInit. Pools and providers that exist stay usable. */
umf_result_t umfTearDown(void);

/* Returns the version of the interface. */
int umfGetCurrentVersion(void);

#ifdef __cplusplus
}
#endif

#endif
