//! Handles in transit: waiting at the bound of their memory, and cancelling.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use umf::ipc::transit::{self, TransitStatistics};
use umf_sync::Lock;

use crate::errors::{argument, from_umf};
use crate::handle::{Handle, decode};

/// What was in transit when a wait had no result. Until it changes, sends do not wait again.
static STUCK: Lock<Option<TransitStatistics>> = Lock::new(None);

/// Sends a handle. If too much is in transit, waits for readers for at most `timeout` seconds, without
/// the GIL.
pub(crate) fn send(
    python: Python<'_>,
    timeout: f64,
    send: impl Fn() -> PyResult<umf::Result<umf::Handle>> + Send + Sync,
) -> PyResult<Handle> {
    const LONGEST: Duration = Duration::from_millis(20);
    let timeout = Duration::try_from_secs_f64(timeout).map_err(|_| argument("a timeout is not negative"))?;
    let begin = Instant::now();
    let mut pause = Duration::from_micros(100);
    loop {
        match python.detach(&send)? {
            Ok(handle) => return Ok(Handle(handle)),
            Err(full @ umf::Error::Ipc(umf::ipc::Error::TransitFull { .. })) => {
                let left = timeout.saturating_sub(begin.elapsed());
                let is_stuck = || *STUCK.lock() == Some(transit::statistics());
                if left.is_zero() || python.detach(is_stuck) {
                    *STUCK.lock() = Some(transit::statistics());
                    return Err(from_umf(full));
                }
                // Ctrl-C, for example.
                python.check_signals()?;
                python
                    .detach(|| {
                        std::thread::sleep(pause.min(left));
                        // Handles that this process has passed on count too.
                        umf::handles_in_transit()
                    })
                    .map_err(from_umf)?;
                pause = (2 * pause).min(LONGEST);
            }
            Err(error) => return Err(from_umf(error)),
        }
    }
}

/// Cancels a handle that this process has sent and that no process will open. Returns whether a reader
/// could have opened it.
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
