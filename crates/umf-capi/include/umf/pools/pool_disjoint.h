/* The slab pool for small and large blocks. It never accesses the memory that it manages, so it suits devices. */

#ifndef UMF_RS_UMF_POOLS_POOL_DISJOINT_H
#define UMF_RS_UMF_POOLS_POOL_DISJOINT_H

#include <umf/memory_pool.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_DISJOINT_POOL_MIN_BUCKET_DEFAULT_SIZE ((size_t)8)

typedef struct umf_disjoint_pool_shared_limits_t *umf_disjoint_pool_shared_limits_handle_t;
struct umf_disjoint_pool_params_t;
typedef struct umf_disjoint_pool_params_t *umf_disjoint_pool_params_handle_t;
/* A limit on the free memory that several pools keep together. */
umf_result_t umfDisjointPoolSharedLimitsCreate(size_t MaxSize,
    umf_disjoint_pool_shared_limits_handle_t *hSharedLimits);

umf_result_t umfDisjointPoolSharedLimitsDestroy(umf_disjoint_pool_shared_limits_handle_t hSharedLimits);

umf_result_t umfDisjointPoolParamsCreate(umf_disjoint_pool_params_handle_t *hParams);

umf_result_t umfDisjointPoolParamsDestroy(umf_disjoint_pool_params_handle_t hParams);

umf_result_t umfDisjointPoolParamsSetSlabMinSize(umf_disjoint_pool_params_handle_t hParams,
    size_t slabMinSize);

umf_result_t umfDisjointPoolParamsSetMaxPoolableSize(umf_disjoint_pool_params_handle_t hParams,
    size_t maxPoolableSize);

umf_result_t umfDisjointPoolParamsSetCapacity(umf_disjoint_pool_params_handle_t hParams, size_t maxCapacity);

umf_result_t umfDisjointPoolParamsSetMinBucketSize(umf_disjoint_pool_params_handle_t hParams,
    size_t minBucketSize);

umf_result_t umfDisjointPoolParamsSetTrace(umf_disjoint_pool_params_handle_t hParams, int poolTrace);

umf_result_t umfDisjointPoolParamsSetSharedLimits(umf_disjoint_pool_params_handle_t hParams,
    umf_disjoint_pool_shared_limits_handle_t hSharedLimits);

umf_result_t umfDisjointPoolParamsSetName(umf_disjoint_pool_params_handle_t hParams, const char *name);

/* Returns the table of functions of this pool. */
const umf_memory_pool_ops_t *umfDisjointPoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
