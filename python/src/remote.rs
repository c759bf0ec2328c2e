//! `umf.RemoteHandle`, `umf.serve` and `umf.fetch`: memory of other machines.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use umf::remote::{PendingRead, Remote};
use umf_sync::Lock;

use crate::call::contiguous;
use crate::errors::{ClosedError, ForkError, argument, from_umf};
use crate::handle::{CHECKED_COPY, Handle, decode};

/// The name of a block in the processes of all machines that reach its producer: a `Handle`, and
/// the address at which the producer serves (`umf.serve`).
#[pyclass(module = "umf", frozen, eq, hash, skip_from_py_object)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RemoteHandle(umf::remote::RemoteHandle);

impl Hash for RemoteHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.handle().hash(state);
    }
}

fn from_route(error: umf::remote::RouteError) -> PyErr {
    from_umf(umf::remote::Error::from(error).into())
}

#[pymethods]
impl RemoteHandle {
    /// Decodes the bytes or the text of a remote handle.
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(handle) = source.cast::<Self>() {
            return Ok(handle.get().clone());
        }
        let decoded = if let Ok(text) = source.extract::<&str>() {
            text.parse()
        } else {
            umf::remote::RemoteHandle::from_bytes(source.extract::<&[u8]>()?)
        };
        decoded.map(Self).map_err(from_route)
    }

    /// The handle of the block, for processes of the producer's machine.
    #[getter]
    fn handle(&self) -> Handle {
        Handle(*self.0.handle())
    }

    /// The size of the block in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.0.handle().requested()
    }

    /// The process id of the producer on its machine.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.handle().pid()
    }

    /// The address at which the producer serves.
    #[getter]
    fn address(&self) -> String {
        self.0.address()
    }

    /// The provider of libfabric that reaches the producer.
    #[getter]
    fn provider(&self) -> &str {
        self.0.provider()
    }

    /// Whether the block is of this machine: `umf.open` then maps it, and otherwise copies it.
    /// `False` if the setting `remote.local` is false.
    #[getter]
    fn is_local(&self) -> PyResult<bool> {
        is_local(&self.0)
    }

    fn __bytes__<'py>(&self, python: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(python, &self.0.to_bytes())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let handle = self.0.handle();
        let (size, pid) = (handle.requested(), handle.pid());
        format!("<umf.RemoteHandle of {size} bytes of process {pid} at {}>", self.0.address())
    }

    /// Pickles the bytes.
    fn __reduce__<'py>(&self, python: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (python.get_type::<Self>(), (self.__bytes__(python),))
    }
}

fn is_local(handle: &umf::remote::RemoteHandle) -> PyResult<bool> {
    let settings = umf::remote::remote_settings().map_err(from_umf)?;
    Ok(settings.local && handle.handle().is_of_this_boot())
}

/// Makes a handle of this process's memory one for other machines.
pub(crate) fn remote_handle(block: &umf::OwnedBlock) -> PyResult<RemoteHandle> {
    block.remote_handle().map(RemoteHandle).map_err(from_umf)
}

/// A block that a handle names.
pub(crate) enum Named {
    /// The handle opens here: the memory can be mapped.
    Here(umf::Handle),
    There(umf::remote::RemoteHandle),
}

impl Named {
    /// Decodes a `Handle` or `RemoteHandle`, its bytes, or its text.
    pub(crate) fn decode(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        let is_remote = if source.is_instance_of::<Handle>() {
            false
        } else if let Ok(text) = source.extract::<&str>() {
            text.trim_start().starts_with("umfr")
        } else {
            source.extract::<&[u8]>().map_or(true, |bytes| bytes.len() > umf::ipc::HANDLE_SIZE)
        };
        if !is_remote {
            return decode(source).map(Self::Here);
        }
        let RemoteHandle(handle) = RemoteHandle::new(source)?;
        Ok(if is_local(&handle)? { Self::Here(*handle.handle()) } else { Self::There(handle) })
    }

