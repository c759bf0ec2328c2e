//! Memory of this process that messages are in: what callers give, as addresses and lengths.

mod convert;

use core::marker::PhantomData;

use umf_core::{Access, Address, CpuAccess, View};

use crate::key::RemoteAccess;
use crate::memory::Memory;
use crate::sys::Iov;
use crate::{Error, Reduction, Result};

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

/// Parts in the order in which they make up a message, adjacent ones merged.
#[derive(Clone, Debug)]
pub(crate) struct List<'d> {
    parts: Parts,
    length: usize,
    /// The exportable memory that all of it lies in.
    memory: Option<&'d Memory<'d>>,
    /// How what comes is combined with what is there.
    reduction: Option<Reduction>,
    /// Those that somebody is told of before the CPU touches them.
    told: Vec<&'d Memory<'d>>,
    borrowed: PhantomData<&'d [u8]>,
}

impl<'d> List<'d> {
    #[inline]
    fn one(base: *mut u8, length: usize, memory: Option<&'d Memory<'d>>) -> Self {
        let told = match memory {
            Some(memory) if memory.host_access().is_some() => vec![memory],
            _ => Vec::new(),
        };
        let parts = Parts::One(Part { base, length });
        Self { parts, length, memory, reduction: None, told, borrowed: PhantomData }
    }

    fn many(lists: impl Iterator<Item = List<'d>>) -> Self {
        let mut merged: Vec<Part> = Vec::new();
        let mut memory = None;
        let mut length = 0_usize;
        let mut told: Vec<&Memory<'_>> = Vec::new();
        let same = |one: &Memory<'_>, other: &Memory<'_>| one.id() == other.id();
        for (number, list) in lists.enumerate() {
            for memory in &list.told {
                if !told.iter().any(|known| same(known, memory)) {
                    told.push(memory);
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
        Self { parts, length, memory, reduction: None, told, borrowed: PhantomData }
    }

    /// Begins to touch its memory: it lasts until the result is dropped. For memory that no device uses it costs nothing.
    ///
    /// # Errors
    /// [`Error::Memory`] if a driver refuses.
    #[inline]
    pub(crate) fn touch(&self, access: Access) -> Result<Vec<CpuAccess<'d>>> {
        let begin = |memory: &&'d Memory<'d>| {
            let (ability, base) = (memory.host_access(), Address::from_ptr(memory.base()));
            // SAFETY: the memory is there as long as it is borrowed, which the result is bound to; what this process has of it is
            // volatile memory, which is copied in and out of.
            unsafe { CpuAccess::begin(ability, base, memory.len(), access) }.map_err(Error::from)
        };
        if self.told.is_empty() { Ok(Vec::new()) } else { self.told.iter().map(begin).collect() }
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

    fn is_confined_to(&self, access: RemoteAccess) -> bool {
        self.memory.is_some_and(|memory| memory.is_confined(self, access))
    }

    /// Whether who opens its handle gets at it and at nothing else, and can read it alone.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_confined_to(RemoteAccess::Get)
    }

    #[inline]
    pub(crate) const fn reduction(&self) -> Option<&Reduction> {
        self.reduction.as_ref()
    }

    /// Whether messages of this length can be received into it.
    #[inline]
    pub(crate) fn takes(&self, length: usize) -> bool {
        length <= self.length && self.is_whole(length)
    }

    /// Whether so many bytes are numbers, if it is to be numbers that are received.
    #[inline]
    pub(crate) fn is_whole(&self, length: usize) -> bool {
        self.reduction.is_none_or(|reduction| length.is_multiple_of(reduction.element().size()))
    }

    /// How many of its entries a message of this length reaches into.
    #[inline]
    pub(crate) fn pieces(&self, length: usize) -> usize {
        let starts = self.parts().iter().scan(0, |end: &mut usize, part| {
            let start = *end;
            *end = start.saturating_add(part.length);
            Some(start)
        });
        starts.take_while(|start| *start < length).count()
    }

    /// From its beginning on, to receive into.
    #[inline]
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { reduction: self.reduction(), ..Cursor::new(self.parts()) }
    }

    /// From this byte on, to receive into.
    pub(crate) fn cursor_at(&self, byte: usize) -> Cursor<'_> {
        Cursor { reduction: self.reduction(), ..Cursor::at(self.parts(), byte) }
    }

    /// The same memory, to be replaced and not combined.
    pub(crate) fn plain(&self) -> Self {
        Self { reduction: None, ..self.clone() }
    }

    /// A part of it; `None` if it is not in one piece, or not as long.
    pub(crate) fn portion(&self, offset: usize, length: usize) -> Option<Self> {
        let [part] = *self.parts() else { return None };
        let fits = offset.checked_add(length).is_some_and(|end| end <= part.length);
        let base = part.base.wrapping_add(offset);
        fits.then(|| Self { reduction: self.reduction, ..Self::one(base, length, self.memory) })
    }

    /// Whether who opens its handle gets at it and at nothing else.
    pub(crate) fn is_confined(&self) -> bool {
        self.is_read_only() || self.is_confined_to(RemoteAccess::GetPut)
    }
}

/// What is sent: bytes, memory of a pool, or a list of such.
///
/// Made from `&[u8]` or numbers, `&[IoSlice]`, [`View`], [`Memory`], parts of one ([`Memory::part`]), or a list of any of
/// these ([`Source::list`]). Adjacent entries of a list count as one.
#[derive(Clone, Debug)]
pub struct Source<'d>(pub(crate) List<'d>);

/// Where what is received goes: bytes, memory of a pool, or a list of such.
///
/// Made from `&mut [u8]` or numbers, `&mut [IoSliceMut]`, [`View`], [`Memory`], parts of one, or a list of any of these.
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

    /// # Errors
    /// [`Error::NotOnePiece`].
    pub(crate) fn in_one_piece(self) -> Result<List<'d>> {
        match self.0.parts().len() {
            1 => Ok(self.0),
            pieces => Err(Error::NotOnePiece { pieces }),
        }
    }

    /// What is received is combined with what is there, number by number, instead of replacing it: straight out of where the
    /// peer has it, if that is memory of a pool.
    ///
    /// Messages have to be whole numbers. Only one side copies ([`crate::Engine::Both`] does as [`crate::Engine::Mapped`]).
    /// After an error some numbers may have been combined, and others not.
    ///
    /// # Errors
    /// [`Error::NotWhole`] if any part of it is not whole numbers.
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
            Some(part) => Err(Error::NotWhole { length: part.length, size }),
            None => {
                self.0.reduction = Some(reduction);
                Ok(self)
            }
        }
    }

    /// Bytes of all of it.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a message, not of a container")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }
}

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
    pub fn slice(&self) -> View<'d> {
        let offset = self.base.addr() - self.memory.base().addr();
        // A part of the memory, as `new` has looked.
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
        Self { parts: rest, offset: byte, reduction: None }
    }

    /// The next bytes that lie in one piece, at most so many.
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

    /// Copies the next `length` bytes from `from`, or combines what is there with them: then they are whole numbers.
    ///
    /// # Safety
    /// The parts can be written, and `from` read, both as memory that others may write at the same time.
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
        let pieces = [0, 1, 10, 11, 21, 22].map(|length| gaps.0.pieces(length));
        assert_eq!(pieces, [0, 1, 1, 2, 2, 3]);
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
