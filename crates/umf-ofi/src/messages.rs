//! Sends and receives, with and without tags.

use core::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;
use umf_link::TagMatch;
use umf_link::mesh::{Label, Wanted};

use crate::conversions::{Pieces, with_pieces};
use crate::conversions::{error_number, refuse};
use crate::endpoint::{Endpoint, EndpointObject};
use crate::info::INJECT_SIZE;
use crate::state::{Operation, State};

/// Messages without tags.
pub(crate) static MESSAGES: fi_ops_msg = fi_ops_msg {
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
    ..fi_ops_msg::UNSUPPORTED
};

/// Messages with tags.
pub(crate) static TAGGED: fi_ops_tagged = fi_ops_tagged {
    recv: Some(trecv),
    recvv: Some(trecvv),
    recvmsg: Some(trecvmsg),
    send: Some(tsend),
    sendv: Some(tsendv),
    sendmsg: Some(tsendmsg),
    inject: Some(tinject),
    senddata: Some(tsenddata),
    injectdata: Some(tinjectdata),
    ..fi_ops_tagged::UNSUPPORTED
};

const SEND_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | FI_MORE
    | FI_FENCE;
const RECEIVE_FLAGS: u64 = FI_COMPLETION | FI_MORE | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD;

/// A message to be sent.
struct Sending {
    to: fi_addr_t,
    tag: Option<u64>,
    data: Option<u64>,
    context: *mut c_void,
    /// `None` for functions without flags, which have those of the endpoint.
    flags: Option<u64>,
}

impl Sending {
    const fn new(to: fi_addr_t, tag: Option<u64>, context: *mut c_void) -> Self {
        Self { to, tag, data: None, context, flags: None }
    }

    /// Sends the message.
    ///
    /// # Safety
    /// The memory stays readable until the completion.
    #[inline]
    unsafe fn run(self, endpoint: &Endpoint, pieces: Pieces<'_>) -> isize {
        let mut state = endpoint.lock();
        let flags = self.flags.unwrap_or(state.transmit.flags);
        if flags & !SEND_FLAGS != 0 {
            return -(FI_EBADFLAGS as isize);
        }
        let process = match state.process(self.to) {
            Ok(process) => process,
            Err(number) => return -(number as isize),
        };
        let kind = FI_SEND | if self.tag.is_some() { FI_TAGGED } else { FI_MSG };
        let is_reported = state.transmit.reports(flags);
        let operation = Operation { context: self.context, flags: kind, is_reported };
        let label = Label { tag: self.tag, immediate: self.data };
        if flags & FI_INJECT != 0 {
            // SAFETY: by this function's contract.
            let sent = unsafe { inject_pieces(&mut state, process, label, pieces) };
            if sent == 0 {
                state.report_sent(&operation);
            }
            return sent;
        }
        let is_acknowledged = flags & FI_DELIVERY_COMPLETE != 0;
        let number = state.operations.add(operation);
        // SAFETY: by this function's contract.
        let sent = unsafe {
            let source = state.preloaded.source(pieces);
            state.mesh.send(process, label, source, is_acknowledged, number)
        };
        match sent {
            Ok(true) => {
                state.operations.remove(number);
                state.report_sent(&operation);
            }
            Ok(false) => {}
            Err(error) => {
                state.operations.remove(number);
                return refuse("a send", &error);
            }
        }
        FI_SUCCESS as isize
    }
}

/// Sends a message whose memory can be used again at once.
///
/// # Safety
/// The pieces are readable.
unsafe fn inject_pieces(
    state: &mut State,
    to: umf_link::mesh::Process,
    label: Label,
    pieces: Pieces<'_>,
) -> isize {
    let length: usize = pieces.iter().map(|(_, length)| length).sum();
    if length > INJECT_SIZE {
        return -(FI_EINVAL as isize);
    }
    let mut bytes = [0_u8; INJECT_SIZE];
    let mut at = 0;
    for (from, length) in pieces {
        // SAFETY: by this function's contract; the total was checked.
        unsafe { core::ptr::copy_nonoverlapping(*from, bytes.as_mut_ptr().add(at), *length) };
        at += length;
    }
    match state.mesh.inject(to, label, &bytes[..length]) {
        Ok(()) => FI_SUCCESS as isize,
        Err(error) => refuse("a send", &error),
    }
}

