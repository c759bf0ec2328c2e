//! What calls of links and ranks share: waits that signals interrupt, objects that one thread uses at a
//! time, and the memory of messages.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use umf::OwnedBlock;
use umf::link::{Destination, Error as LinkFailure, LinkBuilder, Memory, Source, TagMatch};

use crate::errors::{ClosedError, ForkError, LinkError, from_umf};
use crate::memory::{Keeper, find};
use crate::pool::Block;
use crate::transit;

pub(crate) type Outcome<R> = Result<R, LinkFailure>;

/// The shortest time between two checks for signals: a check takes the interpreter's lock.
const BETWEEN_CHECKS: Duration = Duration::from_millis(20);

/// A call of this thread that waits.
struct Call {
    checked: Instant,
    /// The exception that a signal handler has raised.
    raised: Option<PyErr>,
}

thread_local! {
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// Runs the handlers of signals that have arrived. Returns whether one has raised an exception.
///
/// Waits call it. Only the main thread runs handlers; its id is that of the process.
fn interrupt() -> bool {
    // SAFETY: these two take no arguments.
    if unsafe { libc::getpid() != libc::gettid() } {
        return false;
    }
    let is_due = CALL.with_borrow_mut(|call| match call {
        Some(call) if call.checked.elapsed() >= BETWEEN_CHECKS => {
            call.checked = Instant::now();
            true
        }
        _ => false,
    });
    if !is_due {
        return false;
    }
    // A handler may make other calls.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method has one lifetime only")]
    let Some(Err(raised)) = Python::try_attach(|python| python.check_signals()) else { return false };
    CALL.with_borrow_mut(|call| call.as_mut().map(|call| call.raised = Some(raised)).is_some())
}

/// Runs a call that may wait, without the interpreter's lock.
pub(crate) fn wait<R: Send>(python: Python<'_>, run: impl FnOnce() -> Outcome<R> + Send) -> PyResult<R> {
    let outer = CALL.replace(Some(Call { checked: Instant::now(), raised: None }));
    let outcome = python.detach(run);
    let call = CALL.replace(outer);
    match (outcome, call.and_then(|call| call.raised)) {
        (Ok(done), Some(raised)) => {
            raise_later(raised);
            Ok(done)
        }
        (Err(_), Some(raised)) => Err(raised),
        (outcome, None) => outcome.map_err(|error| from_umf(error.into())),
    }
}

/// Raises an exception in the main thread once it runs Python code again: the result of the call
/// that it could not end is not lost.
fn raise_later(raised: PyErr) {
    extern "C" fn raise(raised: *mut c_void) -> c_int {
        // SAFETY: Python passes the argument of `Py_AddPendingCall` once: the box below.
        let raised = unsafe { Box::from_raw(raised.cast::<PyErr>()) };
        Python::attach(|python| raised.restore(python));
        -1
    }
    let raised = Box::into_raw(Box::new(raised)).cast::<c_void>();
    // SAFETY: the function takes this argument.
    if unsafe { ffi::Py_AddPendingCall(Some(raise), raised) } != 0 {
        // SAFETY: the box was not passed on.
        drop(unsafe { Box::from_raw(raised.cast::<PyErr>()) });
    }
}

/// Returns a builder of links whose calls signals interrupt.
pub(crate) fn builder() -> umf::Result<LinkBuilder> {
    let mut settings = umf::link::link_settings()?;
    settings.interrupt = Some(interrupt);
    Ok(LinkBuilder::new().settings(settings).importer(umf::importer()?))
}

/// Converts a timeout in seconds. Without one, or with infinity, a call waits for ever.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let known = seconds.filter(|&seconds| seconds != f64::INFINITY);
    known.map(transit::duration).transpose()
}

/// Something that one thread uses at a time, in the process that made it.
pub(crate) struct Exclusive<T> {
    /// `None` once it was closed.
    value: Mutex<Option<T>>,
    pid: u32,
    what: &'static str,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T, what: &'static str) -> Self {
        Self { value: Mutex::new(Some(value)), pid: std::process::id(), what }
    }

    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(ForkError::new_err(format!(
            "the {} belongs to process {}, and this process was forked from it; make one here",
            self.what, self.pid
        )))
    }

    /// Locks it, if no other thread uses it.
    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        self.check_process()?;
        match self.value.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(LinkError::new_err(format!(
                "cannot use the {0}: another call uses it; one thread uses a {0} at a time, so make a {0} for each",
                self.what
            ))),
        }
    }

    /// Calls `run` with it.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut T) -> PyResult<R>) -> PyResult<R> {
        let mut guard = self.lock()?;
        let closed = || ClosedError::new_err(format!("the {0} was closed; make a new {0}", self.what));
        run(guard.as_mut().ok_or_else(closed)?)
    }

    /// Returns whether it was closed; `false` while a call uses it.
    pub(crate) fn is_closed(&self) -> bool {
        self.value.try_lock().is_ok_and(|value| value.is_none())
    }
}

// Memory of messages.

