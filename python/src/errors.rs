//! Exceptions. Each kind of failure has a class of its own below `umf.Error`; the text is that of
//! the Rust error, with its remedy.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyMemoryError, PyPermissionError, PyValueError};
use pyo3::prelude::*;
use umf::ipc::Error as IpcError;

create_exception!(umf, Error, PyException, "An error of umf.");
create_exception!(umf, StaleError, Error, "The memory of the handle was freed.");
create_exception!(umf, TicketClaimedError, StaleError, "The message was opened as often as its sender said.");
create_exception!(
    umf,
    TicketExpiredError,
    StaleError,
    "The sender has cancelled the message or given it up."
);
create_exception!(umf, ProducerGoneError, StaleError, "The process that made the handle has ended.");
create_exception!(umf, HandleError, Error, "The bytes are not a handle.");
create_exception!(umf, LimitError, Error, "A limit is reached.");
create_exception!(umf, TransitFullError, LimitError, "Too much memory is in transit.");
create_exception!(umf, SettingsError, Error, "umf.toml or a variable is wrong.");
create_exception!(umf, ForkError, Error, "The object belongs to the parent process.");
create_exception!(umf, ClosedError, Error, "The object was closed or freed.");

/// Adds the exceptions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let python = module.py();
    // Callers that know only the standard classes catch these as well.
    let both = |name: &str, standard: Bound<'_, pyo3::types::PyType>, text: &str| {
        let bases = (python.get_type::<Error>(), standard);
        let members = pyo3::types::PyDict::new(python);
        members.set_item("__module__", "umf")?;
        members.set_item("__doc__", text)?;
        let class = python.get_type::<pyo3::types::PyType>().call1((name, bases, members))?;
        module.add(name, class)
    };
    both("PermissionError", python.get_type::<PyPermissionError>(), "This process may not open the memory.")?;
    both("OutOfMemoryError", python.get_type::<PyMemoryError>(), "There is no memory.")?;
    module.add("Error", python.get_type::<Error>())?;
    module.add("StaleError", python.get_type::<StaleError>())?;
    module.add("TicketClaimedError", python.get_type::<TicketClaimedError>())?;
    module.add("TicketExpiredError", python.get_type::<TicketExpiredError>())?;
    module.add("TransitFullError", python.get_type::<TransitFullError>())?;
    module.add("ProducerGoneError", python.get_type::<ProducerGoneError>())?;
    module.add("HandleError", python.get_type::<HandleError>())?;
    module.add("LimitError", python.get_type::<LimitError>())?;
    module.add("SettingsError", python.get_type::<SettingsError>())?;
    module.add("ForkError", python.get_type::<ForkError>())?;
    module.add("ClosedError", python.get_type::<ClosedError>())
}

/// Returns an exception of a class of the module, by its name.
fn named(name: &str, text: String) -> PyErr {
    Python::attach(|python| {
        let class = python.import("umf._umf").and_then(|module| module.getattr(name));
        match class.and_then(|class| class.call1((text.clone(),))) {
            Ok(value) => PyErr::from_value(value),
            Err(_) => Error::new_err(text),
        }
    })
}

/// Returns the exception for an error of umf.
pub(crate) fn from_umf(error: umf::Error) -> PyErr {
    let text = error.to_string();
    match &error {
        umf::Error::Ipc(ipc) => from_ipc(ipc, text),
        umf::Error::Memory(umf::MemoryError::OutOfMemory { .. }) => named("OutOfMemoryError", text),
        umf::Error::Memory(umf::MemoryError::HeldLimit { .. }) => LimitError::new_err(text),
        umf::Error::Memory(umf::MemoryError::Frozen { .. }) => ForkError::new_err(text),
        umf::Error::Settings(_) => SettingsError::new_err(text),
        _ => Error::new_err(text),
    }
}

fn from_ipc(error: &IpcError, text: String) -> PyErr {
    match error {
        IpcError::Decode(_) => HandleError::new_err(text),
        IpcError::Stale { .. } => StaleError::new_err(text),
        IpcError::TicketExpired { .. } => TicketExpiredError::new_err(text),
        IpcError::TransitFull { .. } => TransitFullError::new_err(text),
        IpcError::TicketClaimed { .. } => TicketClaimedError::new_err(text),
        IpcError::ProducerGone { .. } | IpcError::ProducerReplaced { .. } => ProducerGoneError::new_err(text),
        IpcError::NotPermitted { .. } => named("PermissionError", text),
        IpcError::LimitReached { .. } | IpcError::NoLeaseRow { .. } => LimitError::new_err(text),
        _ => Error::new_err(text),
    }
}

/// Returns the exception for an argument that cannot be right.
pub(crate) fn argument(text: &'static str) -> PyErr {
    PyValueError::new_err(text)
}
