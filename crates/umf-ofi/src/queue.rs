//! Completion queue. Reading it makes progress with the endpoints that are bound to it.

use core::ffi::{c_char, c_int, c_void};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libfabric_sys::*;

use crate::conversions;
use crate::domain::{Domain, DomainObject};
use crate::endpoint::Endpoint;
use crate::object::{Boxed, closed_by};
use crate::serial::Serial;
use crate::waiting::BoundEndpoints;

/// The first version with `src_addr` in errors, and with `err_data_size`.
const WITH_SOURCE: u32 = make_version(1, 20);
const WITH_DATA: u32 = make_version(1, 5);

/// The most reads in a row that make no progress.
const BETWEEN_PROGRESS: usize = 8;

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub context: *mut c_void,
    pub flags: u64,
    pub length: usize,
    pub buffer: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub source: fi_addr_t,
    /// The positive error number, and the bytes that did not fit.
    pub error: Option<(c_int, usize)>,
}

// SAFETY: the pointers are numbers that the application gets back.
unsafe impl Send for Entry {}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    domain: Arc<Domain>,
    format: fi_cq_format,
    entries: Serial<VecDeque<Entry>>,
    /// The number of entries, and of reads in a row that made no progress.
    length: AtomicUsize,
    without_progress: AtomicUsize,
    endpoints: BoundEndpoints,
    /// Whether the next call that waits ends at once, and whether the next wait for the descriptor
    /// does not begin.
    is_signalled: AtomicBool,
    is_descriptor_signalled: AtomicBool,
}

pub(crate) type QueueObject = Boxed<fid_cq, Queue>;

impl Queue {
    pub(crate) fn push(&self, entry: Entry) {
        let mut entries = self.entries.lock();
        entries.push_back(entry);
        self.length.store(entries.len(), Ordering::Relaxed);
        drop(entries);
        self.endpoints.announce();
    }

    /// Adds an endpoint, with which reading makes progress. Returns a positive error number.
    pub(crate) fn bind(&self, endpoint: &Arc<Endpoint>) -> Result<(), c_int> {
        self.endpoints.add(endpoint)
    }

    pub(crate) fn unbind(&self, endpoint: &Arc<Endpoint>) {
        self.endpoints.remove(endpoint);
    }

    fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// Returns whether a read should make progress first. If completions are there, one of
    /// [`BETWEEN_PROGRESS`] reads does: an application that only sends has completions always, and
    /// other processes may wait for it.
    #[inline]
    fn needs_progress(&self) -> bool {
        let count = self.without_progress.load(Ordering::Relaxed);
        let is_needed = self.length.load(Ordering::Relaxed) == 0 || count >= BETWEEN_PROGRESS;
        self.without_progress.store(if is_needed { 0 } else { count + 1 }, Ordering::Relaxed);
        is_needed
    }

    /// Makes progress. Returns whether there are completions.
    pub(crate) fn has_entries(&self) -> bool {
        self.endpoints.progress();
        !self.is_empty()
    }

    /// Returns whether a thread may wait for the descriptor.
    pub(crate) fn may_wait(&self) -> bool {
        self.endpoints.arm(|| {
            let is_signalled = self.is_descriptor_signalled.swap(false, Ordering::SeqCst);
            is_signalled || !self.is_empty()
        })
    }

    /// Takes up to `count` completions, as `fi_cq_read`.
    ///
    /// # Safety
    /// `buffer` has `count` entries of the queue's format, and `sources` is null or has as many.
    unsafe fn take(&self, mut buffer: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        let mut entries = self.entries.lock();
        let mut taken = 0;
        while let Some(entry) = entries.front() {
            if entry.error.is_some() {
                if taken == 0 {
                    return -(FI_EAVAIL as isize);
                }
                break;
            }
            if taken == count {
                break;
            }
            // SAFETY: by this function's contract.
            unsafe {
                buffer = self.write(entry, buffer);
                if !sources.is_null() {
                    *sources.add(taken) = entry.source;
                }
            }
            taken += 1;
            entries.pop_front();
        }
        self.length.store(entries.len(), Ordering::Relaxed);
        if taken == 0 && count > 0 { -(FI_EAGAIN as isize) } else { taken as isize }
    }

    /// Writes an entry in the format of the queue. Returns where the next one goes.
    ///
    /// # Safety
    /// `buffer` has space for an entry.
    unsafe fn write(&self, entry: &Entry, buffer: *mut c_void) -> *mut c_void {
        let Entry { context: op_context, flags, length: len, buffer: buf, data, tag, .. } = *entry;
        // SAFETY: by this function's contract.
        unsafe {
            match self.format {
                FI_CQ_FORMAT_MSG => {
                    let to = buffer.cast::<fi_cq_msg_entry>();
                    *to = fi_cq_msg_entry { op_context, flags, len };
                    to.add(1).cast()
                }
                FI_CQ_FORMAT_DATA => {
                    let to = buffer.cast::<fi_cq_data_entry>();
                    *to = fi_cq_data_entry { op_context, flags, len, buf, data };
                    to.add(1).cast()
                }
                FI_CQ_FORMAT_TAGGED => {
                    let to = buffer.cast::<fi_cq_tagged_entry>();
                    *to = fi_cq_tagged_entry { op_context, flags, len, buf, data, tag };
                    to.add(1).cast()
                }
                _ => {
                    let to = buffer.cast::<fi_cq_entry>();
                    *to = fi_cq_entry { op_context };
                    to.add(1).cast()
                }
            }
        }
    }
}

