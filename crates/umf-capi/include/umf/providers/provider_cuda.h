/* Memory of CUDA devices, in a context of the program. Uses the driver that the program has
 * loaded; without one, settings fail with UMF_RESULT_ERROR_DEPENDENCY_UNAVAILABLE. Settings
 * begin with the current context and its device. The context must outlive the provider. */

#ifndef UMF_RS_UMF_PROVIDERS_PROVIDER_CUDA_H
#define UMF_RS_UMF_PROVIDERS_PROVIDER_CUDA_H

#include <umf/memory_provider_gpu.h>

#ifdef __cplusplus
extern "C" {
#endif

struct umf_cuda_memory_provider_params_t;
typedef struct umf_cuda_memory_provider_params_t *umf_cuda_memory_provider_params_handle_t;

/* Creates settings, with the current context and its device.
 * @param hParams where the settings are written; umfCUDAMemoryProviderParamsDestroy destroys
 *     them.
 * Errors: DEPENDENCY_UNAVAILABLE if the program has loaded no driver. */
umf_result_t umfCUDAMemoryProviderParamsCreate(umf_cuda_memory_provider_params_handle_t *hParams);

/* Destroys settings. A provider that was created with them stays.
 * @param hParams the settings; NULL has no effect. */
umf_result_t umfCUDAMemoryProviderParamsDestroy(umf_cuda_memory_provider_params_handle_t hParams);

/* Sets the context.
 * @param hParams the settings.
 * @param hContext the context of the driver (CUcontext), which must outlive the provider. */
umf_result_t umfCUDAMemoryProviderParamsSetContext(umf_cuda_memory_provider_params_handle_t hParams,
    void *hContext);

/* Sets the device.
 * @param hParams the settings.
 * @param hDevice the device of the driver (CUdevice); memory belongs to the context, whatever it
 *     is. */
umf_result_t umfCUDAMemoryProviderParamsSetDevice(umf_cuda_memory_provider_params_handle_t hParams,
    int hDevice);

/* Sets the type of the memory, which has no default. Only UMF_MEMORY_TYPE_DEVICE has IPC
 * handles.
 * @param hParams the settings.
 * @param memoryType the type.
 * Errors: INVALID_ARGUMENT for another value. */
umf_result_t umfCUDAMemoryProviderParamsSetMemoryType(umf_cuda_memory_provider_params_handle_t hParams,
    umf_usm_memory_type_t memoryType);

/* Sets CU_MEMHOSTALLOC_* for host memory, or CU_MEM_ATTACH_* for shared memory (0 is
 * CU_MEM_ATTACH_GLOBAL).
 * @param hParams the settings.
 * @param flags the flags of the driver. */
umf_result_t umfCUDAMemoryProviderParamsSetAllocFlags(umf_cuda_memory_provider_params_handle_t hParams,
    unsigned int flags);

/* Sets the name of the provider, for logs and the control tree.
 * @param hParams the settings.
 * @param name the name, of which the first 63 bytes are copied. */
umf_result_t umfCUDAMemoryProviderParamsSetName(umf_cuda_memory_provider_params_handle_t hParams,
    const char *name);

/* Returns the table of functions of this provider, for umfMemoryProviderCreate. The table is
 * static. */
const umf_memory_provider_ops_t *umfCUDAMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
