//! Loom's models of remote frees: of the states of a block, and of inboxes. `tests/run --loom`
//! explores them in full.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use loom::thread;

use super::{InboxWords, abandon, push};
use crate::section::model::{Flag, ModelLock, Reached, explore};
use crate::section::{await_exit, exit, restore, revoke, try_enter};
use crate::state::{StateByte, clear, collect, free_by_owner, mark_exported, mark_remote};
use crate::types::{EXPORTED, LIVE, REMOTE};

impl StateByte for AtomicU8 {
    fn load(&self, order: Ordering) -> u8 {
        self.load(order)
    }

    // A store comes after each exchange whose value its thread has read, since no other write comes
    // between the read and the write of an exchange. loom 0.7 does not enforce that for a store.
    fn store(&self, state: u8, order: Ordering) {
        self.swap(state, order);
    }

    fn compare_exchange(&self, current: u8, new: u8) -> Result<u8, u8> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

const BATCHES: usize = 2;

/// An inbox of batches, which have numbers from 1; 0 is none.
struct Inbox {
    head: AtomicU32,
    abandoned: AtomicBool,
    next: [UnsafeCell<u32>; BATCHES],
}

impl Inbox {
    fn new() -> Self {
        Self {
            head: AtomicU32::new(0),
            abandoned: AtomicBool::new(false),
            next: [UnsafeCell::new(0), UnsafeCell::new(0)],
        }
    }

    /// Takes all batches, as `Inbox::take_all` does.
    fn take_all(&self) -> Vec<u32> {
        let mut taken = Vec::new();
        let mut batch = self.take_head();
        while batch != 0 {
            taken.push(batch);
            // SAFETY: here and below, loom checks that no other thread accesses the cell.
            batch = self.next[batch as usize - 1].with(|next| unsafe { *next });
        }
        taken
    }
}

impl InboxWords for Inbox {
    type Batch = u32;

    fn head(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    fn set_next(&self, batch: u32, next: u32) {
        // SAFETY: as above.
        self.next[batch as usize - 1].with_mut(|word| unsafe { *word = next });
    }

    fn exchange_head(&self, head: u32, new: u32) -> bool {
        self.head.compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn take_head(&self) -> u32 {
        self.head.swap(0, Ordering::AcqRel)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

/// A slab of one block with its owner's section, bin and inbox.
struct Slab {
    lock: ModelLock,
    fast: Flag,
    state: AtomicU8,
    /// The number of entries of the block in the owner's bin or in the bitmap.
    free: UnsafeCell<u32>,
    inbox: Inbox,
}

impl Slab {
    fn new() -> Self {
        Self {
            lock: ModelLock::new(),
            fast: Flag::new(true),
            state: AtomicU8::new(LIVE),
            free: UnsafeCell::new(0),
            inbox: Inbox::new(),
        }
    }

    fn add_free(&self) {
        // SAFETY: loom checks that no other thread accesses it.
        self.free.with_mut(|free| unsafe { *free += 1 });
    }

    /// Frees the block as the owner, inside the section. Returns `false` if it is not live.
    fn free_by_owner(&self) -> bool {
        let freed = free_by_owner(&self.state);
        if freed {
            self.add_free();
        }
        freed
    }

    /// Allocates the block from the bin. Returns `false` if it is not there.
    fn hand_out(&self) -> bool {
        // SAFETY: as above.
        let is_free = self.free.with_mut(|free| unsafe { core::mem::take(&mut *free) });
        assert!(is_free <= 1, "a block is in a bin twice");
        if is_free == 1 {
            self.state.store(LIVE, Ordering::Release);
        }
        is_free == 1
    }

    /// Drains the inbox. Returns the number of late double frees.
    fn drain(&self) -> u32 {
        let mut late = 0;
        for _ in self.inbox.take_all() {
            if collect(&self.state) {
                self.add_free();
            } else {
                late += 1;
            }
        }
        late
    }

    /// Runs `run` inside the owner's section, if the owner may enter.
    fn inside<R>(&self, run: impl FnOnce() -> R) -> Option<R> {
        let may = try_enter(&self.lock, false, || self.fast.load(Ordering::Acquire));
        let result = may.then(run);
        exit(&self.lock);
        result
    }

    /// Runs `run` in another thread while the owner's section is revoked.
    fn with_revoked<R>(&self, run: impl FnOnce() -> R) -> R {
        revoke(core::iter::once(&self.lock), || self.fast.store(false, Ordering::Relaxed));
        await_exit(&self.lock);
        let result = run();
        restore(&self.lock);
        self.fast.store(true, Ordering::Release);
        result
    }

    /// Frees the block from another thread.
    fn free_remote(&self, batch: u32) -> bool {
        let marked = mark_remote(&self.state);
        if marked {
            push(&self.inbox, batch);
        }
        marked
    }

    /// Returns the number of entries of the block.
    fn free_count(&self) -> u32 {
        // SAFETY: loom checks that no other thread accesses it.
        self.free.with(|free| unsafe { *free })
    }
}

/// Starts a thread.
fn spawn<T: 'static, R: 'static>(
    what: &Arc<T>,
    run: impl FnOnce(&T) -> R + 'static,
) -> thread::JoinHandle<R> {
    let what = Arc::clone(what);
    thread::spawn(move || run(&what))
}

#[test]
fn loom_block_that_owner_and_other_thread_free_is_free_once() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let slab = Arc::new(Slab::new());
        let other = spawn(&slab, |slab| slab.free_remote(1));
        let by_owner = slab.inside(|| slab.free_by_owner()) == Some(true);
        let remote = other.join().unwrap();
        let late = slab.drain();
        assert_eq!(slab.free_count(), 1, "freed once");
        assert!(by_owner || remote);
        assert_eq!(late, u32::from(by_owner && remote), "each second free is detected");
        in_model.reach(match (by_owner, remote) {
            (true, true) => "both",
            (true, false) => "the owner's",
            _ => "the other's",
        });
    });
    reached.check(["both", "the other's", "the owner's"]);
}

#[test]
fn loom_block_that_is_allocated_again_has_one_owner() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let slab = Arc::new(Slab::new());
        let other = spawn(&slab, |slab| slab.free_remote(1));
        slab.free_by_owner();
        let again = slab.hand_out();
        let late = slab.drain();
        let remote = other.join().unwrap();
        let late = late + slab.drain();
        let live = slab.state.load(Ordering::Acquire) == LIVE;
        assert_eq!(slab.free_count() + u32::from(live), 1, "the block is live, or free once");
        in_model.reach(match (again, remote, late, live) {
            (true, true, 1, true) => "late free is dropped",
            (true, true, 0, false) => "freed after it was allocated again",
            (true, false, 0, true) => "second free is an error",
            (false, true, 0, false) => "remote free only",
            other => panic!("{other:?}"),
        });
    });
    reached.check([
        "freed after it was allocated again",
        "late free is dropped",
        "second free is an error",
        "remote free only",
    ]);
}

