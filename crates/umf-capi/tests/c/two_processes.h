/* A process that hands out a handle and one that opens it: what they say to each other, whatever the memory is. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/ipc.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_proxy.h>
#include <unistd.h>

static const char *side = "parent";

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        int result = (x);                                                                                              \
        if (result) {                                                                                                  \
            printf("%s: %s: %d\n", side, #x, result);                                                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct {
    /* The pool of either process, which gets its own after the fork. */
    umf_memory_pool_handle_t (*make)(const char *memory, const char *kind);
    void (*put)(void *to, const void *from, size_t size);
    void (*get)(void *to, const void *from, size_t size);
    /* What the child tries before it opens the handle, or null. */
    void (*before)(umf_memory_pool_handle_t pool, umf_ipc_handler_handle_t handler, umf_ipc_handle_t handle);
    /* At how many bytes inside of the block it closes it once. */
    size_t inside;
} sides_t;

/* A disjoint or a proxy pool, which owns its provider. */
static umf_memory_pool_handle_t pool_over(umf_memory_provider_handle_t provider, const char *kind) {
    umf_memory_pool_handle_t pool;
    umf_pool_create_flags_t flags = UMF_POOL_CREATE_FLAG_OWN_PROVIDER;
    if (strcmp(kind, "proxy") == 0) {
        CHECK(umfPoolCreate(umfProxyPoolOps(), provider, NULL, flags, &pool));
        return pool;
    }
    umf_disjoint_pool_params_handle_t params;
    CHECK(umfDisjointPoolParamsCreate(&params));
    CHECK(umfPoolCreate(umfDisjointPoolOps(), provider, params, flags, &pool));
    CHECK(umfDisjointPoolParamsDestroy(params));
    return pool;
}

static void all(int ok) {
    if (!ok) {
        printf("%s: a pipe broke\n", side);
        exit(1);
    }
}

static int child(const sides_t *sides, const char *memory, const char *kind, int in, int out) {
    side = "child";
    umf_memory_pool_handle_t pool = sides->make(memory, kind);
    umf_ipc_handler_handle_t handler;
    CHECK(umfPoolGetIPCHandler(pool, &handler));
    size_t size;
    all(read(in, &size, sizeof size) == sizeof size);
    umf_ipc_handle_t handle = malloc(size);
    all(read(in, handle, size) == (ssize_t)size);
    if (sides->before) {
        sides->before(pool, handler, handle);
    }
    char *first = NULL, *second = NULL, text[16] = "";
    CHECK(umfOpenIPCHandle(handler, handle, (void **)&first));
    CHECK(umfOpenIPCHandle(handler, handle, (void **)&second));
    sides->get(text, first, 9);
    printf("child reads: %s\nopened twice at one address: %d\n", text, first == second);
    fflush(stdout);
    sides->put(first, "answer", 7);
    CHECK(umfCloseIPCHandle(first));
    CHECK(umfCloseIPCHandle(second + sides->inside));
    printf("better: closed once too often: %d\n", umfCloseIPCHandle(second));
    fflush(stdout);
    all(write(out, "x", 1) == 1);
    char freed;
    all(read(in, &freed, 1) == 1);
    int result = umfOpenIPCHandle(handler, handle, (void **)&first);
    printf("better: opened after it was freed: %d\n", result);
    if (result == 0) {
        CHECK(umfCloseIPCHandle(first));
    }
    free(handle);
    CHECK(umfPoolDestroy(pool));
    return 0;
}

static int two_processes(const sides_t *sides, const char *memory, const char *kind) {
    int to[2], from[2];
    all(pipe(to) == 0 && pipe(from) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        return child(sides, memory, kind, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    /* For the original, which has no other way. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    umf_memory_pool_handle_t pool = sides->make(memory, kind);
    size_t size, given;
    CHECK(umfPoolGetIPCHandleSize(pool, &size));
    char *block = umfPoolMalloc(pool, 1000), text[16] = "";
    sides->put(block + 100, "question", 9);
    umf_ipc_handle_t handle;
    CHECK(umfGetIPCHandle(block + 100, &handle, &given));
    printf("the size is as said: %d\n", size == given);
    fflush(stdout);
    all(write(to[1], &size, sizeof size) == sizeof size && write(to[1], handle, size) == (ssize_t)size);
    char done;
    all(read(from[0], &done, 1) == 1);
    sides->get(text, block + 100, 7);
    printf("parent reads: %s\n", text);
    CHECK(umfPutIPCHandle(handle));
    CHECK(umfFree(block));
    fflush(stdout);
    all(write(to[1], "x", 1) == 1);
    int status;
    all(waitpid(pid, &status, 0) == pid);
    printf("status %d\n", status);
    CHECK(umfPoolDestroy(pool));
    return 0;
}
