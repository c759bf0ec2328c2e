//! Atomic operations on numbers in registered memory ([`crate::mesh`]).
//!
//! The owner of the memory executes them at its next progress, with atomic instructions of the
//! processor, so that its own atomic accesses may run at the same time.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

umf_core::words! {
    /// A type of number.
    #[allow(missing_docs, reason = "the names say all")]
    pub enum AtomicType {
        I8 = "i8",
        U8 = "u8",
        I16 = "i16",
        U16 = "u16",
        I32 = "i32",
        U32 = "u32",
        I64 = "i64",
        U64 = "u64",
        F32 = "f32",
        F64 = "f64",
    }
}

umf_core::words! {
    /// What happens to a number, with one operand. Comparisons are of a second operand with the
    /// number, in this order.
    pub enum AtomicOperation {
        /// The lesser of both.
        Min = "min",
        /// The greater of both.
        Max = "max",
        /// The sum, which wraps around.
        Sum = "sum",
        /// The product, which wraps around.
        Product = "product",
        /// Whether one of both is not 0.
        LogicalOr = "logical-or",
        /// Whether both are not 0.
        LogicalAnd = "logical-and",
        /// Whether one and only one is not 0.
        LogicalXor = "logical-xor",
        /// The bits of both.
        BitOr = "bit-or",
        /// The common bits.
        BitAnd = "bit-and",
        /// The different bits.
        BitXor = "bit-xor",
        /// No change.
        Read = "read",
        /// The operand.
        Write = "write",
        /// The number minus the operand, which wraps around.
        Difference = "difference",
        /// The operand, if the second operand is equal.
        SwapEqual = "swap-equal",
        /// The operand, if the second operand differs.
        SwapUnequal = "swap-unequal",
        /// The operand, if the second operand is less or equal.
        SwapLessEqual = "swap-less-equal",
        /// The operand, if the second operand is less.
        SwapLess = "swap-less",
        /// The operand, if the second operand is greater or equal.
        SwapGreaterEqual = "swap-greater-equal",
        /// The operand, if the second operand is greater.
        SwapGreater = "swap-greater",
        /// The operand in the bits of the second operand.
        SwapMasked = "swap-masked",
    }
}

/// An atomic operation on numbers of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    kind: AtomicType,
    operation: AtomicOperation,
}

impl Atomic {
    /// The most bytes of numbers that one call changes.
    pub const MOST_BYTES: usize = 4096;

    /// Combines a type and an operation. Returns `None` for operations on bits of floating point
    /// numbers.
    #[must_use]
    pub fn new(kind: AtomicType, operation: AtomicOperation) -> Option<Self> {
        use AtomicOperation as Op;
        let is_of_bits = matches!(operation, Op::BitOr | Op::BitAnd | Op::BitXor | Op::SwapMasked);
        let is_float = matches!(kind, AtomicType::F32 | AtomicType::F64);
        (!is_of_bits || !is_float).then_some(Self { kind, operation })
    }

    /// Returns the bytes of a number.
    #[must_use]
    pub const fn size(self) -> usize {
        match self.kind {
            AtomicType::I8 | AtomicType::U8 => 1,
            AtomicType::I16 | AtomicType::U16 => 2,
            AtomicType::I32 | AtomicType::U32 | AtomicType::F32 => 4,
            AtomicType::I64 | AtomicType::U64 | AtomicType::F64 => 8,
        }
    }

    /// Returns whether there is a second operand.
    #[must_use]
    pub fn compares(self) -> bool {
        self.operation as u8 >= AtomicOperation::SwapEqual as u8
    }

    /// Returns whether the numbers may change.
    #[must_use]
    pub fn writes(self) -> bool {
        self.operation != AtomicOperation::Read
    }

    pub(crate) const fn code(self) -> u64 {
        self.kind as u64 | (self.operation as u64) << 8
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        let kind = *AtomicType::ALL.get((code & 0xff) as usize)?;
        let operation = *AtomicOperation::ALL.get((code >> 8) as usize)?;
        Self::new(kind, operation)
    }

