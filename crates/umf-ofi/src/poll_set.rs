//! Poll set: finds out which of several queues and counters have something.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use libfabric_sys::*;

use crate::counter::{Counter, CounterObject};
use crate::domain::{Domain, DomainObject};
use crate::object::{Boxed, closed_by};
use crate::queue::{Queue, QueueObject};
use crate::waiting::lock;

#[derive(Debug)]
enum Kind {
    Queue(Arc<Queue>),
    Counter(Arc<Counter>),
}

#[derive(Debug)]
struct Member {
    object: *mut fid,
    context: *mut c_void,
    kind: Kind,
}

// SAFETY: the pointers are numbers that are compared or given back.
unsafe impl Send for Member {}

impl Member {
    /// Makes progress. Returns whether there is something.
    fn has_news(&self) -> bool {
        match &self.kind {
            Kind::Queue(queue) => queue.has_entries(),
            Kind::Counter(counter) => counter.has_news(),
        }
    }
}

/// A poll set.
#[derive(Debug)]
pub(crate) struct PollSet {
    _domain: Arc<Domain>,
    members: Mutex<Vec<Member>>,
}

type PollSetObject = Boxed<fid_poll, PollSet>;

static OBJECT: fi_ops = closed_by(close);
static OPS: fi_ops_poll =
    fi_ops_poll { poll: Some(poll), poll_add: Some(add), poll_del: Some(remove), ..fi_ops_poll::UNSUPPORTED };

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    _attributes: *mut fi_poll_attr,
    set: *mut *mut fid_poll,
) -> c_int {
    let object = fid { fclass: FI_CLASS_POLL, context: core::ptr::null_mut(), ops: OBJECT.as_table() };
    let object = fid_poll { fid: object, ops: OPS.as_table() };
    // SAFETY: an open domain of this provider; the pointer is valid for a write.
    unsafe {
        let part = PollSet { _domain: Arc::clone(DomainObject::part(domain)), members: Mutex::default() };
        *set = PollSetObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: poll sets alone have this operation.
    unsafe { PollSetObject::close(object) }
}

/// Writes the contexts of objects that have something, and returns their number.
unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    // SAFETY: an open poll set.
    let members = lock(unsafe { &PollSetObject::part(set).members });
    let mut found = 0;
    for member in &*members {
        if found < count && member.has_news() {
            // SAFETY: `contexts` has `count` entries.
            unsafe { *contexts.add(found as usize) = member.context };
            found += 1;
        }
    }
    found
}

unsafe extern "C" fn add(set: *mut fid_poll, object: *mut fid, _flags: u64) -> c_int {
    // SAFETY: an open poll set, and an open object of this provider, which is of its class.
    let (set, kind, context) = unsafe {
        let kind = match (*object).fclass {
            FI_CLASS_CQ => Kind::Queue(Arc::clone(QueueObject::part(object.cast()))),
            FI_CLASS_CNTR => Kind::Counter(Arc::clone(CounterObject::part(object.cast()))),
            _ => return -FI_EINVAL,
        };
        (PollSetObject::part(set), kind, (*object).context)
    };
    lock(&set.members).push(Member { object, context, kind });
    FI_SUCCESS
}

unsafe extern "C" fn remove(set: *mut fid_poll, object: *mut fid, _flags: u64) -> c_int {
    // SAFETY: an open poll set.
    let mut members = lock(unsafe { &PollSetObject::part(set).members });
    let before = members.len();
    members.retain(|member| member.object != object);
    if members.len() < before { FI_SUCCESS } else { -FI_EINVAL }
}
