//! [`View`]: typed access to memory that other processes and threads may write at any time.
//!
//! A reference (`&[T]`, `&mut [T]`) promises the compiler that nothing else writes the memory. For
//! shared memory that promise is false. A view makes no reference: it loads and stores single
//! elements with relaxed atomic instructions, and copies ranges with inline assembly, which is
//! opaque to the compiler (`copy`). So each byte is read once, and a value does not change after it
//! was copied and checked.
//!
//! # Ordering
//!
//! - An element of 1, 2, 4 or 8 bytes is read and written whole. Other elements may be torn: a
//!   reader sees the bytes of several writes.
//! - `get`, `set` and copies are relaxed: they have no ordering. To publish data, write it through
//!   a view, then store a flag with [`View::atomic`] and [`Ordering::Release`]. The reader loads
//!   the flag with [`Ordering::Acquire`], then reads the data. This works between processes too.
//! - [`core::sync::atomic::fence`] orders the relaxed accesses of views as it orders those of
//!   atomics.
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

use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Bound, RangeBounds};
#[cfg(doc)]
use core::sync::atomic::Ordering;
use core::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize,
};

use crate::{Error, Result};

/// A type of which any bytes are a valid value, so that other processes may write it byte by byte.
///
/// Implemented for the integers, `f32`, `f64`, arrays of them, and structs of such fields without
/// padding by `#[derive(Plain)]` (crate `umf-derive`, feature `derive`). Types of `bytemuck` and
/// `zerocopy` are wrapped: `AsPod`, `AsZerocopy` (features of those names).
///
/// `bool`, `char`, references and most enums are not plain: some bytes are not a valid value.
///
/// # Safety
/// Any `size_of::<Self>()` initialised bytes are a valid value. A value has no padding, so all its
/// bytes are initialised.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

/// A [`Plain`] integer with an atomic type in the standard library.
///
/// # Safety
/// `Self::Atomic` has the size and alignment of `Self`, and any bytes are a valid value of it.
pub unsafe trait Atomic: Plain {
    /// The atomic type.
    type Atomic: Sync + 'static;
}

