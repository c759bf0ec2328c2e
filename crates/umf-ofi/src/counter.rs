//! Counter: the number of operations that have ended.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libfabric_sys::*;

use crate::domain::{Domain, DomainObject};
use crate::endpoint::BoundEndpoints;
use crate::object::{Boxed, closed_by};

/// A counter.
#[derive(Debug)]
pub(crate) struct Counter {
    _domain: Arc<Domain>,
    ended: AtomicU64,
    failed: AtomicU64,
    /// Those with which reading makes progress.
    pub endpoints: BoundEndpoints,
}

pub(crate) type CounterObject = Boxed<fid_cntr, Counter>;

impl Counter {
    /// Counts an operation that has ended.
    pub(crate) fn count(&self, has_failed: bool) {
        let counter = if has_failed { &self.failed } else { &self.ended };
        counter.fetch_add(1, Ordering::Release);
    }
}

static OBJECT: fi_ops = closed_by(close);
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
    let is_known = matches!(attributes.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD);
    if attributes.events != FI_CNTR_EVENTS_COMP || !is_known {
        return -FI_ENOSYS;
    }
    let object = fid { fclass: FI_CLASS_CNTR, context, ops: OBJECT.as_table() };
    let object = fid_cntr { fid: object, ops: OPS.as_table() };
    // SAFETY: an open domain of this provider; the pointer is valid for a write.
    unsafe {
        let part = Counter {
            _domain: Arc::clone(DomainObject::part(domain)),
            ended: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            endpoints: BoundEndpoints::default(),
        };
        *counter = CounterObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: counters alone have this operation.
    unsafe { CounterObject::close(object) }
}

unsafe extern "C" fn read(counter: *mut fid_cntr) -> u64 {
    // SAFETY: an open counter.
    let counter = unsafe { CounterObject::part(counter) };
    counter.endpoints.progress();
    counter.ended.load(Ordering::Acquire)
}

unsafe extern "C" fn read_failed(counter: *mut fid_cntr) -> u64 {
    // SAFETY: an open counter.
    let counter = unsafe { CounterObject::part(counter) };
    counter.endpoints.progress();
    counter.failed.load(Ordering::Acquire)
}

unsafe extern "C" fn add(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }.ended.fetch_add(value, Ordering::Release);
    FI_SUCCESS
}

unsafe extern "C" fn set(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }.ended.store(value, Ordering::Release);
    FI_SUCCESS
}

unsafe extern "C" fn add_failed(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }.failed.fetch_add(value, Ordering::Release);
    FI_SUCCESS
}

unsafe extern "C" fn set_failed(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    unsafe { CounterObject::part(counter) }.failed.store(value, Ordering::Release);
    FI_SUCCESS
}

/// Waits until the counter reaches the threshold. A failed operation ends the wait.
unsafe extern "C" fn wait(counter: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: an open counter.
    let part = unsafe { CounterObject::part(counter) };
    let (start, failed) = (Instant::now(), part.failed.load(Ordering::Acquire));
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    loop {
        for _ in 0..64 {
            part.endpoints.progress();
            if part.ended.load(Ordering::Acquire) >= threshold {
                return FI_SUCCESS;
            }
            if part.failed.load(Ordering::Acquire) != failed {
                return -FI_EAVAIL;
            }
        }
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            return -FI_ETIMEDOUT;
        }
        std::thread::yield_now();
    }
}
