//! [`View`]: typed access to memory that other processes and threads may write at any time.
//!
//! A reference (`&[T]`, `&mut [T]`) promises the compiler that nothing else writes the memory. For
//! shared memory that promise is false. A view makes no reference: it loads and stores single
//! elements with relaxed atomic instructions, and copies ranges with instructions that the compiler
//! does not see into (`copy`). So each byte is read once, and a value that was copied out and
//! checked stays what it was.
//!
//! # Ordering
//!
//! - An element of 1, 2, 4 or 8 bytes is read and written whole. Other elements may be torn: a
//!   reader sees the bytes of several writes.
//! - `get`, `set` and copies are relaxed: they order nothing. To publish data, write it through a
//!   view, then store a flag with [`View::atomic`] and [`Ordering::Release`]. The reader loads the
//!   flag with [`Ordering::Acquire`], then reads the data. This works between processes too.
//! - [`core::sync::atomic::fence`] works with relaxed accesses of views as with those of atomics.
//!
//! # Examples
//! ```
//! use umf_core::View;
//!
//! let mut memory = [0_u64; 4];
//! // SAFETY: the array is borrowed mutably as long as the view is used.
//! let bytes = unsafe { View::<u8>::new(memory.as_mut_ptr().cast(), 32) }?;
//! let numbers = bytes.cast::<f64>()?;
//! numbers.copy_from(&[1.5, 2.5, 3.5]);
//! numbers.set(3, 0.25)?;
//! assert_eq!(numbers.get(1), Some(2.5));
//! assert_eq!(numbers.iter().sum::<f64>(), 7.75);
//! # Ok::<(), umf_core::Error>(())
//! ```

mod copy;
mod plain;

use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Bound, RangeBounds};
#[cfg(doc)]
use core::sync::atomic::Ordering;

use crate::{Error, Result};

#[cfg(feature = "bytemuck")]
pub use plain::AsPod;
#[cfg(feature = "zerocopy")]
pub use plain::AsZerocopy;
pub use plain::{Atomic, Plain};

/// The access of a [`View`] that reads and writes.
#[derive(Clone, Copy, Debug)]
pub enum ReadWrite {}

/// The access of a [`View`] that only reads.
#[derive(Clone, Copy, Debug)]
pub enum ReadOnly {}

/// A view that cannot write: of a mapping that was opened read-only, for example.
pub type ReadView<'m, T = u8> = View<'m, T, ReadOnly>;

/// `len` elements of type `T` in memory that others may write at any time.
///
/// A view is a pointer and a length; it is `Copy`, and threads may use copies of it at the same
/// time. See the [module](self) for what is atomic.
pub struct View<'m, T = u8, A = ReadWrite> {
    base: *mut T,
    len: usize,
    // Invariant in neither: a view is shared access to plain values.
    memory: PhantomData<(&'m T, A)>,
}

// SAFETY: concurrent accesses of views are atomic, or instructions that the compiler does not see.
unsafe impl<T: Plain, A> Send for View<'_, T, A> {}
// SAFETY: as above.
unsafe impl<T: Plain, A> Sync for View<'_, T, A> {}

impl<T, A> Clone for View<'_, T, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, A> Copy for View<'_, T, A> {}

impl<'m, T: Plain, A> View<'m, T, A> {
    const SIZE: usize = {
        assert!(size_of::<T>() > 0, "an element of a view has at least one byte");
        size_of::<T>()
    };

    /// A view of `len` elements from `base` on.
    ///
    /// # Errors
    /// [`Error::BadAlignment`] if `base` is not aligned for `T`.
    ///
    /// # Safety
    /// The memory is mapped for `'m`, readable, and with `A` = [`ReadWrite`] writable. Meanwhile no
    /// code of this process has a reference into it.
    pub unsafe fn new(base: *mut T, len: usize) -> Result<Self> {
        // Evaluated for each `T`.
        let _ = Self::SIZE;
        let usable = !base.is_null() && base.is_aligned();
        usable
            .then_some(Self { base, len, memory: PhantomData })
            .ok_or(Error::BadAlignment { align: align_of::<T>() })
    }

    /// A view without elements.
    #[must_use]
    pub const fn empty() -> Self {
        Self { base: core::ptr::NonNull::dangling().as_ptr(), len: 0, memory: PhantomData }
    }