macro_rules! plain {
    ($($type:ty),*) => {
        $(
            // SAFETY: numbers have no padding, and any bits are a valid number.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

// SAFETY: an array consists of its elements, without padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

// SAFETY: the wrapper is transparent.
unsafe impl<T: Plain> Plain for core::num::Wrapping<T> {}

macro_rules! atomic {
    ($($type:ty, $atomic:ty);*) => {
        $(
            // SAFETY: the standard library promises the same size and bits; on 64-bit machines also
            // the same alignment.
            unsafe impl Atomic for $type {
                type Atomic = $atomic;
            }
            const _: () = assert!(
                size_of::<$type>() == size_of::<$atomic>() && align_of::<$type>() == align_of::<$atomic>()
            );
        )*
    };
}

atomic!(
    u8, AtomicU8; u16, AtomicU16; u32, AtomicU32; u64, AtomicU64; usize, AtomicUsize;
    i8, AtomicI8; i16, AtomicI16; i32, AtomicI32; i64, AtomicI64; isize, AtomicIsize
);

/// A [`Plain`] wrapper for a type of `bytemuck`.
#[cfg(feature = "bytemuck")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct AsPod<T>(pub T);

// SAFETY: `Pod` promises what `Plain` asks for, and the wrapper is transparent.
#[cfg(feature = "bytemuck")]
unsafe impl<T: bytemuck::Pod + Send + Sync> Plain for AsPod<T> {}

/// A [`Plain`] wrapper for a type of `zerocopy`.
#[cfg(feature = "zerocopy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct AsZerocopy<T>(pub T);

// SAFETY: `FromBytes` promises that any bytes are valid, `IntoBytes` that there is no padding, and
// the wrapper is transparent.
#[cfg(feature = "zerocopy")]
unsafe impl<T> Plain for AsZerocopy<T> where
    T: zerocopy::FromBytes + zerocopy::IntoBytes + Copy + Send + Sync + 'static
{
}

/// The access type of a [`View`] that can write.
#[derive(Clone, Copy, Debug)]
pub enum ReadWrite {}

/// The access type of a [`View`] that cannot write.
#[derive(Clone, Copy, Debug)]
pub enum ReadOnly {}

/// A read-only view, for example of a mapping that was opened read-only.
pub type ReadView<'m, T = u8> = View<'m, T, ReadOnly>;

/// `len` elements of type `T` in memory that other threads and processes may write at any time.
///
/// A view is a pointer and a length; it is `Copy`, and threads may use copies of it at the same
/// time. See the [module](self) for what is atomic.
pub struct View<'m, T = u8, A = ReadWrite> {
    base: *mut T,
    len: usize,
    // Covariant: a view is shared access to plain values.
    memory: PhantomData<(&'m T, A)>,
}

// SAFETY: concurrent accesses of views are atomic, or inline assembly.
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

    /// Returns a view of `len` elements at `base`.
    ///
    /// # Errors
    /// [`Error::BadAlignment`] if `base` is not aligned for `T`.
    ///
    /// # Safety
    /// During `'m`, the memory is mapped and readable; if `A` is [`ReadWrite`], also writable. This
    /// process has no reference into it during `'m`.
    pub unsafe fn new(base: *mut T, len: usize) -> Result<Self> {
        // Evaluates the assertion for `T`.
        let _ = Self::SIZE;
        let is_usable = !base.is_null() && base.is_aligned();
        is_usable
            .then_some(Self { base, len, memory: PhantomData })
            .ok_or(Error::BadAlignment { align: align_of::<T>() })
    }

    /// Returns a view without elements.
    #[must_use]
    pub const fn empty() -> Self {
        Self { base: core::ptr::NonNull::dangling().as_ptr(), len: 0, memory: PhantomData }
    }

    /// Returns the number of elements.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the view has no elements.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a pointer to the first element. Accesses through it must be volatile or atomic.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *const T {
        self.base
    }

    /// Returns a read-only view of the same memory.
    #[must_use]
    #[inline]
    pub const fn read_only(&self) -> ReadView<'m, T> {
        View { base: self.base, len: self.len, memory: PhantomData }
    }

    /// Returns a copy of the element at `index`, or `None` past the end.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: the index is in bounds, and by the contract of `new` the element is mapped.
        (index < self.len).then(|| unsafe { copy::load(self.base.add(index)) })
    }

    /// Returns a view of a range, or `None` if the range is out of bounds.
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
        let is_in_bounds = start <= end && end <= self.len;
        // SAFETY: `start` is at most `len`, so the pointer stays within the memory or at its end.
        is_in_bounds.then(|| Self { base: unsafe { self.base.add(start) }, len: end - start, ..*self })
    }

    /// Returns a view of the same bytes as elements of `U`: as many as fit completely.
    ///
    /// # Errors
    /// [`Error::BadAlignment`] if the first byte is not aligned for `U`.
    #[inline]
    pub fn cast<U: Plain>(&self) -> Result<View<'m, U, A>> {
        let len = self.len * Self::SIZE / View::<U, A>::SIZE;
        // SAFETY: the new view has no more bytes than this one, and any bytes are a valid `U`.
        unsafe { View::new(self.base.cast(), len) }
    }

    /// Copies elements to `into`: as many as both have. Returns their number.
    #[inline]
    pub fn copy_to(&self, into: &mut [T]) -> usize {
        let len = self.len.min(into.len());
        // SAFETY: both have at least `len` elements, and a `&mut` overlaps no view.
        unsafe { copy::copy(self.base.cast(), into.as_mut_ptr().cast(), len * Self::SIZE) };
        len
    }

    /// Copies all elements into a new vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut copied: Vec<T> = Vec::with_capacity(self.len);
        // SAFETY: the vector has the capacity, and the copy initialises all elements.
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
        // SAFETY: both have at least `len` elements.
        unsafe { copy::copy_overlapping(self.base.cast(), into.base.cast(), len * Self::SIZE) };
        len
    }

    /// Returns an iterator over copies of the elements. Small elements are copied in chunks of up
    /// to a KiB: each is read once, at some time before it is returned.
    #[must_use]
    #[inline]
    pub fn iter(&self) -> Iter<'m, T> {
        Iter::new(self.read_only())
    }
}

impl<'m, T: Plain> View<'m, T> {
    /// Returns a pointer to the first element. Accesses through it must be volatile or atomic.
    #[must_use]
    #[inline]
    pub const fn as_mut_ptr(&self) -> *mut T {
        self.base
    }

