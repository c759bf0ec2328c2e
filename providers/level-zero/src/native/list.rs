//! Immediate command lists that wait for each of their commands.

use core::ffi::c_void;

use level_zero_sys::*;
use umf_core::Address;

use super::{Answer, pointer};
use crate::context::Context;

const NO_EVENT: ze_event_handle_t = ze_event_handle_t::NULL;

/// One end of a copy.
pub(crate) enum End<'a> {
    /// Memory of this process that is read.
    From(&'a [u8]),
    /// Memory of this process that is written.
    Into(&'a mut [u8]),
    /// Memory that is checked to be the context's, and its size in bytes.
    At(Address, usize),
}

impl End<'_> {
    fn part(&mut self) -> (*mut c_void, usize) {
        match self {
            Self::From(bytes) => (bytes.as_ptr().cast_mut().cast(), bytes.len()),
            Self::Into(bytes) => (bytes.as_mut_ptr().cast(), bytes.len()),
            Self::At(address, size) => (pointer(*address), *size),
        }
    }
}

/// A list of a group of queues of a device.
pub(crate) fn create(
    context: &Context,
    device: ze_device_handle_t,
    group: u32,
) -> Answer<ze_command_list_handle_t> {
    let desc = ze_command_queue_desc_t {
        ordinal: group,
        mode: ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS,
        ..Default::default()
    };
    let mut list = ze_command_list_handle_t::NULL;
    // SAFETY: see the module above.
    unsafe {
        context.api().zeCommandListCreateImmediate(
            context.handle(),
            device,
            &raw const desc,
            &raw mut list,
        )?;
    }
    Ok(list)
}

/// Destroys a list that nobody uses any more.
pub(crate) fn destroy(context: &Context, list: ze_command_list_handle_t) -> Answer {
    // SAFETY: see the module above.
    unsafe { context.api().zeCommandListDestroy(list) }
}

/// Copies as many bytes as the smaller end has, and returns when they are there.
pub(crate) fn copy(
    context: &Context,
    list: ze_command_list_handle_t,
    mut to: End<'_>,
    mut from: End<'_>,
) -> Answer {
    let ((to, room), (from, size)) = (to.part(), from.part());
    let none = core::ptr::null_mut();
    // SAFETY: see the module above. Both ends have that many bytes, and stay: the call returns when the list is done.
    unsafe { context.api().zeCommandListAppendMemoryCopy(list, to, from, size.min(room), NO_EVENT, 0, none) }
}

/// Fills `size` bytes, and returns when they are filled.
pub(crate) fn fill(
    context: &Context,
    list: ze_command_list_handle_t,
    (to, size): (Address, usize),
    byte: u8,
) -> Answer {
    let (to, pattern) = (pointer(to), (&raw const byte).cast());
    let none = core::ptr::null_mut();
    // SAFETY: as in `copy`.
    unsafe { context.api().zeCommandListAppendMemoryFill(list, to, pattern, 1, size, NO_EVENT, 0, none) }
}
