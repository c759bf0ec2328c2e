//! Allocations, and handles of them for other processes: 64 bytes that say in which process which
//! fd is the memory.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Backing, Mapping, Origin, Range, get, lock, put};

use crate::context::Current;
use crate::state::{Device, Done, State, entry};

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

/// How memory came to be, and so which function takes it away.
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

/// What the interface keeps with memory.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) kind: Kind,
    /// The context that it goes with; 0 for what belongs to none.
    pub(crate) context: usize,
    /// The number of the device on this machine, for memory of one.
    pub(crate) device: Option<u32>,
    /// What devices may do with what was mapped.
    pub(crate) access: Mutex<Vec<(u32, Access)>>,
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
        let memory = device.map_or(&[][..], |device| std::slice::from_ref(&device.memory));
        let charges = self.core.charges(memory, rounded)?;
        let origin = match kind {
            Kind::Device => Origin::Device(current.device.number),
            _ => Origin::Host,
        };
        let backing = Backing::new(rounded, origin, charges)?;
        let window = Mapping::reserve(rounded, page)?;
        if kind != Kind::Device {
            window.show(backing.file().ok_or(CUDA_ERROR_UNKNOWN)?)?;
        }
        let owner = Allocation {
            kind,
            context: current.number,
            device: device.map(|device| device.number),
            access: Mutex::default(),
        };
        Ok(self.core.addresses.insert(size, backing, window, owner))
    }

    /// Takes an allocation away. Commands that work on it keep its pages until they are done.
    pub(crate) fn free(&self, address: u64, is_it: impl Fn(Kind) -> bool) -> Done {
        let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let removed = self.core.addresses.remove(start, |range| is_it(range.owner.kind));
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
        Ok(put(address, state.allocate(Kind::Device, &state.current()?, size)? as u64)?)
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
        Ok(put(address, state.allocate(Kind::Device, &state.current()?, size)? as u64)?)
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
        Ok(put(address, std::ptr::with_exposed_provenance_mut(start))?)
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
        Ok(put(address, state.allocate(Kind::Managed, &state.current()?, size)? as u64)?)
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
            Ok(put(total, usize::try_from(limit).unwrap_or(usize::MAX))?)
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
        let range = find(state, address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: pointers of the application, each of which may be null.
        unsafe {
            let _ = put(base, range.start as u64);
            let _ = put(size, range.size);
        }
        Ok(())
    })
}

pub(crate) fn find(state: &State, address: CUdeviceptr) -> Option<Arc<Range<Allocation>>> {
    state.core.addresses.find(usize::try_from(address).ok()?)
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
        let range = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let owner = &range.owner;
        // SAFETY: a pointer of the application, to what the attribute is.
        unsafe {
            match attribute {
                CU_POINTER_ATTRIBUTE_CONTEXT => put(value.cast(), crate::context::handle(owner.context))?,
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                    put(value.cast::<c_uint>(), if owner.kind == Kind::Host { 1 } else { 2 })?;
                }
                CU_POINTER_ATTRIBUTE_BUFFER_ID => put(value.cast(), range.id)?,
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                    let place = state.devices.iter().position(|device| Some(device.number) == owner.device);
                    let place = place.and_then(|place| c_int::try_from(place).ok());
                    put(value.cast::<c_int>(), place.unwrap_or(-1))?;
                }
                _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
            }
        }
        Ok(())
    })
}

/// A dma-buf over a range of addresses. Here it is the memfd, which a kernel does not take for a
/// dma-buf.
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
        let range = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let is_whole_pages = address.is_multiple_of(HOST_PAGE as u64) && size.is_multiple_of(HOST_PAGE);
        if !is_whole_pages || size == 0 || size > range.room() - (address as usize - range.start) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        // SAFETY: a pointer of the application; the fd is its own from here on.
        unsafe {
            get(fd.cast::<c_int>())?;
            Ok(put(fd.cast::<c_int>(), range.backing.export()?.into_raw_fd())?)
        }
    })
}

/// What handles of `cuIpcGetMemHandle` begin with.
pub(crate) const LEGACY: [u8; 8] = *b"cudasoft";
/// What fabric handles begin with.
pub(crate) const FABRIC: [u8; 8] = *b"cudafabr";

/// What is in a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// The process, at 8, and the fd there, at 12.
    pub(crate) pid: u32,
    pub(crate) fd: i32,
    /// Device and inode of the file, at 16 and 24.
    pub(crate) file: (u64, u64),
    /// Bytes that were asked for, at 32.
    pub(crate) size: u64,
}