/// Sends a message without a completion.
///
/// # Safety
/// An open endpoint, and readable memory.
unsafe fn inject_message(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    to: fi_addr_t,
    label: Label,
) -> isize {
    // SAFETY: by this function's contract.
    let mut state = unsafe { EndpointObject::part(endpoint) }.lock();
    let process = match state.process(to) {
        Ok(process) => process,
        Err(number) => return -(number as isize),
    };
    // SAFETY: by this function's contract.
    let sent = unsafe { inject_pieces(&mut state, process, label, &[(buffer.cast_mut().cast(), length)]) };
    if sent == 0 {
        let operation = Operation { context: core::ptr::null_mut(), flags: 0, is_reported: false };
        state.report_sent(&operation);
    }
    sent
}

/// A receive.
struct Receiving {
    from: fi_addr_t,
    /// Tag, and its bits that may differ.
    tag: Option<(u64, u64)>,
    context: *mut c_void,
    flags: Option<u64>,
}

impl Receiving {
    /// Posts the receive.
    ///
    /// # Safety
    /// The memory stays writable until the completion.
    #[inline]
    unsafe fn run(self, endpoint: &Endpoint, pieces: Pieces<'_>) -> isize {
        let mut state = endpoint.lock();
        let flags = self.flags.unwrap_or(state.receive.flags);
        if flags & !RECEIVE_FLAGS != 0 {
            return -(FI_EBADFLAGS as isize);
        }
        let from = if endpoint.is_directed && self.from != FI_ADDR_UNSPEC {
            match state.process(self.from) {
                Ok(process) => Some(process),
                Err(number) => return -(number as isize),
            }
        } else {
            None
        };
        let kind = FI_RECV | if self.tag.is_some() { FI_TAGGED } else { FI_MSG };
        let is_reported = state.receive.reports(flags);
        let operation = Operation { context: self.context, flags: kind | flags & FI_MULTI_RECV, is_reported };
        let wanted = Wanted { from, tag: self.tag.map(|(tag, ignored)| TagMatch::masked(tag, !ignored)) };
        let claim = self.context.addr() as u64;
        if flags & FI_PEEK != 0 {
            peek(&mut state, &operation, &wanted, flags, claim);
            return FI_SUCCESS as isize;
        }
        if flags & FI_CLAIM != 0 && flags & FI_DISCARD != 0 {
            let is_discarded = state.mesh.discard_claimed(claim);
            state.report_received(&operation, None, (0, 0), (!is_discarded).then_some((FI_ENOMSG, 0)));
            return FI_SUCCESS as isize;
        }
        let number = state.operations.add(operation);
        // SAFETY: by this function's contract.
        let into = unsafe { state.preloaded.destination(pieces) };
        if flags & FI_CLAIM != 0 {
            // SAFETY: as above.
            if !unsafe { state.mesh.receive_claimed(claim, into, number) } {
                state.operations.remove(number);
                return -(FI_EINVAL as isize);
            }
            state.report_completions();
            return FI_SUCCESS as isize;
        }
        let many = (flags & FI_MULTI_RECV != 0).then_some(state.min_multi_receive);
        // SAFETY: as above.
        let posted = unsafe { state.mesh.receive(wanted, into, many, number) };
        if let Err(error) = posted {
            state.operations.remove(number);
            let number = error_number(&error);
            state.report_received(&operation, None, (0, 0), Some((number, 0)));
        }
        state.report_completions();
        FI_SUCCESS as isize
    }
}

/// Looks for a message, and reports it or that there is none.
fn peek(state: &mut State, operation: &Operation, wanted: &Wanted, flags: u64, claim: u64) {
    let is_kept = flags & (FI_CLAIM | FI_DISCARD) != 0;
    let message = state.mesh.peek(wanted, is_kept.then_some(claim));
    // For the next call: the completion of this one is there at once, so that reading the queue
    // makes no progress. Not before, since MPICH needs to find what the latest read has found.
    state.mesh.progress();
    state.report_completions();
    if message.is_some() && flags & FI_DISCARD != 0 {
        state.mesh.discard_claimed(claim);
    }
    let error = message.is_none().then_some((FI_ENOMSG, 0));
    state.report_received(operation, message.as_ref(), (0, FI_PEEK), error);
}

unsafe extern "C" fn send(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    _descriptor: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let sending = Sending::new(to, None, context);
    // SAFETY: by the interface, here and in the functions below.
    unsafe { sending.run(EndpointObject::part(endpoint), &[(buffer.cast_mut().cast(), length)]) }
}

unsafe extern "C" fn sendv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let sending = Sending::new(to, None, context);
    // SAFETY: as `send`.
    unsafe { with_pieces(list, count, |pieces| sending.run(EndpointObject::part(endpoint), pieces)) }
}

unsafe extern "C" fn sendmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    // SAFETY: as `send`.
    unsafe {
        let message = &*message;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let sending =
            Sending { to: message.addr, tag: None, data, context: message.context, flags: Some(flags) };
        with_pieces(message.msg_iov, message.iov_count, |pieces| {
            sending.run(EndpointObject::part(endpoint), pieces)
        })
    }
}

