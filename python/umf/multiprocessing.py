"""Arrays, blocks and mappings as arguments and messages of `multiprocessing`.

Importing this module registers reducers with `multiprocessing`'s own pickler. Each message that it
pickles has a ticket: the memory is kept until the receiver has opened it, even if the sender has
freed it or has exited. Memory that a forked child has inherited from its parent is copied. Plain
`pickle`, `copy` and `torch.save` copy the bytes, as before.
"""

from __future__ import annotations

import dataclasses
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy

from umf import _umf, arrays, transit

__all__ = ["install", "send_timeout"]

send_timeout: float = 5.0
"""Seconds that a message waits if too much memory is in transit (`ipc.max_in_transit`). Then its
bytes are sent instead of a handle."""


def _open_mapping(handle: bytes, readonly: bool) -> _umf.Mapping:
    return transit.open_sent(handle, lambda known: _umf.open(known, readonly=readonly))


def _open_array(handle: arrays.ArrayHandle) -> numpy.ndarray[Any, Any]:
    return transit.open_sent(
        handle.handle, lambda known: dataclasses.replace(handle, handle=known).open()
    )


def _restore_block(content: bytes) -> _umf.Block:
    block = arrays.default_pool().allocate(len(content))
    memoryview(block)[:] = content
    return block


def _note_copy(error: _umf.Error) -> None:
    # The memory of the parent process, which a forked child always sends by value.
    if not isinstance(error, _umf.ForkError):
        warnings.warn(f"umf sends the bytes instead of a handle: {error}", RuntimeWarning, 3)


def _needs_copy(owner: _umf.Block | _umf.Mapping) -> bool:
    """Whether memory was received from a process that may exit before the next reader opens it."""
    if not isinstance(owner, _umf.Mapping) or owner.mode == "private":
        return False
    return not transit.can_pass_on(bytes(owner.handle))


def _reduce_array(given: numpy.ndarray[Any, Any]) -> Any:
    found = arrays._owner(given)
    if found is None:
        return given.__reduce_ex__(2)
    try:
        if _needs_copy(found[0]):
            copied = arrays.array(given)
            copied.flags.writeable = given.flags.writeable
            given = copied
        message = arrays.send_handle(given, timeout=send_timeout)
    except _umf.Error as error:
        _note_copy(error)
        return given.__reduce_ex__(2)
    transit.sent(message.handle)
    return _open_array, (message,)


def _reduce_memory(owner: _umf.Block | _umf.Mapping) -> Any:
    readonly = isinstance(owner, _umf.Mapping) and owner.readonly
    try:
        sender = _restore_block(bytes(owner)) if _needs_copy(owner) else owner
        message = bytes(sender.send_handle(timeout=send_timeout))
    except _umf.ClosedError:
        raise
    except _umf.Error as error:
        _note_copy(error)
        return _restore_block, (bytes(owner),)
    transit.sent(message)
    return _open_mapping, (message, readonly)


def install() -> None:
    """Registers the reducers. Importing the module has done so already."""
    ForkingPickler.register(numpy.ndarray, _reduce_array)
    ForkingPickler.register(_umf.Block, _reduce_memory)
    ForkingPickler.register(_umf.Mapping, _reduce_memory)


install()
