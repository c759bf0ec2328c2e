"""torch tensors in shared memory of a pool, and torch's multiprocessing by tickets.

Importing this module changes nothing. `install()` does: tensors whose memory is in umf then cross
process boundaries as a handle of 256 bytes, without a file descriptor and without a file in
/dev/shm, and the workers of a `DataLoader` make their batches in a pool. All other tensors are sent
as torch sends them. See docs/python-torch.md.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

from umf import _umf

try:
    import torch
    import torch.multiprocessing
    import torch.utils.data
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "umf.torch needs torch, which is not installed; run: pip install torch", name=error.name
    ) from error

import torch.multiprocessing.reductions
import torch.utils.data._utils.worker

__all__ = ["empty", "from_umf", "install", "installed", "tensor", "uninstall", "zeros"]


# Internal to torch, and without types.
reductions: Any = torch.multiprocessing.reductions
worker: Any = torch.utils.data._utils.worker

# Tensors in a pool


def _untyped(given: torch.Tensor) -> torch.UntypedStorage:
    """Returns the storage of a tensor."""
    has_untyped = hasattr(given, "untyped_storage")  # From torch 2.0 on.
    anything: Any = given
    found = anything.untyped_storage() if has_untyped else anything.storage().untyped()
    return cast("torch.UntypedStorage", found)


def _new_storage(size: int, pool: _umf.Pool | None = None) -> torch.UntypedStorage:
    """Returns a storage of at least one byte in memory of the pool."""
    if pool is None:
        from umf.arrays import default_pool

        pool = default_pool()
    # The storage keeps the buffer, which keeps the block.
    return _untyped(torch.frombuffer(pool.allocate(size), dtype=torch.uint8))


def _new_tensor(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, pool: _umf.Pool | None
) -> torch.Tensor:
    made = torch.empty(0, dtype=dtype)
    size = made.element_size()
    for length, stride in zip(shape, strides, strict=True):
        size += made.element_size() * stride * max(length - 1, 0)
    return made.set_(_new_storage(size, pool), 0, tuple(shape), tuple(strides))


def empty(
    *shape: Any,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    pool: _umf.Pool | None = None,
) -> torch.Tensor:
    """Returns a CPU tensor in memory of the pool. Its content is undefined.

    The memory is freed when no tensor uses it any more.
    """
    form = torch.empty(*shape, dtype=dtype, device="meta")
    made = _new_tensor(form.shape, form.stride(), form.dtype, pool)
    return made.requires_grad_(requires_grad)


def zeros(
    *shape: Any,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    pool: _umf.Pool | None = None,
) -> torch.Tensor:
    """Returns a CPU tensor of zeros in memory of the pool."""
    return empty(*shape, dtype=dtype, pool=pool).zero_().requires_grad_(requires_grad)


def tensor(
    source: Any,
    *,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    pool: _umf.Pool | None = None,
) -> torch.Tensor:
    """Copies a dense tensor of any device, or what torch makes one of, to memory of the pool."""
    given = torch.as_tensor(source, dtype=dtype).detach()
    return _copy(given, pool).requires_grad_(requires_grad)


def _copy(given: torch.Tensor, pool: _umf.Pool | None = None) -> torch.Tensor:
    """Copies a dense tensor to memory of the pool, with its order of dimensions."""
    form = torch.empty_like(given, device="meta")
    return _new_tensor(given.shape, form.stride(), given.dtype, pool).copy_(given)


def from_umf(source: _umf.Block | _umf.Mapping, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Returns a tensor of one dimension over all memory of a block or mapping, without a copy.

    The memory is kept as long as a tensor uses it, even if `free` or `close` is called.
    """
    if memoryview(source).readonly:
        raise BufferError(
            "cannot make a tensor of a read-only mapping: torch has no read-only tensors; open the "
            'handle with mode="private", which makes a copy, or with mode="shared"'
        )
    if len(source) % torch.empty(0, dtype=dtype).element_size():
        raise ValueError(
            f"cannot make a tensor of {dtype} of {len(source)} bytes: they are not whole elements; "
            "use torch.uint8 and a slice"
        )
    return torch.frombuffer(source, dtype=dtype)


