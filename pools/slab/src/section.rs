//! The critical section of a heap: a biased lock, which its thread enters without atomic exchanges
//! and which other threads revoke.
//!
//! A heap, and the live bits in slabs that its thread owns, belong to one thread until another one
//! needs them. The owner enters its section with a plain store, [`try_enter`], reads whether it may
//! stay, and exits with another store.
//!
//! A thread that revokes the section first forbids the owner to enter: in the owner's heap, and in
//! the slow-path flags of the pool, which all fast paths read. Then it has the kernel fence all
//! threads ([`umf_sync::fence::heavy`]), and waits until the owner is outside. From there on the
//! owner stays outside, and the revoking thread sees all writes of the owner.
//!
//! An atomic exchange in each free would cost twenty cycles, as much as all the rest. Revoking
//! costs the revoking thread a microsecond. It lets a trim empty the heaps of other threads.
//!
//! One thread revokes at a time, under a lock that no thread takes inside its section or while it
//! holds another lock. Inside its section, a thread waits for short locks only, and calls no
//! provider.

#[cfg(test)]
pub(crate) mod model;

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use core::time::Duration;

use umf_sync::WipeOnForkWord;
use umf_sync::fence::{heavy, light};
use umf_sync::fork::{ForkGuard, Outer};

use crate::types::Heap;

/// The memory is shared with other processes, and a forked child must not use it. With this flag
/// alone, the process that created the pool takes the fast paths ([`ALLOWED_IN_CREATOR`]).
pub(crate) const SHARED: u8 = 1;
/// Slow-path flag: each block is traced.
pub(crate) const TRACED: u8 = 2;
/// Slow-path flag: the pool is being dropped.
pub(crate) const CLOSING: u8 = 4;
/// Slow-path flag: the kernel does not fence other threads, so each thread fences itself when it
/// enters.
pub(crate) const FENCED: u8 = 8;

// Values of `SlowPathFlags::fast`.

const FORBIDDEN: u32 = 0;
const ALLOWED: u32 = 1;
/// Allowed in the process that created the pool, not in a forked child.
const ALLOWED_IN_CREATOR: u32 = 2;

/// The conditions that keep threads from the fast paths: properties of the pool, and revocations.
/// The fast path reads one word for all of them.
pub(crate) struct SlowPathFlags {
    fast: AtomicU32,
    flags: AtomicU8,
    /// Over shared memory, which a forked child must not use: a word that is 0 in a child.
    wiped: Option<WipeOnForkWord>,
}

impl SlowPathFlags {
    pub(crate) fn new(flags: u8) -> Self {
        let wiped = if flags == SHARED { WipeOnForkWord::new(1).ok() } else { None };
        let flags = Self { fast: AtomicU32::new(FORBIDDEN), flags: AtomicU8::new(flags), wiped };
        flags.allow_fast();
        flags
    }

    /// Returns the flags that are set.
    #[inline(always)]
    pub(crate) fn get(&self) -> u8 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(crate) fn is_set(&self, flag: u8) -> bool {
        self.get() & flag != 0
    }

    /// Sets a flag permanently.
    pub(crate) fn set(&self, flag: u8) {
        self.flags.fetch_or(flag, Ordering::Relaxed);
        self.forbid_fast();
    }

    /// Allows the fast paths, unless a flag is set that requires the slow ones.
    pub(crate) fn allow_fast(&self) {
        let fast = match (self.get(), &self.wiped) {
            (SHARED, Some(_)) => ALLOWED_IN_CREATOR,
            (0, _) => ALLOWED,
            _ => FORBIDDEN,
        };
        self.fast.store(fast, Ordering::Release);
    }

    /// Keeps threads from entering on the fast paths. Threads inside their sections may still be on
    /// one.
    pub(crate) fn forbid_fast(&self) {
        self.fast.store(FORBIDDEN, Ordering::Relaxed);
    }

    /// Returns whether threads may take the fast paths.
    #[inline(always)]
    pub(crate) fn is_fast_allowed(&self) -> bool {
        /// Marks a branch as unlikely for the compiler.
        #[cold]
        const fn unlikely() {}
        let fast = self.fast.load(Ordering::Acquire);
        if fast == ALLOWED {
            return true;
        }
        unlikely();
        fast == ALLOWED_IN_CREATOR
            && self.wiped.as_ref().is_some_and(|wiped| wiped.word().load(Ordering::Relaxed) != 0)
    }
}

