//! Memory of this process that messages are in: what callers give, as addresses and lengths.

use core::marker::PhantomData;
use std::io::{IoSlice, IoSliceMut};

use vm_memory::VolatileSlice;

use crate::memory::Memory;
use crate::sys::Iov;
use crate::{Error, Result};

/// A range of memory of this process, valid as long as what holds it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub base: *mut u8,
    pub length: usize,
}

impl Part {
    fn address(self) -> u64 {
        self.base.expose_provenance() as u64
    }

    pub(crate) fn iov(self) -> Iov {
        Iov { address: self.address(), length: self.length as u64 }
    }
}

/// One part, or several.
#[derive(Clone, Debug)]
enum Parts {
    One(Part),
    Many(Vec<Part>),
}

/// Parts in the order in which they make up a message, adjacent ones merged.
#[derive(Clone, Debug)]
pub(crate) struct List<'d> {
    parts: Parts,
    length: usize,
    /// The exportable memory that all of it lies in.
    memory: Option<&'d Memory<'d>>,
    borrowed: PhantomData<&'d [u8]>,
}

impl<'d> List<'d> {
    #[inline]
    fn one(base: *mut u8, length: usize, memory: Option<&'d Memory<'d>>) -> Self {
        Self { parts: Parts::One(Part { base, length }), length, memory, borrowed: PhantomData }
    }

    fn many(lists: impl Iterator<Item = List<'d>>) -> Self {
        let mut merged: Vec<Part> = Vec::new();
        let mut memory = None;
        let mut length = 0_usize;
        for (number, list) in lists.enumerate() {
            let same = |one: &Memory<'_>, other: &Memory<'_>| one.id() == other.id();
            memory = match (number, memory, list.memory) {
                (0, _, first) => first,
                (_, Some(before), Some(now)) if same(before, now) => Some(before),
                _ => None,
            };
            for part in list.parts() {
                match merged.last_mut() {
                    Some(last) if last.base.wrapping_add(last.length) == part.base => {
                        last.length += part.length
                    }
                    _ if part.length == 0 => {}
                    _ => merged.push(*part),
                }
            }
            length = length.saturating_add(list.length);
        }
        let parts = match merged[..] {
            [] => Parts::One(Part { base: core::ptr::NonNull::dangling().as_ptr(), length: 0 }),
            [one] => Parts::One(one),
            _ => Parts::Many(merged),
        };
        Self { parts, length, memory, borrowed: PhantomData }
    }

    #[inline]
    pub(crate) fn parts(&self) -> &[Part] {
        match &self.parts {
            Parts::One(one) => core::slice::from_ref(one),
            Parts::Many(many) => many,
        }
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    pub(crate) const fn memory(&self) -> Option<&'d Memory<'d>> {
        self.memory
    }
}

/// What is sent: bytes, memory of a pool, or a list of such.
///
/// Made from `&[u8]`, `&[IoSlice]`, [`VolatileSlice`], [`Memory`], parts of one ([`Memory::part`]), or a list of any of
/// these ([`Source::list`]). Adjacent entries of a list count as one.
#[derive(Clone, Debug)]
pub struct Source<'d>(pub(crate) List<'d>);

/// Where what is received goes: bytes, memory of a pool, or a list of such.
///
/// Made from `&mut [u8]`, `&mut [IoSliceMut]`, [`VolatileSlice`], [`Memory`], parts of one, or a list of any of these.
#[derive(Debug)]
pub struct Destination<'d>(pub(crate) List<'d>);

impl<'d> Source<'d> {
    /// All of these, one after the other.
    pub fn list<S: Into<Source<'d>>>(parts: impl IntoIterator<Item = S>) -> Self {
        Self(List::many(parts.into_iter().map(|part| part.into().0)))
    }

    /// Bytes of all of it.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a message, not of a container")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'d> Destination<'d> {
    /// All of these, one after the other.
    pub fn list<D: Into<Destination<'d>>>(parts: impl IntoIterator<Item = D>) -> Self {
        Self(List::many(parts.into_iter().map(|part| part.into().0)))
    }

    /// Bytes of all of it.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a message, not of a container")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'d> From<&'d [u8]> for Source<'d> {
    #[inline]
    fn from(bytes: &'d [u8]) -> Self {
        Self(List::one(bytes.as_ptr().cast_mut(), bytes.len(), None))
    }
}

