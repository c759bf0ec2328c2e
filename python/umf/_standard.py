"""Modules of the standard library over segments of umf.

Two ways. `patch` replaces what `multiprocessing.shared_memory` calls, so that its classes, which
stay the same objects, use segments of umf: that is `umf.install()`. `load` executes the source of a
standard module a second time, in the namespace of a module of umf, and leaves the standard one as
it is.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import threading
import time
import types
from collections import OrderedDict
from typing import Any

from umf import segments

__all__ = ["load", "patch", "patch_tracker"]

_NAMES = 1 << 16
_known: OrderedDict[str, None] = OrderedDict()
"""Names of segments of umf that this process has used, the latest of them."""
_lock = threading.RLock()


def _remember(name: str) -> None:
    with _lock:
        _known[name] = None
        _known.move_to_end(name)
        if len(_known) > _NAMES:
            _known.popitem(last=False)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _is_ours(name: str) -> bool:
    return name.lstrip("/") in _known


def shm_open(path: str, flags: int, mode: int = 0o777) -> int:
    """Stands in for `_posixshmem.shm_open`. The mode is always that of the user alone."""
    fd = _open(path, flags)
    _remember(path.lstrip("/"))
    try:
        if flags & os.O_ACCMODE == os.O_RDONLY:
            reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(fd)
            fd = reader
        elif flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _open(path: str, flags: int) -> int:
    # A name is claimed before its keeper listens at it.
    for attempt in range(200):
        if attempt > 0:
            time.sleep(0.01)
        if flags & os.O_CREAT:
            try:
                return segments.create(path)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
        try:
            return segments.attach(path)
        except FileNotFoundError as error:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, error.strerror, path) from error
    raise FileExistsError(
        errno.EEXIST, "a process has the name and does not answer; use another name", path
    )


def shm_unlink(path: str) -> None:
    """Stands in for `_posixshmem.shm_unlink`."""
    segments.unlink(path)


def _stand_in(standard: types.ModuleType, **replaced: Any) -> types.ModuleType:
    """Returns a module like a standard one with some functions replaced."""
    made = types.ModuleType(standard.__name__, standard.__doc__)
    made.__dict__.update(standard.__dict__)
    made.__dict__.update(replaced)
    return made


def patch(module: types.ModuleType) -> None:
    """Lets the classes of `multiprocessing.shared_memory`, or of a copy, use segments of umf."""
    namespace: Any = module
    import _posixshmem  # type: ignore[import-not-found]

    namespace._posixshmem = _stand_in(_posixshmem, shm_open=shm_open, shm_unlink=shm_unlink)
    namespace.os = _stand_in(os, ftruncate=segments.resize)
    patch_tracker()


def patch_tracker() -> None:
    """Keeps names of umf from the resource tracker, whoever registers them.

    The tracker would unlink them at the end of the process that has attached first.
    """
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    original = tracker._send
    if getattr(original, "umf_filter", False):
        return

    def send(cmd: str, name: str, rtype: str) -> None:
        if rtype != "shared_memory" or not _is_ours(name):
            original(cmd, name, rtype)

    send.umf_filter = True  # type: ignore[attr-defined]
    # All of its functions, and copies of them in other modules, end here.
    tracker._send = send


def load(standard: str, namespace: dict[str, Any]) -> None:
    """Executes the source of a standard module of `multiprocessing` in another module's namespace.

    Its classes belong to the other module then, and are pickled by that name.
    """
    found = importlib.util.find_spec(standard)
    loader: Any = found.loader if found is not None else None
    if loader is None or not hasattr(loader, "get_code"):
        raise ImportError(f"the source of {standard} is not to be had; use umf.install() instead")
    text = namespace.get("__doc__")
    # For its relative imports, some of which are in functions.
    namespace.update(__package__=standard.rpartition(".")[0], __spec__=None)
    exec(loader.get_code(standard), namespace)
    namespace["__doc__"] = text
