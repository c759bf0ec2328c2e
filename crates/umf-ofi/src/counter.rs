//! Counter: the number of operations that have ended.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libfabric_sys::*;

use crate::domain::{Domain, DomainObject};
use crate::object::{Boxed, closed_by};
use crate::waiting::BoundEndpoints;

/// A number of operations.
#[derive(Debug, Default)]
struct Number {
    value: AtomicU64,
    /// The value that the application has read last.
    read: AtomicU64,
}

impl Number {
    fn get(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Returns the value on behalf of the application.
    fn read(&self) -> u64 {
        let value = self.get();
        self.read.store(value, Ordering::Relaxed);
        value
    }

    fn has_changed(&self) -> bool {
        self.get() != self.read.load(Ordering::Relaxed)
    }
}

/// A counter.
#[derive(Debug)]
pub(crate) struct Counter {
    _domain: Arc<Domain>,
    ended: Number,
    failed: Number,
    /// Those with which reading makes progress.
    pub endpoints: BoundEndpoints,
}

pub(crate) type CounterObject = Boxed<fid_cntr, Counter>;

impl Counter {
    /// Counts an operation that has ended.
    pub(crate) fn count(&self, has_failed: bool) {
        let counter = if has_failed { &self.failed } else { &self.ended };
        // A thread that goes to sleep looks at it after it has counted itself.
        counter.value.fetch_add(1, Ordering::SeqCst);
        self.endpoints.announce();
    }

    /// Changes a value on behalf of the application.
    fn change(&self, change: impl FnOnce(&Self) -> u64) {
        change(self);
        self.endpoints.announce();
    }

    /// Makes progress. Returns whether a value has changed since the application read it.
    pub(crate) fn has_news(&self) -> bool {
        self.endpoints.progress();
        self.has_changed()
    }

    fn has_changed(&self) -> bool {
        self.ended.has_changed() || self.failed.has_changed()
    }

    /// Returns whether a thread may wait for the descriptor. If a value has changed since the
    /// application read it, the thread would wait for a change that has happened.
    pub(crate) fn may_wait(&self) -> bool {
        self.endpoints.arm(|| self.has_changed())
    }
}

static OBJECT: fi_ops = fi_ops { control: Some(control), ..closed_by(close) };
static OPS: fi_ops_cntr = fi_ops_cntr {
    read: Some(read),
    readerr: Some(read_failed),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(add_failed),
    seterr: Some(set_failed),
    ..fi_ops_cntr::UNSUPPORTED
};

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cntr_attr,
    counter: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: attributes are null or valid.
    let attributes = unsafe { attributes.as_ref() }.copied().unwrap_or(fi_cntr_attr::ZERO);
    if attributes.events != FI_CNTR_EVENTS_COMP {
        return -FI_ENOSYS;
    }
    // SAFETY: an open domain of this provider.
    let domain = unsafe { Arc::clone(DomainObject::part(domain)) };
    let endpoints = match BoundEndpoints::new(attributes.wait_obj, &domain) {
        Ok(endpoints) => endpoints,
        Err(error) => return error,
    };
    let object = fid { fclass: FI_CLASS_CNTR, context, ops: OBJECT.as_table() };
    let object = fid_cntr { fid: object, ops: OPS.as_table() };
    // SAFETY: the pointer is valid for a write.
    unsafe {
        let part =
            Counter { _domain: domain, ended: Number::default(), failed: Number::default(), endpoints };
        *counter = CounterObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: counters alone have this operation.
    unsafe { CounterObject::close(object) }
}

unsafe extern "C" fn control(counter: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: an open counter, and the argument of the command.
    unsafe { CounterObject::part(counter.cast()).endpoints.control(command, argument) }
}

unsafe extern "C" fn read(counter: *mut fid_cntr) -> u64 {
    // SAFETY: an open counter.
    let counter = unsafe { CounterObject::part(counter) };
    counter.endpoints.progress();
    counter.ended.read()
}

unsafe extern "C" fn read_failed(counter: *mut fid_cntr) -> u64 {
    // SAFETY: an open counter.
    let counter = unsafe { CounterObject::part(counter) };
    counter.endpoints.progress();
    counter.failed.read()
}

unsafe extern "C" fn add(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }
        .change(|counter| counter.ended.value.fetch_add(value, Ordering::SeqCst));
    FI_SUCCESS
}

unsafe extern "C" fn set(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }
        .change(|counter| counter.ended.value.swap(value, Ordering::SeqCst));
    FI_SUCCESS
}

unsafe extern "C" fn add_failed(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }
        .change(|counter| counter.failed.value.fetch_add(value, Ordering::SeqCst));
    FI_SUCCESS
}

unsafe extern "C" fn set_failed(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }
        .change(|counter| counter.failed.value.swap(value, Ordering::SeqCst));
    FI_SUCCESS
}

/// Waits until the counter reaches the threshold. A failed operation ends the wait.
unsafe extern "C" fn wait(counter: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: an open counter.
    let part = unsafe { CounterObject::part(counter) };
    let failed = part.failed.get();
    let result = || {
        if part.ended.read() >= threshold {
            return Some(FI_SUCCESS);
        }
        (part.failed.read() != failed).then_some(-FI_EAVAIL)
    };
    let attempt = || {
        part.endpoints.progress();
        result()
    };
    part.endpoints.wait(timeout, attempt, || result().is_some()).unwrap_or(-FI_ETIMEDOUT)
}
