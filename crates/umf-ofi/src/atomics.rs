//! Atomic operations on memory of other endpoints. All are complete when the call returns. Counts
//! are numbers of values.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use libfabric_sys::*;
use umf_link::mesh::RegionKey;
use umf_link::{Atomic, AtomicOperation, AtomicType, Error};

use crate::conversions::error_number;
use crate::conversions::list_of;
use crate::endpoint::EndpointObject;
use crate::rma::FLAGS;
use crate::state::Operation;

/// Atomic operations.
pub(crate) static ATOMIC: fi_ops_atomic = fi_ops_atomic {
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(write_valid),
    readwritevalid: Some(readwrite_valid),
    compwritevalid: Some(compwrite_valid),
    ..fi_ops_atomic::UNSUPPORTED
};

/// The kinds of atomic functions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Fetch,
    Compare,
}

/// What an atomic function does.
#[derive(Clone, Copy)]
struct Function {
    kind: Kind,
    datatype: fi_datatype,
    operation: fi_op,
}

impl Function {
    const fn new(kind: Kind, datatype: fi_datatype, operation: fi_op) -> Self {
        Self { kind, datatype, operation }
    }

    /// Returns the operation, if it is offered by this kind of function. `long double`, complex
    /// numbers and integers of 128 bits are not offered: the processor has no atomic instructions
    /// for them.
    fn atomic(self) -> Option<Atomic> {
        let kind = match self.datatype {
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
        let operation = match self.operation {
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
        let atomic = Atomic::new(kind, operation)?;
        let is_offered = match self.kind {
            Kind::Write => !atomic.compares() && atomic.writes(),
            Kind::Fetch => !atomic.compares(),
            Kind::Compare => atomic.compares(),
        };
        is_offered.then_some(atomic)
    }

    /// Writes how many values the function takes.
    ///
    /// # Safety
    /// `count` is null or can be written.
    unsafe fn write_count(self, count: *mut usize) -> c_int {
        let Some(atomic) = self.atomic() else { return -FI_EOPNOTSUPP };
        // SAFETY: by this function's contract.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = Atomic::MOST_BYTES / atomic.size();
        }
        FI_SUCCESS
    }
}

/// The memory of a call, each list with as many values as the remote one.
#[derive(Clone, Copy)]
struct Values<'v> {
    operands: &'v [fi_ioc],
    compared: &'v [fi_ioc],
    results: &'v [fi_ioc],
}

/// A call of an atomic function.
#[derive(Clone, Copy)]
struct Call {
    endpoint: *mut fid_ep,
    function: Function,
    peer: fi_addr_t,
    context: *mut c_void,
    /// `None` for functions without flags, which have those of the endpoint.
    flags: Option<u64>,
    /// Whether it leaves no completion.
    is_silent: bool,
}

impl Call {
    const fn new(endpoint: *mut fid_ep, function: Function, peer: fi_addr_t, context: *mut c_void) -> Self {
        Self { endpoint, function, peer, context, flags: None, is_silent: false }
    }

    /// Changes as many values from `addr` on as the lists have.
    ///
    /// # Safety
    /// As [`Call::run`].
    unsafe fn run_at(self, (addr, key): (u64, u64), values: Values<'_>) -> isize {
        // Reading has no operand.
        let list = if values.results.is_empty() { values.operands } else { values.results };
        let count = list.iter().map(|entry| entry.count).sum();
        // SAFETY: by this function's contract.
        unsafe { self.run(&[fi_rma_ioc { addr, count, key }], values) }
    }

    /// Changes the values of remote pieces.
    ///
    /// # Safety
    /// An open endpoint. The local memory is valid for as many values as its entries say.
    unsafe fn run(self, remote: &[fi_rma_ioc], values: Values<'_>) -> isize {
        let Some(atomic) = self.function.atomic() else { return -(FI_EOPNOTSUPP as isize) };
        // SAFETY: by this function's contract.
        let mut state = unsafe { EndpointObject::part(self.endpoint) }.lock();
        let flags = self.flags.unwrap_or(state.transmit.flags);
        if flags & !FLAGS != 0 {
            return -(FI_EBADFLAGS as isize);
        }
        let size = atomic.size();
        let length = remote.iter().map(|piece| piece.count).sum::<usize>() * size;
        // SAFETY: by this function's contract.
        let (given, compared) = unsafe { (gather(values.operands, size), gather(values.compared, size)) };
        let operands = if atomic.writes() { given } else { vec![0; length] };
        let others = if atomic.compares() { length } else { 0 };
        if length > Atomic::MOST_BYTES || operands.len() != length || compared.len() != others {
            return -(FI_EINVAL as isize);
        }
        let process = match state.process(self.peer) {
            Ok(process) => process,
            Err(number) => return -(number as isize),
        };
        let direction = if self.function.kind == Kind::Write { FI_WRITE } else { FI_READ };
        let is_reported = !self.is_silent && state.transmit.reports(flags);
        let operation = Operation { context: self.context, flags: FI_ATOMIC | direction, is_reported };
        let mut result = state.mesh.connect(process);
        if matches!(result, Err(Error::NotAccepted { .. })) {
            return -(FI_EAGAIN as isize);
        }
        let (mut previous, mut at) = (vec![0_u8; length], 0);
        for piece in remote {
            if result.is_err() {
                break;
            }
            let range = at..at + piece.count * size;
            at = range.end;
            let place = (RegionKey::from_number(piece.key), piece.addr);
            let local = (&operands[range.clone()], compared.get(range.clone()).unwrap_or(&[]));
            result = state.mesh.change(process, place, atomic, local, &mut previous[range]);
        }
        if result.is_ok() {
            // SAFETY: by this function's contract.
            unsafe { scatter(&previous, values.results, size) };
        }
        state.report_completions();
        state.report_transfer(&operation, result.as_ref().err().map(error_number));
        FI_SUCCESS as isize
    }

