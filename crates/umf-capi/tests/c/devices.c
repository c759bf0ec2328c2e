/* Memory of devices, with the driver of driver_level_zero.h or driver_cuda.h: devices answers | ipc disjoint|proxy | threads |
 * forked | absent. Lines that begin with "better" differ from the original by design. */

#define _GNU_SOURCE
#include "two_processes.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <umf/experimental/ctl.h>
#include <umf/experimental/memory_properties.h>
#include <umf/providers/provider_os_memory.h>

#define P(x) printf("%s = %ld\n", #x, (long)(x))
#define BETTER(x) printf("better: %s = %ld\n", #x, (long)(x))

/* Whether the library is this project's: only that refuses handles that are none. */
static int umf_is_ours;

#ifdef DRIVER_CUDA
#include "driver_cuda.h"
#else
#include "driver_level_zero.h"
#endif

static umf_memory_provider_handle_t provider_of(umf_usm_memory_type_t type) {
    umf_memory_provider_handle_t provider;
    params_t params = params_of(type);
    CHECK(umfMemoryProviderCreate(OPS(), params, &provider));
    CHECK(PARAMS_DESTROY(params));
    return provider;
}

static umf_memory_pool_handle_t pool_of(umf_usm_memory_type_t type, const char *kind) {
    return pool_over(provider_of(type), kind);
}

/* The original remembers no lack of memory, and of Level Zero it has no text. */
static void last_error_of(umf_memory_provider_handle_t p, const char *better) {
    umf_memory_provider_handle_t failed = NULL;
    const char *text = NULL;
    int number = -1;
    P(umfGetLastFailedMemoryProvider(&failed));
    P(failed != NULL);
    /* Of handles through a pool the original names a provider that the program does not know. */
    BETTER(failed == p);
    int result = umfMemoryProviderGetLastNativeError(p, &text, &number);
#ifdef DRIVER_CUDA
    printf("%s%d, %d, %s\n", better, result, number, text);
#else
    printf("%s%d\n", better, number);
    printf("better: %d, %s\n", result, text ? text : "no text");
#endif
}

static void provider_answers(umf_usm_memory_type_t type) {
    umf_memory_provider_handle_t p = provider_of(type);
    const char *name = NULL;
    P(type);
    P(umfMemoryProviderGetName(p, &name));
    printf("%s\n", name);
    size_t size = 0, line = 0;
    P(umfMemoryProviderGetMinPageSize(p, NULL, &size));
    BETTER(size);
    P(umfMemoryProviderGetRecommendedPageSize(p, 1 << 20, &size));
    BETTER(size);
    P(umfMemoryProviderGetCacheLineSize(p, &line));
    P(line);
    void *m = NULL, *low = NULL;
    P(umfMemoryProviderAlloc(p, 100, 0, &m));
    P(m != NULL);
    P(umfMemoryProviderGetMinPageSize(p, m, &size));
    P(umfMemoryProviderAlloc(p, 4096, 64, &low));
    P((size_t)low % 64);
    P(umfMemoryProviderPurgeLazy(p, low, 4096));
    P(umfMemoryProviderPurgeForce(p, low, 4096));
    P(umfMemoryProviderAllocationSplit(p, low, 8192, 4096));
    P(umfMemoryProviderAllocationMerge(p, low, (char *)low + 4096, 8192));
    P(umfCtlGet("umf.provider.by_handle.{}.stats.allocated_memory", &size, sizeof size, p));
    P(size >= 4196);
    P(umfCtlGet("umf.provider.by_handle.{}.stats.peak_memory", &size, sizeof size, p));
    P(size >= 4196);
    P(umfMemoryProviderFree(p, low, 4096));
    P(umfMemoryProviderFree(p, m, 100));
    P(umfMemoryProviderFree(p, NULL, 100));
    P(umfCtlGet("umf.provider.by_handle.{}.stats.allocated_memory", &size, sizeof size, p));
    P(size);
    int on_the_stack;
    P(umfMemoryProviderFree(p, &on_the_stack, 100) != 0);
    if (umf_is_ours) {
        BETTER(umfMemoryProviderFree(p, m, 100));
        void *other = NULL;
        umf_memory_provider_handle_t second = provider_of(type);
        BETTER(umfMemoryProviderAlloc(second, 100, 0, &other));
        BETTER(umfMemoryProviderFree(p, other, 100));
        BETTER(umfMemoryProviderFree(second, other, 1 << 30));
        BETTER(umfMemoryProviderFree(second, other, 100));
        BETTER(umfMemoryProviderDestroy(second));
        BETTER(umfMemoryProviderAlloc(p, 100, 3, &m));
    }
    P(umfMemoryProviderAlloc(p, 0, 0, &m));
    P(umfMemoryProviderAlloc(p, 1UL << 50, 0, &m));
    last_error_of(p, "better: ");
    size_t room = 0;
    if (type == UMF_MEMORY_TYPE_DEVICE) {
        P(umfMemoryProviderGetIPCHandleSize(p, &room));
        char *handle = calloc(1, room);
        void *opened = NULL;
        P(umfMemoryProviderAlloc(p, 100, 0, &m));
        P(umfMemoryProviderGetIPCHandle(p, m, 100, handle));
        P(umfMemoryProviderPutIPCHandle(p, handle));
        if (umf_is_ours) {
            BETTER(umfMemoryProviderGetIPCHandle(p, m, 100, handle));
            BETTER(umfMemoryProviderOpenIPCHandle(p, handle, &opened));
            BETTER(umfMemoryProviderCloseIPCHandle(p, opened, 100));
            BETTER(umfMemoryProviderCloseIPCHandle(p, opened, 100));
            memset(handle, 0x5a, room);
            BETTER(umfMemoryProviderOpenIPCHandle(p, handle, &opened));
            BETTER(umfMemoryProviderPutIPCHandle(p, handle));
        }
        P(umfMemoryProviderFree(p, m, 100));
        free(handle);
        if (driver_faults(REFUSED_ALLOCATION)) {
            P(umfMemoryProviderAlloc(p, 100, 0, &m));
            last_error_of(p, "");
            driver_faults("");
            P(umfMemoryProviderAlloc(p, 100, 0, &m));
            driver_faults(REFUSED_FREE);
            P(umfMemoryProviderFree(p, m, 100));
            last_error_of(p, "");
            driver_faults("");
            P(umfMemoryProviderFree(p, m, 100));
        }
    } else if (umf_is_ours) {
        BETTER(umfMemoryProviderGetIPCHandleSize(p, &room));
    }
    P(umfMemoryProviderDestroy(p));
    BETTER(driver_count("allocations"));
}

