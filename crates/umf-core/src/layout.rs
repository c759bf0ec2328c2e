//! [`Layout`]: a checked size and alignment.

use core::num::NonZeroUsize;

use crate::Error;

/// Size and alignment of a block or region, in bytes.
///
/// Every `Layout` is valid: the size is not zero, the alignment is a power of two, and the size
/// rounded up to the alignment fits into `isize`. Zero size and overflow are errors of the
/// constructor, so providers and pools need not check for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    size: NonZeroUsize,
    align: NonZeroUsize,
}

impl Layout {
    /// The largest size of a layout, in bytes.
    pub const MAX_SIZE: usize = isize::MAX as usize;

    /// Returns a layout of `size` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::BadAlignment`] if `align` is not a power of two,
    /// [`Error::SizeOverflow`] if `size` rounded up to `align` exceeds [`Layout::MAX_SIZE`].
    #[inline]
    pub const fn new(size: usize, align: usize) -> Result<Self, Error> {
        // One comparison checks both bounds: 0 wraps around to the largest number.
        if align.is_power_of_two() && size.wrapping_sub(1) < Self::MAX_SIZE - (align - 1) {
            // SAFETY: 0 is not a power of two, and the comparison fails for a size of 0.
            return unsafe {
                Ok(Self {
                    size: NonZeroUsize::new_unchecked(size),
                    align: NonZeroUsize::new_unchecked(align),
                })
            };
        }
        Err(Self::error(size, align))
    }

    /// Returns the error for an invalid size or alignment.
    #[cold]
    const fn error(size: usize, align: usize) -> Error {
        if size == 0 {
            Error::ZeroSize
        } else if align.is_power_of_two() {
            Error::SizeOverflow { size, align }
        } else {
            Error::BadAlignment { align }
        }
    }

    /// Returns the layout of `count` elements of `size` bytes each.
    ///
    /// # Errors
    /// As [`Layout::new`]; [`Error::SizeOverflow`] if the product overflows.
    pub const fn array(count: usize, size: usize, align: usize) -> Result<Self, Error> {
        match count.checked_mul(size) {
            Some(size) => Self::new(size, align),
            None => Err(Error::SizeOverflow { size: usize::MAX, align }),
        }
    }

    /// Returns the size in bytes, which is never 0.
    #[must_use]
    pub const fn size(self) -> usize {
        self.size.get()
    }

    /// Returns the alignment in bytes, a power of two.
    #[must_use]
    pub const fn align(self) -> usize {
        self.align.get()
    }

    /// Returns the layout with the larger of its alignment and `align`.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub const fn align_to(self, align: usize) -> Result<Self, Error> {
        Self::new(self.size(), if align > self.align() { align } else { self.align() })
    }

    /// Returns the layout with its size rounded up to a multiple of `granule`, a power of two.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub const fn pad_to(self, granule: usize) -> Result<Self, Error> {
        if !granule.is_power_of_two() {
            return Err(Error::BadAlignment { align: granule });
        }
        match self.size().checked_next_multiple_of(granule) {
            Some(size) => Self::new(size, self.align()),
            None => Err(Error::SizeOverflow { size: self.size(), align: granule }),
        }
    }
}

impl TryFrom<core::alloc::Layout> for Layout {
    type Error = Error;

    fn try_from(layout: core::alloc::Layout) -> Result<Self, Error> {
        Self::new(layout.size(), layout.align())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_layouts_are_errors() {
        assert!(matches!(Layout::new(0, 8), Err(Error::ZeroSize)));
        assert!(matches!(Layout::new(8, 0), Err(Error::BadAlignment { align: 0 })));
        assert!(matches!(Layout::new(8, 24), Err(Error::BadAlignment { align: 24 })));
        assert!(matches!(Layout::new(usize::MAX, 1), Err(Error::SizeOverflow { .. })));
        assert!(matches!(Layout::new(Layout::MAX_SIZE, 4096), Err(Error::SizeOverflow { .. })));
        assert!(matches!(Layout::array(usize::MAX, 2, 1), Err(Error::SizeOverflow { .. })));
        assert_eq!(Layout::new(Layout::MAX_SIZE, 1).unwrap().size(), Layout::MAX_SIZE);
        for align in (0..usize::BITS).map(|bit| 1_usize << bit) {
            let most = Layout::MAX_SIZE - (align - 1);
            assert_eq!(Layout::new(most, align).is_ok(), most > 0);
            assert!(matches!(Layout::new(most + 1, align), Err(Error::SizeOverflow { .. })));
            assert!(matches!(Layout::new(0, align), Err(Error::ZeroSize)));
            assert_eq!(Layout::new(1, align - 1).is_ok(), (align - 1).is_power_of_two());
        }
    }

    #[test]
    fn pad_to_rounds_the_size_and_align_to_keeps_the_larger_alignment() {
        let layout = Layout::new(100, 8).unwrap();
        assert_eq!(layout.pad_to(64).unwrap().size(), 128);
        assert_eq!(layout.align_to(64).unwrap().align(), 64);
        assert_eq!(layout.align_to(4).unwrap().align(), 8);
    }
}
