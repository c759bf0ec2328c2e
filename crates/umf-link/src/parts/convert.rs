//! What [`Source`]s and [`Destination`]s are made of.

use std::io::{IoSlice, IoSliceMut};

use umf_core::View;

use super::{Destination, List, Portion, Source};
use crate::memory::Memory;

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

        impl<'d> From<Portion<'d>> for $made<'d> {
            #[inline]
            fn from(portion: Portion<'d>) -> Self {
                Self(List::one(portion.base, portion.length, Some(portion.memory)))
            }
        }
    )*};
}
shared_memory!(Source, Destination);
