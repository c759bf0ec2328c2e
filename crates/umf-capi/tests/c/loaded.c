/* The library loaded with dlopen, used in a constructor and at exit, and unloaded. */

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <umf.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_os_memory.h>

/* (Not all packages of the original have its header.) */
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);

/* Disjoint, and jemalloc, whose thread-local storage and handlers are of another library. */
static umf_memory_pool_handle_t at_exit_pools[2];

static umf_memory_pool_handle_t make(const umf_memory_pool_ops_t *ops) {
    umf_os_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    umf_memory_pool_handle_t pool;
    if (umfOsMemoryProviderParamsCreate(&params) || umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider) ||
        umfPoolCreate(ops, provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool)) {
        return NULL;
    }
    umfOsMemoryProviderParamsDestroy(params);
    return pool;
}

static int use(umf_memory_pool_handle_t pool) {
    char *block = umfPoolMalloc(pool, 100);
    if (!block) {
        return 1;
    }
    memset(block, 1, 100);
    return umfFree(block);
}

static int use_both(void) {
    return at_exit_pools[0] && at_exit_pools[1] ? use(at_exit_pools[0]) + use(at_exit_pools[1]) : -1;
}

static void finish(void) {
    printf("used at exit: %d\n", use_both());
    fflush(stdout);
}

__attribute__((constructor)) static void begin(void) {
    at_exit_pools[0] = make(umfDisjointPoolOps());
    at_exit_pools[1] = make(umfJemallocPoolOps());
    printf("used in a constructor: %d\n", use_both());
    atexit(finish);
}

/* A second copy, of which no symbol is seen by others. */
static void *load(void *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return (void *)1;
    }
    int (*version)(void) = (int (*)(void))dlsym(library, "umfGetCurrentVersion");
    umf_result_t (*init)(void) = (umf_result_t(*)(void))dlsym(library, "umfInit");
    umf_result_t (*end)(void) = (umf_result_t(*)(void))dlsym(library, "umfTearDown");
    long wrong = !version || version() != UMF_VERSION_CURRENT || init() || end() || dlsym(library, "rust_eh_personality");
    return (void *)(wrong + use_both() + dlclose(library));
}

int main(void) {
    void *wrong = NULL;
    /* In threads that end after it was unloaded there. */
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, load, getenv("UMF_LIBRARY"));
        pthread_join(thread, &result);
        wrong = result ? result : wrong;
    }
    printf("loaded, used and unloaded: %ld\n", (long)wrong);
    return 0;
}
