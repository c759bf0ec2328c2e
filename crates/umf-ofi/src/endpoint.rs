//! Endpoint: a mesh behind a lock, the operations in progress, and the queues and counters that
//! their completions go to.

use core::ffi::{c_int, c_void};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libfabric_sys::*;
use umf_link::mesh::{Mesh, Registrar, Sleeper, Waker};
use umf_link::{ADDRESS_SIZE, LinkAddress, LinkBuilder};
use umf_os::background;

use crate::address_vector::AddressVectorObject;
use crate::atomics::ATOMIC;
use crate::conversions::{copy_address, error_number, refuse};
use crate::counter::{Counter, CounterObject};
use crate::domain::{Domain, DomainObject};
use crate::messages::{MESSAGES, TAGGED};
use crate::names;
use crate::object::Boxed;
use crate::preloaded::PreloadedMemory;
use crate::queue::QueueObject;
use crate::rma::RMA;
use crate::serial::{Guard, Serial};
use crate::state::{Direction, Operations, State};
use crate::statistics;
use crate::waiting::lock;

/// The bytes that have to be left in memory for many messages, unless the application sets it.
const MIN_MULTI_RECEIVE: usize = 64;

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    domain: Arc<Domain>,
    registrar: Registrar,
    address: LinkAddress,
    /// Whether receives name the sender of their message.
    pub is_directed: bool,
    waker: Waker,
    state: Serial<State>,
    /// The thread that makes progress, where the application asks for it.
    progress: Mutex<Option<Progress>>,
}

pub(crate) type EndpointObject = Boxed<fid_ep, Endpoint>;

impl Endpoint {
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn progress(&self) {
        // A thread that has the lock makes progress itself.
        let Some(mut state) = self.state.try_lock() else { return };
        if state.is_enabled {
            state.mesh.progress();
            state.report_completions();
        }
    }

    /// Makes progress. Returns what to sleep on, if there was nothing to do.
    pub(crate) fn progress_or_sleeper(&self) -> Option<Sleeper> {
        let mut state = self.lock();
        let sleeper = state.mesh.sleeper();
        state.report_completions();
        sleeper
    }

    /// Passes the descriptor of the mesh on.
    pub(crate) fn with_event_fd(
        &self,
        run: impl FnOnce(BorrowedFd<'_>) -> Result<(), c_int>,
    ) -> Result<(), c_int> {
        let mut state = self.lock();
        let fd = state.mesh.event_fd().map_err(|error| error_number(&error))?;
        run(fd)
    }

    /// Makes progress, and lets the descriptor become readable. Returns whether there was anything
    /// to do.
    pub(crate) fn arm(&self) -> bool {
        let mut state = self.lock();
        let armed = state.mesh.arm();
        state.report_completions();
        // Where it cannot be armed, the caller does not wait.
        armed.unwrap_or(true)
    }

    pub(crate) const fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// A thread that makes progress with an endpoint. Dropping it ends the thread.
#[derive(Debug)]
struct Progress {
    thread: Option<background::Thread>,
    is_ended: Arc<AtomicBool>,
    waker: Waker,
}

impl Progress {
    fn start(endpoint: &Arc<Endpoint>) -> std::io::Result<Self> {
        let (is_ended, waker) = (Arc::<AtomicBool>::default(), endpoint.waker.clone());
        let (ended, weak) = (Arc::clone(&is_ended), Arc::downgrade(endpoint));
        let thread = background::spawn(c"umf-progress", 256 << 10, move || {
            while !ended.load(Ordering::Acquire)
                && let Some(endpoint) = weak.upgrade()
            {
                let sleeper = endpoint.progress_or_sleeper();
                drop(endpoint);
                match sleeper {
                    Some(sleeper) => sleeper.sleep(Duration::from_millis(25)),
                    None => std::thread::yield_now(),
                }
            }
        })?;
        Ok(Self { thread: Some(thread), is_ended, waker })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        statistics::write(&self.lock().mesh.statistics());
    }
}

static OBJECT: fi_ops =
    fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi_ops::UNSUPPORTED };
static OPS: fi_ops_ep = fi_ops_ep {
    cancel: Some(cancel),
    getopt: Some(get_option),
    setopt: Some(set_option),
    ..fi_ops_ep::UNSUPPORTED
};
static NAMES: fi_ops_cm = fi_ops_cm { getname: Some(name), ..fi_ops_cm::UNSUPPORTED };

/// Makes the mesh of an endpoint. The address of an entry is that of a service, or one for the
/// first endpoint of the entry. No address is used twice: to peers, the end of its endpoint is the
/// end of the address.
fn make_mesh(builder: &LinkBuilder, wanted: Option<LinkAddress>) -> umf_link::Result<Mesh> {
    static USED: Mutex<BTreeSet<[u8; ADDRESS_SIZE]>> = Mutex::new(BTreeSet::new());
    match wanted {
        Some(address) if address.pid() == 0 => Mesh::at(builder, address),
        Some(address) if address.pid() == std::process::id() && lock(&USED).insert(address.to_bytes()) => {
            Mesh::at(builder, address)
        }
        _ => Mesh::new(builder),
    }
}

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    endpoint: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as `open2`.
    unsafe { open2(domain, info, endpoint, 0, context) }
}

