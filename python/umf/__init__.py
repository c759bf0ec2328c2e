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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

try:
    from umf import _umf
except ImportError as error:
    if "interpreter" not in str(error):
        raise
    raise ImportError(
        "cannot import umf in a sub-interpreter: its pools and handles belong to the whole "
        "process; import it in the main interpreter, or start a process"
    ) from error
from umf._install import install
from umf._umf import (
    Block,
    ClosedError,
    DeviceError,
    DomainError,
    Error,
    Explanation,
    ForkError,
    Handle,
    HandleError,
    LimitError,
    LinkError,
    Mapping,
    NotSupportedError,
    OutOfMemoryError,
    PeerClosedError,
    PeerGoneError,
    PermissionError,
    Pool,
    ProducerGoneError,
    ProducerLostError,
    RemoteError,
    RemoteHandle,
    Serving,
    SettingsError,
    StaleError,
    TicketClaimedError,
    TicketExpiredError,
    TimeoutError,
    TransitFullError,
    TruncatedError,
    __version__,
    cancel,
    drain,
    in_transit,
    serve,
    stats,
)

if TYPE_CHECKING:
    import numpy
    from _typeshed import WriteableBuffer

    from umf.arrays import (
        ArrayHandle,
        array,
        default_pool,
        empty,
        handle,
        remote_handle,
        send_handle,
        zeros,
    )

__all__ = [
    "ArrayHandle",
    "Block",
    "ClosedError",
    "DomainError",
    "DeviceError",
    "Error",
    "Explanation",
    "ForkError",
    "Handle",
    "HandleError",
    "LimitError",
    "LinkError",
    "Mapping",
    "NotSupportedError",
    "OutOfMemoryError",
    "PeerClosedError",
    "PeerGoneError",
    "PermissionError",
    "Pool",
    "ProducerGoneError",
    "ProducerLostError",
    "RemoteError",
    "RemoteHandle",
    "Serving",
    "SettingsError",
    "StaleError",
    "TicketClaimedError",
    "TicketExpiredError",
    "TransitFullError",
    "TimeoutError",
    "TruncatedError",
    "__version__",
    "array",
    "cancel",
    "default_pool",
    "drain",
    "empty",
    "fetch",
    "handle",
    "in_transit",
    "install",
    "open",
    "remote_handle",
    "send_handle",
    "serve",
    "stats",
    "why",
    "zeros",
]

_NEED_NUMPY = frozenset(
    (
        "ArrayHandle",
        "array",
        "default_pool",
        "empty",
        "handle",
        "remote_handle",
        "send_handle",
        "zeros",
    )
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


def _decode(handle: Any) -> Any:
    """Returns the `ArrayHandle` that an argument is, or encodes; or else what `_umf` decodes."""
    if isinstance(handle, (bytearray, memoryview)):
        handle = bytes(handle)
    if isinstance(handle, bytes):
        is_array = handle.startswith(b"UMFA")
    elif isinstance(handle, str):
        is_array = handle.lstrip().startswith("umfa1.")
    else:
        arrays = sys.modules.get("umf.arrays")
        of_memory = (Handle, RemoteHandle)
        if not isinstance(
            handle, of_memory if arrays is None else (*of_memory, arrays.ArrayHandle)
        ):
            raise TypeError(
                f"cannot use an object of type {type(handle).__name__} as a handle; pass a "
                "umf.Handle, a umf.RemoteHandle, a umf.ArrayHandle, their bytes, or their text"
            )
        return handle
    if not is_array:
        return handle
    from umf.arrays import ArrayHandle

    return (
        ArrayHandle.from_text(handle) if isinstance(handle, str) else ArrayHandle.from_bytes(handle)
    )


_OF_MEMORY = (Handle, RemoteHandle, bytes, str)

Mode: TypeAlias = Literal["shared", "readonly", "private"]
"""How memory is opened: see `open`."""


@overload
def open(
    handle: Handle | RemoteHandle, *, readonly: bool = False, mode: Mode | None = None
) -> Mapping: ...
@overload
def open(
    handle: ArrayHandle, *, readonly: bool = False, mode: Mode | None = None
) -> numpy.ndarray[Any, Any]: ...
@overload
def open(
    handle: bytes | bytearray | memoryview | str,
    *,
    readonly: bool = False,
    mode: Mode | None = None,
) -> Any: ...


def open(handle: Any, *, readonly: bool = False, mode: Mode | None = None) -> Any:
    """Opens a handle, its bytes, or its text. Returns an array for the handle of an array, else a
    `Mapping`.

    The mode is `"shared"` (the same memory, for reading and writing; the default), `"readonly"`
    (the same memory; writing is refused; also `readonly=True`), or `"private"`: a copy that belongs
    to this process. An array that its sender could not write opens read-only, unless privately.

    Memory of another machine is copied: `"private"` is the default for it, and the other modes
    raise `NotSupportedError`.
    """
    if not isinstance(handle, Handle):
        handle = _decode(handle)
        if not isinstance(handle, _OF_MEMORY):
            return handle.open(readonly=readonly, mode=mode)
    return _umf.open(handle, readonly=readonly, mode=mode)


_Written = TypeVar("_Written", bound="WriteableBuffer | numpy.ndarray[Any, Any]")


@overload
def fetch(
    handle: Handle | RemoteHandle, *, out: None = None, offset: int = 0, size: int | None = None
) -> bytes: ...
@overload
def fetch(handle: ArrayHandle, *, out: None = None) -> numpy.ndarray[Any, Any]: ...
@overload
def fetch(
    handle: bytes | bytearray | memoryview | str,
    *,
    out: None = None,
    offset: int = 0,
    size: int | None = None,
) -> Any: ...
@overload
def fetch(
    handle: Handle | RemoteHandle | ArrayHandle | bytes | bytearray | memoryview | str,
    *,
    out: _Written,
    offset: int = 0,
    size: int | None = None,
) -> _Written: ...


def fetch(handle: Any, *, out: Any = None, offset: int = 0, size: int | None = None) -> Any:
    """Copies bytes of the memory of a handle, of this or another machine: to a new `bytes`, or to
    the buffer `out`, which is returned. `size` is by default the length of `out`, or the rest of
    the memory.

    The handle of an array is copied whole: to a new array, or to `out`, an array of its shape and
    type. Raises `StaleError` if the memory was freed before all of it was copied, and
    `TimeoutError` or `ProducerLostError` if its machine does not answer. The contents of `out` are
    then unspecified. The handle of a message is claimed, as by `open`.
    """
    handle = _decode(handle)
    if isinstance(handle, _OF_MEMORY):
        return _umf.fetch(handle, out=out, offset=offset, size=size)
    if offset != 0 or size is not None:
        raise ValueError(
            "cannot fetch part of an array: offset and size count bytes of memory; fetch all of "
            "it, or pass the handle of the part"
        )
    return handle.fetch(out)


def why(
    handle: Handle | RemoteHandle | ArrayHandle | bytes | bytearray | memoryview | str,
) -> Explanation:
    """Finds out whether a handle is current, and otherwise how and when its memory was freed.

    Reads what the processes of this machine publish, without contacting them. `str()` of the result
    is what the command `umf why` prints.
    """
    found = _decode(handle)
    return _umf.why(found if isinstance(found, _OF_MEMORY) else found.handle)
