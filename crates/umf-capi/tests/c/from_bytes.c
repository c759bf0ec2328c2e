/* Opens memory of a Rust process: from_bytes. Standard input has the 256 bytes of the handle, then
 * its text in a line. Reads "question" at the start of the block, and writes "answer" there. */

#include "two_processes.h"
#include "host_memory.h"
#include <umfrs.h>

static char *open_from(umf_ipc_handler_handle_t handler, const void *bytes, size_t size) {
    umf_ipc_handle_t handle;
    char *memory = NULL;
    CHECK(umfrsIPCHandleFromBytes(bytes, size, &handle));
    CHECK(umfOpenIPCHandle(handler, handle, (void **)&memory));
    CHECK(umfPutIPCHandle(handle));
    return memory;
}

int main(void) {
    (void)two_processes;
    char bytes[UMFRS_HANDLE_SIZE], text[UMFRS_HANDLE_TEXT_SIZE + 2] = "";
    all(fread(bytes, sizeof bytes, 1, stdin) == 1);
    all(fgets(text, sizeof text, stdin) != NULL);
    umf_memory_pool_handle_t pool = pool_over(host_memory("os"), "disjoint");
    umf_ipc_handler_handle_t handler;
    CHECK(umfPoolGetIPCHandler(pool, &handler));
    char *memory = open_from(handler, bytes, sizeof bytes);
    printf("bytes: %s\n", memory);
    CHECK(umfCloseIPCHandle(memory));
    /* With the line feed, and with the NUL after it. */
    memory = open_from(handler, text, sizeof text);
    printf("text: %s\n", memory);

    /* A C handle, as bytes: the form with the offset of its pointer. */
    umf_ipc_handle_t handle;
    size_t size = 0;
    char *block = umfPoolMalloc(pool, 100);
    strcpy(block + 10, "offset");
    CHECK(umfGetIPCHandle(block + 10, &handle, &size));
    char *again = open_from(handler, handle, size);
    printf("C handle: %s\n", again);
    CHECK(umfCloseIPCHandle(again));
    /* Its first 256 bytes are a Rust handle, of the block. */
    again = open_from(handler, handle, UMFRS_HANDLE_SIZE);
    printf("without the offset: %s\n", again + 10);
    CHECK(umfCloseIPCHandle(again));
    /* The offset has a checksum of its own. */
    char *changed = malloc(size);
    umf_ipc_handle_t none;
    memcpy(changed, handle, size);
    changed[UMFRS_HANDLE_SIZE] ^= 1;
    printf("changed offset: %d\n", umfrsIPCHandleFromBytes(changed, size, &none));
    printf("other size: %d\n", umfrsIPCHandleFromBytes(changed, size - 1, &none));
    free(changed);
    CHECK(umfPutIPCHandle(handle));
    CHECK(umfPoolFree(pool, block));

    /* The functions of providers take the same handle. */
    umf_memory_provider_handle_t provider;
    CHECK(umfPoolGetMemoryProvider(pool, &provider));
    CHECK(umfrsIPCHandleFromBytes(bytes, sizeof bytes, &handle));
    CHECK(umfMemoryProviderOpenIPCHandle(provider, handle, (void **)&again));
    printf("provider: %s\n", again);
    CHECK(umfMemoryProviderCloseIPCHandle(provider, again, 1));
    CHECK(umfPutIPCHandle(handle));

    bytes[100] ^= 1;
    printf("changed: %d\n", umfrsIPCHandleFromBytes(bytes, sizeof bytes, &handle));
    strcpy(memory, "answer");
    CHECK(umfCloseIPCHandle(memory));
    CHECK(umfPoolDestroy(pool));
    return 0;
}
