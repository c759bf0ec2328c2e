"""A memory resource for cuda.core: buffers in CUDA memory of a pool.

>>> from cuda.core import Device
>>> import umf.cuda
>>> device = Device(0)
>>> device.set_current()
>>> resource = umf.cuda.MemoryResource()
>>> buffer = resource.allocate(1 << 20, stream=device.default_stream)
>>> handle = resource.block(buffer).send_handle()    # another process opens it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cuda.core

from umf import _umf

if TYPE_CHECKING:
    from cuda.core import Buffer

__all__ = ["MemoryResource"]


class MemoryResource(cuda.core.MemoryResource):
    """Allocates the buffers of cuda.core from a pool.

    Without a pool, makes one of memory of the CUDA device with the number `device`; `memory` is as
    in `umf.Pool.cuda`. The pool reuses the memory of a buffer once the stream that closed the
    buffer has done its work.
    """

    def __init__(
        self, device: int = 0, *, memory: str = "auto", pool: _umf.Pool | None = None
    ) -> None:
        self._pool = _umf.Pool.cuda(device, memory=memory) if pool is None else pool
        self._is_host_accessible = self._pool.memory_kind != "device"
        probe = self._pool.allocate(1)
        kind, number = probe.__dlpack_device__()
        probe.free()
        if kind not in (2, 3, 13):
            raise ValueError(
                f"{self._pool!r} has no CUDA memory; pass a pool of umf.Pool.cuda, or a device"
            )
        self._is_managed = kind == 13
        # Pinned memory belongs to no device.
        self._device_id = None if kind == 3 else number
        self._blocks: dict[int, _umf.Block] = {}

    def allocate(self, size: int, *, stream: Any) -> Buffer:
        """Allocates a buffer. Its memory can be used at once, in any stream."""
        if size == 0:
            return cuda.core.Buffer.from_handle(0, 0, mr=self, stream=stream)
        block = self._pool.allocate(size, 256)
        address = block.address
        self._blocks[address] = block
        try:
            return cuda.core.Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            del self._blocks[address]
            block.free()
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees the memory of a buffer, after the work that was submitted to the stream before."""
        block = self._blocks.pop(int(ptr), None)
        if block is None:
            return
        try:
            block.free_after(int(stream.handle))
        except _umf.NotSupportedError:
            # The pool was made from umf.toml.
            stream.sync()
            block.free()

    def block(self, buffer: Buffer) -> _umf.Block:
        """Returns the block of a buffer, for its handle."""
        found = self._blocks.get(int(buffer.handle))
        if found is None:
            raise ValueError("the buffer is closed, or is not one of this resource")
        return found

    @property
    def is_device_accessible(self) -> bool:
        """Devices can always access the memory."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Whether the CPU can access the memory."""
        return self._is_host_accessible

    @property
    def is_managed(self) -> bool:
        """Whether the memory migrates between host and device."""
        return self._is_managed

    @property
    def device_id(self) -> int:
        """The number of the device."""
        if self._device_id is None:
            raise RuntimeError("pinned host memory is not bound to a device")
        return self._device_id
