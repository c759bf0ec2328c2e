//! Exceptions. Each kind of failure has a class of its own below `umf.Error`; the text is that of
//! the Rust error, with its remedy.

use pyo3::create_exception;
use pyo3::exceptions::{
    PyConnectionError, PyException, PyKeyboardInterrupt, PyMemoryError, PyPermissionError, PyTimeoutError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use umf::ipc::Error as IpcError;
use umf::link::Error as LinkFailure;
use umf::remote::Error as RemoteFailure;

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
create_exception!(umf, NotSupportedError, Error, "The driver, the device or the memory cannot do that.");
create_exception!(umf, DeviceError, Error, "A device driver failed.");
create_exception!(umf, LinkError, Error, "A message could not be sent or received.");
create_exception!(umf, TruncatedError, LinkError, "A message is longer than the memory for it. It stays.");

create_exception!(umf, RemoteError, Error, "Memory of another machine cannot be read, or not be served.");

/// Adds a class of exceptions with several bases.
fn add_class<'py>(
    module: &Bound<'py, PyModule>,
    name: &str,
    bases: Bound<'py, PyTuple>,
    text: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let members = PyDict::new(module.py());
    members.set_item("__module__", "umf")?;
    members.set_item("__doc__", text)?;
    let class = module.py().get_type::<PyType>().call1((name, bases, members))?;
    module.add(name, &class)?;
    Ok(class)
}

/// Adds the exceptions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let python = module.py();
    // Callers that know only the standard classes catch these as well.
    let both = |name: &str, standard: Bound<'_, PyType>, text: &str| {
        add_class(module, name, (python.get_type::<Error>(), standard).into_pyobject(python)?, text).map(drop)
    };
    both("PermissionError", python.get_type::<PyPermissionError>(), "This process may not open the memory.")?;
    both("OutOfMemoryError", python.get_type::<PyMemoryError>(), "There is no memory.")?;
    both("TimeoutError", python.get_type::<PyTimeoutError>(), "A call reached its timeout.")?;
    let connection = (python.get_type::<LinkError>(), python.get_type::<PyConnectionError>());
    let gone = add_class(module, "PeerGoneError", connection.into_pyobject(python)?, "The peer has ended.")?;
    add_class(module, "PeerClosedError", (gone,).into_pyobject(python)?, "The peer has closed the link.")?;
    let lost = (python.get_type::<RemoteError>(), python.get_type::<PyConnectionError>());
    let text = "The producer on another machine has ended, or cannot be reached.";
    add_class(module, "ProducerLostError", lost.into_pyobject(python)?, text)?;
    module.add("RemoteError", python.get_type::<RemoteError>())?;
    module.add("NotSupportedError", python.get_type::<NotSupportedError>())?;
    module.add("DeviceError", python.get_type::<DeviceError>())?;
    module.add("LinkError", python.get_type::<LinkError>())?;
    module.add("TruncatedError", python.get_type::<TruncatedError>())?;
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
        umf::Error::Memory(
            umf::MemoryError::HeldLimit { .. }
            | umf::MemoryError::LimitReached { .. }
            | umf::MemoryError::TooMany { .. },
        ) => LimitError::new_err(text),
        umf::Error::Memory(umf::MemoryError::Frozen { .. }) => ForkError::new_err(text),
        umf::Error::Memory(umf::MemoryError::NotSupported { .. }) => NotSupportedError::new_err(text),
        umf::Error::Memory(umf::MemoryError::Driver { .. }) => DeviceError::new_err(text),
        umf::Error::Settings(_) => SettingsError::new_err(text),
        umf::Error::Link(link) => from_link(link, text),
        umf::Error::Remote(remote) => from_remote(remote, text),
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
        IpcError::Memory(error) => from_umf(umf::Error::Memory(*error)),
        IpcError::LimitReached { .. } | IpcError::NoLeaseRow { .. } => LimitError::new_err(text),
        _ => Error::new_err(text),
    }
}

fn from_link(error: &LinkFailure, text: String) -> PyErr {
    match error {
        LinkFailure::TimedOut { .. } | LinkFailure::RankAbsent { .. } => named("TimeoutError", text),
        LinkFailure::PeerGone { .. } => named("PeerGoneError", text),
        LinkFailure::Closed { .. } => named("PeerClosedError", text),
        LinkFailure::Forked => ForkError::new_err(text),
        LinkFailure::Truncated { .. } => TruncatedError::new_err(text),
        LinkFailure::Open { error, .. } => from_ipc(error, text),
        LinkFailure::Interrupted => PyKeyboardInterrupt::new_err(()),
        _ => LinkError::new_err(text),
    }
}

fn from_remote(error: &RemoteFailure, text: String) -> PyErr {
    match error {
        RemoteFailure::Route(_) => HandleError::new_err(text),
        RemoteFailure::Ipc(error) => from_ipc(error, text),
        RemoteFailure::Stale { .. } => StaleError::new_err(text),
        RemoteFailure::ProducerReplaced { .. } => ProducerGoneError::new_err(text),
        RemoteFailure::ProducerLost { .. } => named("ProducerLostError", text),
        RemoteFailure::TimedOut { .. } => named("TimeoutError", text),
        RemoteFailure::NoLibrary(_) | RemoteFailure::NoProvider { .. } => NotSupportedError::new_err(text),
        RemoteFailure::Forked => ForkError::new_err(text),
        _ => RemoteError::new_err(text),
    }
}

/// Returns the exception for an argument that cannot be right.
pub(crate) fn argument(text: &'static str) -> PyErr {
    PyValueError::new_err(text)
}
