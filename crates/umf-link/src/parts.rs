//! [`Source`] and [`Destination`]: memory of this process that messages come from and go to.

use core::marker::PhantomData;
use std::io::{IoSlice, IoSliceMut};

use umf_core::{Access, Address, CpuAccess, View};

use crate::kernel_copy::Iov;
use crate::memory::Memory;
use crate::{Error, Reduction, Result};

/// A range of memory of this process. It is valid as long as the owner of the value ensures.
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
pub(crate) enum Parts {
    One(Part),
    Many(Vec<Part>),
}

impl Parts {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Part] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// Parts of a message in order, adjacent ones merged.
#[derive(Clone, Debug)]
pub(crate) struct List<'d> {
    parts: Parts,
    length: usize,
    /// The exportable memory in which all of it lies.
    memory: Option<&'d Memory<'d>>,
    /// How arriving numbers are combined with those in it.
    reduction: Option<Reduction>,
    /// Memory with accesses that its provider brackets.
    bracketed: Vec<&'d Memory<'d>>,
    borrowed: PhantomData<&'d [u8]>,
}

impl<'d> List<'d> {
    #[inline]
    fn one(base: *mut u8, length: usize, memory: Option<&'d Memory<'d>>) -> Self {
        let bracketed = match memory {
            Some(memory) if memory.host_access().is_some() => vec![memory],
            _ => Vec::new(),
        };
        let parts = Parts::One(Part { base, length });
        Self { parts, length, memory, reduction: None, bracketed, borrowed: PhantomData }
    }

    fn many(lists: impl Iterator<Item = List<'d>>) -> Self {
        let mut merged: Vec<Part> = Vec::new();
        let mut memory = None;
        let mut length = 0_usize;
        let mut bracketed: Vec<&Memory<'_>> = Vec::new();
        let same = |one: &Memory<'_>, other: &Memory<'_>| one.id() == other.id();
        for (number, list) in lists.enumerate() {
            for memory in &list.bracketed {
                if !bracketed.iter().any(|known| same(known, memory)) {
                    bracketed.push(memory);
                }
            }
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
        Self { parts, length, memory, reduction: None, bracketed, borrowed: PhantomData }
    }

    /// Brackets an access to its memory until the result is dropped. Costs nothing for memory that
    /// no device uses.
    ///
    /// # Errors
    /// [`Error::Memory`] if a driver refuses.
    #[inline]
    pub(crate) fn touch(&self, access: Access) -> Result<Vec<CpuAccess<'d>>> {
        let begin = |memory: &&'d Memory<'d>| {
            let (ability, base) = (memory.host_access(), Address::from_ptr(memory.base()));
            // SAFETY: the memory is there while it is borrowed, which bounds the result; this
            // process only copies in and out of it.
            unsafe { CpuAccess::begin(ability, base, memory.len(), access) }.map_err(Error::from)
        };
        if self.bracketed.is_empty() { Ok(Vec::new()) } else { self.bracketed.iter().map(begin).collect() }
    }

    /// Returns whether accesses to its memory are bracketed.
    #[inline]
    pub(crate) const fn is_bracketed(&self) -> bool {
        !self.bracketed.is_empty()
    }

    #[inline]
    pub(crate) fn parts(&self) -> &[Part] {
        self.parts.as_slice()
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    pub(crate) const fn memory(&self) -> Option<&'d Memory<'d>> {
        self.memory
    }

    #[inline]
    pub(crate) const fn reduction(&self) -> Option<&Reduction> {
        self.reduction.as_ref()
    }

    /// Returns whether a message of this length can be received into it.
    #[inline]
    pub(crate) fn takes(&self, length: usize) -> bool {
        length <= self.length && self.is_whole(length)
    }

    /// Returns whether so many bytes are whole numbers, if it receives numbers.
    #[inline]
    pub(crate) fn is_whole(&self, length: usize) -> bool {
        self.reduction.is_none_or(|reduction| length.is_multiple_of(reduction.element().size()))
    }

    /// Returns how many of its entries a message of this length reaches.
    #[inline]
    pub(crate) fn pieces(&self, length: usize) -> usize {
        let starts = self.parts().iter().scan(0, |end: &mut usize, part| {
            let start = *end;
            *end = start.saturating_add(part.length);
            Some(start)
        });
        starts.take_while(|start| *start < length).count()
    }

    /// Returns its start, to receive into.
    #[inline]
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { reduction: self.reduction(), ..Cursor::new(self.parts()) }
    }

