"""Blocks, mappings and handles, between processes."""

import gc
import os
import pickle
import re
import subprocess
import sys

import numpy
import pytest

import umf


def run(source: str, *arguments: str) -> str:
    """Runs a program in a new interpreter and returns what it prints."""
    child = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


READ = """
import sys, umf
with umf.open(sys.argv[1]) as mapping:
    print(bytes(mapping[:5] if hasattr(mapping, "__getitem__") else memoryview(mapping)[:5]))
"""


@pytest.fixture
def pool() -> umf.Pool:
    return umf.Pool.shared()


def test_block_is_a_buffer(pool: umf.Pool) -> None:
    block = pool.allocate(4096)
    assert len(block) == 4096
    view = memoryview(block)
    assert (view.nbytes, view.readonly, view.format) == (4096, False, "B")
    array = numpy.frombuffer(block, dtype=numpy.float64)
    array[:] = 2.5
    assert bytes(view[:8]) == array[:1].tobytes()
    assert array.ctypes.data == block.address


def test_other_process_reads_a_block(pool: umf.Pool) -> None:
    block = pool.allocate(4096)
    memoryview(block)[:5] = b"hello"
    assert run(READ, str(block.handle())) == "b'hello'"


def test_message_opens_after_its_block_was_freed(pool: umf.Pool) -> None:
    block = pool.allocate(4096)
    memoryview(block)[:5] = b"hello"
    plain, message = block.handle(), block.send_handle()
    assert message.has_ticket and not plain.has_ticket
    block.free()
    with pytest.raises(umf.StaleError, match="get a new handle"):
        umf.open(plain)
    assert run(READ, str(message)) == "b'hello'"
    with pytest.raises(umf.TicketClaimedError):
        umf.open(message)
    assert umf.in_transit() == 0
    assert umf.drain(5.0) == 0


def test_memory_of_freed_block_lives_as_long_as_its_array(pool: umf.Pool) -> None:
    block = pool.allocate(1 << 20)
    array = numpy.frombuffer(block, dtype=numpy.uint8)
    array[:] = 7
    block.free()
    assert block.freed
    with pytest.raises(umf.ClosedError):
        memoryview(block)
    with pytest.raises(umf.ClosedError):
        block.handle()
    others = [pool.allocate(1 << 20) for _ in range(8)]
    for other in others:
        memoryview(other)[:] = bytes(1 << 20)
    assert array.min() == array.max() == 7
    before = pool.stats()["live_blocks"]
    del array, block
    gc.collect()
    assert pool.stats()["live_blocks"] == before - 1


def test_array_keeps_its_mapping_open(pool: umf.Pool) -> None:
    block = pool.allocate(1 << 16)
    numpy.frombuffer(block, dtype=numpy.uint8)[:] = 9
    mapping = umf.open(block.handle())
    array = numpy.frombuffer(mapping, dtype=numpy.uint8)
    mapping.close()
    block.free()
    assert umf.drain(0) >= 1 << 16
    assert array.sum() == 9 << 16
    del array
    assert umf.drain(5.0) == 0


def test_read_only_mapping_gives_read_only_arrays(pool: umf.Pool) -> None:
    block = pool.allocate(64)
    mapping = umf.open(block.handle(), readonly=True)
    assert mapping.readonly
    assert not numpy.frombuffer(mapping, dtype=numpy.uint8).flags.writeable
    with pytest.raises((BufferError, ValueError, TypeError)):
        memoryview(mapping)[0] = 1


def test_private_block_cannot_be_exported() -> None:
    with pytest.raises(umf.Error, match="use shared memory"):
        umf.Pool.private().allocate(64).handle()


@pytest.mark.parametrize("source", [b"", b"x" * 256, "umf1.", "text", b"UMFH" + bytes(252)])
def test_wrong_bytes_are_not_a_handle(source: bytes | str) -> None:
    with pytest.raises(umf.HandleError):
        umf.open(source)


def test_handle_is_a_value(pool: umf.Pool) -> None:
    handle = pool.allocate(64).handle()
    for copy in (
        umf.Handle(bytes(handle)),
        umf.Handle(str(handle)),
        pickle.loads(pickle.dumps(handle)),
    ):
        assert copy == handle and hash(copy) == hash(handle)
    assert handle.pid == os.getpid() and len(bytes(handle)) == 256


