/* Pools: blocks out of a provider's memory. All functions may be called by several threads at once. */

#ifndef UMF_RS_UMF_MEMORY_POOL_H
#define UMF_RS_UMF_MEMORY_POOL_H

#include <stddef.h>
#include <umf/base.h>
#include <umf/memory_pool_ops.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct umf_memory_pool_t *umf_memory_pool_handle_t;
typedef enum umf_pool_create_flag_t {
    UMF_POOL_CREATE_FLAG_NONE = 0,
    UMF_POOL_CREATE_FLAG_OWN_PROVIDER = (1 << 0),
    UMF_POOL_CREATE_FLAG_DISABLE_TRACKING = (1 << 1),
    UMF_POOL_CREATE_FLAG_FORCE_UINT32 = 0x7fffffff,
} umf_pool_create_flag_t;

typedef uint32_t umf_pool_create_flags_t;
/* Makes a pool over a provider, which lives at least as long unless it is given away by a flag. */
umf_result_t umfPoolCreate(const umf_memory_pool_ops_t *ops, umf_memory_provider_handle_t provider,
    const void *params, umf_pool_create_flags_t flags, umf_memory_pool_handle_t *hPool);

/* Ends a pool. Blocks that were not freed go with it. */
umf_result_t umfPoolDestroy(umf_memory_pool_handle_t hPool);

/* Allocates; NULL if that fails, and for 0 bytes. */
void *umfPoolMalloc(umf_memory_pool_handle_t hPool, size_t size);

/* The same at a multiple of a power of two. */
void *umfPoolAlignedMalloc(umf_memory_pool_handle_t hPool, size_t size, size_t alignment);

/* The same, cleared. For memory that the processor can reach. */
void *umfPoolCalloc(umf_memory_pool_handle_t hPool, size_t num, size_t size);

/* Changes the size of a block, which may move. For memory that the processor can reach. */
void *umfPoolRealloc(umf_memory_pool_handle_t hPool, void *ptr, size_t size);

/* Bytes that may be used from the pointer on. */
umf_result_t umfPoolMallocUsableSize(umf_memory_pool_handle_t hPool, const void *ptr, size_t *size);

/* Frees a block of this pool. */
umf_result_t umfPoolFree(umf_memory_pool_handle_t hPool, void *ptr);

/* Frees a block of any pool that tracks its memory. */
umf_result_t umfFree(void *ptr);

/* Why the last allocation of this thread from this kind of pool failed. */
umf_result_t umfPoolGetLastAllocationError(umf_memory_pool_handle_t hPool);

/* The pool whose memory holds an address. */
umf_result_t umfPoolByPtr(const void *ptr, umf_memory_pool_handle_t *pool);

/* The provider that the pool was made with. */
umf_result_t umfPoolGetMemoryProvider(umf_memory_pool_handle_t hPool,
    umf_memory_provider_handle_t *hProvider);

/* The name of a pool; it lives as long as the pool. */
umf_result_t umfPoolGetName(umf_memory_pool_handle_t pool, const char **name);

/* Sets the pool's tag, a pointer of the program's; oldTag may be NULL. */
umf_result_t umfPoolSetTag(umf_memory_pool_handle_t hPool, void *tag, void **oldTag);

/* Gets it. */
umf_result_t umfPoolGetTag(umf_memory_pool_handle_t hPool, void **tag);

/* Gives free memory back to the provider, but for that many bytes. */
umf_result_t umfPoolTrimMemory(umf_memory_pool_handle_t hPool, size_t minBytesToKeep);

#ifdef __cplusplus
}
#endif

#endif
