//! The protocols in loom's model: every interleaving that the memory model allows, of a few
//! threads. Each model counts that it reached what it is about: one that never does proves nothing.
//!
//! With `--cfg loom` (`tests/run --loom`) it is every interleaving; otherwise those with few
//! preemptions, in which nearly all mistakes show, in a fraction of the time.

mod leases;
mod shared;

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::fence;
use loom::thread;
use umf_sync::model::{ModelWord, Reached, explore};
use umf_sync::words::{Number, Word};

/// Runs a model with the interleavings that belong to this kind of test run.
fn model(run: impl Fn() + Send + Sync + 'static) {
    explore(2, None, run);
}

/// One of so many steps that not even `--cfg loom` can have them all.
fn large_model(run: impl Fn() + Send + Sync + 'static) {
    explore(2, Some(4), run);
}

/// Words that share a line of a test.
fn words<const COUNT: usize>(values: [u64; COUNT]) -> Arc<[ModelWord; COUNT]> {
    Arc::new(values.map(ModelWord::new))
}

/// Protected memory that threads create, use or reclaim. Loom reports concurrent use;
/// `is_reclaimed` reports later use.
#[derive(Debug)]
struct Memory {
    accesses: UnsafeCell<()>,
    is_reclaimed: AtomicBool,
}

// SAFETY: the cell holds nothing; loom fails where it is used by two at the same time.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        Self { accesses: UnsafeCell::new(()), is_reclaimed: AtomicBool::new(false) }
    }

    fn make(&self) {
        self.accesses.with_mut(|_| ());
    }

    fn use_it(&self) {
        self.accesses.with(|_| ());
        assert!(!self.is_reclaimed.load(Ordering::Relaxed), "in use and gone");
    }

    fn reclaim(&self) {
        self.accesses.with_mut(|_| ());
        self.is_reclaimed.store(true, Ordering::Relaxed);
    }
}
