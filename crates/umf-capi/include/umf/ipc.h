/* Handles of blocks for other processes: plain bytes that may be copied. A handle is valid until its
 * block is freed. */

#ifndef UMF_RS_UMF_IPC_H
#define UMF_RS_UMF_IPC_H

#include <umf/base.h>
#include <umf/memory_pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct umf_ipc_data_t *umf_ipc_handle_t;
typedef void *umf_ipc_handler_handle_t;
/* Returns the size of an IPC handle of this pool's blocks in bytes. */
umf_result_t umfPoolGetIPCHandleSize(umf_memory_pool_handle_t hPool, size_t *size);

/* Makes a handle of the block that holds an address. It keeps the offset of the address. */
umf_result_t umfGetIPCHandle(const void *ptr, umf_ipc_handle_t *ipcHandle, size_t *size);

/* Frees the bytes that umfGetIPCHandle made. Copies stay valid. */
umf_result_t umfPutIPCHandle(umf_ipc_handle_t ipcHandle);

/* Opens a handle, through a pool over the same kind of provider. */
umf_result_t umfOpenIPCHandle(umf_ipc_handler_handle_t hIPCHandler, umf_ipc_handle_t ipcHandle, void **ptr);

/* Closes one opening. */
umf_result_t umfCloseIPCHandle(void *ptr);

/* Returns the object that opens handles, for umfOpenIPCHandle. It lives as long as the pool. */
umf_result_t umfPoolGetIPCHandler(umf_memory_pool_handle_t hPool, umf_ipc_handler_handle_t *hIPCHandler);

#ifdef __cplusplus
}
#endif

#endif
