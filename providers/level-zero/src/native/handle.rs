//! The driver's handles for other processes.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use level_zero_sys::*;
use umf_core::Address;

use super::{Answer, address, pointer};
use crate::context::Context;

/// The bytes of a handle.
pub(crate) type Bytes = [u8; ZE_MAX_IPC_HANDLE_SIZE];

/// A handle of an allocation.
pub(crate) fn get(context: &Context, base: Address) -> Answer<Bytes> {
    let mut handle = ze_ipc_mem_handle_t::default();
    // SAFETY: see the module above.
    unsafe { context.api().zeMemGetIpcHandle(context.handle(), pointer(base), &raw mut handle) }?;
    Ok(handle.data)
}

/// Gives a handle back.
pub(crate) fn put(context: &Context, handle: Bytes) -> Answer {
    // SAFETY: see the module above.
    unsafe { context.api().zeMemPutIpcHandle(context.handle(), ze_ipc_mem_handle_t { data: handle }) }
}

/// The number of the fd in a handle, which stays the handle's.
pub(crate) fn fd_of(context: &Context, handle: Bytes) -> Answer<Option<i32>> {
    let mut fd = 0;
    // SAFETY: see the module above.
    unsafe {
        context.api().zeMemGetFileDescriptorFromIpcHandleExp(
            context.handle(),
            ze_ipc_mem_handle_t { data: handle },
            &raw mut fd,
        )?;
    }
    Ok(i32::try_from(fd).ok())
}

/// A handle of the memory behind an fd of this process.
pub(crate) fn from_fd(context: &Context, fd: i32) -> Answer<Bytes> {
    let mut handle = ze_ipc_mem_handle_t::default();
    let number = u64::from(fd.cast_unsigned());
    // SAFETY: see the module above.
    unsafe {
        context.api().zeMemGetIpcHandleFromFileDescriptorExp(context.handle(), number, &raw mut handle)?;
    }
    Ok(handle.data)
}

/// Opens a handle for a device.
pub(crate) fn open(context: &Context, device: ze_device_handle_t, handle: Bytes) -> Answer<Option<Address>> {
    let mut found = core::ptr::null_mut();
    // SAFETY: see the module above; bytes that are no handle are an answer of the driver.
    unsafe {
        context.api().zeMemOpenIpcHandle(
            context.handle(),
            device,
            ze_ipc_mem_handle_t { data: handle },
            0,
            &raw mut found,
        )?;
    }
    Ok(address(found))
}

/// Closes what was opened.
pub(crate) fn close(context: &Context, base: Address) -> Answer {
    // SAFETY: see the module above.
    unsafe { context.api().zeMemCloseIpcHandle(context.handle(), pointer(base)) }
}

/// A duplicate of an fd that the driver has, by its number; `None` if there is none.
pub(crate) fn duplicate(number: i32) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: the number is only asked about; if nothing is open there, that is the answer.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    fd.try_clone_to_owned().ok()
}

/// Closes an fd that a driver left to whoever asked for it.
pub(crate) fn close_fd(number: i32) {
    // SAFETY: drivers before 1.6 hand the fd in a handle over; it is closed once, where the handle is given back.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}
