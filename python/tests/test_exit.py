"""Messages in transit when their sender exits."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import signal
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy
import pytest
from session_programs import keepers, run, wait_until

import umf
import umf.arrays
import umf.multiprocessing
from umf import keeper, session, transit

METHODS = ["fork", "spawn", "forkserver"]
kept_alive = []


def put_arrays(queue, count: int) -> None:
    for number in range(count):
        queue.put(umf.arrays.array(numpy.full(1000, number)))


def put_live_arrays(queue, count: int) -> None:
    for number in range(count):
        made = umf.arrays.array(numpy.full(1000, number))
        kept_alive.append(made)
        queue.put(made)


def put_one_array_often(queue, count: int) -> None:
    made = umf.arrays.array(numpy.arange(1000))
    for number in range(count):
        queue.put(made[number:])


def send_arrays(connection, count: int) -> None:
    for number in range(count):
        connection.send(umf.arrays.array(numpy.full(1000, number)))


def pass_on(received, sent, count: int) -> None:
    for _ in range(count):
        sent.put(received.get())


def released() -> bool:
    gc.collect()
    return umf.drain(10.0) == 0 and umf.in_transit() == 0


def shmem() -> int:
    """Returns the bytes of shared memory of the keeper of this session."""
    total = 0
    for pid in keepers(session.current().id):
        for row in Path(f"/proc/{pid}/status").read_text().splitlines():
            if row.startswith("RssShmem:"):
                total += int(row.split()[1]) * 1024
    return total


def settled() -> int:
    """Returns the same as `shmem`, once the keeper has released what earlier tests have left."""
    last = -1
    while (now := shmem()) != last:
        last = now
        time.sleep(1)
    return now


def is_released(before: int) -> bool:
    """Whether the keeper has no more memory than before, but for a piece of an array's size."""
    return shmem() < before + (1 << 20)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", [put_arrays, put_live_arrays])
def test_join_before_get(method: str, target) -> None:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    sender = context.Process(target=target, args=(queue, 50))
    sender.start()
    sender.join(60)
    assert sender.exitcode == 0
    for number in range(50):
        got = queue.get(timeout=60)
        assert got.shape == (1000,) and (got == number).all()
        assert umf.arrays._owner(got) is not None
    assert released()


@pytest.mark.parametrize("method", METHODS)
def test_sender_exits_with_messages_in_the_pipe(method: str) -> None:
    context = multiprocessing.get_context(method)
    reader, writer = context.Pipe(duplex=False)
    sender = context.Process(target=send_arrays, args=(writer, 40))
    sender.start()
    # Some are opened while it lives.
    for number in range(10):
        assert (reader.recv() == number).all()
    sender.join(60)
    assert sender.exitcode == 0
    for number in range(10, 40):
        assert (reader.recv() == number).all()
    assert released()


@pytest.mark.parametrize("method", METHODS)
def test_other_process_reads_what_an_exited_one_has_sent(method: str) -> None:
    context = multiprocessing.get_context(method)
    first, second = context.Queue(), context.Queue()
    sender = context.Process(target=put_arrays, args=(first, 20))
    sender.start()
    sender.join(60)
    # It exits as well, with messages of the keeper's memory in transit.
    middle = context.Process(target=pass_on, args=(first, second, 20))
    middle.start()
    middle.join(60)
    assert (sender.exitcode, middle.exitcode) == (0, 0)
    for number in range(20):
        assert (second.get(timeout=60) == number).all()
    assert released()