    /// Returns the handle, which only processes of the producer's machine can open.
    pub(crate) const fn handle(&self) -> &umf::Handle {
        match self {
            Self::Here(handle) => handle,
            Self::There(handle) => handle.handle(),
        }
    }
}

/// Opens a block of another machine. Makes no connection.
pub(crate) fn open(handle: &umf::remote::RemoteHandle) -> umf::Result<Remote> {
    Ok(umf::remote::importer()?.open(handle)?)
}

/// Keeps the server of this process running: other machines read its memory.
///
/// The server stops when the last of these objects is closed or gone. A forked child has no server
/// until it calls `umf.serve`.
#[pyclass(module = "umf", frozen)]
pub(crate) struct Serving {
    /// `None` once it was closed.
    guard: Lock<Option<umf::remote::Serving>>,
    generation: u32,
}

impl Serving {
    fn get(&self) -> PyResult<umf::remote::Serving> {
        if self.generation != umf_sync::fork::generation() {
            return Err(ForkError::new_err(
                "the server belongs to the parent process, from which this process was forked; call umf.serve() here",
            ));
        }
        let guard = self.guard.lock().clone();
        guard.ok_or_else(|| ClosedError::new_err("the object was closed; call umf.serve() again"))
    }
}

#[pymethods]
impl Serving {
    /// The address at which the server listens, and the provider of libfabric.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.get()?.address())
    }

    /// Returns what the server has done, and has now: connected importers, registered blocks, grants
    /// in force, requests, bytes that messages have carried, bytes that were written, and importers
    /// that were lost.
    fn stats<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.get()?.statistics();
        let figures = PyDict::new(python);
        for (name, value) in [
            ("importers", found.importers),
            ("registered", found.registered),
            ("grants", found.grants),
            ("requests", found.requests),
            ("bytes_by_messages", found.bytes_by_messages),
            ("bytes_written", found.bytes_written),
            ("lost", found.lost),
        ] {
            figures.set_item(name, value)?;
        }
        Ok(figures)
    }

    /// Stops the server, unless another object of this process keeps it running. Does nothing the
    /// second time.
    fn close(&self, python: Python<'_>) {
        let guard = self.guard.lock().take();
        python.detach(|| drop(guard));
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.guard.lock().is_none()
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

    fn __repr__(&self) -> String {
        match self.get() {
            Ok(guard) => format!("<umf.Serving at {}>", guard.address()),
            Err(_) => "<umf.Serving, closed>".to_owned(),
        }
    }
}

/// Makes the memory of this process readable from other machines, as long as the result exists and
/// is not closed. All calls share one server and its thread.
#[pyfunction]
pub(crate) fn serve(python: Python<'_>) -> PyResult<Serving> {
    let guard = python.detach(umf::remote::serve).map_err(from_umf)?;
    Ok(Serving { guard: Lock::new(Some(guard)), generation: umf_sync::fork::generation() })
}

/// An open block whose bytes are copied.
enum Source {
    Here(umf::Mapping<'static>),
    There(Box<Remote>),
}

/// The longest time in which signals are not handled, except while a connection is made.
const SLICE: Duration = Duration::from_millis(20);
/// Bytes of a part of a copy on this machine.
const LOCAL_PART: usize = 8 << 20;
/// Bytes of a part of a read over the fabric, and how many are in flight together.
const REMOTE_PART: usize = 1 << 20;
const IN_FLIGHT: usize = 16;

/// A copy of a range, in parts.
struct Copy<'c> {
    offset: usize,
    rest: &'c mut [u8],
    pending: VecDeque<(PendingRead<'c>, &'c mut [u8])>,
}

impl<'c> Copy<'c> {
    fn next_part(&mut self, most: usize) -> Option<(usize, &'c mut [u8])> {
        let rest = std::mem::take(&mut self.rest);
        let (part, rest) = rest.split_at_mut(most.min(rest.len()));
        self.rest = rest;
        let offset = self.offset;
        self.offset += part.len();
        (!part.is_empty()).then_some((offset, part))
    }

