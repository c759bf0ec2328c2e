//! The ability to split and merge regions.

use crate::{Region, Result};

/// Turns one region into two, or two adjacent ones into one, in place. The memory and its content stay.
pub trait SplitMerge: Send + Sync {
    /// Splits `region` after `first` bytes, a multiple of the page size inside the region. Each part can then
    /// be freed by itself.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`], [`crate::Error::ForeignAddress`]; the region is then as it was.
    ///
    /// # Safety
    /// The caller owns the region.
    unsafe fn split(&self, region: Region, first: usize) -> Result<(Region, Region)>;

    /// Merges `low` and `high`, where `high` begins at the end of `low`.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if they are not adjacent, or not parts of one allocation where the
    /// provider needs that, [`crate::Error::ForeignAddress`]; the regions are then as they were.
    ///
    /// # Safety
    /// The caller owns both regions.
    unsafe fn merge(&self, low: Region, high: Region) -> Result<Region>;
}
