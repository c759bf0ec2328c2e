/* Defects that were found in the original, each looked for. */

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/experimental/ctl.h>
#include <umf/experimental/memory_properties.h>
#include <umf/experimental/mempolicy.h>
#include <umf/experimental/memspace.h>
#include <umf/ipc.h>
#include <umf/memory_provider_ops.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_proxy.h>
#include <umf/providers/provider_file_memory.h>
#include <umf/providers/provider_fixed_memory.h>
#include <umf/providers/provider_os_memory.h>
#include <unistd.h>

static void report(const char *defect, int is_there) { printf("%s: %s\n", defect, is_there ? "THERE" : "absent"); }

static umf_memory_provider_handle_t os(int shared) {
    umf_os_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider = NULL;
    umfOsMemoryProviderParamsCreate(&params);
    umfOsMemoryProviderParamsSetVisibility(params, shared ? UMF_MEM_MAP_SHARED : UMF_MEM_MAP_PRIVATE);
    umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider);
    umfOsMemoryProviderParamsDestroy(params);
    return provider;
}

static umf_memory_provider_handle_t of_file(void) {
    umf_file_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider = NULL;
    umfFileMemoryProviderParamsCreate(getenv("IPC_FILE"), &params);
    umfFileMemoryProviderParamsSetVisibility(params, UMF_MEM_MAP_SHARED);
    umfMemoryProviderCreate(umfFileMemoryProviderOps(), params, &provider);
    umfFileMemoryProviderParamsDestroy(params);
    return provider;
}

static umf_memory_pool_handle_t disjoint(umf_memory_provider_handle_t provider, umf_disjoint_pool_params_handle_t params) {
    umf_memory_pool_handle_t pool = NULL;
    umfPoolCreate(umfDisjointPoolOps(), provider, params, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool);
    return pool;
}

/* A number out of /proc/self/<file>. */
static long number(const char *file, const char *key) {
    char path[64], line[256];
    long value = -1;
    snprintf(path, sizeof path, "/proc/self/%s", file);
    FILE *stream = fopen(path, "r");
    while (stream && fgets(line, sizeof line, stream)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = atol(line + strlen(key));
        }
    }
    if (stream) {
        fclose(stream);
    }
    return value;
}

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        closedir(folder);
    }
    return count;
}

static void handles(void) {
    umf_memory_pool_handle_t a = disjoint(os(1), NULL), b = disjoint(os(1), NULL);
    umf_ipc_handler_handle_t to_a, to_b;
    umfPoolGetIPCHandler(a, &to_a);
    umfPoolGetIPCHandler(b, &to_b);
    char *block = umfPoolMalloc(a, 100), *first = NULL, *second = NULL;
    strcpy(block, "here");
    umf_ipc_handle_t handle;
    size_t size;
    umfGetIPCHandle(block, &handle, &size);
    int failed = umfOpenIPCHandle(to_a, handle, (void **)&first) || umfOpenIPCHandle(to_b, handle, (void **)&second);
    report("W15 a handle opened through two pools fails", failed || strcmp(first, "here") || strcmp(second, "here"));
    failed = umfCloseIPCHandle(first) || umfCloseIPCHandle(second);
    report("W6 closing once too often succeeds", failed || umfCloseIPCHandle(first) == 0 || umfCloseIPCHandle(second) == 0);
    umfOpenIPCHandle(to_b, handle, (void **)&first);
    umfFree(block);
    report("W2 an open mapping goes when its memory is freed", strcmp(first, "here") != 0);
    char *again = umfPoolMalloc(a, 100);
    strcpy(again, "elsewhere");
    report("W2 an open mapping shows another block", strcmp(first, "here") != 0);
    report("W3 a handle of freed memory opens", umfOpenIPCHandle(to_b, handle, (void **)&second) == 0);
    umfCloseIPCHandle(first);
    unsigned char copy[4096];
    memcpy(copy, handle, size);
    int opened = 0;
    for (size_t byte = 0; byte < size; byte++) {
        copy[byte] ^= 0x41;
        opened += umfOpenIPCHandle(to_b, (umf_ipc_handle_t)copy, (void **)&second) == 0;
        copy[byte] ^= 0x41;
    }
    report("W11 a handle with a changed byte opens", opened);
    int null = umfOpenIPCHandle(NULL, handle, (void **)&second) | (umfOpenIPCHandle(to_b, NULL, (void **)&second) << 4) |
               (umfOpenIPCHandle(to_b, handle, NULL) << 8);
    report("W11 NULL ends the program", null != 0x333);
    umfPutIPCHandle(handle);
    umfFree(again);
    umfPoolDestroy(a);
    umfPoolDestroy(b);
}

