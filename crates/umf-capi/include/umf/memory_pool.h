/* Pools: blocks in a provider's memory. All functions are thread-safe. */

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
/* Makes a pool over a provider. The provider must outlive the pool, unless a flag passes its ownership. */
umf_result_t umfPoolCreate(const umf_memory_pool_ops_t *ops, umf_memory_provider_handle_t provider,
    const void *params, umf_pool_create_flags_t flags, umf_memory_pool_handle_t *hPool);

/* Destroys a pool with all its blocks. */
umf_result_t umfPoolDestroy(umf_memory_pool_handle_t hPool);

/* Allocates. Returns NULL on failure, and for 0 bytes. */
void *umfPoolMalloc(umf_memory_pool_handle_t hPool, size_t size);

/* Allocates at a multiple of a power of two. */
void *umfPoolAlignedMalloc(umf_memory_pool_handle_t hPool, size_t size, size_t alignment);

/* Allocates and clears. Needs memory that the CPU can access. */
void *umfPoolCalloc(umf_memory_pool_handle_t hPool, size_t num, size_t size);

/* Resizes a block, which may move. Needs memory that the CPU can access. */
void *umfPoolRealloc(umf_memory_pool_handle_t hPool, void *ptr, size_t size);

/* Returns the usable bytes from the pointer on. */
umf_result_t umfPoolMallocUsableSize(umf_memory_pool_handle_t hPool, const void *ptr, size_t *size);

/* Frees a block of this pool. */
umf_result_t umfPoolFree(umf_memory_pool_handle_t hPool, void *ptr);

/* Frees a block of any pool that tracks its memory. */
umf_result_t umfFree(void *ptr);

/* Returns why the last allocation of this thread from this kind of pool failed. */
umf_result_t umfPoolGetLastAllocationError(umf_memory_pool_handle_t hPool);

/* Returns the pool that owns an address. */
umf_result_t umfPoolByPtr(const void *ptr, umf_memory_pool_handle_t *pool);

/* Returns the provider that the pool was made with. */
umf_result_t umfPoolGetMemoryProvider(umf_memory_pool_handle_t hPool,
    umf_memory_provider_handle_t *hProvider);

/* Returns the name of a pool. It lives as long as the pool. */
umf_result_t umfPoolGetName(umf_memory_pool_handle_t pool, const char **name);

/* Sets the pool's tag, a pointer of the program; oldTag may be NULL. */
umf_result_t umfPoolSetTag(umf_memory_pool_handle_t hPool, void *tag, void **oldTag);

/* Returns the pool's tag. */
umf_result_t umfPoolGetTag(umf_memory_pool_handle_t hPool, void **tag);

/* Frees cached memory, and keeps at least that many bytes. */
umf_result_t umfPoolTrimMemory(umf_memory_pool_handle_t hPool, size_t minBytesToKeep);

#ifdef __cplusplus
}
#endif

#endif