static void pool_answers(umf_usm_memory_type_t type, const char *kind) {
    umf_memory_pool_handle_t pool = pool_of(type, kind), found = NULL;
    P(type);
    puts(kind);
    char *block = umfPoolMalloc(pool, 1000), text[8] = "";
    P(block != NULL);
    P(umfPoolByPtr(block + 10, &found));
    P(found == pool);
    driver_put(block, "hello", 6);
    driver_get(text, block, 6);
    puts(text);
    void *aligned = umfPoolAlignedMalloc(pool, 1000, 256);
    P(aligned != NULL && (size_t)aligned % 256 == 0);
    umf_memory_properties_handle_t properties;
    P(umfGetMemoryPropertiesHandle(block + 10, &properties));
    size_t size = 0;
    umf_usm_memory_type_t said = 0;
    P(umfGetMemoryPropertySize(properties, UMF_MEMORY_PROPERTY_POINTER_TYPE, &size));
    P(size);
    P(umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_POINTER_TYPE, &said, sizeof said));
    P(said == type);
    void *in = NULL;
    P(umfGetMemoryPropertySize(properties, UMF_MEMORY_PROPERTY_CONTEXT, &size));
    P(umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_CONTEXT, &in, sizeof in));
    P(in == the_context());
    char on[8] = "";
    P(umfGetMemoryPropertySize(properties, UMF_MEMORY_PROPERTY_DEVICE, &size));
    P(umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_DEVICE, on, size));
    P(is_the_device(on, size, type));
    P(umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_DEVICE, on, 1));
    P(umfGetMemoryPropertySize(properties, 99, &size));
    if (umf_is_ours && strcmp(kind, "disjoint") == 0) {
        /* Only memory that the processor reaches can be cleared. */
        char *cleared = umfPoolCalloc(pool, 10, 100);
        BETTER((cleared != NULL) == (type != UMF_MEMORY_TYPE_DEVICE));
        BETTER(cleared ? (int)cleared[999] : (int)umfPoolGetLastAllocationError(pool));
        BETTER(umfPoolFree(pool, cleared));
        BETTER(umfPoolFree(pool, text));
    }
    if (type == UMF_MEMORY_TYPE_DEVICE) {
        umf_ipc_handler_handle_t handler;
        umf_ipc_handle_t handle;
        void *opened = NULL;
        P(umfPoolGetIPCHandler(pool, &handler));
        P(umfGetIPCHandle(block + 100, &handle, &size));
        if (umf_is_ours) {
            /* By the process that has it: the same memory. */
            BETTER(umfOpenIPCHandle(handler, handle, &opened));
            driver_get(text, (char *)opened - 100, 6);
            BETTER(strcmp(text, "hello"));
            BETTER(umfCloseIPCHandle(opened));
        }
        P(umfPutIPCHandle(handle));
        void *other = umfPoolMalloc(pool, 3 << 20);
        if (driver_faults(REFUSED_EXPORT)) {
            umf_memory_provider_handle_t provider;
            P(umfPoolGetMemoryProvider(pool, &provider));
            P(umfGetIPCHandle(other, &handle, &size));
            last_error_of(provider, "");
            driver_faults("");
        }
        P(umfPoolFree(pool, other));
    } else if (umf_is_ours) {
        umf_ipc_handle_t handle;
        BETTER(umfPoolGetIPCHandleSize(pool, &size));
        BETTER(umfGetIPCHandle(block, &handle, &size));
    }
    P(umfPoolFree(pool, aligned));
    P(umfFree(block));
    P(umfPoolDestroy(pool));
    BETTER(driver_count("allocations"));
}

