//! [`Arena`]: one memory file out of which many regions are carved.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use umf_core::Result;
use umf_os::CheckedFile;
use umf_suballoc::Ranges;

use crate::{memfd, sys};

/// One memory file out of which many regions are carved.
///
/// The file has its final size from the start, so that it can be sealed; what no region has used is a hole
/// that costs nothing.
pub(crate) struct Arena {
    pub(crate) file: Arc<CheckedFile>,
    pub(crate) ranges: Ranges,
    /// Size of its reserved huge pages; `None` for normal ones.
    pub(crate) huge_page: Option<usize>,
}

impl Arena {
    /// A sealed arena of `size` bytes, whose descriptor has a number from `first` on.
    pub(crate) fn sealed(size: u64, huge_page: Option<usize>, first: i32) -> Result<Self> {
        let file = memfd::create(size, huge_page, first)?;
        memfd::seal(&file, false)?;
        Self::over(file, size, huge_page)
    }

    /// An arena over a file of `size` bytes that has no content yet.
    pub(crate) fn over(file: OwnedFd, size: u64, huge_page: Option<usize>) -> Result<Self> {
        Ok(Self { file: Arc::new(CheckedFile::new(file)?), ranges: Ranges::new(size)?, huge_page })
    }
}

/// The size that an arena can have where `wanted` bytes are wanted: as much as this process may put into one
/// file, a multiple of `granularity`. 0 if that is nothing.
pub(crate) fn possible_size(wanted: u64, granularity: usize) -> u64 {
    let granularity = granularity as u64;
    let wanted = wanted.checked_next_multiple_of(granularity).unwrap_or(wanted);
    wanted.min(sys::file_size_limit()) / granularity * granularity
}
