/* Two processes and a handle: ipc os|file|named disjoint|proxy. The path for a file is in IPC_FILE. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/ipc.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_proxy.h>
#include <umf/providers/provider_file_memory.h>
#include <umf/providers/provider_os_memory.h>
#include <unistd.h>

static const char *who = "parent";

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        int result = (x);                                                                                              \
        if (result) {                                                                                                  \
            printf("%s: %s: %d\n", who, #x, result);                                                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static umf_memory_pool_handle_t make(const char *memory, const char *kind) {
    umf_memory_provider_handle_t provider;
    if (strcmp(memory, "file") == 0) {
        umf_file_memory_provider_params_handle_t params;
        CHECK(umfFileMemoryProviderParamsCreate(getenv("IPC_FILE"), &params));
        CHECK(umfFileMemoryProviderParamsSetVisibility(params, UMF_MEM_MAP_SHARED));
        CHECK(umfMemoryProviderCreate(umfFileMemoryProviderOps(), params, &provider));
        CHECK(umfFileMemoryProviderParamsDestroy(params));
    } else {
        umf_os_memory_provider_params_handle_t params;
        CHECK(umfOsMemoryProviderParamsCreate(&params));
        CHECK(umfOsMemoryProviderParamsSetVisibility(params, UMF_MEM_MAP_SHARED));
        if (strcmp(memory, "named") == 0) {
            char name[64];
            snprintf(name, sizeof name, "umf-capi-test-%d", (int)getpid());
            CHECK(umfOsMemoryProviderParamsSetShmName(params, name));
        }
        CHECK(umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider));
        CHECK(umfOsMemoryProviderParamsDestroy(params));
    }
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
        printf("%s: a pipe broke\n", who);
        exit(1);
    }
}

static int child(const char *memory, const char *kind, int in, int out) {
    who = "child";
    umf_memory_pool_handle_t pool = make(memory, kind);
    umf_ipc_handler_handle_t handler;
    CHECK(umfPoolGetIPCHandler(pool, &handler));
    size_t size;
    all(read(in, &size, sizeof size) == sizeof size);
    umf_ipc_handle_t handle = malloc(size);
    all(read(in, handle, size) == (ssize_t)size);
    char *first, *second;
    CHECK(umfOpenIPCHandle(handler, handle, (void **)&first));
    CHECK(umfOpenIPCHandle(handler, handle, (void **)&second));
    printf("child reads: %s\nopened twice at one address: %d\n", first, first == second);
    fflush(stdout);
    strcpy(first, "answer");
    CHECK(umfCloseIPCHandle(first));
    /* Any address inside will do. */
    CHECK(umfCloseIPCHandle(second + 1));
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

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    int to[2], from[2];
    all(pipe(to) == 0 && pipe(from) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        return child(argv[1], argv[2], to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    /* For the original, which has no other way. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    umf_memory_pool_handle_t pool = make(argv[1], argv[2]);
    size_t size, given;
    CHECK(umfPoolGetIPCHandleSize(pool, &size));
    char *block = umfPoolMalloc(pool, 1000);
    strcpy(block + 100, "question");
    umf_ipc_handle_t handle;
    CHECK(umfGetIPCHandle(block + 100, &handle, &given));
    printf("the size is as said: %d\n", size == given);
    fflush(stdout);
    all(write(to[1], &size, sizeof size) == sizeof size && write(to[1], handle, size) == (ssize_t)size);
    char done;
    all(read(from[0], &done, 1) == 1);
    printf("parent reads: %s\n", block + 100);
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
