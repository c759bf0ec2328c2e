/* Memory spaces: ordered sets of memory targets (NUMA nodes), and providers of their memory. */

#ifndef UMF_RS_UMF_EXPERIMENTAL_MEMSPACE_H
#define UMF_RS_UMF_EXPERIMENTAL_MEMSPACE_H

#include <umf/base.h>
#include <umf/experimental/mempolicy.h>
#include <umf/experimental/memtarget.h>
#include <umf/memory_pool.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct umf_memspace_t *umf_memspace_handle_t;
typedef const struct umf_memspace_t *umf_const_memspace_handle_t;
/* Not supported: make a provider from the space, and a pool over it. */
umf_result_t umfPoolCreateFromMemspace(umf_const_memspace_handle_t hMemspace,
    umf_const_mempolicy_handle_t hPolicy, umf_memory_pool_handle_t *hPool);

umf_result_t umfMemoryProviderCreateFromMemspace(umf_const_memspace_handle_t hMemspace,
    umf_const_mempolicy_handle_t hPolicy, umf_memory_provider_handle_t *hProvider);

umf_result_t umfMemspaceCreateFromNumaArray(unsigned *nodeIds, size_t numIds,
    umf_memspace_handle_t *hMemspace);

umf_result_t umfMemspaceDestroy(umf_memspace_handle_t hMemspace);

/* Returns all NUMA nodes with memory. Must not be destroyed. */
umf_const_memspace_handle_t umfMemspaceHostAllGet(void);

/* Returns all NUMA nodes with memory, the largest first. Must not be destroyed. */
umf_const_memspace_handle_t umfMemspaceHighestCapacityGet(void);

/* Returns NULL if bandwidths are not known. */
umf_const_memspace_handle_t umfMemspaceHighestBandwidthGet(void);

/* Returns NULL if latencies are not known. */
umf_const_memspace_handle_t umfMemspaceLowestLatencyGet(void);

umf_result_t umfMemspaceNew(umf_memspace_handle_t *hMemspace);

size_t umfMemspaceMemtargetNum(umf_const_memspace_handle_t hMemspace);

umf_const_memtarget_handle_t umfMemspaceMemtargetGet(umf_const_memspace_handle_t hMemspace,
    unsigned targetNum);

umf_result_t umfMemspaceMemtargetAdd(umf_memspace_handle_t hMemspace,
    umf_const_memtarget_handle_t hMemtarget);

umf_result_t umfMemspaceMemtargetRemove(umf_memspace_handle_t hMemspace,
    umf_const_memtarget_handle_t hMemtarget);

umf_result_t umfMemspaceClone(umf_const_memspace_handle_t hMemspace, umf_memspace_handle_t *hNewMemspace);

typedef int (*umf_memspace_filter_func_t)(umf_const_memspace_handle_t hMemspace,
    umf_const_memtarget_handle_t hMemtarget, void *args);
/* Keeps the targets with these ids. */
umf_result_t umfMemspaceFilterById(umf_memspace_handle_t hMemspace, unsigned *ids, size_t size);

/* Keeps the targets of at least that many bytes. */
umf_result_t umfMemspaceFilterByCapacity(umf_memspace_handle_t hMemspace, int64_t size);

/* Keeps the targets for which the filter returns more than 0. Less than 0 is an error. */
umf_result_t umfMemspaceUserFilter(umf_memspace_handle_t hMemspace, umf_memspace_filter_func_t filter,
    void *args);

#ifdef __cplusplus
}
#endif

#endif