#[test]
fn loom_each_batch_is_taken_once() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let inbox = Arc::new(Inbox::new());
        push(&*inbox, 1);
        let sender = spawn(&inbox, |inbox| push(inbox, 2));
        let mut taken = inbox.take_all();
        if taken.contains(&1) && !taken.contains(&2) {
            // The batch is reused while the other thread may have read it as the head.
            taken.retain(|&batch| batch != 1);
            push(&*inbox, 1);
            in_model.reach("used again");
        } else {
            in_model.reach("both at once");
        }
        sender.join().unwrap();
        taken.extend(inbox.take_all());
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
    reached.check(["both at once", "used again"]);
}

#[test]
fn loom_batch_for_an_ending_thread_is_drained() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let inbox = Arc::new(Inbox::new());
        let sender = spawn(&inbox, |inbox| if push(inbox, 1) { inbox.take_all().len() } else { 0 });
        abandon(&*inbox);
        let by_owner = inbox.take_all().len();
        let by_sender = sender.join().unwrap();
        assert_eq!(by_owner + by_sender, 1, "drained once");
        in_model.reach(if by_owner == 1 { "by the ending thread" } else { "by the sender" });
    });
    reached.check(["by the ending thread", "by the sender"]);
}

#[test]
fn loom_revoking_thread_drains_beside_sender_and_owner() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let slab = Arc::new(Slab::new());
        let owner = spawn(&slab, |slab| slab.inside(|| slab.free_by_owner()) == Some(true));
        let other = spawn(&slab, |slab| slab.free_remote(1));
        let late = slab.with_revoked(|| {
            let late = slab.drain();
            in_model.reach(if slab.free_count() == 1 { "drained" } else { "nothing yet" });
            late
        });
        let (by_owner, remote) = (owner.join().unwrap(), other.join().unwrap());
        let late = late + slab.drain();
        assert!(slab.free_count() == u32::from(by_owner || remote), "free once");
        assert_eq!(late, u32::from(by_owner && remote));
    });
    reached.check(["drained", "nothing yet"]);
}

#[test]
fn loom_free_sees_a_concurrent_export() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let slab = Arc::new(Slab::new());
        let owner = spawn(&slab, |slab| {
            let freed = slab.inside(|| free_by_owner(&slab.state));
            // If the section is revoked, an exchange: the thread owns the slab.
            if freed == Some(true) { Some(LIVE) } else { clear(&slab.state) }
        });
        let exported = slab.with_revoked(|| mark_exported(&slab.state));
        let freed = owner.join().unwrap();
        assert_eq!(freed.is_some_and(|old| old & EXPORTED != 0), exported);
        assert!(freed.is_some() && slab.state.load(Ordering::Acquire) == 0);
        in_model.reach(if exported { "exported" } else { "freed before" });
    });
    reached.check(["exported", "freed before"]);
}

#[test]
fn states_are_distinct() {
    assert_eq!([LIVE, EXPORTED, REMOTE].iter().fold(0, |all, state| all | state).count_ones(), 3);
}
