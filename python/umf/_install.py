"""`umf.install()`: the standard library's shared memory in memory of umf, for a whole tree."""

from __future__ import annotations

import os
import site
import sys
import types
import warnings
from typing import Any

__all__ = ["VARIABLE", "has_hook", "install", "patch"]

VARIABLE = "UMFPY_INSTALL"
"""Set: interpreters install umf at their start. A value with a slash names a file: each process
that uses `multiprocessing.shared_memory` appends its id and its arguments. Interpreters that were
started with `-E` (but not `-I`) do not look at it."""


def patch(module: types.ModuleType) -> None:
    """Lets `multiprocessing.shared_memory`, as this module, use segments of umf."""
    from umf import _standard

    namespace: Any = module
    if getattr(module, "_umf_installed", False):
        return
    _standard.patch(module)
    namespace._umf_installed = True
    _report()
    os.register_at_fork(after_in_child=_report)


def _report() -> None:
    path = os.environ.get(VARIABLE, "")
    if "/" not in path:
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(fd, f"{os.getpid()} {' '.join(sys.orig_argv)[:200]!r}\n".encode())
    finally:
        os.close(fd)


def has_hook() -> bool:
    """Whether interpreters of this environment look at the variable: `umf.pth` is installed."""
    directories = [*site.getsitepackages(), site.getusersitepackages()]
    return any(os.path.exists(os.path.join(directory, "umf.pth")) for directory in directories)


def install() -> None:
    """Lets `multiprocessing.shared_memory` use segments of umf, here and in all processes that this
    one starts.

    The classes of the standard module stay the same objects. Segments that exist already stay in
    `/dev/shm`. Does nothing the second time.
    """
    from multiprocessing import shared_memory

    os.environ.setdefault(VARIABLE, "1")
    patch(shared_memory)
    if not has_hook():
        warnings.warn(
            "umf.pth is not in site-packages: only forked children will use shared memory of umf; "
            "install the wheel of umf-rs",
            RuntimeWarning,
            stacklevel=2,
        )
