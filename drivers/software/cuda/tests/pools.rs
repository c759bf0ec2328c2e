//! Memory pools: stream order, attributes, reuse, and pools shared between processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod driver;

use cuda_sys::*;
use driver::{arguments, block, error, from_hex, hex, read, run_child, started};

const MIB: usize = 1 << 20;

fn properties(size: usize, handles: CUmemAllocationHandleType) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: handles,
        location: CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        maxSize: size,
        ..CUmemPoolProps::default()
    }
}

fn create(api: &Api, properties: &CUmemPoolProps) -> CUmemoryPool {
    let mut pool = CUmemoryPool::NULL;
    // SAFETY: arguments as the driver interface requires.
    unsafe { api.cuMemPoolCreate(&raw mut pool, properties) }.unwrap();
    pool
}

fn stream(api: &Api) -> CUstream {
    let mut stream = CUstream::NULL;
    // SAFETY: arguments as the driver interface requires.
    unsafe { api.cuStreamCreateWithPriority(&raw mut stream, CU_STREAM_NON_BLOCKING, -1) }.unwrap();
    stream
}

fn allocate(api: &Api, size: usize, pool: CUmemoryPool, stream: CUstream) -> Result<CUdeviceptr, Failure> {
    let mut address = 0;
    // SAFETY: arguments as the driver interface requires.
    unsafe { api.cuMemAllocFromPoolAsync(&raw mut address, size, pool, stream) }?;
    Ok(address)
}

fn free(api: &Api, address: CUdeviceptr, stream: CUstream) {
    // SAFETY: the test's own memory.
    unsafe { api.cuMemFreeAsync(address, stream) }.unwrap();
}

fn synchronize(api: &Api, stream: CUstream) {
    // SAFETY: the test's own stream.
    unsafe { api.cuStreamSynchronize(stream) }.unwrap();
}

fn attribute(api: &Api, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = 0_u64;
    // SAFETY: the value has room for every attribute.
    unsafe { api.cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) }.unwrap();
    value
}

fn set(api: &Api, pool: CUmemoryPool, attribute: CUmemPool_attribute, mut value: u64) -> Result<(), Failure> {
    // SAFETY: the value has the size of the largest attribute.
    unsafe { api.cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) }
}

#[test]
fn attributes_count_used_and_reserved_memory() {
    let (api, _) = started();
    let (pool, stream) = (create(&api, &properties(64 * MIB, CU_MEM_HANDLE_TYPE_NONE)), stream(&api));
    let of = |name| attribute(&api, pool, name);
    let address = allocate(&api, 3 * MIB, pool, stream).unwrap();
    assert_eq!(of(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3 << 20);
    assert_eq!(of(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 << 20);
    free(&api, address, stream);
    synchronize(&api, stream);
    assert_eq!((of(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), of(CU_MEMPOOL_ATTR_USED_MEM_HIGH)), (0, 3 << 20));
    // Beyond the threshold of 0 bytes, a synchronization releases what is free.
    assert_eq!(
        (of(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), of(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)),
        (0, 4 << 20)
    );
    for high in [CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] {
        assert_eq!(error(set(&api, pool, high, 1)), CUDA_ERROR_INVALID_VALUE);
        set(&api, pool, high, 0).unwrap();
        assert_eq!(of(high), 0);
    }
    // SAFETY: the test's own objects.
    unsafe {
        api.cuMemPoolDestroy(pool).unwrap();
        assert_eq!(error(api.cuMemPoolDestroy(pool)), CUDA_ERROR_INVALID_VALUE);
        api.cuStreamDestroy(stream).unwrap();
    }
}

#[test]
fn threshold_keeps_memory_until_trim() {
    let (api, _) = started();
    let (pool, stream) = (create(&api, &properties(64 * MIB, CU_MEM_HANDLE_TYPE_NONE)), stream(&api));
    set(&api, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 4 << 20).unwrap();
    assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 4 << 20);
    free(&api, allocate(&api, 8 * MIB, pool, stream).unwrap(), stream);
    synchronize(&api, stream);
    assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 << 20);
    // SAFETY: the test's own objects.
    unsafe {
        api.cuMemPoolTrimTo(pool, 2 * MIB).unwrap();
        assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 2 << 20);
        api.cuMemPoolDestroy(pool).unwrap();
    }
}

