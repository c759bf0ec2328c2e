//! Virtual memory management: reserved addresses, physical memory, and mappings.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_sys::*;
use soft_device::{Backing, Mapping, MemoryOrigin, MemoryRange, lock, read_argument, write_result};

use crate::ipc::{DEVICE_MEMORY_NAME, FABRIC, IpcBytes};
use crate::memory::{Access, Allocation, AllocationKind, DEVICE_PAGE, find};
use crate::state::{CudaResult, DriverState, entry};

/// Physical memory of a device.
#[derive(Clone)]
pub(crate) struct PhysicalMemory {
    backing: Arc<Backing>,
    /// The number of the device on this machine.
    device: u32,
    /// The handle types in which it can be exported; 0 for an import.
    pub(crate) exportable: u32,
}

/// A handle of physical memory. `cuMemRetainAllocationHandle` adds references to it.
pub(crate) struct PhysicalHandle {
    memory: PhysicalMemory,
    references: AtomicU32,
}

impl From<PhysicalMemory> for PhysicalHandle {
    fn from(memory: PhysicalMemory) -> Self {
        Self { memory, references: AtomicU32::new(1) }
    }
}

fn whole_pages(size: usize) -> CudaResult {
    if size > 0 && size.is_multiple_of(DEVICE_PAGE) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE.into()) }
}

fn place(address: CUdeviceptr, size: usize) -> CudaResult<usize> {
    let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    start.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(start)
}

/// Checks the properties of an allocation. Returns the device's number on this machine.
fn checked(state: &DriverState, properties: &CUmemAllocationProp) -> CudaResult<u32> {
    if !state.settings.has("virtual") {
        return Err(CUDA_ERROR_NOT_SUPPORTED.into());
    }
    let forms = properties.requestedHandleTypes.0;
    let known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 | CU_MEM_HANDLE_TYPE_FABRIC.0;
    let matches = properties.r#type == CU_MEM_ALLOCATION_TYPE_PINNED
        && properties.location.r#type == CU_MEM_LOCATION_TYPE_DEVICE
        && forms & !known == 0;
    if !matches {
        return Err(CUDA_ERROR_INVALID_VALUE.into());
    }
    let lacks = |form: CUmemAllocationHandleType, what| forms & form.0 != 0 && !state.settings.has(what);
    if lacks(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "fds") || lacks(CU_MEM_HANDLE_TYPE_FABRIC, "fabric") {
        return Err(CUDA_ERROR_NOT_SUPPORTED.into());
    }
    Ok(state.device(properties.location.id)?.number)
}

/// Returns the granularity of physical memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    _which: CUmemAllocationGranularity_flags,
) -> CUresult {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    entry("cuMemGetAllocationGranularity", |state| unsafe {
        checked(state, &read_argument(properties)?)?;
        Ok(write_result(granularity, DEVICE_PAGE)?)
    })
}

/// Reserves free addresses: those that the application prefers, if they are free.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    wanted: CUdeviceptr,
    _flags: u64,
) -> CUresult {
    entry("cuMemAddressReserve", |state| {
        whole_pages(size)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let alignment = alignment.max(DEVICE_PAGE);
        let wanted = usize::try_from(wanted).ok().filter(|at| *at != 0 && at.is_multiple_of(alignment));
        let addresses = match wanted.map(|at| Mapping::reserve_at(at, size)) {
            Some(Ok(addresses)) => addresses,
            // The addresses that the application prefers are not free.
            _ => Mapping::reserve(size, alignment)?,
        };
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        unsafe { write_result(address, addresses.address() as u64) }?;
        lock(&state.reservations).push(addresses);
        Ok(())
    })
}

/// Releases reserved addresses, if nothing is mapped there.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> CUresult {
    entry("cuMemAddressFree", |state| {
        let start = place(address, size)?;
        let mut reservations = lock(&state.reservations);
        let found = reservations.iter().position(|range| range.address() == start && range.size() == size);
        let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !state.core.addresses.within(start, start + size).is_empty() {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        reservations.swap_remove(found);
        Ok(())
    })
}

/// Allocates physical memory of a device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    _flags: u64,
) -> CUresult {
    entry("cuMemCreate", |state| {
        // SAFETY: the application passes valid or null pointers, as the interface requires. The
        // first one is written before anything is allocated, so that a bad pointer leaks nothing.
        let properties = unsafe {
            write_result(handle, 0)?;
            read_argument(properties)?
        };
        let device = checked(state, &properties)?;
        whole_pages(size)?;
        let charges =
            state.core.charges(std::slice::from_ref(&state.device(properties.location.id)?.memory), size)?;
        let backing = Arc::new(Backing::new(size, MemoryOrigin::Device(device), charges)?);
        let exportable = properties.requestedHandleTypes.0;
        let made = state.physical.insert(PhysicalMemory { backing, device, exportable }.into());
        // SAFETY: as above.
        Ok(unsafe { write_result(handle, made as u64) }?)
    })
}

fn physical(
    state: &DriverState,
    handle: CUmemGenericAllocationHandle,
) -> CudaResult<(usize, PhysicalMemory)> {
    let number = usize::try_from(handle).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let found = state.physical.get(number).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    Ok((number, found.memory.clone()))
}

/// Releases physical memory, which is freed with its last mapping.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    entry("cuMemRelease", |state| {
        // Held against a thread that retains the handle at the same time.
        let _reservations = lock(&state.reservations);
        let (number, _) = physical(state, handle)?;
        if state.physical.get(number)?.references.fetch_sub(1, Ordering::Relaxed) == 1 {
            state.physical.remove(number)?;
        }
        Ok(())
    })
}

