/* The table of functions of a provider that a program implements. Versions 1.1 and 1.2 add
 * members at the end. All functions must be thread-safe, except split and merge of the same
 * memory.
 *
 * A member has the meaning, parameters and results of the function umfMemoryProvider... of the same
 * name (umf/memory_provider.h). Its first parameter is the state of the provider, which initialize
 * writes to *provider and finalize frees. params is what umfMemoryProviderCreate got. A member
 * ext_... may be NULL; the five for IPC handles are all NULL or none, and so are split and merge. */

#ifndef UMF_RS_UMF_MEMORY_PROVIDER_OPS_H
#define UMF_RS_UMF_MEMORY_PROVIDER_OPS_H

#include <stdarg.h>
#include <umf/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_PROVIDER_OPS_VERSION_CURRENT UMF_MAKE_VERSION(1, 2)

typedef struct umf_memory_provider_ops_t {
    uint32_t version;
    umf_result_t (*initialize)(const void *params, void **provider);
    umf_result_t (*finalize)(void *provider);
    umf_result_t (*alloc)(void *provider, size_t size, size_t alignment, void **ptr);
    umf_result_t (*free)(void *provider, void *ptr, size_t size);
    umf_result_t (*get_last_native_error)(void *provider, const char **ppMessage, int32_t *pError);
    umf_result_t (*get_recommended_page_size)(void *provider, size_t size, size_t *pageSize);
    umf_result_t (*get_min_page_size)(void *provider, const void *ptr, size_t *pageSize);
    umf_result_t (*get_name)(void *provider, const char **name);
    umf_result_t (*ext_purge_lazy)(void *provider, void *ptr, size_t size);
    umf_result_t (*ext_purge_force)(void *provider, void *ptr, size_t size);
    umf_result_t (*ext_allocation_merge)(void *hProvider, void *lowPtr, void *highPtr, size_t totalSize);
    umf_result_t (*ext_allocation_split)(void *hProvider, void *ptr, size_t totalSize, size_t firstSize);
    umf_result_t (*ext_get_ipc_handle_size)(void *provider, size_t *size);
    umf_result_t (*ext_get_ipc_handle)(void *provider, const void *ptr, size_t size, void *providerIpcData);
    umf_result_t (*ext_put_ipc_handle)(void *provider, void *providerIpcData);
    umf_result_t (*ext_open_ipc_handle)(void *provider, void *providerIpcData, void **ptr);
    umf_result_t (*ext_close_ipc_handle)(void *provider, void *ptr, size_t size);
    umf_result_t (*ext_ctl)(void *provider, umf_ctl_query_source_t source, const char *name, void *arg,
        size_t size, umf_ctl_query_type_t queryType, va_list args);
    umf_result_t (*ext_get_allocation_properties)(void *provider, const void *ptr,
        umf_memory_property_id_t memory_property_id, void *property_value);
    umf_result_t (*ext_get_allocation_properties_size)(void *provider,
        umf_memory_property_id_t memory_property_id, size_t *size);
    umf_result_t (*get_cache_line_size)(void *provider, size_t *size);
} umf_memory_provider_ops_t;

#ifdef __cplusplus
}
#endif

#endif
