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

/* Makes a provider from a table of functions and its parameters.
 * @param ops the table, from a function such as umfOsMemoryProviderOps, or of the program; it
 *     must outlive the provider.
 * @param params the settings that the table expects, or NULL if it needs none; not used after
 *     the call.
 * @param hProvider where the provider is written; umfMemoryProviderDestroy destroys it.
 * Errors: NOT_SUPPORTED for an unknown version of the table, INVALID_ARGUMENT for missing
 * functions, and the result of its initialize. */
umf_result_t umfMemoryProviderCreate(const umf_memory_provider_ops_t *ops, const void *params,
    umf_memory_provider_handle_t *hProvider);

/* Destroys a provider. Pools over it must be destroyed before. Memory that is allocated must not
 * be used any more.
 * @param hProvider the provider; NULL has no effect. */
umf_result_t umfMemoryProviderDestroy(umf_memory_provider_handle_t hProvider);

/* Allocates memory.
 * @param hProvider the provider.
 * @param size in bytes, not 0.
 * @param alignment in bytes: a divisor or multiple of the page size; 0 is any.
 * @param ptr where the address is written; umfMemoryProviderFree frees it.
 * Errors: MEMORY_PROVIDER_SPECIFIC, whose reason umfMemoryProviderGetLastNativeError returns,
 * INVALID_ARGUMENT, INVALID_ALIGNMENT, OUT_OF_HOST_MEMORY. */
umf_result_t umfMemoryProviderAlloc(umf_memory_provider_handle_t hProvider, size_t size, size_t alignment,
    void **ptr);

/* Frees an allocation, or a part of a split one.
 * @param hProvider the provider.
 * @param ptr its address; NULL has no effect.
 * @param size its size in bytes, as it was requested.
 * Errors: INVALID_ARGUMENT if the memory is not allocated there with that size; OS memory of
 * another provider, or size 0 of it: MEMORY_PROVIDER_SPECIFIC. */
