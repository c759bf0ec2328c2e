"""The keeper: the process that holds what must outlive its maker, until the end of a session.

It holds named segments (`Segments`), and messages whose senders have exited (`Messages`). There is
at most one for each session and user; `umf.keeper` starts it at first need and is its client. It
has one thread of Python and never waits for a client.

The file runs by its path, without the package `umf` and without site-packages:
`python -I -S _keeper.py ID FD`. `FD` is a read-only descriptor of the session's pipe: its hang-up
is the end of all members. The process forks. The first one ends as soon as the second one listens.

Requests and replies are packets of an abstract Unix socket (`SOCK_SEQPACKET`). A request is one
byte that names the operation, and its argument. A reply is a byte 0 and the result, with
descriptors beside it, or the byte 1, an errno in two bytes and a text.

| request | argument | result |
|---|---|---|
| `C` | name | creates a segment: its descriptor |
| `A` | | descriptor of the segment at whose name the client has connected |
| `U` | | ends that segment's name |
| `I` | | what is known of that segment, as JSON |
| `K` | | gives the segment away: its descriptor, and the listener of its name |
| `H` | handles | opens messages of a sender that exits: a byte for each, see `Messages` |
| `Y` | a byte for each live one | copies those whose byte is 1 |
| `D` | handles | forgets messages that readers have opened without it |
| `G` | handle | a new handle for a message that was handed over |
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Callable
from hashlib import sha256
from typing import Any

PACKET = 1 << 16
"""Bytes of the longest request and reply."""
HANDLE = 256
MESSAGE = HANDLE + 2
"""Bytes of a handle and of the number of its readers."""
CONNECTIONS = 512
"""Connections at a time. The one that was silent for longest is closed for another."""
EARLY = 4096
"""Messages whose readers need no copies, and which their sender has not handed over yet."""
OTHER_DESCRIPTORS = 32
"""Descriptors for anything but segments and connections."""
NAME_MAX = 255
TRIM_FIRST, TRIM_LAST = 0.2, 30.0
"""Seconds without a request after which memory that is not used any more is released. As long as
readers have some open, each pause is twice the one before."""

_CREDENTIALS = struct.Struct("iII")


def keeper_address(session: str) -> str:
    """Returns the address of a session's keeper: abstract, as all here are."""
    return f"\0umf-keeper-{os.geteuid()}-{session}"


def segment_address(name: bytes) -> bytes:
    """Returns the address at which the holder of a named segment listens."""
    prefix = f"\0umf-shm-{os.geteuid()}".encode()
    # An address has 108 bytes. `-` and `#` tell a name from the hash of a longer one.
    if len(prefix) + 1 + len(name) <= 100:
        return prefix + b"-" + name
    return prefix + b"#" + sha256(name).hexdigest().encode()


def peer(connection: socket.socket) -> tuple[int, int]:
    """Returns process id and user id of the other side of a connection."""
    size = _CREDENTIALS.size
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


def listen(address: str | bytes) -> socket.socket:
    """Claims an address. It is an `OSError` with `EADDRINUSE` if another process has it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(address)
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener


class Segment:
    """A named segment: its memory, and the listener that is its name."""

    def __init__(self, name: bytes, fd: int, listener: socket.socket) -> None:
        self.name = name
        self.fd = fd
        self.listener = listener

    @classmethod
    def create(cls, name: bytes) -> Segment:
        if not name or len(name) > NAME_MAX or b"\0" in name or b"/" in name:
            raise OSError(errno.EINVAL, f"a segment cannot have the name {name!r}")
        try:
            listener = listen(segment_address(name))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(errno.EEXIST, "the name exists") from error
            raise
        try:
            label = "umf-shm-" + name.decode("utf-8", "replace")[:50]
            fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            listener.close()
            raise
        return cls(name, fd, listener)

    def close(self) -> None:
        self.listener.close()
        os.close(self.fd)


class Connection:
    def __init__(self, stream: socket.socket, segment: Segment | None) -> None:
        self.stream = stream
        self.segment = segment
        """Whose listener it came from; `None`: the keeper's own."""
        self.live: list[tuple[bytes, int, Any]] = []
        """Messages of live blocks that were opened for it and are not copied yet."""
        self.copies: dict[bytes, Any] = {}
        """The copies made for it, by the plain handle of the block."""
        self.given: list[bytes] = []
        """Handles that it was given. When it ends, it has opened them or never will."""


