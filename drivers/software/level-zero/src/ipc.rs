//! Handles for other processes: what is in their bytes, the fds that are given away in them, and
//! opening them.
//!
//! A classic handle is an fd number, which the process that opens it has to have made its own. In
//! an opaque one the driver finds the process that made it, and the fd number there, and brings the
//! fd over itself. Clients that do not know that write their own number over the first four bytes;
//! the driver has the number a second time, and sees by that what they did.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;

use level_zero_sys::*;
use soft_device::{Backing, Charge, Origin, Range, fetch_by_pid, fetch_by_socket, lock, put};

use crate::memory::{Allocation, DEVICE_PAGE, window};
use crate::state::{Done, State, entry, handle};

/// What the abstract sockets are called on which exporters answer, with their process id behind it.
pub(crate) const SOCKET: &str = "ze_soft_ipc";

/// How the fd in a handle comes to the process that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is an fd of the process that opens.
    Local,
    Pidfd,
    Socket,
}

/// What is in a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// The fd, at 0.
    pub(crate) fd: i32,
    /// The kind of memory, at 16.
    pub(crate) kind: ze_memory_type_t,
    /// At 17.
    pub(crate) way: Way,
    /// The process, at 20; opaque handles only.
    pub(crate) pid: i32,
    /// The fd once more, at 24; opaque handles only.
    pub(crate) fd_again: i32,
}

impl Bytes {
    pub(crate) fn new(fd: i32, kind: ze_memory_type_t, way: Way) -> Self {
        let (pid, fd_again) = match way {
            Way::Local => (0, 0),
            Way::Pidfd | Way::Socket => (std::process::id().cast_signed(), fd),
        };
        Self { fd, kind, way, pid, fd_again }
    }

    pub(crate) fn encode(self) -> [u8; ZE_MAX_IPC_HANDLE_SIZE] {
        let mut bytes = [0; ZE_MAX_IPC_HANDLE_SIZE];
        bytes[0..4].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16] = u8::try_from(self.kind.0).unwrap_or(0);
        bytes[17] = match self.way {
            Way::Local => 0,
            Way::Pidfd => 1,
            Way::Socket => 2,
        };
        bytes[20..24].copy_from_slice(&self.pid.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.fd_again.to_le_bytes());
        bytes
    }

    /// The bytes come from another process, and may be anything.
    pub(crate) fn decode(bytes: &[u8; ZE_MAX_IPC_HANDLE_SIZE]) -> Option<Self> {
        let number = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Self {
            fd: number(0),
            kind: match ze_memory_type_t(u32::from(bytes[16])) {
                kind @ (ZE_MEMORY_TYPE_HOST | ZE_MEMORY_TYPE_DEVICE) => kind,
                _ => return None,
            },
            way: match bytes[17] {
                0 => Way::Local,
                1 => Way::Pidfd,
                2 => Way::Socket,
                _ => return None,
            },
            pid: number(20),
            fd_again: number(24),
        })
    }

    /// The fd that a handle means, for this process.
    pub(crate) fn fetch(self) -> Done<OwnedFd> {
        let is_own = self.pid == std::process::id().cast_signed();
        Ok(match self.way {
            Way::Pidfd if self.fd == self.fd_again && !is_own => fetch_by_pid(self.pid, self.fd)?,
            Way::Socket if self.fd == self.fd_again && !is_own => fetch_by_socket(SOCKET, self.pid, self.fd)?,
            // Ours, or a client has brought the fd over.
            _ => Backing::fd_by_number(self.fd)?,
        })
    }
}

/// An fd that was given away in handles.
#[derive(Debug)]
struct Export {
    file: OwnedFd,
    /// Of the allocation.
    id: u64,
    kind: ze_memory_type_t,
    way: Way,
    /// How often it was asked for and not put back.
    count: u64,
    _charge: Charge,
}

/// The fds that are given away, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<HashMap<i32, Export>>);

