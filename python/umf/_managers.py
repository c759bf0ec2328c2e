"""`multiprocessing.managers` with the shared memory of `umf.shared_memory`."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from umf import _standard
from umf import shared_memory as _shared_memory

if TYPE_CHECKING:
    from multiprocessing.managers import SharedMemoryManager

    __all__ = ["SharedMemoryManager"]
else:
    # The module registers reducers of its own; those of the standard module stay.
    _pickler: Any = ForkingPickler
    _reducers = _pickler._extra_reducers.copy()
    _standard.load("multiprocessing.managers", globals())
    _pickler._extra_reducers.clear()
    _pickler._extra_reducers.update(_reducers)
    shared_memory = _shared_memory
