//! [`Source`] and [`Destination`]: memory of this process that is sent or receives.
//!
//! Both wrap a [`Buffer`], a list of [`Segment`]s. A [`Cursor`] walks over it and copies.

use core::marker::PhantomData;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use umf_core::{Access, Address, CpuAccess, View};

use crate::kernel_copy::Iov;
use crate::memory::{Memory, MemoryPart};
use crate::{Error, Reduction, Result};

/// A contiguous range of memory of this process. The owner of the value keeps it valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub base: *mut u8,
    pub length: usize,
}

impl Segment {
    fn address(self) -> u64 {
        self.base.expose_provenance() as u64
    }

    pub(crate) fn iov(self) -> Iov {
        Iov { address: self.address(), length: self.length as u64 }
    }
}

/// One segment without an allocation, or several.
#[derive(Clone, Debug)]
enum Segments {
    One(Segment),
    Many(Vec<Segment>),
}

impl Segments {
    #[inline]
    fn as_slice(&self) -> &[Segment] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// The memory of a message: segments in order, adjacent ones merged.
#[derive(Clone, Debug)]
pub(crate) struct Buffer<'d> {
    segments: Segments,
    length: usize,
    /// The exportable memory that contains all segments.
    memory: Option<&'d Memory<'d>>,
    /// The same, where nothing else keeps the value.
    kept: Option<Arc<Memory<'static>>>,
    /// How received numbers are combined with those in the segments.
    reduction: Option<Reduction>,
    /// Memory whose provider brackets accesses by the CPU (dma-buf).
    bracketed: Vec<&'d Memory<'d>>,
    borrowed: PhantomData<&'d [u8]>,
}

impl<'d> Buffer<'d> {
    #[inline]
    fn one(base: *mut u8, length: usize, memory: Option<&'d Memory<'d>>) -> Self {
        let bracketed = match memory {
            Some(memory) if memory.host_access().is_some() => vec![memory],
            _ => Vec::new(),
        };
        let segments = Segments::One(Segment { base, length });
        Self { segments, length, memory, kept: None, reduction: None, bracketed, borrowed: PhantomData }
    }

    /// Returns pieces of memory, which is valid as long as the caller of the caller promised.
    #[inline]
    fn from_raw(pieces: &[(*mut u8, usize)]) -> Self {
        match *pieces {
            [(base, length)] => Self::one(base, length, None),
            _ => Self::concat(pieces.iter().map(|(base, length)| Self::one(*base, *length, None))),
        }
    }

    fn concat(buffers: impl Iterator<Item = Buffer<'d>>) -> Self {
        let mut merged: Vec<Segment> = Vec::new();
        let mut memory = None;
        let mut length = 0_usize;
        let mut bracketed: Vec<&Memory<'_>> = Vec::new();
        let is_same = |one: &Memory<'_>, other: &Memory<'_>| one.id() == other.id();
        for (number, buffer) in buffers.enumerate() {
            for memory in &buffer.bracketed {
                if !bracketed.iter().any(|known| is_same(known, memory)) {
                    bracketed.push(memory);
                }
            }
            memory = match (number, memory, buffer.memory) {
                (0, _, first) => first,
                (_, Some(common), Some(next)) if is_same(common, next) => Some(common),
                _ => None,
            };
            for segment in buffer.segments() {
                match merged.last_mut() {
                    Some(last) if last.base.wrapping_add(last.length) == segment.base => {
                        last.length += segment.length
                    }
                    _ if segment.length == 0 => {}
                    _ => merged.push(*segment),
                }
            }
            length = length.saturating_add(buffer.length);
        }
        let segments = match merged[..] {
            [] => Segments::One(Segment { base: core::ptr::NonNull::dangling().as_ptr(), length: 0 }),
            [one] => Segments::One(one),
            _ => Segments::Many(merged),
        };
        Self { segments, length, memory, kept: None, reduction: None, bracketed, borrowed: PhantomData }
    }

