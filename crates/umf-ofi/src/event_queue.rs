//! Event queue: events that the application writes itself. Objects of this provider write none,
//! since connections and asynchronous insertions do not exist.

use core::ffi::{c_char, c_int, c_void};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use libfabric_sys::*;

use crate::conversions;
use crate::fabric::{Fabric, FabricObject};
use crate::object::{Boxed, closed_by};
use crate::waiting::{self, Descriptor, lock};

/// Number and bytes of an event.
type Event = (u32, Vec<u8>);

/// An event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    _fabric: Arc<Fabric>,
    kind: fi_wait_obj,
    descriptor: Option<Descriptor>,
    events: Mutex<VecDeque<Event>>,
    /// Notified at each event.
    written: Condvar,
}

pub(crate) type EventQueueObject = Boxed<fid_eq, EventQueue>;

impl EventQueue {
    /// Returns whether a thread may wait for the descriptor.
    pub(crate) fn may_wait(&self) -> bool {
        if let Some(descriptor) = &self.descriptor {
            descriptor.arm();
        }
        lock(&self.events).is_empty()
    }

    /// Reads the first event, as `fi_eq_read`.
    ///
    /// # Safety
    /// `event` is null or can be written, and `buffer` has `length` bytes.
    unsafe fn read(&self, event: *mut u32, buffer: *mut c_void, length: usize, flags: u64) -> isize {
        let mut events = lock(&self.events);
        let Some((number, bytes)) = events.front() else { return -(FI_EAGAIN as isize) };
        if length < bytes.len() {
            return -(FI_ETOOSMALL as isize);
        }
        let count = bytes.len();
        // SAFETY: by this function's contract.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), count);
            if !event.is_null() {
                *event = *number;
            }
        }
        if flags & FI_PEEK == 0 {
            events.pop_front();
        }
        count as isize
    }
}

static OBJECT: fi_ops = fi_ops { control: Some(control), ..closed_by(close) };
static OPS: fi_ops_eq = fi_ops_eq {
    read: Some(read),
    readerr: Some(read_error),
    write: Some(write),
    sread: Some(read_or_wait),
    strerror: Some(text_of_error),
    ..fi_ops_eq::UNSUPPORTED
};

pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attributes: *mut fi_eq_attr,
    queue: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: attributes are null or valid.
    let kind = unsafe { attributes.as_ref() }.map_or(FI_WAIT_UNSPEC, |attributes| attributes.wait_obj);
    let descriptor = match Descriptor::new(kind) {
        Ok(descriptor) => descriptor,
        Err(error) => return error,
    };
    let object = fid { fclass: FI_CLASS_EQ, context, ops: OBJECT.as_table() };
    let object = fid_eq { fid: object, ops: OPS.as_table() };
    // SAFETY: an open fabric of this provider; the pointer is valid for a write.
    unsafe {
        let fabric = Arc::clone(FabricObject::part(fabric));
        let (events, written) = (Mutex::default(), Condvar::new());
        let part = EventQueue { _fabric: fabric, kind, descriptor, events, written };
        *queue = EventQueueObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: event queues alone have this operation.
    unsafe { EventQueueObject::close(object) }
}

unsafe extern "C" fn control(queue: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: an open event queue, and the argument of the command.
    unsafe {
        let queue = EventQueueObject::part(queue.cast());
        waiting::control(queue.descriptor.as_ref(), queue.kind, command, argument)
    }
}

unsafe extern "C" fn write(
    queue: *mut fid_eq,
    event: u32,
    buffer: *const c_void,
    length: usize,
    _flags: u64,
) -> isize {
    // SAFETY: an open event queue, and `length` bytes.
    let (queue, bytes) =
        unsafe { (EventQueueObject::part(queue), conversions::list_of(buffer.cast::<u8>(), length)) };
    lock(&queue.events).push_back((event, bytes.to_vec()));
    queue.written.notify_all();
    if let Some(descriptor) = &queue.descriptor {
        descriptor.announce();
    }
    bytes.len() as isize
}

unsafe extern "C" fn read(
    queue: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    // SAFETY: an open event queue, and memory by the interface.
    unsafe { EventQueueObject::part(queue).read(event, buffer, length, flags) }
}

unsafe extern "C" fn read_error(_queue: *mut fid_eq, _buffer: *mut fi_eq_err_entry, _flags: u64) -> isize {
    -(FI_EAGAIN as isize)
}

unsafe extern "C" fn read_or_wait(
    queue: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: an open event queue.
    let part = unsafe { EventQueueObject::part(queue) };
    // The lock is not kept until the read, so that another thread may be first.
    let events = lock(&part.events);
    match u64::try_from(timeout) {
        Ok(most) => drop(
            part.written.wait_timeout_while(events, Duration::from_millis(most), |events| events.is_empty()),
        ),
        Err(_) => drop(part.written.wait_while(events, |events| events.is_empty())),
    }
    // SAFETY: memory by the interface.
    unsafe { part.read(event, buffer, length, flags) }
}

unsafe extern "C" fn text_of_error(
    _queue: *mut fid_eq,
    number: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: by the interface.
    unsafe { conversions::copy_text_of_error(number, buffer, length) }
}