    /// The number of elements.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the first element is. Access through the pointer must be volatile or atomic.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *const T {
        self.base
    }

    /// The same memory, which cannot be written through the result.
    #[must_use]
    #[inline]
    pub const fn read_only(&self) -> ReadView<'m, T> {
        View { base: self.base, len: self.len, memory: PhantomData }
    }

    /// A copy of the element at `index`; `None` from [`View::len`] on.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: the element is inside, by the contract of `new`.
        (index < self.len).then(|| unsafe { copy::load(self.base.add(index)) })
    }

    /// The elements of a range; `None` if it is not inside.
    #[must_use]
    #[inline]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1)?,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        let inside = start <= end && end <= self.len;
        // SAFETY: `start` is at most `len`, so the pointer stays within the memory or at its end.
        inside.then(|| Self { base: unsafe { self.base.add(start) }, len: end - start, ..*self })
    }

    /// The same bytes as elements of another type: as many as there are whole ones.
    ///
    /// # Errors
    /// [`Error::BadAlignment`] if the first byte is not aligned for `U`.
    #[inline]
    pub fn cast<U: Plain>(&self) -> Result<View<'m, U, A>> {
        let len = self.len * Self::SIZE / View::<U, A>::SIZE;
        // SAFETY: no more bytes than before, of which every pattern is a `U`.
        unsafe { View::new(self.base.cast(), len) }
    }

    /// Copies elements out: as many as both have. Returns their number.
    #[inline]
    pub fn copy_to(&self, into: &mut [T]) -> usize {
        let len = self.len.min(into.len());
        // SAFETY: so many elements are in both, and a `&mut` overlaps no view.
        unsafe { copy::copy(self.base.cast(), into.as_mut_ptr().cast(), len * Self::SIZE) };
        len
    }

    /// Copies all elements into a new vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut copied: Vec<T> = Vec::with_capacity(self.len);
        // SAFETY: there is room for `len` elements, and the copy fills them.
        unsafe {
            copy::copy(self.base.cast(), copied.as_mut_ptr().cast(), self.len * Self::SIZE);
            copied.set_len(self.len);
        }
        copied
    }

    /// Copies elements to another view: as many as both have. Returns their number. The two may
    /// overlap: the result is that of `memmove(3)`.
    pub fn copy_to_view(&self, into: View<'_, T>) -> usize {
        let len = self.len.min(into.len);
        // SAFETY: so many elements are in both.
        unsafe { copy::copy_overlapping(self.base.cast(), into.base.cast(), len * Self::SIZE) };
        len
    }

    /// Iterates over copies of the elements. Small elements are copied up to a KiB at a time: each
    /// is read once, at some time before it is returned.
    #[must_use]
    #[inline]
    pub fn iter(&self) -> Iter<'m, T> {
        Iter::new(self.read_only())
    }
}

impl<'m, T: Plain> View<'m, T> {
    /// Where the first element is. Access through the pointer must be volatile or atomic.
    #[must_use]
    #[inline]
    pub const fn as_mut_ptr(&self) -> *mut T {
        self.base
    }

    /// Stores `value` as the element at `index`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] from [`View::len`] on.
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        if index >= self.len {
            return Err(Error::InvalidArgument { what: "index", why: "below the length of the view" });
        }
        // SAFETY: the element is inside, by the contract of `new`, and the view may write.
        unsafe { copy::store(self.base.add(index), value) };
        Ok(())
    }

    /// Copies elements in: as many as both have. Returns their number.
    #[inline]
    pub fn copy_from(&self, from: &[T]) -> usize {
        let len = self.len.min(from.len());
        // SAFETY: so many elements are in both, and a slice overlaps no view.
        unsafe { copy::copy(from.as_ptr().cast(), self.base.cast(), len * Self::SIZE) };
        len
    }

    /// Stores `value` as every element.
    pub fn fill(&self, value: T) {
        let mut chunk = [const { MaybeUninit::<u8>::uninit() }; CHUNK];
        let per_chunk = (CHUNK / Self::SIZE).min(self.len);
        if per_chunk < 2 {
            // SAFETY: the elements are inside.
            return (0..self.len).for_each(|index| unsafe { copy::store(self.base.add(index), value) });
        }
        for place in 0..per_chunk {
            // SAFETY: the chunk has room for so many elements; it need not be aligned.
            unsafe { chunk.as_mut_ptr().cast::<T>().add(place).write_unaligned(value) };
        }
        let mut done = 0;
        while done < self.len {
            let some = per_chunk.min(self.len - done);
            // SAFETY: so many elements are left, and in the chunk.
            unsafe { copy::copy(chunk.as_ptr().cast(), self.base.add(done).cast(), some * Self::SIZE) };
            done += some;
        }
    }

    /// The element at `index` as an atomic of the standard library; `None` from [`View::len`] on.
    #[must_use]
    #[inline]
    pub fn atomic(&self, index: usize) -> Option<&'m T::Atomic>
    where
        T: Atomic,
    {
        // SAFETY: the element is inside and aligned; `Atomic` promises the same size and alignment.
        // All other accesses of views are atomic or not seen by the compiler.
        (index < self.len).then(|| unsafe { &*self.base.add(index).cast::<T::Atomic>() })
    }
}