impl Exports {
    /// The handle of something: the same as before, as long as that was not put back.
    pub(crate) fn get(
        &self,
        id: u64,
        kind: ze_memory_type_t,
        make: impl FnOnce() -> Done<(OwnedFd, Way, Charge)>,
    ) -> Done<Bytes> {
        let mut exports = lock(&self.0);
        if let Some((fd, export)) = exports.iter_mut().find(|(_, export)| export.id == id) {
            export.count += 1;
            return Ok(Bytes::new(*fd, export.kind, export.way));
        }
        let (file, way, charge) = make()?;
        let fd = file.as_raw_fd();
        exports.insert(fd, Export { file, id, kind, way, count: 1, _charge: charge });
        Ok(Bytes::new(fd, kind, way))
    }

    /// Puts a handle back; once more than it was asked for is an error.
    pub(crate) fn put(&self, fd: i32) -> Done {
        let mut exports = lock(&self.0);
        let export = exports.get_mut(&fd).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
        export.count -= 1;
        if export.count == 0 {
            exports.remove(&fd);
        }
        Ok(())
    }

    /// Whatever is out for something that goes.
    pub(crate) fn forget(&self, id: u64) {
        lock(&self.0).retain(|_, export| export.id != id);
    }

    pub(crate) fn has(&self, fd: i32) -> bool {
        lock(&self.0).contains_key(&fd)
    }

