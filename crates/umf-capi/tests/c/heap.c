/* What malloc gives, with libumf_proxy.so preloaded: known to libumf.so.1, and opened by another process.
 * heap private|shared|forked: the memory that UMF_PROXY asks for. heap open proxy|os: the other process, and whose pool it opens with. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/experimental/memory_properties.h>
#include <umf/ipc.h>
#include <umf/memory_pool.h>
#include <umf/pools/pool_proxy.h>
#include <umf/providers/provider_os_memory.h>
#include <unistd.h>

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        int result = (x);                                                                                              \
        if (result) {                                                                                                  \
            printf("%s: %d\n", #x, result);                                                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static umf_memory_pool_handle_t pool_of(const void *block) {
    umf_memory_pool_handle_t pool = NULL;
    CHECK(umfPoolByPtr(block, &pool));
    return pool;
}

static umf_memory_pool_handle_t os_pool(void) {
    umf_os_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    umf_memory_pool_handle_t pool;
    CHECK(umfOsMemoryProviderParamsCreate(&params));
    CHECK(umfOsMemoryProviderParamsSetVisibility(params, UMF_MEM_MAP_SHARED));
    CHECK(umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider));
    CHECK(umfPoolCreate(umfProxyPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool));
    return pool;
}

/* Opens what it is sent until it is sent no more; says what is there, and writes an answer. */
static int open_all(const char *whose) {
    umf_memory_pool_handle_t pool = strcmp(whose, "os") == 0 ? os_pool() : pool_of(strcpy(malloc(8), "own"));
    umf_ipc_handler_handle_t handler;
    size_t size;
    CHECK(umfPoolGetIPCHandler(pool, &handler));
    while (read(0, &size, sizeof size) == sizeof size) {
        umf_ipc_handle_t handle = malloc(size);
        char *memory = NULL, said[32] = "";
        CHECK(read(0, handle, size) != (ssize_t)size);
        int result = umfOpenIPCHandle(handler, handle, (void **)&memory);
        if (result == 0) {
            snprintf(said, sizeof said, "%.20s", memory);
            strcpy(memory, "answer");
            CHECK(umfCloseIPCHandle(memory));
        } else {
            snprintf(said, sizeof said, "refused: %d", result);
        }
        CHECK(write(1, said, sizeof said) != sizeof said);
        free(handle);
    }
    return 0;
}

static int to, from;

