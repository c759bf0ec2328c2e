/* Host memory: private or shared, on chosen NUMA nodes. */

#ifndef UMF_RS_UMF_PROVIDERS_PROVIDER_OS_MEMORY_H
#define UMF_RS_UMF_PROVIDERS_PROVIDER_OS_MEMORY_H

#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_OS_RESULTS_START_FROM 1000

typedef enum umf_numa_mode_t {
    UMF_NUMA_MODE_DEFAULT,
    UMF_NUMA_MODE_BIND,
    UMF_NUMA_MODE_INTERLEAVE,
    UMF_NUMA_MODE_PREFERRED,
    UMF_NUMA_MODE_SPLIT,
    UMF_NUMA_MODE_LOCAL,
} umf_numa_mode_t;

typedef struct umf_numa_split_partition_t {
    unsigned weight;
    unsigned target;
} umf_numa_split_partition_t;

struct umf_os_memory_provider_params_t;
typedef struct umf_os_memory_provider_params_t *umf_os_memory_provider_params_handle_t;

/* Creates settings with defaults.
 * @param hParams where the settings are written; umfOsMemoryProviderParamsDestroy destroys them. */
umf_result_t umfOsMemoryProviderParamsCreate(umf_os_memory_provider_params_handle_t *hParams);

/* Destroys settings. A provider that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfOsMemoryProviderParamsDestroy(umf_os_memory_provider_params_handle_t hParams);

/* Sets the access rights of the memory. The default is reading and writing.
 * @param hParams the settings.
 * @param protection bits of umf_mem_protection_flag_t.
 * Errors: an invalid value is INVALID_ARGUMENT when the provider is created. */
umf_result_t umfOsMemoryProviderParamsSetProtection(umf_os_memory_provider_params_handle_t hParams,
    unsigned protection);

/* Sets whether other processes can open the memory. The default is UMF_MEM_MAP_PRIVATE, without
 * IPC handles.
 * @param hParams the settings.
 * @param visibility the visibility. */
umf_result_t umfOsMemoryProviderParamsSetVisibility(umf_os_memory_provider_params_handle_t hParams,
    umf_memory_visibility_t visibility);

/* Sets the name of shared memory, without a slash; NULL for none.
 * @param hParams the settings.
 * @param shm_name the name, of at most 253 bytes; copied. */
umf_result_t umfOsMemoryProviderParamsSetShmName(umf_os_memory_provider_params_handle_t hParams,
    const char *shm_name);

/* Sets the NUMA nodes of the placement.
 * @param hParams the settings.
 * @param numa_list the numbers of the nodes, which are copied.
 * @param numa_list_len how many there are. */
umf_result_t umfOsMemoryProviderParamsSetNumaList(umf_os_memory_provider_params_handle_t hParams,
    unsigned *numa_list, unsigned numa_list_len);

/* Sets the placement on NUMA nodes. The default is UMF_NUMA_MODE_DEFAULT, without a list of
 * nodes.
 * @param hParams the settings.
 * @param numa_mode the placement.
 * Errors: a mode that does not fit the list of nodes is INVALID_ARGUMENT when the provider is
 * created. */
umf_result_t umfOsMemoryProviderParamsSetNumaMode(umf_os_memory_provider_params_handle_t hParams,
    umf_numa_mode_t numa_mode);

/* Sets the size of the parts of interleaved memory. Only for UMF_NUMA_MODE_INTERLEAVE.
 * @param hParams the settings.
 * @param part_size in bytes; 0 is one page. */
umf_result_t umfOsMemoryProviderParamsSetPartSize(umf_os_memory_provider_params_handle_t hParams,
    size_t part_size);

/* Sets the shares of the nodes of split memory. Only for UMF_NUMA_MODE_SPLIT. Without it the
 * shares are equal.
 * @param hParams the settings.
 * @param partitions the shares, which are copied.
 * @param partitions_len how many there are. */
umf_result_t umfOsMemoryProviderParamsSetPartitions(umf_os_memory_provider_params_handle_t hParams,
    umf_numa_split_partition_t *partitions, unsigned partitions_len);

/* Sets the name of the provider, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfOsMemoryProviderParamsSetName(umf_os_memory_provider_params_handle_t hParams,
    const char *name);

typedef enum umf_os_memory_provider_native_error {
    UMF_OS_RESULT_SUCCESS = UMF_OS_RESULTS_START_FROM,
    UMF_OS_RESULT_ERROR_ALLOC_FAILED,
    UMF_OS_RESULT_ERROR_ADDRESS_NOT_ALIGNED,
    UMF_OS_RESULT_ERROR_BIND_FAILED,
    UMF_OS_RESULT_ERROR_FREE_FAILED,
    UMF_OS_RESULT_ERROR_PURGE_LAZY_FAILED,
    UMF_OS_RESULT_ERROR_PURGE_FORCE_FAILED,
    UMF_OS_RESULT_ERROR_TOPO_DISCOVERY_FAILED,
} umf_os_memory_provider_native_error_t;

/* Returns the table of functions of this provider, for umfMemoryProviderCreate. The table is
 * static. */
const umf_memory_provider_ops_t *umfOsMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
