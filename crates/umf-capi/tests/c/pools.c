/* Pools for all sizes of memory of the host: pools scalable|jemalloc|absent. Lines that begin with "better" differ from the original by
 * design. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/experimental/ctl.h>
#include <umf/ipc.h>
#include <umf/pools/pool_scalable.h>
#include <umf/providers/provider_fixed_memory.h>
#include <umf/providers/provider_os_memory.h>
#include <unistd.h>

#define P(x) printf("%s = %ld\n", #x, (long)(x))
#define BETTER(x) printf("better: %s = %ld\n", #x, (long)(x))

/* (Not all packages of the original have this header.) */
typedef struct umf_jemalloc_pool_params_t *jemalloc_params;
umf_result_t umfJemallocPoolParamsCreate(jemalloc_params *);
umf_result_t umfJemallocPoolParamsDestroy(jemalloc_params);
umf_result_t umfJemallocPoolParamsSetNumArenas(jemalloc_params, size_t);
umf_result_t umfJemallocPoolParamsSetName(jemalloc_params, const char *);
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);

static const umf_memory_pool_ops_t *ops;
/* Whether the library is this project's: only that checks what is freed, and forked children. */
static int umf_is_ours;

static umf_memory_provider_handle_t host(umf_memory_visibility_t visibility) {
    umf_os_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider = NULL;
    if (umfOsMemoryProviderParamsCreate(&params) || umfOsMemoryProviderParamsSetVisibility(params, visibility) ||
        umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider)) {
        puts("no provider");
        exit(1);
    }
    umfOsMemoryProviderParamsDestroy(params);
    return provider;
}

static umf_memory_pool_handle_t pool_over(umf_memory_provider_handle_t provider, umf_pool_create_flags_t flags) {
    umf_memory_pool_handle_t pool = NULL;
    int result = umfPoolCreate(ops, provider, NULL, flags, &pool);
    if (result) {
        printf("no pool: %d\n", result);
        exit(1);
    }
    return pool;
}

static int is_all(const char *block, int byte, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (block[i] != (char)byte) {
            return 0;
        }
    }
    return 1;
}

static void blocks(umf_memory_pool_handle_t pool) {
    static const size_t sizes[] = {1, 7, 8, 15, 16, 24, 100, 1000, 4096, 10000, 65536, 100000, 1 << 20, 3 << 20, 20 << 20};
    enum { N = sizeof sizes / sizeof *sizes };
    char *all[N];
    long wrong = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            all[i] = umfPoolMalloc(pool, sizes[i]);
            size_t usable = 0;
            wrong += !all[i] || (size_t)all[i] % (sizes[i] < 16 ? 8 : 16) != 0;
            wrong += umfPoolMallocUsableSize(pool, all[i], &usable) != 0 || usable < sizes[i];
            memset(all[i], i + 1, sizes[i]);
        }
        for (int i = 0; i < N; i++) {
            wrong += !is_all(all[i], i + 1, sizes[i]);
            wrong += (i % 2 ? umfFree(all[i]) : umfPoolFree(pool, all[i])) != 0;
        }
        for (int i = 0; i < N; i++) {
            char *cleared = umfPoolCalloc(pool, 1, sizes[i]);
            wrong += !cleared || !is_all(cleared, 0, sizes[i]);
            /* Grows, shrinks, and keeps what it had. */
            memset(cleared, 7, sizes[i]);
            char *larger = umfPoolRealloc(pool, cleared, 3 * sizes[i]);
            wrong += !larger || !is_all(larger, 7, sizes[i]);
            char *smaller = umfPoolRealloc(pool, larger, sizes[i] / 2 + 1);
            wrong += !smaller || !is_all(smaller, 7, sizes[i] / 2 + 1);
            wrong += umfPoolFree(pool, smaller) != 0;
        }
        for (size_t align = 8; align <= 1 << 22; align *= 2) {
            char *block = umfPoolAlignedMalloc(pool, 100 + align / 2, align);
            wrong += !block || (size_t)block % align != 0;
            memset(block, 1, 100 + align / 2);
            wrong += umfPoolFree(pool, block) != 0;
        }
    }
    P(wrong);
}

