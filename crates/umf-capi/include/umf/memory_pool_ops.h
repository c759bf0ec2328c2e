/* The table of functions of a pool that a program implements. All functions must be thread-safe.
 *
 * A member has the meaning, parameters and results of the function umfPool... of the same name
 * (umf/memory_pool.h). Its first parameter is the state of the pool, which initialize writes to *pool
 * and finalize frees. params is what umfPoolCreate got. A member ext_... may be NULL. */

#ifndef UMF_RS_UMF_MEMORY_POOL_OPS_H
#define UMF_RS_UMF_MEMORY_POOL_OPS_H

#include <stdarg.h>
#include <umf/base.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_POOL_OPS_VERSION_CURRENT UMF_MAKE_VERSION(1, 1)

typedef struct umf_memory_pool_ops_t {
    uint32_t version;
    umf_result_t (*initialize)(umf_memory_provider_handle_t provider, const void *params, void **pool);
    umf_result_t (*finalize)(void *pool);
    void *(*malloc)(void *pool, size_t size);
    void *(*calloc)(void *pool, size_t num, size_t size);
    void *(*realloc)(void *pool, void *ptr, size_t size);
    void *(*aligned_malloc)(void *pool, size_t size, size_t alignment);
    umf_result_t (*malloc_usable_size)(void *pool, const void *ptr, size_t *size);
    umf_result_t (*free)(void *pool, void *ptr);
    umf_result_t (*get_last_allocation_error)(void *pool);
    umf_result_t (*get_name)(void *pool, const char **name);
    umf_result_t (*ext_ctl)(void *pool, umf_ctl_query_source_t source, const char *name, void *arg, size_t size,
        umf_ctl_query_type_t queryType, va_list args);
    umf_result_t (*ext_trim_memory)(void *pool, size_t minBytesToKeep);
} umf_memory_pool_ops_t;

#ifdef __cplusplus
}
#endif

#endif