    /// Executes the operation on each number. Writes the previous numbers to `previous`.
    ///
    /// # Safety
    /// `numbers` is aligned to the size of a number, and has as many bytes as `previous`, which may
    /// be accessed at any time by other processes, and by atomic accesses of this one.
    pub(crate) unsafe fn execute(
        self,
        numbers: *mut u8,
        operands: &[u8],
        compared: &[u8],
        previous: &mut [u8],
    ) {
        use AtomicType as Kind;
        // SAFETY: by this function's contract.
        unsafe {
            match self.kind {
                Kind::I8 => self.execute_as::<i8>(numbers, operands, compared, previous),
                Kind::U8 => self.execute_as::<u8>(numbers, operands, compared, previous),
                Kind::I16 => self.execute_as::<i16>(numbers, operands, compared, previous),
                Kind::U16 => self.execute_as::<u16>(numbers, operands, compared, previous),
                Kind::I32 => self.execute_as::<i32>(numbers, operands, compared, previous),
                Kind::U32 => self.execute_as::<u32>(numbers, operands, compared, previous),
                Kind::I64 => self.execute_as::<i64>(numbers, operands, compared, previous),
                Kind::U64 => self.execute_as::<u64>(numbers, operands, compared, previous),
                Kind::F32 => self.execute_as::<f32>(numbers, operands, compared, previous),
                Kind::F64 => self.execute_as::<f64>(numbers, operands, compared, previous),
            }
        }
    }

    /// As [`Atomic::execute`], for one type.
    ///
    /// # Safety
    /// As [`Atomic::execute`].
    unsafe fn execute_as<T: Value>(
        self,
        numbers: *mut u8,
        operands: &[u8],
        compared: &[u8],
        previous: &mut [u8],
    ) {
        for (number, before) in previous.chunks_exact_mut(T::SIZE).enumerate() {
            let value = |bytes: &[u8]| bytes.chunks_exact(T::SIZE).nth(number).map_or_else(T::zero, T::read);
            let (operand, other) = (value(operands), value(compared));
            // SAFETY: by this function's contract.
            let old =
                unsafe { T::update(numbers.add(number * T::SIZE), |old| self.apply(old, operand, other)) };
            old.write(before);
        }
    }

    fn apply<T: Value>(self, old: T, operand: T, other: T) -> T {
        use AtomicOperation as Op;
        let (is_old, is_operand) = (old != T::zero(), operand != T::zero());
        let truth = |is: bool| if is { T::one() } else { T::zero() };
        let swap = |is: bool| if is { operand } else { old };
        match self.operation {
            Op::Min => {
                if operand < old {
                    operand
                } else {
                    old
                }
            }
            Op::Max => {
                if operand > old {
                    operand
                } else {
                    old
                }
            }
            Op::Sum => old.add(operand),
            Op::Product => old.multiply(operand),
            Op::LogicalOr => truth(is_old || is_operand),
            Op::LogicalAnd => truth(is_old && is_operand),
            Op::LogicalXor => truth(is_old != is_operand),
            Op::BitOr => T::bits(old, operand, |old, operand| old | operand),
            Op::BitAnd => T::bits(old, operand, |old, operand| old & operand),
            Op::BitXor => T::bits(old, operand, |old, operand| old ^ operand),
            Op::Read => old,
            Op::Write => operand,
            Op::Difference => old.subtract(operand),
            Op::SwapEqual => swap(other == old),
            Op::SwapUnequal => swap(other != old),
            Op::SwapLessEqual => swap(other <= old),
            Op::SwapLess => swap(other < old),
            Op::SwapGreaterEqual => swap(other >= old),
            Op::SwapGreater => swap(other > old),
            Op::SwapMasked => {
                let kept = T::bits(old, other, |old, mask| old & !mask);
                let new = T::bits(operand, other, |operand, mask| operand & mask);
                T::bits(kept, new, |kept, new| kept | new)
            }
        }
    }
}

/// A number that fits an atomic of the processor.
trait Value: Copy + PartialOrd {
    const SIZE: usize = size_of::<Self>();

