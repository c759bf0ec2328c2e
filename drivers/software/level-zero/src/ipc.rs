//! IPC handles: their content ([`IpcBytes`]), the exported fds ([`Exports`]), and opening them.
//!
//! A classic handle contains an fd number, which the client replaces by that of its own duplicate.
//! An opaque handle contains the exporter's pid and its fd number twice; the driver transfers the
//! fd. If the two numbers differ, the client has written its own number, and the driver uses that
//! fd.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;

use level_zero_sys::*;
use soft_device::{
    Backing, Charge, MemoryOrigin, MemoryRange, fetch_fd_by_pidfd, fetch_fd_by_socket, lock, write_result,
};

use crate::memory::{Allocation, DEVICE_PAGE, map_window};
use crate::state::{DriverState, IpcMode, ZeResult, entry, handle};

/// The prefix of the names of abstract sockets on which exporters serve fds.
pub(crate) const SOCKET: &str = "ze_soft_ipc";

/// How the fd of a handle is transferred to the opening process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FdTransport {
    /// By the client: it is an fd of the opening process.
    Local,
    Pidfd,
    Socket,
}

/// The content of an IPC handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpcBytes {
    /// The fd, at 0.
    pub(crate) fd: i32,
    /// The kind of memory, at 16.
    pub(crate) kind: ze_memory_type_t,
    /// At 17.
    pub(crate) transport: FdTransport,
    /// The process, at 20; opaque handles only.
    pub(crate) pid: i32,
    /// The fd once more, at 24; opaque handles only.
    pub(crate) fd_again: i32,
}

impl IpcBytes {
    pub(crate) fn new(fd: i32, kind: ze_memory_type_t, transport: FdTransport) -> Self {
        let (pid, fd_again) = match transport {
            FdTransport::Local => (0, 0),
            FdTransport::Pidfd | FdTransport::Socket => (std::process::id().cast_signed(), fd),
        };
        Self { fd, kind, transport, pid, fd_again }
    }

    pub(crate) fn encode(self) -> [u8; ZE_MAX_IPC_HANDLE_SIZE] {
        let mut bytes = [0; ZE_MAX_IPC_HANDLE_SIZE];
        bytes[0..4].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16] = u8::try_from(self.kind.0).unwrap_or(0);
        bytes[17] = match self.transport {
            FdTransport::Local => 0,
            FdTransport::Pidfd => 1,
            FdTransport::Socket => 2,
        };
        bytes[20..24].copy_from_slice(&self.pid.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.fd_again.to_le_bytes());
        bytes
    }

    /// Returns the first fd.
    fn fd(bytes: &[u8; ZE_MAX_IPC_HANDLE_SIZE]) -> i32 {
        i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Decodes bytes from another process, which may have any value.
    pub(crate) fn decode(bytes: &[u8; ZE_MAX_IPC_HANDLE_SIZE]) -> Option<Self> {
        let number = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Self {
            fd: Self::fd(bytes),
            kind: match ze_memory_type_t(u32::from(bytes[16])) {
                kind @ (ZE_MEMORY_TYPE_HOST | ZE_MEMORY_TYPE_DEVICE) => kind,
                _ => return None,
            },
            transport: match bytes[17] {
                0 => FdTransport::Local,
                1 => FdTransport::Pidfd,
                2 => FdTransport::Socket,
                _ => return None,
            },
            pid: number(20),
            fd_again: number(24),
        })
    }

    /// Returns the fd of a handle, transferred to this process.
    pub(crate) fn fetch(self) -> ZeResult<OwnedFd> {
        let is_own = self.pid == std::process::id().cast_signed();
        Ok(match self.transport {
            FdTransport::Pidfd if self.fd == self.fd_again && !is_own => {
                fetch_fd_by_pidfd(self.pid, self.fd)?
            }
            FdTransport::Socket if self.fd == self.fd_again && !is_own => {
                fetch_fd_by_socket(SOCKET, self.pid, self.fd)?
            }
            // An fd of this process: its own export, or a duplicate that the client transferred.
            _ => Backing::duplicate_fd(self.fd)?,
        })
    }
}

/// An exported fd.
#[derive(Debug)]
struct Export {
    file: OwnedFd,
    /// The id of the allocation.
    id: u64,
    kind: ze_memory_type_t,
    transport: FdTransport,
    /// Number of unreleased handles.
    count: u64,
    _charge: Charge,
}

/// The exported fds by number.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<HashMap<i32, Export>>);

