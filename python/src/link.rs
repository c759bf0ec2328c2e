//! `umf.link`: endpoints, links, and memory that is handed over.

use std::ffi::c_int;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use umf::OwnedBlock;
use umf::link::{Error as LinkFailure, LinkAddress, Memory};

use crate::call::{
    Exclusive, Left, Outcome, Part, builder, contiguous, duration, or_length, receive_bytes, wait, wanted,
};
use crate::device::DeviceMemory;
use crate::errors::{ClosedError, ForkError, argument, from_umf};
use crate::handle::{Contents, Mapping};
use crate::memory::{Keeper, Memory as Buffers, Range, find};
use crate::pool::Block;

/// A socket at which processes of this user connect. Closed when the object dies.
#[pyclass(module = "umf.link", frozen, weakref)]
pub(crate) struct Endpoint {
    endpoint: Exclusive<Arc<umf::link::Endpoint>>,
    address: LinkAddress,
}

#[pymethods]
impl Endpoint {
    /// The address for processes that connect, as text.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Waits for a process to connect, for at most `timeout` seconds, and returns the link with it.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<Link> {
        let timeout = duration(timeout)?;
        let endpoint = self.endpoint.with(|endpoint| Ok(Arc::clone(endpoint)))?;
        Ok(Link::new(wait(python, || endpoint.accept(timeout))?))
    }

    /// Refuses further connections. Links live on.
    fn close(&self) -> PyResult<()> {
        self.endpoint.lock()?.take();
        Ok(())
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close()
    }

    fn __repr__(&self) -> String {
        format!("<umf.link.Endpoint {}>", self.address)
    }
}

/// Makes an endpoint with a new address, or with a name by which processes of this user find it.
#[pyfunction]
#[pyo3(signature = (name = None))]
pub(crate) fn bind(python: Python<'_>, name: Option<&str>) -> PyResult<Endpoint> {
    let builder = builder().map_err(from_umf)?;
    let endpoint = wait(python, || name.map_or_else(|| builder.bind(), |name| builder.named(name)))?;
    let address = endpoint.address();
    Ok(Endpoint { endpoint: Exclusive::new(Arc::new(endpoint), "endpoint"), address })
}

/// Connects to an endpoint by its address, or by its name, within `timeout` seconds.
#[pyfunction]
#[pyo3(signature = (address = None, *, name = None, timeout = None))]
pub(crate) fn connect(
    python: Python<'_>,
    address: Option<&str>,
    name: Option<&str>,
    timeout: Option<f64>,
) -> PyResult<Link> {
    let builder = builder().map_err(from_umf)?;
    let parsed = match (address, name) {
        (Some(address), None) => address.parse().map_err(LinkFailure::from),
        (None, Some(name)) => builder.address_of(name),
        _ => return Err(argument("connect takes the address of an endpoint, or its name")),
    };
    let (address, timeout) = (parsed.map_err(|error| from_umf(error.into()))?, duration(timeout)?);
    Ok(Link::new(wait(python, || builder.connect(&address, timeout))?))
}

/// A link and the memory that is with the peer.
struct State {
    link: umf::link::Link,
    timeout: Option<Duration>,
    loans: Vec<Arc<LoanState>>,
    latest_tag: Option<u64>,
}

impl State {
    /// Forgets the memory that the peer has returned. If the peer cannot open the rest any more,
    /// takes it back.
    fn settle(&mut self) {
        let is_over = !self.loans.is_empty() && self.link.check_alive().is_err();
        self.loans.retain(|loan| {
            let is_returned = loan.is_returned();
            if is_over && !is_returned {
                // An error means that there is nothing to cancel.
                let _ = umf::cancel_handle(&loan.handle);
            }
            !is_returned && !is_over
        });
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.settle();
        // A loan keeps the link open.
        for loan in self.loans.drain(..) {
            loan.close();
        }
    }
}

/// Messages with another process, in both directions. One thread uses a link at a time.
///
/// Calls that wait end after `timeout` seconds (by default after `Link.timeout`), when the peer has
/// ended, and by the exception of a signal handler, such as KeyboardInterrupt. No message is lost
/// then.
#[pyclass(module = "umf.link", frozen, weakref)]
pub(crate) struct Link {
    state: Exclusive<State>,
    peer_pid: u32,
}