    fn zero() -> Self;
    fn one() -> Self;
    fn add(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// Combines the bits, as a number of 64 bits.
    fn bits(one: Self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    /// Replaces a number by a function of it. Returns the number before.
    ///
    /// # Safety
    /// `number` is valid and aligned.
    unsafe fn update(number: *mut u8, change: impl Fn(Self) -> Self) -> Self;
}

macro_rules! values {
    ($($type:ty, $one:expr, $atomic:ty, $bits:ty, $from:expr, $to:expr;)*) => {$(
        impl Value for $type {
            fn zero() -> Self {
                Self::default()
            }

            fn one() -> Self {
                $one
            }

            fn add(self, other: Self) -> Self {
                Arithmetic::sum(self, other)
            }

            fn subtract(self, other: Self) -> Self {
                Arithmetic::difference(self, other)
            }

            fn multiply(self, other: Self) -> Self {
                Arithmetic::product(self, other)
            }

            fn bits(one: Self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
                let bits = |value: Self| u64::from($to(value));
                $from(combine(bits(one), bits(other)) as $bits)
            }

            fn read(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or_else(Self::default, |bytes| Self::from_ne_bytes(*bytes))
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            unsafe fn update(number: *mut u8, change: impl Fn(Self) -> Self) -> Self {
                // SAFETY: by this function's contract.
                let number = unsafe { <$atomic>::from_ptr(number.cast()) };
                let mut old = number.load(Ordering::Acquire);
                loop {
                    let new = $to(change($from(old)));
                    match number.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return $from(old),
                        Err(other) => old = other,
                    }
                }
            }
        }
    )*};
}

/// Arithmetic that does not overflow.
trait Arithmetic {
    fn sum(self, other: Self) -> Self;
    fn difference(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! arithmetic {
    ($($type:ty: $add:ident $subtract:ident $multiply:ident;)*) => {$(
        impl Arithmetic for $type {
            fn sum(self, other: Self) -> Self {
                self.$add(other)
            }

            fn difference(self, other: Self) -> Self {
                self.$subtract(other)
            }

            fn product(self, other: Self) -> Self {
                self.$multiply(other)
            }
        }
    )*};
}

arithmetic! {
    i8: wrapping_add wrapping_sub wrapping_mul;
    u8: wrapping_add wrapping_sub wrapping_mul;
    i16: wrapping_add wrapping_sub wrapping_mul;
    u16: wrapping_add wrapping_sub wrapping_mul;
    i32: wrapping_add wrapping_sub wrapping_mul;
    u32: wrapping_add wrapping_sub wrapping_mul;
    i64: wrapping_add wrapping_sub wrapping_mul;
    u64: wrapping_add wrapping_sub wrapping_mul;
}

impl Arithmetic for f32 {
    fn sum(self, other: Self) -> Self {
        self + other
    }

    fn difference(self, other: Self) -> Self {
        self - other
    }

    fn product(self, other: Self) -> Self {
        self * other
    }
}

impl Arithmetic for f64 {
    fn sum(self, other: Self) -> Self {
        self + other
    }

    fn difference(self, other: Self) -> Self {
        self - other
    }

    fn product(self, other: Self) -> Self {
        self * other
    }
}

values! {
    i8, 1, AtomicU8, u8, u8::cast_signed, i8::cast_unsigned;
    u8, 1, AtomicU8, u8, u8::from, u8::from;
    i16, 1, AtomicU16, u16, u16::cast_signed, i16::cast_unsigned;
    u16, 1, AtomicU16, u16, u16::from, u16::from;
    i32, 1, AtomicU32, u32, u32::cast_signed, i32::cast_unsigned;
    u32, 1, AtomicU32, u32, u32::from, u32::from;
    i64, 1, AtomicU64, u64, u64::cast_signed, i64::cast_unsigned;
    u64, 1, AtomicU64, u64, u64::from, u64::from;
    f32, 1.0, AtomicU32, u32, f32::from_bits, f32::to_bits;
    f64, 1.0, AtomicU64, u64, f64::from_bits, f64::to_bits;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T: Value>(kind: AtomicType, operation: AtomicOperation, values: [T; 3]) -> (T, T) {
        let atomic = Atomic::new(kind, operation).unwrap();
        assert_eq!((Atomic::from_code(atomic.code()), atomic.size()), (Some(atomic), T::SIZE));
        let bytes = values.map(|value| {
            let mut bytes = vec![0; T::SIZE];
            value.write(&mut bytes);
            bytes
        });
        let mut number = 0_u64;
        let mut before = vec![0; T::SIZE];
        let target = core::ptr::from_mut(&mut number).cast::<u8>();
        // SAFETY: 8 aligned bytes, of which no other reference is used.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes[0].as_ptr(), target, T::SIZE);
            atomic.execute(target, &bytes[1], &bytes[2], &mut before);
            (T::read(&before), T::read(core::slice::from_raw_parts(target, T::SIZE)))
        }
    }

    #[test]
    fn operations_have_the_results_of_the_interface() {
        use AtomicOperation as Op;
        let signed = |operation, values| run::<i32>(AtomicType::I32, operation, values);
        for (operation, [old, operand, other], new) in [
            (Op::Min, [5, -3, 0], -3),
            (Op::Max, [5, -3, 0], 5),
            (Op::Sum, [i32::MAX, 1, 0], i32::MIN),
            (Op::Product, [6, -7, 0], -42),
            (Op::Difference, [6, 7, 0], -1),
            (Op::LogicalOr, [0, 9, 0], 1),
            (Op::LogicalAnd, [0, 9, 0], 0),
            (Op::LogicalXor, [4, 9, 0], 0),
            (Op::BitOr, [4, 9, 0], 13),
            (Op::BitAnd, [-1, 9, 0], 9),
            (Op::BitXor, [5, 9, 0], 12),
            (Op::Read, [5, 9, 0], 5),
            (Op::Write, [5, 9, 0], 9),
            (Op::SwapEqual, [5, 9, 5], 9),
            (Op::SwapEqual, [5, 9, 4], 5),
            (Op::SwapUnequal, [5, 9, 4], 9),
            (Op::SwapLessEqual, [5, 9, 5], 9),
            (Op::SwapLess, [5, 9, 5], 5),
            (Op::SwapGreaterEqual, [5, 9, 4], 5),
            (Op::SwapGreater, [5, 9, 6], 9),
            (Op::SwapMasked, [0b1010, 0b0101, 0b0011], 0b1001),
        ] {
            assert_eq!(signed(operation, [old, operand, other]), (old, new), "{operation}");
        }
        assert_eq!(run(AtomicType::F64, Op::Sum, [1.5, 2.25, 0.0]), (1.5, 3.75));
        assert_eq!(run(AtomicType::F32, Op::SwapLess, [1.5_f32, 9.0, -2.0]), (1.5, 9.0));
        assert_eq!(run(AtomicType::U8, Op::Sum, [255_u8, 2, 0]), (255, 1));
        assert_eq!(run(AtomicType::I8, Op::Min, [100_i8, -100, 0]), (100, -100));
        assert_eq!(run(AtomicType::U16, Op::Max, [1_u16, 40_000, 0]), (1, 40_000));
        assert_eq!(run(AtomicType::I16, Op::Product, [-5_i16, 7, 0]), (-5, -35));
        assert_eq!(run(AtomicType::U64, Op::Write, [0_u64, u64::MAX, 0]), (0, u64::MAX));
        assert_eq!(run(AtomicType::I64, Op::BitXor, [-1_i64, 1, 0]), (-1, -2));
        assert_eq!(run(AtomicType::U32, Op::Difference, [0_u32, 1, 0]), (0, u32::MAX));
        assert_eq!(Atomic::new(AtomicType::F64, Op::BitOr), None);
        assert_eq!([0xff, 0xff00, 0xff_ffff_ffff].map(Atomic::from_code), [None; 3]);
    }
}
