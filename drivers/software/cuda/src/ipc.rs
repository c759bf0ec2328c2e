//! Handles for other processes: 64 bytes with the exporter's pid, the fd of the memory or event,
//! and the identity of the file. They are opened through `/proc`.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use cuda_sys::*;
use soft_device::{Backing, Mapping, MemoryOrigin, lock, read_argument, write_result};

use crate::event::{EventObject, SHARED_EVENT_NAME, SharedEvent};
use crate::memory::{Allocation, AllocationKind, DEVICE_PAGE, HOST_PAGE, find};
use crate::state::{CudaResult, entry};

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
        // The memfd of a pool has other allocations too.
        if range.owner.kind == AllocationKind::Pooled {
            return Err(CUDA_ERROR_NOT_SUPPORTED.into());
        }
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

/// The prefix of the names of memfds of device memory.
pub(crate) const DEVICE_MEMORY_NAME: &str = "soft-device-";
/// The first bytes of handles of `cuIpcGetMemHandle`.
pub(crate) const LEGACY: [u8; 8] = *b"cudasoft";
/// The first bytes of handles of `cuIpcGetEventHandle`.
const EVENT: [u8; 8] = *b"cudaevnt";
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
    pub(crate) fn fetch(self, name: &str) -> CudaResult<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        // Checked before it is opened: opening a device or a pipe has side effects.
        let link = std::fs::read_link(&path).map_err(|_| CUDA_ERROR_MAP_FAILED)?;
        if !link.to_string_lossy().starts_with(&format!("/memfd:{name}")) {
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
        let file = bytes.fetch(DEVICE_MEMORY_NAME)?;
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
        let owner = Allocation::new(AllocationKind::Opened, current.number, Some(device));
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

/// Returns the IPC handle of an event of `CU_EVENT_INTERPROCESS`.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent) -> CUresult {
    entry("cuIpcGetEventHandle", |state| {
        let event = state.event(event)?;
        let EventObject::Shared(event) = &*event else { return Err(CUDA_ERROR_INVALID_VALUE.into()) };
        // An opened event cannot be exported again.
        let bytes = IpcBytes::of(event.0.file().ok_or(CUDA_ERROR_INVALID_VALUE)?, event.0.size())?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(handle, CUipcEventHandle { reserved: bytes.encode(EVENT) }) }?)
    })
}

/// Opens an event of another process. It is destroyed with `cuEventDestroy`.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle) -> CUresult {
    entry("cuIpcOpenEventHandle", |state| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires. It is
        // written before a resource is created.
        unsafe { write_result(event, CUevent::NULL) }?;
        state.current()?;
        let bytes = IpcBytes::decode(&handle.reserved, EVENT)?;
        if bytes.pid == std::process::id() {
            return Err(CUDA_ERROR_INVALID_CONTEXT.into());
        }
        let (backing, _) = Backing::from_fd(bytes.fetch(SHARED_EVENT_NAME)?.as_fd())?;
        let opened = EventObject::Shared(Arc::new(SharedEvent(backing)));
        // SAFETY: as above.
        Ok(unsafe { write_result(event, state.add_event(opened)) }?)
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
