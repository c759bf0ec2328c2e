//! Functions of the headers that are more than a call of one operation.

use core::ffi::{c_int, c_void};

use libc::iovec;

use crate::constants::{FI_ALIAS, FI_ENABLE};
use crate::objects::{fi_alias, fi_mr_attr, fid, fid_domain, fid_ep, fid_mr, fid_pep};
use crate::tables::{fi_bind, fi_control, fi_ops_mr};

/// Returns an operation of the domain's memory registration.
macro_rules! registration {
    ($domain:ident.$op:ident($($argument:expr),*)) => {{
        // SAFETY: the domain is live by the caller's contract, and so is its table. A member below
        // `size` exists.
        let operation = unsafe {
            let table = (*$domain).mr;
            if table.is_null() || (*table).size <= core::mem::offset_of!(fi_ops_mr, $op) {
                None
            } else {
                (*table).$op
            }
        };
        match operation {
            // SAFETY: the caller upholds the contract.
            Some(operation) => unsafe { operation($domain.cast(), $($argument),*) },
            None => -libc::ENOSYS,
        }
    }};
}

/// Registers memory.
///
/// # Safety
/// The domain is live. The memory stays mapped until the region is closed. `mr` is valid for a
/// write.
pub unsafe fn fi_mr_reg(
    domain: *mut fid_domain,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    registration!(domain.reg(buf, len, access, offset, requested_key, flags, mr, context))
}

/// Registers several pieces of memory as one region.
///
/// # Safety
/// As [`fi_mr_reg`], for all pieces.
pub unsafe fn fi_mr_regv(
    domain: *mut fid_domain,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    registration!(domain.regv(iov, count, access, offset, requested_key, flags, mr, context))
}

/// Registers memory with attributes, whose layout follows the version that was passed to
/// `fi_getinfo`: from 1.19 on, pass a [`fi_mr_attr_2_0`](crate::fi_mr_attr_2_0).
///
/// # Safety
/// As [`fi_mr_reg`], and the attributes have that layout.
pub unsafe fn fi_mr_regattr(
    domain: *mut fid_domain,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    registration!(domain.regattr(attr, flags, mr))
}

/// Returns the descriptor for local access.
///
/// # Safety
/// The region is live.
#[must_use]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the caller upholds the contract.
    unsafe { (*mr).mem_desc }
}

/// Returns the key for remote access.
///
/// # Safety
/// The region is live.
#[must_use]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: the caller upholds the contract.
    unsafe { (*mr).key }
}

/// Binds an endpoint or counter to a region.
///
/// # Safety
/// Both objects are live.
pub unsafe fn fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { fi_bind(mr.cast(), bfid, flags) }
}

/// Enables a region that was bound.
///
/// # Safety
/// The region is live.
pub unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { fi_control(mr.cast(), FI_ENABLE, core::ptr::null_mut()) }
}

/// Binds a queue, counter or address vector to an endpoint.
///
/// # Safety
/// Both objects are live.
pub unsafe fn fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { fi_bind(ep.cast(), bfid, flags) }
}

/// Binds an event queue to a passive endpoint.
///
/// # Safety
/// Both objects are live.
pub unsafe fn fi_pep_bind(pep: *mut fid_pep, bfid: *mut fid, flags: u64) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { fi_bind(pep.cast(), bfid, flags) }
}

/// Enables an endpoint, after all was bound.
///
/// # Safety
/// The endpoint is live.
pub unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { fi_control(ep.cast(), FI_ENABLE, core::ptr::null_mut()) }
}

/// Makes an alias of an endpoint that has other default flags.
///
/// # Safety
/// The endpoint is live. `alias_ep` is valid for a write.
pub unsafe fn fi_ep_alias(ep: *mut fid_ep, alias_ep: *mut *mut fid_ep, flags: u64) -> c_int {
    let mut alias = fi_alias { fid: alias_ep.cast(), flags };
    // SAFETY: the caller upholds the contract.
    unsafe { fi_control(ep.cast(), FI_ALIAS, (&raw mut alias).cast()) }
}