static OBJECT: fi_ops = fi_ops { control: Some(control), ..closed_by(close) };
static OPS: fi_ops_cq = fi_ops_cq {
    read: Some(read),
    readfrom: Some(read_from),
    readerr: Some(read_error),
    sread: Some(read_or_wait),
    sreadfrom: Some(read_from_or_wait),
    signal: Some(signal),
    strerror: Some(text_of_error),
    ..fi_ops_cq::UNSUPPORTED
};

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    queue: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: attributes are null or valid.
    let attributes = unsafe { attributes.as_ref() }.copied().unwrap_or(fi_cq_attr::ZERO);
    // A thread that waits for a number of completions may be woken for fewer.
    let is_known = matches!(attributes.wait_cond, FI_CQ_COND_NONE | FI_CQ_COND_THRESHOLD);
    if attributes.format > FI_CQ_FORMAT_TAGGED || !is_known {
        return -FI_ENOSYS;
    }
    // SAFETY: an open domain of this provider.
    let domain = unsafe { Arc::clone(DomainObject::part(domain)) };
    let endpoints = match BoundEndpoints::new(attributes.wait_obj, &domain) {
        Ok(endpoints) => endpoints,
        Err(error) => return error,
    };
    let format = match attributes.format {
        FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_CONTEXT,
        format => format,
    };
    let object = fid { fclass: FI_CLASS_CQ, context, ops: OBJECT.as_table() };
    let object = fid_cq { fid: object, ops: OPS.as_table() };
    // SAFETY: the pointer is valid for a write.
    unsafe {
        let part = Queue {
            entries: domain.serial(VecDeque::new()),
            domain,
            format,
            length: AtomicUsize::new(0),
            without_progress: AtomicUsize::new(0),
            endpoints,
            is_signalled: AtomicBool::new(false),
            is_descriptor_signalled: AtomicBool::new(false),
        };
        *queue = QueueObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: completion queues alone have this operation.
    unsafe { QueueObject::close(object) }
}

unsafe extern "C" fn control(queue: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: an open queue, and the argument of the command.
    unsafe { QueueObject::part(queue.cast()).endpoints.control(command, argument) }
}

unsafe extern "C" fn read(queue: *mut fid_cq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: as `read_from`.
    unsafe { read_from(queue, buffer, count, core::ptr::null_mut()) }
}

unsafe extern "C" fn read_from(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    // SAFETY: an open queue, and memory by the interface.
    unsafe {
        let queue = QueueObject::part(queue);
        if queue.needs_progress() {
            queue.endpoints.progress();
        }
        if count > 0 && queue.length.load(Ordering::Relaxed) == 0 {
            return -(FI_EAGAIN as isize);
        }
        queue.take(buffer, count, sources)
    }
}

unsafe extern "C" fn read_or_wait(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as `read_from_or_wait`.
    unsafe { read_from_or_wait(queue, buffer, count, core::ptr::null_mut(), condition, timeout) }
}

unsafe extern "C" fn read_from_or_wait(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: an open queue.
    let part = unsafe { QueueObject::part(queue) };
    if !part.endpoints.can_wait() {
        return -(FI_ENOSYS as isize);
    }
    let again = -(FI_EAGAIN as isize);
    let attempt = || {
        // SAFETY: by the interface.
        let taken = unsafe { read_from(queue, buffer, count, sources) };
        (taken != again || part.is_signalled.swap(false, Ordering::AcqRel)).then_some(taken)
    };
    let has_news = || !part.is_empty() || part.is_signalled.load(Ordering::SeqCst);
    part.endpoints.wait(timeout, attempt, has_news).unwrap_or(again)
}

unsafe extern "C" fn signal(queue: *mut fid_cq) -> c_int {
    // SAFETY: an open queue.
    let queue = unsafe { QueueObject::part(queue) };
    queue.is_signalled.store(true, Ordering::SeqCst);
    queue.is_descriptor_signalled.store(true, Ordering::SeqCst);
    queue.endpoints.wake();
    FI_SUCCESS
}

unsafe extern "C" fn read_error(queue: *mut fid_cq, buffer: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: an open queue.
    let queue = unsafe { QueueObject::part(queue) };
    let mut entries = queue.entries.lock();
    let Some((entry, (number, excess))) = entries.front().and_then(|entry| Some((*entry, entry.error?)))
    else {
        return -(FI_EAGAIN as isize);
    };
    entries.pop_front();
    queue.length.store(entries.len(), Ordering::Relaxed);
    let version = queue.domain.fabric.api_version;
    // SAFETY: the application has allocated the members of its version.
    unsafe {
        (*buffer).op_context = entry.context;
        (*buffer).flags = entry.flags;
        (*buffer).len = entry.length;
        (*buffer).buf = entry.buffer;
        (*buffer).data = entry.data;
        (*buffer).tag = entry.tag;
        (*buffer).olen = excess;
        (*buffer).err = number;
        (*buffer).prov_errno = number;
        if version >= WITH_DATA {
            (*buffer).err_data_size = 0;
        } else {
            (*buffer).err_data = core::ptr::null_mut();
        }
        if version >= WITH_SOURCE {
            (*buffer.cast::<fi_cq_err_entry_1_20>()).src_addr = entry.source;
        }
    }
    1
}

unsafe extern "C" fn text_of_error(
    _queue: *mut fid_cq,
    number: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: by the interface.
    unsafe { conversions::copy_text_of_error(number, buffer, length) }
}
