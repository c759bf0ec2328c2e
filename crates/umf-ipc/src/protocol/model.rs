//! The protocols in loom's model: every interleaving that the memory model allows, of a few threads. Each model counts
//! that it reached what it is about: one that never does proves nothing.
//!
//! With `--cfg loom` (`tests/run --loom`) it is every interleaving; otherwise those with few preemptions, in which nearly
//! all mistakes show, in a fraction of the time.

mod leases;
mod shared;

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::Word;

/// Runs a model with the interleavings that belong to this kind of test run.
fn model(run: impl Fn() + Send + Sync + 'static) {
    explore(if cfg!(loom) { None } else { Some(2) }, run);
}

/// One of so many steps that not even `--cfg loom` can have them all.
fn large_model(run: impl Fn() + Send + Sync + 'static) {
    explore(Some(if cfg!(loom) { 4 } else { 2 }), run);
}

fn explore(preemptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(run);
}

/// A word as loom has it.
///
/// Of the accesses to a word loom 0.7 remembers the last only, and of two loads it believes that their order means nothing.
/// So a thread that loads a word and then stores into it hides its store: loom does not see any more that it could as
/// well have come before another thread's earlier load, and leaves such interleavings out (issues 166 and 392 of
/// tokio-rs/loom). That is how most counts here are written. Therefore each load comes with a store into a second word.
/// The order of stores means something, so that loom tries the loads in every order; and nobody reads what is stored, so
/// that it orders nothing for the threads.
#[derive(Debug)]
struct ModelWord {
    value: AtomicU64,
    loads: AtomicU64,
}

impl ModelWord {
    fn new(value: u64) -> Self {
        Self { value: AtomicU64::new(value), loads: AtomicU64::new(0) }
    }
}

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.loads.store(0, Ordering::Relaxed);
        fence_before(order);
        self.value.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.value.store(value, order);
        fence_after(order);
    }

    fn leave(&self, value: u64) {
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

    fn fence(order: Ordering) {
        fence(order);
    }

    fn light_fence() {
        fence(Ordering::SeqCst);
    }

    fn heavy_fence() {
        fence(Ordering::SeqCst);
    }
}

/// loom 0.7 takes sequentially consistent accesses for acquiring and releasing ones; its fences are what they say. So such a
/// load comes after a fence here, and such a store before one, which orders them as the memory model does.
fn fence_before(order: Ordering) {
    if order == Ordering::SeqCst {
        fence(order);
    }
}

fn fence_after(order: Ordering) {
    fence_before(order);
}

fn fenced<T>(order: Ordering, change: impl FnOnce() -> T) -> T {
    fence_before(order);
    let before = change();
    fence_after(order);
    before
}

/// Words that share a line of a test.
fn words<const COUNT: usize>(values: [u64; COUNT]) -> Arc<[ModelWord; COUNT]> {
    Arc::new(values.map(ModelWord::new))
}

/// What is protected: memory that somebody makes, uses or takes away. Loom sees what is done at the same time, and this one
/// what is done after it is gone.
#[derive(Debug)]
struct Memory {
    accesses: UnsafeCell<()>,
    is_gone: AtomicBool,
}

// SAFETY: the cell holds nothing; loom fails where it is used by two at the same time.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        Self { accesses: UnsafeCell::new(()), is_gone: AtomicBool::new(false) }
    }

    fn make(&self) {
        self.accesses.with_mut(|_| ());
    }

    fn use_it(&self) {
        self.accesses.with(|_| ());
        assert!(!self.is_gone.load(Ordering::Relaxed), "in use and gone");
    }

    fn take_away(&self) {
        self.accesses.with_mut(|_| ());
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

/// The states that a model reached, in any interleaving.
#[derive(Clone, Debug, Default)]
struct Reached(Arc<Mutex<BTreeSet<&'static str>>>);

impl Reached {
    fn reach(&self, state: &'static str) {
        self.0.lock().unwrap().insert(state);
    }

    /// What was reached is this and nothing else.
    #[track_caller]
    fn check<const COUNT: usize>(&self, states: [&'static str; COUNT]) {
        assert_eq!(*self.0.lock().unwrap(), BTreeSet::from(states), "what the model reached");
    }
}

/// The model itself: what a thread loads before it stores hides nothing (see [`ModelWord`]).
#[test]
fn loom_a_load_before_a_store_hides_nothing() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let word = Arc::new(ModelWord::new(0));
        let adder = {
            let word = Arc::clone(&word);
            thread::spawn(move || word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed))
        };
        in_model.reach(if word.load(Ordering::Relaxed) == 0 { "before" } else { "after" });
        adder.join().unwrap();
    });
    reached.check(["after", "before"]);
}
