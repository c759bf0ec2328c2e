//! Loom's models of `protocol`: who is kept out, and of two frees of one block. (In full with `tests/run --loom`.)

use std::collections::BTreeSet;
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
use loom::thread;

use super::protocol::{Door, UNBIASED, await_leaving, come_in, keep_out, leave, let_in, share};
use crate::span::LIVE;

/// Runs a model with few preemptions, in which nearly all mistakes show; with `--cfg loom` in every interleaving.
fn explore(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = if cfg!(loom) { None } else { Some(3) };
    builder.check(run);
}

/// The states that a model reached: one that never gets anywhere proves nothing.
#[derive(Clone, Default)]
struct Reached(std::sync::Arc<Mutex<BTreeSet<&'static str>>>);

impl Reached {
    fn reach(&self, state: &'static str) {
        self.0.lock().unwrap().insert(state);
    }

    #[track_caller]
    fn check<const COUNT: usize>(&self, states: [&'static str; COUNT]) {
        assert_eq!(*self.0.lock().unwrap(), BTreeSet::from(states), "what the model reached");
    }
}

/// Loads come with a store, so that loom tries them in every order: of loads alone it believes that their order means nothing.
struct Flag {
    value: AtomicBool,
    loads: AtomicBool,
}

impl Flag {
    fn new(value: bool) -> Self {
        Self { value: AtomicBool::new(value), loads: AtomicBool::new(false) }
    }

    fn load(&self, order: Ordering) -> bool {
        self.loads.store(true, Ordering::Relaxed);
        self.value.load(order)
    }

    fn store(&self, value: bool, order: Ordering) {
        self.value.store(value, order);
    }
}

struct ModelDoor {
    busy: Flag,
    pending: Flag,
}

impl ModelDoor {
    fn new() -> Self {
        Self { busy: Flag::new(false), pending: Flag::new(false) }
    }
}

impl Door for ModelDoor {
    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    fn set_busy(&self, busy: bool, order: Ordering) {
        self.busy.store(busy, order);
    }

    fn set_pending(&self, pending: bool, order: Ordering) {
        self.pending.store(pending, order);
    }

    // The kernel's fence in the middle of a thread orders what this one would.
    fn light(_fenced: bool) {
        fence(Ordering::SeqCst);
    }

    fn heavy() {
        fence(Ordering::SeqCst);
    }

    fn pause(_turn: u32) {
        thread::yield_now();
    }
}

const OWNER: u32 = 1;

/// A thread's cache with one entry, and a gate that is looked at first.
struct Kept {
    door: ModelDoor,
    gate: Flag,
    content: UnsafeCell<u32>,
}

impl Kept {
    /// One that comes by the gate, or by what is pending.
    fn change(&self, by_gate: bool) -> bool {
        let may = come_in(&self.door, false, || match by_gate {
            true => self.gate.load(Ordering::Acquire),
            false => !self.door.pending.load(Ordering::Acquire),
        });
        if may {
            // SAFETY: loom checks that nobody else has it.
            self.content.with_mut(|content| unsafe { *content += 1 });
        }
        leave(&self.door);
        may
    }
}

#[test]
fn loom_nobody_is_inside_who_is_kept_out() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let kept =
            Arc::new(Kept { door: ModelDoor::new(), gate: Flag::new(true), content: UnsafeCell::new(0) });
        let thread = {
            let kept = Arc::clone(&kept);
            thread::spawn(move || u32::from(kept.change(true)) + u32::from(kept.change(false)))
        };
        keep_out([&kept.door].into_iter(), || kept.gate.store(false, Ordering::Relaxed));
        await_leaving(&kept.door);
        // SAFETY: loom checks that nobody else has it.
        let seen = kept.content.with_mut(|content| unsafe { core::mem::replace(&mut *content, 10) });
        let_in(&kept.door);
        kept.gate.store(true, Ordering::Release);
        let changes = thread.join().unwrap();
        // SAFETY: as above.
        assert_eq!(kept.content.with(|content| unsafe { *content }), 10 + changes - seen);
        in_model.reach(if changes == 2 { "twice inside" } else { "kept out" });
        in_model.reach(if seen == 0 { "before it" } else { "after it" });
    });
    reached.check(["after it", "before it", "kept out", "twice inside"]);
}

/// A span of one block, and what its owner remembers of it.
struct Span {
    door: ModelDoor,
    gate: Flag,
    owner: AtomicU32,
    state: AtomicU8,
    remembered: UnsafeCell<bool>,
}

impl Span {
    fn new(remembered: bool) -> Self {
        Self {
            door: ModelDoor::new(),
            gate: Flag::new(true),
            owner: AtomicU32::new(OWNER),
            state: AtomicU8::new(LIVE),
            remembered: UnsafeCell::new(remembered),
        }
    }

    /// A free by the owner, as in `put_at_once`; and what it does where that is not possible.
    fn free_own(&self) -> bool {
        let may = come_in(&self.door, false, || self.gate.load(Ordering::Acquire));
        // SAFETY: here and below, loom checks that nobody else has it.
        let is_own = may
            && (self.remembered.with(|remembered| unsafe { *remembered })
                || self.owner.load(Ordering::Acquire) == OWNER);
        let freed = is_own.then(|| {
            // SAFETY: as above.
            self.remembered.with_mut(|remembered| unsafe { *remembered = true });
            let live = self.state.load(Ordering::Relaxed) == LIVE;
            if live {
                self.state.store(0, Ordering::Release);
            }
            live
        });
        leave(&self.door);
        freed.unwrap_or_else(|| self.state.swap(0, Ordering::AcqRel) == LIVE)
    }

    /// A free by somebody else.
    fn free_other(&self) -> bool {
        if self.owner.load(Ordering::Acquire) != UNBIASED {
            share(
                &self.door,
                |owner| self.owner.store(owner, Ordering::Release),
                (
                    || self.gate.store(false, Ordering::Relaxed),
                    // SAFETY: loom checks that nobody else has it.
                    || self.remembered.with_mut(|remembered| unsafe { *remembered = false }),
                    || self.gate.store(true, Ordering::Release),
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
            // The second is a double free in any case, by what it remembers if it still does.
            thread::spawn(move || [span.free_own(), span.free_own()])
        };
        let other = span.free_other();
        let [first, second] = owner.join().unwrap();
        assert!(!second, "freed twice by its owner");
        assert!(first != other, "freed by both, or by nobody");
        in_model.reach(if first { "the owner's" } else { "the other's" });
    });
    reached.check(["the other's", "the owner's"]);
}

#[test]
fn loom_of_two_frees_of_a_block_one_succeeds() {
    two_frees(false);
}

#[test]
fn loom_what_a_thread_remembers_goes_with_the_span() {
    two_frees(true);
}
