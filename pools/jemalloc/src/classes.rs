//! Sizes of blocks: jemalloc's, by number.

use std::sync::OnceLock;

use umf_core::{Error, Result};

use crate::je;

/// How many there can be.
const MOST: usize = 255;

/// The least size, which all addresses of blocks are multiples of. (jemalloc has one of 8 bytes, too.)
pub(crate) const QUANTUM: usize = 16;

/// The number of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    pub(crate) const fn new(number: u8) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u8 {
        self.0
    }
}

/// The sizes, as jemalloc tells them.
#[derive(Debug)]
pub(crate) struct Classes {
    sizes: [usize; MOST],
    /// Those below come many to a slab; the others have an extent each.
    small: u8,
    count: u8,
}

impl Classes {
    /// The sizes.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if they are not those of this module: a jemalloc that was built in another way.
    pub(crate) fn get() -> Result<&'static Self> {
        static KNOWN: OnceLock<Option<Classes>> = OnceLock::new();
        let other = Error::NotSupported {
            what: "jemalloc with other sizes of blocks",
            owner: "this pool",
            native: 0,
        };
        KNOWN.get_or_init(|| Self::read().ok().filter(Self::is_as_computed)).as_ref().ok_or(other)
    }

    fn read() -> Result<Self> {
        let (small, large) = (je::read::<u32>(c"arenas.nbins")?, je::read::<u32>(c"arenas.nlextents")?);
        let other = Error::NotSupported { what: "so many sizes of blocks", owner: "this pool", native: 0 };
        let count =
            u8::try_from(small + large).ok().filter(|&count| usize::from(count) < MOST).ok_or(other)?;
        let small = u8::try_from(small).map_err(|_| other)?;
        let mut sizes = [0; MOST];
        for (number, size) in (0_u32..).zip(&mut sizes[..usize::from(count)]) {
            *size = match number.checked_sub(u32::from(small)) {
                None => je::read_of("arenas.bin.", number, ".size")?,
                Some(number) => je::read_of("arenas.lextent.", number, ".size")?,
            };
        }
        Ok(Self { sizes, small, count })
    }

    fn is_as_computed(&self) -> bool {
        let page: Result<usize> = je::read(c"arenas.page");
        let all = self.sizes[..usize::from(self.count)].iter().zip(0_u8..).skip(1);
        // A small block's number and two flags share a byte.
        page == Ok(je::PAGE)
            && self.small < 62
            && all.clone().all(|(&size, number)| number_of(size) == u32::from(number))
            && all.skip(1).all(|(&size, number)| number_of(size - QUANTUM + 1) == u32::from(number))
    }

    /// The class of blocks for `size` bytes; `None` past the largest.
    #[inline]
    pub(crate) fn of(&self, size: usize) -> Option<Class> {
        let number = number_of(size.max(QUANTUM));
        if number < u32::from(self.count) { Some(Class(number as u8)) } else { None }
    }

    /// Bytes in a block.
    #[inline]
    pub(crate) fn size(&self, class: Class) -> usize {
        self.sizes[usize::from(class.0)]
    }

    #[inline]
    pub(crate) const fn is_small(&self, class: Class) -> bool {
        class.0 < self.small
    }

    /// Bytes in the largest of the small blocks.
    pub(crate) fn largest_small(&self) -> usize {
        self.sizes[usize::from(self.small) - 1]
    }

    pub(crate) const fn count(&self) -> u8 {
        self.count
    }
}

/// Four sizes for each power of two, from 16 bytes on; before them, the one of 8 bytes has number 0.
#[inline]
const fn number_of(size: usize) -> u32 {
    if size <= 64 {
        return (size.div_ceil(QUANTUM)) as u32;
    }
    let last = size - 1;
    let power = last.ilog2();
    // `last` has its leading bit at `power`, and two more bits say which of the four.
    (power - 6) * 4 + (last >> (power - 2)) as u32 % 4 + 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jemalloc_has_these_sizes() {
        let classes = Classes::get().unwrap();
        assert_eq!(classes.largest_small(), 14 << 10);
        assert_eq!(classes.size(Class(1)), 16);
        for size in (1..100_000).chain([1 << 20, (1 << 20) + 1, usize::MAX >> 8]) {
            let class = classes.of(size).unwrap();
            assert_eq!(classes.size(class), je::usable(size.max(QUANTUM), 0), "{size}");
            assert!(class.number() == 1 || classes.size(Class(class.0 - 1)) < size);
        }
        assert_eq!(classes.of(usize::MAX), None);
        assert!(classes.count() > 200);
    }
}
