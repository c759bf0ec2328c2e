"""Tensors in queues, arguments and results of torch's multiprocessing, and in its DataLoader.

UMF_TEST_WAIT is the time in seconds that the workers of a DataLoader wait between two epochs.
"""

import contextlib
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy
import pytest

import umf
import umf.arrays

try:
    import torch
except ModuleNotFoundError:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, get_worker_info

import umf.torch

umf.torch.install()

METHODS = ["fork", "spawn", "forkserver"]
WAIT = float(os.environ.get("UMF_TEST_WAIT", "0.5"))
TIMEOUT = 60


def is_umf(given: Any) -> bool:
    """Returns whether a tensor or storage is in umf memory."""
    storage = umf.torch._untyped(given) if isinstance(given, torch.Tensor) else given
    return umf.torch._find(storage) is not None


def released() -> bool:
    gc.collect()
    return umf.drain(10.0) == 0 and umf.in_transit() == 0


def fds(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def torch_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}


def run(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@contextlib.contextmanager
def process(context: Any, target: Any, *arguments: Any) -> Iterator[Any]:
    """Runs a child process, which has to end by itself."""
    child = context.Process(target=target, args=arguments)
    child.start()
    try:
        yield child
        child.join(TIMEOUT)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


# What tensors in pools are


def test_import_installs_nothing() -> None:
    source = """
import torch, torch.multiprocessing, torch.utils.data
from multiprocessing.reduction import ForkingPickler
def state():
    storage = torch.UntypedStorage
    made = getattr(storage._new_shared, "__func__", None)
    methods = (made, storage.is_shared, storage.share_memory_)
    loop = torch.utils.data._utils.worker._worker_loop
    return dict(ForkingPickler._extra_reducers), methods, loop
before = state()
import umf.multiprocessing
arrays = state()
import umf.torch
assert arrays == state() and not umf.torch.installed()
umf.torch.install()
umf.torch.install()
assert arrays != state() and umf.torch.installed()
umf.torch.uninstall()
umf.torch.uninstall()
assert arrays == state() and not umf.torch.installed()
assert arrays[1:] == before[1:]
"""
    child = run(source)
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (2, 3, 4)])
def test_tensors_of_a_pool(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    lengths = shape or (shape,)
    for made in (
        umf.torch.zeros(shape, dtype=dtype),
        umf.torch.empty(*lengths, dtype=dtype).zero_(),
    ):
        assert made.shape == shape and made.dtype == dtype
        assert is_umf(made) and made.is_shared() and made.is_contiguous()
        assert torch.equal(made, torch.zeros(shape, dtype=dtype))
    given = torch.ones(shape, dtype=dtype)
    copied = umf.torch.tensor(given)
    assert is_umf(copied) and torch.equal(copied, given)
    given.zero_()
    assert copied.numel() == 0 or not torch.equal(copied, given)


def test_copy_has_the_order_of_dimensions() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    made = umf.torch.tensor(image)
    assert made.stride() == image.stride() and torch.equal(made, image)
    wide = umf.torch.tensor(torch.arange(3).expand(4, 3))
    assert torch.equal(wide, torch.arange(3).expand(4, 3))
    assert umf.torch.tensor([1.5, 2]).tolist() == [1.5, 2]
    weights = umf.torch.zeros(2, requires_grad=True)
    weights.sum().backward()
    assert weights.grad is not None and weights.grad.tolist() == [1, 1]


def test_memory_of_a_tensor_ends_with_its_last_view() -> None:
    pool = umf.Pool.shared()
    made = umf.torch.zeros(1 << 18, pool=pool)
    view = made[5:7]
    del made
    assert pool.stats()["live_blocks"] == 1
    del view
    gc.collect()
    assert pool.stats()["live_blocks"] == 0


@pytest.mark.parametrize(
    "make", [umf.torch.from_umf, lambda block: torch.frombuffer(block, dtype=torch.uint8)]
)
def test_free_under_a_live_tensor_keeps_the_memory(make: Any) -> None:
    pool = umf.Pool.shared()
    block = pool.allocate(1 << 20)
    made = make(block)
    made.fill_(7)
    block.free()
    others = [pool.allocate(1 << 20) for _ in range(8)]
    for other in others:
        memoryview(other)[:] = bytes(1 << 20)
    assert made.min() == made.max() == 7
    # It cannot be sent by ticket any more, so torch moves it.
    queue = torch.multiprocessing.get_context("fork").Queue()
    queue.put(made)
    assert queue.get(timeout=TIMEOUT).sum() == 7 << 20
    del made, block
    gc.collect()
    assert pool.stats()["live_blocks"] == len(others)


def test_close_under_a_live_tensor_keeps_the_mapping() -> None:
    block = umf.Pool.shared().allocate(1 << 16)
    umf.torch.from_umf(block).fill_(9)
    mapping = umf.open(block.handle())
    made = umf.torch.from_umf(mapping, torch.int16)
    mapping.close()
    block.free()
    assert umf.drain(0) >= 1 << 16
    assert (made == 0x0909).all()
    del made
    assert released()


def test_memory_of_a_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="whole elements"):
        umf.torch.from_umf(umf.Pool.shared().allocate(10), torch.float32)