/* Of live memory, with a pointer into the middle of it: each bit counts, also where the handle was opened before. */
static void changed_bits(void) {
    umf_memory_pool_handle_t pool = disjoint(os(1), NULL);
    umf_ipc_handler_handle_t handler;
    umfPoolGetIPCHandler(pool, &handler);
    char *block = umfPoolMalloc(pool, 5000), *opened;
    strcpy(block + 1234, "here");
    umf_ipc_handle_t handle;
    size_t size;
    umfGetIPCHandle(block + 1234, &handle, &size);
    int wrong = 0, failed = 0;
    for (size_t bit = 0; bit < size * 8; bit++) {
        failed |= umfOpenIPCHandle(handler, handle, (void **)&opened) || strcmp(opened, "here") || umfCloseIPCHandle(opened);
        ((unsigned char *)handle)[bit / 8] ^= 1 << bit % 8;
        wrong += umfOpenIPCHandle(handler, handle, (void **)&opened) == 0;
        ((unsigned char *)handle)[bit / 8] ^= 1 << bit % 8;
    }
    report("W11 a handle of live memory with a changed bit opens", wrong || failed);
    umfPutIPCHandle(handle);
    umfFree(block);
    umfPoolDestroy(pool);
}

/* What was destroyed a moment ago is an error, and neither used nor the end of the program. */
static void destroyed(void) {
    const int wrong = UMF_RESULT_ERROR_INVALID_ARGUMENT;
    umf_os_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider = os(1), none;
    umf_memory_pool_handle_t pool = disjoint(os(1), NULL);
    umf_disjoint_pool_params_handle_t pool_params;
    umf_ipc_handler_handle_t handler;
    umf_ipc_handle_t handle;
    size_t size;
    void *memory;
    const char *name;
    umfOsMemoryProviderParamsCreate(&params);
    umfDisjointPoolParamsCreate(&pool_params);
    char *block = umfPoolMalloc(pool, 100);
    umfPoolGetIPCHandler(pool, &handler);
    umfGetIPCHandle(block, &handle, &size);
    umf_memspace_handle_t space;
    umfMemspaceNew(&space);
    int failed = umfPutIPCHandle(handle) || umfFree(block) || umfPoolDestroy(pool) || umfMemoryProviderDestroy(provider) ||
                 umfOsMemoryProviderParamsDestroy(params) || umfDisjointPoolParamsDestroy(pool_params) ||
                 umfMemspaceDestroy(space);
    report("(destroying failed)", failed);
    report("settings are used after they were destroyed",
           umfOsMemoryProviderParamsSetVisibility(params, UMF_MEM_MAP_SHARED) != wrong ||
               umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &none) == 0 ||
               umfDisjointPoolParamsSetCapacity(pool_params, 1) != wrong || umfOsMemoryProviderParamsDestroy(params) != wrong ||
               umfDisjointPoolParamsDestroy(pool_params) != wrong || umfMemspaceDestroy(space) != wrong);
    report("a provider is used after it was destroyed",
           umfMemoryProviderAlloc(provider, 4096, 0, &memory) != wrong || umfMemoryProviderGetName(provider, &name) != wrong ||
               umfPoolCreate(umfDisjointPoolOps(), provider, NULL, 0, &pool) != wrong ||
               umfMemoryProviderDestroy(provider) != wrong);
    report("a pool is used after it was destroyed", umfPoolMalloc(pool, 100) != NULL || umfPoolFree(pool, block) != wrong ||
                                                        umfPoolGetName(pool, &name) != wrong || umfPoolDestroy(pool) != wrong);
    report("a handle is used after it was destroyed", umfPutIPCHandle(handle) != wrong);
}

