/* What this library has beyond the original's interface. A program that uses it needs this library:
 * the original libumf.so.1 lacks these functions. */

#ifndef UMF_RS_UMFRS_H
#define UMF_RS_UMFRS_H

#include <stddef.h>
#include <umf/base.h>
#include <umf/ipc.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a Rust handle (umf_ipc::Handle). */
#define UMFRS_HANDLE_SIZE 256
/* Characters of the text of a Rust handle, without a NUL. */
#define UMFRS_HANDLE_TEXT_SIZE 347

/* Native errors of all kinds of provider (umfMemoryProviderGetLastNativeError), beside those of the
 * provider's header and of its driver. The message says what failed, why, and what to do. */
#define UMFRS_NATIVE_ERROR_EXPORT_FAILED (-1)
#define UMFRS_NATIVE_ERROR_OPEN_FAILED (-2)

/* Returns the text of the last call of this thread that failed: what failed on what, why, and
 * what to do. A call that succeeds does not change it. Never returns NULL; the text is empty if
 * no call failed. The text belongs to the library, and is valid until the next call of the
 * library in this thread. */
const char *umfrsLastErrorText(void);

/* Makes an IPC handle from what another process sent or printed. umfOpenIPCHandle checks whether the
 * memory still exists.
 * @param bytes a Rust handle, a C handle, or the text of a Rust handle. The text begins with "umf1.",
 *     and may have white space around it and a NUL. Any alignment; the library copies the bytes.
 * @param size in bytes: 256, 264, or that of the text.
 * @param handle where the IPC handle is written; umfPutIPCHandle frees it. A C handle keeps the
 *     offset of its pointer. With a Rust handle, umfOpenIPCHandle yields the start of the block.
 * Errors: INVALID_ARGUMENT if a pointer is NULL, or the bytes are no handle. */
umf_result_t umfrsIPCHandleFromBytes(const void *bytes, size_t size, umf_ipc_handle_t *handle);

#ifdef __cplusplus
}
#endif

#endif
