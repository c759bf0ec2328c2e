/* Providers and pools that a program brings: versions, nesting, ownership, tracking, tags, names, errors. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <umf.h>
#include <umf/experimental/ctl.h>
#include <umf/ipc.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_proxy.h>

#define P(x) printf("%s = %ld\n", #x, (long)(x))
#define BETTER(x) printf("better: %s = %ld\n", #x, (long)(x))

/* A provider over malloc, which counts. */
static int initialized, finalized, live, puts_seen, closes_seen, ctl_seen, fail_with;

static umf_result_t p_init(const void *params, void **state) {
    initialized++;
    *state = (void *)(params ? params : "mallocs");
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_fini(void *state) {
    (void)state;
    finalized++;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_alloc(void *state, size_t size, size_t align, void **ptr) {
    (void)state;
    if (fail_with) {
        return fail_with;
    }
    if (posix_memalign(ptr, align < 4096 ? 4096 : align, size)) {
        return UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    live++;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_free(void *state, void *ptr, size_t size) {
    (void)state, (void)size;
    live--;
    free(ptr);
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_error(void *state, const char **message, int32_t *error) {
    (void)state;
    *message = "nothing";
    *error = 7;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_recommended(void *state, size_t size, size_t *page) {
    (void)state, (void)size;
    *page = 4096;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_min(void *state, const void *ptr, size_t *page) {
    (void)state, (void)ptr;
    *page = 4096;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_name(void *state, const char **name) {
    *name = state;
    return UMF_RESULT_SUCCESS;
}
/* Its handles are longer than 64 bytes. */
static umf_result_t p_size(void *state, size_t *size) {
    (void)state;
    *size = 100;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_get(void *state, const void *ptr, size_t size, void *data) {
    (void)state, (void)size;
    memset(data, 0xab, 100);
    memcpy(data, &ptr, sizeof ptr);
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_put(void *state, void *data) {
    (void)state, (void)data;
    puts_seen++;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_open(void *state, void *data, void **ptr) {
    (void)state;
    if (((unsigned char *)data)[99] != 0xab) {
        return UMF_RESULT_ERROR_INVALID_ARGUMENT;
    }
    memcpy(ptr, data, sizeof *ptr);
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_close(void *state, void *ptr, size_t size) {
    (void)state, (void)ptr, (void)size;
    closes_seen++;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_ctl(void *state, umf_ctl_query_source_t source, const char *name, void *arg, size_t size,
                          umf_ctl_query_type_t query, va_list args) {
    (void)state, (void)source, (void)size;
    if (strcmp(name, "answer.{}") == 0 && query == CTL_QUERY_READ) {
        *(int *)arg = 40 + (int)va_arg(args, size_t);
        ctl_seen++;
        return UMF_RESULT_SUCCESS;
    }
    return UMF_RESULT_ERROR_INVALID_CTL_PATH;
}
static umf_result_t p_line(void *state, size_t *size) {
    (void)state;
    *size = 128;
    return UMF_RESULT_SUCCESS;
}

static umf_memory_provider_ops_t provider_table(int minor) {
    umf_memory_provider_ops_t ops;
    /* What the version does not have must not be looked at. */
    memset(&ops, 0x55, sizeof ops);
    ops.version = UMF_MAKE_VERSION(1, minor);
    ops.initialize = p_init;
    ops.finalize = p_fini;
    ops.alloc = p_alloc;
    ops.free = p_free;
    ops.get_last_native_error = p_error;
    ops.get_recommended_page_size = p_recommended;
    ops.get_min_page_size = p_min;
    ops.get_name = p_name;
    ops.ext_purge_lazy = NULL;
    ops.ext_purge_force = NULL;
    ops.ext_allocation_merge = NULL;
    ops.ext_allocation_split = NULL;
    ops.ext_get_ipc_handle_size = p_size;
    ops.ext_get_ipc_handle = p_get;
    ops.ext_put_ipc_handle = p_put;
    ops.ext_open_ipc_handle = p_open;
    ops.ext_close_ipc_handle = p_close;
    ops.ext_ctl = p_ctl;
    if (minor >= 1) {
        ops.ext_get_allocation_properties = NULL;
        ops.ext_get_allocation_properties_size = NULL;
    }
    if (minor >= 2) {
        ops.get_cache_line_size = p_line;
    }
    return ops;
}

/* A pool that gets each block from its provider. */
struct pool {
    umf_memory_provider_handle_t provider;
    size_t sizes[64];
    void *blocks[64];
};
static umf_result_t last_error;

static umf_result_t l_init(umf_memory_provider_handle_t provider, const void *params, void **state) {
    (void)params;
    struct pool *pool = calloc(1, sizeof *pool);
    pool->provider = provider;
    *state = pool;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t l_fini(void *state) {
    free(state);
    return UMF_RESULT_SUCCESS;
}
static void *l_aligned(void *state, size_t size, size_t align) {
    struct pool *pool = state;
    void *block = NULL;
    last_error = umfMemoryProviderAlloc(pool->provider, size, align, &block);
    for (int i = 0; i < 64 && block; i++) {
        if (!pool->blocks[i]) {
            pool->blocks[i] = block;
            pool->sizes[i] = size;
            break;
        }
    }
    return block;
}
static void *l_malloc(void *state, size_t size) { return l_aligned(state, size, 0); }
static void *l_calloc(void *state, size_t count, size_t size) {
    void *block = l_malloc(state, count * size);
    return block ? memset(block, 0, count * size) : NULL;
}
static void *l_realloc(void *state, void *block, size_t size) {
    (void)state, (void)block, (void)size;
    last_error = UMF_RESULT_ERROR_NOT_SUPPORTED;
    return NULL;
}
static umf_result_t l_usable(void *state, const void *block, size_t *size) {
    struct pool *pool = state;
    for (int i = 0; i < 64; i++) {
        if (pool->blocks[i] == block) {
            *size = pool->sizes[i];
            return UMF_RESULT_SUCCESS;
        }
    }
    return UMF_RESULT_ERROR_INVALID_ARGUMENT;
}
static umf_result_t l_free(void *state, void *block) {
    struct pool *pool = state;
    for (int i = 0; i < 64; i++) {
        if (block && pool->blocks[i] == block) {
            pool->blocks[i] = NULL;
            return umfMemoryProviderFree(pool->provider, block, pool->sizes[i]);
        }
    }
    return UMF_RESULT_ERROR_INVALID_ARGUMENT;
}
static umf_result_t l_error(void *state) {
    (void)state;
    return last_error;
}
static umf_result_t l_name(void *state, const char **name) {
    (void)state;
    *name = "mine";
    return UMF_RESULT_SUCCESS;
}
static umf_result_t l_trim(void *state, size_t keep) {
    (void)state;
    return keep == 5 ? UMF_RESULT_SUCCESS : UMF_RESULT_ERROR_UNKNOWN;
}

static umf_memory_pool_ops_t pool_table(int minor) {
    umf_memory_pool_ops_t ops;
    memset(&ops, 0x55, sizeof ops);
    ops.version = UMF_MAKE_VERSION(1, minor);
    ops.initialize = l_init;
    ops.finalize = l_fini;
    ops.malloc = l_malloc;
    ops.calloc = l_calloc;
    ops.realloc = l_realloc;
    ops.aligned_malloc = l_aligned;
    ops.malloc_usable_size = l_usable;
    ops.free = l_free;
    ops.get_last_allocation_error = l_error;
    ops.get_name = l_name;
    ops.ext_ctl = NULL;
    if (minor >= 1) {
        ops.ext_trim_memory = l_trim;
    }
    return ops;
}

static void versions(void) {
    for (int minor = 0; minor <= 2; minor++) {
        umf_memory_provider_ops_t ops = provider_table(minor);
        umf_memory_provider_handle_t provider = NULL;
        P(umfMemoryProviderCreate(&ops, "named", &provider));
        const char *name = NULL;
        P(umfMemoryProviderGetName(provider, &name));
        puts(name);
        size_t line = 0;
        P(umfMemoryProviderGetCacheLineSize(provider, &line));
        P(line);
        umf_memory_pool_handle_t pool = NULL;
        P(umfPoolCreate(umfDisjointPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool));
        char *block = umfPoolMalloc(pool, 100);
        P(block != NULL);
        memset(block, 1, 100);
        P(umfFree(block));
        P(umfPoolDestroy(pool));
        P(live);
        P(initialized - finalized);
    }
    umf_memory_provider_ops_t ops = provider_table(2);
    umf_memory_provider_handle_t provider = NULL;
    ops.version = UMF_MAKE_VERSION(2, 0);
    BETTER(umfMemoryProviderCreate(&ops, NULL, &provider));
    ops = provider_table(2);
    ops.alloc = NULL;
    P(umfMemoryProviderCreate(&ops, NULL, &provider));
    ops = provider_table(2);
    ops.ext_put_ipc_handle = NULL;
    P(umfMemoryProviderCreate(&ops, NULL, &provider));
}

static void pools(void) {
    umf_memory_provider_ops_t ops = provider_table(2);
    umf_memory_provider_handle_t provider = NULL, upstream = NULL;
    P(umfMemoryProviderCreate(&ops, NULL, &provider));
    for (int minor = 0; minor <= 1; minor++) {
        umf_memory_pool_ops_t table = pool_table(minor);
        umf_memory_pool_handle_t pool = NULL, found = NULL;
        P(umfPoolCreate(&table, provider, NULL, 0, &pool));
        P(umfPoolGetMemoryProvider(pool, &upstream));
        P(upstream == provider);
        char *block = umfPoolMalloc(pool, 1000);
        P(umfPoolByPtr(block + 999, &found));
        P(found == pool);
        P(umfPoolByPtr(block + 5000, &found) == 0 && found == pool);
        size_t size = 0;
        P(umfPoolMallocUsableSize(pool, block, &size));
        P(size);
        size_t count = 9;
        P(umfCtlGet("umf.pool.by_handle.{}.stats.alloc_count", &count, sizeof count, pool));
        P(count);
        P(umfPoolTrimMemory(pool, 5));
        P(umfFree(block));
        P(umfPoolByPtr(block, &found));
        fail_with = UMF_RESULT_ERROR_USER_SPECIFIC;
        P(umfPoolMalloc(pool, 10) == NULL);
        P(umfPoolGetLastAllocationError(pool));
        fail_with = 0;
        P(umfPoolDestroy(pool));
    }
    umf_memory_pool_handle_t pool = NULL, found = NULL;
    P(umfPoolCreate(umfProxyPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_DISABLE_TRACKING, &pool));
    puts("tracking off");
    umf_ipc_handle_t handle;
    size_t size;
    umf_memory_pool_ops_t table = pool_table(1);
    umf_memory_pool_handle_t untracked = NULL;
    P(umfPoolCreate(&table, provider, NULL, UMF_POOL_CREATE_FLAG_DISABLE_TRACKING, &untracked));
    char *block = umfPoolMalloc(untracked, 1000);
    P(umfPoolByPtr(block, &found));
    P(umfFree(block));
    P(umfGetIPCHandle(block, &handle, &size));
    P(umfPoolFree(untracked, block));
    P(umfPoolDestroy(untracked));
    P(umfPoolDestroy(pool));
    fail_with = UMF_RESULT_ERROR_USER_SPECIFIC;
    void *memory = NULL;
    P(umfMemoryProviderAlloc(provider, 10, 0, &memory));
    umf_memory_provider_handle_t failed = NULL;
    P(umfGetLastFailedMemoryProvider(&failed));
    P(failed == provider);
    P(umfPoolCreate(umfDisjointPoolOps(), provider, NULL, 0, &pool));
    P(umfPoolMalloc(pool, 10) == NULL);
    BETTER(umfPoolGetLastAllocationError(pool));
    fail_with = 0;
    P(umfPoolDestroy(pool));
    P(umfMemoryProviderDestroy(provider));
    P(live);
}

/* A provider over a pool. */
static umf_result_t n_alloc(void *state, size_t size, size_t align, void **ptr) {
    *ptr = umfPoolAlignedMalloc(state, size, align);
    return *ptr ? UMF_RESULT_SUCCESS : umfPoolGetLastAllocationError(state);
}
static umf_result_t n_init(const void *params, void **state) {
    *state = (void *)params;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t n_free(void *state, void *ptr, size_t size) {
    (void)size;
    return umfPoolFree(state, ptr);
}
static umf_result_t n_name(void *state, const char **name) {
    (void)state;
    *name = "nested";
    return UMF_RESULT_SUCCESS;
}

static void nesting(void) {
    umf_memory_provider_ops_t ops = provider_table(2), inner_ops = provider_table(2);
    inner_ops.initialize = n_init;
    inner_ops.alloc = n_alloc;
    inner_ops.free = n_free;
    inner_ops.get_name = n_name;
    inner_ops.finalize = p_fini;
    umf_memory_provider_handle_t provider = NULL, nested = NULL;
    umf_memory_pool_handle_t outer = NULL, inner = NULL, found = NULL;
    P(umfMemoryProviderCreate(&ops, NULL, &provider));
    P(umfPoolCreate(umfProxyPoolOps(), provider, NULL, 0, &outer));
    P(umfMemoryProviderCreate(&inner_ops, outer, &nested));
    P(umfPoolCreate(umfDisjointPoolOps(), nested, NULL, 0, &inner));
    char *block = umfPoolMalloc(inner, 100), *other = umfPoolMalloc(outer, 100);
    P(umfPoolByPtr(block, &found) == 0 && found == inner);
    P(umfPoolByPtr(other, &found) == 0 && found == outer);
    P(umfFree(block));
    P(umfFree(other));
    P(umfPoolDestroy(inner));
    P(umfMemoryProviderDestroy(nested));
    P(umfPoolDestroy(outer));
    P(umfMemoryProviderDestroy(provider));
    P(live);
}

static void handles_and_control(void) {
    umf_memory_provider_ops_t ops = provider_table(2);
    umf_memory_provider_handle_t provider = NULL;
    umf_memory_pool_handle_t pool = NULL;
    P(umfMemoryProviderCreate(&ops, NULL, &provider));
    int answer = 0;
    P(umfCtlGet("umf.provider.by_handle.{}.answer.{}", &answer, sizeof answer, provider, (size_t)2));
    P(answer);
    BETTER(umfCtlGet("umf.provider.by_handle.{}.nothing", &answer, sizeof answer, provider));
    BETTER(umfCtlGet("umf.provider.by_name.mallocs.answer.{}", &answer, sizeof answer, (size_t)3));
    P(umfPoolCreate(umfProxyPoolOps(), provider, NULL, 0, &pool));
    char *block = umfPoolMalloc(pool, 5000);
    strcpy(block, "through a long handle");
    umf_ipc_handle_t handle = NULL;
    size_t size = 0, said = 0;
    P(umfPoolGetIPCHandleSize(pool, &said));
    P(umfGetIPCHandle(block, &handle, &size));
    P(size == said);
    umf_ipc_handler_handle_t handler = NULL;
    P(umfPoolGetIPCHandler(pool, &handler));
    char *opened = NULL;
    P(umfOpenIPCHandle(handler, handle, (void **)&opened));
    puts(opened);
    P(umfCloseIPCHandle(opened));
    P(umfPutIPCHandle(handle));
    P(umfPoolFree(pool, block));
    P(umfPoolDestroy(pool));
    P(puts_seen);
    P(closes_seen);
    P(umfMemoryProviderDestroy(provider));
    P(live);
}

int main(void) {
    versions();
    pools();
    nesting();
    handles_and_control();
    return 0;
}
