//! The ability to copy memory that the CPU must not touch.

use crate::{Address, Result};

/// Copies memory that the CPU must not touch, by the copy engines of the device.
///
/// Found at [`super::Provider::transfer`] and [`super::Import::transfer`]. Blocks and mappings of
/// device memory are read and written through it.
///
/// Each call returns when the bytes are there. All methods may be called from several threads at
/// once.
///
/// # Safety
/// Every method asks the same of its caller: what it reaches (regions of the provider, or what was
/// imported) is neither freed nor released meanwhile, and no reference (`&[u8]`, `&mut T`) into
/// what is written exists in this process.
pub trait Transfer: Send + Sync {
    /// Copies `into.len()` bytes at `from` into memory of the process.
    ///
    /// # Errors
    /// [`crate::Error::ForeignAddress`] if they are not all in one live region or import of the
    /// device,
    /// [`crate::Error::Driver`]: `into` holds anything then.
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()>;

    /// Copies `bytes` to `to`.
    ///
    /// # Errors
    /// As [`Transfer::read`]; after [`crate::Error::Driver`] some of the bytes may be there.
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()>;

    /// Fills `size` bytes from `to` on.
    ///
    /// # Errors
    /// As [`Transfer::write`].
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()>;

    /// Copies `size` bytes at `from` to `to`, without the process between. The ranges do not
    /// overlap.
    ///
    /// # Errors
    /// As [`Transfer::write`].
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()>;
}
