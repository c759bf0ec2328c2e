//! Allocations: device, pinned and managed memory, and registered memory of the application.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Backing, Mapping, MemoryOrigin, MemoryRange, lock, write_result};

use crate::context::Current;
use crate::managed::Advice;
use crate::pool::{Pool, PoolKind};
use crate::state::{CudaResult, Device, DriverState, entry};
use crate::virtual_memory::PhysicalMemory;

/// Page size of device memory in bytes.
pub(crate) const DEVICE_PAGE: usize = 2 << 20;
/// Page size of host memory in bytes.
pub(crate) const HOST_PAGE: usize = 4096;

/// The access of a device to mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    Nothing,
    Read,
    ReadWrite,
}

impl Access {
    /// Converts the access of the interface.
    pub(crate) fn from_flags(flags: CUmemAccess_flags) -> CudaResult<Self> {
        match flags {
            CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok(Self::Nothing),
            CU_MEM_ACCESS_FLAGS_PROT_READ => Ok(Self::Read),
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok(Self::ReadWrite),
            _ => Err(CUDA_ERROR_INVALID_VALUE.into()),
        }
    }

    /// Converts it to the access of the interface.
    pub(crate) fn flags(self) -> CUmemAccess_flags {
        match self {
            Self::Nothing => CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Self::Read => CU_MEM_ACCESS_FLAGS_PROT_READ,
            Self::ReadWrite => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }
}

/// The function that allocated memory, which determines the one that frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    Device,
    Host,
    Managed,
    /// Opened from an IPC handle.
    Opened,
    /// Physical memory mapped at reserved addresses.
    Mapped,
    /// Memory of a pool.
    Pooled,
}

/// The description of an allocation.
pub(crate) struct Allocation {
    pub(crate) kind: AllocationKind,
    /// The handle of its context; 0 for memory that belongs to none: mapped and pooled.
    pub(crate) context: usize,
    /// The number of its device on this machine.
    pub(crate) device: Option<u32>,
    /// The access of each device to mapped memory.
    pub(crate) access: Mutex<Vec<(u32, Access)>>,
    /// The pool of pooled memory.
    pub(crate) pool: Option<Arc<Pool>>,
    /// Mapped physical memory, and its handle.
    pub(crate) physical: Option<(usize, PhysicalMemory)>,
    /// The advice about managed memory.
    pub(crate) advice: Mutex<Advice>,
}

impl Allocation {
    pub(crate) fn new(kind: AllocationKind, context: usize, device: Option<u32>) -> Self {
        Self {
            kind,
            context,
            device,
            access: Mutex::default(),
            pool: None,
            physical: None,
            advice: Mutex::default(),
        }
    }

    /// Returns whether it is pinned host memory.
    pub(crate) fn is_host(&self) -> bool {
        self.kind == AllocationKind::Host
            || self.pool.as_ref().is_some_and(|pool| pool.kind == PoolKind::Host)
    }

    /// Returns whether it is managed memory.
    pub(crate) fn is_managed(&self) -> bool {
        self.kind == AllocationKind::Managed
            || self.pool.as_ref().is_some_and(|pool| pool.kind == PoolKind::Managed)
    }

    /// Returns the access of a device (by its number on this machine) to mapped memory.
    pub(crate) fn granted(&self, device: u32) -> Access {
        let access = lock(&self.access);
        access.iter().find(|(number, _)| *number == device).map_or(Access::Nothing, |(_, access)| *access)
    }

    /// Checks that a device has access.
    pub(crate) fn check_use(&self, device: &Device, wanted: Access) -> CudaResult {
        if self.kind != AllocationKind::Mapped || self.granted(device.number) >= wanted {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_VALUE.into())
        }
    }
}

impl DriverState {
    fn allocate(&self, kind: AllocationKind, current: &Current<'_>, size: usize) -> CudaResult<usize> {
        let page = if kind == AllocationKind::Host { HOST_PAGE } else { DEVICE_PAGE };
        let rounded = size.checked_next_multiple_of(page).filter(|size| *size > 0 && *size < 1 << 47);
        let rounded =
            rounded.ok_or(if size == 0 { CUDA_ERROR_INVALID_VALUE } else { CUDA_ERROR_OUT_OF_MEMORY })?;
        let device = (kind != AllocationKind::Host).then_some(current.device);
        let memory = device.map_or(&[][..], |device| std::slice::from_ref(&device.memory));
        let charges = self.core.charges(memory, rounded)?;
        let origin = match kind {
            AllocationKind::Device => MemoryOrigin::Device(current.device.number),
            _ => MemoryOrigin::Host,
        };
        let backing = Backing::new(rounded, origin, charges)?;
        let window = Mapping::reserve(rounded, page)?;
        if kind != AllocationKind::Device {
            window.map_file(backing.file().ok_or(CUDA_ERROR_UNKNOWN)?)?;
        }
        let owner = Allocation::new(kind, current.number, Some(current.device.number));
        Ok(self.core.addresses.insert(size, backing, window, owner))
    }

    /// Frees an allocation. Submitted commands keep its pages until they have executed.
    pub(crate) fn free(&self, address: u64, matches: impl Fn(AllocationKind) -> bool) -> CudaResult {
        let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let removed = self.core.addresses.remove(start, |range| matches(range.owner.kind));
        removed.map(drop).ok_or_else(|| CUDA_ERROR_INVALID_VALUE.into())
    }
}

