/* jemalloc over any provider, also of device memory: its metadata lies elsewhere. */

#ifndef UMF_RS_UMF_POOLS_POOL_JEMALLOC_H
#define UMF_RS_UMF_POOLS_POOL_JEMALLOC_H

#include <umf/memory_pool.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

struct umf_jemalloc_pool_params_t;
typedef struct umf_jemalloc_pool_params_t *umf_jemalloc_pool_params_handle_t;

/* Creates settings with defaults.
 * @param hParams where the settings are written; umfJemallocPoolParamsDestroy destroys them. */
umf_result_t umfJemallocPoolParamsCreate(umf_jemalloc_pool_params_handle_t *hParams);

/* Destroys settings. A pool that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfJemallocPoolParamsDestroy(umf_jemalloc_pool_params_handle_t hParams);

/* Sets the number of arenas; 0 is one per processor, at most four. All pools of a process share
 * about 4,090 arenas. Without enough of them, umfPoolCreate fails with
 * UMF_RESULT_ERROR_OUT_OF_RESOURCES.
 * @param hParams the settings.
 * @param numArenas number of arenas, or 0. */
umf_result_t umfJemallocPoolParamsSetNumArenas(umf_jemalloc_pool_params_handle_t hParams, size_t numArenas);

/* Sets the name of the pool, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfJemallocPoolParamsSetName(umf_jemalloc_pool_params_handle_t hParams, const char *name);

/* Returns the table of functions of this pool. Returns NULL if the library was built without
 * jemalloc; the functions above then return UMF_RESULT_ERROR_NOT_SUPPORTED. */
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