impl<T: Plain, A> fmt::Debug for View<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("base", &self.base).field("len", &self.len).finish()
    }
}

impl<'m, T: Plain, A> IntoIterator for &View<'m, T, A> {
    type Item = T;
    type IntoIter = Iter<'m, T>;

    fn into_iter(self) -> Iter<'m, T> {
        self.iter()
    }
}

/// Bytes that are copied at a time by iterators and [`View::fill`].
const CHUNK: usize = 1024;

/// Copies of elements, aligned for every type that is iterated in chunks.
#[repr(align(64))]
struct Buffer([MaybeUninit<u8>; CHUNK]);

/// An iterator over copies of the elements of a [`View`].
pub struct Iter<'m, T> {
    rest: ReadView<'m, T>,
    /// Elements in the buffer, and how many of them were returned.
    filled: usize,
    returned: usize,
    buffer: Buffer,
}

impl<'m, T: Plain> Iter<'m, T> {
    /// Elements in a chunk. 0 for types that are loaded one by one: they are too large, or aligned
    /// to more than the buffer, or words, of which single loads are as fast.
    const PER_CHUNK: usize = if align_of::<T>() > align_of::<Buffer>() || size_of::<T>() == 8 {
        0
    } else {
        CHUNK / ReadView::<'static, T>::SIZE
    };

    #[inline]
    fn new(rest: ReadView<'m, T>) -> Self {
        Self { rest, filled: 0, returned: 0, buffer: Buffer([const { MaybeUninit::uninit() }; CHUNK]) }
    }

    /// Copies the next elements into the buffer, and returns their number.
    #[inline(never)]
    fn refill(&mut self) -> usize {
        let some = Self::PER_CHUNK.min(self.rest.len);
        let size = some * ReadView::<'_, T>::SIZE;
        // SAFETY: so many elements are left, and have room in the buffer.
        unsafe { copy::copy(self.rest.base.cast(), self.buffer.0.as_mut_ptr().cast(), size) };
        self.skip(some);
        (self.filled, self.returned) = (some, 0);
        some
    }

    #[inline]
    fn skip(&mut self, some: usize) {
        // SAFETY: at most `len`.
        self.rest.base = unsafe { self.rest.base.add(some) };
        self.rest.len -= some;
    }

    /// The elements of the buffer that were not returned yet.
    #[inline]
    fn buffered(&self) -> &[T] {
        let first = self.buffer.0.as_ptr().cast::<T>();
        // SAFETY: `filled` elements were copied, the buffer is aligned for them (see `PER_CHUNK`),
        // and every pattern of bits is a `T`.
        unsafe { core::slice::from_raw_parts(first.add(self.returned), self.filled - self.returned) }
    }
}

impl<T: Plain> Iterator for Iter<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if Self::PER_CHUNK == 0 {
            let element = self.rest.get(0)?;
            self.skip(1);
            return Some(element);
        }
        if self.returned == self.filled && self.refill() == 0 {
            return None;
        }
        let element = *self.buffered().first()?;
        self.returned += 1;
        Some(element)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.filled - self.returned + self.rest.len;
        (left, Some(left))
    }

    #[inline]
    fn fold<B, F: FnMut(B, T) -> B>(mut self, initial: B, mut function: F) -> B {
        let mut folded = initial;
        if Self::PER_CHUNK == 0 {
            for index in 0..self.rest.len {
                // SAFETY: inside.
                folded = function(folded, unsafe { copy::load(self.rest.base.add(index)) });
            }
            return folded;
        }
        loop {
            folded = self.buffered().iter().copied().fold(folded, &mut function);
            if self.refill() == 0 {
                return folded;
            }
        }
    }
}

impl<T: Plain> ExactSizeIterator for Iter<'_, T> {}

impl<T: Plain> core::iter::FusedIterator for Iter<'_, T> {}

impl<T: Plain> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