#[test]
fn freed_memory_is_reused_in_the_order_of_its_stream() {
    let (api, _) = started();
    let (pool, own, other) =
        (create(&api, &properties(4 * MIB, CU_MEM_HANDLE_TYPE_NONE)), stream(&api), stream(&api));
    let first = allocate(&api, 4 * MIB, pool, own).unwrap();
    assert_eq!(allocate(&api, MIB, pool, own).unwrap_err().result(), CUDA_ERROR_OUT_OF_MEMORY);
    let blocked = block(&api, own);
    free(&api, first, own);
    // The free waits in its stream, so the memory is still in use.
    assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 << 20);
    set(&api, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0).unwrap();
    assert_eq!(allocate(&api, MIB, pool, other).unwrap_err().result(), CUDA_ERROR_OUT_OF_MEMORY);
    // The same stream reuses it at once; another one waits for the free.
    assert_eq!(allocate(&api, 2 * MIB, pool, own).unwrap(), first);
    set(&api, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1).unwrap();
    let second = allocate(&api, 2 * MIB, pool, other).unwrap();
    assert_eq!(second, first + (2 << 20));
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemsetD8Async(second, 3, MIB, other).unwrap();
        assert_eq!(error(api.cuStreamQuery(other)), CUDA_ERROR_NOT_READY);
        drop(blocked);
        synchronize(&api, other);
        api.cuStreamQuery(other).unwrap();
        api.cuMemFree(first).unwrap();
        api.cuMemFree(second).unwrap();
        api.cuMemPoolDestroy(pool).unwrap();
    }
}

/// A stream that freed several neighbours can allocate them as one range, alone or with free bytes
/// and ranges of other streams beside them.
#[test]
fn freed_neighbours_are_reused_as_one_range() {
    let (api, _) = started();
    let (pool, own, other) =
        (create(&api, &properties(8 * MIB, CU_MEM_HANDLE_TYPE_NONE)), stream(&api), stream(&api));
    let parts = [own, own, other].map(|stream| allocate(&api, 2 * MIB, pool, stream).unwrap());
    let blocked = [block(&api, own), block(&api, other)];
    free(&api, parts[0], own);
    free(&api, parts[1], own);
    let joined = allocate(&api, 4 * MIB, pool, own).unwrap();
    assert_eq!(joined, parts[0]);
    free(&api, joined, own);
    free(&api, parts[2], other);
    // All of the pool: ranges of two streams, and the bytes that were never used.
    let all = allocate(&api, 8 * MIB, pool, own).unwrap();
    assert_eq!(all, parts[0]);
    assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 8 << 20);
    // SAFETY: the test's own memory.
    unsafe { api.cuMemsetD8Async(all, 5, 8 * MIB, own) }.unwrap();
    let [of_own, of_other] = blocked;
    drop(of_own);
    // SAFETY: the test's own stream.
    assert_eq!(error(unsafe { api.cuStreamQuery(own) }), CUDA_ERROR_NOT_READY);
    drop(of_other);
    synchronize(&api, own);
    assert_eq!(read(&api, all, 8 * MIB), vec![5; 8 * MIB]);
    free(&api, all, own);
    synchronize(&api, own);
    assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
}

/// If the device has no more memory, free pages of the pool serve an allocation at other addresses.
#[test]
fn free_pages_of_a_pool_serve_other_addresses() {
    // It takes all memory of a device, which other tests use.
    if arguments().is_none() {
        return run_child("free_pages_of_a_pool_serve_other_addresses", &[]);
    }
    let (api, _) = started();
    let pool = create(&api, &properties(64 * MIB, CU_MEM_HANDLE_TYPE_NONE));
    let [own, other] = [(); 2].map(|()| stream(&api));
    set(&api, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX).unwrap();
    let parts = [(); 3].map(|()| allocate(&api, 2 * MIB, pool, own).unwrap());
    free(&api, parts[0], own);
    synchronize(&api, own);
    let (mut left, mut total, mut rest) = (0, 0, 0);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemPoolTrimTo(pool, 4 * MIB).unwrap();
        api.cuMemGetInfo(&raw mut left, &raw mut total).unwrap();
        api.cuMemAlloc(&raw mut rest, left).unwrap();
    }
    assert_eq!(allocate(&api, 2 * MIB, pool, other).unwrap_err().result(), CUDA_ERROR_OUT_OF_MEMORY);
    free(&api, parts[2], own);
    synchronize(&api, own);
    assert_eq!(allocate(&api, 2 * MIB, pool, other).unwrap(), parts[0]);
    assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 << 20);
    assert_eq!(allocate(&api, 2 * MIB, pool, other).unwrap_err().result(), CUDA_ERROR_OUT_OF_MEMORY);
}

