//! Allocations, and their IPC handles: 64 bytes with the exporter's pid, the fd of the memory and
//! the identity of the file.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Backing, Mapping, MemoryOrigin, MemoryRange, lock, read_argument, write_result};

use crate::context::Current;
use crate::state::{CudaResult, Device, DriverState, entry};

/// Page size of device memory in bytes.
pub(crate) const DEVICE_PAGE: usize = 2 << 20;
/// Page size of host memory in bytes.
const HOST_PAGE: usize = 4096;

/// The access of a device to mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    Nothing,
    Read,
    ReadWrite,
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
}

/// The description of an allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) kind: AllocationKind,
    /// The handle of its context; 0 for mapped memory, which belongs to none.
    pub(crate) context: usize,
    /// The number of its device on this machine.
    pub(crate) device: Option<u32>,
    /// The access of each device to mapped memory.
    pub(crate) access: Mutex<Vec<(u32, Access)>>,
}

impl Allocation {
    /// Checks that a device has access.
    pub(crate) fn check_use(&self, device: &Device, wanted: Access) -> CudaResult {
        if self.kind != AllocationKind::Mapped {
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
        let owner = Allocation {
            kind,
            context: current.number,
            device: device.map(|device| device.number),
            access: Mutex::default(),
        };
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

/// Frees memory of `cuMemAlloc` and `cuMemAllocManaged`.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    entry("cuMemFree", |state| {
        state.current()?;
        state.free(address, |kind| matches!(kind, AllocationKind::Device | AllocationKind::Managed))
    })
}

/// Does the same as `cuMemAlloc`, immediately.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: as above.
    entry("cuMemAllocAsync", |state| unsafe {
        write_result(address, 0)?;
        state.stream(stream, |_| Ok(()))?;
        Ok(write_result(address, state.allocate(AllocationKind::Device, &state.current()?, size)? as u64)?)
    })
}

/// Does the same as `cuMemFree`: commands submitted before keep the pages.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    entry("cuMemFreeAsync", |state| {
        state.stream(stream, |_| Ok(()))?;
        state.free(address, |kind| kind == AllocationKind::Device)
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

/// Frees pinned host memory.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    entry("cuMemFreeHost", |state| {
        state.current()?;
        state.free(address.addr() as u64, |kind| kind == AllocationKind::Host)
    })
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

/// Returns an attribute of an address.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    entry("cuPointerGetAttribute", |state| {
        let range = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let owner = &range.owner;
        // SAFETY: the application's pointer has the type of the attribute.
        unsafe {
            match attribute {
                CU_POINTER_ATTRIBUTE_CONTEXT => {
                    write_result(value.cast(), crate::context::handle(owner.context))?
                }
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                    write_result(
                        value.cast::<c_uint>(),
                        if owner.kind == AllocationKind::Host { 1 } else { 2 },
                    )?;
                }
                CU_POINTER_ATTRIBUTE_BUFFER_ID => write_result(value.cast(), range.id)?,
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                    let place = state.devices.iter().position(|device| Some(device.number) == owner.device);
                    let place = place.and_then(|place| c_int::try_from(place).ok());
                    write_result(value.cast::<c_int>(), place.unwrap_or(-1))?;
                }
                _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
            }
        }
        Ok(())
    })
}

/// Returns a dma-buf over a range of addresses. Here it is the memfd, which the kernel does not
/// accept as a dma-buf.
///
/// # Safety
/// As the CUDA driver interface specifies.
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
        if !is_whole_pages || size == 0 || size > range.mapped_size() - (address as usize - range.start) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        // SAFETY: the application's pointer is valid or null; it owns the fd from here on.
        unsafe {
            read_argument(fd.cast::<c_int>())?;
            Ok(write_result(fd.cast::<c_int>(), range.backing.export()?.into_raw_fd())?)
        }
    })
}

/// The first bytes of handles of `cuIpcGetMemHandle`.
pub(crate) const LEGACY: [u8; 8] = *b"cudasoft";
/// The first bytes of fabric handles.
pub(crate) const FABRIC: [u8; 8] = *b"cudafabr";

/// The content of an IPC handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpcBytes {
    /// The exporting process, at 8, and its fd, at 12.
    pub(crate) pid: u32,
    pub(crate) fd: i32,
    /// Device and inode of the file, at 16 and 24.
    pub(crate) file: (u64, u64),
    /// The requested size in bytes, at 32.
    pub(crate) size: u64,
}

