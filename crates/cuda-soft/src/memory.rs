//! Allocations.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Backing, Mapping, Origin, Range, lock};

use crate::context::Current;
use crate::entry::{Done, entry, get, put};
use crate::state::{Device, State};

/// The pages of devices, in bytes.
pub(crate) const DEVICE_PAGE: usize = 2 << 20;
/// The pages of memory that the host may touch, in bytes.
const HOST_PAGE: usize = 4096;

/// What a device may do with what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    Nothing,
    Read,
    ReadWrite,
}

/// How memory came to be, and so who takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Host,
    Managed,
    /// Opened from a handle of another process.
    Opened,
    /// Physical memory at reserved addresses.
    Mapped,
}

/// Memory at addresses of this process.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    /// The context that it goes with; 0 for what belongs to none.
    pub(crate) context: usize,
    /// The number of the device on this machine, for memory of one.
    pub(crate) device: Option<u32>,
    /// What devices may do with what was mapped.
    pub(crate) access: Mutex<Vec<(u32, Access)>>,
    /// The file, of what was opened.
    pub(crate) file: Option<(u64, u64)>,
    /// Its addresses; absent where these are a reservation's.
    pub(crate) _window: Option<Mapping>,
}

impl Allocation {
    /// Whether a device may use this now.
    pub(crate) fn check_use(&self, device: &Device, wanted: Access) -> Done {
        if self.kind != Kind::Mapped {
            return Ok(());
        }
        let granted =
            lock(&self.access).iter().find(|(number, _)| *number == device.number).map(|(_, access)| *access);
        if granted.unwrap_or(Access::Nothing) >= wanted {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_VALUE.into())
        }
    }
}

impl State {
    fn allocate(&self, kind: Kind, current: &Current<'_>, size: usize) -> Done<usize> {
        let page = if kind == Kind::Host { HOST_PAGE } else { DEVICE_PAGE };
        let rounded = size.checked_next_multiple_of(page).filter(|size| *size > 0 && *size < 1 << 47);
        let rounded =
            rounded.ok_or(if size == 0 { CUDA_ERROR_INVALID_VALUE } else { CUDA_ERROR_OUT_OF_MEMORY })?;
        let device = (kind != Kind::Host).then_some(current.device);
        let charges = self.charge(device, rounded)?;
        let origin = match kind {
            Kind::Device => Origin::Device(current.device.number),
            _ => Origin::Host,
        };
        let backing = Backing::new(rounded, origin, charges)?;
        let window = Mapping::reserve(rounded, page)?;
        if kind != Kind::Device {
            window.show(backing.file().ok_or(CUDA_ERROR_UNKNOWN)?)?;
        }
        let (start, room) = (window.address(), window.size());
        let owner = Arc::new(Allocation {
            id: self.id(),
            kind,
            context: current.number,
            device: device.map(|device| device.number),
            access: Mutex::default(),
            file: None,
            _window: Some(window),
        });
        let range = Range { size, room, backing: Arc::new(backing), owner };
        self.addresses.insert(start, range);
        Ok(start)
    }

    /// Takes an allocation away. Commands that work on it keep its pages until they are done.
    pub(crate) fn free(&self, address: u64, is_it: impl Fn(Kind) -> bool) -> Done {
        let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let removed = self.addresses.remove(start, |range| is_it(range.owner.kind));
        removed.map(drop).ok_or_else(|| CUDA_ERROR_INVALID_VALUE.into())
    }
}

/// Memory of the current context's device.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) -> CUresult {
    // SAFETY: a pointer of the application. It is written to before anything is made.
    entry("cuMemAlloc", |state| unsafe {
        put(address, 0)?;
        put(address, state.allocate(Kind::Device, &state.current()?, size)? as u64)
    })
}

/// Frees what `cuMemAlloc` and `cuMemAllocManaged` made.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    entry("cuMemFree", |state| {
        state.current()?;
        state.free(address, |kind| matches!(kind, Kind::Device | Kind::Managed))
    })
}

/// As `cuMemAlloc`, at once.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: as above.
    entry("cuMemAllocAsync", |state| unsafe {
        put(address, 0)?;
        state.stream(stream, |_| Ok(()))?;
        put(address, state.allocate(Kind::Device, &state.current()?, size)? as u64)
    })
}