    /// Begins an access by the CPU, which ends when the result is dropped. Does nothing for memory
    /// without [`umf_core::HostAccess`].
    ///
    /// # Errors
    /// [`Error::Memory`] if a driver refuses.
    #[inline]
    pub(crate) fn begin_access(&self, access: Access) -> Result<Vec<CpuAccess<'d>>> {
        let begin = |memory: &&'d Memory<'d>| {
            let (ability, base) = (memory.host_access(), Address::from_ptr(memory.base()));
            // SAFETY: the borrow of `memory`, which bounds the result, keeps the memory valid; this
            // process only copies in and out of it.
            unsafe { CpuAccess::begin(ability, base, memory.len(), access) }.map_err(Error::from)
        };
        if self.bracketed.is_empty() { Ok(Vec::new()) } else { self.bracketed.iter().map(begin).collect() }
    }

    /// Returns whether the provider of any segment brackets accesses by the CPU.
    #[inline]
    pub(crate) const fn is_bracketed(&self) -> bool {
        !self.bracketed.is_empty()
    }

    #[inline]
    pub(crate) fn segments(&self) -> &[Segment] {
        self.segments.as_slice()
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn memory(&self) -> Option<&Memory<'_>> {
        match (self.memory, &self.kept) {
            (Some(memory), _) => Some(memory),
            (None, kept) => kept.as_deref(),
        }
    }

    /// Returns the same memory, which other processes may map if all of it lies in `memory`.
    fn within(self, memory: Option<Arc<Memory<'static>>>) -> Self {
        let is_usable = |memory: &Arc<Memory<'static>>| {
            let (start, size) = (memory.base().addr(), memory.len());
            let is_inside = |segment: &Segment| {
                let offset = segment.base.addr().checked_sub(start);
                offset.is_some_and(|offset| offset <= size && segment.length <= size - offset)
            };
            memory.host_access().is_none() && self.segments().iter().all(is_inside)
        };
        Self { kept: memory.filter(is_usable), ..self }
    }

    #[inline]
    pub(crate) const fn reduction(&self) -> Option<&Reduction> {
        self.reduction.as_ref()
    }

    /// Returns whether a message of this length can be received into the buffer.
    #[inline]
    pub(crate) fn fits(&self, length: usize) -> bool {
        length <= self.length && self.holds_whole_elements(length)
    }

    /// Returns whether `length` is a multiple of the element size; `true` without a reduction.
    #[inline]
    pub(crate) fn holds_whole_elements(&self, length: usize) -> bool {
        self.reduction.is_none_or(|reduction| length.is_multiple_of(reduction.element().size()))
    }

    /// Returns the number of segments that a message of this length fills, the last one perhaps in
    /// part.
    #[inline]
    pub(crate) fn segments_for(&self, length: usize) -> usize {
        let starts = self.segments().iter().scan(0, |end: &mut usize, segment| {
            let start = *end;
            *end = start.saturating_add(segment.length);
            Some(start)
        });
        starts.take_while(|start| *start < length).count()
    }

    /// Returns a cursor at the start, which combines if the buffer has a reduction.
    #[inline]
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { reduction: self.reduction(), ..Cursor::new(self.segments()) }
    }

    /// Returns a cursor at a byte, which combines if the buffer has a reduction.
    pub(crate) fn cursor_at(&self, byte: usize) -> Cursor<'_> {
        Cursor { reduction: self.reduction(), ..Cursor::at(self.segments(), byte) }
    }

    /// Returns the same memory without the reduction: received bytes replace the contents.
    pub(crate) fn without_reduction(&self) -> Self {
        Self { reduction: None, ..self.clone() }
    }

    /// Returns a range of the buffer; `None` if the buffer is not contiguous, or too short.
    pub(crate) fn subrange(&self, offset: usize, length: usize) -> Option<Self> {
        let [segment] = *self.segments() else { return None };
        let fits = offset.checked_add(length).is_some_and(|end| end <= segment.length);
        let base = segment.base.wrapping_add(offset);
        let kept = self.kept.clone();
        fits.then(|| Self { kept, reduction: self.reduction, ..Self::one(base, length, self.memory) })
    }
}

/// Memory that is sent: bytes, memory of a pool, or a list of both.
///
/// Made from `&[u8]` or numbers, `&[IoSlice]`, [`View`], [`Memory`], parts of one
/// ([`Memory::part`]), or a list of these ([`Source::list`]). Adjacent entries of a list count as
/// one.
#[derive(Clone, Debug)]
pub struct Source<'d>(pub(crate) Buffer<'d>);

/// Memory that receives: bytes, memory of a pool, or a list of both.
///
/// Made from `&mut [u8]` or numbers, `&mut [IoSliceMut]`, [`View`], [`Memory`], parts of one, or a
/// list of these.
#[derive(Debug)]
pub struct Destination<'d>(pub(crate) Buffer<'d>);

