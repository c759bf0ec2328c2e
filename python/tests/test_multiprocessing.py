"""Arrays in queues, arguments and results of `multiprocessing`."""

import gc
import multiprocessing
import os
import pathlib
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest

import umf
import umf.arrays
import umf.multiprocessing

METHODS = ["fork", "spawn", "forkserver"]


def total(given: numpy.ndarray) -> float:
    return float(given.sum())


def doubled(given: numpy.ndarray) -> numpy.ndarray:
    made = umf.arrays.empty(given.shape, given.dtype)
    numpy.multiply(given, 2, out=made)
    return made


def put_totals(queue, totals) -> None:
    while (given := queue.get()) is not None:
        totals.put(float(given.sum()))


def pass_on(received, sent) -> None:
    while (given := received.get()) is not None:
        sent.put(given)
        del given
    sent.put(None)


def put_and_exit(queue) -> None:
    made = umf.arrays.array(numpy.arange(1000))
    queue.put(made)
    del made
    queue.close()
    queue.join_thread()


def released() -> bool:
    gc.collect()
    return umf.drain(10.0) == 0 and umf.in_transit() == 0


@pytest.mark.parametrize("method", METHODS)
def test_queue_put_and_del(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue, totals = context.Queue(), context.Queue()
    worker = context.Process(target=put_totals, args=(queue, totals))
    worker.start()
    for number in range(50):
        sent = umf.arrays.array(numpy.full(10_000, number, dtype=numpy.int64))
        queue.put(sent)
        del sent
    queue.put(None)
    assert [totals.get(timeout=30) for _ in range(50)] == [
        10_000.0 * number for number in range(50)
    ]
    worker.join(30)
    assert worker.exitcode == 0
    assert released()


@pytest.mark.parametrize("method", METHODS)
def test_argument_of_a_process_that_the_parent_drops(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue, totals = context.Queue(), context.Queue()
    given = umf.arrays.array(numpy.arange(1000))
    queue.put(given)
    worker = context.Process(target=put_totals, args=(queue, totals))
    worker.start()
    del given
    others = [umf.arrays.zeros(1000, int) for _ in range(20)]
    queue.put(None)
    assert totals.get(timeout=30) == 999 * 500
    worker.join(30)
    del others
    assert released()


@pytest.mark.parametrize("method", METHODS)
def test_results_of_pool_map(method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        given = [umf.arrays.array(numpy.full(1000, number)) for number in range(10)]
        assert pool.map(total, given) == [1000.0 * number for number in range(10)]
        results = pool.map(doubled, given)
        assert [total(result) for result in results] == [2000.0 * number for number in range(10)]
        assert all(umf.arrays._owner(result) is not None for result in results)


@pytest.mark.parametrize("method", METHODS)
def test_array_goes_over_a_second_process_after_the_first_has_freed_it(method: str) -> None:
    context = multiprocessing.get_context(method)
    first, second = context.Queue(), context.Queue()
    worker = context.Process(target=pass_on, args=(first, second))
    worker.start()
    for number in range(10):
        first.put(umf.arrays.array(numpy.full(1000, number)))
    gc.collect()
    first.put(None)
    for number in range(10):
        received = second.get(timeout=30)
        assert (received == number).all()
        del received
    assert second.get(timeout=30) is None
    worker.join(30)
    assert released()


def test_views_have_their_shape_and_strides() -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        whole = umf.arrays.array(numpy.arange(24, dtype=numpy.float32).reshape(4, 6))
        records = umf.arrays.zeros(3, [("x", "<i4"), ("y", "<f8", (2,))])
        records["x"] = [1, 2, 3]
        views = (whole, whole[1:3, ::2], whole.T, whole[::-1], whole[2, 3:4], whole[:0], records)
        for view in views:
            got = pool.apply(numpy.copy, (view,))
            assert got.dtype == view.dtype and got.shape == view.shape
            assert (got == view).all()


def test_plain_arrays_and_objects_are_copied() -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(total, (numpy.arange(10),)) == 45.0
        objects = numpy.array([1, "a", None], dtype=object)
        assert list(pool.apply(numpy.copy, (objects,))) == [1, "a", None]


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (1 << 40,)},
        {"offset": 1 << 40},
        {"offset": -8},
        {"strides": (1 << 50,)},
        {"shape": (10,), "strides": (-8,)},
        {"dtype": "O"},
        {"dtype": "no type"},
        {"dtype": [("a", 5)]},
    ],
)
def test_wrong_description_is_refused(change: dict) -> None:
    import dataclasses

    made = umf.arrays.array(numpy.arange(10))
    handle = umf.arrays.handle(made)
    assert (handle.open() == made).all()
    with pytest.raises(umf.HandleError):
        dataclasses.replace(handle, **change).open()


