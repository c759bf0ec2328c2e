"""Links and communicators between real processes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import umf
import umf.arrays
from umf import comm, link

WAIT = 60.0


class Process:
    """A process that calls a function of this file. The pipe of its output says how far it is."""

    def __init__(self, *arguments: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self.child.pid
        # Ends a test that would wait for ever.
        self.watchdog = threading.Timer(WAIT, self.child.kill)
        self.watchdog.start()

    def line(self) -> str:
        """Waits for a line of its output."""
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def tell(self, text: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(text + "\n")
        self.child.stdin.flush()

    def end(self) -> str:
        """Waits for its end and returns the rest of its output."""
        assert self.child.stdout is not None
        output = self.child.stdout.read()
        assert self.child.wait(WAIT) == 0, output
        return output.strip()

    def kill(self) -> None:
        self.watchdog.cancel()
        self.child.kill()
        self.child.communicate()


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[Process]:
    made = Process(*arguments)
    try:
        yield made
    finally:
        made.kill()


@contextlib.contextmanager
def linked(name: str, *arguments: str) -> Iterator[tuple[Process, link.Link]]:
    """Starts a process that calls a function with a link."""
    with link.bind() as endpoint, process("connected", endpoint.address, name, *arguments) as peer:
        with endpoint.accept(timeout=WAIT) as made:
            made.timeout = WAIT
            assert made.peer_pid == peer.pid
            yield peer, made


def connected(address: str, name: str, *arguments: str) -> None:
    with link.connect(address, timeout=WAIT) as made:
        made.timeout = WAIT
        globals()[name](made, *arguments)


def say(text: str) -> None:
    print(text, flush=True)


def sum_of(data: Any) -> int:
    return int(numpy.frombuffer(data, dtype=numpy.uint8).sum(dtype=numpy.int64))


# Messages.


def echo(peer: link.Link) -> None:
    while data := peer.recv():
        peer.send(data, tag=peer.latest_tag or 0)
    peer.send(b"", tag=1)


def test_messages_of_all_lengths_come_back() -> None:
    with linked("echo") as (peer, made):
        for length in (1, 7, 240, 4095, 4096, 4097, 1 << 16, 3 << 20):
            data = os.urandom(length)
            for kind in (bytes, bytearray, memoryview):
                made.send(kind(data), tag=length)
                assert made.recv(tag=length) == data
                assert made.latest_tag == length
        array = numpy.arange(100_000, dtype=numpy.float64)
        made.send(array, tag=3)
        into = numpy.zeros_like(array)
        assert made.recv(into, tag=3) == array.nbytes
        assert (into == array).all()
        made.send(b"")
        assert made.recv(tag=1) == b""
        assert peer.end() == ""


def test_pool_memory_is_sent_and_received() -> None:
    with linked("echo") as (peer, made):
        for length in (8, 1 << 20):
            sent = umf.arrays.array(numpy.arange(length))
            received = umf.arrays.zeros(length, int)
            made.send(sent[1:])
            assert made.recv(received[1:]) == 8 * (length - 1)
            assert (received[1:] == sent[1:]).all() and received[0] == 0
            block = umf.Pool.shared().allocate(8 * length)
            block.from_host(sent)
            made.send(block)
            assert made.recv() == sent.tobytes()
        made.send(b"")
        peer.end()


def test_message_that_is_too_long_stays() -> None:
    with linked("echo") as (peer, made):
        for length in (100, 1 << 20):
            made.send(bytes(length))
            into = bytearray(length // 2)
            with pytest.raises(umf.TruncatedError, match=str(length)):
                made.recv(into)
            assert made.probe() == (0, length, False)
            assert made.recv() == bytes(length)
            assert made.probe() is None


def test_wrong_memory_is_refused() -> None:
    with linked("echo") as (_, made):
        array = numpy.zeros((4, 4))
        with pytest.raises(ValueError, match="contiguous"):
            made.send(array[:, ::2])
        with pytest.raises(BufferError, match="read-only"):
            made.recv(b"read-only")
        for wrong in ("text", 7, None):
            with pytest.raises(TypeError):
                made.send(wrong)
        for timeout in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                made.recv(timeout=timeout)
        with pytest.raises(OverflowError):
            made.send(b"", tag=-1)


def sends_late(peer: link.Link) -> None:
    say("ready")
    sys.stdin.readline()
    for number in range(10):
        peer.send(bytes([number]) * 10_000, tag=number)
    sys.stdin.readline()
    assert [peer.recv(tag=number) for number in range(3)] == [b"%d" % number for number in range(3)]


def test_timeouts_lose_no_message() -> None:
    with linked("sends_late") as (peer, made):
        assert peer.line() == "ready"
        for call in (
            made.recv,
            made.recv_view,
            lambda timeout: made.recv(bytearray(9), timeout=timeout),
        ):
            with pytest.raises(umf.TimeoutError) as caught:
                call(timeout=0.01)
            assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, umf.Error)
        made.timeout = 0.01
        with pytest.raises(umf.TimeoutError):
            made.recv()
        # A message that was not received in time is withdrawn.
        with pytest.raises(umf.TimeoutError):
            made.send(bytes(1 << 20), tag=1)
        made.timeout = None
        assert made.timeout is None
        peer.tell("send")
        for number in range(10):
            assert made.recv(tag=number, timeout=WAIT) == bytes([number]) * 10_000
        for number in range(3):
            made.send(b"%d" % number, tag=number)
        peer.tell("receive")
        peer.end()


# The end of a peer.


def leaves(peer: link.Link, how: str) -> None:
    for number in range(3):
        peer.send(b"last %d" % number)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "os._exit":
        os._exit(0)


@pytest.mark.parametrize("how", ["killed", "os._exit", "closed"])
def test_end_of_the_peer_is_an_error_after_its_messages(how: str) -> None:
    with linked("leaves", how) as (peer, made):
        assert [made.recv() for _ in range(3)] == [b"last %d" % number for number in range(3)]
        kind = umf.PeerClosedError if how == "closed" else umf.PeerGoneError
        calls: list[Callable[[], Any]] = [
            made.recv,
            made.recv_view,
            lambda: made.send(bytes(1 << 20)),
            lambda: made.hand_over(umf.Pool.shared().allocate(64)),
        ]
        for call in calls:
            with pytest.raises(umf.PeerGoneError) as caught:
                call()
            assert type(caught.value) is kind
            assert isinstance(caught.value, ConnectionError) and isinstance(
                caught.value, umf.LinkError
            )
        peer.child.wait(WAIT)
    assert umf.in_transit() == 0


def test_closed_link_says_so() -> None:
    with linked("echo") as (_, made):
        made.close()
        made.close()
        assert made.closed
        for call in (made.recv, made.probe, lambda: made.send(b""), made.progress):
            with pytest.raises(umf.ClosedError):
                call()


@pytest.mark.parametrize("address", ["", "text", "umfl2.AAAA", "x" * 1000])
def test_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(umf.LinkError):
        link.connect(address)


def test_endpoint_that_is_gone_is_an_error() -> None:
    with link.bind() as endpoint:
        address = endpoint.address
    with pytest.raises(umf.LinkError, match="no process listens"):
        link.connect(address, timeout=WAIT)
    with pytest.raises(umf.ClosedError):
        endpoint.accept()
    name = uuid.uuid4().hex
    with link.bind(name):
        with pytest.raises(umf.LinkError, match="another name"):
            link.bind(name)
    with link.bind() as endpoint, pytest.raises(umf.TimeoutError):
        endpoint.accept(timeout=0.01)
    for arguments in ({}, {"address": address, "name": name}):
        with pytest.raises(ValueError):
            link.connect(**arguments)


def test_named_endpoint_in_threads_of_one_process() -> None:
    """Waits release the interpreter's lock."""
    name, received = uuid.uuid4().hex, []

    def talk() -> None:
        with link.connect(name=name, timeout=WAIT) as made:
            received.append(made.recv(timeout=WAIT))
            made.send(bytes(1 << 20), timeout=WAIT)

    with link.bind(name) as endpoint:
        thread = threading.Thread(target=talk)
        thread.start()
        with endpoint.accept(timeout=WAIT) as made:
            made.send(b"hello")
            assert made.recv(timeout=WAIT) == bytes(1 << 20)
        thread.join(WAIT)
    assert received == [b"hello"]