impl<'d, const LENGTH: usize> From<&'d [u8; LENGTH]> for Source<'d> {
    #[inline]
    fn from(bytes: &'d [u8; LENGTH]) -> Self {
        Self::from(&bytes[..])
    }
}

impl<'d> From<&'d Vec<u8>> for Source<'d> {
    #[inline]
    fn from(bytes: &'d Vec<u8>) -> Self {
        Self::from(&bytes[..])
    }
}

impl<'d> From<&'d [IoSlice<'d>]> for Source<'d> {
    fn from(list: &'d [IoSlice<'d>]) -> Self {
        Self::list(list.iter().map(|slice| &slice[..]))
    }
}

impl<'d> From<&'d mut [u8]> for Destination<'d> {
    #[inline]
    fn from(bytes: &'d mut [u8]) -> Self {
        Self(List::one(bytes.as_mut_ptr(), bytes.len(), None))
    }
}

impl<'d, const LENGTH: usize> From<&'d mut [u8; LENGTH]> for Destination<'d> {
    #[inline]
    fn from(bytes: &'d mut [u8; LENGTH]) -> Self {
        Self::from(&mut bytes[..])
    }
}

impl<'d> From<&'d mut Vec<u8>> for Destination<'d> {
    #[inline]
    fn from(bytes: &'d mut Vec<u8>) -> Self {
        Self::from(&mut bytes[..])
    }
}

impl<'d> From<&'d mut [IoSliceMut<'d>]> for Destination<'d> {
    fn from(list: &'d mut [IoSliceMut<'d>]) -> Self {
        Self::list(list.iter_mut().map(|slice| &mut slice[..]))
    }
}

macro_rules! shared_memory {
    ($($made:ident),*) => {$(
        impl<'d> From<VolatileSlice<'d>> for $made<'d> {
            fn from(slice: VolatileSlice<'d>) -> Self {
                Self(List::one(slice.ptr_guard_mut().as_ptr(), slice.len(), None))
            }
        }

        impl<'d, 'm: 'd> From<&'d Memory<'m>> for $made<'d> {
            #[inline]
            fn from(memory: &'d Memory<'m>) -> Self {
                Self(List::one(memory.base(), memory.len(), Some(memory)))
            }
        }

        impl<'d> From<Portion<'d>> for $made<'d> {
            #[inline]
            fn from(portion: Portion<'d>) -> Self {
                Self(List::one(portion.base, portion.length, Some(portion.memory)))
            }
        }
    )*};
}
shared_memory!(Source, Destination);

/// A part of [`Memory`], by [`Memory::part`].
#[derive(Clone, Copy, Debug)]
pub struct Portion<'d> {
    memory: &'d Memory<'d>,
    base: *mut u8,
    length: usize,
}

impl<'d> Portion<'d> {
    pub(crate) fn new(memory: &'d Memory<'d>, offset: usize, length: usize) -> Result<Self> {
        let size = memory.len();
        if offset > size || length > size - offset {
            return Err(Error::OutOfBounds { offset, length, size });
        }
        Ok(Self { memory, base: memory.base().wrapping_add(offset), length })
    }

    /// The memory, which other processes may write at any time.
    #[must_use]
    pub fn slice(&self) -> VolatileSlice<'d> {
        // SAFETY: a part of the memory's slice, as `new` has looked.
        unsafe { VolatileSlice::new(self.base, self.length) }
    }
}

/// A place in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'l> {
    parts: &'l [Part],
    offset: usize,
}

impl<'l> Cursor<'l> {
    #[inline]
    pub(crate) fn new(parts: &'l [Part]) -> Self {
        Self { parts, offset: 0 }
    }

