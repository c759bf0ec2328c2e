/* Result codes that programs compare, what a failed call leaves behind, properties, and the control
 * tree. Each line is what the original's headers and its own tests expect. Lines that begin with
 * "better" differ from the original by design. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <umf.h>
#include <umf/experimental/ctl.h>
#include <umf/experimental/memory_properties.h>
#include <umf/experimental/memspace.h>
#include <umf/experimental/memtarget.h>
#include <umf/ipc.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_proxy.h>
#include <umf/pools/pool_scalable.h>
#include <umf/providers/provider_cuda.h>
#include <umf/providers/provider_devdax_memory.h>
#include <umf/providers/provider_file_memory.h>
#include <umf/providers/provider_fixed_memory.h>
#include <umf/providers/provider_level_zero.h>
#include <umf/providers/provider_os_memory.h>

#define P(x) printf("%s = %ld\n", #x, (long)(x))
#define BETTER(x) printf("better: %s = %ld\n", #x, (long)(x))
#define CHECK(x) do { umf_result_t r_ = (x); if (r_) { printf("%s failed: %d\n", #x, r_); exit(1); } } while (0)

/* Not in the headers of every release. */
typedef struct umf_jemalloc_pool_params_t *jemalloc_params;
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);
umf_result_t umfJemallocPoolParamsCreate(jemalloc_params *);
umf_result_t umfJemallocPoolParamsDestroy(jemalloc_params);
umf_result_t umfJemallocPoolParamsSetNumArenas(jemalloc_params, size_t);

static size_t page;

/* The native error of a provider's last failure on this thread. */
static int native(umf_memory_provider_handle_t provider) {
    const char *message;
    int32_t error = -1;
    umf_result_t result = umfMemoryProviderGetLastNativeError(provider, &message, &error);
    return result ? -(int)result : error;
}

static umf_memory_provider_handle_t os_provider(int visibility) {
    umf_os_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    CHECK(umfOsMemoryProviderParamsCreate(&params));
    CHECK(umfOsMemoryProviderParamsSetVisibility(params, visibility));
    CHECK(umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider));
    umfOsMemoryProviderParamsDestroy(params);
    return provider;
}

static char path[64];

static umf_memory_provider_handle_t file_provider(int visibility) {
    umf_file_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    CHECK(umfFileMemoryProviderParamsCreate(path, &params));
    CHECK(umfFileMemoryProviderParamsSetVisibility(params, visibility));
    CHECK(umfMemoryProviderCreate(umfFileMemoryProviderOps(), params, &provider));
    umfFileMemoryProviderParamsDestroy(params);
    return provider;
}

static umf_memory_provider_handle_t fixed_provider(void *memory, size_t size) {
    umf_fixed_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider = NULL;
    umf_result_t result = umfFixedMemoryProviderParamsCreate(memory, size, &params);
    if (!result) {
        result = umfMemoryProviderCreate(umfFixedMemoryProviderOps(), params, &provider);
        umfFixedMemoryProviderParamsDestroy(params);
    }
    if (result) {
        printf("fixed provider: %d\n", result);
    }
    return provider;
}

/* get_name with a NULL provider is the kind's default name. */
static void default_names(void) {
    const struct { const char *kind; const umf_memory_provider_ops_t *ops; } tables[] = {
        {"os", umfOsMemoryProviderOps()},         {"file", umfFileMemoryProviderOps()},
        {"fixed", umfFixedMemoryProviderOps()},   {"devdax", umfDevDaxMemoryProviderOps()},
        {"cuda", umfCUDAMemoryProviderOps()},     {"level zero", umfLevelZeroMemoryProviderOps()},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const char *name = "?";
        umf_result_t result = tables[i].ops->get_name(NULL, &name);
        printf("default name of %s: %s %d\n", tables[i].kind, name, result);
    }
    const struct { const char *kind; const umf_memory_pool_ops_t *ops; } pools[] = {
        {"disjoint", umfDisjointPoolOps()},
        {"proxy", umfProxyPoolOps()},
        {"scalable", umfScalablePoolOps()},
    };
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        const char *name = "?";
        umf_result_t result = pools[i].ops->get_name(NULL, &name);
        printf("default name of %s: %s %d\n", pools[i].kind, name, result);
    }
}

