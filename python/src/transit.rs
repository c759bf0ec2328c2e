//! Handles in transit: waiting at the bound of their memory, and cancelling.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::{argument, from_umf};
use crate::handle::{Handle, decode};

/// Converts a number of seconds. Infinity is a very long time.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    let wrong = || {
        argument("cannot wait that long: a timeout is a number of seconds, 0 or more; pass one, or math.inf")
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Sends a handle. If too much is in transit, waits for readers for at most `timeout` seconds,
/// without the GIL.
pub(crate) fn send(
    python: Python<'_>,
    timeout: f64,
    send: impl Fn() -> PyResult<umf::Result<umf::Handle>> + Send + Sync,
) -> PyResult<Handle> {
    const LONGEST: Duration = Duration::from_millis(20);
    let timeout = duration(timeout)?;
    let begin = Instant::now();
    let mut pause = Duration::from_micros(100);
    let mut is_last = false;
    loop {
        match python.detach(&send)? {
            Ok(handle) => return Ok(Handle(handle)),
            Err(full @ umf::Error::Ipc(umf::ipc::Error::TransitFull { .. })) => {
                let left = timeout.saturating_sub(begin.elapsed());
                if is_last {
                    return Err(from_umf(full));
                }
                // Also after the last pause, and without one: handles that this process has passed
                // on count too, and readers may have opened them.
                is_last = left.is_zero();
                // Ctrl-C, for example.
                python.check_signals()?;
                let polled = python.detach(|| {
                    std::thread::sleep(pause.min(left));
                    umf::handles_in_transit()
                });
                polled.map_err(from_umf)?;
                pause = (2 * pause).min(LONGEST);
            }
            Err(error) => return Err(from_umf(error)),
        }
    }
}

/// Cancels a handle that this process has sent and that no process will open. Returns whether a
/// reader could have opened it.
#[pyfunction]
pub(crate) fn cancel(python: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<bool> {
    let handle = decode(handle)?;
    python.detach(|| umf::cancel_handle(&handle)).map_err(from_umf)
}

/// Returns whether this process has sent a handle for a message, and readers have still to open it.
#[pyfunction]
pub(crate) fn is_in_transit(python: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<bool> {
    let handle = decode(handle)?;
    python.detach(|| umf::is_in_transit(&handle)).map_err(from_umf)
}

/// Raises `OutOfMemoryError` if the machine, or a control group of this process, has no memory for
/// `size` bytes. Pages of shared memory beyond that end in the OOM killer, not in an error.
#[pyfunction]
pub(crate) fn check_memory(size: usize) -> PyResult<()> {
    let checked = umf_os::AvailableMemory::find().check(size, "shared memory");
    checked.map_err(|error| from_umf(error.into()))
}

/// Closes cached mappings that are not in use. Returns their number.
#[pyfunction]
pub(crate) fn close_idle(python: Python<'_>) -> PyResult<usize> {
    python.detach(|| Ok(umf::importer()?.evict_idle())).map_err(from_umf)
}

/// Returns the number of handles that this process has sent and that not all readers have opened.
#[pyfunction]
pub(crate) fn in_transit(python: Python<'_>) -> PyResult<usize> {
    python.detach(umf::handles_in_transit).map_err(from_umf)
}
