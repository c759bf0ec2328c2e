//! Loom's model of a record that is reused during a free. `tests/run --loom` explores it in full.

use std::collections::BTreeSet;
use std::sync::Mutex;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

use super::{LIVE, VersionedRecord, is_current, publish, read, retract};

/// A record of spans of one block, and the states that its pointer may lead to.
struct Model {
    generation: AtomicU32,
    count: AtomicU64,
    base: AtomicU64,
    state: AtomicU64,
    states: [AtomicU8; 2],
}

impl VersionedRecord for Model {
    fn generation(&self, order: Ordering) -> u32 {
        self.generation.load(order)
    }

    fn advance(&self, order: Ordering) {
        self.generation.fetch_add(1, order);
    }

    fn count(&self, order: Ordering) -> u64 {
        self.count.load(order)
    }

    fn set_count(&self, count: u64, order: Ordering) {
        self.count.store(count, order);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

const OLD: u64 = 1000;
const NEW: u64 = 2000;

impl Model {
    /// Returns a record of a free block at `OLD`, with the first state.
    fn new() -> Self {
        Self {
            generation: AtomicU32::new(7),
            count: AtomicU64::new(1),
            base: AtomicU64::new(OLD),
            state: AtomicU64::new(0),
            states: [AtomicU8::new(0), AtomicU8::new(0)],
        }
    }

    /// Retracts the record, and publishes it for a live block at `base` with state number `state`.
    fn reuse(&self, base: u64, state: usize) {
        retract(self, || {});
        self.states[state].store(0, Ordering::Relaxed);
        publish(self, 1, || {
            self.base.store(base, Ordering::Relaxed);
            self.state.store(state as u64, Ordering::Relaxed);
        });
        self.states[state].store(LIVE, Ordering::Release);
    }

    /// Frees by atomic exchange, as in `free`. Returns the outcome.
    fn free(&self, address: u64) -> &'static str {
        let words = || (self.base.load(Ordering::Relaxed), self.state.load(Ordering::Relaxed));
        let Some((generation, count, (base, state))) = read(self, words) else { return "changing" };
        assert!(count <= 1);
        if count == 0 || base != address {
            return "elsewhere";
        }
        let state = &self.states[state as usize];
        if state.compare_exchange(LIVE, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return "not live";
        }
        if is_current(self, generation) {
            return "freed";
        }
        state.fetch_or(LIVE, Ordering::AcqRel);
        "restored"
    }
}

/// Runs a second free of the block at `OLD` while the record is reused with this base and state.
/// Returns the possible outcomes of the free.
fn second_free(base: u64, state: usize) -> BTreeSet<&'static str> {
    let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
    let in_model = outcomes.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = if cfg!(loom) { None } else { Some(3) };
    builder.check(move || {
        let model = Arc::new(Model::new());
        let publisher = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.reuse(base, state))
        };
        let outcome = model.free(OLD);
        publisher.join().unwrap();
        // The new block is live, unless it has the freed address: then the free freed it.
        let live = model.states[state].load(Ordering::Acquire) == LIVE;
        assert_eq!(live, outcome != "freed", "{outcome}");
        in_model.lock().unwrap().insert(outcome);
    });
    let outcomes = outcomes.lock().unwrap();
    outcomes.clone()
}

#[test]
fn loom_read_of_a_reused_record_is_consistent() {
    // The new block has another state and another address, so the free does not change it.
    assert_eq!(second_free(NEW, 1), BTreeSet::from(["changing", "elsewhere", "not live"]));
}

#[test]
fn loom_second_free_restores_the_state_of_another_block() {
    // The new block has the same state byte.
    assert_eq!(second_free(NEW, 0), BTreeSet::from(["changing", "elsewhere", "not live", "restored"]));
}

#[test]
fn loom_block_at_the_same_address_is_freed_once() {
    assert_eq!(second_free(OLD, 1), BTreeSet::from(["changing", "elsewhere", "freed", "not live"]));
}
