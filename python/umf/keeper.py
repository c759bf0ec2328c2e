"""The client of the keeper (`umf._keeper`), and of the holders of named segments."""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn

from umf import _install, _keeper, session

__all__ = ["Client", "KeeperError", "connect", "connect_to_segment"]

TIMEOUT = 60
"""Seconds without a reply after which the keeper is taken for stopped."""


class KeeperError(session.SessionError):
    """The keeper of the session, or the holder of a segment, cannot be reached."""


class Client:
    """A connection to a keeper."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream

    def request(self, request: bytes, argument: bytes = b"") -> tuple[bytes, list[int]]:
        """Sends a request. Returns the result and its descriptors, which the caller closes.

        What the keeper refuses is an `OSError` with its number.
        """
        fds = array.array("i")
        try:
            self.stream.send(request + argument)
            reply, ancillary, flags, _ = self.stream.recvmsg(
                _keeper.PACKET, socket.CMSG_SPACE(4 * fds.itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError as error:
            raise KeeperError(
                errno.ETIMEDOUT,
                f"the keeper, process {self.pid()}, does not answer; if it is stopped, continue "
                "or end it (kill -CONT, kill -KILL)",
            ) from error
        except OSError as error:
            raise KeeperError(
                error.errno, f"the keeper has ended or closed the connection: {error.strerror}"
            ) from error
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if flags & socket.MSG_CTRUNC:
            close_all(fds)
            raise KeeperError(
                errno.EMFILE, "there is no descriptor left for the memory: raise ulimit -n"
            )
        if reply[:1] == b"\0":
            return reply[1:], list(fds)
        close_all(fds)
        if not reply:
            raise KeeperError(errno.ECONNRESET, "the keeper has ended or closed the connection")
        if len(reply) < 3:
            raise KeeperError(errno.EPROTO, f"process {self.pid()} does not answer as a keeper")
        (number,) = struct.unpack_from("<H", reply, 1)
        raise OSError(number, reply[3:].decode("utf-8", "replace"))

    def request_fd(self, request: bytes, argument: bytes = b"") -> int:
        """Sends a request whose result is one descriptor."""
        _, fds = self.request(request, argument)
        if len(fds) != 1:
            close_all(fds)
            raise KeeperError(errno.EPROTO, f"the keeper sent {len(fds)} descriptors")
        return fds[0]

    def pid(self) -> int:
        """Returns the process that listens at the other side, or did so first."""
        return _keeper.peer(self.stream)[0]


def close_all(fds: list[int] | array.array[int]) -> None:
    for fd in fds:
        os.close(fd)


def _connect(address: str | bytes, what: str) -> Client:
    """Connects to an address, at which a process of the same user has to listen."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # Not `settimeout`: it makes the socket non-blocking, and then a long queue is an error.
        limit = struct.pack("ll", TIMEOUT, 0)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        stream.connect(address)
        pid, uid = _keeper.peer(stream)
        if uid != os.geteuid():
            raise PermissionError(
                errno.EACCES,
                f"cannot use {what}: process {pid} of user {uid} has taken its address; "
                "end that process, or use another name",
            )
    except BaseException:
        stream.close()
        raise
    return Client(stream)


def _start(member: session.Session) -> None:
    """Starts the keeper, and returns when it listens or another one does."""
    reader = member.open_reader()
    try:
        # PYTHONHOME says where the standard library is, if there is one.
        isolated = ["-s", "-P"] if os.environ.get("PYTHONHOME") else ["-I"]
        executable = os.fsdecode(spawn.get_executable() or sys.executable)
        command = [executable, *isolated, "-S", "-B", _keeper.__file__, member.id, str(reader)]
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in (session.VARIABLE, _install.VARIABLE)
            # Limits of pools are not for the copies of other processes' messages.
            and not name.startswith("UMF_POOL_")
        }
        environment["UMF_IPC_MAX_IN_TRANSIT"] = str((1 << 64) - 1)
        started = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(reader,),
            start_new_session=True,
        )
    except OSError as error:
        raise KeeperError(
            error.errno, f"cannot start the keeper of the session: {error.strerror}"
        ) from error
    finally:
        os.close(reader)
    code = started.wait()
    if code != 0:
        raise KeeperError(
            errno.ECHILD,
            f"cannot start the keeper of the session: {' '.join(command)} ended with {code}",
        )


@contextmanager
def connect(*, start: bool = True) -> Iterator[Client | None]:
    """Connects to the keeper of this session, and starts it if there is none.

    Yields `None` if there is none and `start` is false.
    """
    member = session.current()
    address = _keeper.keeper_address(member.id)
    client: Client | None = None
    for attempt in range(20):
        try:
            client = _connect(address, "the keeper")
            break
        except ConnectionRefusedError:
            if not start:
                break
            if attempt == 0:
                _start(member)
            else:
                # Another one has the address and does not listen yet, or has just ended.
                time.sleep(0.01 * attempt)
                if attempt % 5 == 0:
                    _start(member)
    if client is None and start:
        raise KeeperError(errno.ECONNREFUSED, "the keeper of the session does not start")
    try:
        yield client
    finally:
        if client is not None:
            client.stream.close()


@contextmanager
def connect_to_segment(name: bytes) -> Iterator[Client]:
    """Connects to the holder of a named segment. It is `FileNotFoundError` if there is none."""
    shown = os.fsdecode(name)
    try:
        client = _connect(_keeper.segment_address(name), f"segment {shown!r}")
    except ConnectionRefusedError as error:
        raise FileNotFoundError(
            errno.ENOENT, "there is no segment of this name; create it first", shown
        ) from error
    try:
        yield client
    finally:
        client.stream.close()
