//! Loom's model of the critical section: a revoked owner stays outside. `tests/run --loom` explores
//! it in full.

use std::collections::BTreeSet;
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;

use super::{BiasedLock, await_exit, exit, restore, revoke, try_enter};

/// Runs a model with few preemptions, which find nearly all errors. With `--cfg loom`, explores
/// every interleaving.
pub(crate) fn explore(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = if cfg!(loom) { None } else { Some(3) };
    builder.check(run);
}

/// The states that a model reached: a model that reaches none proves nothing.
#[derive(Clone, Default)]
pub(crate) struct Reached(std::sync::Arc<Mutex<BTreeSet<&'static str>>>);

impl Reached {
    pub(crate) fn reach(&self, state: &'static str) {
        self.0.lock().unwrap().insert(state);
    }

    #[track_caller]
    pub(crate) fn check<const COUNT: usize>(&self, states: [&'static str; COUNT]) {
        assert_eq!(*self.0.lock().unwrap(), BTreeSet::from(states), "what the model reached");
    }
}

/// A flag with a store for each load: loom explores the order of loads only if there are stores.
pub(crate) struct Flag {
    value: AtomicBool,
    loads: AtomicBool,
}

impl Flag {
    pub(crate) fn new(value: bool) -> Self {
        Self { value: AtomicBool::new(value), loads: AtomicBool::new(false) }
    }

    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.loads.store(true, Ordering::Relaxed);
        self.value.load(order)
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.value.store(value, order);
    }
}

pub(crate) struct ModelLock {
    inside: Flag,
    revoked: Flag,
}

impl ModelLock {
    pub(crate) fn new() -> Self {
        Self { inside: Flag::new(false), revoked: Flag::new(false) }
    }
}

impl BiasedLock for ModelLock {
    fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire)
    }

    fn set_inside(&self, inside: bool, order: Ordering) {
        self.inside.store(inside, order);
    }

    fn set_revoked(&self, revoked: bool, order: Ordering) {
        self.revoked.store(revoked, order);
    }

    // The kernel's fence in another thread has the effect of this one.
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

/// A heap with one entry, and the flag that fast paths read.
struct Kept {
    lock: ModelLock,
    fast: Flag,
    content: UnsafeCell<u32>,
}

impl Kept {
    /// Changes the entry, on the fast path or on the slow one.
    fn change(&self, is_fast: bool) -> bool {
        let may = try_enter(&self.lock, false, || match is_fast {
            true => self.fast.load(Ordering::Acquire),
            false => !self.lock.revoked.load(Ordering::Acquire),
        });
        if may {
            // SAFETY: loom checks that no other thread accesses the cell.
            self.content.with_mut(|content| unsafe { *content += 1 });
        }
        exit(&self.lock);
        may
    }
}

#[test]
fn loom_revoked_owner_stays_outside() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let kept =
            Arc::new(Kept { lock: ModelLock::new(), fast: Flag::new(true), content: UnsafeCell::new(0) });
        let thread = {
            let kept = Arc::clone(&kept);
            thread::spawn(move || u32::from(kept.change(true)) + u32::from(kept.change(false)))
        };
        revoke([&kept.lock].into_iter(), || kept.fast.store(false, Ordering::Relaxed));
        await_exit(&kept.lock);
        // SAFETY: loom checks that no other thread accesses the cell.
        let seen = kept.content.with_mut(|content| unsafe { core::mem::replace(&mut *content, 10) });
        restore(&kept.lock);
        kept.fast.store(true, Ordering::Release);
        let changes = thread.join().unwrap();
        // SAFETY: as above.
        assert_eq!(kept.content.with(|content| unsafe { *content }), 10 + changes - seen);
        in_model.reach(if changes == 2 { "twice inside" } else { "stays outside" });
        in_model.reach(if seen == 0 { "before it" } else { "after it" });
    });
    reached.check(["after it", "before it", "stays outside", "twice inside"]);
}