impl Bytes {
    pub(crate) fn of(file: BorrowedFd<'_>, size: usize) -> Done<Self> {
        let (pid, fd) = (std::process::id(), file.as_raw_fd());
        Ok(Self { pid, fd, file: Backing::identity(file)?, size: size as u64 })
    }

    pub(crate) fn encode(self, magic: [u8; 8]) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&magic);
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.file.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file.1.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// The bytes come from another process, and may be anything.
    pub(crate) fn decode(bytes: &[u8; 64], magic: [u8; 8]) -> Done<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if bytes[..8] != magic || bytes[40..] != [0; 24] {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        Ok(Self { pid: word(8), fd: word(12).cast_signed(), file: (long(16), long(24)), size: long(32) })
    }

    /// The fd that it means.
    pub(crate) fn fetch(self) -> Done<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        // Looked at before it is opened: opening a device or a pipe can do anything.
        let link = std::fs::read_link(&path).map_err(|_| CUDA_ERROR_MAP_FAILED)?;
        if !link.to_string_lossy().starts_with("/memfd:soft-device-") {
            return Err(CUDA_ERROR_MAP_FAILED.into());
        }
        let file = File::options().read(true).write(true).open(path).map_err(|_| CUDA_ERROR_MAP_FAILED)?;
        if Backing::identity(file.as_fd())? != self.file {
            return Err(CUDA_ERROR_MAP_FAILED.into());
        }
        Ok(file.into())
    }
}

/// The handle of an allocation of `cuMemAlloc`.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CUresult {
    entry("cuIpcGetMemHandle", |state| {
        let range = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // Memory of cuMemCreate has other handles.
        let file = range.backing.file().filter(|_| range.owner.kind == Kind::Device);
        let bytes = Bytes::of(file.ok_or(CUDA_ERROR_INVALID_VALUE)?, range.size)?;
        // SAFETY: a pointer of the application.
        Ok(unsafe { put(handle, CUipcMemHandle { reserved: bytes.encode(LEGACY) }) }?)
    })
}

/// Opens memory of another process: once, and never one's own.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CUresult {
    entry("cuIpcOpenMemHandle", |state| {
        // SAFETY: a pointer of the application. It is written to before anything is made.
        unsafe { put(address, 0) }?;
        let current = state.current()?;
        let bytes = Bytes::decode(&handle.reserved, LEGACY)?;
        if flags & !CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        if bytes.pid == std::process::id() {
            return Err(CUDA_ERROR_INVALID_CONTEXT.into());
        }
        let _opening = lock(&state.core.opening);
        let is_open = !state
            .core
            .addresses
            .all(|range| range.owner.kind == Kind::Opened && range.backing.is_opened_from(bytes.file))
            .is_empty();
        if is_open {
            return Err(CUDA_ERROR_ALREADY_MAPPED.into());
        }
        let file = bytes.fetch()?;
        let (backing, origin) = Backing::opened(file.as_fd())?;
        let Origin::Device(device) = origin else { return Err(CUDA_ERROR_INVALID_VALUE.into()) };
        if !state.reaches(current.device.number, device) {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.into());
        }
        let size = usize::try_from(bytes.size).unwrap_or(usize::MAX);
        let room = backing.size();
        if size == 0 || size > room {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let window = Mapping::reserve(room, DEVICE_PAGE)?;
        let owner = Allocation {
            kind: Kind::Opened,
            context: current.number,
            device: Some(device),
            access: Mutex::default(),
        };
        let start = state.core.addresses.insert(size, backing, window, owner);
        // SAFETY: as above.
        Ok(unsafe { put(address, start as u64) }?)
    })
}

/// Closes it.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult {
    entry("cuIpcCloseMemHandle", |state| {
        state.current()?;
        state.free(address, |kind| kind == Kind::Opened)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_written_and_junk_is_refused() {
        let bytes = Bytes { pid: 7, fd: 3, file: (5, 1 << 40), size: 4096 };
        let encoded = bytes.encode(LEGACY);
        assert_eq!(Bytes::decode(&encoded, LEGACY).unwrap(), bytes);
        assert!(Bytes::decode(&encoded, FABRIC).is_err());
        assert!(Bytes::decode(&[0xff; 64], LEGACY).is_err());
        let mut longer = encoded;
        longer[63] = 1;
        assert!(Bytes::decode(&longer, LEGACY).is_err());
    }
}