def test_message_has_one_ticket_for_all_arrays_of_a_block() -> None:
    whole = umf.array(numpy.arange(100))
    sent = ForkingPickler.dumps([whole, whole[10:], {"part": whole[::-2]}])
    assert umf.in_transit() == 1
    del whole
    gc.collect()
    first, second, third = ForkingPickler.loads(sent)[0:3]
    assert umf.in_transit() == 0
    first[11] = -1
    assert second[1] == -1 and third["part"][44] == -1
    del first, second, third
    assert released()


def test_pickling_that_fails_cancels_its_messages() -> None:
    given = umf.array(numpy.arange(10))
    for _ in range(3):
        with pytest.raises(Exception, match="lambda|local"):
            ForkingPickler.dumps([given, lambda: None])
    assert umf.in_transit() == 0
    del given
    assert released()


def count_all(queue, answers) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    while (given := queue.get()) is not None:
        kept.append(given)
    answers.put((len(kept), sum(int(one[0]) for one in kept)))
    answers.put(len(os.listdir("/proc/self/fd")) - before)


IN_FLIGHT = """
import multiprocessing, os, resource, sys
import numpy, umf, umf.multiprocessing
sys.path.insert(0, {folder!r})
from test_multiprocessing import count_all

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    context = multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    reader = context.Process(target=count_all, args=(queue, answers))
    reader.start()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10_000):
        queue.put(umf.array(numpy.full(16, number)))
    grown = len(os.listdir("/proc/self/fd")) - before
    queue.put(None)
    assert answers.get(timeout=300) == (10_000, 9_999 * 5_000)
    assert grown <= 20 and (more := answers.get()) <= 20, (grown, more)
    reader.join()
    print("ok")
"""


def run(program: str, tmp_path, **environment: str) -> subprocess.CompletedProcess:
    file = tmp_path / "program.py"
    folder = str(pathlib.Path(__file__).parent)
    file.write_text(program.format(folder=folder))
    return subprocess.run(
        [sys.executable, str(file)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_ten_thousand_arrays_in_flight_with_64_descriptors(tmp_path) -> None:
    done = run(IN_FLIGHT, tmp_path)
    assert done.stdout == "ok\n", done


FULL = """
import multiprocessing, sys, threading, time, warnings
import numpy, umf, umf.multiprocessing
from multiprocessing.reduction import ForkingPickler

umf.multiprocessing.send_timeout = 60.0
first = ForkingPickler.dumps(umf.array(numpy.arange(100_000)))
second = []
sender = threading.Thread(
    target=lambda: second.append(ForkingPickler.dumps(umf.array(numpy.arange(1000))))
)
sender.start()
# The sender waits, without the GIL, until the first message is read.
deadline = time.monotonic() + 0.3
while time.monotonic() < deadline:
    assert not second
assert ForkingPickler.loads(first)[-1] == 99_999
sender.join(60)
assert len(second[0]) < 1000 and umf.in_transit() == 1
assert ForkingPickler.loads(second[0])[-1] == 999 and umf.in_transit() == 0

# Without a reader, the bytes go instead.
umf.multiprocessing.send_timeout = 0.1
kept = ForkingPickler.dumps(umf.array(numpy.arange(100_000)))
for expected in (1, 0):
    # The second time it does not wait: nothing has changed.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        copy = ForkingPickler.dumps(umf.array(numpy.arange(1000)))
    assert "ipc.max_in_transit" in str(caught[0].message), caught
    assert len(copy) > 8000 and ForkingPickler.loads(copy)[-1] == 999
print(umf.stats()["in_transit"], umf.stats()["max_in_transit"])
"""


def test_sends_wait_at_the_bound_of_memory_in_transit(tmp_path) -> None:
    done = run(FULL.replace("{", "{{").replace("}", "}}"), tmp_path, UMF_IPC_MAX_IN_TRANSIT="64KiB")
    assert done.stdout == "1 65536\n", done