# Storages as messages

_torch_is_shared: Any = torch.UntypedStorage.is_shared
_torch_reduce_storage = reductions.reduce_storage
_torch_reduce_tensor = reductions.reduce_tensor
_torch_new_shared: Any = torch.UntypedStorage._new_shared
_torch_share_memory: Any = torch.UntypedStorage.share_memory_

_is_forked = False


def _after_fork() -> None:
    global _is_forked
    _is_forked = True
    # Of messages that threads of the parent were pickling.
    _copies.clear()


os.register_at_fork(after_in_child=_after_fork)


def _find(storage: torch.UntypedStorage) -> tuple[Any, int] | None:
    """Returns the block or mapping that a storage lies in, and its offset there."""
    if storage.device.type != "cpu" or storage.nbytes() == 0:
        return None
    found: tuple[Any, int] | None = _umf.find(storage.data_ptr(), storage.nbytes())
    return found


def _can_send(owner: Any) -> bool:
    """Returns whether other processes can open the memory for writing."""
    try:
        if isinstance(owner, _umf.Block):
            # Fails if it was freed, is of a private pool, or belongs to the parent process.
            owner.handle()
        elif owner.readonly:
            return False
        elif _is_forked:
            # Fails if the parent has opened it, and its block was freed since.
            _umf.cancel(owner.send_handle())
    except _umf.Error:
        return False
    return True


def _key(address: int, size: int) -> tuple[str, int, int]:
    """Returns the key of a storage in torch's cache of received storages."""
    return ("umf", address, size)


def _open_storage(
    mapping: _umf.Mapping, offset: int, size: int, sender: int, sent: int
) -> torch.UntypedStorage:
    """Returns the storage in a received mapping: the same one as long as it exists.

    `sent` is the address in the process `sender`, if the block is of that process.
    """
    if _is_wanted is None:
        # Otherwise this process would pass the tensor on by torch's way, which moves it elsewhere.
        install()
    if offset < 0 or not 0 < size <= len(mapping) - offset:
        raise _umf.HandleError(
            f"cannot open a storage of {size} bytes at {offset}: it does not lie in the "
            f"{len(mapping)} bytes of its handle; send the tensor again"
        )
    key = _key(mapping.address + offset, size)
    # The block is still at that address: its ticket was unclaimed until now.
    for known in (_key(sent, size), key) if sent and sender == os.getpid() else (key,):
        storage: torch.UntypedStorage | None = reductions.storage_from_cache(
            torch.UntypedStorage, known
        )
        # Torch may have moved a storage since.
        if storage is not None and _key(storage.data_ptr(), storage.nbytes()) == known:
            return storage
    made = _untyped(torch.frombuffer(mapping, dtype=torch.uint8, count=size, offset=offset))
    reductions.shared_cache[key] = reductions.StorageWeakRef(made)
    return made


# The copies of storages that are being pickled, by thread and storage. The pickler keeps them.
_copies: weakref.WeakValueDictionary[tuple[int, int], torch.UntypedStorage] = (
    weakref.WeakValueDictionary()
)


