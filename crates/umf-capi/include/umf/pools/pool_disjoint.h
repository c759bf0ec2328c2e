/* The slab pool for small and large blocks. It never accesses the memory that it manages, so it
 * suits devices. */

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

/* Creates a limit on the free memory that several pools keep together.
 * @param MaxSize in bytes.
 * @param hSharedLimits where the limit is written; umfDisjointPoolSharedLimitsDestroy destroys
 *     it. */
umf_result_t umfDisjointPoolSharedLimitsCreate(size_t MaxSize,
    umf_disjoint_pool_shared_limits_handle_t *hSharedLimits);

/* Destroys a limit. Pools that have it keep it.
 * @param hSharedLimits the limit. */
umf_result_t umfDisjointPoolSharedLimitsDestroy(umf_disjoint_pool_shared_limits_handle_t hSharedLimits);

/* Creates settings with defaults.
 * @param hParams where the settings are written; umfDisjointPoolParamsDestroy destroys them. */
umf_result_t umfDisjointPoolParamsCreate(umf_disjoint_pool_params_handle_t *hParams);

/* Destroys settings. A pool that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfDisjointPoolParamsDestroy(umf_disjoint_pool_params_handle_t hParams);

/* Sets the smallest size of a slab. The default is 64 KiB.
 * @param hParams the settings.
 * @param slabMinSize in bytes. */
umf_result_t umfDisjointPoolParamsSetSlabMinSize(umf_disjoint_pool_params_handle_t hParams,
    size_t slabMinSize);

/* Sets the size of the largest request that is pooled. Larger ones go to the provider. The
 * default is 2 MiB.
 * @param hParams the settings.
 * @param maxPoolableSize in bytes. */
umf_result_t umfDisjointPoolParamsSetMaxPoolableSize(umf_disjoint_pool_params_handle_t hParams,
    size_t maxPoolableSize);

/* Sets how many empty slabs of each size are kept. The default is 4.
 * @param hParams the settings.
 * @param maxCapacity number of slabs. */
umf_result_t umfDisjointPoolParamsSetCapacity(umf_disjoint_pool_params_handle_t hParams, size_t maxCapacity);

/* Sets the size of the smallest block. The default is 8.
 * @param hParams the settings.
 * @param minBucketSize in bytes: a power of two.
 * Errors: INVALID_ARGUMENT for another size. */
umf_result_t umfDisjointPoolParamsSetMinBucketSize(umf_disjoint_pool_params_handle_t hParams,
    size_t minBucketSize);

/* Sets how much is logged about allocations. The default is 0.
 * @param hParams the settings.
 * @param poolTrace 0 nothing, 1 the end of the pool, 2 regions and slabs, 3 each block. */
umf_result_t umfDisjointPoolParamsSetTrace(umf_disjoint_pool_params_handle_t hParams, int poolTrace);

/* Sets a limit that the pool shares with others. By default there is none.
 * @param hParams the settings.
 * @param hSharedLimits the limit, which may be destroyed once the pool is created. */
umf_result_t umfDisjointPoolParamsSetSharedLimits(umf_disjoint_pool_params_handle_t hParams,
    umf_disjoint_pool_shared_limits_handle_t hSharedLimits);

/* Sets the name of the pool, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfDisjointPoolParamsSetName(umf_disjoint_pool_params_handle_t hParams, const char *name);

/* Returns the table of functions of this pool, for umfPoolCreate. The table is static. */
const umf_memory_pool_ops_t *umfDisjointPoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
