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

    // A store comes after each exchange of the value that its thread has read, since nothing comes
    // between what an exchange reads and what it writes. loom 0.7 does not know that of a store.
    fn store(&self, state: u8, order: Ordering) {
        self.swap(state, order);
    }

    fn compare_exchange(&self, current: u8, new: u8) -> Result<u8, u8> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

const BATCHES: usize = 2;

/// An inbox of batches that are named by number, from 1; 0 is none. A batch says how many blocks it
/// asks for.
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

    /// Takes all batches out, as `Inbox::take_all` does.
    fn take_all(&self) -> Vec<u32> {
        let mut taken = Vec::new();
        let mut batch = self.take_head();
        while batch != 0 {
            taken.push(batch);
            // SAFETY: here and below, loom checks that no other thread has it.
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
    /// How often the block is in the owner's bin or in the bitmap.
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
        // SAFETY: loom checks that no other thread has it.
        self.free.with_mut(|free| unsafe { *free += 1 });
    }

    /// Frees the block as the owner, inside; `false` if it is not live.
    fn free_by_owner(&self) -> bool {
        let freed = free_by_owner(&self.state);
        if freed {
            self.add_free();
        }
        freed
    }

    /// Takes the block out of the bin and marks it as handed out; `false` if it is not there.
    fn hand_out(&self) -> bool {
        // SAFETY: as above.
        let is_free = self.free.with_mut(|free| unsafe { core::mem::take(&mut *free) });
        assert!(is_free <= 1, "a block is in a bin twice");
        if is_free == 1 {
            self.state.store(LIVE, Ordering::Release);
        }
        is_free == 1
    }

    /// Drains the inbox. Returns how many requests came late.
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

    /// Runs what the owner does inside its section, if it may enter.
    fn inside<R>(&self, run: impl FnOnce() -> R) -> Option<R> {
        let may = try_enter(&self.lock, false, || self.fast.load(Ordering::Acquire));
        let result = may.then(run);
        exit(&self.lock);
        result
    }

    /// Runs what another thread does that keeps the owner out.
    fn reached<R>(&self, run: impl FnOnce() -> R) -> R {
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

    /// Returns how often the block is free.
    fn is_free(&self) -> u32 {
        // SAFETY: loom checks that no other thread has it.
        self.free.with(|free| unsafe { *free })
    }
}

/// Starts a thread.
fn beside<T: 'static, R: 'static>(
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
        let other = beside(&slab, |slab| slab.free_remote(1));
        let own = slab.inside(|| slab.free_by_owner()) == Some(true);
        let remote = other.join().unwrap();
        let late = slab.drain();
        assert_eq!(slab.is_free(), 1, "freed once");
        assert!(own || remote);
        assert_eq!(late, u32::from(own && remote), "each free that is one too many is noticed");
        in_model.reach(match (own, remote) {
            (true, true) => "both",
            (true, false) => "the owner's",
            _ => "the other's",
        });
    });
    reached.check(["both", "the other's", "the owner's"]);
}

#[test]
fn loom_block_that_is_handed_out_again_has_one_owner() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let slab = Arc::new(Slab::new());
        let other = beside(&slab, |slab| slab.free_remote(1));
        slab.free_by_owner();
        let again = slab.hand_out();
        let late = slab.drain();
        let remote = other.join().unwrap();
        let late = late + slab.drain();
        let live = slab.state.load(Ordering::Acquire) == LIVE;
        assert_eq!(slab.is_free() + u32::from(live), 1, "the block is live, or free once");
        in_model.reach(match (again, remote, late, live) {
            (true, true, 1, true) => "late request is dropped",
            (true, true, 0, false) => "freed after it was handed out again",
            (true, false, 0, true) => "second free is refused",
            (false, true, 0, false) => "other alone",
            other => panic!("{other:?}"),
        });
    });
    reached.check([
        "freed after it was handed out again",
        "late request is dropped",
        "second free is refused",
        "other alone",
    ]);
}

#[test]
fn loom_each_batch_is_taken_once() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let inbox = Arc::new(Inbox::new());
        push(&*inbox, 1);
        let sender = beside(&inbox, |inbox| push(inbox, 2));
        let mut taken = inbox.take_all();
        if taken.contains(&1) && !taken.contains(&2) {
            // The batch is used again while the other thread may have read that it is the head.
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
        let sender = beside(&inbox, |inbox| if push(inbox, 1) { inbox.take_all().len() } else { 0 });
        abandon(&*inbox);
        let by_owner = inbox.take_all().len();
        let by_sender = sender.join().unwrap();
        assert_eq!(by_owner + by_sender, 1, "drained once");
        in_model.reach(if by_owner == 1 { "by the ending thread" } else { "by the sender" });
    });
    reached.check(["by the ending thread", "by the sender"]);
}

#[test]
fn loom_reaching_thread_drains_beside_senders_and_owner() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let slab = Arc::new(Slab::new());
        let owner = beside(&slab, |slab| slab.inside(|| slab.free_by_owner()) == Some(true));
        let other = beside(&slab, |slab| slab.free_remote(1));
        let late = slab.reached(|| {
            let late = slab.drain();
            in_model.reach(if slab.is_free() == 1 { "drained" } else { "nothing yet" });
            late
        });
        let (own, remote) = (owner.join().unwrap(), other.join().unwrap());
        let late = late + slab.drain();
        assert!(slab.is_free() == u32::from(own || remote), "free once");
        assert_eq!(late, u32::from(own && remote));
    });
    reached.check(["drained", "nothing yet"]);
}

#[test]
fn loom_block_that_another_thread_exports_is_not_freed_as_if_it_were_not() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(move || {
        let slab = Arc::new(Slab::new());
        let owner = beside(&slab, |slab| {
            let freed = slab.inside(|| free_by_owner(&slab.state));
            // Outside, an exchange: the slab is this thread's.
            if freed == Some(true) { Some(LIVE) } else { clear(&slab.state) }
        });
        let exported = slab.reached(|| mark_exported(&slab.state));
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