static void edges(umf_memory_pool_handle_t pool) {
    size_t size = 9;
    char *nothing = umfPoolMalloc(pool, 0);
    P(nothing != NULL);
    P(umfPoolFree(pool, nothing));
    P(umfPoolFree(pool, NULL));
    P(umfPoolMallocUsableSize(pool, NULL, &size));
    P(size);
    P(umfPoolMalloc(pool, SIZE_MAX) != NULL);
    BETTER(umfPoolGetLastAllocationError(pool));
    P(umfPoolMalloc(pool, (size_t)PTRDIFF_MAX + 1) != NULL);
    P(umfPoolMalloc(pool, (size_t)PTRDIFF_MAX - 4096) != NULL);
    P(umfPoolAlignedMalloc(pool, SIZE_MAX - 8, 4096) != NULL);
    P(umfPoolAlignedMalloc(pool, 100, 24) != NULL);
    BETTER(umfPoolCalloc(pool, SIZE_MAX / 2, 3) != NULL);
    BETTER(umfPoolCalloc(pool, (size_t)1 << 33, (size_t)1 << 31) != NULL);
    char *block = umfPoolRealloc(pool, NULL, 100), *kept = block;
    P(block != NULL);
    P(umfPoolRealloc(pool, kept, SIZE_MAX / 2) != NULL);
    P(umfPoolRealloc(pool, block, 0) != NULL);
    if (umf_is_ours) {
        char here[64];
        umf_memory_pool_handle_t other = pool_over(host(UMF_MEM_MAP_PRIVATE), UMF_POOL_CREATE_FLAG_OWN_PROVIDER);
        char *foreign = umfPoolMalloc(other, 100);
        BETTER(umfPoolFree(pool, here));
        BETTER(umfPoolFree(pool, foreign));
        BETTER(umfPoolRealloc(pool, foreign, 1000) != NULL);
        BETTER(umfPoolGetLastAllocationError(pool));
        BETTER(umfPoolMallocUsableSize(pool, foreign, &size));
        BETTER(umfPoolMallocUsableSize(pool, foreign, NULL));
        BETTER(umfPoolFree(other, foreign));
        BETTER(umfPoolDestroy(other));
    }
}

/* Little memory: an error, and no end. */
static void little(void) {
    static char memory[16 << 20] __attribute__((aligned(4096)));
    umf_fixed_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    P(umfFixedMemoryProviderParamsCreate(memory, sizeof memory, &params));
    P(umfMemoryProviderCreate(umfFixedMemoryProviderOps(), params, &provider));
    P(umfFixedMemoryProviderParamsDestroy(params));
    umf_memory_pool_handle_t pool = pool_over(provider, 0);
    char *all[64] = {0};
    int count = 0;
    while (count < 64 && (all[count] = umfPoolMalloc(pool, 1 << 20)) != NULL) {
        memset(all[count++], 1, 1 << 20);
    }
    P(count > 2 && count < 16);
    P(umfPoolGetLastAllocationError(pool) != 0);
    while (count > 0) {
        umfPoolFree(pool, all[--count]);
    }
    char *again = umfPoolMalloc(pool, 1 << 20);
    P(again >= memory && again < memory + sizeof memory);
    P(umfPoolFree(pool, again));
    P(umfPoolDestroy(pool));
    size_t left = 1;
    P(umfCtlGet("umf.provider.by_handle.{}.stats.allocated_memory", &left, sizeof left, provider));
    P(left);
    P(umfMemoryProviderDestroy(provider));
}

static umf_memory_pool_handle_t shared_pool;
static pthread_barrier_t both;
static char *exchanged[2][500];

