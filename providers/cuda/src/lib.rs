//! CUDA memory for umf. The driver is opened at run time: the crate builds, and its tests pass, on
//! machines without it.
//!
//! | task | how |
//! |---|---|
//! | allocate device memory that other processes open by value | [`CudaMemory::Virtual`], the default; [`CudaMemory::Device`] |
//! | allocate pinned host memory | [`CudaMemory::Host`] |
//! | allocate memory that migrates between both | [`CudaMemory::Managed`] |
//! | free a block that a stream still uses | [`CudaProvider::record_event`] |
//! | open memory of another process | [`CudaImport`], which needs no provider |
//! | call the driver | [`Driver`], [`driver_api`] |
//! | list the devices of this machine | [`survey`] |
//!
//! ```
//! use umf_core::{Layout, Provider};
//! use umf_provider_cuda::CudaProvider;
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let Ok(provider) = CudaProvider::builder().build() else { return Ok(()) }; // No GPU here.
//! let region = provider.allocate(Layout::new(1 << 20, 4096)?)?;
//! let transfer = provider.transfer().expect("device memory is copied by the device");
//! // SAFETY: the region is live, and nothing else uses it.
//! unsafe { transfer.write(region.base(), b"seen by kernels")? };
//! // SAFETY: nothing uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```

// Allocating, exporting, importing.
mod builder;
mod handles;
mod heap;
mod import;
mod provider;
mod virtual_memory;

// The driver's objects.
mod address_map;
mod context;
mod driver;
mod event;

pub use builder::{CudaBuilder, CudaHandles, CudaMemory, CudaSettings};
pub use driver::{DeviceInfo, Driver, DriverInfo, survey};
pub use event::StreamEvent;
pub use import::CudaImport;
pub use provider::CudaProvider;

/// The bindings of the driver interface, for calls that umf does not make.
pub use cuda_sys as driver_api;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