/// Returns a buffer of one piece.
pub(crate) fn contiguous(object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object).map_err(|error| {
        let has_no_dimension = object.getattr("ndim").and_then(|number| number.extract::<usize>());
        if !matches!(has_no_dimension, Ok(0)) {
            return error;
        }
        PyValueError::new_err("the array has no dimension; pass array.reshape(1), which has the same memory")
    })?;
    if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
        return Err(PyValueError::new_err(
            "the memory is not contiguous; pass a contiguous copy (numpy.ascontiguousarray), or a row of it",
        ));
    }
    if is_written && buffer.readonly() {
        return Err(PyBufferError::new_err("the memory is read-only; pass memory that can be written"));
    }
    Ok(buffer)
}

/// The memory of a message.
pub(crate) struct Part {
    address: usize,
    length: usize,
    /// The block that has the memory, and the offset in it: peers map it.
    block: Option<(Arc<Keeper<OwnedBlock>>, usize)>,
}

/// Messages up to this length are copied anyway.
const SHORT: usize = 4096;

impl Part {
    /// Returns the memory of a buffer, which the caller keeps until the call has ended.
    pub(crate) fn new(python: Python<'_>, buffer: &PyUntypedBuffer) -> Self {
        let (address, length) = (buffer.buf_ptr().addr(), buffer.len_bytes());
        let found = if length > SHORT { find(python, address as u64, length) } else { None };
        let block = match found {
            Some((owner, offset)) => match owner.bind(python).cast::<Block>() {
                // A block that was closed while a buffer uses it has no handle any more.
                Ok(block) => block.get().memory.share().ok().zip(usize::try_from(offset).ok()),
                Err(_) => None,
            },
            None => None,
        };
        Self { address, length, block }
    }

    fn of_bytes(bytes: &mut [u8]) -> Self {
        Self { address: bytes.as_mut_ptr().expose_provenance(), length: bytes.len(), block: None }
    }

    /// Returns the block as memory that peers can map, if it can be exported.
    pub(crate) fn memory(&self) -> Option<Memory<'_>> {
        self.block.as_ref().and_then(|(block, _)| block.link_memory().ok())
    }

    fn view(&self) -> umf::View<'_> {
        if self.length == 0 {
            return umf::View::empty();
        }
        let start = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: the caller of `new` keeps the buffer, whose bytes are only copied. For a
        // destination it has checked that the buffer is writable.
        unsafe { umf::View::new(start, self.length) }.unwrap_or_else(|_| umf::View::empty())
    }

    pub(crate) fn source<'d>(&'d self, memory: Option<&'d Memory<'_>>) -> Outcome<Source<'d>> {
        match (memory, &self.block) {
            (Some(memory), Some((_, offset))) => Ok(memory.part(*offset, self.length)?.into()),
            _ => Ok(self.view().into()),
        }
    }

    pub(crate) fn destination<'d>(&'d self, memory: Option<&'d Memory<'_>>) -> Outcome<Destination<'d>> {
        match (memory, &self.block) {
            (Some(memory), Some((_, offset))) => Ok(memory.part(*offset, self.length)?.into()),
            _ => Ok(self.view().into()),
        }
    }
}

/// Returns which messages a receive takes: those with a tag, or all.
pub(crate) fn wanted(tag: Option<u64>) -> TagMatch {
    tag.map_or(TagMatch::ANY, TagMatch::tag)
}

/// Receives a message of unknown length. `receive` receives into the memory, or fails with
/// `Truncated`.
pub(crate) fn receive_bytes(
    python: Python<'_>,
    mut receive: impl FnMut(&Part) -> PyResult<Result<usize, usize>>,
) -> PyResult<Bound<'_, PyBytes>> {
    let mut short = [0; SHORT];
    let mut needed = match receive(&Part::of_bytes(&mut short))? {
        Ok(length) => return Ok(PyBytes::new(python, &short[..length])),
        Err(needed) => needed,
    };
    loop {
        let mut outcome = Ok(0);
        let bytes = PyBytes::new_with(python, needed, |bytes| {
            outcome = receive(&Part::of_bytes(bytes))?;
            Ok(())
        })?;
        match outcome {
            Ok(length) if length == needed => return Ok(bytes),
            // The sender has withdrawn the message, and another one was received.
            Ok(length) => return Ok(PyBytes::new(python, &bytes.as_bytes()[..length])),
            Err(longer) => needed = longer,
        }
    }
}

/// Separates a message that is too long: returns its length.
pub(crate) fn or_length<R>(outcome: Outcome<R>) -> Outcome<Result<R, usize>> {
    match outcome {
        Err(LinkFailure::Truncated { length, .. }) => Ok(Err(length)),
        outcome => outcome.map(Ok),
    }
}

/// The time left of a call that receives in several steps.
pub(crate) struct Left {
    end: Option<Instant>,
    given: Option<f64>,
}

impl Left {
    pub(crate) fn new(given: Option<f64>) -> Self {
        let time = given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self { end: time.and_then(|time| Instant::now().checked_add(time)), given }
    }

    /// Returns the seconds left, or what was given if that is no time.
    pub(crate) fn seconds(&mut self) -> Option<f64> {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()).as_secs_f64());
        left.or(self.given)
    }
}
