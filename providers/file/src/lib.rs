//! A file as a provider: in the page cache, or on persistent memory (fsdax), where stores reach the medium without it.
//!
//! | what | how |
//! |---|---|
//! | memory that others can open | [`Mapped::Shared`]: regions are ranges of the file, mapped shared |
//! | memory of one's own that begins with zeros | [`Mapped::Private`] |
//! | persistent memory | found by mapping with `MAP_SYNC`; regions are then of 2 MiB pages |
//! | memory of another process | [`FileImport`], which needs no provider |
//!
//! ```
//! use umf_core::{Layout, Provider};
//! use umf_provider_file::{FileProvider, Mapped};
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let path = std::env::temp_dir().join(format!("umf-doc-{}", std::process::id()));
//! let provider = FileProvider::open(&path, Mapped::Shared, "scratch")?;
//! let region = provider.allocate(Layout::new(1 << 20, 4096)?)?;
//! // SAFETY: nobody uses the region.
//! unsafe { provider.free(region)? };
//! # let _ = std::fs::remove_file(path);
//! # Ok(())
//! # }
//! ```
//!
//! A region is a range of the file and a mapping of its own, so that its alignment never shifts its offset. A freed range gives
//! its blocks back to the file system (where that can punch holes) and is used again. What the file held before is not kept.

mod import;
mod provider;
mod sys;

pub use import::FileImport;
pub use provider::{FileProvider, Mapped};