static void *work(void *number) {
    long self = (long)number, wrong = 0;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 500; i++) {
            size_t size = 1 + (size_t)(i * 37 + round * 11) % 3000;
            exchanged[self][i] = umfPoolMalloc(shared_pool, size);
            wrong += exchanged[self][i] == NULL;
            memset(exchanged[self][i], (int)self + 1, size);
        }
        pthread_barrier_wait(&both);
        for (int i = 0; i < 500; i++) {
            wrong += exchanged[1 - self][i][0] != 2 - self;
            wrong += umfPoolFree(shared_pool, exchanged[1 - self][i]) != 0;
        }
        pthread_barrier_wait(&both);
    }
    return (void *)wrong;
}

static void threads(umf_memory_pool_handle_t pool) {
    pthread_t thread[2];
    shared_pool = pool;
    pthread_barrier_init(&both, NULL, 2);
    for (long i = 0; i < 2; i++) {
        pthread_create(&thread[i], NULL, work, (void *)i);
    }
    for (int i = 0; i < 2; i++) {
        void *wrong = (void *)1;
        pthread_join(thread[i], &wrong);
        P(wrong);
    }
}

static void forked(umf_memory_visibility_t visibility) {
    umf_memory_pool_handle_t pool = pool_over(host(visibility), UMF_POOL_CREATE_FLAG_OWN_PROVIDER);
    char *block = umfPoolMalloc(pool, 100);
    strcpy(block, "of the parent");
    fflush(stdout);
    if (fork() == 0) {
        char *own = umfPoolMalloc(pool, 100);
        BETTER(own != NULL);
        BETTER(umfPoolGetLastAllocationError(pool));
        if (own) {
            BETTER(umfPoolFree(pool, own));
        }
        umfPoolFree(pool, block);
        BETTER(umfPoolDestroy(pool));
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    wait(&status);
    P(status);
    P(strcmp(block, "of the parent"));
    P(umfPoolFree(pool, block));
    P(umfPoolDestroy(pool));
}

static void shared_handles(void) {
    umf_memory_pool_handle_t pool = pool_over(host(UMF_MEM_MAP_SHARED), UMF_POOL_CREATE_FLAG_OWN_PROVIDER);
    char *block = umfPoolMalloc(pool, 1000), *opened = NULL;
    strcpy(block, "shared");
    umf_ipc_handle_t handle;
    umf_ipc_handler_handle_t handler;
    size_t size;
    P(umfGetIPCHandle(block, &handle, &size));
    P(umfPoolGetIPCHandler(pool, &handler));
    P(umfOpenIPCHandle(handler, handle, (void **)&opened));
    puts(opened);
    P(umfCloseIPCHandle(opened));
    P(umfPutIPCHandle(handle));
    P(umfPoolFree(pool, block));
    P(umfPoolDestroy(pool));
}

static void everything(void) {
    umf_memory_provider_handle_t provider = host(UMF_MEM_MAP_PRIVATE);
    umf_memory_pool_handle_t pool = pool_over(provider, 0), found = NULL;
    const char *name = NULL;
    P(umfPoolGetName(pool, &name));
    puts(name);
    char *block = umfPoolMalloc(pool, 100);
    P(umfPoolByPtr(block + 50, &found));
    P(found == pool);
    size_t count = 9;
    P(umfCtlGet("umf.pool.by_handle.{}.stats.alloc_count", &count, sizeof count, pool));
    P(count);
    P(umfPoolFree(pool, block));
    blocks(pool);
    edges(pool);
    threads(pool);
    P(umfCtlGet("umf.pool.by_handle.{}.stats.alloc_count", &count, sizeof count, pool));
    BETTER(count);
    BETTER(umfPoolTrimMemory(pool, 0));
    P(umfPoolDestroy(pool));
    /* Everything went back. */
    P(umfCtlGet("umf.provider.by_handle.{}.stats.allocated_memory", &count, sizeof count, provider));
    P(count);
    pool = pool_over(provider, UMF_POOL_CREATE_FLAG_OWN_PROVIDER | UMF_POOL_CREATE_FLAG_DISABLE_TRACKING);
    block = umfPoolMalloc(pool, 5000);
    P(umfPoolByPtr(block, &found));
    P(umfPoolFree(pool, block));
    P(umfPoolDestroy(pool));
    little();
    forked(UMF_MEM_MAP_PRIVATE);
    forked(UMF_MEM_MAP_SHARED);
    shared_handles();
    if (umf_is_ours && ops == umfScalablePoolOps()) {
        /* It would write into memory that cannot be written. */
        umf_os_memory_provider_params_handle_t params;
        BETTER(umfOsMemoryProviderParamsCreate(&params));
        BETTER(umfOsMemoryProviderParamsSetProtection(params, UMF_PROTECTION_READ));
        BETTER(umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider));
        BETTER(umfOsMemoryProviderParamsDestroy(params));
        BETTER(umfPoolCreate(ops, provider, NULL, 0, &pool) == UMF_RESULT_ERROR_NOT_SUPPORTED);
        BETTER(umfMemoryProviderDestroy(provider));
    }
    if (umf_is_ours) {
        BETTER(umfPoolCreate(ops, NULL, NULL, 0, &pool));
    }
}

