//! Compares reductions with Rust's operators, number by number.

use super::*;
use proptest::prelude::*;

/// The expected result of an operation, by Rust's operators.
trait Reference: Number + PartialEq + fmt::Debug {
    fn expected(operation: Operation, one: Self, other: Self) -> Option<Self>;
    /// Returns the number with these bits.
    fn of_bits(bits: u64) -> Self;
    fn same(self, other: Self) -> bool;
}

macro_rules! integers {
    ($($type:ident),*) => {$(
        impl Reference for $type {
            fn expected(operation: Operation, one: Self, other: Self) -> Option<Self> {
                Some(match operation {
                    Operation::Sum => one.wrapping_add(other),
                    Operation::Product => one.wrapping_mul(other),
                    Operation::Min => if other < one { other } else { one },
                    Operation::Max => if other > one { other } else { one },
                    Operation::And => one & other,
                    Operation::Or => one | other,
                    Operation::Xor => one ^ other,
                })
            }

            fn of_bits(bits: u64) -> Self {
                bits as Self
            }

            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($type:ident $bits:ident),*) => {$(
        impl Reference for $type {
            fn expected(operation: Operation, one: Self, other: Self) -> Option<Self> {
                Some(match operation {
                    Operation::Sum => one + other,
                    Operation::Product => one * other,
                    Operation::Min if one.is_nan() || other < one => other,
                    Operation::Max if one.is_nan() || other > one => other,
                    Operation::Min | Operation::Max => one,
                    Operation::And | Operation::Or | Operation::Xor => return None,
                })
            }

            fn of_bits(bits: u64) -> Self {
                // Numbers of all magnitudes, and NaNs.
                match bits % 16 {
                    0 => Self::NAN,
                    1 => Self::INFINITY,
                    2 => Self::from_bits((bits >> 8) as $bits),
                    _ => Self::from((bits >> 16) as i16) / 64.0,
                }
            }

            fn same(self, other: Self) -> bool {
                // Of +0 and -0 either is the smaller one.
                self == other || self.is_nan() && other.is_nan()
            }
        }
    )*};
}
floats!(f32 u32, f64 u64);

fn check<T: Reference>(operation: Operation, pairs: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let reduction = match Reduction::of::<T>(operation) {
        Ok(reduction) => reduction,
        Err(error) => {
            let is_none = T::expected(operation, T::of_bits(3), T::of_bits(3)).is_none();
            let is_said = matches!(error, Error::NoReduction { .. });
            prop_assert!(is_none && is_said);
            return Ok(());
        }
    };
    let ones: Vec<T> = pairs.iter().map(|pair| T::of_bits(pair.0)).collect();
    let others: Vec<T> = pairs.iter().map(|pair| T::of_bits(pair.1)).collect();
    let size = T::ELEMENT.size();
    prop_assert_eq!(size, size_of::<T>());
    // At places that are not aligned, with bytes around them.
    let place = |numbers: &[T]| {
        let mut bytes = vec![0xa5_u8; numbers.len() * size + 2];
        // SAFETY: as many bytes.
        unsafe {
            let from = numbers.as_ptr().cast::<u8>();
            core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(1), numbers.len() * size);
        }
        bytes
    };
    let numbers = |bytes: &[u8]| -> Vec<T> {
        bytes[1..bytes.len() - 1]
            .chunks_exact(size)
            // SAFETY: that many bytes, any of which are a number.
            .map(|chunk| unsafe { chunk.as_ptr().cast::<T>().read_unaligned() })
            .collect()
    };
    let (mut first, mut second) = (place(&ones), place(&others));
    let length = pairs.len() * size;
    // SAFETY: both have that many bytes from their second on.
    unsafe { reduction.combine(first.as_mut_ptr().add(1), second.as_ptr().add(1), length) };
    for ((result, one), other) in numbers(&first).into_iter().zip(&ones).zip(&others) {
        let expected = T::expected(operation, *one, *other);
        prop_assert!(
            expected.is_some_and(|expected| expected.same(result)),
            "{reduction} {one:?} {other:?}: {result:?}"
        );
    }
    prop_assert!(second == place(&others), "the second operand does not change");
    let once = first.clone();
    first = place(&ones);
    // SAFETY: as above.
    unsafe { reduction.combine_both(first.as_mut_ptr().add(1), second.as_mut_ptr().add(1), length) };
    prop_assert!(first[1..=length] == second[1..=length], "both have the result, bit for bit");
    // The bits of a NaN may differ between loops.
    let is_same = numbers(&first).into_iter().zip(numbers(&once)).all(|(one, other)| one.same(other));
    prop_assert!(is_same, "{reduction}: it is the same result");
    prop_assert!(first[0] == 0xa5 && first[length + 1] == 0xa5, "bytes beside the range do not change");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn kernels_match_scalar_arithmetic(pairs in prop::collection::vec((any::<u64>(), any::<u64>()), 0..70)) {
        for operation in Operation::ALL {
            check::<i8>(operation, &pairs)?;
            check::<i16>(operation, &pairs)?;
            check::<i32>(operation, &pairs)?;
            check::<i64>(operation, &pairs)?;
            check::<u8>(operation, &pairs)?;
            check::<u16>(operation, &pairs)?;
            check::<u32>(operation, &pairs)?;
            check::<u64>(operation, &pairs)?;
            check::<f32>(operation, &pairs)?;
            check::<f64>(operation, &pairs)?;
        }
    }
}

#[test]
fn codes_of_elements_and_operations_differ() {
    let mut codes = Vec::new();
    for operation in Operation::ALL {
        for element in Element::ALL {
            if let Ok(reduction) = Reduction::new(operation, element) {
                assert_eq!((reduction.operation(), reduction.element()), (operation, element));
                codes.push(reduction.code());
            }
        }
    }
    let count = codes.len();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!((codes.len(), count), (64, 64));
    assert!(codes.iter().all(|code| *code < 128));
}