/// Allocates memory of the current context's device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) -> CUresult {
    // SAFETY: the application passes a valid or null pointer, as the interface requires. It is
    // written to before anything is made.
    entry("cuMemAlloc", |state| unsafe {
        write_result(address, 0)?;
        Ok(write_result(address, state.allocate(AllocationKind::Device, &state.current()?, size)? as u64)?)
    })
}

/// Frees memory of `cuMemAlloc`, `cuMemAllocManaged` and pools. Before memory returns to a pool,
/// all submitted work has executed. Needs no current context, since clients free memory without one.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    entry("cuMemFree", |state| {
        if find(state, address).is_some_and(|range| range.owner.kind == AllocationKind::Pooled) {
            state.wait_for_all()?;
            return state.free_pooled(address, None);
        }
        state.free(address, |kind| matches!(kind, AllocationKind::Device | AllocationKind::Managed))
    })
}

/// Allocates pinned host memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint) -> CUresult {
    // SAFETY: as above.
    entry("cuMemHostAlloc", |state| unsafe {
        write_result(address, std::ptr::null_mut())?;
        // Portable, mapped, write-combined.
        if flags & !0b111 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let start = state.allocate(AllocationKind::Host, &state.current()?, size)?;
        Ok(write_result(address, std::ptr::with_exposed_provenance_mut(start))?)
    })
}

/// Allocates pinned host memory, as `cuMemHostAlloc` does without flags.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(address: *mut *mut c_void, size: usize) -> CUresult {
    // SAFETY: as above.
    entry("cuMemAllocHost", |state| unsafe {
        write_result(address, std::ptr::null_mut())?;
        let start = state.allocate(AllocationKind::Host, &state.current()?, size)?;
        Ok(write_result(address, std::ptr::with_exposed_provenance_mut(start))?)
    })
}

/// Frees pinned host memory. Needs no current context.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    entry("cuMemFreeHost", |state| state.free(address.addr() as u64, |kind| kind == AllocationKind::Host))
}

/// Allocates managed memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(
    address: *mut CUdeviceptr,
    size: usize,
    flags: c_uint,
) -> CUresult {
    // SAFETY: as above.
    entry("cuMemAllocManaged", |state| unsafe {
        write_result(address, 0)?;
        if !state.settings.has("managed") {
            return Err(CUDA_ERROR_NOT_SUPPORTED.into());
        }
        // Attached to all streams, or to none.
        if !matches!(flags, 1 | 2) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        Ok(write_result(address, state.allocate(AllocationKind::Managed, &state.current()?, size)? as u64)?)
    })
}

/// Returns the free and total bytes of the current device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    entry("cuMemGetInfo", |state| {
        let current = state.current()?;
        let (limit, used) = (current.device.memory.limit(), current.device.memory.used());
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            write_result(free, usize::try_from(limit - used).unwrap_or(usize::MAX))?;
            Ok(write_result(total, usize::try_from(limit).unwrap_or(usize::MAX))?)
        }
    })
}

/// Returns the allocation that contains an address.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    entry("cuMemGetAddressRange", |state| {
        let range = find(state, address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: the application passes valid or null pointers.
        unsafe {
            let _ = write_result(base, range.start as u64);
            let _ = write_result(size, range.size);
        }
        Ok(())
    })
}

pub(crate) fn find(state: &DriverState, address: CUdeviceptr) -> Option<Arc<MemoryRange<Allocation>>> {
    state.core.addresses.find(usize::try_from(address).ok()?)
}

/// Memory of the application that `cuMemHostRegister` pinned, by first address.
pub(crate) type Registrations = Mutex<BTreeMap<usize, Registration>>;

/// Registered memory of the application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) size: usize,
    pub(crate) context: usize,
    pub(crate) device: u32,
}

impl DriverState {
    /// Returns the registered memory that contains an address, with its first address.
    pub(crate) fn registration(&self, address: usize) -> Option<(usize, Registration)> {
        let registrations = lock(&self.registrations);
        let (start, found) = registrations.range(..=address).next_back()?;
        (address - start < found.size).then_some((*start, *found))
    }
}

/// Registers memory of the application, which devices then access at the same address.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint) -> CUresult {
    entry("cuMemHostRegister", |state| {
        let current = state.current()?;
        let start = address.expose_provenance();
        let end =
            start.checked_add(size).filter(|_| start != 0 && size > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // Portable, mapped, of a device, read-only.
        if flags & !0b1111 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let mut registrations = lock(&state.registrations);
        let is_taken = registrations.range(..end).next_back().is_some_and(|(of, it)| of + it.size > start)
            || state.core.addresses.find(start).is_some()
            || !state.core.addresses.within(start, end).is_empty();
        if is_taken {
            return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        let (context, device) = (current.number, current.device.number);
        registrations.insert(start, Registration { size, context, device });
        Ok(())
    })
}

/// Ends the registration of memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> CUresult {
    entry("cuMemHostUnregister", |state| {
        let removed = lock(&state.registrations).remove(&address.addr());
        removed.map(drop).ok_or_else(|| CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED.into())
    })
}

/// Returns the address at which devices access pinned or registered memory: the same.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device: *mut CUdeviceptr,
    address: *mut c_void,
    flags: c_uint,
) -> CUresult {
    entry("cuMemHostGetDevicePointer", |state| {
        let address = address.addr();
        let is_pinned = find(state, address as u64).is_some_and(|range| range.owner.is_host());
        if flags != 0 || !(is_pinned || state.registration(address).is_some()) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(device, address as u64) }?)
    })
}
