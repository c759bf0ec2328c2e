//! Loom's model of two frees of one block, one of them by the owner. `tests/run --loom` explores it
//! in full.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use loom::thread;

use super::revoke_span_bias;
use crate::section::model::{Flag, ModelLock, Reached, explore};
use crate::section::{exit, try_enter};
use crate::types::{LIVE, UNOWNED};

const OWNER: u32 = 1;

/// A span of one block, and whether the lookaside cache of its owner has it.
struct Span {
    lock: ModelLock,
    fast: Flag,
    bias: AtomicU32,
    state: AtomicU8,
    remembered: UnsafeCell<bool>,
}

impl Span {
    fn new(remembered: bool) -> Self {
        Self {
            lock: ModelLock::new(),
            fast: Flag::new(true),
            bias: AtomicU32::new(OWNER),
            state: AtomicU8::new(LIVE),
            remembered: UnsafeCell::new(remembered),
        }
    }

    /// A free by the owner: by plain stores as in `free_owned` if the span is biased, or by
    /// exchange.
    fn free_by_owner(&self) -> bool {
        let may = try_enter(&self.lock, false, || self.fast.load(Ordering::Acquire));
        // SAFETY: here and below, loom checks that no other thread accesses the cell.
        let is_owner = may
            && (self.remembered.with(|remembered| unsafe { *remembered })
                || self.bias.load(Ordering::Acquire) == OWNER);
        let freed = is_owner.then(|| {
            // SAFETY: as above.
            self.remembered.with_mut(|remembered| unsafe { *remembered = true });
            let live = self.state.load(Ordering::Relaxed) == LIVE;
            if live {
                self.state.store(0, Ordering::Release);
            }
            live
        });
        exit(&self.lock);
        freed.unwrap_or_else(|| self.state.swap(0, Ordering::AcqRel) == LIVE)
    }

    /// A free by another thread.
    fn free_other(&self) -> bool {
        if self.bias.load(Ordering::Acquire) != UNOWNED {
            revoke_span_bias(
                &self.lock,
                |bias| self.bias.store(bias, Ordering::Release),
                (
                    || self.fast.store(false, Ordering::Relaxed),
                    // SAFETY: loom checks that no other thread accesses it.
                    || self.remembered.with_mut(|remembered| unsafe { *remembered = false }),
                    || self.fast.store(true, Ordering::Release),
                ),
            );
        }
        self.state.compare_exchange(LIVE, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn two_frees(remembered: bool) {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let span = Arc::new(Span::new(remembered));
        let owner = {
            let span = Arc::clone(&span);
            // The second is a double free in any case, found by the lookaside cache if that has the
            // span.
            thread::spawn(move || [span.free_by_owner(), span.free_by_owner()])
        };
        let other = span.free_other();
        let [first, second] = owner.join().unwrap();
        assert!(!second, "freed twice by its owner");
        assert!(first != other, "freed by both, or by neither");
        in_model.reach(if first { "the owner's" } else { "the other's" });
    });
    reached.check(["the other's", "the owner's"]);
}

#[test]
fn loom_one_of_two_frees_succeeds() {
    two_frees(false);
}

#[test]
fn loom_lookaside_is_cleared_with_the_bias() {
    two_frees(true);
}
