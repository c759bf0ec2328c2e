"""Blocks and mappings as DLPack tensors."""

import ctypes
import gc
import pathlib
import subprocess
import sys

import numpy
import pytest

import umf

LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"

api = ctypes.pythonapi
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def read(capsule: object, name: bytes) -> "Legacy | Versioned":
    assert api.PyCapsule_IsValid(capsule, name)
    kind = Legacy if name == LEGACY else Versioned
    return kind.from_address(api.PyCapsule_GetPointer(capsule, name))


USED = [b"used_dltensor", b"used_dltensor_versioned"]


def consume(capsule: object, name: bytes) -> tuple[int, int]:
    """Renames the capsule as a consumer does. Returns the deleter and its argument."""
    pointer = api.PyCapsule_GetPointer(capsule, name)
    deleter = read(capsule, name).deleter
    assert api.PyCapsule_SetName(capsule, USED[name == VERSIONED]) == 0
    return deleter, pointer


@pytest.fixture
def pool() -> umf.Pool:
    return umf.Pool.shared()


def live(pool: umf.Pool) -> int:
    gc.collect()
    return pool.stats()["live_blocks"]


def test_numpy_shares_the_memory(pool: umf.Pool) -> None:
    block = pool.allocate(4096)
    array = numpy.from_dlpack(block)
    assert array.dtype == numpy.uint8 and array.shape == (4096,)
    array[:] = 3
    assert bytes(memoryview(block)[:4]) == bytes([3] * 4)
    assert array.ctypes.data == block.address


@pytest.mark.parametrize("frees", [True, False])
def test_tensor_keeps_the_memory(pool: umf.Pool, frees: bool) -> None:
    before = live(pool)
    block = pool.allocate(1 << 16)
    array = numpy.from_dlpack(block)
    array[:] = 5
    if frees:
        block.free()
        with pytest.raises(umf.ClosedError):
            block.__dlpack__()
    del block
    others = [pool.allocate(1 << 16) for _ in range(4)]
    for other in others:
        memoryview(other)[:] = bytes(1 << 16)
    assert array.min() == array.max() == 5
    del other, others
    assert live(pool) == before + 1
    del array
    assert live(pool) == before


@pytest.mark.parametrize("name", [LEGACY, VERSIONED])
def test_tensor_describes_the_memory(pool: umf.Pool, name: bytes) -> None:
    block = pool.allocate(1000)
    capsule = block.__dlpack__(max_version=None if name == LEGACY else (1, 3))
    found = read(capsule, name)
    tensor = found.tensor
    assert (tensor.data, tensor.byte_offset) == (block.address, 0)
    assert (tensor.device_type, tensor.device_id) == (1, 0) == block.__dlpack_device__()
    assert (tensor.code, tensor.bits, tensor.lanes) == (1, 8, 1)
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, 1000, 1)
    if isinstance(found, Versioned):
        assert (found.major, found.minor, found.flags) == (1, 3, 0)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_version_is_what_the_consumer_reads(pool: umf.Pool, version: "tuple | None") -> None:
    name = LEGACY if version is None or version < (1, 0) else VERSIONED
    assert api.PyCapsule_IsValid(pool.allocate(8).__dlpack__(max_version=version), name)


@pytest.mark.parametrize("name", [LEGACY, VERSIONED])
def test_capsule_without_consumer_releases_the_memory(pool: umf.Pool, name: bytes) -> None:
    before = live(pool)
    capsule = pool.allocate(64).__dlpack__(max_version=None if name == LEGACY else (1, 0))
    assert live(pool) == before + 1
    del capsule
    assert live(pool) == before


@pytest.mark.parametrize("name", [LEGACY, VERSIONED])
def test_consumed_capsule_does_not_release_the_memory(pool: umf.Pool, name: bytes) -> None:
    before = live(pool)
    capsule = pool.allocate(64).__dlpack__(max_version=None if name == LEGACY else (1, 0))
    deleter, pointer = consume(capsule, name)
    del capsule
    assert live(pool) == before + 1
    # A call by ctypes runs without the interpreter's lock.
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(pointer)
    assert live(pool) == before