/* Each of the last 255 handles that a thread put is refused when it is put again or opened. */
static void put_again(void) {
    enum { HANDLES = 1100, OTHERS = 254 };
    static umf_ipc_handle_t handles[HANDLES];
    const int wrong = UMF_RESULT_ERROR_INVALID_ARGUMENT;
    umf_memory_pool_handle_t pool = disjoint(os(1), NULL);
    umf_ipc_handler_handle_t handler;
    umfPoolGetIPCHandler(pool, &handler);
    char *block = umfPoolMalloc(pool, 100);
    void *opened = NULL;
    size_t size;
    int failed = 0, accepted = 0;
    for (int i = 0; i < HANDLES; i++) {
        failed |= umfGetIPCHandle(block, &handles[i], &size);
    }
    failed |= umfOpenIPCHandle(handler, handles[HANDLES - 1], &opened) || umfCloseIPCHandle(opened);
    for (int i = 0; i < HANDLES; i++) {
        failed |= umfPutIPCHandle(handles[i]);
    }
    report("a handle that was put opens", umfOpenIPCHandle(handler, handles[HANDLES - 1], &opened) != wrong);
    for (int i = HANDLES - 1 - OTHERS; i < HANDLES; i++) {
        accepted += umfPutIPCHandle(handles[i]) != wrong;
    }
    report("a handle is put twice, with at most 254 others put between", failed || accepted);
    for (int i = 0; i < 4; i++) {
        failed |= umfGetIPCHandle(block, &handles[i], &size);
    }
    for (int i = 0; i < 4; i++) {
        failed |= umfPutIPCHandle(handles[i]);
    }
    report("a handle is put twice, with three others put between", failed || umfPutIPCHandle(handles[0]) != wrong);
    umfFree(block);
    umfPoolDestroy(pool);
}

static void sizes(void) {
    umf_memory_provider_handle_t provider = os(0);
    size_t wrong[] = {0, 1, 4096, 61440, 65537, 1 << 20};
    void *memory;
    int freed = umfMemoryProviderAlloc(provider, 65536, 0, &memory);
    for (int n = 0; n < 6; n++) {
        /* Of 0 bytes the system refuses to unmap any, in the original. */
        umf_result_t expected =
            wrong[n] ? UMF_RESULT_ERROR_INVALID_ARGUMENT : UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC;
        freed |= umfMemoryProviderFree(provider, memory, wrong[n]) != expected;
    }
    report("memory is freed with another size than it has", freed || umfMemoryProviderFree(provider, memory, 65536));
    umfMemoryProviderDestroy(provider);
}

static void idle_mappings(void) {
    umf_memory_pool_handle_t pool = disjoint(os(1), NULL);
    umf_ipc_handler_handle_t handler;
    umfPoolGetIPCHandler(pool, &handler);
    long before = number("statm", "");
    for (int round = 0; round < 100; round++) {
        char *block = umfPoolMalloc(pool, 8 << 20), *opened;
        umf_ipc_handle_t handle;
        size_t size;
        if (umfGetIPCHandle(block, &handle, &size) || umfOpenIPCHandle(handler, handle, (void **)&opened)) {
            report("W5 (could not open)", 1);
            return;
        }
        opened[0] = 1;
        umfCloseIPCHandle(opened);
        umfPutIPCHandle(handle);
        umfFree(block);
    }
    (void)before;
    report("W5 closed mappings keep freed pages", number("status", "RssShmem:") > 100 * 1024);
    umfPoolDestroy(pool);
}

