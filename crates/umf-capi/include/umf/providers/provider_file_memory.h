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

/* Creates settings.
 * @param path of the file, which is created if it does not exist; copied.
 * @param hParams where the settings are written; umfFileMemoryProviderParamsDestroy destroys
 *     them.
 * Errors: INVALID_ARGUMENT for an empty path. */
umf_result_t umfFileMemoryProviderParamsCreate(const char *path,
    umf_file_memory_provider_params_handle_t *hParams);

/* Destroys settings. A provider that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfFileMemoryProviderParamsDestroy(umf_file_memory_provider_params_handle_t hParams);

/* Sets the path of the file, which is created if it does not exist.
 * @param hParams the settings.
 * @param path the path, not empty; copied. */
umf_result_t umfFileMemoryProviderParamsSetPath(umf_file_memory_provider_params_handle_t hParams,
    const char *path);

/* Sets the access rights of the memory. The default is reading and writing.
 * @param hParams the settings.
 * @param protection bits of umf_mem_protection_flag_t.
 * Errors: an invalid value is INVALID_ARGUMENT when the provider is created. */
umf_result_t umfFileMemoryProviderParamsSetProtection(umf_file_memory_provider_params_handle_t hParams,
    unsigned protection);

/* Sets whether other processes can open the memory. The default is UMF_MEM_MAP_PRIVATE, without
 * IPC handles.
 * @param hParams the settings.
 * @param visibility the visibility. */
umf_result_t umfFileMemoryProviderParamsSetVisibility(umf_file_memory_provider_params_handle_t hParams,
    umf_memory_visibility_t visibility);

typedef enum umf_file_memory_provider_native_error {
    UMF_FILE_RESULT_SUCCESS = UMF_FILE_RESULTS_START_FROM,
    UMF_FILE_RESULT_ERROR_ALLOC_FAILED,
    UMF_FILE_RESULT_ERROR_FREE_FAILED,
    UMF_FILE_RESULT_ERROR_PURGE_FORCE_FAILED,
} umf_file_memory_provider_native_error_t;

/* Returns the table of functions of this provider, for umfMemoryProviderCreate. The table is
 * static. */
const umf_memory_provider_ops_t *umfFileMemoryProviderOps(void);

/* Sets the name of the provider, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfFileMemoryProviderParamsSetName(umf_file_memory_provider_params_handle_t hParams,
    const char *name);

#ifdef __cplusplus
}
#endif

#endif