impl Link {
    fn new(link: umf::link::Link) -> Self {
        let (timeout, peer_pid) = (link.timeout(), link.peer_pid());
        let state = State { link, timeout, loans: Vec::new(), latest_tag: None };
        Self { state: Exclusive::new(state, "link"), peer_pid }
    }

    /// Runs a call that may wait.
    fn call<R: Send>(
        &self,
        python: Python<'_>,
        timeout: Option<f64>,
        run: impl FnOnce(&mut State) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        let timeout = duration(timeout)?;
        self.state.with(|state| {
            state.link.set_timeout(timeout.or(state.timeout));
            wait(python, || {
                let outcome = run(state);
                state.settle();
                outcome
            })
        })
    }
}

#[pymethods]
impl Link {
    /// The process id of the peer; 0 if this pid namespace does not show it.
    #[getter]
    fn peer_pid(&self) -> u32 {
        self.peer_pid
    }

    /// The time in seconds after which calls fail with `umf.TimeoutError`; None until the peer
    /// ends.
    #[getter]
    fn get_timeout(&self) -> PyResult<Option<f64>> {
        self.state.with(|state| Ok(state.timeout.map(|timeout| timeout.as_secs_f64())))
    }

    #[setter]
    fn set_timeout(&self, timeout: Option<f64>) -> PyResult<()> {
        let timeout = duration(timeout)?;
        self.state.with(|state| {
            state.timeout = timeout;
            Ok(())
        })
    }

    /// The tag of the message that was received last.
    #[getter]
    fn latest_tag(&self) -> PyResult<Option<u64>> {
        self.state.with(|state| Ok(state.latest_tag))
    }

    /// Sends the bytes of a buffer. Returns once a short message is in the ring, or a longer one
    /// was received.
    #[pyo3(signature = (data, *, tag = 0, timeout = None))]
    fn send(
        &self,
        python: Python<'_>,
        data: &Bound<'_, PyAny>,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let buffer = contiguous(data, false)?;
        let part = Part::new(python, &buffer);
        self.call(python, timeout, |state| {
            let memory = part.memory();
            state.link.send(tag, part.source(memory.as_ref())?)
        })
    }