static void codes_of_os(void) {
    umf_memory_provider_handle_t os = os_provider(UMF_MEM_MAP_PRIVATE), shared = os_provider(UMF_MEM_MAP_SHARED);
    void *memory = NULL;
    size_t size;
    char handle[4096];
    P(umfMemoryProviderGetIPCHandleSize(os, &size));
    CHECK(umfMemoryProviderAlloc(os, page, 0, &memory));
    P(umfMemoryProviderGetIPCHandle(os, memory, page, handle));
    P(umfMemoryProviderPutIPCHandle(os, handle));
    void *opened = NULL;
    P(umfMemoryProviderOpenIPCHandle(os, handle, &opened));
    P(umfMemoryProviderCloseIPCHandle(os, memory, page));
    CHECK(umfMemoryProviderFree(os, memory, page));
    memory = NULL;
    P(umfMemoryProviderAlloc(os, 3 * page, 3 * page, &memory));
    P(memory != NULL && (uintptr_t)memory % page == 0);
    if (memory) {
        P(umfMemoryProviderFree(os, memory, 3 * page));
    }
    memory = NULL;
    P(umfMemoryProviderAlloc(os, page, 3, &memory));
    P(umfMemoryProviderAlloc(os, page, page + 1, &memory));
    P(umfMemoryProviderAlloc(os, SIZE_MAX, 0, &memory));
    P(native(os));
    P(umfMemoryProviderAlloc(shared, SIZE_MAX, 0, &memory));
    P(native(shared));
    P(umfMemoryProviderFree(os, (void *)0x1, page));
    P(native(os));
    P(umfMemoryProviderFree(os, (void *)(page + 1), page));
    P(umfMemoryProviderPurgeLazy(os, (void *)0x1, page));
    P(native(os));
    P(umfMemoryProviderPurgeForce(os, (void *)0x1, page));
    P(native(os));
    P(umfMemoryProviderDestroy(os));
    P(umfMemoryProviderDestroy(shared));
    umf_os_memory_provider_params_handle_t params;
    CHECK(umfOsMemoryProviderParamsCreate(&params));
    P(umfOsMemoryProviderParamsSetShmName(params, ""));
    umfOsMemoryProviderParamsDestroy(params);
}

static void codes_of_file(void) {
    umf_memory_provider_handle_t file = file_provider(UMF_MEM_MAP_SHARED);
    void *memory = NULL;
    P(umfMemoryProviderAlloc(file, page, 3, &memory));
    P(umfMemoryProviderAlloc(file, page, page + 1, &memory));
    P(umfMemoryProviderAlloc(file, 3 * page, 3 * page, &memory));
    P(umfMemoryProviderAlloc(file, 0, 0, &memory));
    P(umfMemoryProviderAlloc(file, SIZE_MAX, 0, &memory));
    P(umfMemoryProviderFree(file, (void *)0x1, page));
    P(umfMemoryProviderPurgeLazy(file, (void *)0x1, page));
    P(umfMemoryProviderPurgeForce(file, (void *)0x1, page));
    P(native(file));
    P(umfMemoryProviderDestroy(file));
    umf_file_memory_provider_params_handle_t params = NULL;
    P(umfFileMemoryProviderParamsCreate("", &params));
    CHECK(umfFileMemoryProviderParamsCreate(path, &params));
    P(umfFileMemoryProviderParamsSetPath(params, ""));
    P(umfFileMemoryProviderParamsSetPath(params, NULL));
    umfFileMemoryProviderParamsDestroy(params);
}

static void codes_of_fixed(void) {
    size_t size = 8 * page;
    char *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    umf_memory_provider_handle_t fixed = fixed_provider(buffer, size);
    void *memory = NULL;
    size_t handle;
    P(umfMemoryProviderAlloc(fixed, page, 3, &memory));
    P(umfMemoryProviderAlloc(fixed, page, page + 1, &memory));
    P(umfMemoryProviderAlloc(fixed, 3 * page, 3 * page, &memory));
    P(umfMemoryProviderAlloc(fixed, 0, 0, &memory));
    P(umfMemoryProviderAlloc(fixed, size + page, 0, &memory));
    P(umfMemoryProviderAlloc(fixed, SIZE_MAX, 0, &memory));
    P(umfMemoryProviderGetIPCHandleSize(fixed, &handle));
    char data[4096];
    P(umfMemoryProviderAlloc(fixed, page, 0, &memory));
    P(umfMemoryProviderGetIPCHandle(fixed, memory, page, data));
    P(umfMemoryProviderPutIPCHandle(fixed, data));
    void *opened;
    P(umfMemoryProviderOpenIPCHandle(fixed, data, &opened));
    P(umfMemoryProviderPurgeLazy(fixed, memory, page));
    P(umfMemoryProviderPurgeForce(fixed, (void *)0x1, page));
    P(native(fixed));
    P(umfMemoryProviderFree(fixed, memory, page));
    P(umfMemoryProviderFree(fixed, (void *)0x1, page));
    P(umfMemoryProviderDestroy(fixed));
    /* Less than an aligned page. */
    fixed = fixed_provider(buffer + 1, page);
    P(fixed != NULL);
    if (fixed) {
        P(umfMemoryProviderAlloc(fixed, page, 0, &memory));
        P(umfMemoryProviderAlloc(fixed, page, page, &memory));
        P(umfMemoryProviderDestroy(fixed));
    }
    munmap(buffer, size);
}