def test_pool_of_the_parent_is_refused_in_a_forked_child(pool: umf.Pool) -> None:
    block = pool.allocate(64)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pool.allocate(64)
        except umf.ForkError:
            other = umf.Pool.shared().allocate(64)
            memoryview(other)[:2] = b"ok"
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(memoryview(block)) == 64


def test_exit_with_live_arrays_is_clean() -> None:
    source = """
import threading, time, numpy, umf
pool = umf.Pool.shared()
block = pool.allocate(1 << 16)
array = numpy.frombuffer(block, dtype=numpy.uint8)
mapping = umf.open(block.send_handle())
def touch():
    while True:
        array[:] = 1
        time.sleep(0.001)
threading.Thread(target=touch, daemon=True).start()
time.sleep(0.05)
print("end")
"""
    assert run(source) == "end"


def test_memory_that_the_machine_does_not_have_is_an_error() -> None:
    sizes = dict(re.findall(r"(MemTotal|SwapTotal): +([0-9]+)", open("/proc/meminfo").read()))
    beyond = sum(int(size) for size in sizes.values()) * 1024 + (1 << 30)
    for size in (beyond, 1 << 50):
        with pytest.raises(umf.OutOfMemoryError) as caught:
            umf.empty(size, numpy.uint8)
        assert isinstance(caught.value, MemoryError)


def test_array_in_memory_that_a_freed_block_had_before_is_found() -> None:
    pool = umf.Pool.shared()
    freed = [pool.allocate(4096) for _ in range(600)]
    for block in freed:
        block.free()
    large = umf.empty(2 << 20, numpy.uint8)
    for start in range(0, len(large), 4096):
        part = large[start : start + 4096]
        part[:] = start // 4096 % 251
        assert (umf.open(umf.handle(part)) == part).all()


def test_handle_of_a_received_array_claims_no_message() -> None:
    sent = umf.array(numpy.arange(10))
    message = umf.send_handle(sent, readers=2)
    received = umf.open(message)
    plain = umf.handle(received)
    assert umf.Handle(message.handle).has_ticket and not umf.Handle(plain.handle).has_ticket
    umf.open(plain)
    assert umf.in_transit() == 1
    del sent
    gc.collect()
    with pytest.raises(umf.StaleError):
        umf.open(plain)
    assert umf.open(message)[9] == 9


FULL = """
import threading, time
import numpy, umf
kept = umf.array(numpy.arange(10_000))
message = umf.send_handle(kept)
small = umf.array(numpy.arange(1000))
for _ in range(2):
    try:
        umf.send_handle(small)
    except umf.TransitFullError as error:
        assert isinstance(error, umf.LimitError) and "ipc.max_in_transit" in str(error)
    else:
        raise AssertionError
threading.Timer(0.5, lambda: umf.open(message)).start()
sent = umf.send_handle(small, timeout=60)
umf.cancel(sent.handle)
del small
try:
    umf.open(sent)
except umf.TicketExpiredError as error:
    print("expired")
"""


def test_send_waits_as_long_as_it_is_told() -> None:
    environment = {**os.environ, "UMF_IPC_MAX_IN_TRANSIT": "64KiB"}
    done = subprocess.run(
        [sys.executable, "-c", FULL], check=False, capture_output=True, text=True, env=environment
    )
    assert done.stdout == "expired\n", done


def test_limits_and_settings_are_errors_of_their_own() -> None:
    program = "import umf; umf.Pool.shared().allocate(1 << 24)"
    for variable, value, name in (
        ("UMF_POOL_SHARED_MEMORY_LIMIT", "8MiB", "umf.LimitError"),
        ("UMF_IPC_EXPIRE_AFTER_MS", "3 elephants", "umf.SettingsError"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, variable: value},
        )
        assert name in done.stderr, done


def test_drain_is_interrupted() -> None:
    program = """
import signal, threading, time
import umf
block = umf.Pool.shared().allocate(100)
message = block.send_handle()
block.free()
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    umf.drain(1e9)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout == "interrupted\n", done
