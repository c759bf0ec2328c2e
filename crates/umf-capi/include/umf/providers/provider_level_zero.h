/* Memory of Level Zero devices, in a context of the program. Uses the loader that the program
 * has loaded; without one, providers fail with UMF_RESULT_ERROR_DEPENDENCY_UNAVAILABLE. Context
 * and devices must outlive the provider. */

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

/* Creates settings with defaults.
 * @param hParams where the settings are written; umfLevelZeroMemoryProviderParamsDestroy
 *     destroys them. */
umf_result_t umfLevelZeroMemoryProviderParamsCreate(umf_level_zero_memory_provider_params_handle_t *hParams);

/* Destroys settings. A provider that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfLevelZeroMemoryProviderParamsDestroy(umf_level_zero_memory_provider_params_handle_t hParams);

/* Sets the context.
 * @param hParams the settings.
 * @param hContext the context of the driver (ze_context_handle_t), which must outlive the
 *     provider. */
umf_result_t umfLevelZeroMemoryProviderParamsSetContext(umf_level_zero_memory_provider_params_handle_t hParams,
    ze_context_handle_t hContext);

/* Sets the device, which memory of type UMF_MEMORY_TYPE_HOST does not need.
 * @param hParams the settings.
 * @param hDevice the device, which must outlive the provider. */
umf_result_t umfLevelZeroMemoryProviderParamsSetDevice(umf_level_zero_memory_provider_params_handle_t hParams,
    ze_device_handle_t hDevice);

/* Sets the type of the memory, which has no default. Only UMF_MEMORY_TYPE_DEVICE has IPC
 * handles.
 * @param hParams the settings.
 * @param memoryType the type.
 * Errors: INVALID_ARGUMENT for another value. */
umf_result_t umfLevelZeroMemoryProviderParamsSetMemoryType(umf_level_zero_memory_provider_params_handle_t hParams,
    umf_usm_memory_type_t memoryType);

/* Sets further devices on which the memory is made resident.
 * @param hParams the settings.
 * @param hDevices the devices, which are copied.
 * @param deviceCount how many there are. */
umf_result_t umfLevelZeroMemoryProviderParamsSetResidentDevices(umf_level_zero_memory_provider_params_handle_t hParams,
    ze_device_handle_t *hDevices, uint32_t deviceCount);

typedef enum umf_level_zero_memory_provider_free_policy_t {
    UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_DEFAULT = 0,
    UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_BLOCKING_FREE,
    UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_DEFER_FREE,
} umf_level_zero_memory_provider_free_policy_t;

/* Sets when the driver releases freed memory.
 * @param hParams the settings.
 * @param policy the policy; creating the provider fails with NOT_SUPPORTED if the driver does
 *     not have it. */
umf_result_t umfLevelZeroMemoryProviderParamsSetFreePolicy(umf_level_zero_memory_provider_params_handle_t hParams,
    umf_level_zero_memory_provider_free_policy_t policy);

/* Sets which of the memories of the device is used. The default is 0.
 * @param hParams the settings.
 * @param deviceOrdinal index of the memory. */
umf_result_t umfLevelZeroMemoryProviderParamsSetDeviceOrdinal(umf_level_zero_memory_provider_params_handle_t hParams,
    uint32_t deviceOrdinal);

/* Sets the name of the provider, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfLevelZeroMemoryProviderParamsSetName(umf_level_zero_memory_provider_params_handle_t hParams,
    const char *name);

/* Adds or removes a device on which all memory of the provider is resident, both existing and
 * later memory. An error has no effect.
 * @param provider a provider of Level Zero.
 * @param device the device.
 * @param is_adding whether it is added or removed.
 * Errors: INVALID_ARGUMENT if the device is resident already, or is not. */
umf_result_t umfLevelZeroMemoryProviderResidentDeviceChange(umf_memory_provider_handle_t provider,
    ze_device_handle_t device, bool is_adding);

/* Returns the table of functions of this provider, for umfMemoryProviderCreate. The table is
 * static. */
const umf_memory_provider_ops_t *umfLevelZeroMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
