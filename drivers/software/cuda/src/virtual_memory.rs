//! Reserved addresses, and physical memory that is mapped there.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, IntoRawFd};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Backing, Mapping, Origin, Range, get, lock, put};

use crate::memory::{Access, Allocation, Bytes, DEVICE_PAGE, FABRIC, Kind};
use crate::state::{Done, State, entry};

/// Memory without an address.
pub(crate) struct Physical {
    backing: Arc<Backing>,
    /// The number of the device on this machine.
    device: u32,
    /// The forms in which it may be given away; none for what was opened.
    exportable: u32,
}

fn whole_pages(size: usize) -> Done {
    if size > 0 && size.is_multiple_of(DEVICE_PAGE) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE.into()) }
}

fn place(address: CUdeviceptr, size: usize) -> Done<usize> {
    let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    start.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(start)
}

/// What is asked for, if it can be had.
fn checked(state: &State, properties: &CUmemAllocationProp) -> Done<u32> {
    if !state.settings.has("virtual") {
        return Err(CUDA_ERROR_NOT_SUPPORTED.into());
    }
    let forms = properties.requestedHandleTypes.0;
    let known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 | CU_MEM_HANDLE_TYPE_FABRIC.0;
    let is_it = properties.r#type == CU_MEM_ALLOCATION_TYPE_PINNED
        && properties.location.r#type == CU_MEM_LOCATION_TYPE_DEVICE
        && forms & !known == 0;
    if !is_it {
        return Err(CUDA_ERROR_INVALID_VALUE.into());
    }
    let lacks = |form: CUmemAllocationHandleType, what| forms & form.0 != 0 && !state.settings.has(what);
    if lacks(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "fds") || lacks(CU_MEM_HANDLE_TYPE_FABRIC, "fabric") {
        return Err(CUDA_ERROR_NOT_SUPPORTED.into());
    }
    Ok(state.device(properties.location.id)?.number)
}

/// Of which sizes physical memory is.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    _which: CUmemAllocationGranularity_flags,
) -> CUresult {
    // SAFETY: pointers of the application.
    entry("cuMemGetAllocationGranularity", |state| unsafe {
        checked(state, &get(properties)?)?;
        Ok(put(granularity, DEVICE_PAGE)?)
    })
}

/// Takes addresses where nothing is.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    _wanted: CUdeviceptr,
    _flags: u64,
) -> CUresult {
    entry("cuMemAddressReserve", |state| {
        whole_pages(size)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let addresses = Mapping::reserve(size, alignment.max(DEVICE_PAGE))?;
        // SAFETY: a pointer of the application.
        unsafe { put(address, addresses.address() as u64) }?;
        lock(&state.reservations).push(addresses);
        Ok(())
    })
}

/// Gives them back, if nothing is mapped there.
///
/// # Safety
/// As the interface has it.
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

/// Physical memory of a device.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    _flags: u64,
) -> CUresult {
    entry("cuMemCreate", |state| {
        // SAFETY: pointers of the application. The first is written to before anything is made.
        let properties = unsafe {
            put(handle, 0)?;
            get(properties)?
        };
        let device = checked(state, &properties)?;
        whole_pages(size)?;
        let charges =
            state.core.charges(std::slice::from_ref(&state.device(properties.location.id)?.memory), size)?;
        let backing = Arc::new(Backing::new(size, Origin::Device(device), charges)?);
        let exportable = properties.requestedHandleTypes.0;
        let made = state.physical.insert(Physical { backing, device, exportable });
        // SAFETY: as above.
        Ok(unsafe { put(handle, made as u64) }?)
    })
}

fn physical(state: &State, handle: CUmemGenericAllocationHandle) -> Done<Arc<Physical>> {
    let number = usize::try_from(handle).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    state.physical.get(number).map_err(|_| CUDA_ERROR_INVALID_VALUE.into())
}

