//! [`Word`] and [`Number`]: the atomics of lock-free protocols as traits. The protocols are generic
//! over them, so that the model checker's atomics (`model`, a feature) can replace the machine's.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::fence;

/// An atomic word that threads or processes share, and the fences of its protocol.
pub trait Word<V = u64> {
    /// Loads the value.
    fn load(&self, order: Ordering) -> V;
    /// Stores a value.
    fn store(&self, value: V, order: Ordering);
    /// Replaces `current` by `new`, and returns the old value.
    ///
    /// # Errors
    /// The value, if it is not `current`.
    fn compare_exchange(&self, current: V, new: V, success: Ordering, failure: Ordering) -> Result<V, V>;

    /// Fences with this order.
    #[inline(always)]
    fn fence(order: Ordering) {
        match order {
            Ordering::SeqCst => fence::full(),
            order => core::sync::atomic::fence(order),
        }
    }

    /// Fences on the hot side of an asymmetric pair.
    #[inline(always)]
    fn light_fence() {
        fence::light_or_full();
    }

    /// Fences on the rare side of the pair.
    fn heavy_fence() {
        fence::heavy();
    }

    /// Yields to other threads, in a loop that waits for them.
    fn pause() {
        std::thread::yield_now();
    }
}

/// An atomic integer. Each read-modify-write returns the old value.
pub trait Number<V = u64>: Word<V> {
    /// Stores with release ordering. In the modification order the store follows every `fetch_max`
    /// that read the value it replaces, since a read-modify-write is atomic. loom 0.7 does not
    /// model that for stores, so its implementation swaps.
    fn store_after_max(&self, value: V);
    /// Stores the maximum of both values.
    fn fetch_max(&self, value: V, order: Ordering) -> V;
    /// Stores the bitwise or of both values.
    fn fetch_or(&self, bits: V, order: Ordering) -> V;
    /// Adds, wrapping around on overflow.
    fn fetch_add(&self, value: V, order: Ordering) -> V;
}

macro_rules! word {
    ($atomic:ty, $value:ty $(, $generic:ident)?) => {
        impl$(<$generic>)? Word<$value> for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);
word!(AtomicPtr<T>, *mut T, T);

impl Number for AtomicU64 {
    #[inline(always)]
    fn store_after_max(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline(always)]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, order)
    }

    #[inline(always)]
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.fetch_or(bits, order)
    }

    #[inline(always)]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
}
