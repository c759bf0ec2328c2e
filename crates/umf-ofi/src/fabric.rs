//! Fabric: what domains and event queues belong to.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys::*;

use crate::object::{Boxed, closed_by};
use crate::{domain, event_queue, waiting};

/// A fabric.
#[derive(Debug)]
pub(crate) struct Fabric {
    /// The version of the interface that the application uses.
    pub api_version: u32,
}

pub(crate) type FabricObject = Boxed<fid_fabric, Fabric>;

static FABRIC: fi_ops = closed_by(close_fabric);
static FABRIC_OPS: fi_ops_fabric = fi_ops_fabric {
    domain: Some(domain::open),
    domain2: Some(domain::open2),
    eq_open: Some(event_queue::open),
    trywait: Some(waiting::try_wait),
    ..fi_ops_fabric::UNSUPPORTED
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
