/* Two processes and a handle: ipc os|file|named disjoint|proxy. The path for a file is in IPC_FILE. */

#include "two_processes.h"
#include "host_memory.h"

static umf_memory_pool_handle_t make(const char *memory, const char *kind) {
    return pool_over(host_memory(memory), kind);
}

static void copy(void *to, const void *from, size_t size) { memcpy(to, from, size); }

int main(int argc, char **argv) {
    /* Any address inside will do to close it. */
    const sides_t sides = {.make = make, .put = copy, .get = copy, .inside = 1};
    return argc == 3 ? two_processes(&sides, argv[1], argv[2]) : 2;
}
