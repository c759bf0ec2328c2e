//! Providers that suballocate one range: of a file, of a DAX device, or of memory that the program
//! already owns.
//!
//! | kind | memory | how |
//! |---|---|---|
//! | `file` | shared with other processes | [`FileProvider`], `Visibility::Shared`: regions are ranges of the file, mapped shared |
//! | `file` | private | [`FileProvider`], `Visibility::Private`: mapped copy-on-write; new regions read as zero |
//! | `file` | persistent (fsdax) | detected by mapping with `MAP_SYNC`; regions then have 2 MiB pages |
//! | `devdax` | a DAX device (`/dev/daxX.Y`) | [`DevDaxProvider`]: regions are parts of one mapping of the device |
//! | `fixed` | a buffer, a mapping, a reserved range | [`FixedProvider`] |
//! | | exported by another process | [`FileImport`] and [`DevDaxImport`], which need no provider |
//!
//! ```
//! use umf_core::{Layout, Provider, Visibility};
//! use umf_provider_file::FileProvider;
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let path = std::env::temp_dir().join(format!("umf-doc-{}", std::process::id()));
//! let provider = FileProvider::open(&path, Visibility::Shared, "scratch")?;
//! let region = provider.allocate(Layout::new(1 << 20, 4096)?)?;
//! // SAFETY: nothing uses the region.
//! unsafe { provider.free(region)? };
//! # let _ = std::fs::remove_file(path);
//! # Ok(())
//! # }
//! ```

mod devdax;
mod file;
mod fixed;

pub use devdax::{DevDaxImport, DevDaxProvider, DevDaxSettings};
pub use file::{FileImport, FileProvider, FileSettings};
pub use fixed::{FixedProvider, FixedSettings};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
