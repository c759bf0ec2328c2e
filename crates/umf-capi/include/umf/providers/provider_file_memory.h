/* Memory of a file. */

#ifndef UMF_RS_UMF_PROVIDERS_PROVIDER_FILE_MEMORY_H
#define UMF_RS_UMF_PROVIDERS_PROVIDER_FILE_MEMORY_H

#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_FILE_RESULTS_START_FROM 3000

struct umf_file_memory_provider_params_t;
typedef struct umf_file_memory_provider_params_t *umf_file_memory_provider_params_handle_t;
umf_result_t umfFileMemoryProviderParamsCreate(const char *path,
    umf_file_memory_provider_params_handle_t *hParams);

umf_result_t umfFileMemoryProviderParamsDestroy(umf_file_memory_provider_params_handle_t hParams);

umf_result_t umfFileMemoryProviderParamsSetPath(umf_file_memory_provider_params_handle_t hParams,
    const char *path);

umf_result_t umfFileMemoryProviderParamsSetProtection(umf_file_memory_provider_params_handle_t hParams,
    unsigned protection);

umf_result_t umfFileMemoryProviderParamsSetVisibility(umf_file_memory_provider_params_handle_t hParams,
    umf_memory_visibility_t visibility);

typedef enum umf_file_memory_provider_native_error {
    UMF_FILE_RESULT_SUCCESS = UMF_FILE_RESULTS_START_FROM,
    UMF_FILE_RESULT_ERROR_ALLOC_FAILED,
    UMF_FILE_RESULT_ERROR_FREE_FAILED,
    UMF_FILE_RESULT_ERROR_PURGE_FORCE_FAILED,
} umf_file_memory_provider_native_error_t;

const umf_memory_provider_ops_t *umfFileMemoryProviderOps(void);

umf_result_t umfFileMemoryProviderParamsSetName(umf_file_memory_provider_params_handle_t hParams,
    const char *name);

#ifdef __cplusplus
}
#endif

#endif
