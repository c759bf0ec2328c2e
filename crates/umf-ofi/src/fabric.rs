//! Fabric and event queue. There are no events yet: connections and asynchronous insertions do not
//! exist.

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libfabric_sys::*;

use crate::conversions::copy_text;
use crate::domain;
use crate::object::{Boxed, closed_by};

/// A fabric.
#[derive(Debug)]
pub(crate) struct Fabric {
    /// The version of the interface that the application uses.
    pub api_version: u32,
}

/// An event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    _fabric: Arc<Fabric>,
}

pub(crate) type FabricObject = Boxed<fid_fabric, Fabric>;
pub(crate) type EventQueueObject = Boxed<fid_eq, EventQueue>;

static FABRIC: fi_ops = closed_by(close_fabric);
static FABRIC_OPS: fi_ops_fabric = fi_ops_fabric {
    domain: Some(domain::open),
    domain2: Some(domain::open2),
    eq_open: Some(open_queue),
    trywait: Some(try_wait),
    ..fi_ops_fabric::UNSUPPORTED
};
static QUEUE: fi_ops = closed_by(close_queue);
static QUEUE_OPS: fi_ops_eq = fi_ops_eq {
    read: Some(read),
    readerr: Some(read_error),
    sread: Some(read_or_wait),
    strerror: Some(text_of_error),
    ..fi_ops_eq::UNSUPPORTED
};

pub(crate) unsafe extern "C" fn fabric(
    attributes: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: attributes are those that `getinfo` has filled.
    let api_version = unsafe { (*attributes).api_version };
    let object = fid { fclass: FI_CLASS_FABRIC, context, ops: FABRIC.as_table() };
    // The library sets the version of the application afterwards.
    let object = fid_fabric { fid: object, ops: FABRIC_OPS.as_table(), api_version };
    // SAFETY: the pointer is valid for a write.
    unsafe { *fabric = FabricObject::leak(object, Arc::new(Fabric { api_version })) };
    FI_SUCCESS
}

unsafe extern "C" fn close_fabric(object: *mut fid) -> c_int {
    // SAFETY: fabrics alone have this operation, and the application closes each of them once.
    unsafe { FabricObject::close(object) }
}

/// A thread may always wait: completions wake it.
unsafe extern "C" fn try_wait(_fabric: *mut fid_fabric, _fids: *mut *mut fid, _count: c_int) -> c_int {
    FI_SUCCESS
}

unsafe extern "C" fn open_queue(
    fabric: *mut fid_fabric,
    _attributes: *mut fi_eq_attr,
    queue: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    let object = fid { fclass: FI_CLASS_EQ, context, ops: QUEUE.as_table() };
    let object = fid_eq { fid: object, ops: QUEUE_OPS.as_table() };
    // SAFETY: an open fabric of this provider; the pointer is valid for a write.
    unsafe {
        let fabric = Arc::clone(FabricObject::part(fabric));
        *queue = EventQueueObject::leak(object, Arc::new(EventQueue { _fabric: fabric }));
    }
    FI_SUCCESS
}

unsafe extern "C" fn close_queue(object: *mut fid) -> c_int {
    // SAFETY: event queues alone have this operation.
    unsafe { EventQueueObject::close(object) }
}

unsafe extern "C" fn read(
    _queue: *mut fid_eq,
    _event: *mut u32,
    _buffer: *mut c_void,
    _length: usize,
    _flags: u64,
) -> isize {
    -(FI_EAGAIN as isize)
}

unsafe extern "C" fn read_error(_queue: *mut fid_eq, _buffer: *mut fi_eq_err_entry, _flags: u64) -> isize {
    -(FI_EAGAIN as isize)
}

unsafe extern "C" fn read_or_wait(
    _queue: *mut fid_eq,
    _event: *mut u32,
    _buffer: *mut c_void,
    _length: usize,
    timeout: c_int,
    _flags: u64,
) -> isize {
    // No event comes. Without a limit the caller would never return.
    std::thread::sleep(std::time::Duration::from_millis(u64::from(timeout.unsigned_abs().min(100))));
    -(FI_EAGAIN as isize)
}

unsafe extern "C" fn text_of_error(
    _queue: *mut fid_eq,
    number: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: by the interface.
    unsafe { copy_text(&crate::conversions::text_of_error(number), buffer, length) };
    buffer
}
