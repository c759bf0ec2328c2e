"""Arrays, blocks and mappings as arguments and messages of `multiprocessing`.

Importing this module registers reducers with `multiprocessing`'s own pickler. Each message that it
pickles has a ticket: the memory is kept until the receiver has opened it, even if the sender has
freed it or has exited. Memory that a forked child has inherited from its parent is copied. Plain
`pickle`, `copy` and `torch.save` copy the bytes, as before.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy

from umf import _umf, arrays, transit

__all__ = ["install", "send_timeout"]

send_timeout: float = 5.0
"""Seconds that a message waits if too much memory is in transit (`ipc.max_in_transit`). Then its
bytes are sent instead of a handle."""


class _Pickling(threading.local):
    """The messages that a pickler of this thread has made so far."""

    messages: dict[tuple[int, bool], tuple[Any, _Message]] | None = None
    """By owner, which is kept, and whether it is opened read-only."""


_pickling = _Pickling()


class _Message:
    """A handle with a ticket. All arrays of one block in one pickle share it."""

    __slots__ = ("handle", "readonly")

    def __init__(self, handle: bytes, readonly: bool) -> None:
        self.handle = handle
        self.readonly = readonly

    def __reduce__(self) -> Any:
        return _open_mapping, (self.handle, self.readonly)


def _send(owner: _umf.Block | _umf.Mapping, readonly: bool) -> _Message:
    """Returns the message of a block or mapping in the pickle that this thread writes."""
    messages = _pickling.messages
    key = id(owner), readonly
    if messages is not None and key in messages:
        return messages[key][1]
    message = _Message(_send_or_wait(owner), readonly)
    if messages is None:
        transit.sent(message.handle)
    else:
        messages[key] = owner, message
    return message


_stuck: tuple[int, int, int] | None = None
"""What was in transit when the last wait had no result."""


def _in_transit() -> tuple[int, int, int]:
    found = _umf.stats()
    return found["in_transit"], found["in_transit_bytes"], found["expired"]


def _send_or_wait(owner: _umf.Block | _umf.Mapping) -> bytes:
    """Sends a handle. While nothing is read, only the first message waits for that."""
    global _stuck
    waits = _stuck is None or _stuck != _in_transit()
    try:
        sent = bytes(owner.send_handle(timeout=send_timeout if waits else 0.0))
    except _umf.TransitFullError:
        if waits:
            _stuck = _in_transit()
        raise
    _stuck = None
    return sent


_plain_dump = ForkingPickler.dump


def _dump(pickler: ForkingPickler, given: Any) -> None:
    """Pickles, and cancels the messages in it if that fails."""
    outer = _pickling.messages
    messages = _pickling.messages = {}
    try:
        _plain_dump(pickler, given)
    except BaseException:
        for _, message in messages.values():
            with contextlib.suppress(_umf.Error):
                _umf.cancel(message.handle)
        raise
    finally:
        _pickling.messages = outer
    for _, message in messages.values():
        transit.sent(message.handle)


def _open_mapping(handle: bytes, readonly: bool) -> _umf.Mapping:
    return transit.open_sent(handle, readonly=readonly)


def _open_array(memory: _umf.Mapping, handle: arrays.ArrayHandle) -> arrays.Array:
    return handle._view(memory)


def _same(memory: _umf.Mapping) -> _umf.Mapping:
    return memory


def _copied(content: Any) -> _umf.Block:
    block = arrays.default_pool().allocate(len(content))
    memoryview(block)[:] = content
    return block


def _restore(content: bytes, readonly: bool) -> _umf.Mapping:
    """Returns bytes that were sent in place of a handle, as what a handle would have given."""
    block = _copied(content)
    # The mapping keeps the memory of the block.
    return _umf.open(block.handle(), readonly=readonly)


def _note_copy(error: _umf.Error) -> None:
    # The memory of the parent process, which a forked child always sends by value.
    if not isinstance(error, _umf.ForkError):
        warnings.warn(f"umf sends the bytes instead of a handle: {error}", RuntimeWarning, 3)


def _needs_copy(owner: _umf.Block | _umf.Mapping) -> bool:
    """Whether memory was received from a process that may exit before the next reader opens it."""
    if not isinstance(owner, _umf.Mapping) or owner.mode == "private":
        return False
    return not transit.can_pass_on(bytes(owner.handle))


def _reduce_array(given: arrays.Array) -> Any:
    found = arrays._owner(given)
    if found is None:
        return given.__reduce_ex__(2)
    try:
        if _needs_copy(found[0]):
            copied = arrays.array(given)
            copied.flags.writeable = given.flags.writeable
            found, given = arrays._owner_or_error(copied), copied
        owner, offset = found
        readonly = not given.flags.writeable or isinstance(owner, _umf.Mapping) and owner.readonly
        message = _send(owner, readonly)
    except _umf.Error as error:
        _note_copy(error)
        return given.__reduce_ex__(2)
    return _open_array, (message, arrays._describe(given, message.handle, offset))


def _reduce_memory(owner: _umf.Block | _umf.Mapping) -> Any:
    readonly = isinstance(owner, _umf.Mapping) and owner.readonly
    try:
        sender = _copied(memoryview(owner)) if _needs_copy(owner) else owner
        return _same, (_send(sender, readonly),)
    except _umf.ClosedError:
        raise
    except _umf.Error as error:
        _note_copy(error)
        return _restore, (bytes(memoryview(owner)), readonly)


def install() -> None:
    """Registers the reducers. Importing the module has done so already."""
    ForkingPickler.dump = _dump  # type: ignore[assignment, method-assign]
    ForkingPickler.register(numpy.ndarray, _reduce_array)
    ForkingPickler.register(_umf.Block, _reduce_memory)
    ForkingPickler.register(_umf.Mapping, _reduce_memory)


install()
