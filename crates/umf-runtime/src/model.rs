//! What the models for loom share: how far they go, and what they reached. (`loom_` tests; in full with `tests/run --loom`.)

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU64, Ordering};

/// Runs a model with at most so many preemptions, in which nearly all mistakes show; with `--cfg loom` with `in_full` of them (`None`:
/// every interleaving).
pub(crate) fn explore(preemptions: usize, in_full: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = if cfg!(loom) { in_full } else { Some(preemptions) };
    builder.check(run);
}

/// The states that a model reached, in any interleaving: one that never gets anywhere proves nothing.
#[derive(Clone, Default)]
pub(crate) struct Reached(Arc<Mutex<BTreeSet<&'static str>>>);

impl Reached {
    pub(crate) fn reach(&self, state: &'static str) {
        self.0.lock().unwrap().insert(state);
    }

    /// What was reached is this and nothing else.
    #[track_caller]
    pub(crate) fn check<const COUNT: usize>(&self, states: [&'static str; COUNT]) {
        assert_eq!(*self.0.lock().unwrap(), BTreeSet::from(states), "what the model reached");
    }
}

/// A word as loom has it. Loads come with a store that nobody reads, so that loom tries them in every order: of loads alone it
/// believes that their order means nothing (see the model of the tracker's sequences).
pub(crate) struct ModelWord {
    pub(crate) value: AtomicU64,
    loads: AtomicU64,
}

impl ModelWord {
    pub(crate) fn new() -> Self {
        Self { value: AtomicU64::new(0), loads: AtomicU64::new(0) }
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.loads.store(0, Ordering::Relaxed);
        self.value.load(order)
    }
}
