//! Domain: what endpoints, address vectors and queues belong to.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use libfabric_sys::*;

use crate::fabric::{Fabric, FabricObject};
use crate::object::{Boxed, closed_by};
use crate::regions::{self, Regions};
use crate::serial::Serial;
use crate::{address_vector, atomics, counter, endpoint, poll_set, queue};

/// A domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub fabric: Arc<Fabric>,
    pub regions: Mutex<Regions>,
    /// Whether endpoints have a thread that makes progress.
    pub has_automatic_progress: bool,
    /// Whether one thread at a time uses the objects of the domain.
    is_serialized: bool,
}

impl Domain {
    /// Returns a value that the functions of the objects of this domain use.
    pub(crate) fn serial<T>(&self, value: T) -> Serial<T> {
        // SAFETY: the application has promised it (`FI_THREAD_DOMAIN`), and no other thread exists.
        unsafe { Serial::new(value, self.is_serialized) }
    }
}

pub(crate) type DomainObject = Boxed<fid_domain, Domain>;

static DOMAIN: fi_ops = fi_ops { bind: Some(bind), ..closed_by(close) };
static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    av_open: Some(address_vector::open),
    cq_open: Some(queue::open),
    cntr_open: Some(counter::open),
    endpoint: Some(endpoint::open),
    endpoint2: Some(endpoint::open2),
    poll_open: Some(poll_set::open),
    query_atomic: Some(atomics::query),
    ..fi_ops_domain::UNSUPPORTED
};

pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as `open2`.
    unsafe { open2(fabric, info, domain, 0, context) }
}

pub(crate) unsafe extern "C" fn open2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // Objects of another provider (`FI_PEER`) are not taken.
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    let object = fid { fclass: FI_CLASS_DOMAIN, context, ops: DOMAIN.as_table() };
    let object = fid_domain { fid: object, ops: DOMAIN_OPS.as_table(), mr: regions::OPS.as_table() };
    // SAFETY: an open fabric of this provider; the pointer is valid for a write.
    unsafe {
        let fabric = Arc::clone(FabricObject::part(fabric));
        let attributes = (*info).domain_attr.as_ref();
        let has_automatic_progress = attributes.is_some_and(|attributes| {
            [attributes.control_progress, attributes.data_progress].contains(&FI_PROGRESS_AUTO)
        });
        let is_serialized = !has_automatic_progress
            && attributes.is_some_and(|attributes| attributes.threading == FI_THREAD_DOMAIN);
        let regions = Mutex::new(Regions::new());
        let part = Domain { fabric, regions, has_automatic_progress, is_serialized };
        *domain = DomainObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

/// An event queue may be bound, and gets no events: no operation of a domain is asynchronous.
unsafe extern "C" fn bind(_domain: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: an open object.
    match unsafe { (*other).fclass } {
        FI_CLASS_EQ if flags & !FI_REG_MR == 0 => FI_SUCCESS,
        _ => -FI_EINVAL,
    }
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: domains alone have this operation.
    unsafe { DomainObject::close(object) }
}