    /// At this byte of the list.
    pub(crate) fn at(parts: &'l [Part], mut byte: usize) -> Self {
        let mut rest = parts;
        while let Some((first, others)) = rest.split_first() {
            if byte < first.length {
                break;
            }
            byte -= first.length;
            rest = others;
        }
        Self { parts: rest, offset: byte }
    }

    /// The next bytes that lie in one piece, at most so many.
    #[inline]
    fn piece(&mut self, most: usize) -> Option<Part> {
        loop {
            let (first, others) = self.parts.split_first()?;
            let left = first.length - self.offset;
            if left == 0 {
                self.parts = others;
                self.offset = 0;
                continue;
            }
            let length = left.min(most);
            let base = first.base.wrapping_add(self.offset);
            self.offset += length;
            return Some(Part { base, length });
        }
    }

    /// The ranges of the next `length` bytes.
    pub(crate) fn ranges(&mut self, mut length: usize) -> Vec<Iov> {
        let mut ranges = Vec::with_capacity(self.parts.len().min(64));
        while length > 0
            && let Some(piece) = self.piece(length)
        {
            ranges.push(piece.iov());
            length -= piece.length;
        }
        ranges
    }

    /// Copies the next `length` bytes to `to`.
    ///
    /// # Safety
    /// The parts can be read, and `to` written, both as memory that others may write at the same time.
    #[inline]
    pub(crate) unsafe fn copy_out(&mut self, mut to: *mut u8, mut length: usize) {
        while length > 0
            && let Some(piece) = self.piece(length)
        {
            // SAFETY: by this function's contract.
            unsafe { core::ptr::copy(piece.base, to, piece.length) };
            to = to.wrapping_add(piece.length);
            length -= piece.length;
        }
    }

    /// Copies the next `length` bytes from `from`.
    ///
    /// # Safety
    /// The parts can be written, and `from` read, both as memory that others may write at the same time.
    #[inline]
    pub(crate) unsafe fn copy_in(&mut self, mut from: *const u8, mut length: usize) {
        while length > 0
            && let Some(piece) = self.piece(length)
        {
            // SAFETY: by this function's contract.
            unsafe { core::ptr::copy(from, piece.base, piece.length) };
            from = from.wrapping_add(piece.length);
            length -= piece.length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_entries_are_one() {
        let bytes: Vec<u8> = (0..100).collect();
        let whole = Source::list([&bytes[..10], &bytes[10..40], &bytes[40..40], &bytes[40..]]);
        assert_eq!(whole.0.parts(), Source::from(&bytes).0.parts());
        let gaps = Source::list([&bytes[..10], &bytes[20..30], &bytes[30..31], &bytes[5..6]]);
        assert_eq!(gaps.0.parts().iter().map(|part| part.length).collect::<Vec<_>>(), [10, 11, 1]);
        assert_eq!(gaps.len(), 22);
        assert_eq!(Source::list::<&[u8]>([]).len(), 0);
    }

    #[test]
    fn any_part_of_a_list_is_copied() {
        let bytes: Vec<u8> = (0..100).collect();
        let list = Source::list(bytes.chunks(7).rev());
        let expected: Vec<u8> = bytes.chunks(7).rev().flatten().copied().collect();
        for start in 0..100 {
            for length in [0, 1, 6, 7, 8, 50] {
                let length = length.min(100 - start);
                let mut to = [0_u8; 100];
                // SAFETY: memory of this test.
                unsafe { Cursor::at(list.0.parts(), start).copy_out(to.as_mut_ptr(), length) };
                assert_eq!(to[..length], expected[start..start + length]);
                let ranges = Cursor::at(list.0.parts(), start).ranges(length);
                assert_eq!(ranges.iter().map(|range| range.length).sum::<u64>(), length as u64);
            }
        }
        let mut to = vec![0_u8; 100];
        let scattered = Destination::list(to.chunks_mut(9));
        // SAFETY: memory of this test.
        unsafe { Cursor::new(scattered.0.parts()).copy_in(bytes.as_ptr(), 100) };
        assert_eq!(to, bytes);
    }
}