    /// Returns the place of a byte, to receive into.
    pub(crate) fn cursor_at(&self, byte: usize) -> Cursor<'_> {
        Cursor { reduction: self.reduction(), ..Cursor::at(self.parts(), byte) }
    }

    /// Returns the same memory, to be replaced and not combined.
    pub(crate) fn plain(&self) -> Self {
        Self { reduction: None, ..self.clone() }
    }

    /// Returns a part of it; `None` if it is not in one piece, or too short.
    pub(crate) fn portion(&self, offset: usize, length: usize) -> Option<Self> {
        let [part] = *self.parts() else { return None };
        let fits = offset.checked_add(length).is_some_and(|end| end <= part.length);
        let base = part.base.wrapping_add(offset);
        fits.then(|| Self { reduction: self.reduction, ..Self::one(base, length, self.memory) })
    }
}

/// Memory that is sent: bytes, memory of a pool, or a list of such.
///
/// Made from `&[u8]` or numbers, `&[IoSlice]`, [`View`], [`Memory`], parts of one
/// ([`Memory::part`]), or a list of these ([`Source::list`]). Adjacent entries of a list count as
/// one.
#[derive(Clone, Debug)]
pub struct Source<'d>(pub(crate) List<'d>);

/// Memory that receives: bytes, memory of a pool, or a list of such.
///
/// Made from `&mut [u8]` or numbers, `&mut [IoSliceMut]`, [`View`], [`Memory`], parts of one, or a
/// list of these.
#[derive(Debug)]
pub struct Destination<'d>(pub(crate) List<'d>);

impl<'d> Source<'d> {
    /// Joins these, one after the other.
    pub fn list<S: Into<Source<'d>>>(parts: impl IntoIterator<Item = S>) -> Self {
        Self(List::many(parts.into_iter().map(|part| part.into().0)))
    }

    /// Returns its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a message, not of a container")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'d> Destination<'d> {
    /// Joins these, one after the other.
    pub fn list<D: Into<Destination<'d>>>(parts: impl IntoIterator<Item = D>) -> Self {
        Self(List::many(parts.into_iter().map(|part| part.into().0)))
    }

    /// # Errors
    /// [`Error::NotOnePiece`].
    pub(crate) fn in_one_piece(self) -> Result<List<'d>> {
        match self.0.parts().len() {
            1 => Ok(self.0),
            pieces => Err(Error::NotOnePiece { pieces }),
        }
    }

    /// Combines what is received with what is there, number by number, instead of replacing it.
    /// Memory of a pool is combined where the peer has it, without a copy.
    ///
    /// Messages are whole numbers. One side copies ([`crate::Engine::Both`] acts as
    /// [`crate::Engine::Mapped`]). After an error some numbers may be combined and others not.
    ///
    /// # Errors
    /// [`Error::PartialElement`] if any part of it is not whole numbers.
    ///
    /// # Examples
    /// ```
    /// use umf_link::{Destination, Operation, Reduction};
    /// let mut sums = [0.5_f32; 100];
    /// let into = Destination::from(&mut sums[..]).combined(Reduction::of::<f32>(Operation::Sum)?)?;
    /// assert_eq!(into.len(), 400);
    /// # Ok::<(), umf_link::Error>(())
    /// ```
    pub fn combined(mut self, reduction: Reduction) -> Result<Self> {
        let size = reduction.element().size();
        match self.0.parts().iter().find(|part| !part.length.is_multiple_of(size)) {
            Some(part) => Err(Error::PartialElement { length: part.length, size }),
            None => {
                self.0.reduction = Some(reduction);
                Ok(self)
            }
        }
    }

    /// Returns its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a message, not of a container")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }
}

/// A part of [`Memory`], by [`Memory::part`].
#[derive(Clone, Copy, Debug)]
pub struct MemoryPart<'d> {
    memory: &'d Memory<'d>,
    base: *mut u8,
    length: usize,
}

impl<'d> MemoryPart<'d> {
    pub(crate) fn new(memory: &'d Memory<'d>, offset: usize, length: usize) -> Result<Self> {
        let size = memory.len();
        if offset > size || length > size - offset {
            return Err(Error::OutOfBounds { offset, length, size });
        }
        Ok(Self { memory, base: memory.base().wrapping_add(offset), length })
    }