def test_deleter_runs_in_a_thread_of_the_consumer(pool: umf.Pool) -> None:
    """A thread of the C library, which the interpreter does not know."""
    before = live(pool)
    capsule = pool.allocate(64).__dlpack__(max_version=(1, 0))
    deleter, pointer = consume(capsule, VERSIONED)
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    start = ctypes.c_void_p(deleter)
    assert libc.pthread_create(ctypes.byref(thread), None, start, ctypes.c_void_p(pointer)) == 0
    assert libc.pthread_join(thread, None) == 0
    assert live(pool) == before


AFTER_THE_END = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import umf, test_dlpack
pool = umf.Pool.shared()
for name, version in ((test_dlpack.LEGACY, None), (test_dlpack.VERSIONED, (1, 0))):
    capsule = pool.allocate(1 << 20).__dlpack__(max_version=version)
    deleter, pointer = test_dlpack.consume(capsule, name)
    # Runs after the interpreter has ended.
    at_exit = ctypes.CDLL(None).__cxa_atexit
    assert at_exit(ctypes.c_void_p(deleter), ctypes.c_void_p(pointer), None) == 0
print("end")
"""


def test_deleter_runs_after_the_interpreter_has_ended() -> None:
    folder = str(pathlib.Path(__file__).parent)
    child = subprocess.run(
        [sys.executable, "-c", AFTER_THE_END, folder],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "end\n", "")


def test_mapping_of_another_process_is_a_tensor(pool: umf.Pool) -> None:
    block = pool.allocate(4096)
    mapping = umf.open(block.handle())
    array = numpy.from_dlpack(mapping)
    array[:] = 9
    assert bytes(memoryview(block)[:2]) == b"\t\t"
    mapping.close()
    del mapping
    block.free()
    assert umf.drain(0) >= 4096
    assert array.sum() == 9 * 4096
    del array
    assert umf.drain(5.0) == 0


def test_read_only_mapping_is_a_read_only_tensor(pool: umf.Pool) -> None:
    block = pool.allocate(64)
    mapping = umf.open(block.handle(), readonly=True)
    with pytest.raises(BufferError, match="max_version"):
        mapping.__dlpack__()
    assert read(mapping.__dlpack__(max_version=(1, 0)), VERSIONED).flags == 1
    copy = mapping.__dlpack__(copy=True)
    assert read(copy, LEGACY).tensor.data != mapping.address
    if tuple(map(int, numpy.__version__.split(".")[:2])) < (2, 1):
        pytest.skip(f"numpy {numpy.__version__} does not read the versioned form")
    assert not numpy.from_dlpack(mapping).flags.writeable


def test_copy_is_independent(pool: umf.Pool) -> None:
    block = pool.allocate(1000)
    memoryview(block)[:] = bytes([1]) * 1000
    capsule = block.__dlpack__(max_version=(1, 0), copy=True)
    found = read(capsule, VERSIONED)
    assert found.flags == 2 and found.tensor.data % 64 == 0
    memoryview(block)[:] = bytes([2]) * 1000
    assert ctypes.string_at(found.tensor.data, 1000) == bytes([1]) * 1000


@pytest.mark.parametrize(
    "request_",
    [
        {"dl_device": (2, 0)},
        {"dl_device": (1, 1)},
        {"dl_device": (14, 0)},
        {"stream": 1},
        {"stream": 0},
        {"stream": "a stream"},
    ],
)
def test_impossible_requests_are_refused(pool: umf.Pool, request_: dict) -> None:
    block = pool.allocate(64)
    with pytest.raises(BufferError):
        block.__dlpack__(**request_)
    for wrong in ({"max_version": 1}, {"dl_device": "cpu"}, {"copy": 7}, {"no such": 1}):
        with pytest.raises(TypeError):
            block.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        block.__dlpack__(None)


def test_torch_reads_the_memory(pool: umf.Pool) -> None:
    try:
        import torch
    except ImportError as error:
        pytest.skip(f"torch cannot be imported: {error}")
    before = live(pool)
    block = pool.allocate(64)
    tensor = torch.from_dlpack(block)
    tensor.fill_(4)
    assert bytes(memoryview(block)) == bytes([4]) * 64
    del block
    assert int(tensor.sum()) == 4 * 64
    del tensor
    assert live(pool) == before