def test_second_thread_is_refused() -> None:
    with linked("sends_late") as (peer, made):
        peer.line()
        errors: list[BaseException] = []
        received: list[bytes] = []
        thread = threading.Thread(target=lambda: received.append(made.recv()))
        thread.start()
        while thread.is_alive() and not errors:
            try:
                made.probe()
            except umf.LinkError as error:
                errors.append(error)
        peer.tell("send")
        thread.join(WAIT)
        assert "another call" in str(errors[0]) and received == [bytes(10_000)]


def test_forked_child_is_refused() -> None:
    with linked("echo") as (_, made), link.bind() as endpoint:
        job = comm.join(uuid.uuid4().hex, 0, 1)
        loan = made.hand_over(umf.Pool.shared().allocate(64))
        made.recv(bytearray(64))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                calls: list[Callable[[], Any]] = [
                    made.recv,
                    lambda: made.send(b"a"),
                    made.close,
                    endpoint.accept,
                    job.barrier,
                    job.close,
                    loan.wait,
                ]
                for call in calls:
                    with pytest.raises(umf.ForkError):
                        call()
                del made, endpoint, job, loan, calls
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        made.send(b"still here")
        assert made.recv() == b"still here"
        job.barrier()
        job.close()


# Memory that is handed over.


def views(peer: link.Link) -> None:
    while True:
        view = peer.recv_view()
        array = numpy.frombuffer(view, dtype=numpy.uint8)
        peer.send(b"%d" % sum_of(array))
        array[:1] = 77
        if view.tag == 9:
            view.close()
            assert view.closed
            say("closed")
            sys.stdin.readline()
        last = view.tag == 8
        del view, array
        if last:
            break