pub(crate) unsafe extern "C" fn open2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    endpoint: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: an entry of `getinfo`, with its address.
    let wanted = unsafe { names::in_entry((*info).src_addr, (*info).src_addrlen) };
    let Ok(wanted) = wanted else { return -FI_EINVAL };
    let mesh = match umf::link::builder().map(|builder| make_mesh(&builder, wanted)) {
        Ok(Ok(mesh)) => mesh,
        Ok(Err(error)) => return refuse("opening an endpoint", &error) as c_int,
        Err(error) => {
            tracing::error!(%error, "libfabric: the settings of umf cannot be used");
            return -FI_EINVAL;
        }
    };
    // SAFETY: an entry of `getinfo`, whose attributes may be null.
    let (info, transmit, receive) = unsafe {
        let info = &*info;
        (info, info.tx_attr.as_ref(), info.rx_attr.as_ref())
    };
    let of = |flags| Direction { flags, ..Direction::default() };
    let (address, waker, registrar) = (mesh.address(), mesh.waker(), mesh.registrar());
    let state = State {
        mesh,
        preloaded: PreloadedMemory::new(),
        operations: Operations::default(),
        transmit: of(transmit.map_or(0, |transmit| transmit.op_flags)),
        receive: of(receive.map_or(0, |receive| receive.op_flags)),
        vector: None,
        processes: Vec::new(),
        numbers: Vec::new(),
        is_enabled: false,
        min_multi_receive: MIN_MULTI_RECEIVE,
    };
    let is_directed = info.caps & FI_DIRECTED_RECV != 0;
    let object = fid { fclass: FI_CLASS_EP, context, ops: OBJECT.as_table() };
    let object = fid_ep {
        fid: object,
        ops: OPS.as_table(),
        cm: NAMES.as_table(),
        msg: MESSAGES.as_table(),
        rma: RMA.as_table(),
        tagged: TAGGED.as_table(),
        atomic: ATOMIC.as_table(),
        collective: core::ptr::null_mut(),
    };
    // SAFETY: an open domain of this provider; the pointer is valid for a write.
    unsafe {
        let domain = Arc::clone(DomainObject::part(domain));
        if let Err(error) = domain.add_endpoint(registrar.clone()) {
            domain.remove_endpoint(&registrar);
            return refuse("opening an endpoint", &error) as c_int;
        }
        let (state, progress) = (domain.serial(state), Mutex::default());
        let part = Endpoint { domain, registrar, address, is_directed, waker, state, progress };
        *endpoint = EndpointObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: an open endpoint.
    let part = unsafe { EndpointObject::part(object.cast()) };
    let (queues, counters) = {
        let mut state = part.lock();
        let directions = [&state.transmit, &state.receive];
        let queues: Vec<_> = directions.iter().filter_map(|direction| direction.queue.clone()).collect();
        let counters: Vec<_> =
            counters(&mut state, u64::MAX).iter().filter_map(|counter| counter.as_ref().cloned()).collect();
        (queues, counters)
    };
    *part.progress.lock().unwrap_or_else(PoisonError::into_inner) = None;
    queues.iter().for_each(|queue| queue.unbind(part));
    counters.iter().for_each(|counter| counter.endpoints.remove(part));
    drop((queues, counters));
    part.domain.remove_endpoint(&part.registrar);
    // SAFETY: endpoints alone have this operation.
    unsafe { EndpointObject::close(object) }
}

/// Returns where the counters for operations of these flags are.
///
/// Of the transfers of others, writes with data are counted. The rest is not seen, and only an
/// endpoint with `FI_RMA_EVENT`, which is not offered, would count it.
fn counters(state: &mut State, flags: u64) -> Vec<&mut Option<Arc<Counter>>> {
    let State { transmit, receive, .. } = state;
    let Direction { counter: sends, transfer_counters: [reads, writes], .. } = transmit;
    let Direction { counter: receives, transfer_counters: [others_reads, others_writes], .. } = receive;
    let all = [
        (FI_SEND, sends),
        (FI_READ, reads),
        (FI_WRITE, writes),
        (FI_RECV, receives),
        (FI_REMOTE_READ, others_reads),
        (FI_REMOTE_WRITE, others_writes),
    ];
    all.into_iter().filter(|(bit, _)| flags & bit != 0).map(|(_, counter)| counter).collect()
}

