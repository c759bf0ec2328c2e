"""Memory of other machines, which other processes of this machine play."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import umf

WAIT = 60.0

ANOTHER_MACHINE = {
    "UMF_REMOTE_LOCAL": "false",
    "UMF_REMOTE_PROVIDER": "tcp",
    "UMF_REMOTE_INTERFACE": "127.0.0.1",
    # For a busy machine.
    "UMF_REMOTE_TIMEOUT_MS": "20000",
}

# Of processes whose producer does not answer.
PATIENCE = "3000"
AN_HOUR = "3600000"

# Messages and one-sided reads, one part and more than are in flight together.
SIZES = (1, 100, 16256, 16257, (1 << 20) + 3, 40 << 20)


class Process:
    """A process that calls a function of this file, in lockstep with the test."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | ANOTHER_MACHINE | variables,
        )
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

    def freeze(self) -> None:
        """Stops it, and waits until all its threads have stopped."""
        self.child.send_signal(signal.SIGSTOP)
        os.waitpid(self.child.pid, os.WUNTRACED)

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
def process(*arguments: str, **variables: str) -> Iterator[Process]:
    made = Process(*arguments, **variables)
    try:
        yield made
    finally:
        made.kill()


def say(text: object) -> None:
    print(text, flush=True)


@pytest.fixture(scope="module", autouse=True)
def fabric() -> None:
    """Skips the tests where no libfabric can serve."""
    with process("probe") as probe:
        *_, last = ["", *probe.end().splitlines()]
    if last.startswith("missing: "):
        pytest.skip(last.removeprefix("missing: "))


def probe() -> None:
    try:
        umf.serve().close()
    except umf.NotSupportedError as error:
        say(f"missing: {error}")


# Producers.


def content(size: int) -> bytes:
    return numpy.random.default_rng(size).bytes(size)


def produce(*sizes: str) -> None:
    """Serves blocks, says their handles, and frees them when it is told to."""
    pool = umf.Pool.shared()
    with umf.serve():
        blocks = []
        for size in map(int, sizes):
            block = pool.allocate(size)
            memoryview(block)[:] = content(size)
            blocks.append(block)
            say(block.remote_handle())
        for _ in sys.stdin:
            for block in blocks:
                block.free()
            say("freed")


# Reads.


def test_contents_of_all_sizes_are_fetched() -> None:
    with process("produce", *map(str, SIZES)) as producer:
        handles = [producer.line() for _ in SIZES]
        with process("fetch_all", *handles) as reader:
            assert reader.end() == ""


def fetch_all(*texts: str) -> None:
    for text in texts:
        handle = umf.RemoteHandle(text)
        assert not handle.is_local
        expected = content(handle.size)
        for source in (handle, text, bytes(handle), bytearray(bytes(handle))):
            assert umf.fetch(source) == expected
        array = numpy.zeros(handle.size, numpy.uint8)
        assert umf.fetch(handle, out=array) is array
        assert array.tobytes() == expected
        written = bytearray(handle.size)
        assert umf.fetch(handle, out=written) is written
        assert written == expected
        part, middle = handle.size // 3, handle.size // 2
        assert umf.fetch(handle, offset=middle, size=part) == expected[middle : middle + part]
        assert umf.fetch(handle, offset=handle.size) == b""
        umf.fetch(handle, out=memoryview(written)[:part], offset=middle)
        assert written[:part] == expected[middle : middle + part]
        for offset, size in ((handle.size + 1, None), (0, handle.size + 1), (1, handle.size)):
            with pytest.raises(ValueError, match="past the end"):
                umf.fetch(handle, offset=offset, size=size)
        with pytest.raises(BufferError):
            umf.fetch(handle, out=bytes(handle.size))


def test_memory_of_another_machine_opens_as_a_copy_only() -> None:
    with process("produce", "70000") as producer:
        with process("open_copy", producer.line()) as reader:
            assert reader.end() == ""


