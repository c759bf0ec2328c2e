//! The functions of memory pools.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use cuda_sys::*;
use soft_device::{read_argument, write_result};

use crate::memory::{Access, AllocationKind, find};
use crate::pool::{Pool, PoolKind, PoolPlace};
use crate::state::{CudaResult, DriverState, entry};

fn handle(pool: &Pool) -> CUmemoryPool {
    CUmemoryPool(std::ptr::without_provenance_mut(pool.handle))
}

/// Returns the place of a device's pools.
fn of_device(device: CUdevice) -> PoolPlace {
    (CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, device)
}

/// Returns the place of an argument. Host and managed memory has one place each.
fn place(kind: CUmemAllocationType, location: CUmemLocation) -> PoolPlace {
    match (kind, location.r#type) {
        (CU_MEM_ALLOCATION_TYPE_MANAGED, _) => (kind, CU_MEM_LOCATION_TYPE_INVALID, 0),
        (_, CU_MEM_LOCATION_TYPE_DEVICE) => (kind, location.r#type, location.id),
        (_, of) => (kind, of, 0),
    }
}

/// Returns the default pool of a device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult {
    entry("cuDeviceGetDefaultMemPool", |state| {
        let found = state.default_pool(of_device(device))?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(pool, handle(&found)) }?)
    })
}

/// Returns the pool from which `cuMemAllocAsync` allocates.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult {
    entry("cuDeviceGetMemPool", |state| {
        let found = state.current_pool(of_device(device))?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(pool, handle(&found)) }?)
    })
}

/// Sets the pool from which `cuMemAllocAsync` allocates.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> CUresult {
    entry("cuDeviceSetMemPool", |state| {
        let place = of_device(device);
        state.pools.set_current(place, pool, state.pool_kind(place)?)
    })
}

/// Returns the current pool of a location.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CUresult {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    entry("cuMemGetMemPool", |state| unsafe {
        let found = state.current_pool(place(kind, read_argument(location)?))?;
        Ok(write_result(pool, handle(&found))?)
    })
}

/// Creates a pool.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> CUresult {
    entry("cuMemPoolCreate", |state| {
        // SAFETY: the application passes valid or null pointers, as the interface requires. The
        // first one is written before anything is made.
        let properties = unsafe {
            write_result(pool, CUmemoryPool::NULL)?;
            read_argument(properties)?
        };
        let kind = state.pool_kind(place(properties.allocType, properties.location))?;
        let forms = properties.handleTypes;
        match forms {
            CU_MEM_HANDLE_TYPE_NONE => {}
            // NVIDIA's drivers do not share managed memory.
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                if kind != PoolKind::Managed && state.settings.has("fds") => {}
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC => {
                return Err(CUDA_ERROR_NOT_SUPPORTED.into());
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        }
        let made = state.create_pool(kind, properties.maxSize, forms.0)?;
        // SAFETY: as above.
        Ok(unsafe { write_result(pool, handle(&made)) }?)
    })
}

/// Destroys a pool. Its memory is freed with the last allocation.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    entry("cuMemPoolDestroy", |state| state.pools.destroy(pool))
}

/// Releases free memory of a pool, while it has more than `keep` bytes.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    entry("cuMemPoolTrimTo", |state| {
        state.pools.get(pool)?.trim(keep as u64);
        Ok(())
    })
}

/// Returns an attribute of a pool.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    entry("cuMemPoolGetAttribute", |state| {
        let pool = state.pools.get(pool)?;
        // SAFETY: the application's pointer has the type of the attribute, or is null.
        unsafe {
            if let Some(switch) = pool.switch(attribute, |switch| *switch) {
                return Ok(write_result(value.cast(), switch)?);
            }
            Ok(write_result(value.cast(), pool.bytes(attribute).ok_or(CUDA_ERROR_INVALID_VALUE)?)?)
        }
    })
}

/// Sets an attribute of a pool.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    entry("cuMemPoolSetAttribute", |state| {
        let pool = state.pools.get(pool)?;
        // SAFETY: the application's pointer has the type of the attribute, or is null.
        unsafe {
            if pool.switch(attribute, |_| ()).is_some() {
                let wanted = read_argument(value.cast::<u32>())?;
                pool.switch(attribute, |switch| *switch = wanted);
                return Ok(());
            }
            pool.set_bytes(attribute, read_argument(value.cast::<u64>())?)
        }
    })
}

/// Sets the access of devices to a pool.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    access: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    entry("cuMemPoolSetAccess", |state| {
        let pool = state.pools.get(pool)?;
        for place in 0..count {
            // SAFETY: the application's array has `count` elements.
            let wanted = unsafe { read_argument(access.wrapping_add(place)) }?;
            let granted = Access::from_flags(wanted.flags)?;
            if wanted.location.r#type != CU_MEM_LOCATION_TYPE_DEVICE {
                return Err(CUDA_ERROR_INVALID_VALUE.into());
            }
            let device = state.device(wanted.location.id)?.number;
            match pool.kind {
                // The device of the pool keeps its access.
                PoolKind::Device(own) if own == device && granted != Access::ReadWrite => {
                    return Err(CUDA_ERROR_INVALID_DEVICE.into());
                }
                PoolKind::Device(own) if !state.can_access(device, own) => {
                    return Err(CUDA_ERROR_INVALID_DEVICE.into());
                }
                _ => pool.set_access(device, granted),
            }
        }
        Ok(())
    })
}

