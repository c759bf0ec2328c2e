//! dma-buf memory for umf: memory that devices share with each other and with processes.
//!
//! | what | how |
//! |---|---|
//! | host memory that devices can import | [`DmaBufProvider::udmabuf`]: `/dev/udmabuf` over sealed memfds, also on huge pages |
//! | memory from a heap | [`DmaBufProvider::heap`]: `/dev/dma_heap/<name>` |
//! | an existing buffer | [`DmaBufProvider::over`]: a driver's export, suballocated into regions |
//! | CPU access to memory that devices use | [`cpu_access`] |
//! | a single buffer: name, fences | [`DmaBuf`] |
//! | a buffer over existing memfds | [`Udmabuf`] |
//! | memory that another process exported | [`DmaBufImport`], which needs no provider |
//! | availability on this machine | [`Udmabuf::report`], [`Heap::reports`] |
//!
//! ```
//! use umf_core::{Access, Layout, Provider};
//! use umf_provider_dma_buf::{DmaBufProvider, cpu_access};
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let Ok(builder) = DmaBufProvider::udmabuf() else { return Ok(()) }; // No such device here.
//! let provider = builder.build()?;
//! let region = provider.allocate(Layout::new(1 << 20, 4096)?)?;
//! // SAFETY: the region is live, and no other code uses it.
//! let mut memory = unsafe { cpu_access(region.base(), region.size(), Access::ReadWrite)? };
//! memory.write(0, b"seen by devices once the access has ended")?;
//! memory.end()?;
//! // SAFETY: nothing uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```

mod buffer;
mod builder;
mod mappings;
mod provider;
mod regions;
mod source;
mod sys;

pub use buffer::DmaBuf;
pub use builder::{DmaBufBuilder, DmaBufExporter, DmaBufPages, DmaBufSettings};
pub use mappings::{DmaBufImport, cpu_access};
pub use provider::DmaBufProvider;
pub use source::{FilePart, Heap, HeapReport, Udmabuf, UdmabufReport};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
