"""numpy arrays in memory of a pool, and their handles."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from umf import _umf

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

_default: tuple[int, _umf.Pool] | None = None


def default_pool() -> _umf.Pool:
    """Returns the shared pool of this process. A forked child gets one of its own."""
    global _default
    pid = os.getpid()
    if _default is None or _default[0] != pid:
        _default = (pid, _umf.Pool.shared())
    return _default[1]


def empty(
    shape: int | tuple[int, ...], dtype: DTypeLike = float, *, pool: _umf.Pool | None = None
) -> numpy.ndarray[Any, Any]:
    """Returns an array in memory of the pool. Its content is undefined.

    The memory is freed when no array uses it any more.
    """
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"an array of {kind} has Python objects, which no other process can read")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = math.prod(shape) * kind.itemsize
    block = (pool or default_pool()).allocate(max(size, 1))
    return numpy.ndarray(shape, kind, buffer=block)


def zeros(
    shape: int | tuple[int, ...], dtype: DTypeLike = float, *, pool: _umf.Pool | None = None
) -> numpy.ndarray[Any, Any]:
    """Returns an array of zeros in memory of the pool."""
    made = empty(shape, dtype, pool=pool)
    made.fill(0)
    return made


def array(source: ArrayLike, *, pool: _umf.Pool | None = None) -> numpy.ndarray[Any, Any]:
    """Copies an array, or what numpy makes one of, to memory of the pool."""
    given = numpy.asarray(source)
    made = empty(given.shape, given.dtype, pool=pool)
    made[...] = given
    return made


@dataclass(frozen=True)
class ArrayHandle:
    """The handle of an array: that of its memory, and how the array lies in it."""

    handle: bytes
    dtype: Any
    """The type as `numpy.lib.format.dtype_to_descr` returns it: plain values."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    readonly: bool

    def open(self) -> numpy.ndarray[Any, Any]:
        """Opens the array. Its memory stays open as long as an array uses it."""
        try:
            kind = descr_to_dtype(self.dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise _umf.HandleError(f"an array handle of type {self.dtype!r}: {error}") from error
        if kind.hasobject:
            raise _umf.HandleError(f"an array handle of type {kind}: it would have Python objects")
        mapping = _umf.open(self.handle, readonly=self.readonly)
        try:
            return numpy.ndarray(self.shape, kind, mapping, self.offset, self.strides)
        except (TypeError, ValueError) as error:
            raise _umf.HandleError(
                f"an array of {self.shape} {kind} at {self.offset} with strides {self.strides} "
                f"does not lie in the {len(mapping)} bytes of its handle: {error}"
            ) from error


def _owner(given: numpy.ndarray[Any, Any]) -> tuple[Any, int] | None:
    """Returns the block or mapping that has all bytes of an array, and the array's offset in it."""
    if given.dtype.hasobject:
        return None
    low, high = (
        numpy.lib.array_utils.byte_bounds(given)
        if hasattr(numpy.lib, "array_utils")
        else (numpy.byte_bounds(given))
    )
    found = _umf.find(low, max(high - low, 1))
    if found is None:
        return None
    owner, offset = found
    return owner, offset + given.__array_interface__["data"][0] - low


def _describe(given: numpy.ndarray[Any, Any], handle: Any, offset: int) -> ArrayHandle:
    return ArrayHandle(
        bytes(handle),
        dtype_to_descr(given.dtype),
        given.shape,
        given.strides,
        offset,
        not given.flags.writeable,
    )


def handle(given: numpy.ndarray[Any, Any]) -> ArrayHandle:
    """Returns the handle of an array in umf memory. It is stale once the memory is freed."""
    found = _owner(given)
    if found is None:
        raise ValueError("the array is not in memory of umf: copy it there with umf.array")
    owner, offset = found
    plain = owner.handle() if isinstance(owner, _umf.Block) else owner.handle
    return _describe(given, plain, offset)


def send_handle(
    given: numpy.ndarray[Any, Any], readers: int = 1, *, timeout: float = 0.0
) -> ArrayHandle:
    """Returns the handle of an array for a message: see `Block.send_handle`."""
    found = _owner(given)
    if found is None:
        raise ValueError("the array is not in memory of umf: copy it there with umf.array")
    owner, offset = found
    return _describe(given, owner.send_handle(readers, timeout=timeout), offset)