def open_copy(text: str) -> None:
    expected = content(70000)
    for mode in (None, "private"):
        mapping = umf.open(text, mode=mode)
        assert (mapping.mode, len(mapping), mapping.readonly) == ("private", 70000, False)
        assert bytes(memoryview(mapping)) == expected
        memoryview(mapping)[:5] = b"12345"
    assert umf.fetch(text) == expected
    for options in ({"mode": "shared"}, {"mode": "readonly"}, {"readonly": True}):
        with pytest.raises(umf.NotSupportedError, match="mode=.private.*umf.fetch"):
            umf.open(text, **options)


def test_handle_is_a_plain_value() -> None:
    with process("produce", "100", "200") as producer:
        with process("check_values", producer.line(), producer.line()) as reader:
            pid = int(reader.end())
        assert pid == producer.child.pid


def check_values(text: str, other: str) -> None:
    handle = umf.RemoteHandle(text)
    assert (str(handle), handle.size, handle.handle.size) == (text, 100, 100)
    assert handle.pid == handle.handle.pid
    assert handle.provider in handle.address and "127.0.0.1" in handle.address
    for same in (
        umf.RemoteHandle(bytes(handle)),
        umf.RemoteHandle(handle),
        pickle.loads(pickle.dumps(handle)),
    ):
        assert same == handle and hash(same) == hash(handle)
    assert umf.RemoteHandle(other) != handle
    assert repr(handle).startswith("<umf.RemoteHandle of 100 bytes of process ")
    assert umf.why(handle).state == umf.why(text).state == "current"
    damaged = bytearray(bytes(handle))
    damaged[-5] ^= 1
    for source in (bytes(damaged), bytes(handle)[:-1], bytes(handle.handle), text[:-1], "umfr1.*"):
        with pytest.raises(umf.HandleError):
            umf.RemoteHandle(source)
    for source in (bytes(damaged), bytes(handle)[:-1], text[:-1], "umfr1.*"):
        with pytest.raises(umf.HandleError):
            umf.open(source)
        with pytest.raises(umf.HandleError):
            umf.fetch(source)
    say(handle.pid)


# Arrays.


def produce_arrays() -> None:
    with umf.serve():
        made = arrays()
        for array in made:
            say(umf.remote_handle(array))
        sys.stdin.readline()


def arrays() -> list[Any]:
    numbers = umf.array(numpy.arange(60_000, dtype=numpy.float64).reshape(200, 300))
    frozen = umf.array(numpy.arange(5, dtype="<i2"))
    frozen.flags.writeable = False
    records = umf.zeros(7, dtype=[("time", "<M8[ns]"), ("value", "<f4", (2,))])
    records["value"] = 3
    return [
        numbers,
        numbers.T,
        numbers[3:100:2, ::-7],
        numbers[5],
        frozen,
        records,
        umf.empty((3, 0)),
        umf.array(numpy.float32(2)),
    ]


def test_arrays_are_opened_and_fetched() -> None:
    with process("produce_arrays") as producer:
        handles = [producer.line() for _ in range(8)]
        with process("read_arrays", *handles) as reader:
            assert reader.end() == ""


def read_arrays(*texts: str) -> None:
    for text, expected in zip(texts, arrays(), strict=True):
        handle = umf.ArrayHandle.from_text(text)
        assert umf.ArrayHandle.from_bytes(bytes(handle)) == handle and str(handle) == text
        for found in (
            umf.open(text),
            umf.fetch(text),
            umf.fetch(handle, out=numpy.empty(expected.shape, expected.dtype)),
            umf.fetch(handle, out=numpy.empty(expected.shape, expected.dtype, order="F")),
        ):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert (found == expected).all()
            assert found.flags.writeable
        with pytest.raises(ValueError, match="same shape and type"):
            umf.fetch(handle, out=numpy.empty(11, expected.dtype))
        with pytest.raises(TypeError, match="pass a numpy array"):
            umf.fetch(handle, out=bytearray(expected.nbytes))
        with pytest.raises(ValueError, match="part of an array"):
            umf.fetch(handle, offset=8)
        with pytest.raises(umf.NotSupportedError):
            umf.open(handle, mode="shared")