static void shared_memory(void) {
    int fds = descriptors();
    umf_memory_provider_handle_t provider = os(1);
    char *memory;
    for (int round = 0; round < 16; round++) {
        umfMemoryProviderAlloc(provider, 16 << 20, 0, (void **)&memory);
        memset(memory, 1, 16 << 20);
        umfMemoryProviderFree(provider, memory, 16 << 20);
    }
    report("W16 freed shared memory stays", number("status", "RssShmem:") > 64 * 1024);
    umfMemoryProviderAlloc(provider, 1 << 20, 0, (void **)&memory);
    memset(memory, 1, 1 << 20);
    int purged = umfMemoryProviderPurgeForce(provider, memory, 1 << 20);
    report("W19 purging at once does not zero", purged || memory[0] || memory[(1 << 20) - 1]);
    umfMemoryProviderFree(provider, memory, 1 << 20);
    umfMemoryProviderDestroy(provider);
    for (int round = 0; round < 20; round++) {
        umfMemoryProviderDestroy(os(1));
    }
    report("W16 descriptors stay after their provider", descriptors() > fds + 4);
    int inherited = 0;
    provider = os(1);
    umfMemoryProviderAlloc(provider, 4096, 0, (void **)&memory);
    for (int fd = 3; fd < 256; fd++) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 0 && strncmp(target, "/memfd:", 7) == 0) {
            inherited += !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        }
    }
    report("W20 descriptors without close-on-exec", inherited);
    umfMemoryProviderFree(provider, memory, 4096);
    umfMemoryProviderDestroy(provider);
}

/* Memory at an alignment above the page, seen through a handle. */
static int aligned_mismatch(umf_memory_provider_handle_t provider) {
    umf_memory_pool_handle_t pool = NULL;
    umfPoolCreate(umfProxyPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool);
    umf_ipc_handler_handle_t handler;
    umfPoolGetIPCHandler(pool, &handler);
    char *blocks[24];
    int wrong = 0;
    for (int i = 0; i < 24; i++) {
        blocks[i] = umfPoolAlignedMalloc(pool, 8192, 4096 << (i % 6));
        if (!blocks[i] || (uintptr_t)blocks[i] % (4096 << (i % 6))) {
            return 100;
        }
        memset(blocks[i], i + 1, 8192);
    }
    for (int i = 0; i < 24; i++) {
        umf_ipc_handle_t handle;
        size_t size;
        char *opened = NULL;
        if (umfGetIPCHandle(blocks[i], &handle, &size) || umfOpenIPCHandle(handler, handle, (void **)&opened)) {
            return 101;
        }
        for (int byte = 0; byte < 8192; byte++) {
            wrong += blocks[i][byte] != i + 1 || opened[byte] != i + 1;
        }
        umfCloseIPCHandle(opened);
        umfPutIPCHandle(handle);
    }
    for (int i = 0; i < 24; i++) {
        umfFree(blocks[i]);
    }
    umfPoolDestroy(pool);
    return wrong;
}

