"""Arrays, blocks and mappings as arguments and messages of `multiprocessing`.

Importing this module registers reducers with `multiprocessing`'s own pickler. Each message that it
pickles has a ticket: the memory is kept until the receiver has opened it, even if the sender has
freed it. Plain `pickle`, `copy` and `torch.save` copy the bytes, as before.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy

from umf import _umf, arrays

__all__ = ["install"]


def _open_mapping(handle: bytes, readonly: bool) -> _umf.Mapping:
    return _umf.open(handle, readonly=readonly)


def _open_array(handle: arrays.ArrayHandle) -> numpy.ndarray[Any, Any]:
    return handle.open()


def _reduce_array(given: numpy.ndarray[Any, Any]) -> Any:
    if arrays._owner(given) is None:
        return given.__reduce_ex__(2)
    return _open_array, (arrays.send_handle(given),)


def _reduce_block(block: _umf.Block) -> Any:
    return _open_mapping, (bytes(block.send_handle()), False)


def _reduce_mapping(mapping: _umf.Mapping) -> Any:
    return _open_mapping, (bytes(mapping.send_handle()), mapping.readonly)


def install() -> None:
    """Registers the reducers. Importing the module has done so already."""
    ForkingPickler.register(numpy.ndarray, _reduce_array)
    ForkingPickler.register(_umf.Block, _reduce_block)
    ForkingPickler.register(_umf.Mapping, _reduce_mapping)


install()
