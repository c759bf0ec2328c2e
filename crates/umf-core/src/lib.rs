//! The vocabulary of umf, on which everything else stands.
//!
//! | word | here |
//! |---|---|
//! | provider | [`Provider`] and its abilities: [`provider`] |
//! | region | [`Region`], got through an [`Upstream`] |
//! | pool, block | [`Pool`] and its abilities: [`pool`] |
//! | address | [`Address`], which cannot be dereferenced |
//! | tracker | [`tracker::find`]: from an address to its region and pool |
//! | exported memory | [`observer`]: who is told before it goes |
//! | leased memory | [`held`]: freed, and still open in other processes |
//! | delayed free | [`DeferredFree::free_after`]: freed, and handed out again when a [`Completion`] is ready |
//! | living pools of one kind | [`registry`] |
//! | limits | [`limit`]: of one pool, or shared |
//! | lack of memory | [`shortage`]: the application is asked |
//! | what happened, what is left | [`history`], [`leaks`] |
//! | mistakes in the use of a pool | [`checked`] |
//! | environment | [`environment`]: the only reader of environment variables |
//!
//! A crate that brings a provider or a pool depends on this one alone, and runs the conformance suite of
//! its trait with one line: `provider_conformance!`, `pool_conformance!` (feature `conformance`).
//!
//! This crate knows no operating system resource except memory for its own metadata, which never comes from
//! the global allocator, and the environment.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("umf runs on 64-bit Linux");

mod address;
pub mod background;
pub mod checked;
pub mod clock;
mod completion;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod environment;
mod error;
pub mod held;
pub mod history;
mod layout;
pub mod leaks;
pub mod limit;
pub mod map;
pub mod metadata;
#[cfg(test)]
mod model;
pub mod observer;
pub mod output;
pub mod pool;
pub mod process;
pub mod provider;
mod received;
pub mod registry;
pub mod shortage;
pub mod statistics;
mod sys;
pub mod tracker;
mod visits;

pub use address::{Address, AddressSpace};
pub use completion::{Completion, Progress};
pub use error::{Error, PastFree, Result};
pub use layout::Layout;
pub use pool::{BlockSpan, Controls, DeferredFree, Inspect, Pool, Reserve, ShareLimit};
pub use provider::{
    Access, CpuAccess, Export, HostAccess, Import, ImportRequest, Imported, MemoryKind, NativeBytes,
    NativeExport, Populate, Properties, Property, PropertyValue, Provider, ProviderKind, Purge, Region,
    RegionId, Transfer, Visibility,
};
pub use received::ReceivedFd;
pub use tracker::{ProviderRef, Upstream};