# The same machine.


def test_memory_of_this_machine_is_mapped() -> None:
    with process("produce", "5000") as producer:
        text = producer.line()
        with process("map_local", text, UMF_REMOTE_LOCAL="true") as reader:
            assert reader.end() == ""


def map_local(text: str) -> None:
    handle = umf.RemoteHandle(text)
    assert handle.is_local
    mapping = umf.open(handle)
    assert (mapping.mode, mapping.is_current) == ("shared", True)
    memoryview(mapping)[:5] = b"12345"
    for source in (text, handle.handle, bytes(handle.handle)):
        assert umf.fetch(source) == b"12345" + content(5000)[5:]
        assert umf.fetch(source, offset=1, size=3) == b"234"
    assert umf.open(text, mode="readonly").readonly
    assert umf.open(text, mode="private").mode == "private"


# Errors.


def test_fetch_after_free_is_stale() -> None:
    with process("produce", "100", "100000") as producer:
        handles = [producer.line(), producer.line()]
        with process("read_until_stale", *handles) as reader:
            assert reader.line() == "read"
            producer.tell("free")
            assert producer.line() == "freed"
            reader.tell("go on")
            assert reader.end() == ""
        with process("expect_stale", *handles) as reader:
            assert reader.end() == ""


def read_until_stale(*texts: str) -> None:
    for text in texts:
        assert umf.fetch(text) == content(umf.RemoteHandle(text).size)
    say("read")
    sys.stdin.readline()
    expect_stale(*texts)


def expect_stale(*texts: str) -> None:
    for text in texts:
        with pytest.raises(umf.StaleError, match="stale handle"):
            umf.fetch(text)
        with pytest.raises(umf.StaleError):
            umf.fetch(text, out=bytearray(10))
        with pytest.raises(umf.StaleError):
            umf.open(text)


@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "not connected"])
def test_read_of_killed_producer_fails(is_connected: bool) -> None:
    with process("produce", "100000") as producer:
        text, first = producer.line(), "read" if is_connected else ""
        with process("read_lost", text, first, UMF_REMOTE_TIMEOUT_MS=PATIENCE) as reader:
            if is_connected:
                assert reader.line() == "read"
            producer.child.kill()
            producer.child.wait(WAIT)
            reader.tell("go on")
            assert reader.end() == ""


def read_lost(text: str, first: str) -> None:
    if first:
        umf.fetch(text)
        say("read")
    sys.stdin.readline()
    for call in (umf.fetch, umf.open):
        with pytest.raises((umf.ProducerLostError, umf.TimeoutError)) as caught:
            call(text)
        assert isinstance(caught.value, (ConnectionError, TimeoutError))
        assert "127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("size", ["100", "2000000"])
def test_read_of_frozen_producer_times_out_and_works_again_later(size: str) -> None:
    with process("produce", size) as producer:
        with process("read_frozen", producer.line(), UMF_REMOTE_TIMEOUT_MS=PATIENCE) as reader:
            assert reader.line() == "read"
            producer.freeze()
            reader.tell("go on")
            assert reader.line() == "timed out"
            producer.child.send_signal(signal.SIGCONT)
            reader.tell("go on")
            assert reader.end() == ""


def read_frozen(text: str) -> None:
    expected = umf.fetch(text)
    say("read")
    sys.stdin.readline()
    with pytest.raises(umf.TimeoutError, match="UMF_REMOTE_TIMEOUT_MS"):
        umf.fetch(text)
    say("timed out")
    sys.stdin.readline()
    while True:
        # The producer may still be about to wake up.
        with contextlib.suppress(umf.TimeoutError, umf.ProducerLostError):
            assert umf.fetch(text) == expected
            return


def test_signal_handler_ends_a_fetch() -> None:
    with process("produce", str(128 << 20)) as producer:
        with process("be_interrupted", producer.line()) as reader:
            assert reader.end() == ""


