//! [`Word`] and [`Number`]: what lock-free protocols need of the words that they share, so that the atomics of a model checker
//! (`model`, with the feature of that name) can stand in for those of the machine.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::fence;

/// A word that threads or processes share, with the fences that go with it.
pub trait Word<V = u64> {
    /// Loads the value.
    fn load(&self, order: Ordering) -> V;
    /// Stores a value.
    fn store(&self, value: V, order: Ordering);
    /// Replaces `current` by `new`, or returns what is there instead.
    ///
    /// # Errors
    /// What is there, if it is not `current`.
    fn compare_exchange(&self, current: V, new: V, success: Ordering, failure: Ordering) -> Result<V, V>;

    /// A fence of this order.
    #[inline(always)]
    fn fence(order: Ordering) {
        match order {
            Ordering::SeqCst => fence::full(),
            order => core::sync::atomic::fence(order),
        }
    }

    /// The side of an asymmetric pair of fences that costs little.
    #[inline(always)]
    fn light_fence() {
        fence::light_or_full();
    }

    /// The other side.
    fn heavy_fence() {
        fence::heavy();
    }

    /// Lets other threads run, in a loop that waits for them.
    fn pause() {
        std::thread::yield_now();
    }
}

/// A word that holds a number. Each change returns what was there before it.
pub trait Number<V = u64>: Word<V> {
    /// A store with release semantics that comes after every `fetch_max` that read what it replaces, as every store does: nothing
    /// comes between what those read and what they wrote. (loom 0.7 does not know that, and swaps.)
    fn leave(&self, value: V);
    /// The greater of both stays.
    fn fetch_max(&self, value: V, order: Ordering) -> V;
    /// The bits of both are there then.
    fn fetch_or(&self, bits: V, order: Ordering) -> V;
    /// Adds, modulo the size of the word.
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
    fn leave(&self, value: u64) {
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
