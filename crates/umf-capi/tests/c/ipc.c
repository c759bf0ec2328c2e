/* Two processes and a handle: ipc os|file|named disjoint|proxy. The path for a file is in IPC_FILE. */

#include "two_processes.h"
#include <umf/providers/provider_file_memory.h>
#include <umf/providers/provider_os_memory.h>

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
    return pool_over(provider, kind);
}

static void copy(void *to, const void *from, size_t size) { memcpy(to, from, size); }

int main(int argc, char **argv) {
    /* Any address inside will do to close it. */
    const sides_t sides = {.make = make, .put = copy, .get = copy, .inside = 1};
    return argc == 3 ? two_processes(&sides, argv[1], argv[2]) : 2;
}
