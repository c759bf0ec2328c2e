//! Level Zero memory for umf: of devices, of the host for devices, and shared between both.
//!
//! | task | how |
//! |---|---|
//! | allocate memory of a device that settings name | [`LevelZeroProvider::device`], [`LevelZeroProvider::host`], [`LevelZeroProvider::managed`] |
//! | allocate in a context of the application | [`LevelZeroProvider::from_context`] |
//! | open memory of another process | [`LevelZeroImport`], which needs no provider |
//! | copy and fill, since the CPU must not access device memory | [`umf_core::Transfer`] |
//! | choose the format of exported handles | [`HandleFormat`] |
//! | make memory resident on other devices | [`LevelZeroBuilder::resident`], [`LevelZeroProvider::set_resident`] |
//! | exchange fds of memory with other interfaces | [`LevelZeroProvider::export_fd`], [`LevelZeroProvider::import_fd`] |
//! | read the driver's last error | [`last_failure`] |
//! | list the drivers and devices of this machine | [`survey`] |
//!
//! The loader is opened at run time. Without a loader, building a provider fails with
//! [`umf_core::Error::NotSupported`].
//!
//! ```
//! use umf_core::{Layout, Provider};
//! use umf_provider_level_zero::{DeviceSelector, LevelZeroProvider};
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let provider = match LevelZeroProvider::device(DeviceSelector::default()).build() {
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
//! // SAFETY: nothing uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```

// Allocating, exporting, importing.
mod builder;
mod handles;
mod import;
mod provider;

// The driver's objects.
mod context;
mod copy_engine;
mod native;

pub use builder::{FreePolicy, LevelZeroBuilder, LevelZeroMemory, LevelZeroSettings};
pub use context::{DeviceInfo, DeviceSelector, DriverInfo, survey};
pub use handles::HandleFormat;
pub use import::{LevelZeroImport, release_unused};
pub use level_zero_sys as sys;
pub use native::last_failure;
pub use provider::{FdFormat, LevelZeroProvider};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