def test_result_of_an_ended_worker_is_passed_on() -> None:
    """The memory of a process that has ended cannot be opened any more: it is copied."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    sender = context.Process(target=put_arrays, args=(queue, 1))
    sender.start()
    got = queue.get(timeout=60)
    sender.join(60)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(numpy.sum, got).result(60) == 0
        got.flags.writeable = False
        assert pool.submit(is_writeable, got).result(60) is False


@pytest.mark.parametrize("method", METHODS)
def test_results_of_workers_that_end_are_passed_on(method: str) -> None:
    """They end while their results are read, and passed on to other workers."""
    context = multiprocessing.get_context(method)
    with context.Pool(2, maxtasksperchild=1) as pool:
        results = pool.map(filled, range(8), chunksize=1)
        assert [int(result[-1]) for result in results] == list(range(8))
        assert pool.map(numpy.sum, results, chunksize=1) == [1000 * n for n in range(8)]


def filled(number: int) -> numpy.ndarray:
    return umf.arrays.array(numpy.full(1000, number))


def consume(queue, totals) -> None:
    count = total = 0
    while (got := queue.get()) is not None:
        assert (got == got[0]).all()
        count, total = count + 1, total + int(got[0])
        del got
    totals.put((count, total))


def test_producers_exit_while_their_messages_are_read() -> None:
    context = multiprocessing.get_context("fork")
    for number in range(8):
        queue, totals = context.Queue(), context.Queue()
        consumers = [context.Process(target=consume, args=(queue, totals)) for _ in range(2)]
        target = put_live_arrays if number % 2 else put_arrays
        producers = [context.Process(target=target, args=(queue, 40)) for _ in range(4)]
        for process in (*consumers, *producers):
            process.start()
        for process in producers:
            process.join(60)
            assert process.exitcode == 0
        for _ in consumers:
            queue.put(None)
        got = [totals.get(timeout=60) for _ in consumers]
        assert [sum(column) for column in zip(*got, strict=True)] == [160, 4 * 40 * 39 // 2]
        for process in consumers:
            process.join(60)
            assert process.exitcode == 0


def is_writeable(given: numpy.ndarray) -> bool:
    return given.flags.writeable


def test_views_of_one_array_are_copied_once() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    sender = context.Process(target=put_one_array_often, args=(queue, 30))
    sender.start()
    sender.join(60)
    for number in range(30):
        assert (queue.get(timeout=60) == numpy.arange(number, 1000)).all()
    assert released()


def put_readonly_and_blocks(queue) -> None:
    made = umf.arrays.array(numpy.arange(100))
    made.flags.writeable = False
    queue.put(made)
    block = umf.Pool.shared().allocate(5000)
    memoryview(block)[:5] = b"block"
    queue.put(block)


def test_readonly_arrays_and_blocks() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    sender = context.Process(target=put_readonly_and_blocks, args=(queue,))
    sender.start()
    sender.join(60)
    got = queue.get(timeout=60)
    assert not got.flags.writeable and (got == numpy.arange(100)).all()
    mapping = queue.get(timeout=60)
    assert len(mapping) == 5000 and bytes(memoryview(mapping)[:5]) == b"block"
    assert not mapping.readonly
    mapping.close()


def send_for_readers(pipe, readers: int, claimed: int, is_live: bool) -> None:
    block = umf.Pool.shared().allocate(100)
    memoryview(block)[:3] = b"abc"
    handle = bytes(block.send_handle(readers))
    transit.sent(handle, readers)
    if is_live:
        kept_alive.append(block)
    else:
        block.free()
    pipe.send(handle)
    for _ in range(claimed):
        pipe.recv()


@pytest.mark.parametrize("is_live", [False, True])
def test_message_for_several_readers(is_live: bool) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    sender = context.Process(target=send_for_readers, args=(theirs, 3, 1, is_live))
    sender.start()
    handle = ours.recv()
    umf.open(handle).close()
    ours.send("opened")
    sender.join(60)
    # Two readers are left.
    for _ in range(2):
        mapping = transit.open_sent(handle)
        assert bytes(memoryview(mapping)[:3]) == b"abc"
        mapping.close()
    if not is_live:
        with pytest.raises(umf.StaleError):
            transit.open_sent(handle)


def test_claimed_messages_are_not_copied() -> None:
    """A sender whose messages were all read starts no keeper."""
    source = """
import os
from multiprocessing import get_context
import numpy, umf.arrays, umf.multiprocessing
from umf import session

def send(queue, go):
    kept = [umf.arrays.array(numpy.full(1000, number)) for number in range(30)]
    for array in kept:
        queue.put(array)
    go.get()

