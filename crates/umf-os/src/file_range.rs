//! [`FileRange`]: the checked range of a file that an import requests.

use umf_core::{Error, ImportRequest, Result};

/// The whole pages of a file that an [`ImportRequest`] requests. The request came from another
/// process, so it is checked against the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// Its size in bytes, not 0.
    pub size: usize,
}

impl FileRange {
    /// Returns the range for a file of `file_size` bytes in pages of `page` bytes, a power of two.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if the range does not begin at a page, is empty or too large, or does
    /// not lie in the file.
    pub fn of(request: &ImportRequest, page: usize, file_size: u64) -> Result<Self> {
        if !request.offset.is_multiple_of(page as u64) {
            return Err(Error::Untrusted { why: "the offset is not a multiple of the page size" });
        }
        let size = Some(request.size)
            .filter(|&size| size > 0)
            .and_then(|size| size.checked_next_multiple_of(page))
            .filter(|&size| isize::try_from(size).is_ok())
            .ok_or(Error::Untrusted { why: "the size is 0 or exceeds an address space" })?;
        if request.offset.checked_add(size as u64).is_none_or(|end| end > file_size) {
            return Err(Error::Untrusted { why: "the range does not lie inside the file" });
        }
        Ok(Self { offset: request.offset, size })
    }
}

#[cfg(test)]
mod tests {
    use umf_core::Access;

    use super::*;

    #[test]
    fn range_is_whole_pages_inside_the_file() {
        let part = |offset, size| {
            FileRange::of(&ImportRequest::new(None, offset, size, Access::ReadOnly), 4096, 5 * 4096 + 1)
        };
        assert_eq!(part(4096, 1), Ok(FileRange { offset: 4096, size: 4096 }));
        assert_eq!(part(0, 5 * 4096), Ok(FileRange { offset: 0, size: 5 * 4096 }));
        for (offset, size) in [
            (1, 4096),
            (0, 0),
            (0, 5 * 4096 + 1),
            (5 * 4096, 1),
            (0, usize::MAX),
            (0, isize::MAX as usize),
            (u64::MAX - 4095, 4096),
        ] {
            assert!(matches!(part(offset, size), Err(Error::Untrusted { .. })), "{size} at {offset}");
        }
    }
}
