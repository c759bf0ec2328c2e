/* Types of device memory. */

#ifndef UMF_RS_UMF_MEMORY_PROVIDER_GPU_H
#define UMF_RS_UMF_MEMORY_PROVIDER_GPU_H

#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum umf_usm_memory_type_t {
    UMF_MEMORY_TYPE_UNKNOWN = 0,
    UMF_MEMORY_TYPE_HOST,
    UMF_MEMORY_TYPE_DEVICE,
    UMF_MEMORY_TYPE_SHARED,
} umf_usm_memory_type_t;

#ifdef __cplusplus
}
#endif

#endif
