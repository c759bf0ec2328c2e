/* The pool over oneTBB's allocator, which is loaded with the first pool. Needs memory that the
 * CPU can access. */

#ifndef UMF_RS_UMF_POOLS_POOL_SCALABLE_H
#define UMF_RS_UMF_POOLS_POOL_SCALABLE_H

#include <stdbool.h>
#include <umf/memory_pool.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

struct umf_scalable_pool_params_t;
typedef struct umf_scalable_pool_params_t *umf_scalable_pool_params_handle_t;

/* Creates settings with defaults.
 * @param hParams where the settings are written; umfScalablePoolParamsDestroy destroys them. */
umf_result_t umfScalablePoolParamsCreate(umf_scalable_pool_params_handle_t *hParams);

/* Destroys settings. A pool that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfScalablePoolParamsDestroy(umf_scalable_pool_params_handle_t hParams);

/* Sets the granularity of requests to the provider. The default is 2 MiB.
 * @param hParams the settings.
 * @param granularity in bytes, not 0.
 * Errors: INVALID_ARGUMENT for 0. */
umf_result_t umfScalablePoolParamsSetGranularity(umf_scalable_pool_params_handle_t hParams,
    size_t granularity);

/* Sets whether the pool keeps all memory until it is destroyed. By default it does not.
 * @param hParams the settings.
 * @param keepAllMemory whether it does. */
umf_result_t umfScalablePoolParamsSetKeepAllMemory(umf_scalable_pool_params_handle_t hParams,
    bool keepAllMemory);

/* Sets the name of the pool, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfScalablePoolParamsSetName(umf_scalable_pool_params_handle_t hParams, const char *name);

/* Returns the table of functions of this pool, for umfPoolCreate. The table is static. */
const umf_memory_pool_ops_t *umfScalablePoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