    /// Another fd of one that is out.
    pub(crate) fn duplicate(&self, fd: i32) -> Option<OwnedFd> {
        let exports = lock(&self.0);
        exports.get(&fd)?.file.as_fd().try_clone_to_owned().ok()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// The version that brought putting back: before it, the client that asked for a handle closes its
/// fd.
const PUTTING_BACK: u32 = make_version(1, 6);

fn handle_of(state: &'static State, context: ze_context_handle_t, pointer: usize) -> Done<Bytes> {
    state.context(context)?;
    if pointer == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    let range = state.core.addresses.find(pointer).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
    let owner = &range.owner;
    if owner.context != context || range.start != pointer {
        return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    // Memory of another process cannot be shared again, and shared memory has no handles.
    if owner.is_opened || range.backing.file().is_none() || owner.kind == ZE_MEMORY_TYPE_SHARED {
        return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    if state.settings.api.0 < PUTTING_BACK {
        let file = range.backing.export()?;
        return Ok(Bytes::new(file.into_raw_fd(), owner.kind, state.way()?));
    }
    state.exports.get(range.id, owner.kind, || {
        let charge = state.core.charge_fd()?;
        Ok((range.backing.export()?, state.way()?, charge))
    })
}

pub(crate) unsafe extern "C" fn get_ipc_handle(
    context: ze_context_handle_t,
    pointer: *const c_void,
    ipc: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    entry("zeMemGetIpcHandle", |state| {
        // SAFETY: a pointer of the application.
        unsafe { hand_out(state, context, pointer, ipc) }
    })
}

/// # Safety
/// `ipc` is null or valid for a write.
unsafe fn hand_out(
    state: &'static State,
    context: ze_context_handle_t,
    pointer: *const c_void,
    ipc: *mut ze_ipc_mem_handle_t,
) -> Done {
    // SAFETY: the caller's promise. It is written to before anything is given away.
    unsafe {
        put(ipc, ze_ipc_mem_handle_t::default())?;
        let bytes = handle_of(state, context, pointer.addr())?;
        Ok(put(ipc, ze_ipc_mem_handle_t { data: bytes.encode() })?)
    }
}

/// What is in a handle that came from somewhere.
fn decode(ipc: &ze_ipc_mem_handle_t) -> Done<Bytes> {
    Bytes::decode(&ipc.data).ok_or_else(|| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
}

pub(crate) unsafe extern "C" fn put_ipc_handle(
    context: ze_context_handle_t,
    ipc: ze_ipc_mem_handle_t,
) -> ze_result_t {
    entry("zeMemPutIpcHandle", |state| {
        state.contexts.get(context.0.addr())?;
        state.exports.put(decode(&ipc)?.fd)
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
        // SAFETY: a pointer of the application.
        unsafe { put(pointer, std::ptr::null_mut()) }?;
        let bytes = decode(&ipc)?;
        let file = bytes.fetch()?;
        let identity = Backing::identity(file.as_fd())?;
        let _opening = lock(&state.core.opening);
        if state.settings.opens_once {
            let same = state.core.addresses.all(|range| {
                range.owner.is_opened
                    && range.backing.is_opened_from(identity)
                    && range.owner.context == context
                    && range.owner.root == device.root()
            });
            if let Some(range) = same.first() {
                // SAFETY: as above.
                return Ok(unsafe { put(pointer, handle(range.start)) }?);
            }
        }
        let (backing, origin) = Backing::opened(file.as_fd())?;
        // The file knows better than the bytes whether the host may touch it.
        let kind = match origin {
            Origin::Device(_) => ZE_MEMORY_TYPE_DEVICE,
            Origin::Host => ZE_MEMORY_TYPE_HOST,
            Origin::Foreign | Origin::DmaBuf => bytes.kind,
        };
        let window = window(state, kind, backing.size(), DEVICE_PAGE, file.as_fd())?;
        let of = (kind == ZE_MEMORY_TYPE_DEVICE).then_some(&*device);
        let (size, owner) = (backing.size(), Allocation::new(true, kind, context, of));
        let start = state.core.addresses.insert(size, backing, window, owner);
        // SAFETY: as above.
        Ok(unsafe { put(pointer, handle(start)) }?)
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
        let is_it = |range: &Range<Allocation>| range.owner.context == context && range.owner.is_opened;
        let removed = state.core.addresses.remove(pointer.addr(), is_it);
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
        let file = Backing::fd_by_number(number)?;
        let (_, origin) = Backing::opened(file.as_fd())?;
        let kind = if origin == Origin::Host { ZE_MEMORY_TYPE_HOST } else { ZE_MEMORY_TYPE_DEVICE };
        let bytes = Bytes::new(number, kind, Way::Local);
        // SAFETY: a pointer of the application.
        Ok(unsafe { put(ipc, ze_ipc_mem_handle_t { data: bytes.encode() }) }?)
    })
}

/// The fd stays the handle's: putting that back closes it.
pub(crate) unsafe extern "C" fn get_fd_from_handle(
    context: ze_context_handle_t,
    ipc: ze_ipc_mem_handle_t,
    fd: *mut u64,
) -> ze_result_t {
    entry("zeMemGetFileDescriptorFromIpcHandleExp", |state| {
        state.context(context)?;
        let bytes = decode(&ipc)?;
        if bytes.way != Way::Local && !state.exports.has(bytes.fd) {
            // The handle is not one of this process.
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        let number = u64::try_from(bytes.fd).map_err(|_| ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
        // SAFETY: a pointer of the application.
        Ok(unsafe { put(fd, number) }?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_written() {
        for way in [Way::Local, Way::Pidfd, Way::Socket] {
            let bytes = Bytes::new(77, ZE_MEMORY_TYPE_DEVICE, way);
            assert_eq!(Bytes::decode(&bytes.encode()), Some(bytes));
            assert_eq!(bytes.encode()[..4], 77_i32.to_le_bytes());
        }
    }

    #[test]
    fn made_up_bytes_are_no_handle() {
        let good = Bytes::new(3, ZE_MEMORY_TYPE_DEVICE, Way::Pidfd).encode();
        for (at, value) in [(16, 0), (16, 9), (17, 3), (17, 255)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Bytes::decode(&bytes), None, "{value} at {at}");
        }
        assert_eq!(Bytes::decode(&[0xff; ZE_MAX_IPC_HANDLE_SIZE]), None);
    }
}
