//! What the models for loom share: words, how far the models go, and what they reached. (`loom_`
//! tests; in full with `tests/run --loom`.)

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use crate::words::{Number, Word};

/// Runs a model with at most so many preemptions, in which nearly all mistakes show; with
/// `--cfg loom` with `in_full` of them (`None`: every interleaving).
pub fn explore(preemptions: usize, in_full: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = if cfg!(loom) { in_full } else { Some(preemptions) };
    builder.check(run);
}

/// The states that a model reached, in any interleaving: one that never gets anywhere proves
/// nothing.
#[derive(Clone, Debug, Default)]
pub struct Reached(Arc<Mutex<BTreeSet<&'static str>>>);

impl Reached {
    /// Notes that a state was reached.
    ///
    /// # Panics
    /// If another thread panicked here.
    pub fn reach(&self, state: &'static str) {
        self.0.lock().expect("no thread panics under the lock").insert(state);
    }

    /// Checks that what was reached is this and nothing else.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn check<const COUNT: usize>(&self, states: [&'static str; COUNT]) {
        let reached = self.0.lock().expect("no thread panics under the lock");
        assert_eq!(*reached, BTreeSet::from(states), "what the model reached");
    }
}

/// A word as loom has it.
///
/// Of the accesses to a word loom 0.7 remembers the last only, and of two loads it believes that
/// their order means nothing. So a thread that loads a word and then stores into it hides its
/// store: loom does not see any more that it could as well have come before another thread's
/// earlier load, and leaves such interleavings out (issues 166 and 392 of tokio-rs/loom). That is
/// how most counts are written. Therefore each load comes with a store into a second word. The
/// order of stores means something, so that loom tries the loads in every order; and no thread
/// reads what is stored, so that it orders nothing for the threads.
#[derive(Debug)]
pub struct ModelWord<A = AtomicU64> {
    value: A,
    loads: AtomicU64,
}

impl ModelWord {
    /// A word of 64 bits with this value.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self::over(AtomicU64::new(value))
    }
}

impl<A> ModelWord<A> {
    /// A word over one of loom's atomics.
    #[must_use]
    pub fn over(value: A) -> Self {
        Self { value, loads: AtomicU64::new(0) }
    }
}

/// loom 0.7 takes sequentially consistent accesses for acquiring and releasing ones; its fences are
/// what they say. So such a load comes after a fence here, and such a store before one, which
/// orders them as the memory model does.
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

/// What a thread loads before it stores hides nothing (see [`ModelWord`]).
#[test]
fn loom_a_load_before_a_store_hides_nothing() {
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
