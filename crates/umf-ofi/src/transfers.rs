//! Reads, writes and atomic operations on memory of other endpoints. All are complete when the call
//! returns.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::iovec;
use libfabric_sys::*;
use umf_link::mesh::{RegionKey, Transferring};
use umf_link::{Atomic, AtomicOperation, AtomicType, Destination, Source};

use crate::endpoint::{Endpoint, EndpointObject, Operation};
use crate::failure;
use crate::info::{INJECT_SIZE, IOV_LIMIT};

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

/// Atomic operations.
pub(crate) static ATOMIC: fi_ops_atomic = fi_ops_atomic {
    write: Some(atomic_write),
    writev: Some(atomic_writev),
    writemsg: Some(atomic_writemsg),
    inject: Some(atomic_inject),
    readwrite: Some(atomic_readwrite),
    readwritev: Some(atomic_readwritev),
    readwritemsg: Some(atomic_readwritemsg),
    compwrite: Some(atomic_compwrite),
    compwritev: Some(atomic_compwritev),
    compwritemsg: Some(atomic_compwritemsg),
    writevalid: Some(write_valid),
    readwritevalid: Some(readwrite_valid),
    compwritevalid: Some(compwrite_valid),
    ..fi_ops_atomic::UNSUPPORTED
};

const RMA_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | FI_MORE
    | FI_FENCE;

unsafe fn part<'e>(endpoint: *mut fid_ep) -> &'e Arc<Endpoint> {
    // SAFETY: an open endpoint of this provider.
    unsafe { EndpointObject::part(endpoint) }
}

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
    unsafe fn run(self, endpoint: &Endpoint, local: &[(*mut u8, usize)], remote: &[fi_rma_iov]) -> isize {
        let mut state = endpoint.lock();
        let flags = self.flags.unwrap_or(state.transmit.flags);
        let lengths = (
            local.iter().map(|(_, length)| *length).sum::<usize>(),
            remote.iter().map(|piece| piece.len).sum::<usize>(),
        );
        if flags & !RMA_FLAGS != 0 {
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
        let mut result = Ok(());
        for target in remote {
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
            if result.is_err() {
                break;
            }
        }
        if let (Ok(()), Some(data)) = (&result, self.data) {
            result = state.mesh.tell_written(process, data, lengths.0 as u64);
        }
        state.report_completions();
        state.report_transfer(&operation, result.as_ref().err().map(failure::number));
        FI_SUCCESS as isize
    }
}

/// Reads a list of pieces and calls `run` with it.
///
/// # Safety
/// `list` has `count` entries.
unsafe fn with_pieces(
    list: *const iovec,
    count: usize,
    run: impl FnOnce(&[(*mut u8, usize)]) -> isize,
) -> isize {
    if count > IOV_LIMIT {
        return -(FI_EINVAL as isize);
    }
    // SAFETY: by this function's contract.
    let piece = |number| unsafe { (*list.add(number)).iov_base.cast::<u8>() };
    // SAFETY: as above.
    let length = |number| unsafe { (*list.add(number)).iov_len };
    let pieces: Vec<(*mut u8, usize)> = (0..count).map(|number| (piece(number), length(number))).collect();
    run(&pieces)
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
            part(endpoint),
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
            rma.run(part(endpoint), pieces, &[fi_rma_iov { addr, len, key }])
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
        with_pieces(message.msg_iov, message.iov_count, |pieces| rma.run(part(endpoint), pieces, remote))
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
    unsafe { plain(false, peer, context).run(part(endpoint), &local, &[fi_rma_iov { addr, len, key }]) }
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
    unsafe { rma.run(part(endpoint), &local, &[fi_rma_iov { addr, len, key }]) }
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
    unsafe { rma.run(part(endpoint), &local, &[fi_rma_iov { addr, len, key }]) }
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
    unsafe { rma.run(part(endpoint), &local, &[fi_rma_iov { addr, len, key }]) }
}

