"""Messages in transit when a process exits: they go to the keeper of the session.

A process notes the handles that it sends by ticket. When it exits, the keeper takes those that no
reader has opened, with copies of their bytes. A reader that cannot open a handle asks the keeper.
The process that exits waits for the keeper, never for a reader.

`os._exit`, SIGKILL and fatal signals lose the messages in transit.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import struct
import sys
import threading
from collections import OrderedDict
from multiprocessing import util

from umf import _keeper, _umf, keeper, session

__all__ = ["can_pass_on", "hand_over", "open_sent", "producer_is_alive", "sent"]

_BATCH = _keeper.PACKET // 2 // _keeper.MESSAGE

_sent: list[bytes] = []
_look_at = 1024
"""The number of messages at which those that were read are forgotten."""
_exiting = False
_finalizer: util.Finalize | None = None
_lock = threading.RLock()


def sent(handle: bytes, readers: int = 1) -> None:
    """Notes a handle with a ticket that this process sends."""
    global _sent, _look_at
    message = handle + struct.pack("<H", readers)
    with _lock:
        if not _exiting:
            _sent.append(message)
            if len(_sent) >= _look_at:
                _sent = _unread(_sent)
                _look_at = max(1024, 2 * len(_sent))
            return
    # A thread that sends while the process exits.
    _hand_over([message])


def _unread(messages: list[bytes]) -> list[bytes]:
    """Returns the messages that not all readers have opened."""
    return [message for message in messages if _umf.is_in_transit(message[: _keeper.HANDLE])]


def hand_over() -> None:
    """Hands the messages in transit over to the keeper. Called at exit."""
    global _exiting, _sent
    with _lock:
        _exiting = True
        messages, _sent = _sent, []
    _hand_over(messages)


def _hand_over(messages: list[bytes]) -> None:
    try:
        messages = _unread(messages)
        # Without another member, no process can ask for them.
        if not messages or session.is_alone():
            return
        lost = 0
        with keeper.connect() as client:
            assert client is not None
            for start in range(0, len(messages), _BATCH):
                lost += _hand_over_to(client, messages[start : start + _BATCH])
        reason = "the keeper cannot open them, or has no memory for copies of them"
    except (OSError, _umf.Error) as error:
        lost, reason = len(messages), str(error)
    if lost:
        print(
            f"umf: up to {lost} messages in transit are lost at exit: {reason}; "
            "let their readers read first",
            file=sys.stderr,
        )


def _hand_over_to(client: keeper.Client, batch: list[bytes]) -> int:
    """Hands over a part of the messages. Returns how many are lost."""
    opened, _ = client.request(b"H", b"".join(batch))
    lost = opened.count(b"O")
    wanted = bytearray()
    for message, state in zip(batch, opened, strict=True):
        if state == ord("L"):
            # The keeper has the block open. From now on no reader claims the ticket.
            wanted.append(_umf.cancel(message[: _keeper.HANDLE]))
    if wanted:
        copied, _ = client.request(b"Y", bytes(wanted))
        lost += copied.count(b"O")
    return lost


def open_sent(handle: bytes, *, readonly: bool = False) -> _umf.Mapping:
    """Opens a handle of a message. Asks the keeper if the sender has exited."""
    known = _umf.Handle(handle)
    try:
        opened = _umf.open(known, readonly=readonly)
    except _umf.StaleError:
        if not known.has_ticket:
            raise
        with keeper.connect(start=False) as client:
            if client is None:
                raise
            try:
                new, _ = client.request(b"G", handle)
            except FileNotFoundError:
                new = b""
            if not new:
                raise
            _stable.add(client.pid())
            # While the connection is open, the keeper waits for this process to open it.
            return _umf.open(new, readonly=readonly)
    if known.has_ticket and not opened.claimed:
        _tell_read(handle)
    return opened


def _tell_read(handle: bytes) -> None:
    """Tells the keeper that this reader needs no copy of a message.

    While a sender exits, its live blocks can be opened although the keeper copies them.
    """
    try:
        with keeper.connect(start=False) as client:
            if client is not None:
                client.request(b"D", handle)
    except OSError:
        # The copy stays until the end of the session.
        pass


_stable: set[int] = set()
"""Keepers that this process has memory of."""


def can_pass_on(handle: bytes) -> bool:
    """Whether the producer of received memory lives on, so that others can open a handle of it.

    That is taken for granted of the first process of the session, of the parent, and of the keeper.
    Any other process may exit while the message is in transit, and does not know of it.
    """
    (pid,) = struct.unpack_from("<I", handle, 48)
    parent = multiprocessing.parent_process()
    try:
        root = session.current().root[0]
    except session.SessionError:
        root = 0
    known = {root, parent.pid if parent is not None else None, *_stable}
    return pid in known and producer_is_alive(handle)


_PRODUCERS = 16
_producers: OrderedDict[bytes, int] = OrderedDict()
"""Process descriptors of the producers that were asked for last."""


def producer_is_alive(handle: bytes) -> bool:
    """Whether the process that made a handle has not ended. `True` if that cannot be known."""
    producer = handle[48:64]
    pid, namespace, inode = struct.unpack("<IIQ", producer)
    with _lock:
        fd = _producers.get(producer, -1)
        try:
            if fd < 0 or os.fstat(fd).st_ino != inode:
                _producers.pop(producer, None)
                if namespace and os.stat("/proc/self/ns/pid").st_ino != namespace:
                    return True
                fd = os.pidfd_open(pid)
                if not inode or os.fstat(fd).st_ino != inode:
                    # Without an inode, on kernels before 6.9, a reused id looks like the producer.
                    alive = not inode and not _has_ended(fd)
                    os.close(fd)
                    return alive
                _producers[producer] = fd
                if len(_producers) > _PRODUCERS:
                    (_, _, old_inode), old = _take_oldest()
                    if os.fstat(old).st_ino == old_inode:
                        os.close(old)
            return not _has_ended(fd)
        except ProcessLookupError:
            return False
        except OSError:
            _producers.pop(producer, None)
            return True


def _take_oldest() -> tuple[tuple[int, int, int], int]:
    producer, fd = _producers.popitem(last=False)
    return struct.unpack("<IIQ", producer), fd


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _arm(_anchor: object = None) -> None:
    """Registers `hand_over`. It runs after the feeder threads of queues have ended (-5)."""
    global _exiting, _finalizer
    _exiting = False
    if _finalizer is not None:
        _finalizer.cancel()
    _finalizer = util.Finalize(None, hand_over, exitpriority=-50)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    # The messages are the parent's.
    _sent.clear()
    _arm()


class _Anchor:
    """What `multiprocessing` calls back. It clears its exit functions at the start of a child."""


_anchor = _Anchor()
os.register_at_fork(after_in_child=_after_fork)
util.register_after_fork(_anchor, _arm)
_arm()