impl Source<'static> {
    /// Returns the concatenation of pieces of memory: address and length of each.
    ///
    /// # Safety
    /// While an operation uses the source, each piece can be read and is not written.
    #[must_use]
    pub unsafe fn from_raw(pieces: &[(*mut u8, usize)]) -> Self {
        Self(Buffer::from_raw(pieces))
    }

    /// Returns the same source, which peers may map if all of it lies in `memory`. The memory's
    /// handle is announced until the operation has ended.
    #[must_use]
    pub fn within(self, memory: Option<Arc<Memory<'static>>>) -> Self {
        Self(self.0.within(memory))
    }
}

impl Destination<'static> {
    /// Returns the concatenation of pieces of memory: address and length of each.
    ///
    /// # Safety
    /// While an operation uses the destination, each piece can be written and is not used
    /// otherwise.
    #[must_use]
    pub unsafe fn from_raw(pieces: &[(*mut u8, usize)]) -> Self {
        Self(Buffer::from_raw(pieces))
    }

    /// Returns the same destination, which peers may map if all of it lies in `memory`.
    #[must_use]
    pub fn within(self, memory: Option<Arc<Memory<'static>>>) -> Self {
        Self(self.0.within(memory))
    }
}

impl<'d> Source<'d> {
    /// Returns the concatenation of several sources.
    pub fn list<S: Into<Source<'d>>>(parts: impl IntoIterator<Item = S>) -> Self {
        Self(Buffer::concat(parts.into_iter().map(|part| part.into().0)))
    }

    /// Returns its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a message, not of a container")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'d> Destination<'d> {
    /// Returns the concatenation of several destinations.
    pub fn list<D: Into<Destination<'d>>>(parts: impl IntoIterator<Item = D>) -> Self {
        Self(Buffer::concat(parts.into_iter().map(|part| part.into().0)))
    }

    /// Returns the buffer, if it is contiguous.
    ///
    /// # Errors
    /// [`Error::NotContiguous`].
    pub(crate) fn contiguous(self) -> Result<Buffer<'d>> {
        match self.0.segments().len() {
            1 => Ok(self.0),
            pieces => Err(Error::NotContiguous { pieces }),
        }
    }

    /// Combines received numbers with those in this memory, instead of replacing them. Numbers in
    /// memory of a pool are read in the sender's block, without a copy.
    ///
    /// The length of a message must be a multiple of the element size. [`crate::Engine::Both`] acts
    /// as [`crate::Engine::Mapped`]. After an error some numbers may be combined and others not.
    ///
    /// # Errors
    /// [`Error::PartialElement`] if the length of a segment is not a multiple of the element size.
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
        match self.0.segments().iter().find(|segment| !segment.length.is_multiple_of(size)) {
            Some(segment) => Err(Error::PartialElement { length: segment.length, size }),
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

/// A position in a list of segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'l> {
    segments: &'l [Segment],
    offset: usize,
    reduction: Option<&'l Reduction>,
}

impl<'l> Cursor<'l> {
    #[inline]
    pub(crate) fn new(segments: &'l [Segment]) -> Self {
        Self { segments, offset: 0, reduction: None }
    }

    /// Returns a cursor at a byte.
    pub(crate) fn at(segments: &'l [Segment], mut byte: usize) -> Self {
        let mut rest = segments;
        while let Some((first, others)) = rest.split_first() {
            if byte < first.length {
                break;
            }
            byte -= first.length;
            rest = others;
        }
        Self { segments: rest, offset: byte, reduction: None }
    }

    /// Returns the rest of the current segment, at most `most` bytes, and advances past it.
    #[inline]
    pub(crate) fn next_segment(&mut self, most: usize) -> Option<Segment> {
        loop {
            let (first, others) = self.segments.split_first()?;
            let left = first.length - self.offset;
            if left == 0 {
                self.segments = others;
                self.offset = 0;
                continue;
            }
            let length = left.min(most);
            let base = first.base.wrapping_add(self.offset);
            self.offset += length;
            return Some(Segment { base, length });
        }
    }

