//! The traits and types of umf: the contract between providers, pools and their users.
//!
//! | term | item |
//! |---|---|
//! | provider: a source of regions | [`Provider`] and its abilities: [`provider`] |
//! | region: an allocation of a provider | [`Region`] |
//! | pool: hands out blocks from regions | [`Pool`] and its abilities: [`pool`] |
//! | address, which cannot be dereferenced | [`Address`] |
//! | deferred free: a freed block that is still in use | [`DeferredFree`], [`Completion`], [`deferred`] |
//! | limit that pools share | [`limit`] |
//! | typed view of memory that other processes may write | [`View`] of [`Plain`] values: [`view`] |
//! | settings of a kind, and its factory | [`settings`](mod@settings), [`factory`] |
//! | callback for a lack of memory | [`out_of_memory`] |
//! | statistics, map, events and leaks of a pool | [`statistics`], [`map`], [`history`], [`leaks`] |
//!
//! A crate that adds a provider or a pool implements these traits, and runs the conformance suite
//! of the crate `umf-testkit`. The crate `umf-runtime` has the code that pools share: tracker,
//! upstream, deferred free.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("umf runs on 64-bit Linux");

mod address;
pub mod deferred;
mod error;
pub mod factory;
pub mod history;
mod layout;
pub mod leaks;
pub mod limit;
pub mod map;
pub mod out_of_memory;
pub mod pool;
pub mod provider;
pub mod settings;
pub mod statistics;
pub mod view;

pub use address::{Address, AddressSpace};
pub use deferred::{Completion, Progress};
pub use error::{Error, PastFree, Result};
pub use factory::{FactoryError, PoolFactory, PoolRequest, ProviderFactory};
pub use layout::Layout;
pub use pool::{BlockSpan, Controls, DeferredFree, Freed, Inspect, Pool, Reserve, Reuse, ShareLimit};
pub use provider::{
    Access, CpuAccess, Export, HostAccess, Import, ImportRequest, Imported, MemoryKind, NativeBytes,
    NativeExport, Populate, Properties, Property, PropertyValue, Provider, ProviderKind, ProviderRef, Purge,
    Region, RegionId, Transfer, Visibility,
};
pub use view::{Plain, ReadView, View};
