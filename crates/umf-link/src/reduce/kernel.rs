//! The loops of reductions. Each is written once over a fixed number of lanes, which compilers
//! vectorise, and compiled twice: for the baseline of the architecture, and for AVX2.
//!
//! One operand may be memory that another process writes. Each byte of it is read once, into an
//! array on the stack. All bit patterns are valid numbers, and no number is used as an address or a
//! length.

use core::marker::PhantomData;

use super::{Element, Operation};

/// Combines numbers at the first address with those at the second.
///
/// # Safety
/// As [`super::Reduction::combine`]; the length is in numbers.
type Kernel = unsafe fn(*mut u8, *mut u8, usize);

#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Stores the result at the first address.
    pub into: Kernel,
    /// Stores the result at both addresses.
    pub both: Kernel,
}

trait Combine {
    type Of: Copy;
    fn combine(one: Self::Of, other: Self::Of) -> Self::Of;
}

const LANES: usize = 16;

/// # Safety
/// As [`Kernel`]. If `BOTH`, the memory at the second address can be written.
#[inline(always)]
unsafe fn each<C: Combine, const BOTH: bool>(first: *mut u8, second: *mut u8, count: usize) {
    let (mut first, mut second) = (first.cast::<[C::Of; LANES]>(), second.cast::<[C::Of; LANES]>());
    for _ in 0..count / LANES {
        // SAFETY: `count` numbers are there by this function's contract, and all bit patterns are
        // valid.
        unsafe {
            let (mut one, other) = (first.read_unaligned(), second.read_unaligned());
            for lane in 0..LANES {
                one[lane] = C::combine(one[lane], other[lane]);
            }
            first.write_unaligned(one);
            if BOTH {
                second.write_unaligned(one);
            }
            first = first.add(1);
            second = second.add(1);
        }
    }
    let (mut first, mut second) = (first.cast::<C::Of>(), second.cast::<C::Of>());
    for _ in 0..count % LANES {
        // SAFETY: as above.
        unsafe {
            let result = C::combine(first.read_unaligned(), second.read_unaligned());
            first.write_unaligned(result);
            if BOTH {
                second.write_unaligned(result);
            }
            first = first.add(1);
            second = second.add(1);
        }
    }
}

/// # Safety
/// As [`each`].
unsafe fn plain<C: Combine, const BOTH: bool>(first: *mut u8, second: *mut u8, count: usize) {
    // SAFETY: by this function's contract.
    unsafe { each::<C, BOTH>(first, second, count) };
}

/// # Safety
/// As [`each`], on a processor that has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn wide<C: Combine, const BOTH: bool>(first: *mut u8, second: *mut u8, count: usize) {
    // SAFETY: by this function's contract.
    unsafe { each::<C, BOTH>(first, second, count) };
}

fn kernels<C: Combine>() -> Kernels {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return Kernels { into: wide::<C, false>, both: wide::<C, true> };
    }
    Kernels { into: plain::<C, false>, both: plain::<C, true> }
}

struct Sum<T>(PhantomData<T>);
struct Product<T>(PhantomData<T>);
struct Min<T>(PhantomData<T>);
struct Max<T>(PhantomData<T>);
struct And<T>(PhantomData<T>);
struct Or<T>(PhantomData<T>);
struct Xor<T>(PhantomData<T>);

macro_rules! combine {
    ($what:ident, $($type:ident)*, $function:expr) => {$(
        impl Combine for $what<$type> {
            type Of = $type;

            #[inline(always)]
            fn combine(one: $type, other: $type) -> $type {
                let function: fn($type, $type) -> $type = $function;
                function(one, other)
            }
        }
    )*};
}
// Wrapping sums and products and bit operations are the same for signed and unsigned numbers.
combine!(Sum, u8 u16 u32 u64, |one, other| one.wrapping_add(other));
combine!(Product, u8 u16 u32 u64, |one, other| one.wrapping_mul(other));
combine!(Sum, f32 f64, |one, other| one + other);
combine!(Product, f32 f64, |one, other| one * other);
combine!(Min, i8 i16 i32 i64 u8 u16 u32 u64, |one, other| one.min(other));
combine!(Max, i8 i16 i32 i64 u8 u16 u32 u64, |one, other| one.max(other));
combine!(Min, f32 f64, |one, other| one.min(other));
combine!(Max, f32 f64, |one, other| one.max(other));
combine!(And, u8 u16 u32 u64, |one, other| one & other);
combine!(Or, u8 u16 u32 u64, |one, other| one | other);
combine!(Xor, u8 u16 u32 u64, |one, other| one ^ other);

macro_rules! by_width {
    ($what:ident, $element:expr, $($float:ident $float_type:ident),*) => {
        match $element {
            Element::I8 | Element::U8 => kernels::<$what<u8>>(),
            Element::I16 | Element::U16 => kernels::<$what<u16>>(),
            Element::I32 | Element::U32 => kernels::<$what<u32>>(),
            Element::I64 | Element::U64 => kernels::<$what<u64>>(),
            $(Element::$float => kernels::<$what<$float_type>>(),)*
            #[allow(unreachable_patterns, reason = "of operations that floats have")]
            _ => return None,
        }
    };
}

macro_rules! by_type {
    ($what:ident, $element:expr) => {
        match $element {
            Element::I8 => kernels::<$what<i8>>(),
            Element::I16 => kernels::<$what<i16>>(),
            Element::I32 => kernels::<$what<i32>>(),
            Element::I64 => kernels::<$what<i64>>(),
            Element::U8 => kernels::<$what<u8>>(),
            Element::U16 => kernels::<$what<u16>>(),
            Element::U32 => kernels::<$what<u32>>(),
            Element::U64 => kernels::<$what<u64>>(),
            Element::F32 => kernels::<$what<f32>>(),
            Element::F64 => kernels::<$what<f64>>(),
        }
    };
}

/// Returns the loops of an operation; `None` if it is not defined for the numbers.
pub(super) fn find(operation: Operation, element: Element) -> Option<Kernels> {
    Some(match operation {
        Operation::Sum => by_width!(Sum, element, F32 f32, F64 f64),
        Operation::Product => by_width!(Product, element, F32 f32, F64 f64),
        Operation::Min => by_type!(Min, element),
        Operation::Max => by_type!(Max, element),
        Operation::And => by_width!(And, element,),
        Operation::Or => by_width!(Or, element,),
        Operation::Xor => by_width!(Xor, element,),
    })
}
