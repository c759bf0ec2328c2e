//! [`Chunks`]: an array that grows without moving its elements.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::sys;
use umf_core::{Error, Result};

/// Types for which memory full of zeros is a valid value.
///
/// # Safety
/// All-zero bytes are a valid value of the type. Elements are never dropped, so the type must not
/// need its drop.
pub unsafe trait Zeroable: Sync {}

macro_rules! zeroable {
    ($($atomic:ty),*) => {
        $(
            // SAFETY: 0 is a valid integer, and atomics have the layout of their integers.
            unsafe impl Zeroable for $atomic {}
        )*
    };
}

zeroable!(AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize);

// SAFETY: a null pointer is a valid `AtomicPtr`.
unsafe impl<T> Zeroable for AtomicPtr<T> {}

const COUNT: usize = 26;

/// An array of up to 2^31 zero-initialised elements in mappings of its own.
///
/// Chunk `k` holds `FIRST << k` elements, so that reading an element costs two loads whatever its
/// index, and growing is one `mmap`. `FIRST` is a power of two.
#[derive(Debug)]
pub struct Chunks<T: Zeroable, const FIRST: usize = 64> {
    chunks: [AtomicPtr<T>; COUNT],
    elements: PhantomData<T>,
}

impl<T: Zeroable, const FIRST: usize> Default for Chunks<T, FIRST> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Zeroable, const FIRST: usize> Chunks<T, FIRST> {
    const SHIFT: u32 = {
        assert!(
            FIRST.is_power_of_two() && FIRST.ilog2() as usize + COUNT <= 40,
            "FIRST: a small power of two"
        );
        FIRST.ilog2()
    };

    /// Returns an empty array. Maps nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; COUNT], elements: PhantomData }
    }

    /// Returns the chunk of an index, and the offset in the chunk.
    const fn locate(index: u32) -> (usize, usize) {
        let position = index as usize + FIRST;
        let chunk = (position.ilog2() - Self::SHIFT) as usize;
        (chunk, position - (FIRST << chunk))
    }

    /// Returns the element at `index`, or `None` past the end.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        // Hot paths use the first chunk: without a logarithm.
        let (chunk, offset) =
            if (index as usize) < FIRST { (0, index as usize) } else { Self::locate(index) };
        let first = NonNull::new(self.chunks.get(chunk)?.load(Ordering::Acquire))?;
        // SAFETY: a published chunk `k` has FIRST << k zero-initialised elements, is never
        // unmapped, and `locate` yields an offset below that.
        Some(unsafe { first.add(offset).as_ref() })
    }

    /// Returns the element at `index`. Grows the array up to it if necessary.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no memory can be mapped, [`Error::TooMany`] past 2^31 elements.
    pub fn get_or_grow(&self, index: u32) -> Result<&T> {
        if let Some(element) = self.get(index) {
            return Ok(element);
        }
        let (chunk, _) = Self::locate(index);
        let limit = (FIRST << COUNT) - FIRST;
        let too_many = Error::TooMany { what: "metadata records", limit };
        let slot = self.chunks.get(chunk).ok_or(too_many)?;
        let size = (FIRST << chunk).checked_mul(size_of::<T>()).ok_or(too_many)?;
        let mapped = sys::map(size)?;
        if slot
            .compare_exchange(ptr::null_mut(), mapped.as_ptr().cast(), Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread published its chunk first, and no thread has seen this one.
            unsafe { sys::unmap(mapped, size) };
        }
        self.get(index).ok_or(too_many)
    }
}

impl<T: Zeroable, const FIRST: usize> Drop for Chunks<T, FIRST> {
    fn drop(&mut self) {
        for (chunk, slot) in self.chunks.iter_mut().enumerate() {
            if let Some(first) = NonNull::new(*slot.get_mut()) {
                // SAFETY: `self` is being dropped, so no reference into its chunks is left. The
                // size is the one that the chunk was mapped with.
                unsafe { sys::unmap(first.cast(), (FIRST << chunk) * size_of::<T>()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_zeroed_distinct_and_do_not_move() {
        let array: Chunks<AtomicU64, 4> = Chunks::new();
        assert!(array.get(0).is_none());
        for index in 0..5_000 {
            let element = array.get_or_grow(index).unwrap();
            assert_eq!(element.swap(u64::from(index) + 1, Ordering::Relaxed), 0);
        }
        let first: *const AtomicU64 = array.get(0).unwrap();
        array.get_or_grow(1_000_000).unwrap();
        assert!(ptr::eq(first, array.get(0).unwrap()));
        for index in 0..5_000 {
            assert_eq!(array.get(index).unwrap().load(Ordering::Relaxed), u64::from(index) + 1);
        }
    }
}
