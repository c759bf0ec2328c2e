//! CUDA memory for umf. The driver is opened at run time: this builds, and its tests pass, where there is none.
//!
//! | what | how |
//! |---|---|
//! | memory of a device that other processes open by value | [`CudaMemory::Virtual`], the default; [`CudaMemory::Device`] |
//! | memory of the host that devices reach at full speed | [`CudaMemory::Host`] |
//! | memory that moves between both | [`CudaMemory::Managed`] |
//! | freeing a block that a stream still works on | [`CudaProvider::after`] |
//! | memory of another process | [`CudaImport`], which needs no provider |
//! | the driver itself | [`Driver`] |
//! | what this machine has, and what is in the way | [`survey`] |
//!
//! ```
//! use umf_core::{Layout, Provider};
//! use umf_provider_cuda::CudaProvider;
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let Ok(provider) = CudaProvider::builder().build() else { return Ok(()) }; // No GPU here.
//! let region = provider.allocate(Layout::new(1 << 20, 4096)?)?;
//! let transfer = provider.transfer().expect("device memory is copied by the device");
//! // SAFETY: the region is live, and nobody else has it.
//! unsafe { transfer.write(region.base(), b"seen by kernels")? };
//! // SAFETY: nobody uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```

mod allocated;
mod builder;
mod context;
mod copies;
mod driver;
mod event;
mod factory;
mod form;
mod import;
mod live;
mod physical;
mod provider;
mod space;
pub mod survey;

pub use cuda_sys as driver_api;
/// The driver's functions, for what is not umf's business.
pub use factory::{CudaHandles, CudaSettings};

pub use builder::{CudaBuilder, CudaMemory};
pub use driver::{DeviceInfo, Driver};
pub use event::StreamEvent;
pub use import::CudaImport;
pub use provider::CudaProvider;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
