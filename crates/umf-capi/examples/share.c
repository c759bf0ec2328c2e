/* Two processes share a block of memory through an IPC handle.
 *
 *   cc share.c $(pkg-config --cflags --libs libumf) -o share && ./share
 *
 * The parent allocates a block and sends its handle over a socket, as bytes. The child opens the
 * handle, reads the block and writes a reply into it. The block is not copied. The processes need not
 * be related: any way to send bytes will do. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/ipc.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_os_memory.h>
#include <umfrs.h>
#include <unistd.h>

/* Ends the process with the library's text if a call failed. */
static void check(umf_result_t result) {
    if (result != UMF_RESULT_SUCCESS) {
        fprintf(stderr, "%s (result %d)\n", umfrsLastErrorText(), (int)result);
        exit(1);
    }
}

/* Sends or receives all bytes. */
static void transfer(ssize_t (*step)(int, void *, size_t, int), int socket, void *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t more = step(socket, (char *)bytes + done, size - done, 0);
        if (more <= 0) {
            fprintf(stderr, "the other process is gone\n");
            exit(1);
        }
        done += (size_t)more;
    }
}

static ssize_t sending(int socket, void *bytes, size_t size, int flags) {
    return send(socket, bytes, size, flags | MSG_NOSIGNAL);
}

/* Makes a pool over memory that other processes can open. The pool owns its provider. */
static umf_memory_pool_handle_t shared_pool(void) {
    umf_os_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    umf_memory_pool_handle_t pool;
    check(umfOsMemoryProviderParamsCreate(&params));
    /* Private memory, the default, has no IPC handles. */
    check(umfOsMemoryProviderParamsSetVisibility(params, UMF_MEM_MAP_SHARED));
    check(umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider));
    check(umfOsMemoryProviderParamsDestroy(params));
    check(umfPoolCreate(umfDisjointPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool));
    return pool;
}

static void produce(int socket) {
    umf_memory_pool_handle_t pool = shared_pool();
    char *block = umfPoolMalloc(pool, 4096);
    if (block == NULL) {
        fprintf(stderr, "%s\n", umfrsLastErrorText());
        exit(1);
    }
    strcpy(block, "hello from the producer");

    umf_ipc_handle_t handle;
    size_t size;
    check(umfGetIPCHandle(block, &handle, &size));
    transfer(sending, socket, &size, sizeof size);
    transfer(sending, socket, handle, size);
    /* The bytes that were sent stay valid until the block is freed. */
    check(umfPutIPCHandle(handle));

    char done;
    transfer(recv, socket, &done, 1);
    printf("producer reads: %s\n", block + 100);
    check(umfPoolFree(pool, block));
    check(umfPoolDestroy(pool));
}

static void consume(int socket) {
    /* The pool's provider must be of the same kind as the producer's. */
    umf_memory_pool_handle_t pool = shared_pool();
    umf_ipc_handler_handle_t handler;
    check(umfPoolGetIPCHandler(pool, &handler));

    char bytes[4096];
    size_t size;
    transfer(recv, socket, &size, sizeof size);
    if (size > sizeof bytes) {
        fprintf(stderr, "%zu bytes are no handle\n", size);
        exit(1);
    }
    transfer(recv, socket, bytes, size);
    /* Checks the bytes. Takes those of a Rust process, too. */
    umf_ipc_handle_t handle;
    check(umfrsIPCHandleFromBytes(bytes, size, &handle));

    void *memory;
    check(umfOpenIPCHandle(handler, handle, &memory));
    printf("consumer reads: %s\n", (char *)memory);
    fflush(stdout);
    strcpy((char *)memory + 100, "hello from the consumer");
    check(umfCloseIPCHandle(memory));
    check(umfPutIPCHandle(handle));
    transfer(sending, socket, "x", 1);
    check(umfPoolDestroy(pool));
}

int main(void) {
    int sockets[2], status = 1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        perror("socketpair");
        return 1;
    }
    /* Before the library is used: a forked child cannot allocate from shared memory of its parent. */
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        close(sockets[0]);
        consume(sockets[1]);
        return 0;
    }
    close(sockets[1]);
    produce(sockets[0]);
    waitpid(child, &status, 0);
    return status == 0 ? 0 : 1;
}
