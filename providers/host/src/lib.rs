//! Host memory for umf: private, shared, named, on huge pages, on chosen NUMA nodes.
//!
//! | what | how |
//! |---|---|
//! | private memory | `HostProvider::builder().build()`: anonymous mappings |
//! | shared memory | `.visibility(Visibility::Shared)`: sealed memfds, many regions in each |
//! | one region, one file | `.isolate(true)`, `.read_only_export(true)` |
//! | a name in `/dev/shm` | `.named("/name")` |
//! | huge pages | `.huge_pages(..)`: [`HugePages`] |
//! | NUMA nodes | `.numa(..)`: [`Numa`] |
//! | for the global allocator | [`HostProvider::private_static`] |
//! | memory of another process | [`HostImport`], which needs no provider |
//!
//! ```
//! use umf_core::{Layout, Provider, Visibility};
//! use umf_provider_host::HostProvider;
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let provider = HostProvider::builder().visibility(Visibility::Shared).build()?;
//! let region = provider.allocate(Layout::new(1 << 20, 4096)?)?;
//! let export = provider.export().map(|ability| ability.export(&region)).transpose()?;
//! assert!(export.is_some_and(|export| export.fd.is_some()));
//! // SAFETY: nothing uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```
//!
//! Shared memory lies in memfds that are sealed at their final size before first use, so that no
//! process can truncate memory that another has mapped. A region is a range of a file with a
//! mapping of its own. `free` releases the pages at once, and the range is reused.
//!
//! Private providers never use the global allocator. Shared ones use it when they create a file, so
//! a pool over a shared provider must not be the global allocator.

mod arena;
mod builder;
mod import;
mod named;
mod numa;
mod pages;
mod private;
mod provider;
mod shared;
mod sys;

pub use builder::HostBuilder;
pub use import::HostImport;
pub use named::CreatorMark;
pub use numa::{NodeSet, NodeShare, Numa};
pub use pages::HugePages;
pub use provider::HostProvider;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
