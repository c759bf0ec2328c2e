//! dma-buf memory for umf: the memory that devices share with each other and with processes.
//!
//! | what | how |
//! |---|---|
//! | memory of the host that devices can import | [`DmaBufProvider::udmabuf`]: `/dev/udmabuf` over sealed memfds, on huge pages too |
//! | memory from a heap | [`DmaBufProvider::heap`]: `/dev/dma_heap/<name>` |
//! | a buffer that is there already | [`DmaBufProvider::over`]: a driver's export, carved into regions |
//! | touching memory that devices use too | [`cpu_access`] |
//! | one buffer by itself: its name, its fences | [`DmaBuf`] |
//! | a buffer over files that are there already | [`Udmabuf`] |
//! | memory of another process | [`DmaBufImport`], which needs no provider |
//! | what this machine has, and what is in the way | [`survey`] |
//!
//! ```
//! use umf_core::{Access, Layout, Provider};
//! use umf_provider_dma_buf::{DmaBufProvider, cpu_access};
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let Ok(builder) = DmaBufProvider::udmabuf() else { return Ok(()) }; // No such device here.
//! let provider = builder.build()?;
//! let region = provider.allocate(Layout::new(1 << 20, 4096)?)?;
//! // SAFETY: the region is live, and nobody else has it.
//! let mut memory = unsafe { cpu_access(region.base(), region.size(), Access::ReadWrite)? };
//! memory.write(0, b"seen by devices once the access has ended")?;
//! memory.end()?;
//! // SAFETY: nobody uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```

mod buffer;
mod builder;
mod factory;
mod import;
mod mappings;
mod provider;
mod regions;
mod source;
pub mod survey;
mod sys;

pub use buffer::DmaBuf;
pub use builder::DmaBufBuilder;
pub use factory::{DmaBufExporter, DmaBufPages, DmaBufSettings};
pub use import::DmaBufImport;
pub use mappings::cpu_access;
pub use provider::DmaBufProvider;
pub use source::{FilePart, Heap, Udmabuf};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
