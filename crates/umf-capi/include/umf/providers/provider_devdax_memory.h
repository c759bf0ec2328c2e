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
umf_result_t umfDevDaxMemoryProviderParamsCreate(const char *path, size_t size,
    umf_devdax_memory_provider_params_handle_t *hParams);

umf_result_t umfDevDaxMemoryProviderParamsDestroy(umf_devdax_memory_provider_params_handle_t hParams);

umf_result_t umfDevDaxMemoryProviderParamsSetDeviceDax(umf_devdax_memory_provider_params_handle_t hParams,
    const char *path, size_t size);

umf_result_t umfDevDaxMemoryProviderParamsSetProtection(umf_devdax_memory_provider_params_handle_t hParams,
    unsigned protection);

umf_result_t umfDevDaxMemoryProviderParamsSetName(umf_devdax_memory_provider_params_handle_t hParams,
    const char *name);

typedef enum umf_devdax_memory_provider_native_error {
    UMF_DEVDAX_RESULT_SUCCESS = UMF_DEVDAX_RESULTS_START_FROM,
    UMF_DEVDAX_RESULT_ERROR_ALLOC_FAILED,
    UMF_DEVDAX_RESULT_ERROR_ADDRESS_NOT_ALIGNED,
    UMF_DEVDAX_RESULT_ERROR_FREE_FAILED,
    UMF_DEVDAX_RESULT_ERROR_PURGE_FORCE_FAILED,
} umf_devdax_memory_provider_native_error_t;

const umf_memory_provider_ops_t *umfDevDaxMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