def test_block_is_handed_over_and_freed() -> None:
    pool = umf.Pool.shared()
    with linked("views") as (peer, made):
        for _ in range(100):
            block = pool.allocate(1 << 16)
            data = os.urandom(1 << 16)
            block.from_host(data)
            loan = made.hand_over(block)
            block.free()
            other = pool.allocate(1 << 16)
            other.from_host(bytes(1 << 16))
            assert int(made.recv()) == sum_of(data)
            loan.wait(WAIT)
            assert loan.returned
        block = pool.allocate(100)
        block.from_host(bytes(100))
        loan = made.hand_over(block, tag=9)
        made.recv()
        assert peer.line() == "closed"
        # The view was closed, and an array uses it.
        with pytest.raises(umf.TimeoutError):
            loan.wait(0.01)
        assert not loan.returned
        peer.tell("go on")
        loan.wait(WAIT)
        assert block.to_host(size=1) == b"M"
        array = umf.arrays.array(numpy.arange(256, dtype=numpy.uint8))
        made.hand_over(array[10:20], tag=8).wait(WAIT)
        assert int(made.recv()) == sum(range(10, 20))
        assert (array[9:12] == [9, 77, 11]).all()
        peer.end()
    assert umf.in_transit() == 0 and umf.drain(WAIT) == 0


def gives(peer: link.Link) -> None:
    block = umf.Pool.shared().allocate(1 << 16)
    block.from_host(bytes([3]) * (1 << 16))
    message = block.send_handle()
    block.free()
    peer.send(bytes(message))
    sys.stdin.readline()


def test_mapping_is_handed_over() -> None:
    with linked("gives") as (giver, source), linked("views") as (viewer, made):
        with umf.open(source.recv()) as mapping:
            loan = made.hand_over(mapping, tag=8)
        assert int(made.recv()) == 3 << 16
        loan.wait(WAIT)
        viewer.end()
        giver.tell("end")
        giver.end()