static void blocks(void) {
    umf_disjoint_pool_params_handle_t params;
    umfDisjointPoolParamsCreate(&params);
    umf_memory_provider_handle_t provider = os(0);
    umf_memory_pool_handle_t pool = disjoint(provider, params);
    size_t after = 0;
    const char *reserved = "umf.pool.by_handle.{}.stats.reserved_memory";
    for (int round = 0; round < 2000; round++) {
        char *block = umfPoolAlignedMalloc(pool, 100 << 10, 64 << 10);
        memset(block, 1, 100 << 10);
        if (umfFree(block)) {
            report("W23 (cannot free)", 1);
        }
        umfCtlGet(reserved, &after, sizeof after, pool);
    }
    /* 2000 of them are 200 MiB. */
    report("W23 aligned blocks leak their slabs", after > 64 << 20);
    umfPoolTrimMemory(pool, 0);
    umfCtlGet(reserved, &after, sizeof after, pool);
    report("W23 aligned blocks stay when the pool is trimmed", after != 0);
    for (int round = 0; round < 3; round++) {
        char *some[64];
        for (int i = 0; i < 64; i++) {
            some[i] = umfPoolMalloc(pool, 4096);
        }
        for (int i = 0; i < 64; i++) {
            umfFree(some[i]);
        }
        umfPoolTrimMemory(pool, 0);
    }
    size_t kept = 0;
    umfCtlGet(reserved, &kept, sizeof kept, pool);
    void *one = umfPoolMalloc(pool, 4096);
    umfFree(one);
    umfCtlGet(reserved, &after, sizeof after, pool);
    report("W24 a pool that was trimmed pools nothing", after == 0);
    char *block = umfPoolCalloc(pool, 10, 10);
    int wrong = !block;
    for (int i = 0; block && i < 100; i++) {
        wrong |= block[i];
        block[i] = (char)i;
    }
    block = umfPoolRealloc(pool, block, 100000);
    for (int i = 0; block && i < 100; i++) {
        wrong |= block[i] != i;
    }
    report("W26 no calloc and realloc", wrong || umfFree(block));
    report("a size that overflows is allocated", umfPoolCalloc(pool, SIZE_MAX / 2, 3) != NULL);
    block = umfPoolMalloc(pool, 64);
    umfFree(block);
    report("a block is freed twice", umfPoolFree(pool, block) == 0);
    umfPoolDestroy(pool);
    umf_disjoint_pool_shared_limits_handle_t limits;
    umfDisjointPoolSharedLimitsCreate(8 << 20, &limits);
    umfDisjointPoolParamsSetSharedLimits(params, limits);
    umf_memory_pool_handle_t first = disjoint(os(0), params);
    umfFree(umfPoolMalloc(first, 1 << 20));
    umfPoolDestroy(first);
    pool = disjoint(os(0), params);
    umfFree(umfPoolMalloc(pool, 1 << 20));
    umfCtlGet(reserved, &kept, sizeof kept, pool);
    report("W25 a destroyed pool keeps its part of a shared limit", kept == 0);
    for (int i = 0; i < 8; i++) {
        void *large = umfPoolMalloc(pool, 2 << 20);
        if (!large) {
            report("W25 (a limit on free memory keeps memory from being allocated)", 1);
        }
        umfFree(large);
    }
    umfCtlGet(reserved, &kept, sizeof kept, pool);
    report("a shared limit is passed", kept > 9 << 20);
    umfPoolDestroy(pool);
    umfDisjointPoolSharedLimitsDestroy(limits);
    umfDisjointPoolParamsDestroy(params);
}

static void control(void) {
    umf_memory_provider_handle_t provider = os(0);
    int value = 5;
    report("W29 a path that is not there succeeds", umfCtlGet("umf.provider.by_handle.{}.nix", &value, 4, provider) != 9);
    report("W29 no provider by name", umfCtlGet("umf.provider.by_name.OS.params.ipc_enabled", &value, 4) != 0 || value != 0);
    value = -1;
    report("W29 a log level is read as a truth", umfCtlGet("umf.logger.level", &value, sizeof value) != 0 || value != 3);
    char text[64] = "";
    int wrong = umfCtlSet("umf.logger.output", NULL, 0) || umfCtlGet("umf.logger.output", text, sizeof text);
    report("W29 the log cannot be turned off", wrong || strcmp(text, "disabled"));
    umfMemoryProviderDestroy(provider);
}

static void after_fork(void) {
    umf_memory_pool_handle_t pool = disjoint(os(0), NULL);
    void *block = umfPoolMalloc(pool, 100);
    pid_t pid = fork();
    if (pid == 0) {
        umf_memory_pool_handle_t shared = disjoint(os(1), NULL);
        umf_ipc_handle_t handle;
        size_t size;
        void *mine = umfPoolMalloc(shared, 100), *opened = NULL;
        umf_ipc_handler_handle_t handler;
        umfPoolGetIPCHandler(shared, &handler);
        int failed = umfGetIPCHandle(mine, &handle, &size) || umfOpenIPCHandle(handler, handle, &opened) || umfFree(block);
        _exit(failed || !umfPoolMalloc(pool, 100));
    }
    int status = -1;
    waitpid(pid, &status, 0);
    report("W36 a child's handles are its parent's", status);
    umfFree(block);
    umfPoolDestroy(pool);
}

