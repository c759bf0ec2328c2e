//! `umf.Handle`, `umf.Mapping` and `umf.open`.

use std::ffi::c_int;
use std::num::NonZeroU16;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::device::no_buffer;
use crate::errors::from_umf;
use crate::memory::{Memory, Range, Registered};

/// The name of a block in every process of the machine: 256 plain bytes.
#[pyclass(module = "umf", frozen, eq, hash, skip_from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) umf::Handle);

fn decode(source: &Bound<'_, PyAny>) -> PyResult<umf::Handle> {
    if let Ok(handle) = source.cast::<Handle>() {
        return Ok(handle.get().0);
    }
    let decoded = if let Ok(text) = source.extract::<&str>() {
        text.parse()
    } else {
        umf::Handle::from_bytes(source.extract::<&[u8]>()?)
    };
    decoded.map_err(|error| from_umf(umf::ipc::Error::from(error).into()))
}

#[pymethods]
impl Handle {
    /// Decodes the 256 bytes or the text of a handle.
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(decode(source)?))
    }

    /// The process id of the producer.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// The size of the block in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.0.requested()
    }

    /// Whether the handle is for a message: see `Block.send_handle`.
    #[getter]
    fn has_ticket(&self) -> bool {
        self.0.has_ticket()
    }

    fn __bytes__<'py>(&self, python: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(python, self.0.as_bytes())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let sent = if self.0.has_ticket() { ", sent" } else { "" };
        format!("<umf.Handle of {} bytes of process {}{sent}>", self.0.requested(), self.0.pid())
    }

    /// Pickles the bytes.
    fn __reduce__<'py>(&self, python: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (python.get_type::<Self>(), (self.__bytes__(python),))
    }
}

/// Memory of another process, open in this one. It has the buffer protocol.
///
/// The memory is not reused before the object and all of its buffers are gone, or `close()` was called
/// and all of its buffers are gone.
#[pyclass(module = "umf", frozen, weakref)]
pub(crate) struct Mapping {
    pub(crate) memory: Memory<umf::Mapping<'static>>,
    pub(crate) handle: umf::Handle,
    size: usize,
    registered: Registered,
}

#[pymethods]
impl Mapping {
    fn __len__(&self) -> usize {
        self.size
    }

    /// The address of the first byte in this process.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        self.memory.with(|mapping| Ok(mapping.address().value()))
    }

    /// The handle that it was opened with.
    #[getter]
    fn handle(&self) -> Handle {
        Handle(self.handle)
    }

    /// Whether writing is refused.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        self.memory.with(|mapping| Ok(mapping.is_read_only()))
    }

    /// Whether the producer has not freed the block since.
    #[getter]
    fn is_current(&self) -> PyResult<bool> {
        self.memory.with(|mapping| Ok(mapping.is_current()))
    }

    /// Passes the memory on: returns a handle for a message that `readers` processes open.
    #[pyo3(signature = (readers = NonZeroU16::MIN))]
    fn send_handle(&self, python: Python<'_>, readers: NonZeroU16) -> PyResult<Handle> {
        python.detach(|| {
            self.memory.with(|mapping| {
                let sent = mapping.send_handle(&self.handle, readers);
                Ok(Handle(sent.map_err(|error| from_umf(error.into()))?))
            })
        })
    }

    /// Closes the mapping, once no buffer of it is in use. Does nothing the second time.
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
        let range = |mapping: &umf::Mapping<'static>| {
            let view = mapping.read_view::<u8>().map_err(|error| no_buffer(error.into()))?;
            let start = view.as_ptr().cast_mut().cast();
            Ok(Range { start, length: view.len(), is_read_only: mapping.is_read_only() })
        };
        // SAFETY: Python's view; the memory is mapped while the mapping exists.
        unsafe { this.get().memory.fill_buffer(this.as_any(), view, flags, range) }
    }

    /// # Safety
    /// Called once for each buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.memory.release_buffer();
    }

    fn __repr__(&self) -> String {
        let state = if self.memory.is_closed() { ", closed" } else { "" };
        format!("<umf.Mapping of {} bytes of process {}{state}>", self.size, self.handle.pid())
    }
}

/// Opens a handle: a `Handle`, its 256 bytes, or its text.
#[pyfunction]
#[pyo3(signature = (handle, *, readonly = false))]
pub(crate) fn open<'py>(
    python: Python<'py>,
    handle: &Bound<'py, PyAny>,
    readonly: bool,
) -> PyResult<Bound<'py, Mapping>> {
    let handle = decode(handle)?;
    let opened = python.detach(|| if readonly { umf::open_read_only(&handle) } else { umf::open(&handle) });
    let mapping = opened.map_err(from_umf)?;
    let size = mapping.len();
    let registered = Registered::new(mapping.address().value());
    let mapping = Bound::new(python, Mapping { memory: Memory::new(mapping), handle, size, registered })?;
    mapping.get().registered.register(mapping.as_any(), size)?;
    Ok(mapping)
}

/// Cancels a handle that this process has sent and that no process will open. Returns whether a reader
/// could have opened it.
#[pyfunction]
pub(crate) fn cancel(python: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<bool> {
    let handle = decode(handle)?;
    python.detach(|| umf::cancel_handle(&handle)).map_err(from_umf)
}

/// Returns the number of handles that this process has sent and that not all readers have opened.
#[pyfunction]
pub(crate) fn in_transit(python: Python<'_>) -> PyResult<usize> {
    python.detach(umf::handles_in_transit).map_err(from_umf)
}
