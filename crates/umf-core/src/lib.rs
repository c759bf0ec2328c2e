//! The contracts of umf: what a provider, a pool and their users agree on.
//!
//! | word | here |
//! |---|---|
//! | provider | [`Provider`] and its abilities: [`provider`] |
//! | region | [`Region`], which a provider gives |
//! | pool, block | [`Pool`] and its abilities: [`pool`] |
//! | address | [`Address`], which cannot be dereferenced |
//! | delayed free | [`DeferredFree::free_after`]: freed, and handed out again when a [`Completion`] is ready |
//! | memory that is freed and still in use | [`deferred`] |
//! | a limit that pools share | [`limit`] |
//! | memory that other processes write, typed | [`View`] of [`Plain`] values: [`view`] |
//! | settings of a kind, and what makes it of them | [`settings`](mod@settings), [`factory`] |
//! | lack of memory | [`out_of_memory`]: the application is asked |
//! | what a pool holds, and what happened in it | [`statistics`], [`map`], [`history`], [`leaks`] |
//!
//! A crate that brings a provider or a pool implements these traits and runs the conformance suite
//! of its trait (crate `umf-testkit`). What pools have in common (tracker, upstream, deferred free)
//! is the crate `umf-runtime`.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("umf runs on 64-bit Linux");

mod address;
mod completion;
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
pub use completion::{Completion, Progress};
pub use error::{Error, PastFree, Result};
pub use factory::{FactoryError, PoolFactory, PoolRequest, ProviderFactory};
pub use layout::Layout;
pub use pool::{BlockSpan, Controls, DeferredFree, Freed, Inspect, Pool, Reserve, ShareLimit};
pub use provider::{
    Access, CpuAccess, Export, HostAccess, Import, ImportRequest, Imported, MemoryKind, NativeBytes,
    NativeExport, Populate, Properties, Property, PropertyValue, Provider, ProviderKind, ProviderRef, Purge,
    Region, RegionId, Transfer, Visibility,
};
pub use view::{Plain, ReadView, View};