def test_read_only_handle_opens_as_a_private_copy() -> None:
    block = umf.Pool.shared().allocate(1 << 16)
    shared = umf.torch.from_umf(block).fill_(5)
    with pytest.raises(BufferError, match='mode="private"'):
        umf.torch.from_umf(umf.open(block.handle(), mode="readonly"))
    message = block.send_handle()
    mapping = umf.open(message, mode="private")
    assert (mapping.mode, mapping.readonly, len(mapping)) == ("private", False, 1 << 16)
    made = umf.torch.from_umf(mapping)
    assert made.data_ptr() % 64 == 0 and not is_umf(made) and not made.is_shared()
    shared[0] = 1
    made[1] = 2
    assert made[:3].tolist() == [5, 2, 5] and shared[:3].tolist() == [1, 5, 5]
    with pytest.raises(umf.Error, match="private copy"):
        mapping.send_handle()
    with pytest.raises(umf.Error, match="private copy"):
        _ = mapping.is_current
    del block, shared
    assert released()  # The copy keeps no memory of the producer.
    mapping.close()
    assert made[:3].tolist() == [5, 2, 5]


def test_modes_of_open() -> None:
    block = umf.Pool.shared().allocate(64)
    handle = block.handle()
    assert umf.open(handle).mode == umf.open(handle, mode="shared").mode == "shared"
    assert (
        umf.open(handle, readonly=True).mode == umf.open(handle, mode="readonly").mode == "readonly"
    )
    for wrong in ({"mode": "copy"}, {"mode": "private", "readonly": True}):
        with pytest.raises(ValueError, match="cannot open a handle"):
            umf.open(handle, **wrong)
    block.free()
    with pytest.raises(umf.StaleError):
        umf.open(handle, mode="private")


def test_share_memory_leaves_a_tensor_where_it_is() -> None:
    made = umf.torch.zeros(10)
    place = made.data_ptr()
    assert made.share_memory_() is made and made.data_ptr() == place and is_umf(made)
    plain = torch.zeros(10)
    assert not plain.is_shared()
    assert plain.share_memory_().is_shared() and not is_umf(plain)
    model = torch.nn.Linear(3, 3)
    model.weight.data = umf.torch.tensor(model.weight.data)
    model.share_memory()
    assert is_umf(model.weight) and all(given.is_shared() for given in model.parameters())


def test_private_and_read_only_memory_is_not_sent_by_ticket() -> None:
    queue = torch.multiprocessing.get_context("fork").Queue()
    block = umf.Pool.private().allocate(64)
    private = umf.torch.from_umf(block).fill_(3)
    assert not private.is_shared()
    shared = umf.torch.zeros(16)
    read_only = umf.open(umf.arrays.send_handle(shared.numpy()).handle, readonly=True)
    with pytest.warns(UserWarning, match="not writ"):
        of_read_only = torch.frombuffer(read_only, dtype=torch.float32)
    for given in (private, of_read_only):
        queue.put(given)
        got = queue.get(timeout=TIMEOUT)
        assert torch.equal(got, given) and not is_umf(got)
        got.fill_(1)
    assert shared.sum() == 0


# Messages


def add_and_return(received: Any, sent: Any) -> None:
    while (given := received.get()) is not None:
        given.add_(1)
        sent.put((is_umf(given), given.is_shared(), given.sum().item()))
        del given


def pass_on(received: Any, sent: Any) -> None:
    while (given := received.get()) is not None:
        sent.put(given)
        del given
    sent.put(None)


