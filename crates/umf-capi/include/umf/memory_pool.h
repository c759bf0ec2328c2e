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

/* Makes a pool over a provider. The provider must outlive the pool, unless a flag passes its
 * ownership.
 * @param ops the table, from a function such as umfDisjointPoolOps, or of the program; it must
 *     outlive the pool.
 * @param provider the provider of the memory.
 * @param params the settings that the table expects, or NULL for the defaults; not used after
 *     the call.
 * @param flags bits of umf_pool_create_flag_t; 0 for none. OWN_PROVIDER: umfPoolDestroy destroys
 *     the provider, too. DISABLE_TRACKING: umfFree, umfPoolByPtr and IPC handles do not find the
 *     blocks.
 * @param hPool where the pool is written; umfPoolDestroy destroys it.
 * Errors: NOT_SUPPORTED, INVALID_ARGUMENT, and the result of the initialize of the table. */
umf_result_t umfPoolCreate(const umf_memory_pool_ops_t *ops, umf_memory_provider_handle_t provider,
    const void *params, umf_pool_create_flags_t flags, umf_memory_pool_handle_t *hPool);

/* Destroys a pool with all its blocks.
 * @param hPool the pool; NULL has no effect. */
umf_result_t umfPoolDestroy(umf_memory_pool_handle_t hPool);

/* Allocates a block. Returns NULL on failure, and for 0 bytes; umfrsLastErrorText and
 * umfPoolGetLastAllocationError return the reason. umfPoolFree or umfFree frees the block.
 * @param hPool the pool.
 * @param size in bytes. */
void *umfPoolMalloc(umf_memory_pool_handle_t hPool, size_t size);

/* Allocates a block at a multiple of a power of two. Returns NULL as umfPoolMalloc does.
 * @param hPool the pool.
 * @param size in bytes.
 * @param alignment in bytes, a power of two; 0 is any. */
void *umfPoolAlignedMalloc(umf_memory_pool_handle_t hPool, size_t size, size_t alignment);

/* Allocates a block and clears it. Needs memory that the CPU can access. Returns NULL as
 * umfPoolMalloc does.
 * @param hPool the pool.
 * @param num number of elements.
 * @param size of an element in bytes. */
void *umfPoolCalloc(umf_memory_pool_handle_t hPool, size_t num, size_t size);

/* Resizes a block, which may move. Needs memory that the CPU can access. Returns NULL on
 * failure, and the block stays as it is.
 * @param hPool the pool.
 * @param ptr the block; NULL allocates.
 * @param size the new size in bytes; 0 frees the block and returns NULL. */
void *umfPoolRealloc(umf_memory_pool_handle_t hPool, void *ptr, size_t size);

/* Returns the usable bytes from the pointer on.
 * @param hPool the pool.
 * @param ptr an address in a block; NULL has 0 bytes.
 * @param size where the number of bytes is written. */
umf_result_t umfPoolMallocUsableSize(umf_memory_pool_handle_t hPool, const void *ptr, size_t *size);

/* Frees a block of this pool.
 * @param hPool the pool.
 * @param ptr the block; NULL has no effect.
 * Errors: INVALID_ARGUMENT if it is no live block of the pool. */
umf_result_t umfPoolFree(umf_memory_pool_handle_t hPool, void *ptr);

/* Frees a block of any pool that tracks its memory.
 * @param ptr the block.
 * Errors: INVALID_ARGUMENT if it is no live block of such a pool. */
umf_result_t umfFree(void *ptr);

/* Returns why the last allocation of this thread from this kind of pool failed.
 * @param hPool the pool. */
umf_result_t umfPoolGetLastAllocationError(umf_memory_pool_handle_t hPool);

/* Returns the pool that owns an address.
 * @param ptr an address in a block.
 * @param pool where the pool is written; NULL on failure.
 * Errors: INVALID_ARGUMENT if the memory is of no pool that tracks it. */
umf_result_t umfPoolByPtr(const void *ptr, umf_memory_pool_handle_t *pool);

/* Returns the provider that the pool was made with.
 * @param hPool the pool.
 * @param hProvider where the provider is written; the pool keeps its ownership, if it has it. */
umf_result_t umfPoolGetMemoryProvider(umf_memory_pool_handle_t hPool,
    umf_memory_provider_handle_t *hProvider);

/* Returns the name of a pool. It lives as long as the pool.
 * @param pool the pool.
 * @param name where the name is written. */
umf_result_t umfPoolGetName(umf_memory_pool_handle_t pool, const char **name);

/* Sets the pool's tag, a pointer of the program; oldTag may be NULL.
 * @param hPool the pool.
 * @param tag the new tag; the library does not use it.
 * @param oldTag where the old tag is written, or NULL. */
umf_result_t umfPoolSetTag(umf_memory_pool_handle_t hPool, void *tag, void **oldTag);

/* Returns the pool's tag.
 * @param hPool the pool.
 * @param tag where the tag is written; NULL if none was set. */
umf_result_t umfPoolGetTag(umf_memory_pool_handle_t hPool, void **tag);

/* Frees cached memory, and keeps at least that many bytes.
 * @param hPool the pool.
 * @param minBytesToKeep in bytes; 0 frees all that is free.
 * Errors: NOT_SUPPORTED if the kind of pool does not trim. */
umf_result_t umfPoolTrimMemory(umf_memory_pool_handle_t hPool, size_t minBytesToKeep);

#ifdef __cplusplus
}
#endif

#endif