umf_result_t umfMemoryProviderFree(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Returns the last native error of this thread from providers of this kind, after
 * UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC or a failed call for an IPC handle.
 * @param hProvider the provider.
 * @param ppMessage where the text is written; the library owns it, until the next call for this
 *     kind of provider in this thread.
 * @param pError where the number is written: one of the header of the provider, of its driver,
 *     or UMFRS_NATIVE_ERROR_* of umfrs.h. */
umf_result_t umfMemoryProviderGetLastNativeError(umf_memory_provider_handle_t hProvider,
    const char **ppMessage, int32_t *pError);

/* Returns the page size that suits that many bytes best.
 * @param hProvider the provider.
 * @param size in bytes.
 * @param pageSize where the page size is written, in bytes. */
umf_result_t umfMemoryProviderGetRecommendedPageSize(umf_memory_provider_handle_t hProvider, size_t size,
    size_t *pageSize);

/* Returns the smallest page size; that of the memory at ptr if it is not NULL.
 * @param hProvider the provider.
 * @param ptr an address in memory of the provider, or NULL.
 * @param pageSize where the page size is written, in bytes. */
umf_result_t umfMemoryProviderGetMinPageSize(umf_memory_provider_handle_t hProvider, const void *ptr,
    size_t *pageSize);

/* Returns the cache line size of the processor or device that works on the memory, in bytes.
 * @param hProvider the provider.
 * @param size where the size is written. */
umf_result_t umfMemoryProviderGetCacheLineSize(umf_memory_provider_handle_t hProvider, size_t *size);

/* Lets the system take the pages when it needs them.
 * @param hProvider the provider.
 * @param ptr start of the range, in memory of the provider, at a page.
 * @param size in bytes, which is rounded up to pages.
 * Errors: NOT_SUPPORTED if the provider cannot purge. */
umf_result_t umfMemoryProviderPurgeLazy(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Discards the pages at once.
 * @param hProvider the provider.
 * @param ptr start of the range, in memory of the provider, at a page.
 * @param size in bytes, which is rounded up to pages.
 * Errors: NOT_SUPPORTED if the provider cannot purge. */
umf_result_t umfMemoryProviderPurgeForce(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Returns the size of an IPC handle of this provider in bytes.
 * @param hProvider the provider.
 * @param size where the size is written.
 * Errors: INVALID_ARGUMENT for private memory, NOT_SUPPORTED if the provider has no IPC handles. */
umf_result_t umfMemoryProviderGetIPCHandleSize(umf_memory_provider_handle_t hProvider, size_t *size);

/* Writes the IPC handle of an allocation.
 * @param hProvider the provider.
 * @param ptr an address in the allocation.
 * @param size size of the allocation in bytes, not 0.
 * @param providerIpcData where the handle is written: as many bytes as
 *     umfMemoryProviderGetIPCHandleSize returns. The program owns them and may copy them.
 * Errors: INVALID_ARGUMENT if the memory is private or not allocated, MEMORY_PROVIDER_SPECIFIC
 * if the settings or the driver refuse; the native error says why. */
umf_result_t umfMemoryProviderGetIPCHandle(umf_memory_provider_handle_t hProvider, const void *ptr,
    size_t size, void *providerIpcData);

/* Ends the use of an IPC handle. Copies stay valid until the memory is freed.
 * @param hProvider the provider.
 * @param providerIpcData the bytes of the handle. */
umf_result_t umfMemoryProviderPutIPCHandle(umf_memory_provider_handle_t hProvider, void *providerIpcData);

/* Opens a handle of another process.
 * @param hProvider the provider.
 * @param providerIpcData the bytes of the handle, from a provider of the same kind.
 * @param ptr where the address is written; umfMemoryProviderCloseIPCHandle closes it.
 * Errors: INVALID_ARGUMENT if the bytes are no handle, its memory was freed, or its process is
 * gone; the native error says which. */
umf_result_t umfMemoryProviderOpenIPCHandle(umf_memory_provider_handle_t hProvider, void *providerIpcData,
    void **ptr);

/* Closes an opened handle.
 * @param hProvider the provider.
 * @param ptr the address that umfMemoryProviderOpenIPCHandle returned.
 * @param size size of the memory in bytes, not 0.
 * Errors: INVALID_ARGUMENT if nothing is open there. */
umf_result_t umfMemoryProviderCloseIPCHandle(umf_memory_provider_handle_t hProvider, void *ptr, size_t size);

/* Returns the name of a provider. It lives as long as the provider.
 * @param hProvider the provider.
 * @param name where the name is written; the provider owns it. */
umf_result_t umfMemoryProviderGetName(umf_memory_provider_handle_t hProvider, const char **name);

/* Returns the provider whose call failed last in this thread.
 * @param provider where the provider is written; NULL if no call failed. */
umf_result_t umfGetLastFailedMemoryProvider(umf_memory_provider_handle_t *provider);

/* Splits an allocation in two.
 * @param hProvider the provider.
 * @param ptr start of the allocation, or of a part of it.
 * @param totalSize its size in bytes.
 * @param firstSize size of the lower part in bytes: a multiple of the page size, less than
 *     totalSize.
 * Errors: NOT_SUPPORTED for memory of devices, INVALID_ARGUMENT. */
umf_result_t umfMemoryProviderAllocationSplit(umf_memory_provider_handle_t hProvider, void *ptr,
    size_t totalSize, size_t firstSize);

/* Merges two neighbouring parts of an allocation.
 * @param hProvider the provider.
 * @param lowPtr start of the lower part.
 * @param highPtr start of the upper part, which follows the lower one.
 * @param totalSize size of both in bytes.
 * Errors: NOT_SUPPORTED for memory of devices, INVALID_ARGUMENT. */
umf_result_t umfMemoryProviderAllocationMerge(umf_memory_provider_handle_t hProvider, void *lowPtr,
    void *highPtr, size_t totalSize);

#ifdef __cplusplus
}
#endif

#endif
