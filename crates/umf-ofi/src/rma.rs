//! Reads and writes of memory of other endpoints. All are complete when the call returns.

use core::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;
use umf_link::mesh::{RegionKey, Transferring};
use umf_link::{Destination, Error, Source};

use crate::conversions::error_number;
use crate::conversions::{Pieces, list_of, with_pieces};
use crate::endpoint::{Endpoint, EndpointObject};
use crate::info::{INJECT_SIZE, IOV_LIMIT};
use crate::state::Operation;

/// Reads and writes.
pub(crate) static RMA: fi_ops_rma = fi_ops_rma {
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject_write),
    writedata: Some(writedata),
    injectdata: Some(inject_writedata),
    ..fi_ops_rma::UNSUPPORTED
};

/// The flags of operations on remote memory.
pub(crate) const FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | FI_MORE
    | FI_FENCE;

/// A read or write.
struct Rma {
    is_read: bool,
    peer: fi_addr_t,
    data: Option<u64>,
    context: *mut c_void,
    /// `None` for functions without flags, which have those of the endpoint.
    flags: Option<u64>,
    is_silent: bool,
}

impl Rma {
    /// Copies between pieces of local and of remote memory.
    ///
    /// # Safety
    /// The local memory can be read or written, and is not used otherwise.
    unsafe fn run(self, endpoint: &Endpoint, local: Pieces<'_>, remote: &[fi_rma_iov]) -> isize {
        let mut state = endpoint.lock();
        let flags = self.flags.unwrap_or(state.transmit.flags);
        let lengths = (
            local.iter().map(|(_, length)| *length).sum::<usize>(),
            remote.iter().map(|piece| piece.len).sum::<usize>(),
        );
        if flags & !FLAGS != 0 {
            return -(FI_EBADFLAGS as isize);
        }
        if lengths.0 != lengths.1 || flags & FI_INJECT != 0 && lengths.0 > INJECT_SIZE {
            return -(FI_EINVAL as isize);
        }
        let process = match state.process(self.peer) {
            Ok(process) => process,
            Err(number) => return -(number as isize),
        };
        let kind = FI_RMA | if self.is_read { FI_READ } else { FI_WRITE };
        let is_reported = !self.is_silent && state.transmit.reports(flags);
        let operation = Operation { context: self.context, flags: kind, is_reported };
        let mut rest = local.iter().copied();
        let mut piece = rest.next();
        let mut result = state.mesh.connect(process);
        if matches!(result, Err(Error::NotAccepted { .. })) {
            return -(FI_EAGAIN as isize);
        }
        for target in remote {
            if result.is_err() {
                break;
            }
            // The part of the local memory for this piece.
            let (mut parts, mut left) = (Vec::with_capacity(1), target.len);
            while left > 0
                && let Some((base, length)) = piece
            {
                let count = length.min(left);
                parts.push((base, count));
                left -= count;
                piece = if count == length {
                    rest.next()
                } else {
                    Some((base.wrapping_add(count), length - count))
                };
            }
            // SAFETY: by this function's contract.
            result = unsafe {
                let transferring = if self.is_read {
                    Transferring::Get(Destination::from_raw(&parts))
                } else {
                    Transferring::Put(Source::from_raw(&parts))
                };
                state.mesh.transfer(process, RegionKey::from_number(target.key), target.addr, &transferring)
            };
        }
        if let (Ok(()), Some(data)) = (&result, self.data) {
            result = state.mesh.tell_written(process, data, lengths.0 as u64);
        }
        state.report_completions();
        state.report_transfer(&operation, result.as_ref().err().map(error_number));
        FI_SUCCESS as isize
    }
}

fn plain(is_read: bool, peer: fi_addr_t, context: *mut c_void) -> Rma {
    Rma { is_read, peer, data: None, context, flags: None, is_silent: false }
}

unsafe extern "C" fn read(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    len: usize,
    _descriptor: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: by the interface, here and in the functions below.
    unsafe {
        plain(true, peer, context).run(
            EndpointObject::part(endpoint),
            &[(buffer.cast(), len)],
            &[fi_rma_iov { addr, len, key }],
        )
    }
}

/// Transfers between several local pieces and one remote one.
///
/// # Safety
/// As [`Rma::run`]; `list` has `count` entries.
unsafe fn list_transfer(
    endpoint: *mut fid_ep,
    list: *const iovec,
    count: usize,
    (addr, key): (u64, u64),
    rma: Rma,
) -> isize {
    // SAFETY: by this function's contract.
    unsafe {
        with_pieces(list, count, |pieces| {
            let len = pieces.iter().map(|(_, length)| length).sum();
            rma.run(EndpointObject::part(endpoint), pieces, &[fi_rma_iov { addr, len, key }])
        })
    }
}

unsafe extern "C" fn readv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `read`.
    unsafe { list_transfer(endpoint, list, count, (addr, key), plain(true, peer, context)) }
}

/// Transfers as a message of the interface says.
///
/// # Safety
/// As `fi_readmsg` and `fi_writemsg`.
unsafe fn message_transfer(
    endpoint: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
    is_read: bool,
) -> isize {
    // SAFETY: by this function's contract.
    unsafe {
        let message = &*message;
        if message.rma_iov_count > IOV_LIMIT {
            return -(FI_EINVAL as isize);
        }
        let remote = list_of(message.rma_iov, message.rma_iov_count);
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let (peer, context) = (message.addr, message.context);
        let rma = Rma { is_read, peer, data, context, flags: Some(flags), is_silent: false };
        with_pieces(message.msg_iov, message.iov_count, |pieces| {
            rma.run(EndpointObject::part(endpoint), pieces, remote)
        })
    }
}

unsafe extern "C" fn readmsg(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as `read`.
    unsafe { message_transfer(endpoint, message, flags, true) }
}

unsafe extern "C" fn writemsg(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as `read`.
    unsafe { message_transfer(endpoint, message, flags, false) }
}

unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    _descriptor: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let local = [(buffer.cast_mut().cast(), len)];
    // SAFETY: as `read`.
    unsafe {
        plain(false, peer, context).run(
            EndpointObject::part(endpoint),
            &local,
            &[fi_rma_iov { addr, len, key }],
        )
    }
}

unsafe extern "C" fn writev(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `read`.
    unsafe { list_transfer(endpoint, list, count, (addr, key), plain(false, peer, context)) }
}

unsafe extern "C" fn writedata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    _descriptor: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let local = [(buffer.cast_mut().cast(), len)];
    let rma = Rma { data: Some(data), ..plain(false, peer, context) };
    // SAFETY: as `read`.
    unsafe { rma.run(EndpointObject::part(endpoint), &local, &[fi_rma_iov { addr, len, key }]) }
}

unsafe extern "C" fn inject_write(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let local = [(buffer.cast_mut().cast(), len)];
    let rma = Rma { flags: Some(FI_INJECT), is_silent: true, ..plain(false, peer, core::ptr::null_mut()) };
    // SAFETY: as `read`.
    unsafe { rma.run(EndpointObject::part(endpoint), &local, &[fi_rma_iov { addr, len, key }]) }
}

unsafe extern "C" fn inject_writedata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    data: u64,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let local = [(buffer.cast_mut().cast(), len)];
    let rma = Rma {
        data: Some(data),
        flags: Some(FI_INJECT),
        is_silent: true,
        ..plain(false, peer, core::ptr::null_mut())
    };
    // SAFETY: as `read`.
    unsafe { rma.run(EndpointObject::part(endpoint), &local, &[fi_rma_iov { addr, len, key }]) }
}