unsafe extern "C" fn senddata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    _descriptor: *mut c_void,
    data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let sending = Sending { data: Some(data), ..Sending::new(to, None, context) };
    // SAFETY: as `send`.
    unsafe { sending.run(EndpointObject::part(endpoint), &[(buffer.cast_mut().cast(), length)]) }
}

unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    to: fi_addr_t,
) -> isize {
    // SAFETY: as `send`.
    unsafe { inject_message(endpoint, buffer, length, to, Label { tag: None, immediate: None }) }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: fi_addr_t,
) -> isize {
    // SAFETY: as `send`.
    unsafe { inject_message(endpoint, buffer, length, to, Label { tag: None, immediate: Some(data) }) }
}

unsafe extern "C" fn recv(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    length: usize,
    _descriptor: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let receiving = Receiving { from, tag: None, context, flags: None };
    // SAFETY: as `send`.
    unsafe { receiving.run(EndpointObject::part(endpoint), &[(buffer.cast(), length)]) }
}

unsafe extern "C" fn recvv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let receiving = Receiving { from, tag: None, context, flags: None };
    // SAFETY: as `send`.
    unsafe { with_pieces(list, count, |pieces| receiving.run(EndpointObject::part(endpoint), pieces)) }
}

unsafe extern "C" fn recvmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    // SAFETY: as `send`.
    unsafe {
        let message = &*message;
        let receiving =
            Receiving { from: message.addr, tag: None, context: message.context, flags: Some(flags) };
        with_pieces(message.msg_iov, message.iov_count, |pieces| {
            receiving.run(EndpointObject::part(endpoint), pieces)
        })
    }
}

unsafe extern "C" fn tsend(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    _descriptor: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let sending = Sending::new(to, Some(tag), context);
    // SAFETY: as `send`.
    unsafe { sending.run(EndpointObject::part(endpoint), &[(buffer.cast_mut().cast(), length)]) }
}

unsafe extern "C" fn tsendv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let sending = Sending::new(to, Some(tag), context);
    // SAFETY: as `send`.
    unsafe { with_pieces(list, count, |pieces| sending.run(EndpointObject::part(endpoint), pieces)) }
}

unsafe extern "C" fn tsendmsg(endpoint: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as `send`.
    unsafe {
        let message = &*message;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let (to, tag, context) = (message.addr, Some(message.tag), message.context);
        let sending = Sending { to, tag, data, context, flags: Some(flags) };
        with_pieces(message.msg_iov, message.iov_count, |pieces| {
            sending.run(EndpointObject::part(endpoint), pieces)
        })
    }
}

unsafe extern "C" fn tsenddata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    _descriptor: *mut c_void,
    data: u64,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let sending = Sending { data: Some(data), ..Sending::new(to, Some(tag), context) };
    // SAFETY: as `send`.
    unsafe { sending.run(EndpointObject::part(endpoint), &[(buffer.cast_mut().cast(), length)]) }
}

unsafe extern "C" fn tinject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: as `send`.
    unsafe { inject_message(endpoint, buffer, length, to, Label { tag: Some(tag), immediate: None }) }
}

unsafe extern "C" fn tinjectdata(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: as `send`.
    unsafe { inject_message(endpoint, buffer, length, to, Label { tag: Some(tag), immediate: Some(data) }) }
}

unsafe extern "C" fn trecv(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    length: usize,
    _descriptor: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignored: u64,
    context: *mut c_void,
) -> isize {
    let receiving = Receiving { from, tag: Some((tag, ignored)), context, flags: None };
    // SAFETY: as `send`.
    unsafe { receiving.run(EndpointObject::part(endpoint), &[(buffer.cast(), length)]) }
}

unsafe extern "C" fn trecvv(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignored: u64,
    context: *mut c_void,
) -> isize {
    let receiving = Receiving { from, tag: Some((tag, ignored)), context, flags: None };
    // SAFETY: as `send`.
    unsafe { with_pieces(list, count, |pieces| receiving.run(EndpointObject::part(endpoint), pieces)) }
}

unsafe extern "C" fn trecvmsg(endpoint: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as `send`.
    unsafe {
        let message = &*message;
        let (from, tag) = (message.addr, Some((message.tag, message.ignore)));
        let receiving = Receiving { from, tag, context: message.context, flags: Some(flags) };
        with_pieces(message.msg_iov, message.iov_count, |pieces| {
            receiving.run(EndpointObject::part(endpoint), pieces)
        })
    }
}
