/* A provider of the program that forwards each call to a provider of the library, as tracing and
 * counting wrappers do: wrappers os|file|fixed disjoint|proxy|jemalloc|scalable. The path for a file is
 * in IPC_FILE. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "two_processes.h"
#include "host_memory.h"
#include <umf/pools/pool_scalable.h>
#include <umf/providers/provider_fixed_memory.h>

/* Not in the headers of every release. */
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);

static _Atomic long calls;

/* What a wrapper forwards to. */
#define INNER(state) ((umf_memory_provider_handle_t)(state))

static umf_result_t w_initialize(const void *params, void **state) {
    *state = (void *)params;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t w_finalize(void *state) { return umfMemoryProviderDestroy(INNER(state)); }
static umf_result_t w_alloc(void *state, size_t size, size_t align, void **memory) {
    calls++;
    return umfMemoryProviderAlloc(INNER(state), size, align, memory);
}
static umf_result_t w_free(void *state, void *memory, size_t size) {
    calls++;
    return umfMemoryProviderFree(INNER(state), memory, size);
}
static umf_result_t w_error(void *state, const char **message, int32_t *error) {
    return umfMemoryProviderGetLastNativeError(INNER(state), message, error);
}
static umf_result_t w_recommended(void *state, size_t size, size_t *page) {
    return umfMemoryProviderGetRecommendedPageSize(INNER(state), size, page);
}
static umf_result_t w_min(void *state, const void *memory, size_t *page) {
    return umfMemoryProviderGetMinPageSize(INNER(state), memory, page);
}
static umf_result_t w_name(void *state, const char **name) {
    (void)state;
    *name = "wrapper";
    return UMF_RESULT_SUCCESS;
}
static umf_result_t w_lazy(void *state, void *memory, size_t size) {
    return umfMemoryProviderPurgeLazy(INNER(state), memory, size);
}
static umf_result_t w_force(void *state, void *memory, size_t size) {
    return umfMemoryProviderPurgeForce(INNER(state), memory, size);
}
static umf_result_t w_merge(void *state, void *low, void *high, size_t total) {
    calls++;
    return umfMemoryProviderAllocationMerge(INNER(state), low, high, total);
}
static umf_result_t w_split(void *state, void *memory, size_t total, size_t first) {
    calls++;
    return umfMemoryProviderAllocationSplit(INNER(state), memory, total, first);
}
static umf_result_t w_handle_size(void *state, size_t *size) {
    return umfMemoryProviderGetIPCHandleSize(INNER(state), size);
}
static umf_result_t w_get(void *state, const void *memory, size_t size, void *handle) {
    calls++;
    return umfMemoryProviderGetIPCHandle(INNER(state), memory, size, handle);
}
static umf_result_t w_put(void *state, void *handle) { return umfMemoryProviderPutIPCHandle(INNER(state), handle); }
static umf_result_t w_open(void *state, void *handle, void **memory) {
    calls++;
    return umfMemoryProviderOpenIPCHandle(INNER(state), handle, memory);
}
static umf_result_t w_close(void *state, void *memory, size_t size) {
    calls++;
    return umfMemoryProviderCloseIPCHandle(INNER(state), memory, size);
}
static umf_result_t w_line(void *state, size_t *size) { return umfMemoryProviderGetCacheLineSize(INNER(state), size); }

static const umf_memory_provider_ops_t wrapper = {
    .version = UMF_PROVIDER_OPS_VERSION_CURRENT,
    .initialize = w_initialize,
    .finalize = w_finalize,
    .alloc = w_alloc,
    .free = w_free,
    .get_last_native_error = w_error,
    .get_recommended_page_size = w_recommended,
    .get_min_page_size = w_min,
    .get_name = w_name,
    .ext_purge_lazy = w_lazy,
    .ext_purge_force = w_force,
    .ext_allocation_merge = w_merge,
    .ext_allocation_split = w_split,
    .ext_get_ipc_handle_size = w_handle_size,
    .ext_get_ipc_handle = w_get,
    .ext_put_ipc_handle = w_put,
    .ext_open_ipc_handle = w_open,
    .ext_close_ipc_handle = w_close,
    .get_cache_line_size = w_line,
};

static umf_memory_provider_handle_t provider_of(const char *memory) {
    if (strcmp(memory, "fixed") != 0) {
        return host_memory(memory);
    }
    umf_memory_provider_handle_t provider;
    size_t size = 256 << 20;
    void *range = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    umf_fixed_memory_provider_params_handle_t params;
    CHECK(umfFixedMemoryProviderParamsCreate(range, size, &params));
    CHECK(umfMemoryProviderCreate(umfFixedMemoryProviderOps(), params, &provider));
    CHECK(umfFixedMemoryProviderParamsDestroy(params));
    return provider;
}

static umf_memory_provider_handle_t wrapped(const char *memory) {
    umf_memory_provider_handle_t provider;
    CHECK(umfMemoryProviderCreate(&wrapper, provider_of(memory), &provider));
    return provider;
}

/* Returns a pool that owns its provider; NULL if there are no such pools here. */
static umf_memory_pool_handle_t pool_of(umf_memory_provider_handle_t provider, const char *kind) {
    const umf_memory_pool_ops_t *ops = NULL;
    if (strcmp(kind, "jemalloc") == 0) {
        ops = umfJemallocPoolOps();
    } else if (strcmp(kind, "scalable") == 0) {
        ops = umfScalablePoolOps();
    } else {
        return pool_over(provider, kind);
    }
    umf_memory_pool_handle_t pool = NULL;
    if (ops && umfPoolCreate(ops, provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool)) {
        pool = NULL;
    }
    return pool;
}

static umf_memory_pool_handle_t make(const char *memory, const char *kind) {
    return pool_of(wrapped(memory), kind);
}

static void copy(void *to, const void *from, size_t size) { memcpy(to, from, size); }

enum { THREADS = 4, ROUNDS = 200 };

static umf_memory_pool_handle_t shared;
static int has_handles;

/* Allocates, exports, opens in the same process, closes and frees. */
static void *work(void *argument) {
    long failed = 0;
    umf_ipc_handler_handle_t handler = NULL;
    if (has_handles) {
        failed += umfPoolGetIPCHandler(shared, &handler) != 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = 4096 * (1 + (round + (long)argument) % 7);
        char *block = umfPoolMalloc(shared, size), *opened = NULL;
        if (!block) {
            failed++;
            continue;
        }
        block[0] = (char)round;
        umf_ipc_handle_t handle = NULL;
        size_t given;
        if (has_handles) {
            failed += umfGetIPCHandle(block, &handle, &given) != 0;
            failed += handle && (umfOpenIPCHandle(handler, handle, (void **)&opened) || opened[0] != (char)round);
            failed += opened && umfCloseIPCHandle(opened);
            failed += handle && umfPutIPCHandle(handle);
        }
        failed += umfPoolFree(shared, block) != 0;
    }
    return (void *)failed;
}

static void threads(void) {
    pthread_t all[THREADS];
    long failed = 0;
    for (long i = 0; i < THREADS; i++) {
        pthread_create(&all[i], NULL, work, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(all[i], &result);
        failed += (long)result;
    }
    printf("threads failed: %ld\n", failed);
}

/* The provider's own functions, through the wrapper and past it, on memory that a pool has of both. */
static void ranges(const char *memory) {
    umf_memory_provider_handle_t inner = provider_of(memory), outer;
    CHECK(umfMemoryProviderCreate(&wrapper, inner, &outer));
    size_t page;
    CHECK(umfMemoryProviderGetMinPageSize(outer, NULL, &page));
    umf_memory_pool_handle_t pool = pool_over(outer, "proxy"), found = NULL;
    char *block = umfPoolMalloc(pool, 4 * page);
    printf("split: %d\n", umfMemoryProviderAllocationSplit(outer, block, 4 * page, page));
    printf("merge: %d\n", umfMemoryProviderAllocationMerge(outer, block, block + page, 4 * page));
    block[0] = 7;
    printf("purge: %d %d\n", umfMemoryProviderPurgeForce(outer, block, 4 * page), block[0]);
    printf("pool: %d\n", umfPoolByPtr(block, &found) == 0 && found == pool);
    if (has_handles) {
        size_t size;
        CHECK(umfMemoryProviderGetIPCHandleSize(inner, &size));
        void *handle = calloc(1, size), *opened = NULL, *again = NULL;
        printf("handle of the inner region: %d\n", umfMemoryProviderGetIPCHandle(inner, block, 4 * page, handle));
        block[1] = 9;
        CHECK(umfMemoryProviderOpenIPCHandle(inner, handle, &opened));
        CHECK(umfMemoryProviderOpenIPCHandle(inner, handle, &again));
        printf("opened: %d\n", ((char *)opened)[1]);
        CHECK(umfMemoryProviderCloseIPCHandle(inner, opened, 4 * page));
        CHECK(umfMemoryProviderCloseIPCHandle(inner, again, 4 * page));
        printf("better: closed once too often: %d\n", umfMemoryProviderCloseIPCHandle(inner, again, 4 * page));
        CHECK(umfMemoryProviderPutIPCHandle(inner, handle));
        free(handle);
    }
    CHECK(umfPoolFree(pool, block));
    CHECK(umfPoolDestroy(pool));
    /* A slab of a pool, by the handle of its provider. */
    if (has_handles) {
        umf_memory_provider_handle_t provider = provider_of(memory);
        umf_memory_pool_handle_t slabs = pool_over(provider, "disjoint");
        char *small = umfPoolMalloc(slabs, 64);
        size_t size;
        CHECK(umfMemoryProviderGetIPCHandleSize(provider, &size));
        void *handle = calloc(1, size), *opened = NULL;
        small[0] = 5;
        printf("handle of a slab: %d\n", umfMemoryProviderGetIPCHandle(provider, small, 64, handle));
        printf("opened: %d\n", umfMemoryProviderOpenIPCHandle(provider, handle, &opened));
        printf("better: reads: %d\n", opened ? ((char *)opened)[0] : -1);
        CHECK(umfMemoryProviderCloseIPCHandle(provider, opened, 64));
        CHECK(umfMemoryProviderPutIPCHandle(provider, handle));
        free(handle);
        CHECK(umfPoolFree(slabs, small));
        CHECK(umfPoolDestroy(slabs));
    }
}

static umf_memory_pool_handle_t proxy_over(umf_memory_provider_handle_t provider) {
    umf_memory_pool_handle_t pool;
    CHECK(umfPoolCreate(umfProxyPoolOps(), provider, NULL, 0, &pool));
    return pool;
}

/* Pools over providers, and over wrappers of them, open one handle in turn. Each has an address of its
 * own, which is readable until it is closed, also after other pools have closed theirs and are gone. */
static void openers(const char *memory, const char *kind) {
    umf_memory_provider_handle_t outer = wrapped(memory);
    umf_memory_pool_handle_t sources[] = {pool_of(provider_of(memory), kind), make(memory, kind)};
    for (int source = 0; source < 2; source++) {
        char *block = umfPoolMalloc(sources[source], 4096);
        umf_ipc_handle_t handle;
        size_t size;
        strcpy(block, "shared");
        CHECK(umfGetIPCHandle(block, &handle, &size));
        enum { OPENERS = 5 };
        umf_memory_pool_handle_t pools[OPENERS] = {
            pool_of(provider_of(memory), kind), pool_of(provider_of(memory), kind),
            make(memory, kind), proxy_over(outer), proxy_over(outer),
        };
        char *opened[OPENERS];
        int distinct = 1, readable = 1;
        for (int i = 0; i < OPENERS; i++) {
            umf_ipc_handler_handle_t handler;
            CHECK(umfPoolGetIPCHandler(pools[i], &handler));
            CHECK(umfOpenIPCHandle(handler, handle, (void **)&opened[i]));
            for (int other = 0; other < i; other++) {
                distinct &= opened[i] != opened[other];
            }
        }
        for (int gone = 0; gone < OPENERS; gone++) {
            CHECK(umfCloseIPCHandle(opened[gone]));
            CHECK(umfPoolDestroy(pools[gone]));
            for (int i = gone + 1; i < OPENERS; i++) {
                readable &= strcmp(opened[i], "shared") == 0;
            }
        }
        printf("%s source: distinct addresses: %d, readable until closed: %d\n", source ? "wrapped" : "plain",
               distinct, readable);
        CHECK(umfPutIPCHandle(handle));
        CHECK(umfPoolFree(sources[source], block));
        CHECK(umfPoolDestroy(sources[source]));
    }
    CHECK(umfMemoryProviderDestroy(outer));
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    const char *memory = argv[1], *kind = argv[2];
    has_handles = strcmp(memory, "fixed") != 0;
    shared = make(memory, kind);
    if (!shared) {
        printf("no %s pool\n", kind);
        return 0;
    }
    CHECK(umfPoolDestroy(shared));
    /* The child is forked while the process has one thread. */
    if (has_handles) {
        const sides_t sides = {.make = make, .put = copy, .get = copy, .inside = 1};
        pid_t parent = getpid();
        two_processes(&sides, memory, kind);
        if (getpid() != parent) {
            return 0;
        }
    }
    if (has_handles) {
        openers(memory, kind);
    }
    shared = make(memory, kind);
    threads();
    CHECK(umfPoolDestroy(shared));
    if (strcmp(kind, "proxy") == 0) {
        ranges(memory);
    }
    printf("the wrapper was called: %d\n", calls > 0);
    return 0;
}