impl IpcBytes {
    pub(crate) fn of(file: BorrowedFd<'_>, size: usize) -> CudaResult<Self> {
        let (pid, fd) = (std::process::id(), file.as_raw_fd());
        Ok(Self { pid, fd, file: Backing::file_identity(file)?, size: size as u64 })
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

    /// Decodes bytes from another process, which may have any value.
    pub(crate) fn decode(bytes: &[u8; 64], magic: [u8; 8]) -> CudaResult<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if bytes[..8] != magic || bytes[40..] != [0; 24] {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        Ok(Self { pid: word(8), fd: word(12).cast_signed(), file: (long(16), long(24)), size: long(32) })
    }

    /// Opens the exporter's fd through `/proc`.
    pub(crate) fn fetch(self) -> CudaResult<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        // Checked before it is opened: opening a device or a pipe has side effects.
        let link = std::fs::read_link(&path).map_err(|_| CUDA_ERROR_MAP_FAILED)?;
        if !link.to_string_lossy().starts_with("/memfd:soft-device-") {
            return Err(CUDA_ERROR_MAP_FAILED.into());
        }
        let file = File::options().read(true).write(true).open(path).map_err(|_| CUDA_ERROR_MAP_FAILED)?;
        if Backing::file_identity(file.as_fd())? != self.file {
            return Err(CUDA_ERROR_MAP_FAILED.into());
        }
        Ok(file.into())
    }
}

/// Returns the IPC handle of an allocation of `cuMemAlloc`.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CUresult {
    entry("cuIpcGetMemHandle", |state| {
        let range = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // Memory of `cuMemCreate` is exported by `cuMemExportToShareableHandle`.
        let file = range.backing.file().filter(|_| range.owner.kind == AllocationKind::Device);
        let bytes = IpcBytes::of(file.ok_or(CUDA_ERROR_INVALID_VALUE)?, range.size)?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(handle, CUipcMemHandle { reserved: bytes.encode(LEGACY) }) }?)
    })
}

/// Opens memory of another process. As in NVIDIA's driver, a handle is opened once per process, and
/// not in the exporting process.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CUresult {
    entry("cuIpcOpenMemHandle", |state| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires. It is
        // written before a resource is created.
        unsafe { write_result(address, 0) }?;
        let current = state.current()?;
        let bytes = IpcBytes::decode(&handle.reserved, LEGACY)?;
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
            .all(|range| range.owner.kind == AllocationKind::Opened && range.backing.is_backed_by(bytes.file))
            .is_empty();
        if is_open {
            return Err(CUDA_ERROR_ALREADY_MAPPED.into());
        }
        let file = bytes.fetch()?;
        let (backing, origin) = Backing::from_fd(file.as_fd())?;
        let MemoryOrigin::Device(device) = origin else { return Err(CUDA_ERROR_INVALID_VALUE.into()) };
        if !state.can_access(current.device.number, device) {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.into());
        }
        let size = usize::try_from(bytes.size).unwrap_or(usize::MAX);
        let available = backing.size();
        if size == 0 || size > available {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let window = Mapping::reserve(available, DEVICE_PAGE)?;
        let owner = Allocation {
            kind: AllocationKind::Opened,
            context: current.number,
            device: Some(device),
            access: Mutex::default(),
        };
        let start = state.core.addresses.insert(size, backing, window, owner);
        // SAFETY: as above.
        Ok(unsafe { write_result(address, start as u64) }?)
    })
}

/// Closes an opened IPC handle.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult {
    entry("cuIpcCloseMemHandle", |state| {
        state.current()?;
        state.free(address, |kind| kind == AllocationKind::Opened)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_bytes_round_trip_and_junk_is_an_error() {
        let bytes = IpcBytes { pid: 7, fd: 3, file: (5, 1 << 40), size: 4096 };
        let encoded = bytes.encode(LEGACY);
        assert_eq!(IpcBytes::decode(&encoded, LEGACY).unwrap(), bytes);
        assert!(IpcBytes::decode(&encoded, FABRIC).is_err());
        assert!(IpcBytes::decode(&[0xff; 64], LEGACY).is_err());
        let mut longer = encoded;
        longer[63] = 1;
        assert!(IpcBytes::decode(&longer, LEGACY).is_err());
    }
}