/// Releases physical memory, which goes with its last mapping.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    entry("cuMemRelease", |state| {
        physical(state, handle)?;
        let number = usize::try_from(handle).unwrap_or(0);
        state.physical.remove(number).map(drop).map_err(|_| CUDA_ERROR_INVALID_VALUE.into())
    })
}

/// Shows physical memory at reserved addresses. No device may use it there yet.
///
/// # Safety
/// As the interface has it.
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
        let physical = physical(state, handle)?;
        // As drivers have it today.
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
        let owner = Allocation {
            kind: Kind::Mapped,
            context: 0,
            device: Some(physical.device),
            access: Mutex::default(),
        };
        state.core.addresses.map(start, size, Arc::clone(&physical.backing), owner);
        Ok(())
    })
}

/// Takes away what one or more whole mappings show.
///
/// # Safety
/// As the interface has it.
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

/// The mappings that make up a range.
fn mapped(state: &State, start: usize, size: usize) -> Done<Vec<Arc<Range<Allocation>>>> {
    let ranges = state.core.addresses.within(start, start + size);
    let mut at = start;
    for range in &ranges {
        if range.start != at || range.owner.kind != Kind::Mapped {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        at += range.size;
    }
    if size > 0 && at == start + size { Ok(ranges) } else { Err(CUDA_ERROR_INVALID_VALUE.into()) }
}

/// Says what devices may do with what is mapped.
///
/// # Safety
/// As the interface has it.
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
            // SAFETY: the application's, so many of them.
            let wanted = unsafe { get(access.wrapping_add(place)) }?;
            let device = state.device(wanted.location.id)?.number;
            let granted = match wanted.flags {
                CU_MEM_ACCESS_FLAGS_PROT_NONE => Access::Nothing,
                CU_MEM_ACCESS_FLAGS_PROT_READ => Access::Read,
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Access::ReadWrite,
                _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
            };
            for range in &ranges {
                if !state.reaches(device, range.owner.device.unwrap_or(device)) {
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

/// An fd of physical memory, for another process.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    _flags: u64,
) -> CUresult {
    entry("cuMemExportToShareableHandle", |state| {
        let physical = physical(state, handle)?;
        if physical.exportable & kind.0 == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        if kind == CU_MEM_HANDLE_TYPE_FABRIC {
            let file = physical.backing.file().ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let bytes = Bytes::of(file, physical.backing.size())?.encode(FABRIC);
            // SAFETY: a pointer of the application, to a handle of this kind.
            return Ok(unsafe { put(shareable.cast(), CUmemFabricHandle { data: bytes }) }?);
        }
        // SAFETY: a pointer of the application; the fd is its own from here on.
        unsafe {
            get(shareable.cast::<c_int>())?;
            Ok(put(shareable.cast::<c_int>(), physical.backing.export()?.into_raw_fd())?)
        }
    })
}

/// The physical memory behind an fd, which stays the application's.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    entry("cuMemImportFromShareableHandle", |state| {
        // SAFETY: a pointer of the application. It is written to before anything is made.
        unsafe { put(handle, 0) }?;
        let file = match kind {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if state.settings.has("fds") => {
                let number = i32::try_from(shareable.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
                Backing::fd_by_number(number)?
            }
            CU_MEM_HANDLE_TYPE_FABRIC if state.settings.has("fabric") => {
                // SAFETY: a pointer of the application, to a handle of this kind.
                let bytes = unsafe { get(shareable.cast::<CUmemFabricHandle>()) }?;
                let bytes = Bytes::decode(&bytes.data, FABRIC)?;
                bytes.fetch()?
            }
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED.into()),
        };
        let (backing, origin) = Backing::opened(file.as_fd())?;
        let Origin::Device(device) = origin else { return Err(CUDA_ERROR_INVALID_VALUE.into()) };
        let made = state.physical.insert(Physical { backing: Arc::new(backing), device, exportable: 0 });
        // SAFETY: as above.
        Ok(unsafe { put(handle, made as u64) }?)
    })
}
