/* A pool for all sizes of memory of the host, as programs use jemalloc's: the slab pool. */

#ifndef UMF_RS_UMF_POOLS_POOL_JEMALLOC_H
#define UMF_RS_UMF_POOLS_POOL_JEMALLOC_H

#include <umf/memory_pool.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

struct umf_jemalloc_pool_params_t;
typedef struct umf_jemalloc_pool_params_t *umf_jemalloc_pool_params_handle_t;
umf_result_t umfJemallocPoolParamsCreate(umf_jemalloc_pool_params_handle_t *hParams);

umf_result_t umfJemallocPoolParamsDestroy(umf_jemalloc_pool_params_handle_t hParams);

/* Has no effect: each thread has caches of its own. */
umf_result_t umfJemallocPoolParamsSetNumArenas(umf_jemalloc_pool_params_handle_t hParams, size_t numArenas);

umf_result_t umfJemallocPoolParamsSetName(umf_jemalloc_pool_params_handle_t hParams, const char *name);

/* The table of functions of this pool. */
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