def test_what_cannot_be_handed_over() -> None:
    with linked("echo") as (_, made):
        with pytest.raises(TypeError, match=r"umf\.array"):
            made.hand_over(numpy.zeros(10))
        with pytest.raises(umf.Error, match="shared memory"):
            made.hand_over(umf.Pool.private().allocate(10))
        block = umf.Pool.shared().allocate(10)
        with umf.open(block.handle(), readonly=True) as mapping:
            with pytest.raises(umf.LinkError):
                made.hand_over(mapping)
        block.free()
        with pytest.raises(umf.ClosedError):
            made.hand_over(block)
        made.send(b"a copy")
        with pytest.raises(umf.LinkError, match="recv"):
            made.recv_view()
        assert made.recv() == b"a copy"
    assert umf.in_transit() == 0


def dies(peer: link.Link) -> None:
    sys.stdin.readline()
    peer.recv_view()
    os.kill(os.getpid(), signal.SIGKILL)


def test_memory_of_a_killed_peer_comes_back() -> None:
    with linked("dies") as (peer, made):
        loans = [made.hand_over(umf.Pool.shared().allocate(1 << 16)) for _ in range(5)]
        peer.tell("die")
        peer.child.wait(WAIT)
        with pytest.raises(umf.PeerGoneError):
            loans[4].wait(WAIT)
        with pytest.raises(umf.PeerGoneError):
            made.recv()
    with pytest.raises(umf.PeerGoneError):
        loans[3].wait(WAIT)
    assert umf.in_transit() == 0 and umf.drain(WAIT) == 0


def test_view_outlives_its_link() -> None:
    with linked("gives_view") as (peer, made):
        view = made.recv_view()
        made.close()
        peer.tell("end")
        peer.end()
        assert bytes(memoryview(view)) == bytes([4]) * 100


def gives_view(peer: link.Link) -> None:
    block = umf.Pool.shared().allocate(100)
    block.from_host(bytes([4]) * 100)
    peer.hand_over(block)
    sys.stdin.readline()


# Signals.


def is_interrupted(what: str) -> None:
    """Waits until SIGINT, and then does the same with success."""
    calls = 0

    def count(_number: int, _frame: Any) -> None:
        nonlocal calls
        calls += 1
        say("handled")

    signal.signal(signal.SIGUSR1, count)
    pool = umf.Pool.shared()
    with link.bind() as endpoint:
        job = uuid.uuid4().hex
        with process("other_side", endpoint.address, what, job) as peer:
            made, first = None if what == "accept" else endpoint.accept(WAIT), True
            if what == "loan":
                loan = made.hand_over(pool.allocate(100))
            while True:
                try:
                    say("waiting")
                    if made is None:
                        made = endpoint.accept()
                    elif what == "recv":
                        assert made.recv() == b"message"
                    elif what == "recv_into":
                        assert made.recv(numpy.zeros(1 << 20, dtype=numpy.uint8)) == 1 << 20
                    elif what == "recv_view":
                        assert len(made.recv_view()) == 100
                    elif what == "send":
                        made.send(bytes(1 << 22))
                    elif what == "loan":
                        loan.wait()
                    break
                except KeyboardInterrupt:
                    assert first
                    first = False
                    say("interrupted")
                    peer.tell("go on")
            assert not first
            assert calls == 1
            peer.end()
            made.close()
    assert umf.in_transit() == 0


def other_side(address: str, what: str, _job: str) -> None:
    if what == "accept":
        sys.stdin.readline()
    with link.connect(address, timeout=WAIT) as peer:
        peer.timeout = WAIT
        if what != "accept":
            sys.stdin.readline()
        if what == "recv":
            peer.send(b"message")
        elif what == "recv_into":
            peer.send(bytes(1 << 20))
        elif what == "recv_view":
            peer.hand_over(umf.Pool.shared().allocate(100)).wait(WAIT)
        elif what == "send":
            assert peer.recv() == bytes(1 << 22)
        elif what == "loan":
            peer.recv_view()


