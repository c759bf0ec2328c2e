/* Handles of blocks for other processes: plain bytes that may be copied. A handle is valid until
 * its block is freed. */

#ifndef UMF_RS_UMF_IPC_H
#define UMF_RS_UMF_IPC_H

#include <umf/base.h>
#include <umf/memory_pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct umf_ipc_data_t *umf_ipc_handle_t;
typedef void *umf_ipc_handler_handle_t;

/* Returns the size of an IPC handle of this pool's blocks in bytes.
 * @param hPool the pool.
 * @param size where the size is written.
 * Errors: INVALID_ARGUMENT for private memory, NOT_SUPPORTED if the provider has no IPC handles. */
umf_result_t umfPoolGetIPCHandleSize(umf_memory_pool_handle_t hPool, size_t *size);

/* Makes a handle of the block that holds an address. It keeps the offset of the address.
 * @param ptr an address in a block of a pool.
 * @param ipcHandle where the handle is written: a pointer to as many bytes as size, which may be
 *     copied and sent. umfPutIPCHandle frees them.
 * @param size where the size is written, in bytes.
 * Errors: INVALID_ARGUMENT if the memory is private or of no pool, MEMORY_PROVIDER_SPECIFIC if
 * the settings or the driver refuse. The native error of the provider, and umfrsLastErrorText,
 * say why. */
umf_result_t umfGetIPCHandle(const void *ptr, umf_ipc_handle_t *ipcHandle, size_t *size);

/* Frees the bytes that umfGetIPCHandle made. Copies stay valid.
 * @param ipcHandle a handle of umfGetIPCHandle or umfrsIPCHandleFromBytes; NULL has no effect. */
umf_result_t umfPutIPCHandle(umf_ipc_handle_t ipcHandle);

/* Opens a handle, through a pool over the same kind of provider.
 * @param hIPCHandler of umfPoolGetIPCHandler, of a pool that shares the kind of memory.
 * @param ipcHandle a handle of this process, or a pointer to the 264 bytes of one of another
 *     process, aligned to 8 bytes. umfrsIPCHandleFromBytes (umfrs.h) makes one from unaligned
 *     bytes, and from the 256 bytes or the text of a Rust handle.
 * @param ptr where the address is written; umfCloseIPCHandle closes it.
 * Errors: INVALID_ARGUMENT if the bytes are no handle, the memory was freed, or its process is
 * gone; the native error of the provider, and umfrsLastErrorText, say which. */
umf_result_t umfOpenIPCHandle(umf_ipc_handler_handle_t hIPCHandler, umf_ipc_handle_t ipcHandle, void **ptr);

/* Closes one opening.
 * @param ptr an address in the opened memory.
 * Errors: INVALID_ARGUMENT if nothing is open there. */
umf_result_t umfCloseIPCHandle(void *ptr);

/* Returns the object that opens handles, for umfOpenIPCHandle. It lives as long as the pool.
 * @param hPool the pool.
 * @param hIPCHandler where it is written; the pool owns it.
 * Errors: INVALID_ARGUMENT for a pool without tracking. */
umf_result_t umfPoolGetIPCHandler(umf_memory_pool_handle_t hPool, umf_ipc_handler_handle_t *hIPCHandler);

#ifdef __cplusplus
}
#endif

#endif
