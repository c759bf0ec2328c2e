//! `umf.domain`: regions that belong to a named set of processes and outlive their creator. The
//! package adds names of objects (`umf/domain.py`).

use std::ffi::c_int;
use std::time::Duration;

use pyo3::create_exception;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use umf::domain::{Domain as Inner, Error as DomainFailure, ObjectId, domain_settings};

use crate::errors::{Error, ForkError, argument, from_umf};

create_exception!(umf, DomainError, Error, "A call on a domain failed.");

fn failure(error: DomainFailure) -> PyErr {
    match error {
        DomainFailure::Forked => ForkError::new_err(error.to_string()),
        _ => DomainError::new_err(error.to_string()),
    }
}

/// A participant of a domain. A process that joins a domain twice is the same participant.
#[pyclass(module = "umf", name = "Domain", frozen, weakref)]
pub(crate) struct Domain(Inner);

#[pymethods]
impl Domain {
    /// Joins the domain with this name, or founds it. A call waits at most `timeout` seconds for
    /// other processes.
    #[new]
    #[pyo3(signature = (name, *, timeout = 2.0))]
    fn new(python: Python<'_>, name: &str, timeout: f64) -> PyResult<Self> {
        let mut settings = domain_settings().map_err(from_umf)?;
        if !(0.0..=1e9).contains(&timeout) {
            return Err(argument("cannot join a domain with this timeout; pass 0 to 1e9 seconds"));
        }
        settings.timeout = Duration::from_secs_f64(timeout);
        python.detach(|| Inner::join(name, settings)).map(Self).map_err(failure)
    }

    /// The name of the domain.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Creates a zeroed object of `size` bytes, rounded up to pages.
    #[pyo3(signature = (size, kind = 0))]
    fn create(&self, python: Python<'_>, size: usize, kind: u32) -> PyResult<DomainObject> {
        python.detach(|| self.0.create(size, kind)).map(DomainObject).map_err(failure)
    }

    /// Returns the object of this kind, or creates it. Processes that call it at the same time get
    /// the same object. An object that exists keeps its size.
    fn find_or_create(&self, python: Python<'_>, size: usize, kind: u32) -> PyResult<DomainObject> {
        python.detach(|| self.0.find_or_create(size, kind)).map(DomainObject).map_err(failure)
    }

    /// Opens the object with this id. This process then keeps it, too.
    #[pyo3(signature = (id, kind = 0))]
    fn register(&self, python: Python<'_>, id: u64, kind: u32) -> PyResult<DomainObject> {
        python.detach(|| self.0.register(ObjectId::from(id), kind)).map(DomainObject).map_err(failure)
    }

    /// Returns id, kind, size and number of processes of all objects.
    fn objects(&self, python: Python<'_>) -> PyResult<Vec<(u64, u32, u64, u32)>> {
        let found = python.detach(|| self.0.objects()).map_err(failure)?;
        Ok(found.iter().map(|info| (info.id.into(), info.kind, info.size, info.registrants)).collect())
    }

    fn __repr__(&self) -> String {
        format!("<umf.domain.Domain {:?}>", self.0.name())
    }
}

/// Memory of a domain. It has the buffer protocol: `memoryview(it)`, `numpy.frombuffer(it)`.
///
/// The object exists as long as a process of the domain has it. The memory stays mapped in this
/// process until the Python object and all of its buffers are gone.
#[pyclass(module = "umf", name = "DomainObject", frozen, weakref)]
pub(crate) struct DomainObject(umf::domain::Object);

#[pymethods]
impl DomainObject {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The id by which other processes of the domain open the object.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id().into()
    }

    /// The kind that its creator chose.
    #[getter]
    fn kind(&self) -> u32 {
        self.0.kind()
    }

    /// Whether this process keeps the object: `False` after `unregister`, and in a forked child.
    #[getter]
    fn is_registered(&self) -> bool {
        self.0.is_registered()
    }

    /// Ends the registration of this process. The memory stays readable here; once no process is
    /// registered, no process can open the object any more.
    fn unregister(&self, python: Python<'_>) -> PyResult<()> {
        let object = self.0.clone();
        python.detach(|| object.unregister()).map_err(failure)
    }

    /// # Safety
    /// Python passes a view that is valid for a write.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("a buffer request without a view"));
        }
        let memory = this.get().0.view::<u8>().map_err(|error| failure(error.into()))?;
        let length = ffi::Py_ssize_t::try_from(memory.len())
            .map_err(|_| Error::new_err("the memory is larger than a buffer can be"))?;
        let start = memory.as_mut_ptr().cast();
        // SAFETY: the view is valid. The memory stays mapped while the Python object exists, which
        // the buffer keeps.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, length, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }

    fn __repr__(&self) -> String {
        format!("<umf.domain object {} of {} bytes>", self.0.id(), self.0.len())
    }
}

/// Adds the classes to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("DomainError", module.py().get_type::<DomainError>())?;
    module.add_class::<Domain>()?;
    module.add_class::<DomainObject>()
}