static void properties(void) {
    umf_memory_pool_handle_t pool = NULL;
    umfPoolCreate(umfProxyPoolOps(), os(0), NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool);
    char *block = umfPoolMalloc(pool, 5000), *base = NULL;
    umf_memory_properties_handle_t handle;
    int failed = umfGetMemoryPropertiesHandle(block + 10, &handle) ||
                 umfGetMemoryProperty(handle, UMF_MEMORY_PROPERTY_BASE_ADDRESS, &base, sizeof base);
    report("properties are of another base", failed || base != block);
    umfFree(block);
    report("W14 properties of freed memory are read",
           umfGetMemoryProperty(handle, UMF_MEMORY_PROPERTY_BASE_ADDRESS, &base, sizeof base) == 0);
    umfPoolDestroy(pool);
}

static void fixed(void) {
    static char memory[2 << 20] __attribute__((aligned(4096)));
    umf_fixed_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider = NULL;
    umfFixedMemoryProviderParamsCreate(memory, sizeof memory, &params);
    umfMemoryProviderCreate(umfFixedMemoryProviderOps(), params, &provider);
    umfFixedMemoryProviderParamsDestroy(params);
    umf_memory_pool_handle_t pool = disjoint(provider, NULL);
    char *block = umfPoolMalloc(pool, 1000);
    report("fixed memory is not in its buffer", block < memory || block + 1000 > memory + sizeof memory);
    void *odd = NULL, *next = NULL;
    umfFree(block);
    umfPoolDestroy(pool);
    umfFixedMemoryProviderParamsCreate(memory, sizeof memory, &params);
    umfMemoryProviderCreate(umfFixedMemoryProviderOps(), params, &provider);
    umfFixedMemoryProviderParamsDestroy(params);
    umfMemoryProviderAlloc(provider, 100, 0, &odd);
    umfMemoryProviderAlloc(provider, 100, 0, &next);
    report("W22 parts are not whole pages", (uintptr_t)odd % 4096 || (uintptr_t)next % 4096);
    umfMemoryProviderFree(provider, odd, 100);
    umfMemoryProviderFree(provider, next, 100);
    umfMemoryProviderDestroy(provider);
}

static void policies(void) {
    umf_mempolicy_handle_t policy;
    umf_mempolicy_split_partition_t *parts = malloc(sizeof *parts);
    parts->weight = 1;
    parts->target = 0;
    umfMempolicyCreate(UMF_MEMPOLICY_SPLIT, &policy);
    umfMempolicySetCustomSplitPartitions(policy, parts, 1);
    memset(parts, 0xff, sizeof *parts);
    free(parts);
    umf_memory_provider_handle_t provider = NULL;
    report("the list of a policy is not copied", umfMemoryProviderCreateFromMemspace(umfMemspaceHostAllGet(), policy, &provider));
    umfMemoryProviderDestroy(provider);
    umfMempolicyDestroy(policy);
    umfTearDown();
    umfInit();
    report("W10 spaces are gone after the library was ended and started", umfMemspaceMemtargetNum(umfMemspaceHostAllGet()) == 0);
}

/* A count that no list has is an error, and not the end of the program. */
static void counts(void) {
    const int wrong = UMF_RESULT_ERROR_INVALID_ARGUMENT;
    umf_numa_split_partition_t part = {.weight = 1, .target = 0};
    umf_mempolicy_split_partition_t policy_part = {.weight = 1, .target = 0};
    unsigned node = 0;
    umf_os_memory_provider_params_handle_t params;
    umf_mempolicy_handle_t policy;
    umf_memspace_handle_t space;
    umfOsMemoryProviderParamsCreate(&params);
    report("a huge count of partitions is accepted",
           umfOsMemoryProviderParamsSetPartitions(params, &part, UINT32_MAX) != wrong ||
               umfOsMemoryProviderParamsSetPartitions(params, &part, 1) != 0);
    report("a huge count of nodes is accepted", umfOsMemoryProviderParamsSetNumaList(params, &node, UINT32_MAX) != wrong ||
                                                    umfOsMemoryProviderParamsSetNumaList(params, &node, 1) != 0);
    umfOsMemoryProviderParamsDestroy(params);
    umfMempolicyCreate(UMF_MEMPOLICY_SPLIT, &policy);
    report("a huge count of partitions of a policy is accepted",
           umfMempolicySetCustomSplitPartitions(policy, &policy_part, UINT32_MAX) != wrong);
    umfMempolicyDestroy(policy);
    report("a huge count of nodes of a space is accepted",
           umfMemspaceCreateFromNumaArray(&node, UINT32_MAX, &space) != wrong);
}

