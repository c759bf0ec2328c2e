"""Forks: what a child sees of its parent's memory, and when the parent uses it again."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings

import numpy
import pytest

import umf
import umf.arrays
import umf.multiprocessing

SIZE = 1 << 20


def wait(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Child:
    """A forked child that compares an array each time that the parent asks."""

    def __init__(self, given: numpy.ndarray, expected: int) -> None:
        asked, self.ask = os.pipe()
        answered, self.answer = os.pipe()
        self.answered = answered
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.ask)
            os.close(answered)
            while os.read(asked, 1):
                os.write(self.answer, b"1" if (given == expected).all() else b"0")
            os._exit(0)
        os.close(asked)
        os.close(self.answer)

    def check(self) -> bool:
        os.write(self.ask, b"?")
        return os.read(self.answered, 1) == b"1"

    def end(self) -> None:
        os.close(self.ask)
        wait(self.pid)
        os.close(self.answered)


def overwrite() -> None:
    """Allocates and writes the sizes that the tests use, so that freed memory would be reused."""
    gc.collect()
    others = [umf.arrays.empty(SIZE // 8, int) for _ in range(32)]
    for other in others:
        other.fill(-1)


def released() -> bool:
    gc.collect()
    return umf.drain(10.0) == 0


def check_sum(given: numpy.ndarray, ready, go, result) -> None:
    ready.set()
    go.wait(60)
    result.put(float(given.sum()))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_argument_that_the_parent_drops(method: str) -> None:
    context = multiprocessing.get_context(method)
    ready, go, result = context.Event(), context.Event(), context.Queue()
    given = umf.arrays.array(numpy.full(SIZE // 8, 2))
    worker = context.Process(target=check_sum, args=(given, ready, go, result))
    worker.start()
    del given
    assert ready.wait(60)
    overwrite()
    go.set()
    assert result.get(timeout=60) == SIZE // 4
    worker.join(60)
    assert released()


def test_freed_memory_is_kept_until_the_child_ends() -> None:
    given = umf.arrays.array(numpy.full(SIZE // 8, 7))
    handle = umf.arrays.handle(given)
    child = Child(given, 7)
    assert child.check()
    del given
    gc.collect()
    with pytest.raises(umf.StaleError):
        handle.open()
    overwrite()
    assert child.check()
    assert umf.drain() >= SIZE
    # Memory that was made after the fork is not kept.
    held = umf.drain()
    umf.arrays.array(numpy.full(SIZE // 8, 7))
    gc.collect()
    assert umf.drain() == held
    child.end()
    assert released()


def test_memory_is_kept_for_a_grandchild() -> None:
    given = umf.arrays.array(numpy.full(SIZE // 8, 3))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
        os._exit(0)
    wait(child)
    del given
    gc.collect()
    assert umf.drain() >= SIZE
    os.close(writing)
    os.close(reading)
    assert released()


def test_exec_ends_the_use() -> None:
    given = umf.arrays.array(numpy.full(SIZE // 8, 3))
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    child = os.fork()
    if child == 0:
        os.dup2(reading, 0)
        os.close(writing)
        os.execv("/bin/cat", ["cat"])
    os.close(reading)
    del given
    assert released()
    os.close(writing)
    wait(child)


def test_closing_all_descriptors_in_the_child_changes_nothing() -> None:
    given = umf.arrays.array(numpy.full(SIZE // 8, 5))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(reading, 0)
        os.closerange(1, 1 << 16)
        os.read(0, 1)
        os._exit(0 if (given == 5).all() else 1)
    os.close(reading)
    del given
    overwrite()
    assert umf.drain() >= SIZE
    os.close(writing)
    wait(child)
    assert released()


def produce(sent, totals) -> None:
    sent.put(umf.arrays.array(numpy.full(SIZE // 8, 9)))
    gc.collect()
    while (timeout := totals.get()) is not None:
        sent.put(umf.drain(timeout))


def test_opened_memory_is_kept_for_the_child() -> None:
    context = multiprocessing.get_context("spawn")
    sent, totals = context.Queue(), context.Queue()
    producer = context.Process(target=produce, args=(sent, totals))
    producer.start()
    given = sent.get(timeout=60)
    child = Child(given, 9)
    assert child.check()
    del given
    gc.collect()
    assert umf.drain() >= SIZE
    totals.put(0.2)
    assert sent.get(timeout=60) >= SIZE
    assert child.check()
    child.end()
    assert released()
    totals.put(30.0)
    assert sent.get(timeout=60) == 0
    totals.put(None)
    producer.join(60)


def test_child_sends_memory_of_its_parent_by_value() -> None:
    context = multiprocessing.get_context("fork")
    given = umf.arrays.array(numpy.arange(1000))
    block = umf.arrays.default_pool().allocate(10)
    memoryview(block)[:] = b"0123456789"

    def send(queue) -> None:
        with pytest.raises(umf.ForkError):
            umf.arrays.handle(given)
        with pytest.raises(umf.ForkError):
            block.send_handle()
        queue.put((given, block))
        queue.put(umf.arrays.array(numpy.arange(5)))
        received.wait(60)

    queue, received = context.Queue(), context.Event()
    worker = context.Process(target=send, args=(queue,))
    worker.start()
    array, copy = queue.get(timeout=60)
    assert (array == given).all() and bytes(copy) == b"0123456789"
    assert umf.arrays._owner(array) is None
    made = queue.get(timeout=60)
    received.set()
    assert umf.arrays._owner(made) is not None and (made == numpy.arange(5)).all()
    worker.join(60)
    assert worker.exitcode == 0


def test_pool_of_the_parent_is_refused_in_a_child() -> None:
    pool = umf.Pool.shared()
    child = os.fork()
    if child == 0:
        try:
            pool.allocate(100)
        except umf.ForkError as error:
            os._exit(0 if "make a pool here" in str(error) else 2)
        os._exit(1)
    wait(child)


def test_private_memory_of_parent_and_child_is_apart() -> None:
    pool = umf.Pool.private()
    block = pool.allocate(SIZE)
    view = memoryview(block)
    view[:3] = b"old"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0 if view[:3] == b"old" else 1)
    view[:3] = b"new"
    view.release()
    block.free()
    assert released()
    os.close(writing)
    wait(child)
    os.close(reading)


def test_descriptors_do_not_grow_with_forks() -> None:
    given = umf.arrays.array(numpy.full(SIZE // 8, 1))

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        os._exit(0)
    wait(first)
    before = descriptors()
    children = []
    for _ in range(40):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0 if (given == 1).all() else 1)
        children.append(child)
    assert descriptors() == before
    del given
    overwrite()
    assert umf.drain() >= SIZE
    os.close(writing)
    os.close(reading)
    for child in children:
        wait(child)
    assert released()


def test_killed_child_releases() -> None:
    given = umf.arrays.array(numpy.full(SIZE // 8, 1))
    child = os.fork()
    if child == 0:
        signal.pause()
    del given
    gc.collect()
    assert umf.drain() >= SIZE
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert released()


def test_fork_without_descriptors_warns_and_keeps_the_memory() -> None:
    program = """
