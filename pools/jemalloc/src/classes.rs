//! [`Classes`]: the size classes of jemalloc, by number.

use std::sync::OnceLock;

use umf_core::{Error, Result};

use crate::je;

/// The most size classes that this module supports.
const MAX_CLASSES: usize = 255;

/// The smallest block size of the pool, and the alignment of all blocks. jemalloc also has a class
/// of 8 bytes, which the pool does not use.
pub(crate) const QUANTUM: usize = 16;

/// A size class, by its number.
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

/// The size classes, as jemalloc reports them.
#[derive(Debug)]
pub(crate) struct Classes {
    sizes: [usize; MAX_CLASSES],
    /// The number of small classes, whose blocks share slabs. Each larger block has an extent of
    /// its own.
    small: u8,
    count: u8,
}

impl Classes {
    /// Returns the size classes.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if jemalloc was built with classes other than those that this module
    /// computes.
    pub(crate) fn get() -> Result<&'static Self> {
        static KNOWN: OnceLock<Option<Classes>> = OnceLock::new();
        let other = Error::NotSupported {
            what: "jemalloc built with other size classes",
            owner: "this jemalloc pool; build jemalloc without changes to its size classes",
            native: 0,
        };
        KNOWN.get_or_init(|| Self::read().ok().filter(Self::is_as_computed)).as_ref().ok_or(other)
    }

    fn read() -> Result<Self> {
        let (small, large) = (je::read::<u32>(c"arenas.nbins")?, je::read::<u32>(c"arenas.nlextents")?);
        let other = Error::NotSupported {
            what: "jemalloc with more than 254 size classes",
            owner: "this jemalloc pool; build jemalloc without changes to its size classes",
            native: 0,
        };
        let count = u8::try_from(small + large)
            .ok()
            .filter(|&count| usize::from(count) < MAX_CLASSES)
            .ok_or(other)?;
        let small = u8::try_from(small).map_err(|_| other)?;
        let mut sizes = [0; MAX_CLASSES];
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
        // The class of a small block and two flags share a byte.
        page == Ok(je::PAGE)
            && self.small < 62
            && all.clone().all(|(&size, number)| number_of(size) == u32::from(number))
            && all.skip(1).all(|(&size, number)| number_of(size - QUANTUM + 1) == u32::from(number))
    }

    /// Returns the class of blocks for `size` bytes; `None` beyond the largest class.
    #[inline]
    pub(crate) fn of(&self, size: usize) -> Option<Class> {
        let number = number_of(size.max(QUANTUM));
        if number < u32::from(self.count) { Some(Class(number as u8)) } else { None }
    }

    /// Returns the bytes of a block of a class.
    #[inline]
    pub(crate) fn size(&self, class: Class) -> usize {
        self.sizes[usize::from(class.0)]
    }

    /// Returns whether blocks of a class share slabs.
    #[inline]
    pub(crate) const fn is_small(&self, class: Class) -> bool {
        class.0 < self.small
    }

    /// Returns the bytes of a block of the largest small class.
    pub(crate) fn largest_small(&self) -> usize {
        self.sizes[usize::from(self.small) - 1]
    }

    pub(crate) const fn count(&self) -> u8 {
        self.count
    }
}

/// Returns the class number of a size. There are four classes per doubling, from 16 bytes on. Class
/// 0 has 8 bytes.
#[inline]
const fn number_of(size: usize) -> u32 {
    if size <= 64 {
        return (size.div_ceil(QUANTUM)) as u32;
    }
    let last = size - 1;
    let power = last.ilog2();
    // The leading bit of `last` is at `power`, and the next two bits select one of four classes.
    (power - 6) * 4 + (last >> (power - 2)) as u32 % 4 + 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_classes_are_those_of_jemalloc() {
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
