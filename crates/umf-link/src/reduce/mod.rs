//! [`Reduction`]: what becomes of two numbers, element by element.

mod kernel;
#[cfg(test)]
mod tests;

use core::fmt;

use crate::{Error, Result};
use kernel::Kernels;

/// What is done with two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Their sum. Integers wrap.
    Sum,
    /// Their product. Integers wrap.
    Product,
    /// The smaller one. Of a number and a NaN: the number.
    Min,
    /// The larger one. Of a number and a NaN: the number.
    Max,
    /// The bits that both have. Of integers only, as the next two.
    And,
    /// The bits that either has.
    Or,
    /// The bits that one of them has.
    Xor,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Sum, Self::Product, Self::Min, Self::Max, Self::And, Self::Or, Self::Xor];
}

/// A kind of numbers, in this machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum Element {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of one.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type of numbers that can be combined: the integers and floats of 8 to 64 bits.
pub trait Number: Copy + sealed::Sealed + 'static {
    /// Which it is.
    const ELEMENT: Element;
}

macro_rules! numbers {
    ($($type:ident $element:ident),*) => {$(
        impl sealed::Sealed for $type {}

        impl Number for $type {
            const ELEMENT: Element = Element::$element;
        }
    )*};
}
numbers!(i8 I8, i16 I16, i32 I32, i64 I64, u8 U8, u16 U16, u32 U32, u64 U64, f32 F32, f64 F64);

/// An operation on numbers of one kind: how what is received is combined with what is there
/// ([`crate::Destination::combined`]), or the memory of several ranks ([`crate::Fabric::allreduce`]).
#[derive(Clone, Copy)]
pub struct Reduction {
    operation: Operation,
    element: Element,
    kernels: Kernels,
}

impl Reduction {
    /// Of numbers of a kind.
    ///
    /// # Errors
    /// [`Error::NoReduction`]: bit operations of floats.
    pub fn new(operation: Operation, element: Element) -> Result<Self> {
        let kernels = kernel::find(operation, element).ok_or(Error::NoReduction { operation, element })?;
        Ok(Self { operation, element, kernels })
    }

    /// Of numbers of a type.
    ///
    /// # Errors
    /// As [`Reduction::new`].
    pub fn of<T: Number>(operation: Operation) -> Result<Self> {
        Self::new(operation, T::ELEMENT)
    }

    /// What is done.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// With what.
    #[must_use]
    pub const fn element(&self) -> Element {
        self.element
    }

    /// Tells reductions apart: less than 128.
    pub(crate) const fn code(&self) -> u8 {
        self.operation as u8 * Element::ALL.len() as u8 + self.element as u8
    }

    /// Combines `bytes` bytes of numbers at `from` with those at `into`, where the result goes. What remains of less than a
    /// number is left alone. Neither has to be aligned.
    ///
    /// # Safety
    /// `into` can be written and `from` read, both as memory that others may write at the same time. They are the same, or do
    /// not overlap.
    #[inline]
    pub(crate) unsafe fn combine(&self, into: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: by this function's contract.
        unsafe { (self.kernels.into)(into, from.cast_mut(), bytes / self.element.size()) };
    }

    /// As [`Reduction::combine`], and the result goes to both places: each byte of either is read once and written once.
    ///
    /// # Safety
    /// As there; `theirs` can be written, too.
    #[inline]
    pub(crate) unsafe fn combine_both(&self, mine: *mut u8, theirs: *mut u8, bytes: usize) {
        // SAFETY: by this function's contract.
        unsafe { (self.kernels.both)(mine, theirs, bytes / self.element.size()) };
    }
}

impl PartialEq for Reduction {
    fn eq(&self, other: &Self) -> bool {
        self.code() == other.code()
    }
}

impl Eq for Reduction {}

impl fmt::Debug for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.operation, self.element)
    }
}
