"""The memory that a process can still populate: of the machine, and of its control groups.

Pages of a memfd beyond it end in the OOM killer, not in an error. The checks are made before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from umf._umf import OutOfMemoryError

__all__ = ["SharedMemoryLimitError", "available", "check"]


class SharedMemoryLimitError(OSError, OutOfMemoryError):
    """More memory than is available. It is a `MemoryError` and an `OSError` with `ENOMEM`."""


_UNLIMITED = 1 << 60
"""v1 has a number for no limit: the largest multiple of a page."""


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _number(path: str) -> int | None:
    """Returns the number in a file; `None` for `max`, and if there is no such file."""
    text = (_read(path) or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _field(text: str | None, name: str) -> int | None:
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _unescape(path: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def _groups(root: str) -> Iterator[tuple[str, bool]]:
    """Yields the memory control groups of this process, innermost first, and whether each is v2."""
    paths: dict[bool, str] = {}
    for line in (_read(f"{root}/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[True] = path
        elif "memory" in controllers.split(","):
            paths[False] = path
    for line in (_read(f"{root}/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        v2 = kinds[0] == "cgroup2"
        if not v2 and (kinds[0] != "cgroup" or "memory" not in kinds[2].split(",")):
            continue
        if v2 not in paths:
            continue
        path = paths[v2]
        # The mount may show a part of the tree only, as in a container.
        top, mount = _unescape(fields[3]), root + _unescape(fields[4])
        inside = os.path.relpath(path, top) if path.startswith(top) else "."
        directory = os.path.normpath(os.path.join(mount, inside))
        while True:
            yield directory, v2
            if directory == mount or not directory.startswith(mount):
                break
            directory = os.path.dirname(directory)


def _left(directory: str, v2: bool) -> int | None:
    """Returns the bytes that a group has left. Pages of files that it can drop count as free."""
    limit = _number(f"{directory}/{'memory.max' if v2 else 'memory.limit_in_bytes'}")
    if limit is None or limit >= _UNLIMITED:
        return None
    used = _number(f"{directory}/{'memory.current' if v2 else 'memory.usage_in_bytes'}")
    if used is None:
        return None
    stat = _read(f"{directory}/memory.stat")
    dropped = _field(stat, "inactive_file" if v2 else "total_inactive_file") or 0
    return max(limit - max(used - dropped, 0), 0)


def available(root: str = "") -> tuple[int, str] | None:
    """Returns the bytes that this process can still populate and the file that says so.

    `root` is where the files are looked for, for tests. Returns `None` if no file says anything.
    """
    found = []
    meminfo = _read(f"{root}/proc/meminfo")
    machine = _field(meminfo, "MemAvailable:")
    if machine is not None:
        found.append(((machine + (_field(meminfo, "SwapFree:") or 0)) * 1024, "/proc/meminfo"))
    for directory, v2 in _groups(root):
        left = _left(directory, v2)
        if left is not None:
            found.append((left, directory))
    return min(found) if found else None


def check(size: int, what: str) -> None:
    """Raises `SharedMemoryLimitError` if there is no memory for `size` bytes."""
    found = available()
    if found is not None and size > found[0]:
        raise SharedMemoryLimitError(
            errno.ENOMEM,
            f"cannot make {what} of {size} bytes: {found[1]} has {found[0]} bytes available; "
            "make it smaller, or free memory first",
        )
