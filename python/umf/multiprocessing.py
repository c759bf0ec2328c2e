"""Arrays, blocks and mappings as arguments and messages of `multiprocessing`.

Importing this module registers reducers with `multiprocessing`'s own pickler. Each message that it
pickles has a ticket: the memory is kept until the receiver has opened it, even if the sender has
freed it. Plain `pickle`, `copy` and `torch.save` copy the bytes, as before.
"""

from __future__ import annotations

import dataclasses
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy

from umf import _umf, arrays, transit

__all__ = ["install"]


def _open_mapping(handle: bytes, readonly: bool) -> _umf.Mapping:
    return transit.open_sent(handle, lambda known: _umf.open(known, readonly=readonly))


def _open_array(handle: arrays.ArrayHandle) -> numpy.ndarray[Any, Any]:
    return transit.open_sent(
        handle.handle, lambda known: dataclasses.replace(handle, handle=known).open()
    )


def _reduce_array(given: numpy.ndarray[Any, Any]) -> Any:
    found = arrays._owner(given)
    if found is None:
        return given.__reduce_ex__(2)
    if isinstance(found[0], _umf.Mapping) and not transit.can_pass_on(bytes(found[0].handle)):
        copied = arrays.array(given)
        copied.flags.writeable = given.flags.writeable
        given = copied
    message = arrays.send_handle(given)
    transit.sent(message.handle)
    return _open_array, (message,)


def _reduce_block(block: _umf.Block) -> Any:
    message = bytes(block.send_handle())
    transit.sent(message)
    return _open_mapping, (message, False)


def _reduce_mapping(mapping: _umf.Mapping) -> Any:
    if transit.can_pass_on(bytes(mapping.handle)):
        message = bytes(mapping.send_handle())
    else:
        copied = arrays.default_pool().allocate(len(mapping))
        memoryview(copied)[:] = memoryview(mapping)
        message = bytes(copied.send_handle())
    transit.sent(message)
    return _open_mapping, (message, mapping.readonly)


def install() -> None:
    """Registers the reducers. Importing the module has done so already."""
    ForkingPickler.register(numpy.ndarray, _reduce_array)
    ForkingPickler.register(_umf.Block, _reduce_block)
    ForkingPickler.register(_umf.Mapping, _reduce_mapping)


install()
