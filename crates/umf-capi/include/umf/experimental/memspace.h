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

/* Not supported: make a provider from the space, and a pool over it.
 * @param hMemspace the space.
 * @param hPolicy the policy.
 * @param hPool not written.
 * Errors: NOT_SUPPORTED. */
umf_result_t umfPoolCreateFromMemspace(umf_const_memspace_handle_t hMemspace,
    umf_const_mempolicy_handle_t hPolicy, umf_memory_pool_handle_t *hPool);

/* Creates a provider of memory on the nodes of a space.
 * @param hMemspace the space, which the provider does not need afterwards.
 * @param hPolicy the placement, or NULL for the default.
 * @param hProvider where the provider is written; umfMemoryProviderDestroy destroys it. */
umf_result_t umfMemoryProviderCreateFromMemspace(umf_const_memspace_handle_t hMemspace,
    umf_const_mempolicy_handle_t hPolicy, umf_memory_provider_handle_t *hProvider);

/* Creates a space of NUMA nodes.
 * @param nodeIds the numbers of the nodes, which are copied.
 * @param numIds how many there are, not 0.
 * @param hMemspace where the space is written; umfMemspaceDestroy destroys it. */
umf_result_t umfMemspaceCreateFromNumaArray(unsigned *nodeIds, size_t numIds,
    umf_memspace_handle_t *hMemspace);

/* Destroys a space that the program created.
 * @param hMemspace the space. */
umf_result_t umfMemspaceDestroy(umf_memspace_handle_t hMemspace);

/* Returns all NUMA nodes with memory. Must not be destroyed. */
umf_const_memspace_handle_t umfMemspaceHostAllGet(void);

/* Returns all NUMA nodes with memory, the largest first. Must not be destroyed. */
umf_const_memspace_handle_t umfMemspaceHighestCapacityGet(void);

/* Returns the nodes of the highest bandwidth from each processor. Must not be destroyed. Returns
 * NULL if bandwidths are not known. */
umf_const_memspace_handle_t umfMemspaceHighestBandwidthGet(void);

/* Returns the nodes of the lowest latency from each processor. Must not be destroyed. Returns
 * NULL if latencies are not known. */
umf_const_memspace_handle_t umfMemspaceLowestLatencyGet(void);

/* Creates an empty space.
 * @param hMemspace where the space is written; umfMemspaceDestroy destroys it. */
umf_result_t umfMemspaceNew(umf_memspace_handle_t *hMemspace);

/* Returns the number of targets; 0 for NULL.
 * @param hMemspace the space. */
size_t umfMemspaceMemtargetNum(umf_const_memspace_handle_t hMemspace);

/* Returns a target, which the space owns. Returns NULL if there is no such target.
 * @param hMemspace the space.
 * @param targetNum index of the target, from 0. */
umf_const_memtarget_handle_t umfMemspaceMemtargetGet(umf_const_memspace_handle_t hMemspace,
    unsigned targetNum);

/* Adds a target to a space.
 * @param hMemspace the space.
 * @param hMemtarget the target, which is copied.
 * Errors: INVALID_ARGUMENT if the space has it. */
umf_result_t umfMemspaceMemtargetAdd(umf_memspace_handle_t hMemspace,
    umf_const_memtarget_handle_t hMemtarget);

/* Removes a target from a space.
 * @param hMemspace the space.
 * @param hMemtarget the target.
 * Errors: INVALID_ARGUMENT if the space does not have it. */
umf_result_t umfMemspaceMemtargetRemove(umf_memspace_handle_t hMemspace,
    umf_const_memtarget_handle_t hMemtarget);

/* Copies a space.
 * @param hMemspace the space.
 * @param hNewMemspace where the copy is written; umfMemspaceDestroy destroys it. */
umf_result_t umfMemspaceClone(umf_const_memspace_handle_t hMemspace, umf_memspace_handle_t *hNewMemspace);

typedef int (*umf_memspace_filter_func_t)(umf_const_memspace_handle_t hMemspace,
    umf_const_memtarget_handle_t hMemtarget, void *args);

/* Keeps the targets with these ids.
 * @param hMemspace the space, which is changed.
 * @param ids the ids.
 * @param size how many there are. */
umf_result_t umfMemspaceFilterById(umf_memspace_handle_t hMemspace, unsigned *ids, size_t size);

/* Keeps the targets of at least that many bytes.
 * @param hMemspace the space, which is changed.
 * @param size in bytes. */
umf_result_t umfMemspaceFilterByCapacity(umf_memspace_handle_t hMemspace, int64_t size);

/* Keeps the targets for which the filter returns more than 0. Less than 0 is an error.
 * @param hMemspace the space, which is changed.
 * @param filter is called once for each target.
 * @param args passed to the filter.
 * Errors: USER_SPECIFIC if the filter fails; the space is unchanged then. */
umf_result_t umfMemspaceUserFilter(umf_memspace_handle_t hMemspace, umf_memspace_filter_func_t filter,
    void *args);

#ifdef __cplusplus
}
#endif

#endif