import os, resource, warnings, gc
import numpy, umf.arrays
given = umf.arrays.array(numpy.full(1 << 17, 4))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
reading, writing = taken.pop(), taken.pop()
os.close(reading)
os.close(writing)
reading, writing = os.pipe()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    child = os.fork()
if child == 0:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0 if (given == 4).all() else 1)
assert any("ulimit -n" in str(one.message) for one in caught), caught
del given
for fd in taken:
    os.close(fd)
others = [umf.arrays.array(numpy.full(1 << 17, 9)) for _ in range(20)]
os.close(writing)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert umf.drain() >= 1 << 20, "whether the child has ended is not known"
os.close(reading)
before = len(os.listdir("/proc/self/fd"))
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
assert len(os.listdir("/proc/self/fd")) <= before + 1
print("ok")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout == "ok\n", done


def test_forks_beside_threads_that_allocate() -> None:
    stop = threading.Event()
    errors = []

    def work() -> None:
        try:
            while not stop.is_set():
                made = umf.arrays.array(numpy.full(1000, 1))
                umf.arrays.handle(made).open()
                assert umf.cancel(umf.arrays.send_handle(made).handle)
                umf.drain()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings():
        # From Python 3.12 on, a fork beside threads is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(50):
            child = os.fork()
            if child == 0:
                made = umf.arrays.array(numpy.arange(100))
                os._exit(0 if (umf.arrays.handle(made).open() == made).all() else 1)
            wait(child)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_memory_without_a_python_object_is_kept() -> None:
    """A DLPack tensor is all that has the memory."""
    program = """
import os
import numpy, umf
pool = umf.Pool.shared()
block = pool.allocate(1 << 20)
memoryview(block)[:] = bytes([1]) * (1 << 20)
tensor = numpy.from_dlpack(block)
del block
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0 if (tensor == 1).all() else 1)
del tensor
others = [pool.allocate(1 << 20) for _ in range(8)]
for other in others:
    memoryview(other)[:] = bytes([99]) * (1 << 20)
os.close(writing)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert umf.drain(10.0) == 0
print("ok")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout == "ok\n", done


def test_threads_that_fork_at_the_same_time() -> None:
    """The hook that runs first lets the other thread begin its fork."""
    program = """
import os, threading, time
import numpy
os.register_at_fork(before=lambda: time.sleep(0.2))
import umf
given = umf.array(numpy.full(1 << 17, 5))
reading, writing = os.pipe()
children = []

def fork() -> None:
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0 if (given == 5).all() else 1)
    children.append(child)

threads = [threading.Thread(target=fork) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
del given
others = [umf.array(numpy.full(1 << 17, 9)) for _ in range(20)]
assert umf.drain() >= 1 << 20
os.close(writing)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 3
assert umf.drain(10.0) == 0
print("ok")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout == "ok\n", done
