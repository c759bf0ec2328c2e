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
umf_result_t umfOsMemoryProviderParamsCreate(umf_os_memory_provider_params_handle_t *hParams);

umf_result_t umfOsMemoryProviderParamsDestroy(umf_os_memory_provider_params_handle_t hParams);

umf_result_t umfOsMemoryProviderParamsSetProtection(umf_os_memory_provider_params_handle_t hParams,
    unsigned protection);

umf_result_t umfOsMemoryProviderParamsSetVisibility(umf_os_memory_provider_params_handle_t hParams,
    umf_memory_visibility_t visibility);

/* Sets the name of shared memory, without a slash; NULL for none. */
umf_result_t umfOsMemoryProviderParamsSetShmName(umf_os_memory_provider_params_handle_t hParams,
    const char *shm_name);

umf_result_t umfOsMemoryProviderParamsSetNumaList(umf_os_memory_provider_params_handle_t hParams,
    unsigned *numa_list, unsigned numa_list_len);

umf_result_t umfOsMemoryProviderParamsSetNumaMode(umf_os_memory_provider_params_handle_t hParams,
    umf_numa_mode_t numa_mode);

umf_result_t umfOsMemoryProviderParamsSetPartSize(umf_os_memory_provider_params_handle_t hParams,
    size_t part_size);

umf_result_t umfOsMemoryProviderParamsSetPartitions(umf_os_memory_provider_params_handle_t hParams,
    umf_numa_split_partition_t *partitions, unsigned partitions_len);

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

const umf_memory_provider_ops_t *umfOsMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