/// Returns the handle of the physical memory mapped at an address, with one more reference.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    entry("cuMemRetainAllocationHandle", |state| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        unsafe { write_result(handle, 0) }?;
        let range = find(state, address.addr() as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (number, memory) = range.owner.physical.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let _reservations = lock(&state.reservations);
        match state.physical.get(*number) {
            Ok(found) => drop(found.references.fetch_add(1, Ordering::Relaxed)),
            // The application has released the handle, and the mapping keeps the memory.
            Err(_) => state.physical.insert_as(*number, memory.clone().into()),
        }
        // SAFETY: as above.
        Ok(unsafe { write_result(handle, *number as u64) }?)
    })
}

/// Maps physical memory at reserved addresses, without access for devices.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: u64,
) -> CUresult {
    entry("cuMemMap", |state| {
        let start = place(address, size)?;
        whole_pages(size)?;
        let (number, physical) = physical(state, handle)?;
        // NVIDIA's drivers have the same restrictions.
        if offset != 0 || size > physical.backing.size() || !start.is_multiple_of(DEVICE_PAGE) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let reservations = lock(&state.reservations);
        let is_reserved = reservations.iter().any(|range| {
            start >= range.address()
                && start - range.address() <= range.size()
                && size <= range.size() - (start - range.address())
        });
        if !is_reserved {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let is_taken = state.core.addresses.find(start).is_some()
            || !state.core.addresses.within(start, start + size).is_empty();
        if is_taken {
            return Err(CUDA_ERROR_ALREADY_MAPPED.into());
        }
        let mut owner = Allocation::new(AllocationKind::Mapped, 0, Some(physical.device));
        let backing = Arc::clone(&physical.backing);
        owner.physical = Some((number, physical));
        state.core.addresses.map(start, size, (backing, 0), owner);
        Ok(())
    })
}

/// Unmaps one or more whole mappings.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, size: usize) -> CUresult {
    entry("cuMemUnmap", |state| {
        let ranges = mapped(state, place(address, size)?, size)?;
        for range in ranges {
            state.core.addresses.remove(range.start, |_| true);
        }
        Ok(())
    })
}

/// Returns the mappings that a range consists of.
fn mapped(state: &DriverState, start: usize, size: usize) -> CudaResult<Vec<Arc<MemoryRange<Allocation>>>> {
    let ranges = state.core.addresses.within(start, start + size);
    let mut at = start;
    for range in &ranges {
        if range.start != at || range.owner.kind != AllocationKind::Mapped {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        at += range.size;
    }
    if size > 0 && at == start + size { Ok(ranges) } else { Err(CUDA_ERROR_INVALID_VALUE.into()) }
}

/// Sets the access of devices to mapped memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    access: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    entry("cuMemSetAccess", |state| {
        let ranges = mapped(state, place(address, size)?, size)?;
        for place in 0..count.min(64) {
            // SAFETY: the application's array has `count` elements.
            let wanted = unsafe { read_argument(access.wrapping_add(place)) }?;
            let device = state.device(wanted.location.id)?.number;
            let granted = Access::from_flags(wanted.flags)?;
            for range in &ranges {
                if !state.can_access(device, range.owner.device.unwrap_or(device)) {
                    return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.into());
                }
                let mut known = lock(&range.owner.access);
                known.retain(|(number, _)| *number != device);
                known.push((device, granted));
            }
        }
        Ok(())
    })
}

/// Exports physical memory as an fd or a fabric handle.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    _flags: u64,
) -> CUresult {
    entry("cuMemExportToShareableHandle", |state| {
        let (_, physical) = physical(state, handle)?;
        if physical.exportable & kind.0 == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        if kind == CU_MEM_HANDLE_TYPE_FABRIC {
            let file = physical.backing.file().ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let bytes = IpcBytes::of(file, physical.backing.size())?.encode(FABRIC);
            // SAFETY: the application's pointer leads to a handle of this type.
            return Ok(unsafe { write_result(shareable.cast(), CUmemFabricHandle { data: bytes }) }?);
        }
        // SAFETY: the application's pointer is valid or null; it owns the fd from here on.
        unsafe {
            read_argument(shareable.cast::<c_int>())?;
            Ok(write_result(shareable.cast::<c_int>(), physical.backing.export()?.into_raw_fd())?)
        }
    })
}

/// Imports physical memory from an fd or a fabric handle. The application keeps the fd.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    entry("cuMemImportFromShareableHandle", |state| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires. It is
        // written before a resource is created.
        unsafe { write_result(handle, 0) }?;
        let file = match kind {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if state.settings.has("fds") => {
                let number = i32::try_from(shareable.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
                Backing::duplicate_fd(number)?
            }
            CU_MEM_HANDLE_TYPE_FABRIC if state.settings.has("fabric") => {
                // SAFETY: the application's pointer leads to a handle of this type.
                let bytes = unsafe { read_argument(shareable.cast::<CUmemFabricHandle>()) }?;
                let bytes = IpcBytes::decode(&bytes.data, FABRIC)?;
                bytes.fetch(DEVICE_MEMORY_NAME)?
            }
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED.into()),
        };
        let (backing, origin) = Backing::from_fd(file.as_fd())?;
        let MemoryOrigin::Device(device) = origin else { return Err(CUDA_ERROR_INVALID_VALUE.into()) };
        let made = state
            .physical
            .insert(PhysicalMemory { backing: Arc::new(backing), device, exportable: 0 }.into());
        // SAFETY: as above.
        Ok(unsafe { write_result(handle, made as u64) }?)
    })
}