    /// Returns the memory, which other processes may write at any time.
    #[must_use]
    pub fn slice(&self) -> View<'d> {
        let offset = self.base.addr() - self.memory.base().addr();
        // `new` has checked that it is a part of the memory.
        self.memory.slice().range(offset..offset + self.length).unwrap_or_else(View::empty)
    }
}

/// A place in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'l> {
    parts: &'l [Part],
    offset: usize,
    reduction: Option<&'l Reduction>,
}

impl<'l> Cursor<'l> {
    #[inline]
    pub(crate) fn new(parts: &'l [Part]) -> Self {
        Self { parts, offset: 0, reduction: None }
    }

    /// Returns the place of a byte.
    pub(crate) fn at(parts: &'l [Part], mut byte: usize) -> Self {
        let mut rest = parts;
        while let Some((first, others)) = rest.split_first() {
            if byte < first.length {
                break;
            }
            byte -= first.length;
            rest = others;
        }
        Self { parts: rest, offset: byte, reduction: None }
    }

    /// Returns the next bytes in one piece, at most `most`.
    #[inline]
    pub(crate) fn piece(&mut self, most: usize) -> Option<Part> {
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

    /// Returns the ranges of the next `length` bytes.
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
    /// The parts can be read, and `to` written, both as memory that others may write at the same
    /// time.
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

    /// Copies the next `length` bytes from `from`, or combines them, which are whole numbers then.
    ///
    /// # Safety
    /// The parts can be written, and `from` read, both as memory that others may write at the same
    /// time.
    #[inline]
    pub(crate) unsafe fn copy_in(&mut self, mut from: *const u8, mut length: usize) {
        while length > 0
            && let Some(piece) = self.piece(length)
        {
            // SAFETY: by this function's contract.
            unsafe {
                match self.reduction {
                    None => core::ptr::copy(from, piece.base, piece.length),
                    Some(reduction) => reduction.combine(piece.base, from, piece.length),
                }
            }
            from = from.wrapping_add(piece.length);
            length -= piece.length;
        }
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

macro_rules! numbers {
    ($($type:ident),*) => {$(
        impl<'d> From<&'d [$type]> for Source<'d> {
            fn from(numbers: &'d [$type]) -> Self {
                Self(List::one(numbers.as_ptr().cast::<u8>().cast_mut(), size_of_val(numbers), None))
            }
        }

        impl<'d> From<&'d mut [$type]> for Destination<'d> {
            fn from(numbers: &'d mut [$type]) -> Self {
                Self(List::one(numbers.as_mut_ptr().cast(), size_of_val(numbers), None))
            }
        }
    )*};
}
numbers!(i8, i16, i32, i64, u16, u32, u64, f32, f64);

macro_rules! shared_memory {
    ($($made:ident),*) => {$(
        impl<'d> From<View<'d>> for $made<'d> {
            fn from(slice: View<'d>) -> Self {
                Self(List::one(slice.as_mut_ptr(), slice.len(), None))
            }
        }

        impl<'d, 'm: 'd> From<&'d Memory<'m>> for $made<'d> {
            #[inline]
            fn from(memory: &'d Memory<'m>) -> Self {
                Self(List::one(memory.base(), memory.len(), Some(memory)))
            }
        }

        impl<'d> From<MemoryPart<'d>> for $made<'d> {
            #[inline]
            fn from(portion: MemoryPart<'d>) -> Self {
                Self(List::one(portion.base, portion.length, Some(portion.memory)))
            }
        }
    )*};
}
shared_memory!(Source, Destination);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_entries_are_merged() {
        let bytes: Vec<u8> = (0..100).collect();
        let whole = Source::list([&bytes[..10], &bytes[10..40], &bytes[40..40], &bytes[40..]]);
        assert_eq!(whole.0.parts(), Source::from(&bytes).0.parts());
        let gaps = Source::list([&bytes[..10], &bytes[20..30], &bytes[30..31], &bytes[5..6]]);
        assert_eq!(gaps.0.parts().iter().map(|part| part.length).collect::<Vec<_>>(), [10, 11, 1]);
        assert_eq!(gaps.len(), 22);
        let pieces = [0, 1, 10, 11, 21, 22].map(|length| gaps.0.pieces(length));
        assert_eq!(pieces, [0, 1, 1, 2, 2, 3]);
        assert_eq!(Source::list::<&[u8]>([]).len(), 0);
    }

    #[test]
    fn cursor_copies_any_part_of_list() {
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
