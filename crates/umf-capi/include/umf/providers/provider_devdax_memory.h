/* Memory of a DAX device (/dev/daxX.Y). */

#ifndef UMF_RS_UMF_PROVIDERS_PROVIDER_DEVDAX_MEMORY_H
#define UMF_RS_UMF_PROVIDERS_PROVIDER_DEVDAX_MEMORY_H

#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_DEVDAX_RESULTS_START_FROM 2000

struct umf_devdax_memory_provider_params_t;
typedef struct umf_devdax_memory_provider_params_t *umf_devdax_memory_provider_params_handle_t;

/* Creates settings.
 * @param path of the device, such as /dev/dax0.0; copied.
 * @param size bytes of the device that are used, from its start.
 * @param hParams where the settings are written; umfDevDaxMemoryProviderParamsDestroy destroys
 *     them. */
umf_result_t umfDevDaxMemoryProviderParamsCreate(const char *path, size_t size,
    umf_devdax_memory_provider_params_handle_t *hParams);

/* Destroys settings. A provider that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfDevDaxMemoryProviderParamsDestroy(umf_devdax_memory_provider_params_handle_t hParams);

/* Sets the device.
 * @param hParams the settings.
 * @param path of the device; copied.
 * @param size bytes of the device that are used, from its start. */
umf_result_t umfDevDaxMemoryProviderParamsSetDeviceDax(umf_devdax_memory_provider_params_handle_t hParams,
    const char *path, size_t size);

/* Sets the access rights of the memory. The default is reading and writing.
 * @param hParams the settings.
 * @param protection bits of umf_mem_protection_flag_t.
 * Errors: an invalid value is INVALID_ARGUMENT when the provider is created. */
umf_result_t umfDevDaxMemoryProviderParamsSetProtection(umf_devdax_memory_provider_params_handle_t hParams,
    unsigned protection);

/* Sets the name of the provider, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfDevDaxMemoryProviderParamsSetName(umf_devdax_memory_provider_params_handle_t hParams,
    const char *name);

typedef enum umf_devdax_memory_provider_native_error {
    UMF_DEVDAX_RESULT_SUCCESS = UMF_DEVDAX_RESULTS_START_FROM,
    UMF_DEVDAX_RESULT_ERROR_ALLOC_FAILED,
    UMF_DEVDAX_RESULT_ERROR_ADDRESS_NOT_ALIGNED,
    UMF_DEVDAX_RESULT_ERROR_FREE_FAILED,
    UMF_DEVDAX_RESULT_ERROR_PURGE_FORCE_FAILED,
} umf_devdax_memory_provider_native_error_t;

/* Returns the table of functions of this provider, for umfMemoryProviderCreate. The table is
 * static. */
const umf_memory_provider_ops_t *umfDevDaxMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