/// Returns the access of a device, or of the host, to a pool.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAccess(
    flags: *mut CUmemAccess_flags,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> CUresult {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    entry("cuMemPoolGetAccess", |state| unsafe {
        let location = read_argument(location)?;
        let device = match location.r#type {
            CU_MEM_LOCATION_TYPE_DEVICE => Some(state.device(location.id)?.number),
            CU_MEM_LOCATION_TYPE_INVALID => return Err(CUDA_ERROR_INVALID_VALUE.into()),
            _ => None,
        };
        Ok(write_result(flags, state.pools.get(pool)?.access(device).flags())?)
    })
}

/// Allocates memory of a pool, for use after the commands of a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller upholds the contract.
    entry("cuMemAllocFromPoolAsync", |state| unsafe {
        allocate(state, address, size, stream, |_| state.pools.get(pool))
    })
}

/// Allocates memory of the current pool of a stream's device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller upholds the contract.
    entry("cuMemAllocAsync", |state| unsafe {
        allocate(state, address, size, stream, |device| state.current_pool(of_device(device)))
    })
}

/// Allocates memory of the pool that `find` returns for the stream's device.
///
/// # Safety
/// `address` is null or valid for a write.
unsafe fn allocate(
    state: &DriverState,
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
    find: impl FnOnce(CUdevice) -> CudaResult<Arc<Pool>>,
) -> CudaResult {
    // SAFETY: the caller upholds the contract. It is written to before anything is made.
    unsafe { write_result(address, 0) }?;
    let stream = state.stream(stream)?;
    let start = state.allocate_pooled(&find(stream.device)?, &stream, size)?;
    // SAFETY: as above.
    Ok(unsafe { write_result(address, start as u64) }?)
}

/// Frees memory after the commands of a stream. That of `cuMemAlloc` is freed at once: submitted
/// commands keep its pages.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    entry("cuMemFreeAsync", |state| {
        let stream = state.stream(stream)?;
        match find(state, address) {
            Some(range) if range.owner.kind == AllocationKind::Pooled => {
                state.free_pooled(address, Some(&stream))
            }
            _ => state.free(address, |kind| kind == AllocationKind::Device),
        }
    })
}

/// Exports a pool as an fd.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolExportToShareableHandle(
    shareable: *mut c_void,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    entry("cuMemPoolExportToShareableHandle", |state| {
        let pool = state.pools.get(pool)?;
        if flags != 0 || kind == CU_MEM_HANDLE_TYPE_NONE || pool.exportable & kind.0 != kind.0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        // SAFETY: the application's pointer is valid or null; it owns the fd from here on.
        unsafe {
            read_argument(shareable.cast::<c_int>())?;
            Ok(write_result(shareable.cast::<c_int>(), pool.export()?.into_raw_fd())?)
        }
    })
}

/// Imports a pool from an fd, which the application keeps. The pool opens pointers, and does not
/// allocate.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportFromShareableHandle(
    pool: *mut CUmemoryPool,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    entry("cuMemPoolImportFromShareableHandle", |state| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires. It is
        // written before a resource is created.
        unsafe { write_result(pool, CUmemoryPool::NULL) }?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        if !(state.settings.has("pools") && state.settings.has("fds")) {
            return Err(CUDA_ERROR_NOT_SUPPORTED.into());
        }
        let fd = i32::try_from(shareable.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let made = state.import_pool(fd)?;
        // SAFETY: as above.
        Ok(unsafe { write_result(pool, handle(&made)) }?)
    })
}

/// The first bytes of an exported pointer. The file's device and inode follow at 8 and 16, the
/// offset at 24 and the size at 32, then zeros.
const POINTER: [u8; 8] = *b"cudapool";

/// Exports an allocation of a pool.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolExportPointer(
    exported: *mut CUmemPoolPtrExportData,
    address: CUdeviceptr,
) -> CUresult {
    entry("cuMemPoolExportPointer", |state| {
        let (file, offset, size) = state.export_pointer(address)?;
        let mut reserved = [0; 64];
        reserved[..8].copy_from_slice(&POINTER);
        for (place, number) in [file.0, file.1, offset, size].into_iter().enumerate() {
            reserved[8 * (place + 1)..8 * (place + 2)].copy_from_slice(&number.to_le_bytes());
        }
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(exported, CUmemPoolPtrExportData { reserved }) }?)
    })
}

/// Opens an allocation of an imported pool. As with handles of `cuIpcOpenMemHandle`, it is opened
/// once at a time.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportPointer(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    exported: *mut CUmemPoolPtrExportData,
) -> CUresult {
    entry("cuMemPoolImportPointer", |state| {
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        let bytes = unsafe {
            write_result(address, 0)?;
            read_argument(exported)?.reserved
        };
        let number = |place: usize| u64::from_le_bytes(std::array::from_fn(|at| bytes[8 * place + at]));
        if bytes[..8] != POINTER || bytes[40..].iter().any(|byte| *byte != 0) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let pool = state.pools.get(pool)?;
        let start = state.import_pointer(&pool, (number(1), number(2)), number(3), number(4))?;
        // SAFETY: as above.
        Ok(unsafe { write_result(address, start as u64) }?)
    })
}