if __name__ == "__main__":
    context = get_context("fork")
    queue, go = context.Queue(), context.Queue()
    child = context.Process(target=send, args=(queue, go))
    child.start()
    for _ in range(30):
        queue.get()
    go.put(1)
    child.join()
    listening = open("/proc/net/unix").read()
    print(child.exitcode, session.current().id in listening)
"""
    assert run(source) == "0 False"


def test_last_member_keeps_nothing() -> None:
    source = """
import multiprocessing
import numpy, umf, umf.arrays, umf.multiprocessing
from umf import session, transit
queue = multiprocessing.Queue()
queue.put(umf.arrays.array(numpy.arange(10)))
queue.close()
queue.join_thread()
transit.hand_over()
print(session.current().id in open("/proc/net/unix").read(), umf.in_transit())
"""
    assert run(source) == "False 1"


def test_ten_thousand_messages_of_an_exited_process(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    context = multiprocessing.get_context("fork")
    sender = context.Process(target=write_messages, args=(str(path), 10_000))
    sender.start()
    sender.join(120)
    assert sender.exitcode == 0
    count = 0
    with path.open("rb") as file:
        fds = len(os.listdir("/proc/self/fd"))
        while length := file.read(4):
            got = ForkingPickler.loads(file.read(int.from_bytes(length, "little")))
            assert (got == count).all()
            count += 1
        assert len(os.listdir("/proc/self/fd")) <= fds + 20
    assert count == 10_000
    assert released()


def write_messages(path: str, count: int) -> None:
    with open(path, "wb") as file:
        for number in range(count):
            message = ForkingPickler.dumps(umf.arrays.array(numpy.full(10, number)))
            file.write(len(message).to_bytes(4, "little"))
            file.write(message)
    assert len(transit._sent) == count


def test_messages_that_were_read_are_forgotten() -> None:
    pool = umf.Pool.shared()
    unread = set()
    for number in range(5000):
        block = pool.allocate(64)
        handle = bytes(block.send_handle())
        transit.sent(handle)
        block.free()
        if number % 100:
            umf.open(handle).close()
        else:
            unread.add(handle)
    assert len(transit._sent) <= 1024 + 2 * len(unread)
    assert unread <= {message[:256] for message in transit._sent}
    for handle in unread:
        umf.open(handle).close()
    assert transit._unread(transit._sent) == []


def exit_by_os(queue) -> None:
    put_arrays(queue, 1)
    queue.close()
    queue.join_thread()
    os._exit(0)


@pytest.mark.parametrize("way", ["_exit", "kill"])
def test_messages_of_a_killed_sender_are_lost(way: str) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    target = exit_by_os if way == "_exit" else put_and_be_killed
    sender = context.Process(target=target, args=(queue,))
    sender.start()
    sender.join(60)
    with pytest.raises(umf.StaleError):
        queue.get(timeout=60)


def put_and_be_killed(queue) -> None:
    put_arrays(queue, 1)
    queue.close()
    queue.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)


def test_reader_that_is_killed_before_it_opens_releases_the_copy() -> None:
    before = settled()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    sender = context.Process(target=send_large, args=(theirs, 64 << 20))
    sender.start()
    handle = ours.recv()
    sender.join(60)
    assert sender.exitcode == 0
    assert shmem() >= before + (64 << 20)
    child = os.fork()
    if child == 0:
        with keeper.connect() as client:
            assert client is not None
            client.request(b"G", handle)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    wait_until(lambda: is_released(before), "the release of a copy whose reader was killed")


def test_keeper_releases_what_was_read() -> None:
    before = settled()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    for _ in range(3):
        sender = context.Process(target=send_large, args=(theirs, 64 << 20))
        sender.start()
        handle = ours.recv()
        sender.join(60)
        assert shmem() >= before + (64 << 20)
        mapping = transit.open_sent(handle)
        assert bytes(memoryview(mapping)[-2:]) == b"\1\1"
        mapping.close()
        # Neither the copy, nor the memory of the sender.
        wait_until(lambda: is_released(before), "the release of a copy that was read")


def test_copy_that_a_reader_does_not_need_is_released() -> None:
    """It has the memory of the sender open, and opens the next message without the keeper."""
    before = settled()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    sender = context.Process(target=send_two_of_one_block, args=(theirs,))
    sender.start()
    first, second = ours.recv(), ours.recv()
    mapping = umf.open(first)
    ours.send("opened")
    sender.join(60)
    transit.open_sent(second).close()
    wait_until(lambda: is_released(before), "the release of a copy that is not needed")
    mapping.close()


def test_copy_of_a_message_that_was_read_while_its_sender_exited_is_released() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    before = settled()
    sender = context.Process(target=send_and_hand_over_early, args=(theirs,))
    sender.start()
    handle = ours.recv()
    assert shmem() >= before + (64 << 20)
    # It lives, and so does its block.
    transit.open_sent(handle).close()
    ours.send("opened")
    sender.join(60)
    wait_until(lambda: is_released(before), "the release of a copy that is not needed")


def send_and_hand_over_early(pipe) -> None:
    block = umf.Pool.shared().allocate(64 << 20)
    numpy.frombuffer(block, dtype=numpy.uint8)[:] = 1
    kept_alive.append(block)
    handle = bytes(block.send_handle())
    transit.sent(handle)
    transit.hand_over()
    pipe.send(handle)
    pipe.recv()


def send_two_of_one_block(pipe) -> None:
    block = umf.Pool.shared().allocate(64 << 20)
    numpy.frombuffer(block, dtype=numpy.uint8)[:] = 1
    kept_alive.append(block)
    for _ in range(2):
        handle = bytes(block.send_handle())
        transit.sent(handle)
        pipe.send(handle)
    pipe.recv()


def send_large(pipe, size: int) -> None:
    block = umf.Pool.shared().allocate(size)
    numpy.frombuffer(block, dtype=numpy.uint8)[:] = 1
    handle = bytes(block.send_handle())
    transit.sent(handle)
    block.free()
    pipe.send(handle)


def test_unknown_message_is_the_error_of_the_open() -> None:
    pool = umf.Pool.shared()
    block = pool.allocate(64)
    message, plain = bytes(block.send_handle()), bytes(block.handle())
    block.free()
    umf.open(message).close()
    with pytest.raises(umf.TicketClaimedError):
        transit.open_sent(message)
    with pytest.raises(umf.StaleError):
        transit.open_sent(plain)
    assert bytes(umf.Handle(message).plain()) == plain


def send_after_hand_over(queue) -> None:
    """A thread that lives on while the process exits."""
    import threading

    def late() -> None:
        # From 3.13 on, threads are joined before.
        while not transit._exiting and threading.main_thread().is_alive():
            time.sleep(0.01)
        # After the queue was closed: the message goes by a file descriptor of its own.
        queue.send(umf.arrays.array(numpy.arange(5)))

    threading.Thread(target=late).start()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_thread_sends_while_its_process_exits(method: str) -> None:
    context = multiprocessing.get_context(method)
    reader, writer = context.Pipe(duplex=False)
    sender = context.Process(target=send_after_hand_over, args=(writer,))
    sender.start()
    sender.join(60)
    assert sender.exitcode == 0
    assert (reader.recv() == numpy.arange(5)).all()


def test_forked_child_hands_nothing_of_its_parent_over() -> None:
    block = umf.Pool.shared().allocate(64)
    handle = bytes(block.send_handle())
    transit.sent(handle)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=gc.collect)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert umf.cancel(handle)


def test_producer_that_lives_and_one_that_has_ended() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes(umf.Pool.shared().allocate(64).handle()))
        time.sleep(600)
    handle = os.read(reader, 256)
    assert transit.producer_is_alive(handle)
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not transit.producer_is_alive(handle), "the end of the producer")
    os.waitpid(child, 0)
    assert not transit.producer_is_alive(handle)
    os.close(reader)
    os.close(writer)