/// Returns the operation on a type of number, if it is offered. `long double`, complex numbers and
/// integers of 128 bits are not: the processor has no atomic instructions for them.
fn atomic(datatype: fi_datatype, operation: fi_op) -> Option<Atomic> {
    let kind = match datatype {
        FI_INT8 => AtomicType::I8,
        FI_UINT8 => AtomicType::U8,
        FI_INT16 => AtomicType::I16,
        FI_UINT16 => AtomicType::U16,
        FI_INT32 => AtomicType::I32,
        FI_UINT32 => AtomicType::U32,
        FI_INT64 => AtomicType::I64,
        FI_UINT64 => AtomicType::U64,
        FI_FLOAT => AtomicType::F32,
        FI_DOUBLE => AtomicType::F64,
        _ => return None,
    };
    let operation = match operation {
        FI_MIN => AtomicOperation::Min,
        FI_MAX => AtomicOperation::Max,
        FI_SUM => AtomicOperation::Sum,
        FI_PROD => AtomicOperation::Product,
        FI_LOR => AtomicOperation::LogicalOr,
        FI_LAND => AtomicOperation::LogicalAnd,
        FI_LXOR => AtomicOperation::LogicalXor,
        FI_BOR => AtomicOperation::BitOr,
        FI_BAND => AtomicOperation::BitAnd,
        FI_BXOR => AtomicOperation::BitXor,
        FI_ATOMIC_READ => AtomicOperation::Read,
        FI_ATOMIC_WRITE => AtomicOperation::Write,
        FI_DIFF => AtomicOperation::Difference,
        FI_CSWAP => AtomicOperation::SwapEqual,
        FI_CSWAP_NE => AtomicOperation::SwapUnequal,
        FI_CSWAP_LE => AtomicOperation::SwapLessEqual,
        FI_CSWAP_LT => AtomicOperation::SwapLess,
        FI_CSWAP_GE => AtomicOperation::SwapGreaterEqual,
        FI_CSWAP_GT => AtomicOperation::SwapGreater,
        FI_MSWAP => AtomicOperation::SwapMasked,
        _ => return None,
    };
    Atomic::new(kind, operation)
}

/// The kinds of atomic functions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Fetch,
    Compare,
}

/// Returns the operation, if a function of this kind takes it.
fn atomic_of(kind: Kind, datatype: fi_datatype, operation: fi_op) -> Option<Atomic> {
    let atomic = atomic(datatype, operation)?;
    let fits = match kind {
        Kind::Write => !atomic.compares() && atomic.writes(),
        Kind::Fetch => !atomic.compares(),
        Kind::Compare => atomic.compares(),
    };
    fits.then_some(atomic)
}

/// An atomic operation. Counts are numbers of values.
struct Change<'c> {
    kind: Kind,
    peer: fi_addr_t,
    datatype: fi_datatype,
    operation: fi_op,
    operands: &'c [fi_ioc],
    compared: &'c [fi_ioc],
    results: &'c [fi_ioc],
    context: *mut c_void,
    flags: Option<u64>,
    is_silent: bool,
}

impl Change<'_> {
    /// Changes the values of remote pieces.
    ///
    /// # Safety
    /// The local memory is valid for as many values as its entries say.
    unsafe fn run(self, endpoint: &Endpoint, remote: &[fi_rma_ioc]) -> isize {
        let Some(atomic) = atomic_of(self.kind, self.datatype, self.operation) else {
            return -(FI_EOPNOTSUPP as isize);
        };
        let mut state = endpoint.lock();
        let flags = self.flags.unwrap_or(state.transmit.flags);
        if flags & !RMA_FLAGS != 0 {
            return -(FI_EBADFLAGS as isize);
        }
        let length = remote.iter().map(|piece| piece.count).sum::<usize>() * atomic.size();
        // SAFETY: by this function's contract.
        let given = unsafe { gather(if atomic.writes() { self.operands } else { &[] }, atomic.size()) };
        // Reading has no operand.
        let operands = if atomic.writes() { given } else { vec![0; length] };
        // SAFETY: as above.
        let compared = unsafe { gather(self.compared, atomic.size()) };
        let others = if atomic.compares() { length } else { 0 };
        if length > Atomic::MOST_BYTES || operands.len() != length || compared.len() != others {
            return -(FI_EINVAL as isize);
        }
        let process = match state.process(self.peer) {
            Ok(process) => process,
            Err(number) => return -(number as isize),
        };
        let direction = if self.kind == Kind::Write { FI_WRITE } else { FI_READ };
        let is_reported = !self.is_silent && state.transmit.reports(flags);
        let operation = Operation { context: self.context, flags: FI_ATOMIC | direction, is_reported };
        let (mut previous, mut at, mut result) = (vec![0_u8; length], 0, Ok(()));
        for piece in remote {
            let range = at..at + piece.count * atomic.size();
            at = range.end;
            let compared = compared.get(range.clone()).unwrap_or(&[]);
            let place = (RegionKey::from_number(piece.key), piece.addr);
            let local = (&operands[range.clone()], compared);
            result = state.mesh.change(process, place, atomic, local, &mut previous[range]);
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            // SAFETY: as above.
            unsafe { scatter(&previous, self.results, atomic.size()) };
        }
        state.report_completions();
        state.report_transfer(&operation, result.as_ref().err().map(failure::number));
        FI_SUCCESS as isize
    }
}

