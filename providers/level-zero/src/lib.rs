//! Level Zero memory for umf: of devices, of the host for devices, and shared between both.
//!
//! | what | how |
//! |---|---|
//! | memory of a device that settings name | [`LevelZeroProvider::device`], [`LevelZeroProvider::host`], [`LevelZeroProvider::managed`] |
//! | in a context that the application has already | [`LevelZeroProvider::over`] |
//! | memory of another process | [`LevelZeroImport`], which needs no provider |
//! | copies and fills, since the CPU must not touch device memory | [`umf_core::Transfer`] |
//! | what travels to other processes | [`Handles`] |
//! | peers that have the memory at hand | [`LevelZeroBuilder::resident`], [`LevelZeroProvider::set_resident`] |
//! | fds of memory, for and from other interfaces | [`LevelZeroProvider::export_fd`], [`LevelZeroProvider::import_fd`] |
//! | what the driver said last | [`last_failure`] |
//! | what this machine has | [`survey`] |
//!
//! The loader is opened at run time: where there is none, making a provider is an error that says so.
//!
//! ```
//! use umf_core::{Layout, Provider};
//! use umf_provider_level_zero::{Choice, LevelZeroProvider};
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let provider = match LevelZeroProvider::device(Choice::default()).build() {
//!     Ok(provider) => provider,
//!     Err(error) => { println!("{error}"); return Ok(()) } // No loader, driver or device here.
//! };
//! let region = provider.allocate(Layout::new(1 << 20, 1)?)?;
//! if let Some(transfer) = provider.transfer() {
//!     let mut back = [0; 5];
//!     // SAFETY: the region is live; no reference into it exists.
//!     unsafe {
//!         transfer.write(region.base(), b"hello")?;
//!         transfer.read(region.base(), &mut back)?;
//!     }
//!     assert_eq!(&back, b"hello");
//! }
//! // SAFETY: nobody uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```

mod builder;
mod context;
mod engine;
mod external;
mod factory;
mod failure;
mod handles;
mod import;
mod native;
mod provider;
mod ranges;
mod resident;
pub mod survey;

pub use builder::{FreePolicy, LevelZeroBuilder};
pub use context::Choice;
pub use external::FdForm;
pub use factory::{LevelZeroMemory, LevelZeroSettings};
pub use failure::last_failure;
pub use handles::Handles;
pub use import::LevelZeroImport;
pub use level_zero_sys as sys;
pub use provider::LevelZeroProvider;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
