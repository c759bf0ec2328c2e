//! [`Reduction`]: an operation that combines two vectors of numbers, element by element.

mod kernel;
#[cfg(test)]
mod tests;

use core::fmt;

use crate::{Error, Result};
use kernel::Kernels;

/// An operation on two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Their sum. Integers wrap.
    Sum,
    /// Their product. Integers wrap.
    Product,
    /// The smaller number. If one of two floats is a NaN: the other one.
    Min,
    /// The larger number. If one of two floats is a NaN: the other one.
    Max,
    /// Bitwise and. Of integers only.
    And,
    /// Bitwise or. Of integers only.
    Or,
    /// Bitwise exclusive or. Of integers only.
    Xor,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 7] =
        [Self::Sum, Self::Product, Self::Min, Self::Max, Self::And, Self::Or, Self::Xor];
}

/// A type of numbers, in this machine's byte order.
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
    /// All kinds of numbers.
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

    /// Returns the bytes of a number.
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
    /// The element of this type.
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

/// An operation on numbers of one type. It combines a received message with the numbers that are
/// there ([`crate::Destination::combined`]), or the memory of ranks
/// ([`crate::Communicator::allreduce`]).
#[derive(Clone, Copy)]
pub struct Reduction {
    operation: Operation,
    element: Element,
    kernels: Kernels,
}

impl Reduction {
    /// Returns the reduction of an operation and a type of numbers.
    ///
    /// # Errors
    /// [`Error::NoReduction`]: a bit operation of floats.
    pub fn new(operation: Operation, element: Element) -> Result<Self> {
        let kernels = kernel::find(operation, element).ok_or(Error::NoReduction { operation, element })?;
        Ok(Self { operation, element, kernels })
    }

    /// As [`Reduction::new`], for a Rust type.
    ///
    /// # Errors
    /// As [`Reduction::new`].
    pub fn of<T: Number>(operation: Operation) -> Result<Self> {
        Self::new(operation, T::ELEMENT)
    }

    /// Returns the operation.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the type of numbers.
    #[must_use]
    pub const fn element(&self) -> Element {
        self.element
    }

    /// Returns a code below 128 that is unique to the operation and the element.
    pub(crate) const fn code(&self) -> u8 {
        self.operation as u8 * Element::ALL.len() as u8 + self.element as u8
    }

    /// Combines `bytes` bytes of numbers at `from` with those at `into`, and stores the result at
    /// `into`. A rest of less than a number stays as it is. Neither address has to be aligned.
    ///
    /// # Safety
    /// `into` can be written and `from` read. Other processes may write both at the same time. The
    /// two ranges are the same, or do not overlap.
    #[inline]
    pub(crate) unsafe fn combine(&self, into: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: by this function's contract.
        unsafe { (self.kernels.into)(into, from.cast_mut(), bytes / self.element.size()) };
    }

    /// As [`Reduction::combine`], and stores the result at both addresses. Each byte is read once
    /// and written once.
    ///
    /// # Safety
    /// As [`Reduction::combine`]; `second` can be written, too.
    #[inline]
    pub(crate) unsafe fn combine_both(&self, first: *mut u8, second: *mut u8, bytes: usize) {
        // SAFETY: by this function's contract.
        unsafe { (self.kernels.both)(first, second, bytes / self.element.size()) };
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
