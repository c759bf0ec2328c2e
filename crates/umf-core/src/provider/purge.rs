//! The ability to give pages back and keep the addresses.

use crate::{Address, Result};

/// Gives the pages of a part of a region back to the system. The addresses stay valid.
pub trait Purge: Send + Sync {
    /// The pages may go whenever the system needs them; until then the content may be read (and
    /// writing keeps it), after that it reads as zero. `MADV_FREE` for private memory.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if the range is not whole pages of one live region,
    /// [`crate::Error::NotSupported`] where only [`Purge::purge_forced`] exists.
    ///
    /// # Safety
    /// The content of the range is not needed any more.
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()>;

    /// The pages go now, and the next read sees zeros, in every process that maps them.
    ///
    /// # Errors
    /// As [`Purge::purge_lazy`].
    ///
    /// # Safety
    /// As [`Purge::purge_lazy`].
    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()>;
}