/// A context is destroyed before its stream reaches a free: the memory returns to the pool, and a
/// stream that waits for the free goes on.
#[test]
fn memory_freed_in_destroyed_context_returns_to_its_pool() {
    let (api, first) = started();
    let pool = create(&api, &properties(4 * MIB, CU_MEM_HANDLE_TYPE_NONE));
    let [own, gate] = [(); 2].map(|()| stream(&api));
    let (mut context, mut event) = (CUcontext::NULL, CUevent::NULL);
    let blocked = block(&api, gate);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuEventCreate(&raw mut event, 0).unwrap();
        api.cuEventRecord(event, gate).unwrap();
        api.cuCtxCreate(&raw mut context, 0, 0).unwrap();
        let other = stream(&api);
        let address = allocate(&api, 4 * MIB, pool, other).unwrap();
        api.cuStreamWaitEvent(other, event, 0).unwrap();
        free(&api, address, other);
        api.cuCtxSetCurrent(first).unwrap();
        let address = allocate(&api, 4 * MIB, pool, own).unwrap();
        assert_eq!(error(api.cuStreamQuery(own)), CUDA_ERROR_NOT_READY);
        api.cuCtxDestroy(context).unwrap();
        synchronize(&api, own);
        free(&api, address, own);
        synchronize(&api, own);
    }
    assert_eq!(attribute(&api, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    drop(blocked);
}

/// The addresses of an import whose size is not one of whole pages are released.
#[test]
fn imports_of_odd_sizes_leave_no_addresses() {
    // It counts the addresses of the process.
    if arguments().is_none() {
        return run_child("imports_of_odd_sizes_leave_no_addresses", &[]);
    }
    let (api, _) = started();
    let pages = || -> usize {
        std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    // SAFETY: arguments as the kernel and the driver interface require.
    unsafe {
        let fd = libc::memfd_create(c"soft-pool-0".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, 4097), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW), 0);
        let before = pages();
        for _ in 0..100 {
            let mut pool = CUmemoryPool::NULL;
            let shareable = std::ptr::without_provenance_mut(usize::try_from(fd).unwrap());
            let form = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            api.cuMemPoolImportFromShareableHandle(&raw mut pool, shareable, form, 0).unwrap();
            api.cuMemPoolDestroy(pool).unwrap();
        }
        let left = pages().saturating_sub(before);
        assert!(left < 10 * (2 * MIB / 4096), "{left} pages of addresses are left");
    }
}

