"""Memory of devices, on the software drivers. Each test runs in a process of its own."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import pytest

import umf

SIZE = 1 << 20
DEVICE_KINDS = ["auto", "virtual", "device"]


def environment(driver: str, folder: pathlib.Path, **more: str) -> dict[str, str]:
    """Returns the environment of a process that uses a software driver."""
    from conftest import software_driver

    library = software_driver(driver)
    variables = dict(os.environ, **more)
    if driver == "cuda":
        # By name, so that libraries of others find it too.
        (folder / "libcuda.so.1").symlink_to(library)
        before = os.environ.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = f"{folder}:{before}" if before else str(folder)
    else:
        (folder / "umf.toml").write_text(f"[provider.level-zero]\npath = '{library}'\n")
        variables["UMF_TOML"] = str(folder / "umf.toml")
    return variables


def without_driver(folder: pathlib.Path) -> dict[str, str]:
    """Returns the environment of a process that finds no driver."""
    (folder / "umf.toml").write_text(
        "[provider.cuda]\npath = '/nonexistent'\n[provider.level-zero]\npath = '/nonexistent'\n"
    )
    return dict(os.environ, UMF_TOML=str(folder / "umf.toml"))


def python(variables: dict[str, str], *arguments: str) -> str:
    """Calls a function of this file in a new process, and returns what it prints."""
    child = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout.strip()


def child(name: str, *arguments: str) -> str:
    """Calls a function in a process with the environment of this one."""
    return python(dict(os.environ), name, *arguments)


def live(pool: umf.Pool) -> int:
    gc.collect()
    return pool.stats()["live_blocks"]


def pool_of(driver: str, memory: str, device: int = 0) -> umf.Pool:
    if driver == "cuda":
        return umf.Pool.cuda(device, memory=memory)
    return umf.Pool.level_zero(device, memory="device" if memory == "auto" else memory)


# What the processes do.


def copies(driver: str, memory: str) -> None:
    pool = pool_of(driver, memory)
    on_host = memory in ("host", "managed")
    assert pool.memory_kind == (memory if on_host else "device")
    block = pool.allocate(SIZE)
    assert block.is_host_accessible == on_host
    data = os.urandom(SIZE)
    block.from_host(data)
    assert block.to_host() == data
    block.from_host(numpy.arange(4, dtype=numpy.int64), offset=100)
    assert list(numpy.frombuffer(block.to_host(offset=100, size=32), dtype=numpy.int64)) == [
        0,
        1,
        2,
        3,
    ]
    into = numpy.zeros((2, 50), dtype=numpy.uint8)
    assert block.to_host(into) is into and into.tobytes() == data[:100]
    assert block.to_host(offset=SIZE) == b""
    block.from_host(b"", offset=SIZE)
    wrong = [
        (ValueError, lambda: block.to_host(offset=SIZE + 1)),
        (ValueError, lambda: block.to_host(offset=1, size=SIZE)),
        (umf.Error, lambda: block.to_host(bytearray(2), offset=SIZE - 1)),
        (umf.Error, lambda: block.from_host(b"ab", offset=SIZE - 1)),
        (umf.Error, lambda: block.from_host(b"", offset=SIZE + 1)),
        (OverflowError, lambda: block.from_host(b"a", offset=-1)),
        (BufferError, lambda: block.to_host(b"read-only")),
        (ValueError, lambda: block.from_host(numpy.zeros((4, 4))[:, ::2])),
        (TypeError, lambda: block.from_host("text")),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    if on_host:
        assert bytes(memoryview(block)[:100]) == data[:100]
    else:
        for view in (memoryview, numpy.frombuffer):
            with pytest.raises(BufferError, match="to_host"):
                view(block)
    block.free()
    with pytest.raises(umf.ClosedError):
        block.to_host()


def shares(driver: str, memory: str) -> None:
    pool = pool_of(driver, memory)
    block = pool.allocate(SIZE)
    data = os.urandom(SIZE)
    block.from_host(data)
    digest = str(sum(data))
    assert child("reads", str(block.handle())) == digest
    with tempfile.TemporaryDirectory() as folder:
        variables = without_driver(pathlib.Path(folder))
        python(variables, "needs_a_driver", str(block.handle()))
    message = block.send_handle()
    assert child("reads", str(message)) == digest
    # The block is freed with a message in transit.
    message, plain = block.send_handle(), block.handle()
    block.free()
    for _ in range(4):
        other = pool.allocate(SIZE)
        other.from_host(bytes(SIZE))
    with pytest.raises(umf.StaleError):
        umf.open(plain)
    assert child("reads", str(message)) == digest
    with pytest.raises(umf.TicketClaimedError):
        umf.open(message)
    assert umf.in_transit() == 0
    assert umf.drain(10.0) == 0


def needs_a_driver(handle: str) -> None:
    with pytest.raises(umf.NotSupportedError, match="install"):
        umf.open(handle)


def reads(handle: str) -> None:
    with umf.open(handle) as mapping:
        assert not mapping.is_host_accessible
        with pytest.raises(BufferError, match="to_host"):
            memoryview(mapping)
        print(sum(mapping.to_host()))
        if not umf.Handle(handle).has_ticket:
            mapping.from_host(mapping.to_host())
    with umf.open(handle, readonly=True) if not umf.Handle(handle).has_ticket else mapping:
        pass


def passes_on(driver: str, memory: str) -> None:
    """A message goes over a second process after its block was freed."""
    pool = pool_of(driver, memory)
    block = pool.allocate(SIZE)
    data = os.urandom(SIZE)
    block.from_host(data)
    message = block.send_handle()
    block.free()
    assert child("passes", str(message)) == str(sum(data))
    assert umf.drain(10.0) == 0


def passes(handle: str) -> None:
    with umf.open(handle) as mapping:
        message = mapping.send_handle()
    print(child("reads", str(message)))
    assert umf.in_transit() == 0


def tensors(driver: str, memory: str, device: str) -> None:
    pool = pool_of(driver, memory, int(device))
    block = pool.allocate(1000)
    block.from_host(bytes([7]) * 1000)
    kinds = {"host": (3, 0), "managed": (13, int(device))}
    expected = kinds.get(memory, (2, int(device))) if driver == "cuda" else (14, int(device))
    assert block.__dlpack_device__() == expected
    before = live(pool)
    capsule = block.__dlpack__(max_version=(1, 0), stream=1)
    block.free()
    assert live(pool) == before
    del capsule
    assert live(pool) == before - 1
    block = pool.allocate(1000)
    block.from_host(bytes([7]) * 1000)
    for wrong in (
        {"dl_device": (1, 1)},
        {"dl_device": (2, 5)},
        {"copy": True},
        {"dl_device": (1, 0), "stream": 1},
    ):
        with pytest.raises(BufferError):
            block.__dlpack__(**wrong)
    if memory in ("host", "managed"):
        array = (
            numpy.from_dlpack(block) if driver == "cuda" else numpy.from_dlpack(block, device="cpu")
        )
        array[:] = 8
        assert block.to_host() == bytes([8]) * 1000
    else:
        with pytest.raises(BufferError, match="copy=None"):
            block.__dlpack__(dl_device=(1, 0), copy=False)
        array = numpy.from_dlpack(block, device="cpu")
        assert array.tolist() == [7] * 1000
        block.from_host(bytes(1000))
        assert array.tolist() == [7] * 1000


def cuda_arrays(memory: str) -> None:
    assert not hasattr(umf.Pool.shared().allocate(8), "__cuda_array_interface__")
    pool = umf.Pool.cuda(memory=memory)
    block = pool.allocate(1000)
    address = block.address
    assert block.__cuda_array_interface__ == {
        "shape": (1000,),
        "typestr": "|u1",
        "data": (address, False),
        "version": 3,
        "strides": None,
        "stream": None,
    }
    # A consumer keeps the object and no buffer.
    before = live(pool)
    block.free()
    assert live(pool) == before
    del block
    assert live(pool) == before - 1


def mapped_cuda_arrays(handle: str) -> None:
    with umf.open(handle) as mapping:
        assert mapping.__dlpack_device__() == (2, 1)
        assert mapping.__cuda_array_interface__["data"] == (mapping.address, False)
    with umf.open(handle, readonly=True) as mapping:
        assert mapping.__cuda_array_interface__["data"] == (mapping.address, True)
        with pytest.raises(umf.Error):
            mapping.from_host(b"a")
        with pytest.raises(BufferError, match="max_version"):
            mapping.__dlpack__()


def other_device_is_known_in_other_processes() -> None:
    block = umf.Pool.cuda(1).allocate(SIZE)
    child("mapped_cuda_arrays", str(block.handle()))


def frees_after_a_stream() -> None:
    pool = umf.Pool.cuda()
    block = pool.allocate(SIZE)
    block.free_after(0)
    assert block.freed
    with pytest.raises(umf.ClosedError):
        block.free_after(0)
    end = time.monotonic() + 30
    while pool.stats()["held_bytes"] and time.monotonic() < end:
        umf.drain(0.1)
    assert pool.stats()["held_bytes"] == 0 and live(pool) == 0
    # A tensor is in use: it keeps the memory.
    block = pool.allocate(SIZE)
    capsule = block.__dlpack__()
    block.free_after(0)
    assert live(pool) == 1
    del capsule
    assert live(pool) == 0
    with pytest.raises(umf.NotSupportedError, match="synchronize"):
        umf.Pool.shared().allocate(8).free_after(0)


def forks(driver: str) -> None:
    pool = pool_of(driver, "auto")
    block = pool.allocate(SIZE)
    block.from_host(bytes([1]) * SIZE)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(umf.ForkError):
                pool.allocate(8)
            with pytest.raises(umf.Error):
                block.to_host()
            block.free()
            del block
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert block.to_host() == bytes([1]) * SIZE


def leaves_at_exit(driver: str) -> None:
    import threading

    pool = pool_of(driver, "auto")
    block = pool.allocate(SIZE)

    def copy() -> None:
        while True:
            block.to_host()

    threading.Thread(target=copy, daemon=True).start()
    globals().update(kept=(pool, block, block.__dlpack__(), pool.allocate(SIZE).__dlpack__()))
    time.sleep(0.05)


def fails(driver: str, name: str, text: str) -> None:
    try:
        pool_of(driver, "auto").allocate(256 << 20)
    except umf.Error as error:
        assert type(error) is getattr(umf, name), repr(error)
        assert text in str(error), str(error)
    else:
        raise AssertionError("there was memory")


def wrong_arguments() -> None:
    for call in (
        lambda: umf.Pool.cuda(memory="no such"),
        lambda: umf.Pool.level_zero(memory="virtual"),
        lambda: umf.Pool.cuda(-1),
    ):
        with pytest.raises((ValueError, OverflowError)):
            call()
    with pytest.raises(umf.Error):
        umf.Pool.cuda(1000)


def serves_cuda_core() -> None:
    from cuda.core import Buffer, Device, LegacyPinnedMemoryResource

    import umf.cuda

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    resource = umf.cuda.MemoryResource()
    assert (resource.is_device_accessible, resource.is_host_accessible) == (True, False)
    assert (resource.device_id, resource.is_managed) == (0, False)
    buffer = resource.allocate(SIZE, stream=stream)
    assert isinstance(buffer, Buffer) and buffer.size == SIZE and buffer.memory_resource is resource
    buffer.fill(5, stream=stream)
    host = LegacyPinnedMemoryResource().allocate(SIZE)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    assert (numpy.from_dlpack(host).view(numpy.uint8) == 5).all()
    block = resource.block(buffer)
    assert child("reads", str(block.handle())) == str(5 * SIZE)
    message = block.send_handle()
    buffer.close(stream)
    with pytest.raises(ValueError):
        resource.block(buffer)
    assert child("reads", str(message)) == str(5 * SIZE)
    # Closed without a stream, and by the garbage collector.
    resource.allocate(SIZE, stream=stream).close()
    other = resource.allocate(SIZE, stream=stream)
    del other
    gc.collect()
    stream.sync()
    assert not resource._blocks
    assert umf.drain(10.0) == 0
    resource.allocate(0, stream=stream).close()
    with pytest.raises(MemoryError):
        resource.allocate(1 << 40, stream=stream)
    device.memory_resource = resource
    assert device.allocate(100, stream=stream).memory_resource is resource
    pinned = umf.cuda.MemoryResource(memory="host")
    assert pinned.is_host_accessible
    with pytest.raises(RuntimeError):
        _ = pinned.device_id
    assert umf.cuda.MemoryResource(memory="managed").is_managed
    assert umf.cuda.MemoryResource(1).device_id == 1
    with pytest.raises(ValueError, match=r"umf\.Pool\.cuda"):
        umf.cuda.MemoryResource(pool=umf.Pool.shared())
    named = umf.cuda.MemoryResource(pool=umf.Pool.over("cuda"))
    named.allocate(SIZE, stream=stream).close(stream)
    assert not named._blocks


# The tests.

CASES = [("cuda", memory) for memory in (*DEVICE_KINDS, "host", "managed")]
CASES += [("ze", memory) for memory in ("device", "host", "managed")]
SHARED = [case for case in CASES if case[1] not in ("host", "managed")]


@pytest.mark.parametrize("driver, memory", CASES)
def test_copies_to_and_from_the_host(tmp_path: pathlib.Path, driver: str, memory: str) -> None:
    python(environment(driver, tmp_path), "copies", driver, memory)


@pytest.mark.parametrize("driver, memory", SHARED)
def test_other_process_reads_device_memory(
    tmp_path: pathlib.Path, driver: str, memory: str
) -> None:
    python(environment(driver, tmp_path), "shares", driver, memory)


@pytest.mark.parametrize("driver, memory", SHARED)
def test_message_is_passed_on(tmp_path: pathlib.Path, driver: str, memory: str) -> None:
    python(environment(driver, tmp_path), "passes_on", driver, memory)


@pytest.mark.parametrize("driver, memory", CASES)
@pytest.mark.parametrize("device", ["0", "1"])
def test_tensors_name_their_device(
    tmp_path: pathlib.Path, driver: str, memory: str, device: str
) -> None:
    python(environment(driver, tmp_path), "tensors", driver, memory, device)


@pytest.mark.parametrize("memory", [*DEVICE_KINDS, "host", "managed"])
def test_cuda_array_interface(tmp_path: pathlib.Path, memory: str) -> None:
    python(environment("cuda", tmp_path), "cuda_arrays", memory)


@pytest.mark.parametrize(
    "name",
    ["other_device_is_known_in_other_processes", "frees_after_a_stream", "wrong_arguments"],
)
def test_cuda(tmp_path: pathlib.Path, name: str) -> None:
    python(environment("cuda", tmp_path), name)


@pytest.mark.parametrize("driver", ["cuda", "ze"])
@pytest.mark.parametrize("name", ["forks", "leaves_at_exit"])
def test_end_of_processes(tmp_path: pathlib.Path, driver: str, name: str) -> None:
    python(environment(driver, tmp_path), name, driver)


@pytest.mark.parametrize(
    "driver, variable, name, text",
    [
        ("cuda", "CUDA_SOFT_MEMORY=64M", "OutOfMemoryError", "memory"),
        ("cuda", "CUDA_SOFT_FAULTS=cuDeviceGet:*=CUDA_ERROR_UNKNOWN", "DeviceError", "cuDeviceGet"),
        ("cuda", "CUDA_SOFT_FAULTS=cuMemCreate:*=CUDA_ERROR_UNKNOWN", "DeviceError", "cuMemCreate"),
        ("ze", "ZE_SOFT_MEMORY=64M", "OutOfMemoryError", "memory"),
    ],
)
def test_failures_of_the_driver(
    tmp_path: pathlib.Path, driver: str, variable: str, name: str, text: str
) -> None:
    key, value = variable.split("=", 1)
    python(environment(driver, tmp_path, **{key: value}), "fails", driver, name, text)


@pytest.mark.parametrize("driver", ["cuda", "ze"])
def test_missing_driver_is_an_error_with_a_remedy(tmp_path: pathlib.Path, driver: str) -> None:
    python(without_driver(tmp_path), "fails", driver, "NotSupportedError", "install")


def test_memory_resource_of_cuda_core(tmp_path: pathlib.Path) -> None:
    try:
        import cuda.bindings
        import cuda.core  # noqa: F401
    except ImportError as error:
        pytest.skip(f"cuda.core and cuda.bindings cannot be imported: {error}")
    python(environment("cuda", tmp_path), "serves_cuda_core")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
