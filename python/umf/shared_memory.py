"""`multiprocessing.shared_memory` in memory that cannot leak.

`SharedMemory`, `ShareableList` and `SharedMemoryManager` are as in the standard library. The
segments are held by the session's keeper: nothing is in `/dev/shm`, the end of one process ends no
segment, and the end of all leaves none. See `docs/python-segments.md`.

If `umf.install()` was called before, they are the classes of `multiprocessing.shared_memory`.
Otherwise they are classes of this module, and the standard ones stay as they are. Segments have the
same names in both.
"""

from __future__ import annotations

from multiprocessing import shared_memory as _standard_module
from typing import TYPE_CHECKING, Any

from umf import _standard

__all__ = ["ShareableList", "SharedMemory", "SharedMemoryManager"]

if TYPE_CHECKING:
    from multiprocessing.managers import SharedMemoryManager
    from multiprocessing.shared_memory import ShareableList, SharedMemory
elif getattr(_standard_module, "_umf_installed", False):
    from multiprocessing.shared_memory import ShareableList, SharedMemory
else:
    import sys as _sys

    _names = __all__
    _standard.load("multiprocessing.shared_memory", globals())
    __all__ = _names
    _standard.patch(_sys.modules[__name__])


def __getattr__(name: str) -> Any:
    # Managers need sockets, queues and threads, which most programs do not.
    if name != "SharedMemoryManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if getattr(_standard_module, "_umf_installed", False) and SharedMemory.__module__ != __name__:
        from multiprocessing.managers import SharedMemoryManager as found
    else:
        from umf._managers import SharedMemoryManager as found
    globals()[name] = found
    return found