    /// Receives the first message with this tag (None: with any tag). Returns its bytes; or with
    /// `into` writes them to that buffer, and returns their number. A message that is longer than
    /// the buffer is `umf.TruncatedError`, and stays.
    #[pyo3(signature = (into = None, *, tag = None, timeout = None))]
    fn recv<'py>(
        &self,
        python: Python<'py>,
        into: Option<Bound<'py, PyAny>>,
        tag: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let receive = |part: &Part, timeout: Option<f64>| {
            self.call(python, timeout, |state| {
                let memory = part.memory();
                let received = state.link.recv(wanted(tag), part.destination(memory.as_ref())?)?;
                state.latest_tag = Some(received.tag);
                Ok(received.length)
            })
        };
        if let Some(into) = into {
            let buffer = contiguous(&into, true)?;
            let length = receive(&Part::new(python, &buffer), timeout)?;
            return Ok(length.into_pyobject(python)?.into_any());
        }
        let mut left = Left::new(timeout);
        let bytes = receive_bytes(python, |part| {
            self.call(python, left.seconds(), |state| {
                let received = or_length(state.link.recv(wanted(tag), part.destination(None)?))?;
                state.latest_tag = received.map_or(state.latest_tag, |received| Some(received.tag));
                Ok(received.map(|received| received.length))
            })
        });
        Ok(bytes?.into_any())
    }

    /// Returns `(tag, length, is_handed_over)` of the message that `recv` would take, or None. Does
    /// not wait.
    #[pyo3(signature = (*, tag = None))]
    fn probe(&self, python: Python<'_>, tag: Option<u64>) -> PyResult<Option<(u64, usize, bool)>> {
        self.call(python, None, |state| {
            let probed = state.link.probe(wanted(tag))?;
            Ok(probed.map(|probed| (probed.tag, probed.length, probed.is_viewable)))
        })
    }

    /// Hands over memory of a pool without a copy: a block, a mapping, or an array in one. The peer
    /// receives it with `recv_view`, and may open it even if it is freed here meanwhile.
    ///
    /// Both processes may write the memory. `Loan.wait` waits until the peer has closed its view.
    #[pyo3(signature = (memory, *, tag = 0, timeout = None))]
    fn hand_over(
        &self,
        python: Python<'_>,
        memory: &Bound<'_, PyAny>,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<Loan> {
        let owned = Owned::of(memory)?;
        let handle = python.detach(|| owned.send_handle())?;
        let lent = self.call(python, timeout, |state| {
            let memory = owned.memory(&handle)?;
            let part = memory.part(owned.offset, owned.length)?;
            let loan = state.link.hand_over(tag, part)?;
            // SAFETY: a loan reads no memory; the lifetime stands for the block, which the ticket
            // of the handle keeps until the peer has opened it.
            let loan = unsafe { std::mem::transmute::<umf::link::Loan<'_>, umf::link::Loan<'static>>(loan) };
            let (loan, is_returned) = (Mutex::new(Some(Arc::new(loan))), AtomicBool::new(false));
            let loan = Arc::new(LoanState { loan, handle, is_returned });
            state.loans.push(Arc::clone(&loan));
            Ok(loan)
        });
        match lent {
            Ok(state) => Ok(Loan { state, pid: std::process::id() }),
            Err(error) => {
                // The peer cannot open it.
                let _ = umf::cancel_handle(&handle);
                Err(error)
            }
        }
    }

    /// Receives memory that was handed over, without a copy. Closing the view returns the memory.
    #[pyo3(signature = (*, tag = None, timeout = None))]
    fn recv_view(&self, python: Python<'_>, tag: Option<u64>, timeout: Option<f64>) -> PyResult<View> {
        let view = self.call(python, timeout, |state| {
            let view = state.link.recv_view(wanted(tag))?;
            state.latest_tag = Some(view.tag());
            Ok(view)
        })?;
        let (tag, size) = (view.tag(), view.len());
        Ok(View { memory: Buffers::new(view, None), tag, size })
    }

    /// Answers the peer without waiting. Raises an exception if the peer has ended.
    fn progress(&self, python: Python<'_>) -> PyResult<()> {
        self.call(python, None, |state| state.link.progress())
    }

    /// Closes the link. The peer receives what was sent before. Does nothing the second time.
    fn close(&self, python: Python<'_>) -> PyResult<()> {
        let state = self.state.lock()?.take();
        python.detach(|| drop(state));
        Ok(())
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.state.is_closed()
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        python: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(python)
    }

    fn __repr__(&self) -> String {
        let state = if self.state.is_closed() { ", closed" } else { "" };
        format!("<umf.link.Link with process {}{state}>", self.peer_pid)
    }
}

/// A block or a mapping, and the part of it that is handed over.
struct Owned {
    owner: Owner,
    offset: usize,
    length: usize,
}

enum Owner {
    Block(Arc<Keeper<OwnedBlock>>),
    Mapping(Arc<Keeper<Contents>>, Box<umf::Handle>),
}

impl Owned {
    fn of(memory: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Some(owner) = Owner::of(memory)? {
            let length = owner.size();
            return Ok(Self { owner, offset: 0, length });
        }
        let buffer = contiguous(memory, false)?;
        let (address, length) = (buffer.buf_ptr().addr() as u64, buffer.len_bytes());
        let found = find(memory.py(), address, length.max(1));
        let owner = match &found {
            Some((object, _)) => Owner::of(object.bind(memory.py()))?,
            None => None,
        };
        let offset = found.and_then(|(_, offset)| usize::try_from(offset).ok());
        let (offset, owner) = offset.zip(owner).ok_or_else(|| {
            PyTypeError::new_err(
                "cannot hand the object over: it is not in memory of umf; copy it there with umf.array, or send it",
            )
        })?;
        Ok(Self { owner, offset, length })
    }

    fn send_handle(&self) -> PyResult<umf::Handle> {
        match &self.owner {
            Owner::Block(block) => block.send_handle().map_err(from_umf),
            Owner::Mapping(mapping, handle) => {
                let sent = mapping.open()?.send_handle(handle, NonZeroU16::MIN);
                sent.map_err(|error| from_umf(error.into()))
            }
        }
    }

    fn memory(&self, handle: &umf::Handle) -> Outcome<Memory<'_>> {
        match &self.owner {
            Owner::Block(block) => {
                let memory = Memory::new(handle, block.view().map_err(not_for_cpu)?)?;
                Ok(memory.with_host_access(block.pool().provider().host_access()))
            }
            Owner::Mapping(mapping, _) => {
                let mapping = mapping.open().map_err(|error| LinkFailure::EngineImpossible {
                    engine: umf::link::Engine::Mapped,
                    why: error.to_string(),
                })?;
                Memory::new(handle, mapping.view().map_err(|error| not_for_cpu(error.into()))?)
            }
        }
    }
}