class Reply(Exception):
    """The end of a request: bytes and descriptors for the client."""

    def __init__(self, result: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        self.result = result
        self.fds = fds


class Server:
    """The event loop, and the segments that this process holds."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.segments: dict[bytes, Segment] = {}
        self.connections: dict[Connection, None] = {}
        self.messages = Messages()
        self.running = True
        self.pause: float | None = None
        """Seconds until the next look at memory that is not used any more."""
        self.is_session = False
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.max_connections = min(CONNECTIONS, limit // 4)
        # Of two descriptors each. The rest is for requests, with which segments can be unlinked.
        self.max_segments = max((limit - self.max_connections - OTHER_DESCRIPTORS) // 2, 1)
        # Given up for a moment to accept and close a connection if there is no other descriptor.
        self.spare: int | None = None
        self.open_spare()

    def open_spare(self) -> None:
        try:
            self.spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.spare = None

    def listen_at(self, listener: socket.socket, segment: Segment | None = None) -> None:
        self.watch(listener, lambda: self.accept(listener, segment))

    def watch(self, source: socket.socket | int, handle: Callable[[], None]) -> None:
        self.selector.register(source, selectors.EVENT_READ, handle)

    def stop(self) -> None:
        self.running = False

    def serve(self) -> None:
        while self.running:
            events = self.selector.select(self.pause)
            if not events:
                self.guard(self.trim)
            for key, _ in events:
                # An earlier event of the same round may have closed it.
                if self.selector.get_map().get(key.fd) is key and self.running:
                    self.guard(key.data)

    @staticmethod
    def guard(handle: Callable[[], None]) -> None:
        """Calls a handler. What it raises ends one request, and not what the keeper holds."""
        try:
            handle()
        except Exception:
            # There is no client to tell it to, and standard error is closed.
            pass

    def trim(self) -> None:
        """Releases memory that is not used any more."""
        pause, self.pause = self.pause, None
        if pause is not None and self.messages.trim():
            self.pause = min(pause * 2, TRIM_LAST)

    def add(self, segment: Segment) -> None:
        self.segments[segment.name] = segment
        self.listen_at(segment.listener, segment)

    def remove(self, segment: Segment) -> None:
        """Ends a name and forgets the memory. Existing mappings of it live on."""
        if self.segments.pop(segment.name, None) is not None:
            self.selector.unregister(segment.listener)
            segment.close()
        if not self.segments and not self.is_session:
            self.stop()

    def accept(self, listener: socket.socket, segment: Segment | None) -> None:
        try:
            stream, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # Else the connection would stay in the queue, and the loop would spin.
                if self.spare is not None:
                    os.close(self.spare)
                try:
                    listener.accept()[0].close()
                except OSError:
                    pass
                self.open_spare()
            return
        stream.setblocking(False)
        try:
            allowed = peer(stream)[1] == os.geteuid()
        except OSError:
            allowed = False
        if not allowed:
            stream.close()
            return
        connection = Connection(stream, segment)
        self.connections[connection] = None
        self.watch(stream, lambda: self.receive(connection))
        if len(self.connections) > self.max_connections:
            self.drop(next(iter(self.connections)))

    def drop(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.selector.unregister(connection.stream)
            connection.stream.close()
            self.messages.forget(connection)
            self.pause = TRIM_FIRST

    def receive(self, connection: Connection) -> None:
        try:
            # Without ancillary data: descriptors that a client sends are closed by the kernel.
            request = connection.stream.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if not request:
            self.drop(connection)
            return
        # It is the one that spoke last now.
        self.connections[connection] = self.connections.pop(connection)
        given_away: Segment | None = None
        fds: tuple[int, ...] = ()
        try:
            given_away = self.answer(connection, request[:1], request[1:])
            reply = b"\0"
        except Reply as done:
            reply, fds = b"\0" + done.result, done.fds
        except OSError as error:
            text = (error.strerror or str(error)).encode("utf-8", "replace")[:1000]
            reply = b"\1" + struct.pack("<H", (error.errno or errno.EIO) & 0xFFFF) + text
        except MemoryError:
            reply = b"\1" + struct.pack("<H", errno.ENOMEM) + b"no memory in the keeper"
        except Exception as error:
            text = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:1000]
            reply = b"\1" + struct.pack("<H", errno.EINVAL) + text
        if given_away is not None:
            fds = (given_away.fd, given_away.listener.fileno())
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            connection.stream.sendmsg([reply], [rights] if fds else [])
        except OSError:
            # It does not read, or has gone.
            self.drop(connection)
            return
        if given_away is not None:
            self.remove(given_away)

    def answer(self, connection: Connection, request: bytes, argument: bytes) -> Segment | None:
        """Carries out a request. Returns a segment that goes to the client with the reply."""
        if request == b"C" and self.is_session:
            self.create(argument)
        if request == b"H" and self.is_session:
            raise Reply(self.messages.hand_over(connection, argument))
        if request == b"Y" and self.is_session:
            raise Reply(self.messages.commit(connection, argument))
        if request == b"D" and self.is_session:
            raise Reply(self.messages.opened(argument))
        if request == b"G" and self.is_session:
            raise Reply(self.messages.give(connection, argument))
        segment = connection.segment
        if segment is None:
            raise OSError(errno.EINVAL, f"the keeper knows no request {request!r}")
        if self.segments.get(segment.name) is not segment:
            raise OSError(errno.ENOENT, "the segment was unlinked")
        if request == b"A":
            raise Reply(fds=(segment.fd,))
        if request == b"U":
            self.remove(segment)
            raise Reply()
        if request == b"K":
            return segment
        if request == b"I":
            known = {
                "name": segment.name.decode("utf-8", "surrogateescape"),
                "size": os.fstat(segment.fd).st_size,
                "pid": os.getpid(),
                "kept": not self.is_session,
            }
            raise Reply(json.dumps(known).encode())
        raise OSError(errno.EINVAL, f"the keeper knows no request {request!r}")

    def create(self, name: bytes) -> None:
        if len(self.segments) >= self.max_segments:
            raise OSError(
                errno.EMFILE,
                f"the session has {len(self.segments)} segments, as many as its keeper has "
                "descriptors for; unlink some, or raise the hard limit of descriptors (ulimit -Hn)",
            )
        segment = Segment.create(name)
        self.add(segment)
        raise Reply(fds=(segment.fd,))


class Kept:
    """A copy of a message, and how many readers have not asked for it yet."""

    def __init__(self, block: Any, readers: int) -> None:
        self.block = block
        self.readers = readers


class Messages:
    """Messages whose senders have exited: copies in a pool of the keeper, by their handles.

    A sender that exits asks in two steps, since a handle also opens as a plain one as long as its
    block is live. `H` opens: the reply has `L` for a block that is live, `C` for one that was
    freed and whose ticket the keeper has claimed (its bytes are copied), `G` for one that the
    readers have claimed, `O` if it cannot be copied: there is no memory, for example. For each `L`
    the sender cancels the ticket, which tells whether it was unclaimed, and `Y` copies those that
    were: the reply has `C` or `O` for each.
    """

    def __init__(self) -> None:
        self.kept: dict[bytes, Kept] = {}
        self.early: dict[bytes, int] = {}
        """Readers that have told that they need no copy of a message, before it was handed over."""
        self.pool: Any = None

    def extension(self) -> Any:
        from umf import _umf

        if self.pool is None:
            self.pool = _umf.Pool.shared()
        return _umf

    def hand_over(self, connection: Connection, argument: bytes) -> bytes:
        if not argument or len(argument) % MESSAGE:
            raise OSError(errno.EINVAL, f"{len(argument)} bytes are no handles of messages")
        umf = self.extension()
        self.close_live(connection)
        result = bytearray()
        # Producers that do not answer, which takes a while each time.
        silent = set()
        for start in range(0, len(argument), MESSAGE):
            handle = argument[start : start + HANDLE]
            (readers,) = struct.unpack_from("<H", argument, start + HANDLE)
            producer = handle[48:56]
            if producer in silent:
                result += b"O"
                continue
            try:
                mapping = umf.open(umf.Handle(handle).plain(), readonly=True)
            except umf.StaleError:
                result += self.claim(umf, connection, handle, readers)
            except umf.Error:
                silent.add(producer)
                result += b"O"
            else:
                connection.live.append((handle, readers, mapping))
                result += b"L"
        return bytes(result)

    def claim(self, umf: Any, connection: Connection, handle: bytes, readers: int) -> bytes:
        """Claims a ticket of a freed block for all readers that have not."""
        unclaimed = 0
        block = None
        try:
            while unclaimed < readers:
                mapping = umf.open(handle, readonly=True)
                unclaimed += 1
                try:
                    block = block or self.copy(connection, handle, mapping)
                finally:
                    mapping.close()
        except umf.StaleError:
            pass
        except (umf.Error, MemoryError):
            return b"O"
        if block is None:
            return b"G"
        self.kept[handle] = Kept(block, unclaimed)
        return b"C"

    def copy(self, connection: Connection, handle: bytes, mapping: Any) -> Any:
        key = bytes(self.extension().Handle(handle).plain())
        block = connection.copies.get(key)
        if block is None:
            size = len(mapping)
            self.extension().check_memory(size)
            block = self.pool.allocate(size, align=4096 if size >= 4096 else 64)
            memoryview(block)[:] = memoryview(mapping)
            connection.copies[key] = block
        return block

    def commit(self, connection: Connection, argument: bytes) -> bytes:
        live, connection.live = connection.live, []
        if len(argument) != len(live):
            raise OSError(errno.EINVAL, f"{len(argument)} answers for {len(live)} live messages")
        umf = self.extension()
        result = bytearray()
        for wanted, (handle, readers, mapping) in zip(argument, live, strict=True):
            left = readers - self.early.pop(handle, 0)
            if wanted == 1 and left <= 0:
                result += b"C"
            elif wanted == 1:
                try:
                    self.kept[handle] = Kept(self.copy(connection, handle, mapping), left)
                    result += b"C"
                except (umf.Error, MemoryError):
                    result += b"O"
            mapping.close()
        return bytes(result)

    def give(self, connection: Connection, handle: bytes) -> bytes:
        kept = self.kept.get(handle)
        if kept is None:
            raise OSError(errno.ENOENT, "no such message was handed over")
        sent = bytes(kept.block.send_handle())
        connection.given.append(sent)
        self.count(handle, kept)
        return sent

    def count(self, handle: bytes, kept: Kept) -> None:
        """Notes that one reader less will ask for a message."""
        kept.readers -= 1
        if kept.readers <= 0:
            del self.kept[handle]

    def opened(self, handle: bytes) -> bytes:
        """A reader has opened a message in the memory of its sender, and needs no copy."""
        kept = self.kept.get(handle)
        if kept is not None:
            self.count(handle, kept)
        elif len(handle) == HANDLE:
            # Perhaps the sender has cancelled the ticket, and `Y` follows.
            self.early[handle] = self.early.get(handle, 0) + 1
            if len(self.early) > EARLY:
                del self.early[next(iter(self.early))]
        return b""

    def forget(self, connection: Connection) -> None:
        """Releases what a connection has that ends."""
        self.close_live(connection)
        if connection.given:
            umf = self.extension()
            for sent in connection.given:
                # Does nothing if the reader has opened it; releases it if the reader was killed.
                umf.cancel(sent)
        connection.copies, connection.given = {}, []

    def close_live(self, connection: Connection) -> None:
        """Closes messages of live blocks that the client has not answered for."""
        live, connection.live = connection.live, []
        for _, _, mapping in live:
            mapping.close()

    def trim(self) -> bool:
        """Returns memory to the system that is not used any more. Returns whether there is more."""
        if self.pool is None:
            return False
        umf = self.extension()
        # Memory of senders, which have ended.
        umf.close_idle()
        held = umf.drain(0.0)
        self.pool.trim()
        return bool(held)


def detach() -> None:
    """Makes this process independent of the terminal and directory of the one that started it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir("/")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(session: str, pipe: int) -> int:
    """Runs the keeper of a session. Returns at once if there is one already."""
    # The extension, without the rest of the package, which may need numpy.
    package = types.ModuleType("umf")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules["umf"] = package
    detach()
    try:
        listener = listen(keeper_address(session))
    except OSError as error:
        return 0 if error.errno == errno.EADDRINUSE else 1
    # Not a child of the member that happened to need it first, which may wait for all of its own.
    if os.fork() != 0:
        os._exit(0)
    fcntl.fcntl(pipe, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    # A second time: the kernel notes the process that clients see.
    listener.listen(4096)
    server = Server()
    server.is_session = True
    # Nothing is ever written to the pipe, unless by a program that has the wrong descriptor.
    server.watch(pipe, lambda: None if discard(pipe) or discard_later(pipe) else server.stop())
    server.listen_at(listener)
    server.serve()
    return 0


def discard(pipe: int) -> bool:
    """Reads what is in the pipe. Returns `False` at its end: no member is left."""
    try:
        return bool(os.read(pipe, PACKET))
    except BlockingIOError:
        return True


def discard_later(pipe: int) -> bool:
    """As `discard`, a moment later: `session.is_alone` has no writer of the pipe for an instant."""
    time.sleep(0.2)
    return discard(pipe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