static void codes_of_devdax(void) {
    umf_devdax_memory_provider_params_handle_t params = NULL;
    umf_memory_provider_handle_t provider = NULL;
    P(umfDevDaxMemoryProviderParamsCreate("", page, &params));
    P(umfDevDaxMemoryProviderParamsCreate(NULL, page, &params));
    P(umfDevDaxMemoryProviderParamsCreate("/dev/dax0.0", 0, &params));
    if (params) {
        P(umfMemoryProviderCreate(umfDevDaxMemoryProviderOps(), params, &provider));
        umfDevDaxMemoryProviderParamsDestroy(params);
    }
    CHECK(umfDevDaxMemoryProviderParamsCreate("/dev/dax0.0", page, &params));
    P(umfDevDaxMemoryProviderParamsSetDeviceDax(params, "", page));
    P(umfDevDaxMemoryProviderParamsSetDeviceDax(params, NULL, page));
    P(umfDevDaxMemoryProviderParamsSetDeviceDax(params, "/dev/dax0.0", 0));
    P(umfDevDaxMemoryProviderParamsSetProtection(params, 0));
    P(umfDevDaxMemoryProviderParamsSetProtection(params, 0xff));
    umfDevDaxMemoryProviderParamsDestroy(params);
}

static int rejects(umf_const_memspace_handle_t space, umf_const_memtarget_handle_t target, void *answer) {
    (void)space, (void)target;
    return *(int *)answer;
}

static void codes_of_memspaces(void) {
    umf_memspace_handle_t space;
    umf_memory_pool_handle_t pool;
    umf_memory_provider_handle_t provider;
    CHECK(umfMemspaceNew(&space));
    P(umfMemoryProviderCreateFromMemspace(space, NULL, &provider));
    P(umfPoolCreateFromMemspace(space, NULL, &pool));
    umfMemspaceDestroy(space);
    umf_const_memspace_handle_t all = umfMemspaceHostAllGet();
    if (!all) {
        puts("no memspace of the host");
        return;
    }
    CHECK(umfMemspaceClone(all, &space));
    int answer = -1;
    P(umfMemspaceUserFilter(space, rejects, &answer));
    P(umfMemspaceMemtargetNum(space) == umfMemspaceMemtargetNum(all));
    answer = 0;
    P(umfMemspaceUserFilter(space, rejects, &answer));
    P(umfMemspaceMemtargetNum(space));
    umfMemspaceDestroy(space);
}

/* A fixed provider of more pages than the block it lies in. */
static void nested_beyond_its_parent(void) {
    umf_memory_provider_handle_t os = os_provider(UMF_MEM_MAP_PRIVATE);
    umf_disjoint_pool_params_handle_t params;
    umf_memory_pool_handle_t outer, inner;
    CHECK(umfDisjointPoolParamsCreate(&params));
    CHECK(umfPoolCreate(umfDisjointPoolOps(), os, params, 0, &outer));
    umfDisjointPoolParamsDestroy(params);
    char *blocks[4];
    for (int i = 0; i < 4; i++) {
        blocks[i] = umfPoolAlignedMalloc(outer, 4 * page, page);
    }
    /* One that has a neighbour behind it. */
    int first = 0;
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            if (blocks[j] == blocks[i] + 4 * page) {
                first = i;
            }
        }
    }
    umf_memory_provider_handle_t fixed = fixed_provider(blocks[first], 6 * page);
    CHECK(umfPoolCreate(umfProxyPoolOps(), fixed, NULL, 0, &inner));
    BETTER(umfPoolMalloc(inner, 6 * page) == NULL);
    void *inside = umfPoolMalloc(inner, 4 * page);
    BETTER(inside == blocks[first]);
    BETTER(umfPoolFree(inner, inside));
    P(umfPoolDestroy(inner));
    P(umfMemoryProviderDestroy(fixed));
    for (int i = 0; i < 4; i++) {
        P(umfPoolFree(outer, blocks[i]));
    }
    umfPoolDestroy(outer);
    umfMemoryProviderDestroy(os);
}