/* A provider over the pool that is its parameter. */
static umf_result_t in_init(const void *pool, void **state) {
    *state = (void *)pool;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t in_fini(void *state) {
    (void)state;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t in_alloc(void *state, size_t size, size_t align, void **block) {
    *block = umfPoolAlignedMalloc(state, size, align);
    return *block ? UMF_RESULT_SUCCESS : UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
}
static umf_result_t in_free(void *state, void *block, size_t size) {
    (void)size;
    return umfPoolFree(state, block);
}
static umf_result_t in_error(void *state, const char **message, int32_t *error) {
    (void)state;
    *message = "";
    *error = 0;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t in_page(void *state, size_t size, size_t *page) {
    (void)state, (void)size;
    *page = 4096;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t in_least_page(void *state, const void *memory, size_t *page) {
    (void)memory;
    return in_page(state, 0, page);
}
static umf_result_t in_name(void *state, const char **name) {
    (void)state;
    *name = "inside";
    return UMF_RESULT_SUCCESS;
}
static umf_result_t in_line(void *state, size_t *size) {
    (void)state;
    *size = 64;
    return UMF_RESULT_SUCCESS;
}

/* Pools in pools, deeper than the 8 levels that the original's tracker has. */
static void depth(void) {
    enum { DEPTH = 12 };
    umf_memory_provider_ops_t ops = {.version = UMF_PROVIDER_OPS_VERSION_CURRENT,
                                     .initialize = in_init,
                                     .finalize = in_fini,
                                     .alloc = in_alloc,
                                     .free = in_free,
                                     .get_last_native_error = in_error,
                                     .get_recommended_page_size = in_page,
                                     .get_min_page_size = in_least_page,
                                     .get_name = in_name,
                                     .get_cache_line_size = in_line};
    umf_memory_pool_handle_t pools[DEPTH], found = NULL;
    char *blocks[DEPTH];
    int wrong = 0;
    for (int level = 0; level < DEPTH; level++) {
        umf_memory_provider_handle_t provider = os(0);
        if (level > 0) {
            umfMemoryProviderDestroy(provider);
            wrong |= umfMemoryProviderCreate(&ops, pools[level - 1], &provider);
        }
        wrong |= umfPoolCreate(umfProxyPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pools[level]);
        blocks[level] = umfPoolMalloc(pools[level], 1 << 20);
        wrong |= !blocks[level];
    }
    for (int level = 0; level < DEPTH; level++) {
        wrong |= umfPoolByPtr(blocks[level], &found) || found != pools[level];
        wrong |= umfPoolByPtr(blocks[level] + (1 << 20) - 1, &found) || found != pools[level];
    }
    for (int level = DEPTH - 1; level >= 0; level--) {
        wrong |= umfFree(blocks[level]);
        wrong |= umfPoolByPtr(blocks[level], &found) == 0;
        wrong |= umfPoolDestroy(pools[level]);
    }
    report("W38 pools in pools are not found from the ninth on", wrong);
}

/* What the original's sources say is to be done. */
static void to_do(void) {
    depth();
    umf_memory_pool_handle_t pool = NULL;
    umf_result_t result = umfPoolCreate(umfDisjointPoolOps(), os(0), NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool);
    report("W38 a disjoint pool needs settings", result);
    char *aligned = umfPoolAlignedMalloc(pool, 4096, 1 << 20);
    size_t reserved = 0;
    umfCtlGet("umf.pool.by_handle.{}.stats.reserved_memory", &reserved, sizeof reserved, pool);
    report("W38 what is aligned takes its alignment in bytes", (uintptr_t)aligned % (1 << 20) || reserved > 4 << 20);
    umfFree(aligned);
    umf_ipc_handler_handle_t handler = NULL;
    void *opened = NULL;
    umf_memory_pool_handle_t shared = disjoint(os(1), NULL);
    char *block = umfPoolMalloc(shared, 100);
    umf_ipc_handle_t handle;
    size_t size;
    umfGetIPCHandle(block, &handle, &size);
    umfPoolGetIPCHandler(shared, &handler);
    /* Something else of the library, which is no handler. */
    umf_memory_provider_handle_t provider = os(1);
    report("W38 a handler that is none is used", umfOpenIPCHandle((umf_ipc_handler_handle_t)provider, handle, &opened) == 0);
    umfMemoryProviderDestroy(provider);
    umfPutIPCHandle(handle);
    umfFree(block);
    umfPoolDestroy(shared);
    umfPoolDestroy(pool);
}

/* An allocation in two parts: each has its handle and is freed by itself. */
static void parts(void) {
    umf_memory_provider_handle_t provider = os(1);
    char *memory = NULL, *low = NULL, *high = NULL;
    size_t room = 0;
    umfMemoryProviderGetIPCHandleSize(provider, &room);
    void *whole = malloc(room), *of_low = malloc(room), *of_high = malloc(room);
    umfMemoryProviderAlloc(provider, 16384, 0, (void **)&memory);
    memset(memory, 1, 16384);
    umfMemoryProviderGetIPCHandle(provider, memory, 16384, whole);
    umfMemoryProviderAllocationSplit(provider, memory, 16384, 4096);
    memset(memory + 4096, 2, 12288);
    umfMemoryProviderGetIPCHandle(provider, memory, 4096, of_low);
    umfMemoryProviderGetIPCHandle(provider, memory + 4096, 12288, of_high);
    umfMemoryProviderOpenIPCHandle(provider, of_low, (void **)&low);
    umfMemoryProviderOpenIPCHandle(provider, of_high, (void **)&high);
    report("W13 a handle of a part opens something else", !low || !high || low[4095] != 1 || high[0] != 2);
    umfMemoryProviderCloseIPCHandle(provider, low, 4096);
    umfMemoryProviderCloseIPCHandle(provider, high, 12288);
    report("W13 what was split is freed as a whole", umfMemoryProviderFree(provider, memory, 16384) == 0);
    report("W13 a part cannot be freed", umfMemoryProviderFree(provider, memory + 4096, 12288) != 0);
    report("W13 a freed part keeps its memory", memory[4096] != 0 || memory[16383] != 0);
    report("W13 freeing a part touches the other", memory[0] != 1 || memory[4095] != 1);
    report("W13 a freed part has a handle",
           umfMemoryProviderGetIPCHandle(provider, memory + 4096, 12288, of_high) == 0);
    report("W13 a freed part is freed again", umfMemoryProviderFree(provider, memory + 4096, 12288) == 0);
    umfMemoryProviderFree(provider, memory, 4096);
    report("W13 a handle outlives all parts", umfMemoryProviderOpenIPCHandle(provider, whole, (void **)&low) == 0);
    size_t left = 1;
    umfCtlGet("umf.provider.by_handle.{}.stats.allocated_memory", &left, sizeof left, provider);
    report("W13 the memory of parts is lost", left != 0);
    free(whole), free(of_low), free(of_high);
    umfMemoryProviderDestroy(provider);
}

int main(void) {
    parts();
    handles();
    changed_bits();
    sizes();
    destroyed();
    put_again();
    idle_mappings();
    shared_memory();
    report("W17 aligned shared memory is another in other processes", aligned_mismatch(os(1)));
    report("W21 aligned memory of a file aliases", aligned_mismatch(of_file()));
    blocks();
    control();
    after_fork();
    properties();
    fixed();
    policies();
    counts();
    to_do();
    return 0;
}