/* Drivers do not come through forks: each side starts its own, and the child was forked before the parent did. */
static umf_memory_pool_handle_t make(const char *memory, const char *kind) {
    (void)memory;
    driver_start();
    return pool_of(UMF_MEMORY_TYPE_DEVICE, kind);
}

static void refused(umf_memory_pool_handle_t pool, umf_ipc_handler_handle_t handler, umf_ipc_handle_t handle) {
    if (driver_faults(REFUSED_OPENING)) {
        char *first = NULL;
        P(umfOpenIPCHandle(handler, handle, (void **)&first));
        umf_memory_provider_handle_t provider;
        CHECK(umfPoolGetMemoryProvider(pool, &provider));
        last_error_of(provider, "");
        driver_faults("");
    }
}

/* Two threads: blocks of one pool, freed by the other; providers that come and go; the last error is each thread's own. */
static umf_memory_pool_handle_t shared_pool;
static umf_memory_provider_handle_t shared_provider;
static void *exchanged[2][64];
static pthread_barrier_t both;

static void *work(void *number) {
    long self = (long)number, wrong = 0;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 64; i++) {
            exchanged[self][i] = umfPoolMalloc(shared_pool, 1 + (size_t)(i * 997 + round * 131) % 100000);
            wrong += exchanged[self][i] == NULL;
        }
        pthread_barrier_wait(&both);
        for (int i = 0; i < 64; i++) {
            wrong += umfPoolFree(shared_pool, exchanged[1 - self][i]) != 0;
        }
        pthread_barrier_wait(&both);
        umf_memory_provider_handle_t own = provider_of(self ? UMF_MEMORY_TYPE_HOST : UMF_MEMORY_TYPE_DEVICE);
        void *m = NULL;
        wrong += umfMemoryProviderAlloc(own, 100, 0, &m) != 0 || umfMemoryProviderFree(own, m, 100) != 0;
        wrong += umfMemoryProviderDestroy(own) != 0;
    }
    const char *text = NULL;
    int number_before = -1, number_after = -1;
    void *m = NULL;
    umfMemoryProviderGetLastNativeError(shared_provider, &text, &number_before);
    if (self == 0) {
        umfMemoryProviderAlloc(shared_provider, 1UL << 50, 0, &m);
    }
    pthread_barrier_wait(&both);
    umfMemoryProviderGetLastNativeError(shared_provider, &text, &number_after);
    wrong += number_before != 0 || (number_after != 0) != (self == 0);
    return (void *)wrong;
}

static void threads(void) {
    shared_pool = pool_of(UMF_MEMORY_TYPE_DEVICE, "disjoint");
    shared_provider = provider_of(UMF_MEMORY_TYPE_DEVICE);
    pthread_barrier_init(&both, NULL, 2);
    pthread_t thread[2];
    for (long i = 0; i < 2; i++) {
        CHECK(pthread_create(&thread[i], NULL, work, (void *)i));
    }
    for (int i = 0; i < 2; i++) {
        void *wrong = NULL;
        CHECK(pthread_join(thread[i], &wrong));
        printf("wrong in a thread: %ld\n", (long)wrong);
    }
    CHECK(umfPoolDestroy(shared_pool));
    CHECK(umfMemoryProviderDestroy(shared_provider));
    printf("left: %ld\n", driver_count("allocations"));
}

/* A forked child: what is of the parent's driver is refused, and nothing crashes or hangs. */
static void forked(void) {
    umf_memory_pool_handle_t pool = pool_of(UMF_MEMORY_TYPE_DEVICE, "disjoint");
    void *block = umfPoolMalloc(pool, 100);
    CHECK(block == NULL);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        void *m = umfPoolMalloc(pool, 100), *large = umfPoolMalloc(pool, 100 << 20);
        printf("child: %d %d %d\n", m == NULL, large == NULL, umfPoolGetLastAllocationError(pool));
        umfPoolFree(pool, block);
        printf("child destroys: %d\n", umfPoolDestroy(pool));
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    printf("status %d\n", status);
    driver_put(block, "hello", 6);
    CHECK(umfPoolFree(pool, block));
    CHECK(umfPoolDestroy(pool));
    printf("left: %ld\n", driver_count("allocations"));
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "answers";
    umf_is_ours = getenv("UMF_IS_OURS") != NULL;
    if (strcmp(mode, "ipc") == 0) {
        const sides_t sides = {.make = make, .put = driver_put, .get = driver_get, .before = refused};
        return two_processes(&sides, "", argc > 2 ? argv[2] : "disjoint");
    }
    if (strcmp(mode, "absent") == 0) {
        absent();
        return 0;
    }
    driver_start();
    if (strcmp(mode, "threads") == 0) {
        threads();
        return 0;
    }
    if (strcmp(mode, "forked") == 0) {
        forked();
        return 0;
    }
    own_answers();
    for (umf_usm_memory_type_t type = UMF_MEMORY_TYPE_HOST; type <= UMF_MEMORY_TYPE_SHARED; type++) {
        provider_answers(type);
        pool_answers(type, "disjoint");
        pool_answers(type, "proxy");
    }
    return 0;
}