/// Returns the error for memory that cannot be handed over.
fn not_for_cpu(error: umf::Error) -> LinkFailure {
    LinkFailure::EngineImpossible { engine: umf::link::Engine::Mapped, why: error.to_string() }
}

impl Owner {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(block) = object.cast::<Block>() {
            return Ok(Some(Self::Block(block.get().memory.share()?)));
        }
        if let Ok(mapping) = object.cast::<Mapping>() {
            return Ok(Some(Self::Mapping(mapping.get().memory.share()?, Box::new(mapping.get().handle))));
        }
        Ok(None)
    }

    fn size(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Mapping(mapping, _) => mapping.size(),
        }
    }
}

struct LoanState {
    /// `None` once it was returned, or its link was closed.
    loan: Mutex<Option<Arc<umf::link::Loan<'static>>>>,
    handle: umf::Handle,
    is_returned: AtomicBool,
}

impl LoanState {
    fn loan(&self) -> MutexGuard<'_, Option<Arc<umf::link::Loan<'static>>>> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_returned(&self) -> bool {
        let mut loan = self.loan();
        if loan.as_ref().is_some_and(|loan| loan.is_returned()) {
            self.is_returned.store(true, Ordering::Relaxed);
            *loan = None;
        }
        self.is_returned.load(Ordering::Relaxed)
    }

    fn close(&self) {
        let loan = self.loan().take();
        drop(loan);
    }
}

/// Memory that was handed over. Dropping it does not take the memory back.
#[pyclass(module = "umf.link", frozen)]
pub(crate) struct Loan {
    state: Arc<LoanState>,
    pid: u32,
}

#[pymethods]
impl Loan {
    /// Whether the peer has closed its view.
    #[getter]
    fn returned(&self) -> bool {
        self.state.is_returned()
    }

    /// Waits until the peer has closed its view, for at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = duration(timeout)?;
        if self.pid != std::process::id() {
            return Err(ForkError::new_err("the loan belongs to the parent process; wait for it there"));
        }
        if self.state.is_returned() {
            return Ok(());
        }
        let loan = self.state.loan().clone().ok_or_else(|| {
            ClosedError::new_err(
                "the link of the loan was closed; wait for loans before you close their link",
            )
        })?;
        wait(python, || loan.wait(timeout))?;
        self.state.is_returned();
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = if self.state.is_returned() { "returned" } else { "with the peer" };
        format!("<umf.link.Loan of {} bytes, {state}>", self.state.handle.requested())
    }
}

/// Memory of the peer that was handed over. It has the buffer protocol.
///
/// The memory is returned when the object and all of its buffers are gone, or `close()` was called
/// and all of its buffers are gone. It stays valid if the peer ends.
#[pyclass(module = "umf.link", frozen, weakref)]
pub(crate) struct View {
    memory: Buffers<umf::link::View>,
    tag: u64,
    size: usize,
}

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.size
    }

    /// The tag of the message.
    #[getter]
    fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the memory, once no buffer of it is in use. Does nothing the second time.
    fn close(&self, python: Python<'_>) {
        python.detach(|| self.memory.close());
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.memory.is_closed()
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        python: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(python);
    }

    /// # Safety
    /// Python passes a view that is valid for a write.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let range = |memory: &umf::link::View| {
            let slice = memory.slice().map_err(|error| from_umf(error.into()))?;
            let start = slice.as_mut_ptr().expose_provenance();
            Ok(Range { start, length: slice.len(), is_read_only: false })
        };
        // SAFETY: Python's view; the memory is mapped while the view of the link exists.
        unsafe { this.get().memory.fill_buffer(this.as_any(), view, flags, range) }
    }

    /// Does nothing: see `Block`.
    ///
    /// # Safety
    /// None.
    #[expect(clippy::unused_self, reason = "a slot of the buffer protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}

    fn __repr__(&self) -> String {
        let state = if self.memory.is_closed() { ", closed" } else { "" };
        format!("<umf.link.View of {} bytes{state}>", self.size)
    }
}
