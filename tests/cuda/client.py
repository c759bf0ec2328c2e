"""Runs cuda.core, numba-cuda and DLPack on the software driver for CUDA.

`tests/others` calls it with libcuda.so.1 in LD_LIBRARY_PATH. Prints a line per test and the result
line of this project's test programs.
"""

import ctypes
import multiprocessing
import sys
import traceback
import warnings

import numpy as np
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    Event,
    EventOptions,
    Host,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    ObjectCode,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    StreamOptions,
    VirtualMemoryResource,
)
from cuda.core.utils import StridedMemoryView, copy_batch

SIZE = 1 << 16
MiB = 1 << 20


def start():
    """Returns the first device, current in this thread, and a stream of it."""
    device = Device(0)
    device.set_current()
    return device, device.create_stream()


def contents(buffer, stream):
    """Returns the contents of a buffer."""
    host = LegacyPinnedMemoryResource().allocate(buffer.size)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    return np.from_dlpack(host).view(np.uint8).copy()


def in_child(function, *arguments):
    """Calls a function in a new process, which gets a pipe. Returns the process and the other end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=run_child, args=(function, there, *arguments))
    child.start()
    return child, here


def run_child(function, pipe, *arguments):
    try:
        function(pipe, *arguments)
        pipe.send("done")
    except BaseException:
        pipe.send(traceback.format_exc())


def answer(child, pipe):
    """Waits for the end of a child, and fails with its error."""
    assert pipe.poll(60), "the child does not answer"
    said = pipe.recv()
    assert said == "done", said
    child.join(60)
    assert child.exitcode == 0, child.exitcode


# cuda.core


def device_has_properties():
    device, _ = start()
    assert device.name.startswith("umf software device")
    assert device.compute_capability >= (3, 5)
    assert device.properties.virtual_memory_management_supported
    assert device.properties.memory_pools_supported
    assert len(Device.get_all_devices()) == 2 and device.can_access_peer(1)


def streams_have_priorities_and_contexts():
    device, stream = start()
    urgent = device.create_stream(options=StreamOptions(priority=-1, nonblocking=False))
    assert (stream.priority, urgent.priority) == (0, -1)
    assert stream.is_nonblocking and not urgent.is_nonblocking
    assert stream.context == urgent.context and stream.device == device


def default_streams_execute_work():
    device, _ = start()
    for stream in (LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, device.default_stream):
        buffer = device.allocate(SIZE, stream=stream)
        buffer.fill(5, stream=stream)
        assert (contents(buffer, stream) == 5).all()
        buffer.close(stream)
        stream.sync()


def events_have_times():
    device, stream = start()
    timed = EventOptions(timing_enabled=True)
    first = stream.record(options=timed)
    device.allocate(SIZE, stream=stream).fill(1, stream=stream)
    last = stream.record(options=timed)
    last.sync()
    assert first.is_done and last - first >= 0


def streams_wait_for_events():
    device, first = start()
    second = device.create_stream()
    one, two = device.allocate(SIZE, stream=first), device.allocate(SIZE, stream=first)
    one.fill(7, stream=first)
    second.wait(first)
    two.copy_from(one, stream=second)
    assert (contents(two, second) == 7).all()


def buffers_are_filled_with_patterns():
    device, stream = start()
    buffer = device.allocate(SIZE, stream=stream)
    for pattern in (b"\x01", b"\x01\x02", b"\x01\x02\x03\x04"):
        buffer.fill(pattern, stream=stream)
        assert bytes(contents(buffer, stream)[:4]) == (pattern * 4)[:4]


def virtual_memory_is_allocated_and_copied():
    device, stream = start()
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(4 * MiB, stream=stream)
    buffer.fill(9, stream=stream)
    assert (contents(buffer, stream) == 9).all()
    assert buffer.is_device_accessible and not buffer.is_host_accessible
    buffer.close()


def pool_counts_its_memory():
    device, stream = start()
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=64 * MiB))
    buffer = resource.allocate(3 * MiB, stream=stream)
    assert resource.attributes.used_mem_current == 3 * MiB
    assert resource.attributes.reserved_mem_current == 4 * MiB
    buffer.close(stream)
    stream.sync()
    assert resource.attributes.used_mem_current == 0
    assert resource.attributes.used_mem_high == 3 * MiB


def pool_is_accessible_by_peers():
    device, _ = start()
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=64 * MiB))
    resource.peer_accessible_by = [1]
    assert [peer.device_id for peer in resource.peer_accessible_by] == [1]
    resource.peer_accessible_by = []
    assert not list(resource.peer_accessible_by)


def use_buffer(pipe):
    _, stream = start()
    _, buffer = pipe.recv()
    assert (contents(buffer, stream) == 17).all()
    buffer.fill(42, stream=stream)
    stream.sync()
    buffer.close(stream)
    stream.sync()


def share_pool(resource, stream):
    buffer = resource.allocate(SIZE, stream=stream)
    buffer.fill(17, stream=stream)
    stream.sync()
    child, pipe = in_child(use_buffer)
    pipe.send((resource, buffer))
    answer(child, pipe)
    assert (contents(buffer, stream) == 42).all()


def pool_of_device_memory_is_shared_between_processes():
    device, stream = start()
    options = DeviceMemoryResourceOptions(max_size=64 * MiB, ipc_enabled=True)
    share_pool(DeviceMemoryResource(device, options), stream)


def pool_of_pinned_memory_is_shared_between_processes():
    _, stream = start()
    options = PinnedMemoryResourceOptions(max_size=64 * MiB, ipc_enabled=True)
    share_pool(PinnedMemoryResource(options), stream)


def wait_for_event(pipe):
    _, stream = start()
    event = Event.from_ipc_descriptor(pipe.recv())
    event.sync()
    stream.wait(event)
    stream.sync()
    assert event.is_done


def event_is_shared_between_processes():
    device, stream = start()
    event = stream.record(options=EventOptions(ipc_enabled=True))
    child, pipe = in_child(wait_for_event)
    pipe.send(event.ipc_descriptor)
    answer(child, pipe)


def pinned_pool_memory_is_host_memory():
    device, stream = start()
    one, two = (PinnedMemoryResource().allocate(SIZE, stream=stream) for _ in range(2))
    stream.sync()
    np.from_dlpack(one).view(np.uint8)[:] = 3
    buffer = device.allocate(SIZE, stream=stream)
    buffer.copy_from(one, stream=stream)
    buffer.copy_to(two, stream=stream)
    stream.sync()
    assert (np.from_dlpack(two).view(np.uint8) == 3).all()


def managed_memory_takes_advice():
    device, stream = start()
    buffer = ManagedMemoryResource().allocate(SIZE, stream=stream)
    buffer.fill(6, stream=stream)
    stream.sync()
    assert (np.from_dlpack(buffer).view(np.uint8) == 6).all()
    buffer.read_mostly = True
    buffer.preferred_location = device
    buffer.accessed_by.add(Host())
    assert buffer.read_mostly and buffer.preferred_location == device
    assert Host() in buffer.accessed_by
    buffer.prefetch(device, stream=stream)
    buffer.discard_prefetch(Host(), stream=stream)
    buffer.discard(stream=stream)
    stream.sync()


def batches_are_copied():
    device, stream = start()
    sources = [device.allocate(SIZE, stream=stream) for _ in range(3)]
    targets = [device.allocate(SIZE, stream=stream) for _ in range(3)]
    for number, source in enumerate(sources):
        source.fill(number, stream=stream)
    copy_batch(stream, sources, targets)
    for number, target in enumerate(targets):
        assert (contents(target, stream) == number).all()


def kernels_and_graphs_are_refused():
    device, _ = start()
    for refused in (
        lambda: ObjectCode.from_cubin(b"no program").get_kernel("kernel"),
        lambda: device.create_graph_builder().begin_building(),
    ):
        try:
            refused()
        except Exception as error:
            assert "NOT_SUPPORTED" in str(error), error
        else:
            raise AssertionError("the driver pretends to run programs")


def bindings_call_function_in_stream():
    """The bindings of the driver call a C function in the order of a stream."""
    _, stream = start()
    called = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    pointer = ctypes.cast(function, ctypes.c_void_p).value
    (failed,) = driver.cuLaunchHostFunc(stream.handle, driver.CUhostFn(pointer), 77)
    assert failed == driver.CUresult.CUDA_SUCCESS
    stream.sync()
    assert called == [77]


# DLPack


def device_buffer_is_exported_by_dlpack():
    device, stream = start()
    buffer = device.allocate(SIZE, stream=stream)
    assert buffer.__dlpack_device__() == (2, 0)  # kDLCUDA
    view = StridedMemoryView.from_dlpack(buffer, stream_ptr=-1)
    assert (view.ptr, view.shape, view.is_device_accessible) == (int(buffer.handle), (SIZE,), True)


def numpy_reads_host_buffer_by_dlpack():
    _, stream = start()
    buffer = LegacyPinnedMemoryResource().allocate(SIZE)
    buffer.fill(8, stream=stream)
    stream.sync()
    array = np.from_dlpack(buffer)
    assert array.shape == (SIZE,) and (array == 8).all()


def numpy_array_is_copied_by_view():
    device, stream = start()
    array = np.arange(SIZE, dtype=np.uint8)
    view = StridedMemoryView.from_dlpack(array, stream_ptr=-1)
    assert not view.is_device_accessible
    buffer = device.allocate(array.nbytes, stream=stream)
    buffer.copy_from(Buffer.from_handle(view.ptr, array.nbytes, owner=array), stream=stream)
    assert (contents(buffer, stream) == array).all()


# numba-cuda, its parts without kernels


def numba_arrays_are_copied():
    array = np.arange(1000, dtype=np.float32)
    stream = cuda.stream()
    for arguments in ({}, {"stream": stream}, {"stream": cuda.per_thread_default_stream()}):
        copied = cuda.to_device(array, **arguments)
        assert (copied.copy_to_host() == array).all()
        other = cuda.device_array_like(array)
        other.copy_to_device(copied, **arguments)
        assert (other.copy_to_host(**arguments) == array).all() or arguments
        cuda.synchronize()


def numba_slices_are_copied():
    array = np.arange(24).reshape(4, 6)
    copied = cuda.to_device(array)
    assert (copied[1:3].copy_to_host() == array[1:3]).all()
    assert (copied.reshape(24).copy_to_host() == array.reshape(24)).all()
    assert (cuda.as_cuda_array(copied).copy_to_host() == array).all()


def numba_events_have_times():
    stream, first, last = cuda.stream(), cuda.event(), cuda.event()
    first.record(stream)
    cuda.to_device(np.arange(1000), stream=stream)
    last.record(stream)
    last.wait(stream)
    last.synchronize()
    assert last.query() and cuda.event_elapsed_time(first, last) >= 0


def numba_pinned_arrays_are_host_memory():
    pinned = cuda.pinned_array(100, dtype=np.int32)
    pinned[:] = 4
    assert (cuda.to_device(pinned).copy_to_host() == 4).all()
    managed = cuda.managed_array(100, dtype=np.int32)
    managed[:] = 5
    assert (managed == 5).all()
    array = np.zeros(SIZE, dtype=np.uint8)
    with cuda.pinned(array):
        assert (cuda.to_device(array).copy_to_host() == 0).all()
    with cuda.mapped(array) as mapped:
        assert (mapped.copy_to_host() == 0).all()


def numba_memory_is_filled():
    from numba.cuda.cudadrv import driver as numba_driver

    array = cuda.to_device(np.zeros(16, dtype=np.uint8))
    numba_driver.device_memset(array, 7, 16)
    numba_driver.device_memset(array, 8, 8, stream=cuda.stream())
    cuda.synchronize()
    assert list(array.copy_to_host()) == [8] * 8 + [7] * 8


def numba_use_handle(pipe):
    """Opens a handle from its bytes: numba-cuda 0.30 cannot pickle those of cuda-bindings 13.5."""
    from numba import cuda
    from numba.cuda.cudadrv.driver import IpcHandle

    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), pipe.recv(), 64)
    opened = IpcHandle(None, handle, 8000)
    array = opened.open_array(cuda.current_context(), shape=1000, dtype=np.dtype(np.int64))
    assert (array.copy_to_host() == np.arange(1000)).all()
    array.copy_to_device(np.full(1000, 42))
    opened.close()


def numba_ipc_handle_is_shared_between_processes():
    array = cuda.to_device(np.arange(1000))
    child, pipe = in_child(numba_use_handle)
    handle = array.get_ipc_handle()
    pipe.send(ctypes.string_at(handle._ipc_handle.handle.getPtr(), 64))
    answer(child, pipe)
    assert (array.copy_to_host() == 42).all()


def numba_uses_both_devices():
    array = np.arange(10)
    with cuda.gpus[1]:
        other = cuda.to_device(array)
        assert (other.copy_to_host() == array).all()
    assert cuda.current_context().can_access_peer(1)
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total


def numba_array_is_exported_to_cuda_core():
    _, stream = start()
    array = cuda.to_device(np.arange(100, dtype=np.uint8))
    view = StridedMemoryView.from_cuda_array_interface(array, stream_ptr=-1)
    assert (view.ptr, view.shape) == (array.__cuda_array_interface__["data"][0], (100,))


def numba_devices_can_be_closed():
    array = cuda.to_device(np.arange(4))
    cuda.close()
    del array


def main():
    global cuda
    warnings.simplefilter("ignore")
    tests = [
        (name, test)
        for name, test in list(globals().items())
        if callable(test) and getattr(test, "__module__", None) == "__main__" and not test.__code__.co_argcount
        and name not in ("main", "start")
    ]
    ignored = 0
    try:
        from numba import cuda
    except Exception as error:
        print(f"umf-skip: others: numba-cuda: {error}".split("\n")[0])
        ignored = sum(name.startswith("numba_") for name, _ in tests)
        tests = [(name, test) for name, test in tests if not name.startswith("numba_")]
    failed = 0
    for name, test in tests:
        try:
            test()
            print(f"test {name} ... ok", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"test {name} ... FAILED", flush=True)
    print(f"test result: cuda. {len(tests) - failed} passed; {failed} failed; {ignored} ignored")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