@pytest.mark.parametrize("method", METHODS)
def test_queue_put_and_del(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    queue, results = context.Queue(), context.Queue()
    with process(context, add_and_return, queue, results) as child:
        for number in range(50):
            queue.put(umf.torch.tensor(torch.full((1000,), number)))
            if number == 5:
                assert results.get(timeout=TIMEOUT) == (True, True, 1000)
                before = fds(), fds(child.pid)
        for number in range(1, 50):
            assert results.get(timeout=TIMEOUT) == (True, True, 1000 * (number + 1))
        assert fds() <= before[0] + 2 and fds(child.pid) <= before[1] + 2
        shared = umf.torch.zeros(10)
        queue.put(shared)
        assert results.get(timeout=TIMEOUT) == (True, True, 10)
        assert shared.sum() == 10
        queue.put(None)
    del shared
    assert released()


def test_ten_thousand_tensors_in_flight() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, sent = context.Queue(), context.Queue()
    with process(context, pass_on, queue, sent):
        queue.put(umf.torch.zeros(1))
        sent.get(timeout=TIMEOUT)
        before = fds()
        for number in range(10_000):
            queue.put(umf.torch.empty(16).fill_(number))
        queue.put(None)
        got = [sent.get(timeout=TIMEOUT) for _ in range(10_000)]
        assert fds() <= before + 20
        assert all(given[0] == number for number, given in enumerate(got))
        assert sent.get(timeout=TIMEOUT) is None
    del got
    assert released()


@pytest.mark.parametrize("method", METHODS)
def test_tensor_goes_over_a_second_process_after_the_first_has_freed_it(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    first, second = context.Queue(), context.Queue()
    with process(context, pass_on, first, second):
        for number in range(10):
            first.put(umf.torch.tensor(torch.full((100,), number)))
        gc.collect()
        first.put(None)
        for number in range(10):
            got = second.get(timeout=TIMEOUT)
            assert is_umf(got) and (got == number).all()
        assert second.get(timeout=TIMEOUT) is None
    del got
    assert released()


def fill_and_double(given: torch.Tensor) -> torch.Tensor:
    given.fill_(4)
    return umf.torch.tensor(given * 2)


@pytest.mark.parametrize("method", METHODS)
def test_results_of_pool_map(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        given = [umf.torch.zeros(100) for _ in range(10)]
        results = pool.map(fill_and_double, given)
        assert all((one == 4).all() for one in given)
        assert all((one == 8).all() and is_umf(one) for one in results)


def send_own(queue: Any, barrier: Any) -> None:
    made = umf.torch.zeros(100)
    queue.put([made, made])
    barrier.wait(TIMEOUT)
    made.fill_(6)
    barrier.wait(TIMEOUT)


@pytest.mark.parametrize("method", METHODS)
def test_sender_and_receiver_share_the_memory(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    queue, barrier = context.Queue(), context.Barrier(2)
    with process(context, send_own, queue, barrier):
        got = queue.get(timeout=TIMEOUT)
        assert got[0] is got[1] and got[0].sum() == 0
        barrier.wait(TIMEOUT)
        barrier.wait(TIMEOUT)
        assert (got[0] == 6).all()
    # The producer has ended. Its memory stays as long as the tensor.
    assert (got[0] == 6).all()


def test_storage_has_one_ticket_in_a_message() -> None:
    queue = torch.multiprocessing.get_context("fork").Queue()
    whole = umf.torch.tensor(torch.arange(24.0).reshape(4, 6))
    views = [whole, whole[1:3, ::2], whole.T, whole[2, 3:4], whole[:0], umf.torch._untyped(whole)]
    halves = torch.frombuffer(umf.Pool.shared().allocate(64), dtype=torch.uint8).split(32)
    queue.put([*views, *halves])
    while queue.empty():
        time.sleep(0.01)
    assert umf.in_transit() == 2
    *got, untyped, low, high = queue.get(timeout=TIMEOUT)
    assert umf.in_transit() == 0
    assert len({umf.torch._untyped(one)._cdata for one in got} | {untyped._cdata}) == 1
    assert umf.torch._untyped(low)._cdata == umf.torch._untyped(high)._cdata
    for one, view in zip(got, views, strict=False):
        assert torch.equal(one, view)
        assert (one.stride(), one.storage_offset()) == (view.stride(), view.storage_offset())
    assert untyped._cdata == umf.torch._untyped(whole)._cdata  # In its own process, as with torch.
    got[0][2, 3] = 100
    assert whole[2, 3] == got[3][0] == 100
    # A storage that is still open is found again.
    queue.put(whole)
    again = queue.get(timeout=TIMEOUT)
    assert umf.torch._untyped(again)._cdata == untyped._cdata


BEYOND_THE_LIMIT = """
import pickle, sys, warnings, torch, umf, umf.torch, umf.multiprocessing
from multiprocessing.reduction import ForkingPickler
umf.torch.install()
umf.multiprocessing.send_timeout = 0.01
warnings.simplefilter("ignore")
made = [umf.torch.tensor(torch.full((1 << 16,), number)) for number in range(8)]
messages = [ForkingPickler.dumps([one, one[5:]]) for one in made]
assert [len(message) > 1 << 19 for message in messages] == [False] * 2 + [True] * 6
del made
for number, message in enumerate(messages):
    whole, part = pickle.loads(message)
    assert (whole == number).all() and whole.numel() == 1 << 16
    whole[5] = -1
    assert part[0] == -1
assert umf.in_transit() == 0
"""


def test_messages_beyond_the_limit_of_bytes_in_transit_arrive_as_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UMF_IPC_MAX_IN_TRANSIT", str(1 << 20))
    child = run(BEYOND_THE_LIMIT)
    assert child.returncode == 0, child.stderr


class Tagged(torch.Tensor):
    """A subclass, which torch pickles by `__reduce_ex__`."""


def made() -> torch.Tensor:
    return umf.torch.tensor(torch.arange(6.0))


def sparse() -> torch.Tensor:
    indices, values = umf.torch.tensor([[0, 2, 4]]), umf.torch.tensor([1.0, 2, 3])
    return torch.sparse_coo_tensor(indices, values, (5,))


KINDS = {
    "parameter": lambda: torch.nn.Parameter(made()),
    "integer parameter": lambda: torch.nn.Parameter(umf.torch.tensor([1, 2]), requires_grad=False),
    "leaf": lambda: umf.torch.zeros(3, requires_grad=True),
    "bool": lambda: umf.torch.tensor(made() > 2),
    "bfloat16": lambda: umf.torch.tensor(made(), dtype=torch.bfloat16),
    "sparse": sparse,
    "subclass": lambda: made().as_subclass(Tagged),
    "typed storage": lambda: made().storage(),
    "from numpy": lambda: torch.from_numpy(umf.arrays.array(numpy.arange(5))),
    "dictionary": lambda: {"a": made(), "b": torch.zeros(2)},
    "quantized": lambda: torch.quantize_per_tensor(made(), 0.5, 1, torch.qint8),
    "empty": lambda: torch.empty(0, 3),
    "meta": lambda: torch.empty(2, 3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([made(), made()[:2]]),
}


def text(given: Any) -> tuple[str, ...]:
    if isinstance(given, dict):
        return tuple(text(value)[0] for value in given.values())
    gradient = str(getattr(given, "requires_grad", None))
    return f"{type(given).__name__} {given} {gradient} {getattr(given, 'layout', '')}", gradient


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_kinds_of_tensors_arrive_as_with_torch(kind: str) -> None:
    def outcome() -> Any:
        given = KINDS[kind]()
        try:
            got = pickle.loads(ForkingPickler.dumps(given))
            return type(got), text(got)
        except Exception as error:  # What this version of torch cannot pickle or print.
            return type(error)

    ours = outcome()
    umf.torch.uninstall()
    try:
        assert outcome() == ours
    finally:
        umf.torch.install()


def test_tensor_with_a_history_is_refused_as_with_torch() -> None:
    made = umf.torch.zeros(3, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(made)


def test_copies_of_tensors_are_plain() -> None:
    made = umf.torch.zeros(3)
    assert not is_umf(copy.deepcopy(made)) and not is_umf(made.clone())


def test_plain_tensors_go_by_torchs_way() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, results = context.Queue(), context.Queue()
    with process(context, add_and_return, queue, results):
        plain = torch.zeros(10)
        queue.put(plain)
        assert results.get(timeout=TIMEOUT) == (False, True, 10)
        assert plain.sum() == 10 and plain.is_shared() and not is_umf(plain)
        queue.put(None)


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 10), (60, 10), (0, 65), (0, 0), (0, -5), (1 << 70, 1)]
)
def test_storage_outside_of_its_memory_is_refused(offset: int, size: int) -> None:
    block = umf.Pool.shared().allocate(64)
    with pytest.raises(umf.HandleError, match="cannot open a storage"):
        umf.torch._open_storage(umf.open(block.handle()), offset, size, 0, 0)


def send_inherited(queue: Any, barrier: Any, given: torch.Tensor) -> None:
    queue.put([given, given[1:]])
    barrier.wait(TIMEOUT)
    given.fill_(2)
    barrier.wait(TIMEOUT)


def test_child_sends_what_it_inherited() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, barrier = context.Queue(), context.Barrier(2)
    made = umf.torch.zeros(10)
    with process(context, send_inherited, queue, barrier, made):
        got, view = queue.get(timeout=TIMEOUT)
        assert is_umf(got) and got.sum() == 0
        assert umf.torch._untyped(got)._cdata == umf.torch._untyped(view)._cdata
        barrier.wait(TIMEOUT)
        barrier.wait(TIMEOUT)
        assert made.sum() == 20  # The child still shares the tensor with its parent.


# DataLoader


class Numbers(Dataset):
    """Samples of a tensor and a Python number, which `default_collate` treats differently."""

    def __init__(self, length: int, size: int = 100) -> None:
        self.length = length
        self.size = size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, float]:
        if index >= self.length:
            raise IndexError
        return torch.full((self.size,), float(index)), index, index / 2


def check_epoch(loader: Any, length: int, batch: int) -> None:
    start = 0
    for samples, labels, halves in loader:
        assert is_umf(samples) and is_umf(labels) and is_umf(halves) and samples.is_shared()
        expected = torch.arange(start, min(start + batch, length))
        assert torch.equal(labels, expected) and torch.equal(halves, expected / 2)
        assert torch.equal(samples[:, -1], expected.float())
        start += batch
    assert start >= length


def loader_of(method: str, length: int) -> Any:
    return DataLoader(
        Numbers(length),
        batch_size=5,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
        multiprocessing_context=method,
    )


@pytest.mark.parametrize("method", METHODS)
def test_epochs_need_no_further_descriptors(method: str) -> None:
    files = torch_files()
    loader = loader_of(method, 203)
    check_epoch(loader, 203, 5)
    pids = [worker.pid for worker in loader._iterator._workers]
    before = fds(), [fds(pid) for pid in pids]
    for _ in range(3):
        check_epoch(loader, 203, 5)
    kept = list(loader)
    assert fds() <= before[0] + 2
    assert all(fds(pid) <= count + 2 for pid, count in zip(pids, before[1], strict=True))
    assert torch_files() <= files
    del loader
    gc.collect()
    # The workers have ended.
    assert torch.equal(torch.cat([labels for _, labels, _ in kept]), torch.arange(203))


def test_persistent_workers_wait_between_epochs() -> None:
    loaders = [loader_of(method, 103) for method in METHODS]
    for loader in loaders:
        check_epoch(loader, 103, 5)
    time.sleep(WAIT)
    for loader in loaders:
        check_epoch(loader, 103, 5)
    # Batches wait in the queues while the main process does something else.
    epochs = [iter(loader) for loader in loaders]
    first = [next(epoch) for epoch in epochs]
    time.sleep(WAIT)
    for (_, labels, _), epoch in zip(first, epochs, strict=True):
        rest = [labels for _, labels, _ in epoch]
        assert torch.equal(torch.cat([labels, *rest]), torch.arange(103))


class Large(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << 18,), float(index))


def test_memory_of_read_batches_is_used_again() -> None:
    loader = DataLoader(Large(), batch_size=1, num_workers=1)
    largest = 0
    for at, batch in enumerate(loader):
        assert batch[0, -1] == at
        with open("/proc/self/status") as lines:
            shared = next(line for line in lines if line.startswith("RssShmem"))
        largest = max(largest, int(shared.split()[1]))
    assert largest < 100 << 10  # kB: a quarter of what was sent


LIMITED = """
import resource, sys, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index): return torch.full((10,), float(index)), index
if sys.argv[1] == "umf":
    import umf.torch
    umf.torch.install()
loader = DataLoader(Numbers(), batch_size=1, num_workers=2, prefetch_factor=100, timeout=20)
batches = iter(loader)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
batches = list(batches)
assert [int(labels) for _, labels in batches] == list(range(400))
assert all((samples == index).all() for index, (samples, _) in enumerate(batches))
print("all")
"""


def test_sixty_four_descriptors_are_enough() -> None:
    with_umf = run(LIMITED, "umf")
    assert with_umf.stdout.strip() == "all", with_umf.stderr
    # With torch alone, each batch that the main process keeps has a descriptor.
    alone = run(LIMITED, "torch")
    assert alone.returncode != 0 and "pen files" in alone.stderr


class Killed(Numbers):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, float]:
        if index == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_killed_worker_ends_the_epoch_and_leaves_nothing() -> None:
    files = torch_files()
    got = []
    loader = DataLoader(Killed(100), batch_size=5, num_workers=1)
    with pytest.raises(RuntimeError, match="worker"):
        for samples, _, _ in loader:
            got.append(samples)
    assert got and all((one[:, 0] == 5 * at + torch.arange(5)).all() for at, one in enumerate(got))
    check_epoch(DataLoader(Numbers(20), batch_size=5, num_workers=1), 20, 5)
    del got, samples, loader
    assert released() and torch_files() <= files


