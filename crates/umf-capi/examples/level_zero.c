/* Two processes share memory of a Level Zero device through an IPC handle.
 *
 *   cc level_zero.c $(pkg-config --cflags --libs libumf) -lze_loader -o level_zero && ./level_zero
 *
 * Each process has a context of its own and a provider over it. The parent fills a block of device
 * memory and sends its handle over a socket, as bytes. The child opens the handle, reads the block
 * and writes a reply into it. All copies are made by the device. Without a driver or a device the
 * program prints a line and ends. It needs the headers and the loader of Level Zero (Debian:
 * libze-dev). The software driver of this repository works, too: docs/level-zero-soft.md. */

#include <level_zero/ze_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/ipc.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_level_zero.h>
#include <umfrs.h>
#include <unistd.h>

/* Ends the process with the library's text if a call failed. */
static void check(umf_result_t result) {
    if (result != UMF_RESULT_SUCCESS) {
        fprintf(stderr, "%s (result %d)\n", umfrsLastErrorText(), (int)result);
        exit(1);
    }
}

/* Calls a function of the driver, and ends the process if it fails. */
#define DRIVER(function, ...) driver_check(#function, function(__VA_ARGS__))

static void driver_check(const char *name, ze_result_t result) {
    if (result != ZE_RESULT_SUCCESS) {
        fprintf(stderr, "%s failed with Level Zero error 0x%x\n", name, (unsigned)result);
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

static ze_context_handle_t context;
static ze_device_handle_t device;
static ze_command_list_handle_t list;

/* Prepares the first device of the first driver. Returns 0 if there is none. */
static int start_device(void) {
    ze_driver_handle_t driver;
    uint32_t drivers = 1, devices = 1;
    ze_result_t result = zeInit(0);
    if (result == ZE_RESULT_SUCCESS) {
        result = zeDriverGet(&drivers, &driver);
    }
    if (result == ZE_RESULT_SUCCESS && drivers != 0) {
        result = zeDeviceGet(driver, &devices, &device);
    }
    if (result != ZE_RESULT_SUCCESS || drivers == 0 || devices == 0) {
        printf("no Level Zero device, so there is nothing to show (error 0x%x)\n", (unsigned)result);
        return 0;
    }
    ze_context_desc_t described = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
    DRIVER(zeContextCreate, driver, &described, &context);
    ze_command_queue_desc_t queue = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                     .mode = ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS};
    DRIVER(zeCommandListCreateImmediate, context, device, &queue, &list);
    return 1;
}

static void end_device(void) {
    DRIVER(zeCommandListDestroy, list);
    /* The context must outlive the provider. */
    DRIVER(zeContextDestroy, context);
}

/* Copies to or from device memory, which the CPU must not access. The list is synchronous. */
static void copy(void *to, const void *from, size_t size) {
    DRIVER(zeCommandListAppendMemoryCopy, list, to, from, size, NULL, 0, NULL);
}

/* Makes a pool over memory of the device. The pool owns its provider. */
static umf_memory_pool_handle_t device_pool(void) {
    umf_level_zero_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    umf_memory_pool_handle_t pool;
    check(umfLevelZeroMemoryProviderParamsCreate(&params));
    check(umfLevelZeroMemoryProviderParamsSetContext(params, context));
    check(umfLevelZeroMemoryProviderParamsSetDevice(params, device));
    check(umfLevelZeroMemoryProviderParamsSetMemoryType(params, UMF_MEMORY_TYPE_DEVICE));
    check(umfMemoryProviderCreate(umfLevelZeroMemoryProviderOps(), params, &provider));
    check(umfLevelZeroMemoryProviderParamsDestroy(params));
    /* A disjoint pool never accesses the memory that it manages. */
    check(umfPoolCreate(umfDisjointPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool));
    return pool;
}

static void produce(int socket) {
    umf_memory_pool_handle_t pool = device_pool();
    char *block = umfPoolMalloc(pool, 4096);
    if (block == NULL) {
        fprintf(stderr, "%s\n", umfrsLastErrorText());
        exit(1);
    }
    copy(block, "hello from the producer", 24);

    umf_ipc_handle_t handle;
    size_t size;
    check(umfGetIPCHandle(block, &handle, &size));
    transfer(sending, socket, &size, sizeof size);
    transfer(sending, socket, handle, size);
    /* The bytes that were sent stay valid until the block is freed. */
    check(umfPutIPCHandle(handle));

    char done, text[32] = "";
    transfer(recv, socket, &done, 1);
    copy(text, block + 100, 24);
    printf("producer reads: %s\n", text);
    check(umfPoolFree(pool, block));
    check(umfPoolDestroy(pool));
}

static void consume(int socket) {
    /* The pool's provider must be of the same kind as the producer's. */
    umf_memory_pool_handle_t pool = device_pool();
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
    umf_ipc_handle_t handle;
    check(umfrsIPCHandleFromBytes(bytes, size, &handle));

    void *memory;
    char text[32] = "";
    check(umfOpenIPCHandle(handler, handle, &memory));
    copy(text, memory, 24);
    printf("consumer reads: %s\n", text);
    fflush(stdout);
    copy((char *)memory + 100, "hello from the consumer", 24);
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
    /* Before the driver is used: a driver does not work in a forked child of a process that used it. */
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    int is_consumer = child == 0, socket = sockets[is_consumer];
    close(sockets[!is_consumer]);
    char start = 'x';
    if (is_consumer) {
        /* Waits until the producer has found a device. */
        if (recv(socket, &start, 1, 0) == 1 && start_device()) {
            consume(socket);
            end_device();
        }
        return 0;
    }
    if (!start_device()) {
        return 0;
    }
    transfer(sending, socket, &start, 1);
    produce(socket);
    end_device();
    waitpid(child, &status, 0);
    return status == 0 ? 0 : 1;
}