@pytest.mark.parametrize("what", ["accept", "recv", "recv_into", "recv_view", "send", "loan"])
def test_interrupt_ends_a_wait_and_loses_nothing(what: str) -> None:
    with process("is_interrupted", what) as waiting:
        assert waiting.line() == "waiting"
        # A handler that raises nothing does not end the wait.
        waiting.child.send_signal(signal.SIGUSR1)
        assert waiting.line() == "handled"
        waiting.child.send_signal(signal.SIGINT)
        assert waiting.line() == "interrupted"
        assert waiting.end() == "waiting"


def stops_in_a_handler() -> None:
    """The message arrives in the handler whose exception ends the wait for it."""

    class Stop(Exception):
        pass

    with link.bind() as endpoint:
        others: list[link.Link] = []
        thread = threading.Thread(target=lambda: others.append(link.connect(endpoint.address)))
        thread.start()
        with endpoint.accept(WAIT) as made:
            thread.join(WAIT)

            def stop(_number: int, _frame: Any) -> None:
                others[0].send(b"message")
                with pytest.raises(umf.LinkError, match="another call"):
                    made.probe()
                raise Stop

            signal.signal(signal.SIGUSR1, stop)
            for _ in range(3):
                with pytest.raises(Stop):
                    say("waiting")
                    made.recv()
                assert made.recv(timeout=WAIT) == b"message"


def test_message_of_a_handler_that_raises_is_not_lost() -> None:
    with process("stops_in_a_handler") as waiting:
        for _ in range(3):
            assert waiting.line() == "waiting"
            time.sleep(0.2)
            waiting.child.send_signal(signal.SIGUSR1)
        assert waiting.end() == ""


def connects_to(address: str) -> None:
    try:
        say("waiting")
        link.connect(address)
    except KeyboardInterrupt:
        say("interrupted")


def test_interrupt_ends_connecting() -> None:
    # An endpoint that accepts nothing.
    with link.bind() as endpoint, process("connects_to", endpoint.address) as waiting:
        assert waiting.line() == "waiting"
        time.sleep(0.1)
        waiting.child.send_signal(signal.SIGINT)
        assert waiting.line() == "interrupted"
        waiting.end()


def waits_in_a_thread() -> None:
    endpoint = link.bind()
    kept = []

    def wait() -> None:
        made = link.connect(endpoint.address)
        kept.append(made)
        say("connected")
        made.recv()

    threading.Thread(target=wait, daemon=True).start()
    globals().update(kept_too=endpoint.accept())
    while not kept:
        time.sleep(0.001)
    time.sleep(0.05)


def test_exit_while_a_thread_waits_is_clean() -> None:
    with process("waits_in_a_thread") as waiting:
        assert waiting.end() == "connected"


# Ranks.


@contextlib.contextmanager
def ranks(name: str, size: int, *arguments: str) -> Iterator[list[Process]]:
    job = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(process("joined", job, str(rank), str(size), name, *arguments))
            for rank in range(size)
        ]
        yield made


def joined(job: str, rank: str, size: str, name: str, *arguments: str) -> None:
    with comm.join(job, int(rank), int(size), timeout=WAIT) as made:
        assert (made.job, made.rank, made.size) == (job, int(rank), int(size))
        globals()[name](made, *arguments)


TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
OPERATIONS = {
    "sum": numpy.add,
    "product": numpy.multiply,
    "min": numpy.minimum,
    "max": numpy.maximum,
    "and": numpy.bitwise_and,
    "or": numpy.bitwise_or,
    "xor": numpy.bitwise_xor,
}


def given(rank: int, count: int, kind: str) -> Any:
    numbers = (numpy.arange(count) * 7 + rank * 13) % 11 + 1
    return numbers.astype(kind)