impl Exports {
    /// Returns the handle of an allocation: the same one until it is released.
    pub(crate) fn get(
        &self,
        id: u64,
        kind: ze_memory_type_t,
        make: impl FnOnce() -> ZeResult<(OwnedFd, FdTransport, Charge)>,
    ) -> ZeResult<IpcBytes> {
        let mut exports = lock(&self.0);
        if let Some((fd, export)) = exports.iter_mut().find(|(_, export)| export.id == id) {
            export.count += 1;
            return Ok(IpcBytes::new(*fd, export.kind, export.transport));
        }
        let (file, transport, charge) = make()?;
        let fd = file.as_raw_fd();
        exports.insert(fd, Export { file, id, kind, transport, count: 1, _charge: charge });
        Ok(IpcBytes::new(fd, kind, transport))
    }

    /// Releases a handle. Releasing it more often than it was returned is an error.
    pub(crate) fn put(&self, fd: i32) -> ZeResult {
        let mut exports = lock(&self.0);
        let export = exports.get_mut(&fd).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
        export.count -= 1;
        if export.count == 0 {
            exports.remove(&fd);
        }
        Ok(())
    }

    /// Removes all handles of an allocation.
    pub(crate) fn remove_all_of(&self, id: u64) {
        lock(&self.0).retain(|_, export| export.id != id);
    }

    pub(crate) fn has(&self, fd: i32) -> bool {
        lock(&self.0).contains_key(&fd)
    }