static void left_by_failures(void) {
    umf_memory_pool_handle_t pool = (void *)0x1;
    int local;
    P(umfPoolByPtr(&local, &pool));
    P(pool == NULL);
    umf_memory_provider_handle_t first = os_provider(UMF_MEM_MAP_PRIVATE), second = os_provider(UMF_MEM_MAP_PRIVATE);
    umf_memory_provider_handle_t failed = NULL;
    void *memory;
    umf_disjoint_pool_params_handle_t params;
    CHECK(umfDisjointPoolParamsCreate(&params));
    CHECK(umfPoolCreate(umfDisjointPoolOps(), second, params, 0, &pool));
    umfDisjointPoolParamsDestroy(params);
    umfMemoryProviderAlloc(first, SIZE_MAX, 0, &memory);
    umfGetLastFailedMemoryProvider(&failed);
    P(failed == first);
    P(umfPoolMalloc(pool, (size_t)1 << 60) == NULL);
    umfGetLastFailedMemoryProvider(&failed);
    BETTER(failed == second);
    P(native(failed));
    P(umfPoolGetLastAllocationError(pool) != 0);
    umfPoolDestroy(pool);
    umf_memory_pool_handle_t proxy;
    umfMemoryProviderAlloc(first, SIZE_MAX, 0, &memory);
    CHECK(umfPoolCreate(umfProxyPoolOps(), second, NULL, 0, &proxy));
    P(umfPoolMalloc(proxy, (size_t)1 << 60) == NULL);
    umfGetLastFailedMemoryProvider(&failed);
    BETTER(failed == second);
    umfPoolDestroy(proxy);
    umfMemoryProviderDestroy(first);
    umfMemoryProviderDestroy(second);
}

static void proxy_passes_on(void) {
    umf_memory_provider_handle_t os = os_provider(UMF_MEM_MAP_PRIVATE);
    umf_memory_pool_handle_t pool;
    CHECK(umfPoolCreate(umfProxyPoolOps(), os, NULL, 0, &pool));
    P(umfPoolMalloc(pool, 0) == NULL);
    P(umfPoolGetLastAllocationError(pool));
    P(umfPoolAlignedMalloc(pool, 0, 0) == NULL);
    P(umfPoolGetLastAllocationError(pool));
    P(umfPoolFree(pool, NULL));
    umfPoolDestroy(pool);
    umfMemoryProviderDestroy(os);
}

static void properties(void) {
    umf_memory_provider_handle_t os = os_provider(UMF_MEM_MAP_PRIVATE);
    umf_memory_pool_handle_t pool;
    CHECK(umfPoolCreate(umfProxyPoolOps(), os, NULL, 0, &pool));
    char *block = umfPoolMalloc(pool, 8);
    umf_memory_properties_handle_t handle;
    CHECK(umfGetMemoryPropertiesHandle(block, &handle));
    size_t size = 0;
    void *base = NULL;
    P(umfGetMemoryProperty(handle, UMF_MEMORY_PROPERTY_BASE_SIZE, &size, sizeof size));
    P(size);
    P(umfGetMemoryProperty(handle, UMF_MEMORY_PROPERTY_BASE_ADDRESS, &base, sizeof base));
    P(base == block);
    umfPoolFree(pool, block);
    umfPoolDestroy(pool);
    umfMemoryProviderDestroy(os);
}

static void purged_file_memory(int visibility) {
    umf_memory_provider_handle_t file = file_provider(visibility);
    void *memory;
    CHECK(umfMemoryProviderAlloc(file, page, 0, &memory));
    memset(memory, 7, page);
    printf("visibility %d\n", visibility);
    P(umfMemoryProviderPurgeForce(file, memory, page));
    BETTER(*(volatile char *)memory);
    umfMemoryProviderFree(file, memory, page);
    umfMemoryProviderDestroy(file);
}

