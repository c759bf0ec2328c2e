"""Named segments by their descriptors: what `shm_open` and `shm_unlink` are for POSIX ones."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import Any

from umf import _keeper, _umf, keeper

__all__ = ["attach", "create", "info", "names", "resize", "unlink"]


def encode(name: str) -> bytes:
    """Returns the bytes of a name, as `shm_open` takes it: a slash at its start does not count."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a segment is a string, not {type(name).__name__}")
    if "\0" in name:
        raise ValueError("embedded null character")
    encoded = os.fsencode(name).lstrip(b"/")
    if not encoded or b"/" in encoded:
        raise OSError(errno.EINVAL, "the name of a segment has no slash and is not empty", name)
    if len(encoded) > _keeper.NAME_MAX:
        raise OSError(
            errno.ENAMETOOLONG, f"the name of a segment has {_keeper.NAME_MAX} bytes at most", name
        )
    return encoded


def create(name: str) -> int:
    """Makes an empty segment. Returns its descriptor.

    It is `FileExistsError` if a segment of this user has the name, in any session of the machine,
    and `PermissionError` if a process of another user has taken it.
    """
    encoded = encode(name)
    with keeper.connect() as client:
        assert client is not None
        try:
            return client.request_fd(b"C", encoded)
        except FileExistsError:
            pass
    try:
        # Tells a segment from what another user has put in its place.
        with keeper.connect_to_segment(encoded):
            pass
    except FileNotFoundError:
        pass
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def attach(name: str) -> int:
    """Returns a descriptor of the segment, of whatever session of this user."""
    with keeper.connect_to_segment(encode(name)) as client:
        try:
            return client.request_fd(b"A")
        except keeper.KeeperError as error:
            raise _gone(error, name) from error


def unlink(name: str) -> None:
    """Ends the name. The memory ends with the last mapping of it."""
    with keeper.connect_to_segment(encode(name)) as client:
        try:
            client.request(b"U")
        except keeper.KeeperError as error:
            raise _gone(error, name) from error


def info(name: str) -> dict[str, Any]:
    """Returns name, size, holder (`pid`), and whether `umf keep` holds it (`kept`)."""
    with keeper.connect_to_segment(encode(name)) as client:
        try:
            known = json.loads(client.request(b"I")[0])
        except keeper.KeeperError as error:
            raise _gone(error, name) from error
    if not isinstance(known, dict):
        raise keeper.KeeperError(errno.EPROTO, f"the holder of segment {name!r} misbehaves")
    return known


def _gone(error: keeper.KeeperError, name: str) -> OSError:
    """Returns the error for a segment whose name ended during a request."""
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return FileNotFoundError(errno.ENOENT, "the segment was unlinked", name)
    return error


class SharedMemoryLimitError(OSError, _umf.OutOfMemoryError):
    """More memory than is available. It is a `MemoryError` and an `OSError` with `ENOMEM`."""


def resize(fd: int, size: int) -> None:
    """Sets the size of a segment, before any page of it exists.

    It is a `MemoryError` and `OSError` if there is no memory for it. Afterwards it cannot shrink:
    a process that uses a page behind the end would die.
    """
    try:
        _umf.check_memory(size)
    except _umf.OutOfMemoryError as error:
        raise SharedMemoryLimitError(
            errno.ENOMEM, f"cannot make a segment of {size} bytes: {error}"
        ) from error
    os.ftruncate(fd, size)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError as error:
        # A descriptor that is no segment of ours.
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise


def names() -> list[str]:
    """Returns the names of the segments of this user, in all sessions of the network namespace."""
    prefix = f"@umf-shm-{os.geteuid()}"
    found = set()
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(" ", 7)
            address = line.rstrip("\n").partition(prefix)[2]
            # 00010000: it listens. Connections of a listener have its address too.
            if address and fields[3] == "00010000":
                found.add(address)
    result = []
    for address in sorted(found):
        if address.startswith("-"):
            result.append(address[1:])
        elif address.startswith("#"):
            result.append(_long_name(address))
    return [name for name in result if name]


def _long_name(suffix: str) -> str:
    """Asks the holder of a segment for a name that is too long for an address."""
    raw = f"\0umf-shm-{os.geteuid()}{suffix}".encode()
    try:
        client = keeper._connect(raw, "a segment")
    except OSError:
        return ""
    try:
        return str(json.loads(client.request(b"I")[0])["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    finally:
        client.stream.close()
