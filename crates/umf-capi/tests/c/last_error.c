/* The text of the last error: last_error all | shared.
 *   all     failures of several kinds, and their texts and native errors
 *   shared  an export, for wrong settings in the environment */

#include "two_processes.h"
#include "host_memory.h"
#include <pthread.h>
#include <umfrs.h>

#define P(x) printf("%s = %d\n", #x, (int)(x))

static void native(umf_memory_provider_handle_t provider) {
    const char *text = NULL;
    int32_t number = 0;
    CHECK(umfMemoryProviderGetLastNativeError(provider, &text, &number));
    printf("native: %d %s\n", (int)number, text);
}

static void last(void) { printf("last: %s\n", umfrsLastErrorText()); }

static void *other_thread(void *unused) {
    printf("other thread: \"%s\"\n", umfrsLastErrorText());
    return unused;
}

static umf_memory_provider_handle_t private_memory(void) {
    umf_memory_provider_handle_t provider;
    umf_os_memory_provider_params_handle_t params;
    CHECK(umfOsMemoryProviderParamsCreate(&params));
    CHECK(umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider));
    CHECK(umfOsMemoryProviderParamsDestroy(params));
    return provider;
}

static void *no_memory(void *pool, size_t size) {
    (void)pool;
    (void)size;
    return NULL;
}

static void all_failures(void) {
    printf("at first: \"%s\"\n", umfrsLastErrorText());
    umf_memory_provider_handle_t provider = private_memory();
    umf_memory_pool_handle_t pool = pool_over(provider, "disjoint");
    void *block = umfPoolMalloc(pool, 100), *memory = NULL;
    umf_ipc_handle_t handle = NULL;
    size_t size = 0;
    native(provider);
    P(umfGetIPCHandle(block, &handle, &size));
    last();
    native(provider);
    P(umfPoolMalloc(pool, (size_t)1 << 60) != NULL);
    P(umfPoolGetLastAllocationError(pool));
    last();
    /* A function of the table fails inside of the exported one. */
    P(umfMemoryProviderAlloc(provider, 4096, 3, &memory));
    last();
    P(umfPoolFree(pool, &size));
    last();
    P(umfPoolFree(pool, block));
    P(umfrsLastErrorText() != NULL && strstr(umfrsLastErrorText(), "umfPoolFree: ") != NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_thread, NULL));
    CHECK(pthread_join(thread, NULL));

    umf_memory_pool_handle_t shared = pool_over(host_memory("os"), "disjoint");
    umf_ipc_handler_handle_t handler;
    CHECK(umfPoolGetIPCHandler(shared, &handler));
    block = umfPoolMalloc(shared, 100);
    CHECK(umfGetIPCHandle(block, &handle, &size));
    CHECK(umfPoolFree(shared, block));
    P(umfOpenIPCHandle(handler, handle, &memory));
    last();
    CHECK(umfPoolGetMemoryProvider(shared, &provider));
    native(provider);
    /* A later failure of another kind replaces it. */
    P(umfMemoryProviderAlloc(provider, SIZE_MAX, 0, &memory));
    native(provider);
    CHECK(umfPutIPCHandle(handle));

    /* A pool of the program that fails without a reason. */
    umf_memory_pool_ops_t ops = *umfProxyPoolOps();
    ops.malloc = no_memory;
    umf_memory_pool_handle_t own;
    CHECK(umfPoolCreate(&ops, private_memory(), NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &own));
    P(umfPoolMalloc(own, 100) != NULL);
    last();

    P(umfrsIPCHandleFromBytes("short", 5, &handle));
    last();
    char zeros[264] = "";
    P(umfrsIPCHandleFromBytes(zeros, 256, &handle));
    P(umfrsIPCHandleFromBytes(zeros, 264, &handle));
    P(umfrsIPCHandleFromBytes(NULL, 256, &handle));
    P(umfrsIPCHandleFromBytes(zeros, 256, NULL));
    P(umfrsIPCHandleFromBytes("umf1.AAAA", 9, &handle));
    last();
    CHECK(umfPoolDestroy(own));
    CHECK(umfPoolDestroy(shared));
    CHECK(umfPoolDestroy(pool));
}

static void shared_export(void) {
    umf_memory_pool_handle_t pool = pool_over(host_memory("os"), "disjoint");
    umf_memory_provider_handle_t provider;
    CHECK(umfPoolGetMemoryProvider(pool, &provider));
    void *block = umfPoolMalloc(pool, 100);
    P(block != NULL);
    umf_ipc_handle_t handle = NULL;
    size_t size = 0;
    P(umfGetIPCHandle(block, &handle, &size));
    P(umfGetIPCHandle(block, &handle, &size));
    last();
    native(provider);
    P(umfPoolFree(pool, block));
    P(umfPoolDestroy(pool));
}

/* The first call of the library gets the handle of a block of malloc. */
static void first_call(void) {
    umf_ipc_handle_t handle;
    size_t size;
    P(umfGetIPCHandle(malloc(100), &handle, &size));
    shared_export();
}

int main(int argc, char **argv) {
    (void)two_processes;
    if (argc > 1 && strcmp(argv[1], "shared") == 0) {
        shared_export();
    } else if (argc > 1 && strcmp(argv[1], "first") == 0) {
        first_call();
    } else {
        all_failures();
    }
    return 0;
}