static void control_tree(void) {
    umf_memory_provider_handle_t os = os_provider(UMF_MEM_MAP_PRIVATE);
    umf_disjoint_pool_params_handle_t params;
    umf_memory_pool_handle_t pool;
    CHECK(umfDisjointPoolParamsCreate(&params));
    CHECK(umfPoolCreate(umfDisjointPoolOps(), os, params, 0, &pool));
    void *block = umfPoolMalloc(pool, 64);
    size_t value = 77;
    P(umfCtlGet("umf.pool.by_handle.{}.stats.alloc_count", &value, sizeof value, pool));
    P(value);
    value = 77;
    P(umfCtlGet("umf.pool.by_handle.{}.stats.{}", &value, sizeof value, pool, "alloc_count"));
    P(value);
    value = 77;
    P(umfCtlGet("umf.pool.by_handle.{}.{}.{}", &value, sizeof value, pool, "stats", "alloc_count"));
    P(value);
    value = 77;
    P(umfCtlGet("umf.{}.by_handle.{}.stats.alloc_count", &value, sizeof value, "pool", pool));
    P(value);
    int level = 77;
    P(umfCtlGet("umf.logger.{}", &level, sizeof level, "timestamp"));
    P(level);
    level = 77;
    P(umfCtlGet("umf.{}.timestamp", &level, sizeof level, "logger"));
    P(level);
    value = 77;
    P(umfCtlGet("umf.pool.by_handle.{}.buckets.count", &value, sizeof value, pool));
    P(value > 0 && value != 77);
    value = 77;
    P(umfCtlGet("umf.pool.by_handle.{}.buckets.{}.size", &value, sizeof value, pool, (size_t)0));
    P(value);
    value = 77;
    P(umfCtlGet("umf.pool.by_handle.{}.buckets.{}.{}", &value, sizeof value, pool, (size_t)0, "size"));
    P(value);
    value = 77;
    P(umfCtlGet("umf.pool.by_handle.{}.stats.nothing", &value, sizeof value, pool));
    P(umfCtlGet("umf.pool.by_handle.{}.stats.{}", &value, sizeof value, pool, "nothing"));
    umfPoolFree(pool, block);
    umfPoolDestroy(pool);
    umfDisjointPoolParamsDestroy(params);
    umfMemoryProviderDestroy(os);
    /* Defaults are kept and read back. */
    size_t set = 9, got = 0;
    P(umfCtlSet("umf.pool.default.codes.params.capacity", &set, sizeof set));
    P(umfCtlGet("umf.pool.default.codes.params.capacity", &got, sizeof got));
    P(got);
    set = 5, got = 0;
    P(umfCtlSet("umf.pool.default.codes", &set, sizeof set));
    P(umfCtlGet("umf.pool.default.codes", &got, sizeof got));
    P(got);
    set = 6, got = 0;
    BETTER(umfCtlSet("umf.pool.default.{}.params.capacity", &set, sizeof set, "codes"));
    BETTER(umfCtlGet("umf.pool.default.{}.{}.capacity", &got, sizeof got, "codes", "params"));
    BETTER(got);
    P(umfCtlGet("umf.pool.default.nothing.params.capacity", &got, sizeof got));
    set = 4, got = 0;
    P(umfCtlSet("umf.provider.default.codes.value", &set, sizeof set));
    P(umfCtlGet("umf.provider.default.codes.value", &got, sizeof got));
    P(got);
}

static void too_many_arenas(void) {
    const umf_memory_pool_ops_t *ops = umfJemallocPoolOps();
    if (!ops) {
        return;
    }
    jemalloc_params params;
    umf_memory_provider_handle_t os = os_provider(UMF_MEM_MAP_PRIVATE);
    umf_memory_pool_handle_t pool = NULL;
    CHECK(umfJemallocPoolParamsCreate(&params));
    BETTER(umfJemallocPoolParamsSetNumArenas(params, 1 << 20));
    BETTER(umfPoolCreate(ops, os, params, 0, &pool));
    umfJemallocPoolParamsDestroy(params);
    umfMemoryProviderDestroy(os);
}

int main(void) {
    page = sysconf(_SC_PAGESIZE);
    snprintf(path, sizeof path, "/tmp/umf-codes-%d", (int)getpid());
    default_names();
    codes_of_os();
    codes_of_file();
    codes_of_fixed();
    codes_of_devdax();
    codes_of_memspaces();
    nested_beyond_its_parent();
    left_by_failures();
    proxy_passes_on();
    properties();
    purged_file_memory(UMF_MEM_MAP_SHARED);
    purged_file_memory(UMF_MEM_MAP_PRIVATE);
    control_tree();
    too_many_arenas();
    unlink(path);
    return 0;
}