    /// Changes values as a message of the interface says.
    ///
    /// # Safety
    /// As [`Call::run`], and the lists of the message have as many entries as it says.
    unsafe fn run_message(
        endpoint: *mut fid_ep,
        message: *const fi_msg_atomic,
        kind: Kind,
        (compared, results): (&[fi_ioc], &[fi_ioc]),
        flags: u64,
    ) -> isize {
        // SAFETY: by this function's contract.
        unsafe {
            let message = &*message;
            let function = Function::new(kind, message.datatype, message.op);
            let call =
                Self { flags: Some(flags), ..Self::new(endpoint, function, message.addr, message.context) };
            let operands = list_of(message.msg_iov, message.iov_count);
            let remote = list_of(message.rma_iov, message.rma_iov_count);
            call.run(remote, Values { operands, compared, results })
        }
    }
}

/// Returns the bytes of a list of values.
///
/// # Safety
/// Each entry is valid for its number of values, of `size` bytes each.
unsafe fn gather(list: &[fi_ioc], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in list {
        // SAFETY: by this function's contract.
        bytes.extend_from_slice(unsafe { list_of(entry.addr.cast::<u8>(), entry.count * size) });
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

/// Returns a list of one entry.
const fn one(addr: *const c_void, count: usize) -> [fi_ioc; 1] {
    [fi_ioc { addr: addr.cast_mut(), count }]
}

unsafe extern "C" fn write(
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
    let function = Function::new(Kind::Write, datatype, operation);
    let values = Values { operands: &one(buffer, count), compared: &[], results: &[] };
    // SAFETY: by the interface, here and in the functions below.
    unsafe { Call::new(endpoint, function, peer, context).run_at((addr, key), values) }
}

unsafe extern "C" fn writev(
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
    let function = Function::new(Kind::Write, datatype, operation);
    // SAFETY: as `write`.
    unsafe {
        let values = Values { operands: list_of(list, count), compared: &[], results: &[] };
        Call::new(endpoint, function, peer, context).run_at((addr, key), values)
    }
}

unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    operation: fi_op,
) -> isize {
    let function = Function::new(Kind::Write, datatype, operation);
    let call = Call::new(endpoint, function, peer, null_mut());
    let call = Call { flags: Some(FI_INJECT), is_silent: true, ..call };
    let values = Values { operands: &one(buffer, count), compared: &[], results: &[] };
    // SAFETY: as `write`.
    unsafe { call.run_at((addr, key), values) }
}

unsafe extern "C" fn writemsg(endpoint: *mut fid_ep, message: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: as `write`.
    unsafe { Call::run_message(endpoint, message, Kind::Write, (&[], &[]), flags) }
}

unsafe extern "C" fn readwrite(
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
    let function = Function::new(Kind::Fetch, datatype, operation);
    let values = Values { operands: &one(buffer, count), compared: &[], results: &one(result, count) };
    // SAFETY: as `write`.
    unsafe { Call::new(endpoint, function, peer, context).run_at((addr, key), values) }
}

unsafe extern "C" fn readwritev(
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
    let function = Function::new(Kind::Fetch, datatype, operation);
    // SAFETY: as `write`.
    unsafe {
        let (operands, results) = (list_of(list, count), list_of(results, result_count));
        let values = Values { operands, compared: &[], results };
        Call::new(endpoint, function, peer, context).run_at((addr, key), values)
    }
}

unsafe extern "C" fn readwritemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as `write`.
    unsafe {
        let results = list_of(results, result_count);
        Call::run_message(endpoint, message, Kind::Fetch, (&[], results), flags)
    }
}

unsafe extern "C" fn compwrite(
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
    let function = Function::new(Kind::Compare, datatype, operation);
    let (operands, compared, results) = (&one(buffer, count), &one(compare, count), &one(result, count));
    let values = Values { operands, compared, results };
    // SAFETY: as `write`.
    unsafe { Call::new(endpoint, function, peer, context).run_at((addr, key), values) }
}

unsafe extern "C" fn compwritev(
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
    let function = Function::new(Kind::Compare, datatype, operation);
    // SAFETY: as `write`.
    unsafe {
        let (operands, compared) = (list_of(list, count), list_of(compare, compare_count));
        let values = Values { operands, compared, results: list_of(results, result_count) };
        Call::new(endpoint, function, peer, context).run_at((addr, key), values)
    }
}

unsafe extern "C" fn compwritemsg(
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
    // SAFETY: as `write`.
    unsafe {
        let lists = (list_of(compare, compare_count), list_of(results, result_count));
        Call::run_message(endpoint, message, Kind::Compare, lists, flags)
    }
}

unsafe extern "C" fn write_valid(
    _: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as `write`.
    unsafe { Function::new(Kind::Write, datatype, operation).write_count(count) }
}

unsafe extern "C" fn readwrite_valid(
    _: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as `write`.
    unsafe { Function::new(Kind::Fetch, datatype, operation).write_count(count) }
}

unsafe extern "C" fn compwrite_valid(
    _: *mut fid_ep,
    datatype: fi_datatype,
    operation: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as `write`.
    unsafe { Function::new(Kind::Compare, datatype, operation).write_count(count) }
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
    let Some(atomic) = Function::new(kind, datatype, operation).atomic() else { return -FI_EOPNOTSUPP };
    let size = atomic.size();
    // SAFETY: attributes can be written.
    unsafe { *attributes = fi_atomic_attr { count: Atomic::MOST_BYTES / size, size } };
    FI_SUCCESS
}
