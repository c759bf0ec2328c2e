//! Memory of other processes: getting, opening, closing and putting back handles.

use std::ffi::c_void;
use std::os::fd::{AsFd, IntoRawFd};
use std::sync::Arc;

use level_zero_sys::*;

use crate::entry::{Done, entry};
use crate::export::{Bytes, Way};
use crate::memory::{Allocation, DEVICE_PAGE, window};
use crate::pointer::put;
use crate::state::{State, handle};
use soft_device::{Backing, Origin, Range, lock};

/// The version that brought putting back: before it, whoever asked for a handle closes its fd.
const PUTTING_BACK: u32 = make_version(1, 6);

fn handle_of(state: &'static State, context: ze_context_handle_t, pointer: usize) -> Done<Bytes> {
    state.context(context)?;
    if pointer == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    let (start, range) = state.addresses.find(pointer).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
    let owner = &range.owner;
    if owner.context != context || start != pointer {
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
    state.exports.get(owner.id, owner.kind, || {
        let charge = state.charge_fd()?;
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
        put(ipc, ze_ipc_mem_handle_t { data: bytes.encode() })
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
        let _opening = lock(&state.opening);
        if state.settings.opens_once {
            let same = state.addresses.all(|range| {
                range.owner.file == Some(identity)
                    && range.owner.context == context
                    && range.owner.root == device.root()
            });
            if let Some(start) = same.first() {
                // SAFETY: as above.
                return unsafe { put(pointer, handle(*start)) };
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
        let (start, size) = (window.address(), backing.size());
        let of = (kind == ZE_MEMORY_TYPE_DEVICE).then_some(&*device);
        let mut allocation = Allocation::new(state, true, kind, context, of, window);
        allocation.file = Some(identity);
        let (backing, owner) = (Arc::new(backing), Arc::new(allocation));
        state.addresses.insert(start, Range { size, room: size, backing, owner });
        // SAFETY: as above.
        unsafe { put(pointer, handle(start)) }
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
        let is_it = |range: &Range<Arc<Allocation>>| range.owner.context == context && range.owner.is_opened;
        state
            .addresses
            .remove(pointer.addr(), is_it)
            .map(drop)
            .ok_or_else(|| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
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
        unsafe { put(ipc, ze_ipc_mem_handle_t { data: bytes.encode() }) }
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
        unsafe { put(fd, number) }
    })
}
