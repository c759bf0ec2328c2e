//! The extension module `umf._umf`: pools, blocks, mappings and handles as Python classes. The
//! package `umf` (`umf/__init__.py`) exports them.
//!
//! | file | content |
//! |---|---|
//! | `errors` | exceptions, one for each kind of failure |
//! | `fork` | what a parent keeps for forked children |
//! | `memory` | the buffers of blocks and mappings, and when their memory ends |
//! | `pool` | pools and their blocks |
//! | `handle` | handles, and opening them |
//! | `transit` | handles in transit |
//! | `remote` | memory of other machines |
//! | `domain` | memory of a named set of processes |
//! | `device` | pools of device memory, copies to and from the host, `__cuda_array_interface__` |
//! | `dlpack` | blocks and mappings as DLPack tensors |
//! | `call` | waits, and the memory of messages, of links and ranks |
//! | `link` | messages and memory for another process |
//! | `comm` | ranks of a job: messages and collectives |
//! | `command` | counters, explanations of handles, the `umf` command |

mod call;
mod comm;
mod command;
mod device;
mod dlpack;
mod domain;
mod errors;
mod fork;
mod handle;
mod link;
mod memory;
mod pool;
mod remote;
mod transit;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Refuses sub-interpreters: pools, handles and the locks of umf belong to the whole process.
fn refuse_subinterpreter(python: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached to an interpreter.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        -1 => Err(PyErr::fetch(python)),
        number => Err(PyImportError::new_err(format!(
            "umf does not support sub-interpreters, and this is interpreter {number}"
        ))),
    }
}

// Free-threaded CPython: all state that threads share is behind locks or atomics, and no lock is
// held while Python is called.
#[pymodule(gil_used = false)]
fn _umf(module: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_subinterpreter(module.py())?;
    errors::add(module)?;
    fork::register(module)?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<pool::Block>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<handle::Mapping>()?;
    module.add_function(wrap_pyfunction!(handle::open, module)?)?;
    module.add_class::<remote::RemoteHandle>()?;
    module.add_class::<remote::Serving>()?;
    module.add_function(wrap_pyfunction!(remote::serve, module)?)?;
    module.add_function(wrap_pyfunction!(remote::fetch, module)?)?;
    module.add_function(wrap_pyfunction!(transit::cancel, module)?)?;
    module.add_function(wrap_pyfunction!(transit::in_transit, module)?)?;
    module.add_function(wrap_pyfunction!(transit::is_in_transit, module)?)?;
    module.add_function(wrap_pyfunction!(transit::close_idle, module)?)?;
    module.add_function(wrap_pyfunction!(transit::check_memory, module)?)?;
    module.add_function(wrap_pyfunction!(pool::drain, module)?)?;
    module.add_function(wrap_pyfunction!(memory::find, module)?)?;
    domain::add(module)?;
    module.add_class::<command::Explanation>()?;
    module.add_function(wrap_pyfunction!(command::stats, module)?)?;
    module.add_function(wrap_pyfunction!(command::why, module)?)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    module.add_class::<link::Endpoint>()?;
    module.add_class::<link::Link>()?;
    module.add_class::<link::Loan>()?;
    module.add_class::<link::View>()?;
    module.add_class::<comm::Communicator>()?;
    module.add_function(wrap_pyfunction!(link::bind, module)?)?;
    module.add_function(wrap_pyfunction!(link::connect, module)?)?;
    module.add_function(wrap_pyfunction!(comm::join, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
