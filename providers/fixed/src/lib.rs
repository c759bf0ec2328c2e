//! Memory that the program has already, as a provider: a buffer, a mapping, a reserved range.
//!
//! ```
//! use umf_core::{Layout, Provider};
//! use umf_provider_fixed::FixedProvider;
//!
//! # fn main() -> Result<(), umf_core::Error> {
//! let mut buffer = vec![0_u8; 1 << 20];
//! // SAFETY: the buffer is used through the provider only, and lives longer.
//! let provider = unsafe { FixedProvider::new(buffer.as_mut_ptr(), buffer.len(), "mine")? };
//! let region = provider.allocate(Layout::new(1 << 16, 4096)?)?;
//! // SAFETY: nobody uses the region.
//! unsafe { provider.free(region)? };
//! # Ok(())
//! # }
//! ```

mod provider;

pub use provider::FixedProvider;