def combines(made: comm.Communicator, where: str) -> None:
    def place(array: Any) -> Any:
        return umf.arrays.array(array) if where == "pool" else array.copy()

    for kind in TYPES + FLOATS:
        for op, function in OPERATIONS.items():
            if kind in FLOATS and op in ("and", "or", "xor"):
                with pytest.raises(umf.LinkError, match="integers"):
                    made.allreduce(numpy.zeros(1, kind), op)
                continue
            for count in (1, 3, 2000, 50_000):
                own = place(given(made.rank, count, kind))
                expected = given(0, count, kind)
                for rank in range(1, made.size):
                    expected = function(expected, given(rank, count, kind))
                out = numpy.empty_like(own)
                assert made.allreduce(own, op, out=out) is out
                assert (own == given(made.rank, count, kind)).all()
                assert (out == expected).all()
                assert made.allreduce(own, op) is own
                assert (own == expected).all()
                if op == "sum" and kind in ("int64", "float32"):
                    own = place(given(made.rank, count, kind))
                    result = made.reduce(own, op, root=1)
                    assert result is own
                    assert (
                        own == (expected if made.rank == 1 else given(made.rank, count, kind))
                    ).all()
                    own = place(given(made.rank, count, kind))
                    made.reduce_scatter(own)
                    start, stop = made.share(count)
                    assert (own[start:stop] == expected[start:stop]).all()