def _same(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


def _copies_instead(storage: torch.UntypedStorage, found: tuple[Any, int] | None) -> bool:
    """Returns whether a storage that has no ticket is sent as a copy, and not by torch's way."""
    in_worker = torch.utils.data.get_worker_info() is not None
    if found is not None:
        # Torch would move what a forked child shares with its parent.
        return in_worker or _is_forked
    is_plain = storage.device.type == "cpu" and storage.nbytes() > 0
    return in_worker and is_plain and not _torch_is_shared(storage)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    found = _find(storage)
    if found is not None and _can_send(found[0]):
        owner, offset = found
        size, sent = storage.nbytes(), 0
        if isinstance(owner, _umf.Block):
            sent = storage.data_ptr()
            reductions.shared_cache[_key(sent, size)] = reductions.StorageWeakRef(storage)
        # The pickler reduces the owner once in a message: one ticket for all storages in it.
        return _open_storage, (owner, offset, size, os.getpid(), sent)
    if not _copies_instead(storage, found):
        return _torch_reduce_storage(storage)
    key = (threading.get_ident(), storage._cdata)
    copy = _copies.get(key)
    if copy is None:
        copy = _copies[key] = _new_storage(storage.nbytes()).copy_(storage)
    return _same, (copy,)


def _reduce_tensor(given: torch.Tensor) -> Any:
    """Copies a small part of a large storage, if `_reduce_storage` would copy all of it."""
    is_special = given.is_quantized or given.is_nested or given.requires_grad
    # Only older versions have names of dimensions, and refuse to send them.
    is_special = is_special or getattr(given, "has_names", bool)()
    if given.device.type == "cpu" and given.layout == torch.strided and not is_special:
        storage = _untyped(given)
        if 2 * given.numel() * given.element_size() < storage.nbytes():
            found = _find(storage)
            is_sent = found is not None and _can_send(found[0])
            if not is_sent and _copies_instead(storage, found):
                given = _copy(given)
    return _torch_reduce_tensor(given)


# What `install` puts in place of torch's


def _is_shared(storage: torch.UntypedStorage) -> bool:
    found = _find(storage)
    if found is None:
        return bool(_torch_is_shared(storage))
    owner, _ = found
    # A forked child cannot ask a block of its parent, but shares its memory.
    return _is_forked or not isinstance(owner, _umf.Block) or _can_send(owner)


def _share_memory(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    if not _is_shared(storage):
        _torch_share_memory(storage)
    return storage


def _new_shared(size: int, *, device: Any = "cpu") -> torch.UntypedStorage:
    if torch.device(device).type != "cpu" or size == 0:
        return cast("torch.UntypedStorage", _torch_new_shared(size, device=device))
    return _new_storage(size)


_torch_worker_loop = worker._worker_loop


def _worker_loop(*arguments: Any) -> Any:
    """Runs a worker of a `DataLoader`. Spawned workers find this function by its name."""
    install()
    return _torch_worker_loop(*arguments)


_MISSING = object()

# Whether `install` or `uninstall` was called last. `None`: neither.
_is_wanted: bool | None = None
# What was there before: reducers by class, and attributes by object and name.
_old_reducers: dict[type, Any] = {}
_old_attributes: list[tuple[Any, str, Any]] = []


def _reducers() -> dict[type, Any]:
    found: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return found


def installed() -> bool:
    """Returns whether `install` is in effect in this process."""
    return bool(_old_reducers)


def install() -> None:
    """Sends tensors in umf memory by ticket, and makes batches of `DataLoader` workers in a pool.

    Call it at the top level of a module that child processes import too. It holds in forked
    children, in workers of a `DataLoader`, and in processes that have received a tensor in umf
    memory. Does nothing the second time.
    """
    global _is_wanted
    _is_wanted = True
    if installed():
        return
    # Registers the reducers of blocks and mappings, which storages lie in.
    import umf.multiprocessing

    umf.multiprocessing.install()
    for kind, reducer in (
        (torch.UntypedStorage, _reduce_storage),
        (torch.Tensor, _reduce_tensor),
        (torch.nn.Parameter, _reduce_tensor),
    ):
        _old_reducers[kind] = _reducers()[kind]
        ForkingPickler.register(kind, reducer)
    for owner, name, new in (
        (torch.UntypedStorage, "_new_shared", staticmethod(_new_shared)),
        (torch.UntypedStorage, "is_shared", _is_shared),
        (torch.UntypedStorage, "share_memory_", _share_memory),
        (worker, "_worker_loop", _worker_loop),
    ):
        _old_attributes.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, new)


def uninstall() -> None:
    """Undoes `install` in this process. Arrays, blocks and mappings are still sent by ticket."""
    global _is_wanted
    _is_wanted = False
    while _old_reducers:
        ForkingPickler.register(*_old_reducers.popitem())
    while _old_attributes:
        owner, name, value = _old_attributes.pop()
        if value is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