static void start(char *program, const char *whose) {
    int down[2], up[2];
    CHECK(pipe(down) || pipe(up));
    if (fork() == 0) {
        dup2(down[0], 0);
        dup2(up[1], 1);
        for (int fd = 3; fd < 64; fd++) {
            close(fd);
        }
        execl(program, program, "open", whose, NULL);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    to = down[1];
    from = up[0];
}

static void ask(const char *what, umf_ipc_handle_t handle, size_t size) {
    char said[32];
    CHECK(write(to, &size, sizeof size) != sizeof size || write(to, handle, size) != (ssize_t)size);
    CHECK(read(from, said, sizeof said) != sizeof said);
    printf("%s: %s\n", what, said);
}

static void shared(char *program, const char *whose) {
    start(program, whose);
    size_t sizes[] = {1000, 100000, 20 << 20};
    for (int n = 0; n < 3; n++) {
        char *block = malloc(sizes[n]);
        size_t size, given;
        umf_ipc_handle_t handle;
        CHECK(umfPoolGetIPCHandleSize(pool_of(block), &size));
        strcpy(block + 100, "question");
        CHECK(umfGetIPCHandle(block + 100, &handle, &given));
        CHECK(size != given);
        ask("the other one reads", handle, size);
        printf("here is: %s\n", block + 100);
        free(block);
        ask("after it was freed", handle, size);
        CHECK(umfPutIPCHandle(handle));
    }
    close(to);
    int status;
    wait(&status);
    printf("status %d\n", status);

    char *block = strcpy(malloc(100), "itself"), *memory;
    umf_ipc_handler_handle_t handler;
    umf_ipc_handle_t handle;
    size_t size;
    CHECK(umfPoolGetIPCHandler(pool_of(block), &handler));
    CHECK(umfGetIPCHandle(block, &handle, &size));
    CHECK(umfOpenIPCHandle(handler, handle, (void **)&memory));
    printf("opened by the process %s\n", memory);
    CHECK(umfCloseIPCHandle(memory));
    CHECK(umfPutIPCHandle(handle));
    free(block);
}

/* A child has a copy of the heap, and opens what its parent exports as any other process does. */
static int forked_child(umf_ipc_handler_handle_t handler, umf_ipc_handle_t handle, char *block, int in, int out) {
    char *memory, done;
    size_t size;
    umf_ipc_handle_t none;
    strcpy(block, "child");
    int opened = umfOpenIPCHandle(handler, handle, (void **)&memory);
    int is_parents = opened == 0 && strcmp(memory, "parent") == 0;
    if (opened == 0) {
        strcpy(memory, "answer");
        umfCloseIPCHandle(memory);
    }
    free(block);
    int exported = umfGetIPCHandle(malloc(5000), &none, &size);
    CHECK(write(out, "x", 1) != 1 || read(in, &done, 1) != 1);
    int freed = umfOpenIPCHandle(handler, handle, (void **)&memory);
    printf("child: %d %d %d %d\n", opened, is_parents, exported, freed);
    fflush(stdout);
    return 0;
}

static void forked(void) {
    for (int round = 0; round < 3; round++) {
        int down[2], up[2], status;
        char *block = strcpy(malloc(1000 + round * 50000), "parent"), done;
        umf_ipc_handler_handle_t handler;
        umf_ipc_handle_t handle;
        size_t size;
        CHECK(umfPoolGetIPCHandler(pool_of(block), &handler));
        CHECK(umfGetIPCHandle(block, &handle, &size));
        CHECK(pipe(down) || pipe(up));
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            _exit(forked_child(handler, handle, block, down[0], up[1]));
        }
        CHECK(read(up[0], &done, 1) != 1);
        printf("here is: %s\n", block);
        fflush(stdout);
        free(block);
        CHECK(write(down[1], "x", 1) != 1 || waitpid(pid, &status, 0) != pid || status != 0);
        CHECK(umfPutIPCHandle(handle));
    }
}

static void private(void) {
    char *block = calloc(1, 1000);
    size_t size;
    umf_ipc_handle_t handle;
    printf("private: %d %d\n", umfPoolGetIPCHandleSize(pool_of(block), &size), umfGetIPCHandle(block, &handle, &size));
    free(block);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "open") == 0) {
        return open_all(argv[2]);
    }
    char *block = calloc(1, 1000), *other = malloc(1 << 20), local = 0;
    umf_memory_pool_handle_t pool = pool_of(block), none;
    umf_memory_provider_handle_t provider;
    const char *name;
    size_t size, bytes;
    printf("one pool: %d\n", pool == pool_of(block + 500) && pool == pool_of(other));
    printf("not on the stack: %d\n", umfPoolByPtr(&local, &none));
    CHECK(umfPoolGetMemoryProvider(pool, &provider));
    CHECK(umfPoolGetName(pool, &name));
    CHECK(umfPoolMallocUsableSize(pool, block, &size));
    umf_memory_properties_handle_t properties;
    void *base;
    CHECK(umfGetMemoryPropertiesHandle(block + 7, &properties));
    CHECK(umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_BASE_ADDRESS, &base, sizeof base));
    CHECK(umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_BASE_SIZE, &bytes, sizeof bytes));
    printf("%s: %d %d\n", name, size >= 1000 && size < 1200, base == block && bytes == size);
    void *grown = umfPoolRealloc(pool, umfPoolCalloc(pool, 10, 10), 5000);
    printf("allocated by the pool: %d\n", grown != NULL && pool == pool_of(grown));
    CHECK(umfPoolFree(pool, grown));
    CHECK(umfFree(block));
    printf("freed twice: %d, gone: %d %d\n", umfPoolFree(pool, block), umfPoolByPtr(block, &none),
           umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_BASE_SIZE, &bytes, sizeof bytes));
    printf("destroyed: %d\n", umfPoolDestroy(pool));
    if (strcmp(argv[1], "private") == 0) {
        private();
    } else if (strcmp(argv[1], "forked") == 0) {
        forked();
    } else {
        shared(argv[0], argc > 2 ? argv[2] : "proxy");
    }
    free(other);
    return 0;
}