def be_interrupted(text: str) -> None:
    expected = umf.fetch(text)
    out = bytearray(len(expected))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for _ in range(50):
        out[-8:] = bytes(8)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            umf.fetch(text, out=out)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            # Otherwise the signal came too late, and a longer fetch would have been ended.
            if out[-8:] == bytes(8):
                break
    else:
        raise AssertionError("no fetch was ended")
    assert umf.fetch(text, out=out) == expected


@pytest.mark.parametrize("size", ["100", "2000000"])
def test_interrupt_ends_a_fetch_from_a_frozen_producer(size: str) -> None:
    with process("produce", size) as producer:
        text = producer.line()
        with process("be_interrupted_while_frozen", text, UMF_REMOTE_TIMEOUT_MS=AN_HOUR) as reader:
            assert reader.line() == "read"
            producer.freeze()
            reader.tell("go on")
            assert reader.line() == "fetching"
            time.sleep(0.2)
            reader.child.send_signal(signal.SIGINT)
            assert reader.end() == "interrupted"
            producer.child.send_signal(signal.SIGCONT)


def be_interrupted_while_frozen(text: str) -> None:
    umf.fetch(text)
    say("read")
    sys.stdin.readline()
    try:
        say("fetching")
        umf.fetch(text)
    except KeyboardInterrupt:
        say("interrupted")


# The server.


def test_serving_ends_with_its_last_object() -> None:
    with process("serve_twice") as producer:
        assert producer.end() == ""


def serve_twice() -> None:
    block = umf.Pool.shared().allocate(100)
    with pytest.raises(umf.RemoteError, match="does not serve"):
        block.remote_handle()
    with umf.serve() as first, umf.serve() as second:
        assert first.address == second.address and "127.0.0.1" in first.address
        assert repr(first) == f"<umf.Serving at {first.address}>"
        first.close()
        assert first.closed and not second.closed
        with pytest.raises(umf.ClosedError):
            _ = first.address
        block.remote_handle()
        umf.fetch(block.remote_handle())
        assert second.stats()["importers"] == 1
        assert second.stats()["requests"] > 0
        assert set(second.stats().values()) != {0}
    first.close()
    with pytest.raises(umf.RemoteError, match="does not serve"):
        block.remote_handle()


def test_process_ends_while_it_serves_and_reads() -> None:
    with process("end_while_serving") as producer:
        assert producer.end() == ""


def end_while_serving() -> None:
    global kept
    kept = umf.serve(), umf.Pool.shared().allocate(100000)
    umf.fetch(kept[1].remote_handle())


def test_forked_child_reads_and_has_no_server() -> None:
    with process("fork_server") as producer:
        with process("fork_reader", producer.line()) as reader:
            assert reader.end() == ""
        producer.tell("end")
        assert producer.end() == ""


def in_child(run: Any) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def fork_server() -> None:
    serving = umf.serve()
    array = umf.array(numpy.arange(50_000))
    text = str(umf.remote_handle(array))

    def child() -> None:
        with pytest.raises(umf.ForkError):
            _ = serving.address
        serving.close()
        own = umf.array(numpy.arange(3))
        with pytest.raises(umf.RemoteError, match="does not serve"):
            umf.remote_handle(own)
        with umf.serve():
            assert (umf.fetch(umf.remote_handle(own)) == own).all()

    in_child(child)
    say(text)
    sys.stdin.readline()
    serving.close()


def fork_reader(text: str) -> None:
    def read() -> None:
        assert (umf.fetch(text) == numpy.arange(50_000)).all()

    read()
    in_child(read)
    read()


def test_threads_fetch_at_the_same_time() -> None:
    with process("produce", "100", "3000000") as producer:
        with process("fetch_in_threads", producer.line(), producer.line()) as reader:
            assert reader.end() == ""


def fetch_in_threads(*texts: str) -> None:
    found: list[bytes] = []

    def fetch(text: str) -> None:
        found.extend(umf.fetch(text) for _ in range(10))

    threads = [threading.Thread(target=fetch, args=(text,)) for text in texts * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    assert set(found) == {content(100), content(3000000)}


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