@pytest.mark.parametrize("where", ["pool", "private"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_combine_arrays_of_all_types(where: str, size: int) -> None:
    if size == 1:
        with comm.join(uuid.uuid4().hex, 0, 1) as made:
            array = numpy.arange(10)
            assert (made.allreduce(array) == numpy.arange(10)).all()
        return
    with ranks("combines", size, where) as made:
        for rank in made:
            rank.end()


def moves(made: comm.Communicator, where: str) -> None:
    rank, size = made.rank, made.size
    for count in (1, 100_000):
        for root in range(size):
            array = numpy.full((count, 2), rank, dtype=numpy.int32)
            array = umf.arrays.array(array) if where == "pool" else array
            assert made.bcast(array, root) is array
            assert (array == root).all()
        array = numpy.full(count, rank, dtype=numpy.uint8)
        made.allgather(array)
        for other in range(size):
            start, stop = made.share(count, other)
            assert (array[start:stop] == other).all()
        outgoing = numpy.repeat(numpy.arange(size, dtype=numpy.int64) + 100 * rank, count)
        incoming = numpy.zeros_like(outgoing)
        assert made.alltoall(outgoing, incoming) is incoming
        expected = numpy.repeat(100 * numpy.arange(size) + rank, count)
        assert (incoming == expected).all()
    # The root's memory may be read-only.
    data = b"from the root" if rank == 0 else bytearray(13)
    assert bytes(made.bcast(data)) == b"from the root"
    made.barrier()
    # Messages, in a ring and to rank 0.
    after, before = (rank + 1) % size, (rank - 1) % size
    if rank % 2 == 0:
        made.send(b"%d" % rank * 10_000, after, tag=rank)
        assert made.recv(before) == b"%d" % before * 10_000
    else:
        assert made.recv(before) == b"%d" % before * 10_000
        made.send(b"%d" % rank * 10_000, after, tag=rank)
    assert (made.latest_source, made.latest_tag) == (before, before)
    if rank == 0:
        seen = set()
        into = bytearray(8)
        for _ in range(size - 1):
            assert made.recv(into=into, tag=5) == 1
            source = made.latest_source
            assert into[0] == source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        made.send(bytes([rank]), 0, tag=5)
    with pytest.raises(umf.LinkError, match="rank"):
        made.send(b"", size)
    with pytest.raises(umf.LinkError, match="rank"):
        made.bcast(bytearray(1), size)
    with pytest.raises(ValueError):
        made.share(10, size)
    made.barrier()


@pytest.mark.parametrize("where", ["pool", "private"])
def test_ranks_move_arrays(where: str) -> None:
    with ranks("moves", 4, where) as made:
        for rank in made:
            rank.end()


def test_wrong_numbers_are_refused_and_collectives_go_on() -> None:
    with comm.join(uuid.uuid4().hex, 0, 1) as made:
        array = numpy.zeros(4)
        for wrong in (
            numpy.zeros(4, dtype=complex),
            numpy.zeros(4, dtype=numpy.float16),
            numpy.zeros(4, dtype=bool),
            numpy.zeros(4, dtype=">i4"),
            numpy.zeros(4, dtype="i4,f8"),
            numpy.zeros(4, dtype="S3"),
        ):
            with pytest.raises(TypeError, match="astype"):
                made.allreduce(wrong)
        with pytest.raises((TypeError, ValueError, BufferError)):
            made.allreduce(numpy.array([None]))
        with pytest.raises(ValueError, match="operation"):
            made.allreduce(array, "mean")
        with pytest.raises(ValueError, match="contiguous"):
            made.allreduce(numpy.zeros((4, 4))[:, ::2])
        for out in (numpy.zeros(5), numpy.zeros(4, dtype=int), numpy.zeros((2, 2))):
            with pytest.raises(ValueError, match="empty_like"):
                made.allreduce(array, out=out)
        array.setflags(write=False)
        with pytest.raises(BufferError):
            made.allreduce(array)
        assert (made.allreduce(array, out=numpy.ones(4)) == 0).all()
        made.allreduce(numpy.zeros((0, 3)))
        with pytest.raises(ValueError, match=r"reshape\(1\)"):
            made.allreduce(numpy.array(3.5))
    with pytest.raises(umf.ClosedError):
        made.barrier()


def test_ranks_that_do_not_come_are_awaited_until_the_timeout() -> None:
    job = uuid.uuid4().hex
    with comm.join(job, 0, 2) as made:
        with pytest.raises(umf.TimeoutError, match="rank 1"):
            made.send(b"", 1, timeout=0.01)
        with pytest.raises(umf.TimeoutError):
            made.recv(timeout=0.01)
        with pytest.raises(umf.LinkError, match="rank"):
            comm.join(job, 0, 2)
        with pytest.raises(umf.LinkError, match="size"):
            comm.join(job, 1, 3)
        with pytest.raises(umf.TimeoutError):
            made.barrier(timeout=0.01)
    for wrong in ("", "a b", "x" * 33, "ü"):
        with pytest.raises(umf.LinkError, match="name"):
            comm.join(wrong, 0, 1)
    with pytest.raises(umf.LinkError):
        comm.join(job, 2, 2)


def loses_a_rank(made: comm.Communicator) -> None:
    array = umf.arrays.array(numpy.arange(100_000))
    made.allreduce(array)
    say("combined")
    if made.rank == 1:
        sys.stdin.readline()
        return
    with pytest.raises(umf.PeerGoneError):
        while True:
            made.allreduce(array)
    with pytest.raises(umf.Error):
        made.barrier()
    other = 2 - made.rank
    # Messages between the others go on.
    if made.rank == 0:
        made.send(b"alive", other)
    else:
        assert made.recv(other) == b"alive"


def test_killed_rank_is_an_error_in_the_others() -> None:
    with ranks("loses_a_rank", 3) as made:
        for rank in made:
            assert rank.line() == "combined"
        made[1].child.kill()
        made[0].end()
        made[2].end()


def is_interrupted_in_a_collective(made: comm.Communicator) -> None:
    made.barrier()
    if made.rank == 1:
        sys.stdin.readline()
        with pytest.raises(umf.LinkError):
            made.allreduce(numpy.zeros(1000))
        return
    with pytest.raises(KeyboardInterrupt):
        say("waiting")
        made.allreduce(numpy.zeros(1000))
    say("interrupted")
    with pytest.raises((umf.LinkError, KeyboardInterrupt)):
        made.barrier()


def test_interrupt_ends_a_collective_on_all_ranks() -> None:
    with ranks("is_interrupted_in_a_collective", 2) as made:
        assert made[0].line() == "waiting"
        made[0].child.send_signal(signal.SIGINT)
        assert made[0].line() == "interrupted"
        made[1].tell("go on")
        for rank in made:
            rank.end()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