/// Returns a list of the application, which may be null if it is empty.
///
/// # Safety
/// `list` has `count` entries.
const unsafe fn list_of<'l, T>(list: *const T, count: usize) -> &'l [T] {
    if count == 0 || list.is_null() {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { core::slice::from_raw_parts(list, count) }
}

/// Returns the bytes of a list of values.
///
/// # Safety
/// Each entry is valid for its number of values, of `size` bytes each.
unsafe fn gather(list: &[fi_ioc], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in list.iter().filter(|entry| entry.count > 0) {
        // SAFETY: by this function's contract.
        bytes.extend_from_slice(unsafe {
            core::slice::from_raw_parts(entry.addr.cast::<u8>(), entry.count * size)
        });
    }
    bytes
}

/// Copies bytes to a list of values.
///
/// # Safety
/// As [`gather`].
unsafe fn scatter(bytes: &[u8], list: &[fi_ioc], size: usize) {
    let mut rest = bytes;
    for entry in list {
        let (part, after) = rest.split_at(rest.len().min(entry.count * size));
        // SAFETY: by this function's contract.
        unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), entry.addr.cast(), part.len()) };
        rest = after;
    }
}

/// Returns one entry of values.
const fn values(addr: *const c_void, count: usize) -> [fi_ioc; 1] {
    [fi_ioc { addr: addr.cast_mut(), count }]
}

unsafe extern "C" fn atomic_write(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    _descriptor: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `atomic_writev`.
    unsafe {
        let list = values(buffer, count);
        atomic_writev(
            endpoint,
            list.as_ptr(),
            core::ptr::null_mut(),
            1,
            peer,
            addr,
            key,
            datatype,
            operation,
            context,
        )
    }
}

unsafe extern "C" fn atomic_writev(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    _descriptors: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: by the interface, here and in the functions below.
    unsafe {
        let operands = list_of(list, count);
        let count = operands.iter().map(|entry| entry.count).sum();
        let (kind, flags, is_silent) = (Kind::Write, None, false);
        Change {
            kind,
            peer,
            datatype,
            operation,
            operands,
            compared: &[],
            results: &[],
            context,
            flags,
            is_silent,
        }
        .run(part(endpoint), &[fi_rma_ioc { addr, count, key }])
    }
}

unsafe extern "C" fn atomic_inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
) -> isize {
    let (kind, context, flags, is_silent) = (Kind::Write, core::ptr::null_mut(), Some(FI_INJECT), true);
    let operands = &values(buffer, count);
    // SAFETY: as `atomic_writev`.
    unsafe {
        Change {
            kind,
            peer,
            datatype,
            operation,
            operands,
            compared: &[],
            results: &[],
            context,
            flags,
            is_silent,
        }
        .run(part(endpoint), &[fi_rma_ioc { addr, count, key }])
    }
}

/// Changes values as a message of the interface says.
///
/// # Safety
/// As `fi_atomicmsg` and the like.
unsafe fn message_change(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    kind: Kind,
    (compared, results): (&[fi_ioc], &[fi_ioc]),
    flags: u64,
) -> isize {
    // SAFETY: by this function's contract.
    unsafe {
        let message = &*message;
        let operands = list_of(message.msg_iov, message.iov_count);
        let (peer, context) = (message.addr, message.context);
        let (datatype, operation, flags, is_silent) = (message.datatype, message.op, Some(flags), false);
        let remote = list_of(message.rma_iov, message.rma_iov_count);
        Change { kind, peer, datatype, operation, operands, compared, results, context, flags, is_silent }
            .run(part(endpoint), remote)
    }
}

unsafe extern "C" fn atomic_writemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: as `atomic_writev`.
    unsafe { message_change(endpoint, message, Kind::Write, (&[], &[]), flags) }
}

unsafe extern "C" fn atomic_readwrite(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    _descriptor: *mut c_void,
    result: *mut c_void,
    _result_descriptor: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    let (operands, results) = (&values(buffer, count), &values(result, count));
    let (kind, flags, is_silent) = (Kind::Fetch, None, false);
    // SAFETY: as `atomic_writev`.
    unsafe {
        Change {
            kind,
            peer,
            datatype,
            operation,
            operands,
            compared: &[],
            results,
            context,
            flags,
            is_silent,
        }
        .run(part(endpoint), &[fi_rma_ioc { addr, count, key }])
    }
}