static void scalable(void) {
    umf_scalable_pool_params_handle_t params = NULL;
    umf_memory_provider_handle_t provider = host(UMF_MEM_MAP_PRIVATE);
    umf_memory_pool_handle_t pool = NULL;
    const char *name = NULL;
    size_t size = 4 << 20;
    P(umfScalablePoolParamsCreate(NULL));
    P(umfScalablePoolParamsCreate(&params));
    P(umfScalablePoolParamsSetGranularity(params, 0));
    P(umfScalablePoolParamsSetGranularity(NULL, 4096));
    P(umfScalablePoolParamsSetGranularity(params, 1 << 20));
    P(umfScalablePoolParamsSetKeepAllMemory(params, true));
    P(umfScalablePoolParamsSetKeepAllMemory(NULL, true));
    P(umfScalablePoolParamsSetName(params, NULL));
    P(umfScalablePoolParamsSetName(params, "kept"));
    P(umfPoolCreate(ops, provider, params, 0, &pool));
    P(umfScalablePoolParamsDestroy(params));
    P(umfScalablePoolParamsDestroy(NULL));
    P(umfPoolGetName(pool, &name));
    puts(name);
    char *block = umfPoolMalloc(pool, 10 << 20);
    P(block != NULL);
    P(umfPoolFree(pool, block));
    P(umfCtlGet("umf.provider.by_handle.{}.stats.allocated_memory", &size, sizeof size, provider));
    P(size > 0); /* kept */
    P(umfPoolDestroy(pool));
    P(umfCtlGet("umf.provider.by_handle.{}.stats.allocated_memory", &size, sizeof size, provider));
    P(size);
    P(umfMemoryProviderDestroy(provider));
}