unsafe extern "C" fn bind(object: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: an open endpoint, and another open object of this provider.
    let (part, class) = unsafe { (EndpointObject::part(object.cast()), (*other).fclass) };
    let mut state = part.lock();
    match class {
        FI_CLASS_AV => {
            // SAFETY: an address vector.
            state.vector = Some(Arc::clone(unsafe { AddressVectorObject::part(other.cast()) }));
        }
        FI_CLASS_CQ => {
            // SAFETY: a completion queue.
            let queue = unsafe { QueueObject::part(other.cast()) };
            if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0
                || flags & (FI_TRANSMIT | FI_RECV) == 0
            {
                return -FI_EBADFLAGS;
            }
            let is_selective = flags & FI_SELECTIVE_COMPLETION != 0;
            let directions = |state: &mut State, run: &mut dyn FnMut(&mut Direction)| {
                let State { transmit, receive, .. } = state;
                for (bit, direction) in [(FI_TRANSMIT, transmit), (FI_RECV, receive)] {
                    if flags & bit != 0 {
                        run(direction);
                    }
                }
            };
            let mut is_bound = false;
            directions(&mut state, &mut |direction| is_bound |= direction.queue.is_some());
            if is_bound {
                return -FI_EINVAL;
            }
            // The queue locks the endpoint.
            drop(state);
            if let Err(number) = queue.bind(part) {
                return -number;
            }
            directions(&mut part.lock(), &mut |direction| {
                (direction.queue, direction.is_selective) = (Some(Arc::clone(queue)), is_selective);
            });
        }
        FI_CLASS_CNTR => {
            // SAFETY: a counter.
            let counter = unsafe { CounterObject::part(other.cast()) };
            let bound = counters(&mut state, flags);
            if bound.is_empty() {
                return -FI_EBADFLAGS;
            }
            if bound.iter().any(|bound| bound.is_some()) {
                return -FI_EINVAL;
            }
            // The counter locks the endpoint.
            drop(state);
            if let Err(number) = counter.endpoints.add(part) {
                return -number;
            }
            for bound in counters(&mut part.lock(), flags) {
                *bound = Some(Arc::clone(counter));
            }
        }
        FI_CLASS_EQ => {}
        _ => return -FI_EINVAL,
    }
    FI_SUCCESS
}

unsafe extern "C" fn control(object: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: an open endpoint.
    let part = unsafe { EndpointObject::part(object.cast()) };
    let mut state = part.lock();
    match command {
        FI_ENABLE if state.vector.is_none() => -FI_ENOAV,
        FI_ENABLE => {
            state.is_enabled = true;
            drop(state);
            if part.domain.has_automatic_progress {
                let mut progress = part.progress.lock().unwrap_or_else(PoisonError::into_inner);
                match Progress::start(part) {
                    Ok(started) => *progress = Some(started),
                    Err(error) => {
                        tracing::error!(%error, "libfabric: cannot start a thread for automatic progress");
                        return -error.raw_os_error().unwrap_or(FI_EAGAIN);
                    }
                }
            }
            FI_SUCCESS
        }
        FI_GETOPSFLAG | FI_SETOPSFLAG => {
            // SAFETY: the argument of both is a word of flags.
            let flags = unsafe { &mut *argument.cast::<u64>() };
            let direction = match *flags & (FI_TRANSMIT | FI_RECV) {
                FI_TRANSMIT => &mut state.transmit,
                FI_RECV => &mut state.receive,
                _ => return -FI_EINVAL,
            };
            if command == FI_GETOPSFLAG {
                *flags = direction.flags;
            } else {
                direction.flags = *flags & !(FI_TRANSMIT | FI_RECV);
            }
            FI_SUCCESS
        }
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn cancel(object: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: an open endpoint.
    let mut state = unsafe { EndpointObject::part(object.cast()) }.lock();
    let found = state.operations.receives_of(context);
    let is_cancelled = found.into_iter().any(|number| state.mesh.cancel(number));
    state.report_completions();
    // An operation that has ended, or has a message, is not an error.
    if is_cancelled { FI_SUCCESS as isize } else { -(FI_ENOENT as isize) }
}

unsafe extern "C" fn get_option(
    object: *mut fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV {
        return -FI_ENOPROTOOPT;
    }
    // SAFETY: an open endpoint; `value` has `length` bytes.
    unsafe {
        if *length < size_of::<usize>() {
            return -FI_ETOOSMALL;
        }
        *length = size_of::<usize>();
        value.cast::<usize>().write_unaligned(EndpointObject::part(object.cast()).lock().min_multi_receive);
    }
    FI_SUCCESS
}

unsafe extern "C" fn set_option(
    object: *mut fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV {
        return -FI_ENOPROTOOPT;
    }
    if length != size_of::<usize>() {
        return -FI_EINVAL;
    }
    // SAFETY: an open endpoint; `value` is a number of `length` bytes.
    unsafe {
        let least = value.cast::<usize>().read_unaligned();
        EndpointObject::part(object.cast()).lock().min_multi_receive = least;
    }
    FI_SUCCESS
}

unsafe extern "C" fn name(object: *mut fid, buffer: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: an open endpoint.
    let bytes: [u8; ADDRESS_SIZE] = unsafe { EndpointObject::part(object.cast()) }.address.to_bytes();
    // SAFETY: by the interface.
    if unsafe { copy_address(&bytes, buffer, length) } { FI_SUCCESS } else { -FI_ETOOSMALL }
}
