/* jemalloc over any provider, of memory of devices too: it keeps its records elsewhere. */

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

/* How many arenas threads are spread over; 0 is one for each processor, but no more than four. All pools of a process together can have
 * about 4,090: what there is not makes umfPoolCreate fail with UMF_RESULT_ERROR_OUT_OF_RESOURCES. */
umf_result_t umfJemallocPoolParamsSetNumArenas(umf_jemalloc_pool_params_handle_t hParams, size_t numArenas);

umf_result_t umfJemallocPoolParamsSetName(umf_jemalloc_pool_params_handle_t hParams, const char *name);

/* The table of functions of this pool; NULL if the library was built without jemalloc, and then the functions above are
 * UMF_RESULT_ERROR_NOT_SUPPORTED. */
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
