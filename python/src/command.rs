//! What this process has (`umf.stats`), what became of a handle (`umf.why`), and the `umf` command.

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use umf::ipc::{CacheStatistics, transit};
use umf_cli::{Program, State};

use crate::errors::Error;
use crate::remote::Named;

fn figures<'py>(python: Python<'py>, figures: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(python);
    figures.iter().try_for_each(|(name, value)| found.set_item(name, value))?;
    Ok(found)
}

fn cache<'py>(python: Python<'py>, cache: &CacheStatistics) -> PyResult<Bound<'py, PyDict>> {
    let hits = cache.hits.saturating_add(cache.table_hits);
    figures(
        python,
        &[
            ("hits", hits),
            ("misses", cache.misses),
            ("stale", cache.stale),
            ("evictions", cache.evictions),
            ("entries", cache.entries),
            ("in_use", cache.in_use),
            ("bytes", cache.bytes),
            ("fds", cache.fds),
        ],
    )
}

/// Returns the counters of this process: bytes and blocks in its pools, freed bytes that other
/// processes or devices still use, messages in transit, and the caches of exports and opened
/// memory.
#[pyfunction]
pub(crate) fn stats(python: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = python.detach(umf::statistics);
    let sum = |of: fn(&umf::PoolStatistics) -> u64| -> u64 {
        found.pools.iter().map(|pool| of(&pool.counters)).fold(0, u64::saturating_add)
    };
    let all = figures(
        python,
        &[
            ("live_bytes", sum(|pool| pool.live_bytes)),
            ("live_blocks", sum(|pool| pool.live_blocks)),
            ("cached_bytes", sum(|pool| pool.cached_bytes)),
            ("reserved_bytes", sum(|pool| pool.reserved_bytes)),
            ("held_bytes", found.held.bytes),
            ("held_blocks", found.held.blocks),
            ("in_transit", found.in_transit as u64),
            ("in_transit_bytes", transit::statistics().bytes),
            ("max_in_transit", transit::limits().max_bytes),
            ("expired", transit::statistics().expired),
        ],
    )?;
    let pools = PyList::empty(python);
    for pool in &found.pools {
        let counters = &pool.counters;
        let entry = figures(
            python,
            &[
                ("live_bytes", counters.live_bytes),
                ("live_blocks", counters.live_blocks),
                ("cached_bytes", counters.cached_bytes),
                ("reserved_bytes", counters.reserved_bytes),
                ("held_bytes", counters.held_bytes),
                ("regions", counters.regions),
            ],
        )?;
        entry.set_item("name", &pool.name)?;
        entry.set_item("provider", pool.provider.to_string())?;
        pools.append(entry)?;
    }
    all.set_item("pools", pools)?;
    all.set_item("exporter", cache(python, &found.exporter)?)?;
    all.set_item("importer", cache(python, &found.importer)?)?;
    Ok(all)
}

/// What became of a handle. `str()` of it is what the command `umf why` prints.
#[pyclass(module = "umf", frozen)]
pub(crate) struct Explanation(umf_cli::Explanation);

#[pymethods]
impl Explanation {
    /// `"current"`, `"stale"`, `"producer gone"` or `"unknown"`.
    #[getter]
    fn state(&self) -> &'static str {
        match self.0.state {
            State::Current => "current",
            State::Stale => "stale",
            State::ProducerGone => "producer gone",
            _ => "unknown",
        }
    }

    /// The text, of several lines.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// The process id of the producer.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The number of readers that have not opened the message yet; `None` if the handle is not of a
    /// message.
    #[getter]
    fn unread(&self) -> Option<u16> {
        self.0.unread
    }

    /// Whether a process has the memory open, or a message keeps it.
    #[getter]
    fn is_leased(&self) -> bool {
        self.0.is_leased
    }

    /// The other processes that have memory of the producer open.
    #[getter]
    fn importers(&self) -> Vec<u32> {
        self.0.importers.clone()
    }

    fn __str__(&self) -> &str {
        self.0.text.trim_end()
    }

    fn __repr__(&self) -> String {
        format!("<umf.Explanation: {}>", self.0.text.lines().next().unwrap_or_default())
    }
}

/// Finds out whether a handle is current, and otherwise how and when its export ended. Reads the
/// ledgers of this machine's processes, without contacting them.
#[pyfunction]
pub(crate) fn why(python: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<Explanation> {
    let named = Named::decode(handle)?;
    python.detach(|| umf_cli::why(named.handle())).map(Explanation).map_err(Error::new_err)
}

/// Runs the `umf` command and returns its exit code. `start` starts this program again; `umf demo`
/// and `umf info` append arguments of the command.
#[pyfunction]
pub(crate) fn command(python: Python<'_>, arguments: Vec<OsString>, start: Vec<OsString>) -> u8 {
    const OWN: &[(&str, &str)] = &[("keep", "Keeps a named segment after its last process has ended")];
    python.detach(|| umf_cli::run(&Program { start, own: OWN }, arguments))
}