/// As `cuMemFree`: what was submitted before keeps the pages.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    entry("cuMemFreeAsync", |state| {
        state.stream(stream, |_| Ok(()))?;
        state.free(address, |kind| kind == Kind::Device)
    })
}

/// Memory of the host that devices reach.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint) -> CUresult {
    // SAFETY: as above.
    entry("cuMemHostAlloc", |state| unsafe {
        put(address, std::ptr::null_mut())?;
        // Portable, mapped, write-combined.
        if flags & !0b111 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let start = state.allocate(Kind::Host, &state.current()?, size)?;
        put(address, std::ptr::with_exposed_provenance_mut(start))
    })
}

/// Frees it.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    entry("cuMemFreeHost", |state| {
        state.current()?;
        state.free(address.addr() as u64, |kind| kind == Kind::Host)
    })
}

/// Memory that host and devices use.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(
    address: *mut CUdeviceptr,
    size: usize,
    flags: c_uint,
) -> CUresult {
    // SAFETY: as above.
    entry("cuMemAllocManaged", |state| unsafe {
        put(address, 0)?;
        if !state.settings.has("managed") {
            return Err(CUDA_ERROR_NOT_SUPPORTED.into());
        }
        // Attached to all streams, or to none.
        if !matches!(flags, 1 | 2) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        put(address, state.allocate(Kind::Managed, &state.current()?, size)? as u64)
    })
}

/// How much of the current device is free.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    entry("cuMemGetInfo", |state| {
        let current = state.current()?;
        let (limit, used) = (current.device.memory.limit(), current.device.memory.used());
        // SAFETY: pointers of the application.
        unsafe {
            put(free, usize::try_from(limit - used).unwrap_or(usize::MAX))?;
            put(total, usize::try_from(limit).unwrap_or(usize::MAX))
        }
    })
}

/// The allocation that an address is in.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    entry("cuMemGetAddressRange", |state| {
        let (start, range) = find(state, address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: pointers of the application, each of which may be null.
        unsafe {
            let _ = put(base, start as u64);
            let _ = put(size, range.size);
        }
        Ok(())
    })
}

pub(crate) fn find(state: &State, address: CUdeviceptr) -> Option<(usize, Range<Arc<Allocation>>)> {
    state.addresses.find(usize::try_from(address).ok()?)
}

/// What is known of an address.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    entry("cuPointerGetAttribute", |state| {
        let (_, range) = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let owner = &range.owner;
        // SAFETY: a pointer of the application, to what the attribute is.
        unsafe {
            match attribute {
                CU_POINTER_ATTRIBUTE_CONTEXT => put(value.cast(), crate::context::handle(owner.context)),
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                    put(value.cast::<c_uint>(), if owner.kind == Kind::Host { 1 } else { 2 })
                }
                CU_POINTER_ATTRIBUTE_BUFFER_ID => put(value.cast(), owner.id),
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                    let place = state.devices.iter().position(|device| Some(device.number) == owner.device);
                    put(
                        value.cast::<c_int>(),
                        place.and_then(|place| c_int::try_from(place).ok()).unwrap_or(-1),
                    )
                }
                _ => Err(CUDA_ERROR_INVALID_VALUE.into()),
            }
        }
    })
}

/// A dma-buf over a range of addresses. Here it is the memfd: whoever asks the kernel sees that.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    fd: *mut c_void,
    address: CUdeviceptr,
    size: usize,
    kind: CUmemRangeHandleType,
    _flags: u64,
) -> CUresult {
    entry("cuMemGetHandleForAddressRange", |state| {
        if kind != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        if !state.settings.has("dma-buf") {
            return Err(CUDA_ERROR_NOT_SUPPORTED.into());
        }
        let (start, range) = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let is_whole_pages = address.is_multiple_of(HOST_PAGE as u64) && size.is_multiple_of(HOST_PAGE);
        if !is_whole_pages || size == 0 || size > range.room - (address as usize - start) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        // SAFETY: a pointer of the application; the fd is its own from here on.
        unsafe {
            get(fd.cast::<c_int>())?;
            put(fd.cast::<c_int>(), range.backing.export()?.into_raw_fd())
        }
    })
}
