/* Memory of CUDA devices, in a context of the program. Uses the driver that the program has loaded; without
 * one, settings fail with UMF_RESULT_ERROR_DEPENDENCY_UNAVAILABLE. Settings begin with the current context and its
 * device. The context must outlive the provider. */

#ifndef UMF_RS_UMF_PROVIDERS_PROVIDER_CUDA_H
#define UMF_RS_UMF_PROVIDERS_PROVIDER_CUDA_H

#include <umf/memory_provider_gpu.h>

#ifdef __cplusplus
extern "C" {
#endif

struct umf_cuda_memory_provider_params_t;
typedef struct umf_cuda_memory_provider_params_t *umf_cuda_memory_provider_params_handle_t;
umf_result_t umfCUDAMemoryProviderParamsCreate(umf_cuda_memory_provider_params_handle_t *hParams);

umf_result_t umfCUDAMemoryProviderParamsDestroy(umf_cuda_memory_provider_params_handle_t hParams);

umf_result_t umfCUDAMemoryProviderParamsSetContext(umf_cuda_memory_provider_params_handle_t hParams,
    void *hContext);

umf_result_t umfCUDAMemoryProviderParamsSetDevice(umf_cuda_memory_provider_params_handle_t hParams,
    int hDevice);

umf_result_t umfCUDAMemoryProviderParamsSetMemoryType(umf_cuda_memory_provider_params_handle_t hParams,
    umf_usm_memory_type_t memoryType);

/* Sets CU_MEMHOSTALLOC_* for host memory, or CU_MEM_ATTACH_* for shared memory (0 is CU_MEM_ATTACH_GLOBAL). */
umf_result_t umfCUDAMemoryProviderParamsSetAllocFlags(umf_cuda_memory_provider_params_handle_t hParams,
    unsigned int flags);

umf_result_t umfCUDAMemoryProviderParamsSetName(umf_cuda_memory_provider_params_handle_t hParams,
    const char *name);

const umf_memory_provider_ops_t *umfCUDAMemoryProviderOps(void);

#ifdef __cplusplus
}
#endif

#endif
