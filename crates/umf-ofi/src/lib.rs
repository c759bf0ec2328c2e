//! A provider of libfabric, named `umf`, for processes of one machine: MPI programs and other
//! programs over libfabric run over umf unchanged.
//!
//! libfabric loads `libumf-fi.so` from the folder that `FI_PROVIDER_PATH` names, and calls
//! `fi_prov_ini`. Names and meanings are those of the interface
//! (<https://ofiwg.github.io/libfabric/>). `docs/mpi.md` says how to run programs over it.
//!
//! ```text
//! info      names      what is offered, whether it fits the hints; names of hosts and services
//! object               how objects are made, used by others and closed
//! fabric    domain     fabric, domain
//! event_queue          events
//! address_vector       addresses of other endpoints
//! queue     counter    completions
//! waiting   poll_set   waiting for them: calls, descriptors, polls of several
//! endpoint  state      an endpoint; its mesh (umf_link::mesh) and operations in progress
//! messages             sends and receives, with and without tags
//! regions              memory regions
//! rma       atomics    reads, writes and atomic operations on them
//! preloaded            memory of a preloaded malloc, which other processes map
//! conversions          lists of memory, texts, addresses, error numbers
//! statistics           counters of what was carried
//! ```
//!
//! An endpoint is a [`umf_link::mesh::Mesh`] behind a lock. Reading a completion queue makes
//! progress with all its endpoints.

#![allow(clippy::missing_safety_doc, reason = "the safety of each operation is that of the interface")]

mod address_vector;
mod atomics;
mod conversions;
mod counter;
mod domain;
mod endpoint;
mod event_queue;
mod fabric;
mod info;
mod messages;
mod names;
mod object;
mod poll_set;
mod preloaded;
mod queue;
mod regions;
mod rma;
mod serial;
mod state;
mod statistics;
mod waiting;

use std::ptr::null_mut;
use std::sync::OnceLock;

use libfabric_sys::{Library, fi_provider, make_version};

/// The name of the provider, its fabric and its domain.
pub(crate) const NAME: &core::ffi::CStr = c"umf";

/// Returns the libfabrics of the process, the oldest version first.
pub(crate) fn libraries() -> &'static [Library] {
    static LIBRARIES: OnceLock<Vec<Library>> = OnceLock::new();
    LIBRARIES.get_or_init(Library::loaded)
}

/// Returns the provider to the libfabric that has loaded it, or null if there is none. It is called
/// once by each libfabric of the process.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let Some(library) = libraries().last() else { return null_mut() };
    // Each library writes into the structure, and keeps it until it calls `cleanup`.
    Box::into_raw(Box::new(fi_provider {
        version: make_version(0, 1),
        fi_version: library.version(),
        name: NAME.as_ptr(),
        getinfo: Some(info::getinfo),
        fabric: Some(fabric::fabric),
        ..fi_provider::ZERO
    }))
}