    /// Copies for a while. Returns whether all parts are copied.
    fn advance(&mut self, source: &'c Source) -> umf::Result<bool> {
        let end = Instant::now() + SLICE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            match source {
                Source::Here(mapping) => {
                    let Some((offset, part)) = self.next_part(LOCAL_PART) else { return Ok(true) };
                    mapping.read_current(offset, part)?;
                }
                Source::There(remote) => {
                    while self.pending.len() < IN_FLIGHT
                        && let Some((offset, part)) = self.next_part(REMOTE_PART)
                    {
                        self.pending.push_back((remote.start_read(offset, part.len())?, part));
                    }
                    let Some((read, _)) = self.pending.front_mut() else { return Ok(true) };
                    let Some(data) = read.wait_for(left)? else { return Ok(false) };
                    if let Some((_, part)) = self.pending.pop_front() {
                        part.copy_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// Copies bytes of a block without the interpreter's lock. Signals are handled meanwhile. After an
/// error the contents of `into` are unspecified.
fn copy(python: Python<'_>, source: &Source, offset: usize, into: &mut [u8]) -> PyResult<()> {
    let mut copy = Copy { offset, rest: into, pending: VecDeque::new() };
    loop {
        let advanced = python.detach(|| copy.advance(source));
        // Also after an error, which Ctrl-C may have waited for.
        python.check_signals()?;
        if advanced.map_err(from_umf)? {
            return Ok(());
        }
    }
}

/// Copies a whole block of another machine.
pub(crate) fn copy_all(python: Python<'_>, remote: Remote, into: &mut [u8]) -> PyResult<()> {
    copy(python, &Source::There(Box::new(remote)), 0, into)
}

/// Copies bytes of a block of this or another machine: to a new `bytes`, or to the buffer `out`,
/// which is returned. `size` is by default the length of `out`, or the rest of the block.
///
/// Bytes are returned only if the block was not freed before all of them had arrived. After an error
/// the contents of `out` are unspecified.
#[pyfunction]
#[pyo3(signature = (handle, *, out = None, offset = 0, size = None))]
pub(crate) fn fetch<'py>(
    python: Python<'py>,
    handle: &Bound<'py, PyAny>,
    out: Option<Bound<'py, PyAny>>,
    offset: usize,
    size: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let named = Named::decode(handle)?;
    let total = usize::try_from(named.handle().requested()).unwrap_or(usize::MAX);
    let buffer = out.as_ref().map(|out| contiguous(out, true)).transpose()?;
    let given = buffer.as_ref().map(pyo3::buffer::PyUntypedBuffer::len_bytes);
    if given.is_some() && size.is_some() && size != given {
        return Err(argument("size is the length of the buffer, if both are given"));
    }
    let rest = total.checked_sub(offset);
    let length = given.or(size).or(rest).filter(|length| rest.is_some_and(|rest| *length <= rest));
    let length = length.ok_or_else(|| {
        let length = given.or(size).map_or_else(|| "bytes".to_owned(), |length| format!("{length} bytes"));
        PyValueError::new_err(format!(
            "cannot copy {length} from offset {offset}: that is past the end of memory of {total} bytes"
        ))
    })?;
    if buffer.is_none() && length >= CHECKED_COPY {
        let checked = umf_os::AvailableMemory::find().check(length, "a copy");
        checked.map_err(|error| from_umf(error.into()))?;
    }
    let source = python.detach(|| match &named {
        Named::Here(handle) => umf::open_read_only(handle).map(Source::Here),
        Named::There(handle) => open(handle).map(|remote| Source::There(Box::new(remote))),
    });
    let source = source.map_err(from_umf)?;
    let (Some(out), Some(buffer)) = (out, buffer) else {
        return Ok(PyBytes::new_with(python, length, |to| copy(python, &source, offset, to))?.into_any());
    };
    if length > 0 {
        // SAFETY: a writable buffer of that length, which `buffer` keeps. Python code that accesses
        // it meanwhile gets old or new bytes.
        let to = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast(), length) };
        copy(python, &source, offset, to)?;
    }
    Ok(out)
}
