"""Memory that processes share.

>>> import numpy, umf
>>> numbers = umf.array(numpy.arange(1000))   # a numpy array in shared memory
>>> handle = umf.handle(numbers)              # plain bytes: bytes(handle), or str(handle)
>>> view = umf.open(handle)                   # in any process of this machine: no copy
>>> int(view.sum())
499500

Without numpy, a block of a pool is the unit:

>>> block = umf.Pool.shared().allocate(1 << 20)
>>> message = block.send_handle()             # for a queue: outlives the block
>>> mapping = umf.open(message)               # has the buffer protocol: memoryview(mapping)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, overload

from umf import _umf
from umf._umf import (
    Block,
    ClosedError,
    Error,
    ForkError,
    Handle,
    HandleError,
    LimitError,
    Mapping,
    OutOfMemoryError,
    PermissionError,
    Pool,
    ProducerGoneError,
    SettingsError,
    StaleError,
    TicketClaimedError,
    __version__,
    cancel,
    drain,
    in_transit,
)

if TYPE_CHECKING:
    import numpy

    from umf.arrays import ArrayHandle, array, default_pool, empty, handle, send_handle, zeros

__all__ = [
    "ArrayHandle",
    "Block",
    "ClosedError",
    "Error",
    "ForkError",
    "Handle",
    "HandleError",
    "LimitError",
    "Mapping",
    "OutOfMemoryError",
    "PermissionError",
    "Pool",
    "ProducerGoneError",
    "SettingsError",
    "StaleError",
    "TicketClaimedError",
    "__version__",
    "array",
    "cancel",
    "default_pool",
    "drain",
    "empty",
    "handle",
    "in_transit",
    "open",
    "send_handle",
    "zeros",
]

_NEED_NUMPY = frozenset(
    ("ArrayHandle", "array", "default_pool", "empty", "handle", "send_handle", "zeros")
)


def __getattr__(name: str) -> Any:
    """Imports what needs numpy at its first use."""
    if name in _NEED_NUMPY:
        from umf import arrays

        found = globals()[name] = getattr(arrays, name)
        return found
    raise AttributeError(f"module 'umf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_NUMPY})


@overload
def open(handle: Handle, *, readonly: bool = False) -> Mapping: ...
@overload
def open(handle: ArrayHandle, *, readonly: bool = False) -> numpy.ndarray[Any, Any]: ...
@overload
def open(handle: bytes | bytearray | memoryview | str, *, readonly: bool = False) -> Any: ...


def open(handle: Any, *, readonly: bool = False) -> Any:
    """Opens a handle, its bytes, or its text. The memory is not copied.

    Returns an array for the handle of an array, else a `Mapping`. With `readonly`, writing to it is
    refused.
    """
    if isinstance(handle, Handle):
        return _umf.open(handle, readonly=readonly)
    if isinstance(handle, (bytearray, memoryview)):
        handle = bytes(handle)
    if isinstance(handle, bytes):
        is_array = handle.startswith(b"UMFA")
    elif isinstance(handle, str):
        is_array = handle.lstrip().startswith("umfa1.")
    else:
        arrays = sys.modules.get("umf.arrays")
        if arrays is None or not isinstance(handle, arrays.ArrayHandle):
            raise TypeError(
                f"cannot open an object of type {type(handle).__name__}; pass a umf.Handle, a "
                "umf.ArrayHandle, their bytes, or their text"
            )
        return handle.open(readonly=readonly)
    if not is_array:
        return _umf.open(handle, readonly=readonly)
    from umf.arrays import ArrayHandle

    decode = ArrayHandle.from_text if isinstance(handle, str) else ArrayHandle.from_bytes
    return decode(handle).open(readonly=readonly)
