/* The pool over oneTBB's allocator, which is loaded with the first pool. Needs memory that the CPU can
 * access. */

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
umf_result_t umfScalablePoolParamsCreate(umf_scalable_pool_params_handle_t *hParams);

umf_result_t umfScalablePoolParamsDestroy(umf_scalable_pool_params_handle_t hParams);

umf_result_t umfScalablePoolParamsSetGranularity(umf_scalable_pool_params_handle_t hParams,
    size_t granularity);

umf_result_t umfScalablePoolParamsSetKeepAllMemory(umf_scalable_pool_params_handle_t hParams,
    bool keepAllMemory);

umf_result_t umfScalablePoolParamsSetName(umf_scalable_pool_params_handle_t hParams, const char *name);

/* Returns the table of functions of this pool. */
const umf_memory_pool_ops_t *umfScalablePoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
