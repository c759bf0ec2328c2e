/* Providers: coarse-grained memory. All functions are thread-safe. */

#ifndef UMF_RS_UMF_MEMORY_PROVIDER_H
#define UMF_RS_UMF_MEMORY_PROVIDER_H

#include <umf/base.h>
#include <umf/memory_provider_ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum umf_memory_visibility_t {
    UMF_MEM_MAP_PRIVATE = 1,
    UMF_MEM_MAP_SHARED,
} umf_memory_visibility_t;

typedef enum umf_mem_protection_flag_t {
    UMF_PROTECTION_NONE = (1 << 0),
    UMF_PROTECTION_READ = (1 << 1),
    UMF_PROTECTION_WRITE = (1 << 2),
    UMF_PROTECTION_EXEC = (1 << 3),
    UMF_PROTECTION_MAX,
} umf_mem_protection_flag_t;

typedef struct umf_memory_provider_t *umf_memory_provider_handle_t;
/* Makes a provider from a table of functions and its parameters. */
umf_result_t umfMemoryProviderCreate(const umf_memory_provider_ops_t *ops, const void *params,
    umf_memory_provider_handle_t *hProvider);

/* Destroys a provider. */
umf_result_t umfMemoryProviderDestroy(umf_memory_provider_handle_t hProvider);

/* Allocates. Alignment 0 is any alignment. */
umf_result_t umfMemoryProviderAlloc(umf_memory_provider_handle_t hProvider, size_t size, size_t alignment,
    void **ptr);

/* Frees an allocation. The size is that of the allocation. */
umf_result_t umfMemoryProviderFree(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Returns the last native error of this thread, after UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC. */
umf_result_t umfMemoryProviderGetLastNativeError(umf_memory_provider_handle_t hProvider,
    const char **ppMessage, int32_t *pError);

/* Returns the page size that suits that many bytes best. */
umf_result_t umfMemoryProviderGetRecommendedPageSize(umf_memory_provider_handle_t hProvider, size_t size,
    size_t *pageSize);

/* Returns the smallest page size; that of the memory at ptr if it is not NULL. */
umf_result_t umfMemoryProviderGetMinPageSize(umf_memory_provider_handle_t hProvider, const void *ptr,
    size_t *pageSize);

/* Returns the cache line size of the processor or device that works on the memory, in bytes. */
umf_result_t umfMemoryProviderGetCacheLineSize(umf_memory_provider_handle_t hProvider, size_t *size);

/* Lets the system take the pages when it needs them. */
umf_result_t umfMemoryProviderPurgeLazy(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Discards the pages at once. */
umf_result_t umfMemoryProviderPurgeForce(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Returns the size of an IPC handle of this provider in bytes. */
umf_result_t umfMemoryProviderGetIPCHandleSize(umf_memory_provider_handle_t hProvider, size_t *size);

/* Writes the IPC handle of an allocation. */
umf_result_t umfMemoryProviderGetIPCHandle(umf_memory_provider_handle_t hProvider, const void *ptr,
    size_t size, void *providerIpcData);

/* Releases an IPC handle. */
umf_result_t umfMemoryProviderPutIPCHandle(umf_memory_provider_handle_t hProvider, void *providerIpcData);

/* Opens a handle of another process. */
umf_result_t umfMemoryProviderOpenIPCHandle(umf_memory_provider_handle_t hProvider, void *providerIpcData,
    void **ptr);

/* Closes an opened handle. */
umf_result_t umfMemoryProviderCloseIPCHandle(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Returns the name of a provider. It lives as long as the provider. */
umf_result_t umfMemoryProviderGetName(umf_memory_provider_handle_t hProvider, const char **name);

/* Returns the provider whose call failed last in this thread. */
umf_result_t umfGetLastFailedMemoryProvider(umf_memory_provider_handle_t *provider);

/* Splits an allocation in two. */
umf_result_t umfMemoryProviderAllocationSplit(umf_memory_provider_handle_t hProvider, void *ptr,
    size_t totalSize, size_t firstSize);

/* Merges two neighbouring parts of an allocation. */
umf_result_t umfMemoryProviderAllocationMerge(umf_memory_provider_handle_t hProvider, void *lowPtr,
    void *highPtr, size_t totalSize);

#ifdef __cplusplus
}
#endif

#endif
