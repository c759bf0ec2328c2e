//! [`Plain`]: types of which every pattern of bits is a value.

use core::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize,
};

/// A type that other processes may write byte by byte: any bytes are a value of it.
///
/// Implemented for the integers, `f32`, `f64`, arrays of them, and structs of such fields without
/// padding by `#[derive(Plain)]` (crate `umf-derive`, feature `derive`). Types of `bytemuck` and
/// `zerocopy` are wrapped: `AsPod`, `AsZerocopy` (features of those names).
///
/// `bool`, `char`, references and most enums are not plain: some bytes are no value of theirs.
///
/// # Safety
/// Every pattern of `size_of::<Self>()` initialised bytes is a valid value. A value has no padding,
/// so that all its bytes are initialised.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

/// A [`Plain`] integer that has an atomic in the standard library.
///
/// # Safety
/// `Self::Atomic` has the size and alignment of `Self`, and any bytes are a value of it.
pub unsafe trait Atomic: Plain {
    /// The atomic.
    type Atomic: Sync + 'static;
}

macro_rules! plain {
    ($($type:ty),*) => {
        $(
            // SAFETY: numbers have no padding, and every pattern of bits is one.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

// SAFETY: an array is its elements, one after the other, without padding.
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

/// A type of `bytemuck` as a [`Plain`] one.
#[cfg(feature = "bytemuck")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct AsPod<T>(pub T);

// SAFETY: `Pod` promises what `Plain` asks for, and the wrapper is transparent.
#[cfg(feature = "bytemuck")]
unsafe impl<T: bytemuck::Pod + Send + Sync> Plain for AsPod<T> {}

/// A type of `zerocopy` as a [`Plain`] one.
#[cfg(feature = "zerocopy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct AsZerocopy<T>(pub T);

// SAFETY: `FromBytes` promises that any bytes are a value, `IntoBytes` that there is no padding,
// and the wrapper is transparent.
#[cfg(feature = "zerocopy")]
unsafe impl<T> Plain for AsZerocopy<T> where
    T: zerocopy::FromBytes + zerocopy::IntoBytes + Copy + Send + Sync + 'static
{
}