    /// Duplicates an exported fd.
    pub(crate) fn duplicate(&self, fd: i32) -> Option<OwnedFd> {
        let exports = lock(&self.0);
        exports.get(&fd)?.file.as_fd().try_clone_to_owned().ok()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// The version that added `zeMemPutIpcHandle`. Before it, the client closes the fd of a handle.
const PUT_IPC_HANDLE: u32 = make_version(1, 6);

fn handle_of(
    state: &'static DriverState,
    context: ze_context_handle_t,
    pointer: usize,
) -> ZeResult<IpcBytes> {
    state.context(context)?;
    if pointer == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    let range = state.core.addresses.find(pointer).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
    let owner = &range.owner;
    if owner.context != context || range.start != pointer {
        return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    // Imported memory cannot be exported again, and shared memory has no handles.
    if owner.is_opened || range.backing.file().is_none() || owner.kind == ZE_MEMORY_TYPE_SHARED {
        return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    if state.settings.api.0 < PUT_IPC_HANDLE {
        let file = range.backing.export()?;
        return Ok(IpcBytes::new(file.into_raw_fd(), owner.kind, state.transport()?));
    }
    state.exports.get(range.id, owner.kind, || {
        let charge = state.core.charge_fd()?;
        Ok((range.backing.export()?, state.transport()?, charge))
    })
}

pub(crate) unsafe extern "C" fn get_ipc_handle(
    context: ze_context_handle_t,
    pointer: *const c_void,
    ipc: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    entry("zeMemGetIpcHandle", |state| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        unsafe { hand_out(state, context, pointer, ipc) }
    })
}

/// # Safety
/// `ipc` is null or valid for a write.
unsafe fn hand_out(
    state: &'static DriverState,
    context: ze_context_handle_t,
    pointer: *const c_void,
    ipc: *mut ze_ipc_mem_handle_t,
) -> ZeResult {
    // SAFETY: the caller upholds the contract. The pointer is written before a handle is created.
    unsafe {
        write_result(ipc, ze_ipc_mem_handle_t::default())?;
        let bytes = handle_of(state, context, pointer.addr())?;
        Ok(write_result(ipc, ze_ipc_mem_handle_t { data: bytes.encode() })?)
    }
}

/// Decodes a received handle. Of a classic one only the fd counts: clients send the fd alone, and
/// leave the other bytes of the handle that they open undefined.
fn decode(state: &DriverState, ipc: &ze_ipc_mem_handle_t) -> ZeResult<IpcBytes> {
    if state.settings.ipc == IpcMode::Classic {
        return Ok(IpcBytes::new(IpcBytes::fd(&ipc.data), ZE_MEMORY_TYPE_DEVICE, FdTransport::Local));
    }
    IpcBytes::decode(&ipc.data).ok_or_else(|| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
}

pub(crate) unsafe extern "C" fn put_ipc_handle(
    context: ze_context_handle_t,
    ipc: ze_ipc_mem_handle_t,
) -> ze_result_t {
    entry("zeMemPutIpcHandle", |state| {
        state.contexts.get(context.0.addr())?;
        state.exports.put(decode(state, &ipc)?.fd)
    })
}

pub(crate) unsafe extern "C" fn open_ipc_handle(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    ipc: ze_ipc_mem_handle_t,
    flags: ze_ipc_memory_flags_t,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    entry("zeMemOpenIpcHandle", |state| {
        state.context(context)?;
        let device = state.device(device)?;
        let known = ZE_IPC_MEMORY_FLAG_BIAS_CACHED | ZE_IPC_MEMORY_FLAG_BIAS_UNCACHED;
        if flags & !known != 0 {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        unsafe { write_result(pointer, std::ptr::null_mut()) }?;
        let bytes = decode(state, &ipc)?;
        let file = bytes.fetch()?;
        let identity = Backing::file_identity(file.as_fd())?;
        let _opening = lock(&state.core.opening);
        if state.settings.opens_once {
            let same = state.core.addresses.all(|range| {
                range.owner.is_opened
                    && range.backing.is_backed_by(identity)
                    && range.owner.context == context
                    && range.owner.root == device.root()
            });
            if let Some(range) = same.first() {
                // SAFETY: as above.
                return Ok(unsafe { write_result(pointer, handle(range.start)) }?);
            }
        }
        let (backing, origin) = Backing::from_fd(file.as_fd())?;
        // The file's name is more reliable than the received bytes.
        let kind = match origin {
            MemoryOrigin::Device(_) => ZE_MEMORY_TYPE_DEVICE,
            MemoryOrigin::Host => ZE_MEMORY_TYPE_HOST,
            MemoryOrigin::Foreign | MemoryOrigin::DmaBuf => bytes.kind,
        };
        let window = map_window(state, kind, backing.size(), DEVICE_PAGE, file.as_fd())?;
        let of = (kind == ZE_MEMORY_TYPE_DEVICE).then_some(&*device);
        let (size, owner) = (backing.size(), Allocation::new(true, kind, context, of));
        let start = state.core.addresses.insert(size, backing, window, owner);
        // SAFETY: as above.
        Ok(unsafe { write_result(pointer, handle(start)) }?)
    })
}

pub(crate) unsafe extern "C" fn close_ipc_handle(
    context: ze_context_handle_t,
    pointer: *const c_void,
) -> ze_result_t {
    entry("zeMemCloseIpcHandle", |state| {
        state.contexts.get(context.0.addr())?;
        if pointer.is_null() {
            return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
        }
        let matches =
            |range: &MemoryRange<Allocation>| range.owner.context == context && range.owner.is_opened;
        let removed = state.core.addresses.remove(pointer.addr(), matches);
        removed.map(drop).ok_or_else(|| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
    })
}

pub(crate) unsafe extern "C" fn get_handle_from_fd(
    context: ze_context_handle_t,
    fd: u64,
    ipc: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    entry("zeMemGetIpcHandleFromFileDescriptorExp", |state| {
        state.context(context)?;
        let number = i32::try_from(fd).map_err(|_| ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
        let file = Backing::duplicate_fd(number)?;
        let (_, origin) = Backing::from_fd(file.as_fd())?;
        let kind = if origin == MemoryOrigin::Host { ZE_MEMORY_TYPE_HOST } else { ZE_MEMORY_TYPE_DEVICE };
        let bytes = IpcBytes::new(number, kind, FdTransport::Local);
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(ipc, ze_ipc_mem_handle_t { data: bytes.encode() }) }?)
    })
}

/// Returns the fd of a handle. The handle keeps it: releasing the handle closes it.
pub(crate) unsafe extern "C" fn get_fd_from_handle(
    context: ze_context_handle_t,
    ipc: ze_ipc_mem_handle_t,
    fd: *mut u64,
) -> ze_result_t {
    entry("zeMemGetFileDescriptorFromIpcHandleExp", |state| {
        state.context(context)?;
        let bytes = decode(state, &ipc)?;
        if bytes.transport != FdTransport::Local && !state.exports.has(bytes.fd) {
            // Not a handle of this process.
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        let number = u64::try_from(bytes.fd).map_err(|_| ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(fd, number) }?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_bytes_round_trip() {
        for transport in [FdTransport::Local, FdTransport::Pidfd, FdTransport::Socket] {
            let bytes = IpcBytes::new(77, ZE_MEMORY_TYPE_DEVICE, transport);
            assert_eq!(IpcBytes::decode(&bytes.encode()), Some(bytes));
            assert_eq!(bytes.encode()[..4], 77_i32.to_le_bytes());
        }
    }

    #[test]
    fn invalid_bytes_are_not_a_handle() {
        let good = IpcBytes::new(3, ZE_MEMORY_TYPE_DEVICE, FdTransport::Pidfd).encode();
        for (at, value) in [(16, 0), (16, 9), (17, 3), (17, 255)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(IpcBytes::decode(&bytes), None, "{value} at {at}");
        }
        assert_eq!(IpcBytes::decode(&[0xff; ZE_MAX_IPC_HANDLE_SIZE]), None);
    }
}
