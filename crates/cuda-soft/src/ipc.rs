//! Handles for other processes: 64 bytes that say in which process which fd is the memory.

use std::ffi::c_uint;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Backing, Mapping, Origin, Range, lock};

use crate::entry::{Done, entry, put};
use crate::memory::{Allocation, DEVICE_PAGE, Kind, find};

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

    /// Whoever made the bytes may have put anything into them.
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
        // Looked at before it is opened: who knows what that would do.
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
        let (_, range) = find(state, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // Memory of cuMemCreate has other handles.
        let file = range.backing.file().filter(|_| range.owner.kind == Kind::Device);
        let bytes = Bytes::of(file.ok_or(CUDA_ERROR_INVALID_VALUE)?, range.size)?;
        // SAFETY: a pointer of the application.
        unsafe { put(handle, CUipcMemHandle { reserved: bytes.encode(LEGACY) }) }
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
        let _opening = lock(&state.opening);
        let is_open = !state.addresses.all(|range| range.owner.file == Some(bytes.file)).is_empty();
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
        let start = window.address();
        let owner = Arc::new(Allocation {
            id: state.id(),
            kind: Kind::Opened,
            context: current.number,
            device: Some(device),
            access: Mutex::default(),
            file: Some(bytes.file),
            _window: Some(window),
        });
        let backing = Arc::new(backing);
        state.addresses.insert(start, Range { size, room, backing, owner });
        // SAFETY: as above.
        unsafe { put(address, start as u64) }
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