#[test]
fn memory_of_destroyed_pool_stays_usable() {
    let (api, _) = started();
    let (pool, stream) = (create(&api, &properties(0, CU_MEM_HANDLE_TYPE_NONE)), stream(&api));
    let address = allocate(&api, 1000, pool, stream).unwrap();
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemPoolDestroy(pool).unwrap();
        api.cuMemsetD8Async(address, 6, 1000, stream).unwrap();
        synchronize(&api, stream);
        assert_eq!(read(&api, address, 1000), vec![6; 1000]);
        // Neither the end of the allocation nor freed memory can be used.
        assert_eq!(error(api.cuMemsetD8(address + 1000, 0, 1)), CUDA_ERROR_INVALID_VALUE);
        api.cuMemFreeAsync(address, stream).unwrap();
        assert_eq!(error(api.cuMemFreeAsync(address, stream)), CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn current_pool_can_be_replaced() {
    let (api, _) = started();
    let (mut default, mut current, mut address) = (CUmemoryPool::NULL, CUmemoryPool::NULL, 0);
    let mut location = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
    let on_second = CUmemPoolProps { location, ..properties(8 * MIB, CU_MEM_HANDLE_TYPE_NONE) };
    let (own, foreign) = (create(&api, &on_second), create(&api, &properties(0, CU_MEM_HANDLE_TYPE_NONE)));
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuDeviceGetDefaultMemPool(&raw mut default, 1).unwrap();
        api.cuDeviceGetMemPool(&raw mut current, 1).unwrap();
        assert_eq!(current, default);
        assert_eq!(error(api.cuMemPoolDestroy(default)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(error(api.cuDeviceSetMemPool(1, foreign)), CUDA_ERROR_INVALID_VALUE);
        api.cuDeviceSetMemPool(1, own).unwrap();
        api.cuMemGetMemPool(&raw mut current, &raw mut location, CU_MEM_ALLOCATION_TYPE_PINNED).unwrap();
        assert_eq!(current, own);
        // A destroyed current pool is replaced by the default one.
        api.cuMemPoolDestroy(own).unwrap();
        api.cuDeviceGetMemPool(&raw mut current, 1).unwrap();
        assert_eq!(current, default);
        api.cuMemAllocAsync(&raw mut address, 100, CUstream::NULL).unwrap();
        let mut pool = CUmemoryPool::NULL;
        let attribute = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
        api.cuPointerGetAttribute((&raw mut pool).cast(), attribute, address).unwrap();
        api.cuDeviceGetMemPool(&raw mut current, 0).unwrap();
        assert_eq!(pool, current);
        api.cuMemFreeAsync(address, CUstream::NULL).unwrap();
        assert_eq!(error(api.cuMemAllocAsync(&raw mut address, 0, CUstream::NULL)), CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn access_of_peers_can_be_set() {
    let (api, _) = started();
    let pool = create(&api, &properties(0, CU_MEM_HANDLE_TYPE_NONE));
    let mut peer = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
    let mut flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemPoolGetAccess(&raw mut flags, pool, &raw mut peer).unwrap();
        assert_eq!(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        let wanted = CUmemAccessDesc { location: peer, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        api.cuMemPoolSetAccess(pool, &raw const wanted, 1).unwrap();
        api.cuMemPoolGetAccess(&raw mut flags, pool, &raw mut peer).unwrap();
        assert_eq!(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        // The pool's own device keeps its access.
        let own = CUmemLocation { id: 0, ..peer };
        let none = CUmemAccessDesc { location: own, flags: CU_MEM_ACCESS_FLAGS_PROT_NONE };
        assert_eq!(error(api.cuMemPoolSetAccess(pool, &raw const none, 1)), CUDA_ERROR_INVALID_DEVICE);
        api.cuMemPoolDestroy(pool).unwrap();
    }
}

#[test]
fn host_and_managed_pools_are_memory_of_the_cpu() {
    let (api, _) = started();
    let host = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_HOST, id: 0 };
    for kind in [CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_MANAGED] {
        let wanted =
            CUmemPoolProps { allocType: kind, location: host, ..properties(0, CU_MEM_HANDLE_TYPE_NONE) };
        let pool = create(&api, &wanted);
        let address = allocate(&api, 100, pool, CUstream::NULL).unwrap();
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the pool's memory is mapped for the CPU.
        unsafe {
            memory.write_bytes(5, 100);
            assert_eq!(read(&api, address, 100), [5; 100]);
            api.cuMemFreeAsync(address, CUstream::NULL).unwrap();
            api.cuMemPoolDestroy(pool).unwrap();
        }
    }
}

/// The sequence of cuda.core's `DeviceMemoryResource` with `ipc_enabled`.
#[test]
fn exported_pool_and_pointer_share_memory_with_another_process() {
    let (api, _) = started();
    let form = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if let Some(arguments) = arguments() {
        let fd: usize = arguments[0].parse().unwrap();
        let mut exported = CUmemPoolPtrExportData { reserved: from_hex(&arguments[1]) };
        let (mut pool, mut address) = (CUmemoryPool::NULL, 0);
        let shareable = std::ptr::without_provenance_mut(fd);
        // SAFETY: arguments as the driver interface requires.
        unsafe {
            api.cuMemPoolImportFromShareableHandle(&raw mut pool, shareable, form, 0).unwrap();
            api.cuMemPoolImportPointer(&raw mut address, pool, &raw mut exported).unwrap();
            assert_eq!(read(&api, address, 3000), [7; 3000]);
            api.cuMemsetD8(address, 8, 3000).unwrap();
            // An imported pool does not allocate, and opens each pointer once.
            assert_eq!(
                allocate(&api, 64, pool, CUstream::NULL).unwrap_err().result(),
                CUDA_ERROR_INVALID_VALUE
            );
            let mut second = 0;
            let again = api.cuMemPoolImportPointer(&raw mut second, pool, &raw mut exported);
            assert_eq!(error(again), CUDA_ERROR_ALREADY_MAPPED);
            assert_eq!(
                error(api.cuMemPoolExportPointer(&raw mut exported, address)),
                CUDA_ERROR_INVALID_VALUE
            );
            api.cuMemFreeAsync(address, CUstream::NULL).unwrap();
            api.cuMemPoolImportPointer(&raw mut address, pool, &raw mut exported).unwrap();
            api.cuMemFree(address).unwrap();
            api.cuMemPoolDestroy(pool).unwrap();
        }
        return;
    }
    let (pool, stream) = (create(&api, &properties(16 * MIB, form)), stream(&api));
    let _first = allocate(&api, 5000, pool, stream).unwrap();
    let address = allocate(&api, 3000, pool, stream).unwrap();
    let mut exported = CUmemPoolPtrExportData { reserved: [0; 64] };
    let mut fd = -1;
    // SAFETY: arguments as the driver interface requires. The child inherits the fd.
    unsafe {
        api.cuMemsetD8Async(address, 7, 3000, stream).unwrap();
        synchronize(&api, stream);
        api.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, form, 0).unwrap();
        api.cuMemPoolExportPointer(&raw mut exported, address).unwrap();
        assert_eq!(libc::fcntl(fd, libc::F_SETFD, 0), 0);
    }
    let test = "exported_pool_and_pointer_share_memory_with_another_process";
    run_child(test, &[fd.to_string(), hex(&exported.reserved)]);
    assert_eq!(read(&api, address, 3000), [8; 3000]);
}

#[test]
fn untrusted_export_data_is_refused() {
    let (api, _) = started();
    let form = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (exporter, private) =
        (create(&api, &properties(4 * MIB, form)), create(&api, &properties(0, CU_MEM_HANDLE_TYPE_NONE)));
    let address = allocate(&api, 1024, exporter, CUstream::NULL).unwrap();
    let other = allocate(&api, 1024, private, CUstream::NULL).unwrap();
    let mut exported = CUmemPoolPtrExportData { reserved: [0; 64] };
    let (mut pool, mut opened, mut fd, mut physical) = (CUmemoryPool::NULL, 0, -1, 0);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        let refused = api.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), private, form, 0);
        assert_eq!(error(refused), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(error(api.cuMemPoolExportPointer(&raw mut exported, other)), CUDA_ERROR_INVALID_VALUE);
        // Neither standard input nor physical memory is a pool, and a pool is no physical memory.
        let mut import = |fd: i32| {
            let shareable = std::ptr::without_provenance_mut(usize::try_from(fd).unwrap());
            api.cuMemPoolImportFromShareableHandle(&raw mut pool, shareable, form, 0)
        };
        for fd in [0, i32::MAX] {
            assert_eq!(error(import(fd)), CUDA_ERROR_INVALID_VALUE);
        }
        api.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), exporter, form, 0).unwrap();
        import(fd).unwrap();
        let shareable = std::ptr::without_provenance_mut(usize::try_from(fd).unwrap());
        let refused = api.cuMemImportFromShareableHandle(&raw mut physical, shareable, form);
        assert_eq!(error(refused), CUDA_ERROR_INVALID_VALUE);
        api.cuMemPoolExportPointer(&raw mut exported, address).unwrap();
        let good = exported.reserved;
        let mut open = |reserved: [u8; 64]| {
            let mut data = CUmemPoolPtrExportData { reserved };
            api.cuMemPoolImportPointer(&raw mut opened, pool, &raw mut data)
        };
        // Every byte matters: the magic, the file, the offset, the size and the zeros.
        for at in (0..64).filter(|at| !(32..34).contains(at)) {
            let mut bad = good;
            bad[at] ^= 0xff;
            assert_eq!(error(open(bad)), CUDA_ERROR_INVALID_VALUE, "byte {at}");
        }
        let mut of_any_size = good;
        of_any_size[32..40].fill(0xff);
        for bad in [[0; 64], [0xff; 64], of_any_size] {
            assert_eq!(error(open(bad)), CUDA_ERROR_INVALID_VALUE);
        }
        open(good).unwrap();
        api.cuMemFree(opened).unwrap();
        libc::close(fd);
    }
}
