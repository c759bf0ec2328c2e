"""numpy arrays in memory of a pool, and their handles. The package `umf` exports what is public."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from umf import _umf

try:
    import numpy
    from numpy.lib.format import descr_to_dtype, dtype_to_descr
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "arrays of umf need numpy, which is not installed; run: pip install numpy "
        "(umf.Pool, blocks and mappings work without it)",
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    Array = numpy.ndarray[Any, Any]

_default: _umf.Pool | None = None


def default_pool() -> _umf.Pool:
    """Returns the shared pool of this process. A forked child gets one of its own."""
    global _default
    if _default is None:
        _default = _umf.Pool.shared()
    return _default


def _forget_default_pool() -> None:
    global _default
    _default = None


os.register_at_fork(after_in_child=_forget_default_pool)


def empty(
    shape: int | Sequence[int], dtype: DTypeLike = float, *, pool: _umf.Pool | None = None
) -> Array:
    """Returns an array in memory of the pool. Its content is undefined.

    The memory is freed when no array uses it any more.
    """
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(
            f"cannot share an array of type {kind}: it has Python objects, which no other process "
            "can read; use a type of numbers, or of bytes with a fixed length"
        )
    if type(shape) is int and shape > 0:
        # The common case, in a third of the time.
        memory = (pool or _default or default_pool())._allocate_export(shape * kind.itemsize or 1)
        return numpy.ndarray(shape, kind, memory)
    lengths = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if any(length < 0 for length in lengths):
        raise ValueError(
            f"cannot make an array of shape {lengths}: a length is negative; pass 0 or more"
        )
    size = math.prod(lengths) * kind.itemsize
    memory = (pool or default_pool())._allocate_export(max(size, 1))
    return numpy.ndarray(lengths, kind, memory)


def zeros(
    shape: int | Sequence[int], dtype: DTypeLike = float, *, pool: _umf.Pool | None = None
) -> Array:
    """Returns an array of zeros in memory of the pool."""
    made = empty(shape, dtype, pool=pool)
    made.fill(0)
    return made


def array(
    source: ArrayLike, dtype: DTypeLike | None = None, *, pool: _umf.Pool | None = None
) -> Array:
    """Copies an array, or what numpy makes one of, to memory of the pool."""
    given = numpy.asarray(source)
    made = empty(given.shape, given.dtype if dtype is None else dtype, pool=pool)
    made[...] = given
    return made


_HEADER: Final = struct.Struct("<4sHHII")
"""Magic, version, size of a remote handle, length of the description, CRC-32 of what follows."""
_MAGIC: Final = b"UMFA"
_VERSION: Final = 1
_REMOTE_VERSION: Final = 2
_HANDLE_SIZE: Final = 256
_MOST_REMOTE: Final = 768
_MOST_DESCRIPTION: Final = 1 << 16
_TEXT: Final = "umfa1."
# What `dtype.str` has: byte order, kind, size, and the unit of a time.
_TYPE: Final = re.compile(r"[<>|][biufcSUVmM][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")


def _wrong(text: str) -> _umf.HandleError:
    return _umf.HandleError(f"cannot decode the handle of an array: {text}")


@dataclass(frozen=True)
class ArrayHandle:
    """The handle of an array: that of its memory, and how the array lies in it.

    It is a plain value. `bytes(handle)` and `str(handle)` go through a file, a pipe or argv, and
    `umf.open` takes them. Each of its fields is checked when it is decoded or opened.
    """

    handle: bytes
    """The bytes of the `Handle` or `RemoteHandle` of the memory."""
    dtype: Any
    """The type as `numpy.lib.format.dtype_to_descr` returns it: text, or a list of fields."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """Bytes from the start of the memory to the first element."""
    readonly: bool
    """Whether the array is opened read-only."""

    def open(self, *, readonly: bool = False, mode: str | None = None) -> Array:
        """Opens the array, as `umf.open` does. Its memory stays open while an array uses it."""
        self._check()
        is_copied = mode is None and not readonly and self._is_of_another_machine()
        if self.readonly and mode != "private" and not is_copied:
            readonly, mode = True, None
        return self._view(_umf.open(self.handle, readonly=readonly, mode=mode))

    def fetch(self, out: Array | None = None) -> Array:
        """Copies the array, as `umf.fetch` does: to a new array, or to `out`, which is returned."""
        kind = self._check()
        if out is not None and type(out) is not numpy.ndarray:
            raise TypeError(
                f"cannot fetch an array into a {type(out).__name__}; pass a numpy array, or fetch "
                "bytes of its memory (ArrayHandle.handle)"
            )
        if out is not None and (out.shape != self.shape or out.dtype != kind):
            raise ValueError(
                f"cannot fetch an array of {self.shape} {kind} into one of {out.shape} "
                f"{out.dtype}; pass one of the same shape and type"
            )
        if not self._is_packed(kind) or not (out is None or out.flags.c_contiguous):
            found = self.open(mode="private")
            if out is None:
                return found
            out[...] = found
            return out
        size = kind.itemsize * math.prod(self.shape)
        memory = self._decoded()
        if not 0 <= self.offset <= memory.size - size:
            raise _wrong(
                f"its {size} bytes at {self.offset} do not lie in the {memory.size} bytes of its "
                "memory; get a new handle from its producer"
            )
        if out is None:
            if size >= 1 << 20:
                _umf.check_memory(size)
            into = numpy.empty(self.shape, kind)
        else:
            into = out
        if size > 0:
            # As bytes: Python's buffers do not have all types of numpy.
            flat: Any = into.reshape(-1).view(numpy.uint8)
            _umf.fetch(memory, out=flat, offset=self.offset)
        return into

    def _is_packed(self, kind: numpy.dtype[Any]) -> bool:
        """Returns whether the elements lie one after the other, in the order of C."""
        if len(self.shape) != len(self.strides):
            return False
        step = kind.itemsize
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != step:
                return False
            step *= length
        return True

    def _decoded(self) -> _umf.Handle | _umf.RemoteHandle:
        is_remote = len(self.handle) > _HANDLE_SIZE
        return _umf.RemoteHandle(self.handle) if is_remote else _umf.Handle(self.handle)

    def _is_of_another_machine(self) -> bool:
        return len(self.handle) > _HANDLE_SIZE and not _umf.RemoteHandle(self.handle).is_local

    def _view(self, mapping: _umf.Mapping | _umf.Block) -> Array:
        """Returns the array in its open memory."""
        kind = self._check()
        try:
            memory = mapping._export()
            return numpy.ndarray(self.shape, kind, memory, self.offset, self.strides)
        except (TypeError, ValueError, OverflowError) as error:
            raise _umf.HandleError(
                f"cannot open an array of {self.shape} {kind} at {self.offset} with strides "
                f"{self.strides}: it does not lie in the {len(mapping)} bytes of its handle "
                f"({error}); get a new handle from its producer"
            ) from error

    def __bytes__(self) -> bytes:
        description = json.dumps(
            {
                "dtype": self.dtype,
                "shape": self.shape,
                "strides": self.strides,
                "offset": self.offset,
                "readonly": self.readonly,
            },
            separators=(",", ":"),
        ).encode()
        if len(description) > _MOST_DESCRIPTION:
            raise ValueError(
                f"cannot encode an array handle: its type takes {len(description)} bytes, of "
                f"{_MOST_DESCRIPTION} at most; use a type with fewer fields"
            )
        body = self.handle + description
        size = len(self.handle)
        version, size = (_VERSION, 0) if size == _HANDLE_SIZE else (_REMOTE_VERSION, size)
        return _HEADER.pack(_MAGIC, version, size, len(description), zlib.crc32(body)) + body

    def __str__(self) -> str:
        return _TEXT + base64.urlsafe_b64encode(bytes(self)).rstrip(b"=").decode()

    @classmethod
    def from_bytes(cls, source: bytes) -> ArrayHandle:
        """Decodes the bytes of an array handle. Raises `HandleError` for other bytes."""
        if len(source) < _HEADER.size or not source.startswith(_MAGIC):
            raise _wrong('the bytes do not begin with "UMFA"; pass those of a umf.ArrayHandle')
        _, version, size, length, checksum = _HEADER.unpack_from(source)
        if (version, size) == (_VERSION, 0):
            size = _HANDLE_SIZE
        elif version != _REMOTE_VERSION or not _HANDLE_SIZE < size <= _MOST_REMOTE:
            raise _wrong(
                f"it has version {version}, this umf reads versions {_VERSION} and "
                f"{_REMOTE_VERSION}; let both processes use the same release"
            )
        body = source[_HEADER.size :]
        if length > _MOST_DESCRIPTION or len(body) != size + length:
            raise _wrong("its length is wrong: it was cut, or something was added; send all of it")
        if zlib.crc32(body) != checksum:
            raise _wrong("its checksum is wrong: it is damaged; send its bytes unchanged")
        try:
            found = json.loads(body[size:])
        except (ValueError, RecursionError) as error:
            raise _wrong(f"its description is not JSON ({error}); get a new handle") from error
        names = {"dtype", "shape", "strides", "offset", "readonly"}
        if not isinstance(found, dict) or found.keys() != names:
            raise _wrong("its description has other keys than umf writes; get a new handle")
        if not isinstance(found["shape"], list) or not isinstance(found["strides"], list):
            raise _wrong("its shape and strides are not lists; get a new handle")
        made = cls(
            body[:size],
            _plain_type(found["dtype"]),
            tuple(found["shape"]),
            tuple(found["strides"]),
            found["offset"],
            found["readonly"],
        )
        made._check()
        made._decoded()
        return made

    @classmethod
    def from_text(cls, text: str) -> ArrayHandle:
        """Decodes the text of an array handle. Raises `HandleError` for other text."""
        stripped = text.strip()
        body = stripped.removeprefix(_TEXT)
        if body == stripped:
            raise _wrong(f'the text does not begin with "{_TEXT}"; pass that of a umf.ArrayHandle')
        try:
            source = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error) as error:
            raise _wrong(f"the text is not URL-safe base64 ({error}); send all of it") from error
        return cls.from_bytes(source)

    def _check(self) -> numpy.dtype[Any]:
        """Checks the types and ranges of all fields. Returns the type of the elements."""
        kind = _decode_type(_plain_type(self.dtype))
        for name, values in (("shape", self.shape), ("strides", self.strides)):
            if not isinstance(values, tuple) or not all(type(value) is int for value in values):
                raise _wrong(
                    f"its {name} {values!r:.80} is not a tuple of numbers; get a new handle"
                )
        if any(length < 0 for length in self.shape):
            raise _wrong(f"its shape {self.shape!r:.80} has a negative length; get a new handle")
        if type(self.offset) is not int or type(self.readonly) is not bool:
            raise _wrong("its offset or access is not what umf writes; get a new handle")
        if not isinstance(self.handle, bytes):
            raise _wrong("its memory is not named by bytes; get a new handle")
        return kind


def _plain_type(given: Any, depth: int = 8) -> Any:
    """Returns a type as text or a list of fields: `(name, type)` or `(name, type, shape)`.

    Accepts lists in place of tuples. All else ends in `HandleError`, so that what goes to numpy is
    plain.
    """
    if isinstance(given, str) and _TYPE.fullmatch(given):
        return given
    if not isinstance(given, list) or not given or not depth:
        raise _wrong(f"{given!r:.80} is not the type of an array; get a new handle")
    fields: list[tuple[Any, ...]] = []
    for field in given:
        if not isinstance(field, (list, tuple)) or not 2 <= len(field) <= 3:
            raise _wrong(f"{field!r:.80} is not a field of a type; get a new handle")
        name, kind, *shape = field
        if isinstance(name, (list, tuple)):
            name = tuple(name)
        if not all(
            isinstance(part, str) for part in (name if isinstance(name, tuple) else (name,))
        ):
            raise _wrong(f"{name!r:.80} is not the name of a field; get a new handle")
        if shape:
            if not isinstance(shape[0], (list, tuple)) or not all(
                type(length) is int and length >= 0 for length in shape[0]
            ):
                raise _wrong(f"{shape[0]!r:.80} is not the shape of a field; get a new handle")
            shape = [tuple(shape[0])]
        fields.append((name, _plain_type(kind, depth - 1), *shape))
    return fields


def _decode_type(plain: Any) -> numpy.dtype[Any]:
    try:
        kind = descr_to_dtype(plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong(f"numpy has no type {plain!r:.80} ({error}); get a new handle") from error
    if kind.hasobject:
        raise _wrong(f"an array of type {kind} would have Python objects; get a new handle")
    return kind


@functools.lru_cache(256)
def _encode_type(kind: numpy.dtype[Any]) -> Any:
    """Returns a type as plain values, or `None` if they do not give the same type again."""
    if kind.hasobject:
        return None
    try:
        plain = dtype_to_descr(kind)
        return plain if _decode_type(_plain_type(plain)) == kind else None
    except (ValueError, TypeError, _umf.HandleError):
        return None


def _owner(given: Array) -> tuple[Any, int] | None:
    """Returns the block or mapping that has all bytes of an array, and the array's offset in it.

    Returns `None` for memory of others, and for arrays that a handle cannot describe.
    """
    if type(given) is not numpy.ndarray or _encode_type(given.dtype) is None:
        return None
    low, high = _byte_bounds(given)
    found = _umf.find(low, max(high - low, 1))
    if found is None:
        return None
    owner, offset = found
    return owner, offset + given.__array_interface__["data"][0] - low


if hasattr(numpy.lib, "array_utils"):
    _byte_bounds = numpy.lib.array_utils.byte_bounds
else:
    _byte_bounds = numpy.byte_bounds  # type: ignore[attr-defined]


def _owner_or_error(given: Array) -> tuple[Any, int]:
    found = _owner(given)
    if found is not None:
        return found
    if type(given) is not numpy.ndarray:
        raise TypeError(
            f"cannot make a handle of a {type(given).__name__}: a handle opens as a plain array; "
            "pass numpy.asarray(it)"
        )
    if _encode_type(given.dtype) is None:
        raise TypeError(
            f"cannot make a handle of an array of type {given.dtype}: the type cannot be written "
            "as plain values; view it as another type"
        )
    raise ValueError(
        "cannot make a handle of the array: it is not in memory of umf; "
        "copy it there with umf.array"
    )


def _describe(given: Array, handle: Any, offset: int) -> ArrayHandle:
    return ArrayHandle(
        bytes(handle),
        _encode_type(given.dtype),
        given.shape,
        given.strides,
        offset,
        not given.flags.writeable,
    )


def handle(given: Array) -> ArrayHandle:
    """Returns the handle of an array in umf memory. It is stale once the memory is freed."""
    owner, offset = _owner_or_error(given)
    plain = owner.handle() if isinstance(owner, _umf.Block) else owner.handle.plain()
    return _describe(given, plain, offset)


def remote_handle(given: Array) -> ArrayHandle:
    """Returns the handle of an array for processes of this and other machines.

    They can read the array while this process serves (`umf.serve`), until its memory is freed.
    """
    owner, offset = _owner_or_error(given)
    if not isinstance(owner, _umf.Block):
        raise ValueError(
            "cannot make a remote handle of the array: its memory is of another process; let its "
            "producer make the handle"
        )
    return _describe(given, owner.remote_handle(), offset)


def send_handle(given: Array, readers: int = 1, *, timeout: float = 0.0) -> ArrayHandle:
    """Returns the handle of an array for a message that `readers` processes open.

    The memory is kept until they have, even if the array is deleted before: see
    `Block.send_handle`.
    """
    owner, offset = _owner_or_error(given)
    return _describe(given, owner.send_handle(readers, timeout=timeout), offset)