    /// Stores `value` as the element at `index`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the index is out of bounds.
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        if index >= self.len {
            return Err(Error::InvalidArgument {
                what: "index",
                why: "must be below the length of the view",
            });
        }
        // SAFETY: the index is in bounds, and by the contract of `new` the memory is writable.
        unsafe { copy::store(self.base.add(index), value) };
        Ok(())
    }

    /// Copies elements of `from`: as many as both have. Returns their number.
    #[inline]
    pub fn copy_from(&self, from: &[T]) -> usize {
        let len = self.len.min(from.len());
        // SAFETY: both have at least `len` elements, and a slice overlaps no view.
        unsafe { copy::copy(from.as_ptr().cast(), self.base.cast(), len * Self::SIZE) };
        len
    }

    /// Stores `value` in every element.
    pub fn fill(&self, value: T) {
        let mut chunk = [const { MaybeUninit::<u8>::uninit() }; CHUNK];
        let per_chunk = (CHUNK / Self::SIZE).min(self.len);
        if per_chunk < 2 {
            // SAFETY: the indices are in bounds, and the memory is writable.
            return (0..self.len).for_each(|index| unsafe { copy::store(self.base.add(index), value) });
        }
        for index in 0..per_chunk {
            // SAFETY: the chunk has `per_chunk` elements. The write may be unaligned.
            unsafe { chunk.as_mut_ptr().cast::<T>().add(index).write_unaligned(value) };
        }
        let mut done = 0;
        while done < self.len {
            let count = per_chunk.min(self.len - done);
            // SAFETY: both the chunk and the rest of the view have at least `count` elements.
            unsafe { copy::copy(chunk.as_ptr().cast(), self.base.add(done).cast(), count * Self::SIZE) };
            done += count;
        }
    }

    /// Returns the element at `index` as an atomic of the standard library, or `None` past the end.
    #[must_use]
    #[inline]
    pub fn atomic(&self, index: usize) -> Option<&'m T::Atomic>
    where
        T: Atomic,
    {
        // SAFETY: the index is in bounds, and the element is aligned. `Atomic` promises the same
        // size and alignment. All other accesses of views are atomic or inline assembly.
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

/// The bytes that iterators and [`View::fill`] copy at a time.
const CHUNK: usize = 1024;

/// The buffer of an iterator, aligned for every type that is iterated in chunks.
#[repr(align(64))]
struct Buffer([MaybeUninit<u8>; CHUNK]);

/// An iterator over copies of the elements of a [`View`].
pub struct Iter<'m, T> {
    /// The elements that were not copied yet.
    rest: ReadView<'m, T>,
    /// The number of elements in the buffer.
    filled: usize,
    /// The number of them that were returned.
    returned: usize,
    buffer: Buffer,
}

impl<'m, T: Plain> Iter<'m, T> {
    /// The number of elements per chunk. 0 for types that are loaded one by one: those that are
    /// larger or more aligned than the buffer, and words, for which single loads are as fast.
    const PER_CHUNK: usize = if align_of::<T>() > align_of::<Buffer>() || size_of::<T>() == 8 {
        0
    } else {
        CHUNK / ReadView::<'static, T>::SIZE
    };

    #[inline]
    fn new(rest: ReadView<'m, T>) -> Self {
        Self { rest, filled: 0, returned: 0, buffer: Buffer([const { MaybeUninit::uninit() }; CHUNK]) }
    }

    /// Copies the next elements into the buffer. Returns their number.
    #[inline(never)]
    fn refill(&mut self) -> usize {
        let count = Self::PER_CHUNK.min(self.rest.len);
        let size = count * ReadView::<'_, T>::SIZE;
        // SAFETY: the rest has at least `count` elements, and they fit into the buffer.
        unsafe { copy::copy(self.rest.base.cast(), self.buffer.0.as_mut_ptr().cast(), size) };
        self.skip(count);
        (self.filled, self.returned) = (count, 0);
        count
    }

    #[inline]
    fn skip(&mut self, count: usize) {
        // SAFETY: callers pass at most `rest.len`.
        self.rest.base = unsafe { self.rest.base.add(count) };
        self.rest.len -= count;
    }

    /// Returns the elements of the buffer that were not returned yet.
    #[inline]
    fn buffered(&self) -> &[T] {
        let first = self.buffer.0.as_ptr().cast::<T>();
        // SAFETY: `filled` elements were copied, the buffer is aligned for them (see `PER_CHUNK`),
        // and any bytes are a valid `T`.
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
                // SAFETY: the index is in bounds.
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