/* A provider of the program. Only the program knows that its memory is host memory. */
static umf_result_t own_start(const void *params, void **state) {
    (void)params;
    *state = NULL;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t own_end(void *state) {
    (void)state;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t own_alloc(void *state, size_t size, size_t align, void **memory) {
    (void)state;
    align = align < 4096 ? 4096 : align;
    *memory = aligned_alloc(align, (size + align - 1) / align * align);
    return *memory ? UMF_RESULT_SUCCESS : UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
}
static umf_result_t own_free(void *state, void *memory, size_t size) {
    (void)state;
    (void)size;
    free(memory);
    return UMF_RESULT_SUCCESS;
}
static void own_error(void *state, const char **message, int32_t *code) {
    (void)state;
    (void)message;
    (void)code;
}
static umf_result_t own_recommended(void *state, size_t size, size_t *page) {
    (void)state;
    (void)size;
    *page = 4096;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t own_least(void *state, const void *memory, size_t *page) {
    return own_recommended(state, memory ? 1 : 0, page);
}
static umf_result_t own_line(void *state, size_t *size) {
    (void)state;
    *size = 64;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t own_name(void *state, const char **name) {
    (void)state;
    *name = "own";
    return UMF_RESULT_SUCCESS;
}

static void own_memory(void) {
    umf_memory_provider_ops_t table = {.version = UMF_PROVIDER_OPS_VERSION_CURRENT,
                                       .initialize = own_start,
                                       .finalize = own_end,
                                       .alloc = own_alloc,
                                       .free = own_free,
                                       .get_last_native_error = own_error,
                                       .get_recommended_page_size = own_recommended,
                                       .get_min_page_size = own_least,
                                       .get_name = own_name,
                                       .get_cache_line_size = own_line};
    umf_memory_provider_handle_t provider = NULL;
    P(umfMemoryProviderCreate(&table, NULL, &provider));
    umf_memory_pool_handle_t pool = pool_over(provider, 0);
    char *block = umfPoolCalloc(pool, 10, 10);
    long cleared = 0;
    for (int i = 0; block && i < 100; i++) {
        cleared += block[i] == 0;
        block[i] = 'm';
    }
    P(cleared);
    block = umfPoolRealloc(pool, block, 100000);
    P(block && block[0] == 'm' && block[99] == 'm');
    P(umfPoolFree(pool, block));
    P(umfPoolDestroy(pool));
    P(umfMemoryProviderDestroy(provider));
}

static void jemalloc(void) {
    own_memory();
    jemalloc_params params = NULL;
    umf_memory_pool_handle_t pool = NULL;
    const char *name = NULL;
    P(umfJemallocPoolParamsCreate(NULL));
    P(umfJemallocPoolParamsCreate(&params));
    P(umfJemallocPoolParamsSetNumArenas(NULL, 1));
    P(umfJemallocPoolParamsSetNumArenas(params, 1));
    P(umfJemallocPoolParamsSetName(params, NULL));
    P(umfJemallocPoolParamsSetName(params, "mine"));
    P(umfPoolCreate(ops, host(UMF_MEM_MAP_PRIVATE), params, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool));
    P(umfJemallocPoolParamsDestroy(params));
    P(umfJemallocPoolParamsDestroy(NULL));
    P(umfPoolGetName(pool, &name));
    puts(name);
    P(umfCtlGet("umf.pool.by_handle.{}.params.capacity", &name, sizeof name, pool));
    P(umfPoolDestroy(pool));
    /* More arenas than jemalloc has are an error, and nothing else. */
    P(umfJemallocPoolParamsCreate(&params));
    P(umfJemallocPoolParamsSetNumArenas(params, 100000));
    pool = NULL;
    BETTER(umfPoolCreate(ops, host(UMF_MEM_MAP_PRIVATE), params, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool));
    P(pool != NULL);
    P(umfJemallocPoolParamsDestroy(params));
    /* As many as are wanted. (The original has arenas for few.) */
    enum { MANY = 300 };
    umf_memory_pool_handle_t many[MANY];
    umf_memory_provider_handle_t provider = host(UMF_MEM_MAP_PRIVATE);
    long wrong = 0;
    for (int i = 0; i < MANY; i++) {
        many[i] = pool_over(provider, 0);
        char *block = umfPoolMalloc(many[i], 100);
        wrong += !block || umfPoolFree(many[i], block) != 0;
    }
    for (int i = 0; i < MANY; i++) {
        wrong += umfPoolDestroy(many[i]) != 0;
    }
    P(wrong);
    P(umfMemoryProviderDestroy(provider));
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    umf_is_ours = getenv("UMF_IS_OURS") != NULL;
    if (strcmp(kind, "absent") == 0) {
        umf_memory_pool_handle_t pool = NULL;
        P(umfScalablePoolOps() != NULL);
        P(umfPoolCreate(umfScalablePoolOps(), host(UMF_MEM_MAP_PRIVATE), NULL, 0, &pool));
        P(pool != NULL);
        return 0;
    }
    int is_scalable = strcmp(kind, "scalable") == 0;
    ops = is_scalable ? umfScalablePoolOps() : umfJemallocPoolOps();
    P(ops != NULL);
    if (!ops) {
        return 1;
    }
    if (is_scalable) {
        scalable();
    } else {
        jemalloc();
    }
    everything();
    return 0;
}