/// The words of one thread's biased lock. The models have words of their own.
pub(crate) trait BiasedLock {
    /// Returns whether a revoking thread has to wait for the owner.
    fn is_inside(&self) -> bool;
    fn set_inside(&self, inside: bool, order: Ordering);
    fn set_revoked(&self, revoked: bool, order: Ordering);
    /// Orders the owner's store before its loads, together with [`BiasedLock::heavy`] of the
    /// revoking thread. With `fenced`, it is a full fence by itself.
    fn light(fenced: bool);
    /// A fence of the revoking thread. Either its loads after this fence see the owner's store
    /// before `light`, or the owner's loads after `light` see the stores before this fence.
    fn heavy();
    /// Waits a little. `turn` counts the calls of one wait.
    fn pause(turn: u32);
}

/// Enters the section, and returns whether the owner may stay; if not, it must exit at once. `may`
/// loads, with [`Ordering::Acquire`], a word that a revoking thread writes before it waits.
#[inline(always)]
pub(crate) fn try_enter<L: BiasedLock>(lock: &L, fenced: bool, may: impl FnOnce() -> bool) -> bool {
    lock.set_inside(true, Ordering::Relaxed);
    L::light(fenced);
    may()
}

/// Exits the section.
#[inline(always)]
pub(crate) fn exit(lock: &impl BiasedLock) {
    lock.set_inside(false, Ordering::Release);
}

/// Forbids the owners to enter. The caller then waits with [`await_exit`] for those inside.
/// `forbid_fast` forbids the fast paths.
pub(crate) fn revoke<'a, L: BiasedLock + 'a>(locks: impl Iterator<Item = &'a L>, forbid_fast: impl FnOnce()) {
    locks.for_each(|lock| lock.set_revoked(true, Ordering::Relaxed));
    forbid_fast();
    L::heavy();
}

/// Waits until the owner, whose section is revoked, is outside of it.
pub(crate) fn await_exit<L: BiasedLock>(lock: &L) {
    let mut turn = 0_u32;
    while lock.is_inside() {
        L::pause(turn);
        turn = turn.saturating_add(1);
    }
}

/// Lets the owner enter again, as soon as the fast path is allowed.
pub(crate) fn restore(lock: &impl BiasedLock) {
    lock.set_revoked(false, Ordering::Release);
}

impl BiasedLock for Heap {
    fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire) && !self.of_parent.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set_inside(&self, inside: bool, order: Ordering) {
        self.inside.store(inside, order);
    }

    fn set_revoked(&self, revoked: bool, order: Ordering) {
        self.revoked.store(revoked, order);
    }

    #[inline(always)]
    fn light(fenced: bool) {
        if fenced { fence(Ordering::SeqCst) } else { light() }
    }

    fn heavy() {
        heavy();
    }

    fn pause(turn: u32) {
        match turn {
            0..100 => core::hint::spin_loop(),
            100..200 => std::thread::yield_now(),
            // The owner may be preempted until this thread sleeps.
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// The calling thread is inside the section of its heap until this is dropped.
pub(crate) struct Section<'a>(&'a Heap);

impl<'a> Section<'a> {
    #[inline(always)]
    pub(crate) fn heap(&self) -> &'a Heap {
        self.0
    }
}

impl Drop for Section<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        exit(self.0);
    }
}

/// A [`Section`] in which the thread takes locks. It passes the gate of forks first, since other
/// threads wait for it while it is inside.
pub(crate) struct LockingSection<'a> {
    // Dropped in this order.
    pub(crate) _section: Section<'a>,
    pub(crate) _no_fork: ForkGuard<Outer>,
}

impl Heap {
    /// Enters the section of the calling thread's heap; `None` while another thread revokes it.
    /// `fenced`: the kernel does not fence other threads.
    #[inline(always)]
    pub(crate) fn enter(&self, fenced: bool) -> Option<Section<'_>> {
        self.debug_assert_outside();
        self.enter_if(fenced, || !self.revoked.load(Ordering::Acquire))
    }

    /// Enters the section, and exits at once if `may` returns `false`: see [`try_enter`].
    #[inline(always)]
    pub(crate) fn enter_if(&self, fenced: bool, may: impl FnOnce() -> bool) -> Option<Section<'_>> {
        let may = try_enter(self, fenced, may);
        let section = Section(self);
        may.then_some(section)
    }

    /// Checks that the thread is outside. Not for the heap of threads without a number, which
    /// several threads enter; it is always empty.
    #[inline(always)]
    pub(crate) fn debug_assert_outside(&self) {
        debug_assert!(!self.inside.load(Ordering::Relaxed), "a thread enters its section once at a time");
    }
}
