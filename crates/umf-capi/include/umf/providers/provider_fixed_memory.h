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
umf_result_t umfFixedMemoryProviderParamsCreate(void *ptr, size_t size,
    umf_fixed_memory_provider_params_handle_t *hParams);

umf_result_t umfFixedMemoryProviderParamsSetMemory(umf_fixed_memory_provider_params_handle_t hParams,
    void *ptr, size_t size);

umf_result_t umfFixedMemoryProviderParamsDestroy(umf_fixed_memory_provider_params_handle_t hParams);

const umf_memory_provider_ops_t *umfFixedMemoryProviderOps(void);

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