class Rows(Dataset):
    """Samples that are parts of a large tensor, and tensors that share a storage."""

    def __init__(self) -> None:
        self.rows = torch.arange(100_000.0).reshape(100, 10, 100)
        self.shared = torch.zeros(4).share_memory_()
        self.inherited = umf.torch.tensor(self.rows)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        made = torch.full((10,), float(index))
        return self.rows[index].T, made, made[2:], self.shared, self.inherited[index]


def test_samples_that_no_collate_has_copied() -> None:
    rows = Rows()
    for at, sample in enumerate(DataLoader(rows, batch_size=None, num_workers=2)):
        row, made, part, shared, inherited = sample
        assert is_umf(row) and is_umf(made) and torch.equal(row, rows.rows[at].T)
        assert row.stride() == rows.rows[at].T.stride() and torch.equal(inherited, rows.rows[at])
        assert max(umf.torch._untyped(one).nbytes() for one in (row, inherited)) < 8192
        assert umf.torch._untyped(made)._cdata == umf.torch._untyped(part)._cdata
        assert not is_umf(shared) and is_umf(inherited)
    shared.fill_(1)
    assert rows.shared.sum() == 4  # Moved by the user: torch shares it.
    assert not rows.rows.is_shared()


def own_collate(samples: list[Any]) -> tuple[Any, bool]:
    return torch.stack([sample for sample, _, _ in samples]), get_worker_info() is not None


