"""The session: the processes of one tree, from the first that imports this module to its last.

Each member has one descriptor of the same pipe, open for reading and writing. The keeper
(`umf._keeper`) has a read-only one, and sees the end of the session when the last member has
ended, however it ended. A forked child inherits the descriptor. A process that was started
otherwise (spawn, forkserver, subprocess) finds a member in the variable `UMFPY_SESSION` and opens
that member's descriptor in `/proc`.

The variable is `1.ID.INODE.PID.FD`, with `.PID.FD` of the first process of the session behind it
for the case that the nearest member has ended. Text that is not of this form, or that names no such
pipe, makes the process the first of a session of its own.
"""

from __future__ import annotations

import errno
import os
import re
import select
import threading
from typing import NamedTuple

__all__ = ["Session", "SessionError", "current", "is_alone", "leave"]

VARIABLE = "UMFPY_SESSION"
_FORM = re.compile(
    r"1\.([0-9a-f]{32})\.([0-9]{1,20})\.([0-9]{1,10})\.([0-9]{1,10})"
    r"(?:\.([0-9]{1,10})\.([0-9]{1,10}))?",
    re.ASCII,
)


class SessionError(OSError):
    """The session or its keeper cannot be reached."""


class Session(NamedTuple):
    """This process as a member of a session."""

    id: str
    inode: int
    """Of the pipe."""
    fd: int
    root: tuple[int, int]
    """Process id and descriptor of the first member."""
    uid: int

    def is_intact(self) -> bool:
        """Whether the descriptor still is that of the pipe: programs close and replace any."""
        try:
            return os.fstat(self.fd).st_ino == self.inode and self.uid == os.geteuid()
        except OSError:
            return False

    def text(self) -> str:
        """Returns the value of the variable for the processes that this one starts."""
        return f"1.{self.id}.{self.inode}.{os.getpid()}.{self.fd}.{self.root[0]}.{self.root[1]}"

    def open_reader(self) -> int:
        """Opens a descriptor of the pipe that does not keep the session alive."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


_current: Session | None = None
_lock = threading.RLock()


def _open_of(pid: int, fd: int, inode: int) -> int | None:
    """Opens the pipe of another member; `None` if its descriptor is not that pipe any more."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        # Looked at before the open: opening what else it may be can have effects.
        if os.readlink(path) != f"pipe:[{inode}]":
            return None
        opened = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    if os.fstat(opened).st_ino == inode:
        return opened
    os.close(opened)
    return None


def _join(text: str) -> Session | None:
    """Returns this process as a member of the session that the variable names."""
    matched = _FORM.fullmatch(text)
    if matched is None:
        return None
    numbers = [int(group) for group in matched.groups()[1:] if group is not None]
    inode, members = numbers[0], list(zip(numbers[1::2], numbers[2::2], strict=True))
    for pid, fd in members:
        opened = _open_of(pid, fd, inode)
        if opened is not None:
            return Session(matched.group(1), inode, opened, members[-1], os.geteuid())
    return None


def _start() -> Session:
    """Returns this process as the first member of a new session."""
    reader, writer = os.pipe()
    try:
        fd = os.open(f"/proc/self/fd/{writer}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(writer)
    id_ = os.urandom(16).hex()
    return Session(id_, os.fstat(fd).st_ino, fd, (os.getpid(), fd), os.geteuid())


def current() -> Session:
    """Returns this process as a member of its session. Joins or starts one if it has none.

    Raises `SessionError` if there is no descriptor left for it, or no `/proc`.
    """
    global _current
    known = _current
    if known is not None and known.is_intact():
        return known
    with _lock:
        known = _current
        if known is not None and known.is_intact():
            return known
        try:
            joined = None
            if known is None:
                joined = _join(os.environ.get(VARIABLE, ""))
            elif known.uid == os.geteuid():
                # The program has closed the descriptor, as daemons do.
                opened = _open_of(*known.root, known.inode)
                if opened is not None:
                    joined = Session(known.id, known.inode, opened, known.root, known.uid)
            _current = joined or _start()
        except OSError as error:
            raise SessionError(
                error.errno,
                f"cannot join or start a umf session: {error.strerror}; it needs one descriptor "
                "(ulimit -n) and /proc",
            ) from error
        os.environ[VARIABLE] = _current.text()
        return _current


def is_alone() -> bool:
    """Whether no other process is in the session, so that none can ask the keeper any more."""
    known = current()
    reader = known.open_reader()
    try:
        # For the moment of the question, the descriptor does not keep the pipe open for writing.
        os.dup2(reader, known.fd, inheritable=False)
        try:
            poll = select.poll()
            poll.register(reader, 0)
            return any(event & select.POLLHUP for _, event in poll.poll(0))
        finally:
            writer = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.dup2(writer, known.fd, inheritable=False)
            os.close(writer)
    finally:
        os.close(reader)


def leave() -> None:
    """Ends the membership of this process, which does not keep the session alive any more."""
    global _current
    with _lock:
        known, _current = _current, None
        os.environ.pop(VARIABLE, None)
        if known is not None and known.is_intact():
            os.close(known.fd)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    known = _current
    if known is not None and os.environ.get(VARIABLE) is not None:
        # Processes that the child starts find the child.
        os.environ[VARIABLE] = known.text()


os.register_at_fork(after_in_child=_after_fork)
try:
    current()
except SessionError:
    # Importing works with a full table of descriptors. The first use tries again.
    pass
