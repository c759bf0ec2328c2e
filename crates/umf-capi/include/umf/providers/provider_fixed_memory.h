/* Memory that the program has allocated. */

#ifndef UMF_RS_UMF_PROVIDERS_PROVIDER_FIXED_MEMORY_H
#define UMF_RS_UMF_PROVIDERS_PROVIDER_FIXED_MEMORY_H

#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_FIXED_RESULTS_START_FROM 4000

struct umf_fixed_memory_provider_params_t;
typedef struct umf_fixed_memory_provider_params_t *umf_fixed_memory_provider_params_handle_t;

/* Creates settings.
 * @param ptr start of the memory, which stays that of the program and must outlive the provider.
 * @param size in bytes, not 0.
 * @param hParams where the settings are written; umfFixedMemoryProviderParamsDestroy destroys
 *     them.
 * Errors: INVALID_ARGUMENT for NULL and 0. */
umf_result_t umfFixedMemoryProviderParamsCreate(void *ptr, size_t size,
    umf_fixed_memory_provider_params_handle_t *hParams);

/* Sets the memory.
 * @param hParams the settings.
 * @param ptr start of the memory, which must outlive the provider.
 * @param size in bytes, not 0.
 * Errors: INVALID_ARGUMENT for NULL and 0. */
umf_result_t umfFixedMemoryProviderParamsSetMemory(umf_fixed_memory_provider_params_handle_t hParams,
    void *ptr, size_t size);

/* Destroys settings. A provider that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfFixedMemoryProviderParamsDestroy(umf_fixed_memory_provider_params_handle_t hParams);

/* Returns the table of functions of this provider, for umfMemoryProviderCreate. The table is
 * static. */
const umf_memory_provider_ops_t *umfFixedMemoryProviderOps(void);

/* Sets the name of the provider, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfFixedMemoryProviderParamsSetName(umf_fixed_memory_provider_params_handle_t hParams,
    const char *name);

typedef enum umf_fixed_memory_provider_native_error {
    UMF_FIXED_RESULT_SUCCESS = UMF_FIXED_RESULTS_START_FROM,
    UMF_FIXED_RESULT_ERROR_PURGE_FORCE_FAILED,
} umf_fixed_memory_provider_native_error_t;

#ifdef __cplusplus
}
#endif

#endif
