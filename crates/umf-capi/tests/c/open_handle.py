"""Opens memory of a Rust process through libumf.so.1, whose path is in UMF_LIBRARY.

Standard input has the 256 bytes of the handle. Prints the text at the start of the block, and writes
"answer" there.
"""

import ctypes
import os
import sys

umf = ctypes.CDLL(os.environ["UMF_LIBRARY"])
umf.umfrsLastErrorText.restype = ctypes.c_char_p
umf.umfOsMemoryProviderOps.restype = ctypes.c_void_p
umf.umfProxyPoolOps.restype = ctypes.c_void_p


def check(result):
    if result != 0:
        sys.exit(umf.umfrsLastErrorText().decode())


def make(function, *arguments):
    """Calls a function whose last argument is the place for a pointer, and returns the pointer."""
    place = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(place)))
    return place


SHARED = 2  # UMF_MEM_MAP_SHARED
params = make(umf.umfOsMemoryProviderParamsCreate)
check(umf.umfOsMemoryProviderParamsSetVisibility(params, SHARED))
provider = make(umf.umfMemoryProviderCreate, ctypes.c_void_p(umf.umfOsMemoryProviderOps()), params)
pool = make(umf.umfPoolCreate, ctypes.c_void_p(umf.umfProxyPoolOps()), provider, None, 0)
handler = make(umf.umfPoolGetIPCHandler, pool)

received = sys.stdin.buffer.read(256)
handle = make(umf.umfrsIPCHandleFromBytes, received, ctypes.c_size_t(len(received)))
memory = make(umf.umfOpenIPCHandle, handler, handle)
print("python:", ctypes.string_at(memory).decode())
ctypes.memmove(memory, b"answer\0", 7)
check(umf.umfCloseIPCHandle(memory))
check(umf.umfPutIPCHandle(handle))

wrong = ctypes.c_void_p()
umf.umfrsIPCHandleFromBytes(received, ctypes.c_size_t(5), ctypes.byref(wrong))
print("error:", umf.umfrsLastErrorText().decode())
check(umf.umfPoolDestroy(pool))
check(umf.umfMemoryProviderDestroy(provider))
