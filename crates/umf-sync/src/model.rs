//! Support for loom models (tests named `loom_...`): words, the bound of preemptions, and the
//! states that a model reached. `tests/run --loom` explores more preemptions.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use crate::words::{Number, Word};

/// Runs a model with at most `preemptions` preemptions, which reveal most errors. With `--cfg loom`
/// the bound is `max_preemptions`; `None` explores every interleaving.
pub fn explore(preemptions: usize, max_preemptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = if cfg!(loom) { max_preemptions } else { Some(preemptions) };
    builder.check(run);
}

/// The states that a model reached in any interleaving. A model that does not reach its interesting
/// states proves nothing.
#[derive(Clone, Debug, Default)]
pub struct Reached(Arc<Mutex<BTreeSet<&'static str>>>);

impl Reached {
    /// Records that a state was reached.
    ///
    /// # Panics
    /// If another thread panicked in this function.
    pub fn reach(&self, state: &'static str) {
        self.0.lock().expect("no thread panics under the lock").insert(state);
    }

    /// Checks that exactly these states were reached.
    ///
    /// # Panics
    /// If they were not.
    #[track_caller]
    pub fn check<const COUNT: usize>(&self, states: [&'static str; COUNT]) {
        let reached = self.0.lock().expect("no thread panics under the lock");
        assert_eq!(*reached, BTreeSet::from(states), "the states that the model reached");
    }
}

/// A word over an atomic of loom.
///
/// loom 0.7 records only the last access to a word, and treats two loads as independent. If a
/// thread loads a word and then stores to it, loom does not consider that the store could precede
/// an earlier load of another thread. It leaves such interleavings out (issues 166 and 392 of
/// tokio-rs/loom). Most counters are written this way. Therefore each load also stores to a second
/// word. Stores are not independent, so loom explores all orders of the loads. No thread reads the
/// second word, so it adds no ordering between threads.
#[derive(Debug)]
pub struct ModelWord<A = AtomicU64> {
    value: A,
    loads: AtomicU64,
}

impl ModelWord {
    /// Returns a 64-bit word with this value.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self::over(AtomicU64::new(value))
    }
}

impl<A> ModelWord<A> {
    /// Returns a word over an atomic of loom.
    #[must_use]
    pub fn over(value: A) -> Self {
        Self { value, loads: AtomicU64::new(0) }
    }
}

/// Fences if the order is sequentially consistent. loom 0.7 treats sequentially consistent accesses
/// as acquire and release; its fences are correct. A fence before the load and after the store
/// gives the ordering of the memory model.
fn fence_at(order: Ordering) {
    if order == Ordering::SeqCst {
        fence(order);
    }
}

fn fenced<T>(order: Ordering, change: impl FnOnce() -> T) -> T {
    fence_at(order);
    let before = change();
    fence_at(order);
    before
}

macro_rules! word {
    ($atomic:ty, $value:ty $(, $generic:ident)?) => {
        impl$(<$generic>)? Word<$value> for ModelWord<$atomic> {
            fn load(&self, order: Ordering) -> $value {
                self.loads.store(0, Ordering::Relaxed);
                fence_at(order);
                self.value.load(order)
            }

            fn store(&self, value: $value, order: Ordering) {
                self.value.store(value, order);
                fence_at(order);
            }

            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                fenced(success, || self.value.compare_exchange(current, new, success, failure))
            }

            fn fence(order: Ordering) {
                fence(order);
            }

            fn light_fence() {
                fence(Ordering::SeqCst);
            }

            fn heavy_fence() {
                fence(Ordering::SeqCst);
            }

            fn pause() {
                loom::thread::yield_now();
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);
word!(AtomicPtr<T>, *mut T, T);

impl Number for ModelWord {
    fn store_after_max(&self, value: u64) {
        self.value.swap(value, Ordering::Release);
    }

    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        fenced(order, || self.value.fetch_max(value, order))
    }

    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        fenced(order, || self.value.fetch_or(bits, order))
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        fenced(order, || self.value.fetch_add(value, order))
    }
}

/// Checks the workaround of [`ModelWord`].
#[test]
fn loom_load_before_a_store_does_not_hide_interleavings() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(2, None, move || {
        let word = Arc::new(ModelWord::new(0));
        let adder = {
            let word = Arc::clone(&word);
            loom::thread::spawn(move || word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed))
        };
        in_model.reach(if word.load(Ordering::Relaxed) == 0 { "before" } else { "after" });
        adder.join().unwrap();
    });
    reached.check(["after", "before"]);
}
