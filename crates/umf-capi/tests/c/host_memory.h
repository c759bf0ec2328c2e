/* Providers of host memory that other processes can open, by their names in the tests' arguments: os,
 * file (the path is in IPC_FILE), named. Needs two_processes.h. */

#include <umf/providers/provider_file_memory.h>
#include <umf/providers/provider_os_memory.h>

static umf_memory_provider_handle_t host_memory(const char *memory) {
    umf_memory_provider_handle_t provider;
    if (strcmp(memory, "file") == 0) {
        umf_file_memory_provider_params_handle_t params;
        CHECK(umfFileMemoryProviderParamsCreate(getenv("IPC_FILE"), &params));
        CHECK(umfFileMemoryProviderParamsSetVisibility(params, UMF_MEM_MAP_SHARED));
        CHECK(umfMemoryProviderCreate(umfFileMemoryProviderOps(), params, &provider));
        CHECK(umfFileMemoryProviderParamsDestroy(params));
        return provider;
    }
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
    return provider;
}