    /// Returns the ranges of the next `length` bytes, and advances past them.
    pub(crate) fn ranges(&mut self, mut length: usize) -> Vec<Iov> {
        let mut ranges = Vec::with_capacity(self.segments.len().min(64));
        while length > 0
            && let Some(segment) = self.next_segment(length)
        {
            ranges.push(segment.iov());
            length -= segment.length;
        }
        ranges
    }

    /// Copies the next `length` bytes to `to`.
    ///
    /// # Safety
    /// The segments can be read and `to` written. Other processes may write both at the same time.
    #[inline]
    pub(crate) unsafe fn copy_out(&mut self, mut to: *mut u8, mut length: usize) {
        while length > 0
            && let Some(segment) = self.next_segment(length)
        {
            // SAFETY: by this function's contract.
            unsafe { core::ptr::copy(segment.base, to, segment.length) };
            to = to.wrapping_add(segment.length);
            length -= segment.length;
        }
    }

    /// Copies or combines the next `length` bytes from `from`. If it combines, `length` is a
    /// multiple of the element size.
    ///
    /// # Safety
    /// The segments can be written and `from` read. Other processes may write both at the same
    /// time.
    #[inline]
    pub(crate) unsafe fn copy_in(&mut self, mut from: *const u8, mut length: usize) {
        while length > 0
            && let Some(segment) = self.next_segment(length)
        {
            // SAFETY: by this function's contract.
            unsafe {
                match self.reduction {
                    None => core::ptr::copy(from, segment.base, segment.length),
                    Some(reduction) => reduction.combine(segment.base, from, segment.length),
                }
            }
            from = from.wrapping_add(segment.length);
            length -= segment.length;
        }
    }
}

impl<'d> From<&'d [u8]> for Source<'d> {
    #[inline]
    fn from(bytes: &'d [u8]) -> Self {
        Self(Buffer::one(bytes.as_ptr().cast_mut(), bytes.len(), None))
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
        Self(Buffer::one(bytes.as_mut_ptr(), bytes.len(), None))
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
                Self(Buffer::one(numbers.as_ptr().cast::<u8>().cast_mut(), size_of_val(numbers), None))
            }
        }

        impl<'d> From<&'d mut [$type]> for Destination<'d> {
            fn from(numbers: &'d mut [$type]) -> Self {
                Self(Buffer::one(numbers.as_mut_ptr().cast(), size_of_val(numbers), None))
            }
        }
    )*};
}
numbers!(i8, i16, i32, i64, u16, u32, u64, f32, f64);

macro_rules! shared_memory {
    ($($made:ident),*) => {$(
        impl<'d> From<View<'d>> for $made<'d> {
            fn from(slice: View<'d>) -> Self {
                Self(Buffer::one(slice.as_mut_ptr(), slice.len(), None))
            }
        }

        impl<'d, 'm: 'd> From<&'d Memory<'m>> for $made<'d> {
            #[inline]
            fn from(memory: &'d Memory<'m>) -> Self {
                Self(Buffer::one(memory.base(), memory.len(), Some(memory)))
            }
        }

        impl<'d> From<MemoryPart<'d>> for $made<'d> {
            #[inline]
            fn from(part: MemoryPart<'d>) -> Self {
                Self(Buffer::one(part.base, part.length, Some(part.memory)))
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
        assert_eq!(whole.0.segments(), Source::from(&bytes).0.segments());
        let gaps = Source::list([&bytes[..10], &bytes[20..30], &bytes[30..31], &bytes[5..6]]);
        assert_eq!(gaps.0.segments().iter().map(|segment| segment.length).collect::<Vec<_>>(), [10, 11, 1]);
        assert_eq!(gaps.len(), 22);
        let counts = [0, 1, 10, 11, 21, 22].map(|length| gaps.0.segments_for(length));
        assert_eq!(counts, [0, 1, 1, 2, 2, 3]);
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
                unsafe { Cursor::at(list.0.segments(), start).copy_out(to.as_mut_ptr(), length) };
                assert_eq!(to[..length], expected[start..start + length]);
                let ranges = Cursor::at(list.0.segments(), start).ranges(length);
                assert_eq!(ranges.iter().map(|range| range.length).sum::<u64>(), length as u64);
            }
        }
        let mut to = vec![0_u8; 100];
        let scattered = Destination::list(to.chunks_mut(9));
        // SAFETY: memory of this test.
        unsafe { Cursor::new(scattered.0.segments()).copy_in(bytes.as_ptr(), 100) };
        assert_eq!(to, bytes);
    }
}
