//! The ability to make pages before they are used.

use crate::{Address, Result};

/// Populates the pages of a part of a region, so that no later access takes a page fault or finds
/// no memory left.
pub trait Populate: Send + Sync {
    /// Makes the pages of the range now, where they are not there yet. The content stays.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if there are not enough (some may have been made),
    /// [`crate::Error::InvalidArgument`] if the range is not whole pages,
    /// [`crate::Error::ForeignAddress`] if they are not those of one live region,
    /// [`crate::Error::NotSupported`] where the system does not know how.
    fn populate(&self, base: Address, size: usize) -> Result<()>;
}