INSTALLED_IN_MAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import test_torch
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        loader = test_torch.DataLoader(test_torch.Numbers(20), batch_size=5, num_workers=1,
            collate_fn=test_torch.own_collate, multiprocessing_context=method)
        for batch, in_worker in loader:
            assert in_worker and test_torch.is_umf(batch)
    print("all")
"""


def test_workers_with_an_own_collate(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INSTALLED_IN_MAIN)
    child = subprocess.run(
        [sys.executable, program, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert child.stdout.strip() == "all", child.stderr


def test_spawned_worker_is_installed_by_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch, torch.utils.data
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.zeros(3), index
if __name__ == "__main__":
    import umf.torch
    umf.torch.install()
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn")
    for samples, labels in loader:
        assert umf.torch._find(umf.torch._untyped(samples)) and samples.is_shared()
        assert umf.torch._find(umf.torch._untyped(labels))
    print("all")
"""
    )
    child = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert child.stdout.strip() == "all", child.stderr


def test_example_of_a_data_loader() -> None:
    example = Path(__file__).parents[1] / "examples" / "dataloader.py"
    child = subprocess.run(
        ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", sys.executable, example],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert child.stdout.startswith("500 batches, mean 0.5"), child.stderr


def test_exit_with_live_tensors_is_clean() -> None:
    source = """
import threading, time, torch, umf.torch
umf.torch.install()
made = umf.torch.zeros(1 << 16)
queue = torch.multiprocessing.get_context("fork").Queue()
queue.put(made)
received = queue.get()
def touch():
    while True:
        received.add_(1)
        time.sleep(0.001)
threading.Thread(target=touch, daemon=True).start()
time.sleep(0.05)
print("end")
"""
    child = run(source)
    assert (child.returncode, child.stdout.strip()) == (0, "end"), child.stderr