unsafe extern "C" fn atomic_readwritev(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    _descriptors: *mut *mut c_void,
    count: usize,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    let (kind, flags, is_silent) = (Kind::Fetch, None, false);
    // SAFETY: as `atomic_writev`.
    unsafe {
        let results = list_of(results, result_count);
        let operands = list_of(list, count);
        let count = results.iter().map(|entry| entry.count).sum();
        Change {
            kind,
            peer,
            datatype,
            operation,
            operands,
            compared: &[],
            results,
            context,
            flags,
            is_silent,
        }
        .run(part(endpoint), &[fi_rma_ioc { addr, count, key }])
    }
}

unsafe extern "C" fn atomic_readwritemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as `atomic_writev`.
    unsafe {
        let results = list_of(results, result_count);
        message_change(endpoint, message, Kind::Fetch, (&[], results), flags)
    }
}

unsafe extern "C" fn atomic_compwrite(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    _descriptor: *mut c_void,
    compare: *const c_void,
    _compare_descriptor: *mut c_void,
    result: *mut c_void,
    _result_descriptor: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    let (operands, compared, results) =
        (&values(buffer, count), &values(compare, count), &values(result, count));
    let (kind, flags, is_silent) = (Kind::Compare, None, false);
    // SAFETY: as `atomic_writev`.
    unsafe {
        Change { kind, peer, datatype, operation, operands, compared, results, context, flags, is_silent }
            .run(part(endpoint), &[fi_rma_ioc { addr, count, key }])
    }
}

unsafe extern "C" fn atomic_compwritev(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    _descriptors: *mut *mut c_void,
    count: usize,
    compare: *const fi_ioc,
    _compare_descriptors: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
    context: *mut c_void,
) -> isize {
    let (kind, flags, is_silent) = (Kind::Compare, None, false);
    // SAFETY: as `atomic_writev`.
    unsafe {
        let operands = list_of(list, count);
        let compared = list_of(compare, compare_count);
        let results = list_of(results, result_count);
        let count = operands.iter().map(|entry| entry.count).sum();
        Change { kind, peer, datatype, operation, operands, compared, results, context, flags, is_silent }
            .run(part(endpoint), &[fi_rma_ioc { addr, count, key }])
    }
}

unsafe extern "C" fn atomic_compwritemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    compare: *const fi_ioc,
    _compare_descriptors: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as `atomic_writev`.
    unsafe {
        let compared = list_of(compare, compare_count);
        let results = list_of(results, result_count);
        message_change(endpoint, message, Kind::Compare, (compared, results), flags)
    }
}

/// Writes how many values a function of a kind takes.
///
/// # Safety
/// `count` is null or can be written.
unsafe fn write_count(kind: Kind, datatype: fi_datatype, operation: fi_op, count: *mut usize) -> c_int {
    let Some(atomic) = atomic_of(kind, datatype, operation) else { return -FI_EOPNOTSUPP };
    // SAFETY: by this function's contract.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = Atomic::MOST_BYTES / atomic.size();
    }
    FI_SUCCESS
}

unsafe extern "C" fn write_valid(
    _: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: by the interface.
    unsafe { write_count(Kind::Write, datatype, operation, count) }
}

unsafe extern "C" fn readwrite_valid(
    _: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: by the interface.
    unsafe { write_count(Kind::Fetch, datatype, operation, count) }
}

unsafe extern "C" fn compwrite_valid(
    _: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: by the interface.
    unsafe { write_count(Kind::Compare, datatype, operation, count) }
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    _domain: *mut fid_domain,
    datatype: fi_datatype,
    operation: fi_op,
    attributes: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let kind = match flags {
        0 => Kind::Write,
        FI_FETCH_ATOMIC => Kind::Fetch,
        FI_COMPARE_ATOMIC => Kind::Compare,
        _ => return -FI_EOPNOTSUPP,
    };
    let Some(atomic) = atomic_of(kind, datatype, operation) else { return -FI_EOPNOTSUPP };
    // SAFETY: attributes can be written.
    unsafe {
        *attributes = fi_atomic_attr { count: Atomic::MOST_BYTES / atomic.size(), size: atomic.size() }
    };
    FI_SUCCESS
}
