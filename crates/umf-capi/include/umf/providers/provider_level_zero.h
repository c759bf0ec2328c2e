/* Memory of Level Zero devices, in a context of the program. Uses the loader that the program has loaded; without
 * one, providers fail with UMF_RESULT_ERROR_DEPENDENCY_UNAVAILABLE. Context and devices must outlive the provider. */

#ifndef UMF_RS_UMF_PROVIDERS_PROVIDER_LEVEL_ZERO_H
#define UMF_RS_UMF_PROVIDERS_PROVIDER_LEVEL_ZERO_H

#include <stdbool.h>
#include <umf/memory_provider_gpu.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct _ze_device_handle_t *ze_device_handle_t;
typedef struct _ze_context_handle_t *ze_context_handle_t;
struct umf_level_zero_memory_provider_params_t;
typedef struct umf_level_zero_memory_provider_params_t *umf_level_zero_memory_provider_params_handle_t;
umf_result_t umfLevelZeroMemoryProviderParamsCreate(umf_level_zero_memory_provider_params_handle_t *hParams);

umf_result_t umfLevelZeroMemoryProviderParamsDestroy(umf_level_zero_memory_provider_params_handle_t hParams);

umf_result_t umfLevelZeroMemoryProviderParamsSetContext(umf_level_zero_memory_provider_params_handle_t hParams,
    ze_context_handle_t hContext);

umf_result_t umfLevelZeroMemoryProviderParamsSetDevice(umf_level_zero_memory_provider_params_handle_t hParams,
    ze_device_handle_t hDevice);

umf_result_t umfLevelZeroMemoryProviderParamsSetMemoryType(umf_level_zero_memory_provider_params_handle_t hParams,
    umf_usm_memory_type_t memoryType);

umf_result_t umfLevelZeroMemoryProviderParamsSetResidentDevices(umf_level_zero_memory_provider_params_handle_t hParams,
    ze_device_handle_t *hDevices, uint32_t deviceCount);

typedef enum umf_level_zero_memory_provider_free_policy_t {
    UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_DEFAULT = 0,
    UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_BLOCKING_FREE,
    UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_DEFER_FREE,
} umf_level_zero_memory_provider_free_policy_t;

umf_result_t umfLevelZeroMemoryProviderParamsSetFreePolicy(umf_level_zero_memory_provider_params_handle_t hParams,
    umf_level_zero_memory_provider_free_policy_t policy);

umf_result_t umfLevelZeroMemoryProviderParamsSetDeviceOrdinal(umf_level_zero_memory_provider_params_handle_t hParams,
    uint32_t deviceOrdinal);

umf_result_t umfLevelZeroMemoryProviderParamsSetName(umf_level_zero_memory_provider_params_handle_t hParams,
    const char *name);

/* Adds or removes a device on which all memory of the provider is resident, both existing and later memory.
 * An error has no effect. */
umf_result_t umfLevelZeroMemoryProviderResidentDeviceChange(umf_memory_provider_handle_t provider,
    ze_device_handle_t device, bool is_adding);

const umf_memory_provider_ops_t *umfLevelZeroMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
