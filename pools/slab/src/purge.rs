//! Purging: automatic release of free memory to the provider, and trimming.
//!
//! - **By bytes** (`max_cached`): the bytes that are free beyond a bound. A thread looks at them
//!   when threads have returned a part of the bound to the shared lists.
//! - **By age** (`release_after`): what lay unused since the last decay, at most once per period.
//!   That is the minimum in between of idle regions, of empty slabs, of blocks in the transfer
//!   cache. The bins of threads, whose fast path counts nothing for this, are emptied if nothing
//!   was taken out in between. Otherwise half of a bin goes to the stock, where a thread that needs
//!   it finds it, and decays there.
//! - **Trim**: everything that is free, in all layers.
//!
//! Threads look on slow paths only. If the settings ask for it, a background purger looks too: one
//! thread for all pools of the process, as long as one pool asks for it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::thread::Thread;

use umf_core::Result;
use umf_core::limit::SharedLimit;
use umf_os::{background, clock};
use umf_runtime::deferred;
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::{Lock, fork};

use crate::classes::MAX_CLASSES;
use crate::collect::FollowUp;
use crate::heap::Evicted;
use crate::transfer::LargeBatch;
use crate::types::Heap;
use crate::{SlabPool, SlabSettings, registry};

/// The least bytes that come back before a thread looks.
const MIN_SLACK: u64 = 64 << 10;

/// The purge policy of a pool, and its state.
pub(crate) struct Policy {
    is_on: bool,
    /// The most bytes that may be free; 0: any number.
    max_free: u64,
    /// How long memory may lie unused, in ms; 0: for ever.
    age: u64,
    /// Bytes that came back since a thread looked.
    returned: AtomicU64,
    /// Bytes that were free beyond the bound, and could not be returned.
    stuck: AtomicU64,
    /// When the next decay is due.
    due: AtomicU64,
    /// A thread is returning memory.
    is_purging: AtomicBool,
    /// The background purger counts this pool.
    in_background: AtomicBool,
    /// The use of each thread's bins at the last decay.
    seen: Chunks<Seen>,
}

/// The allocations from each bin of a thread at the last decay.
struct Seen([AtomicU64; MAX_CLASSES]);

// SAFETY: zeros are valid integers.
unsafe impl Zeroable for Seen {}

/// The calling thread returns memory until this is dropped, and looks again then
/// ([`SlabPool::purge_again`]): a thread that found it at work returned blocks and left.
struct PurgeInProgress<'a>(&'a AtomicBool);

impl Drop for PurgeInProgress<'_> {
    fn drop(&mut self) {
        // An exchange, not a store: it sees what threads that found this one at work have counted
        // before.
        self.0.swap(false, Ordering::AcqRel);
    }
}

impl Policy {
    pub(crate) fn new(settings: &SlabSettings) -> Self {
        let age = u64::try_from(settings.release_after.as_millis()).unwrap_or(u64::MAX);
        let age = if settings.release_after.is_zero() { 0 } else { age.max(1) };
        Self {
            is_on: settings.max_cached != 0 || age != 0,
            max_free: settings.max_cached,
            age,
            returned: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            due: AtomicU64::new(0),
            is_purging: AtomicBool::new(false),
            in_background: AtomicBool::new(false),
            seen: Chunks::new(),
        }
    }

    /// Forgets, in a forked child, the thread of the parent that was at work.
    pub(crate) fn forked(&self) {
        self.is_purging.store(false, Ordering::Relaxed);
    }

    /// Has the background purger look after this pool, if `background`.
    pub(crate) fn begin_background(&self, background: bool) {
        if background && !self.in_background.swap(true, Ordering::Relaxed) {
            purger::add_pool();
        }
    }

    /// Ends that.
    pub(crate) fn end_background(&self) {
        if self.in_background.swap(false, Ordering::Relaxed) {
            purger::remove_pool();
        }
    }

    /// Returns how often the background purger has to look.
    fn period(&self) -> Duration {
        const LONGEST: u64 = 1000;
        Duration::from_millis(if self.age == 0 { 100 } else { (self.age / 2).clamp(1, LONGEST) })
    }

    fn begin(&self) -> Option<PurgeInProgress<'_>> {
        (!self.is_purging.swap(true, Ordering::AcqRel)).then(|| PurgeInProgress(&self.is_purging))
    }

    /// Returns whether so many bytes came back since a thread looked that it is time to look.
    fn is_much(&self, returned: u64) -> bool {
        // If bytes beyond the bound could not be returned, a 32nd of those has to come first.
        let slack = (self.max_free / 8).max(self.stuck.load(Ordering::Relaxed) / 32);
        self.max_free != 0 && returned >= slack.max(MIN_SLACK)
    }
}

fn now() -> u64 {
    u64::try_from(clock::coarse().as_millis()).unwrap_or(u64::MAX)
}

impl SlabPool {
    // The policy.

    /// Counts bytes that came back to the shared lists, and purges if the policy says so. The
    /// calling thread is on a slow path, outside of its section, and holds no lock.
    #[inline]
    pub(crate) fn apply_policy(&self, bytes: usize) {
        if self.policy.is_on {
            self.apply_active_policy(bytes);
        }
    }

    #[cold]
    fn apply_active_policy(&self, bytes: usize) {
        let policy = &self.policy;
        if policy.max_free != 0 && bytes != 0 {
            let returned = policy.returned.fetch_add(bytes as u64, Ordering::AcqRel) + bytes as u64;
            if policy.is_much(returned) {
                self.return_excess();
            }
        }
        if policy.age != 0 {
            self.decay_if_due(now());
        }
        if self.settings.background {
            purger::ensure_thread();
        }
    }

    /// Applies the policy now, without reclaiming what is held: for threads that must not drop what
    /// others own.
    pub(crate) fn purge_unpolled(&self) {
        if self.policy.max_free != 0 {
            self.return_excess();
        }
        if self.policy.age != 0 {
            self.decay_if_due(now());
        }
    }

    /// Returns what is free beyond the bound, unless another thread is purging: that one looks
    /// again.
    fn return_excess(&self) {
        if let Some(is_purging) = self.policy.begin() {
            self.return_excess_alone();
            drop(is_purging);
            self.purge_again();
        }
    }

    /// Purges again for threads that returned blocks while this one was purging.
    fn purge_again(&self) {
        while self.policy.is_much(self.policy.returned.load(Ordering::Acquire))
            && let Some(is_purging) = self.policy.begin()
        {
            self.return_excess_alone();
            drop(is_purging);
        }
    }

    fn return_excess_alone(&self) {
        let policy = &self.policy;
        // Bytes that come back from here on count again. Those that came before are in the sums
        // below.
        policy.returned.swap(0, Ordering::AcqRel);
        if self.back.limits.bytes() <= policy.max_free || self.is_frozen() {
            return;
        }
        if self.compute_statistics().cached_bytes <= policy.max_free {
            return policy.stuck.store(0, Ordering::Relaxed);
        }
        let keep = usize::try_from(policy.max_free - policy.max_free / 8).unwrap_or(usize::MAX);
        let floor = self.back.reserve_floor();
        // If the provider refuses a region, it stays.
        let _ = self.release_shared(keep, floor);
        if self.compute_statistics().cached_bytes > policy.max_free {
            let _ = self.release_above(keep, floor);
        }
        let left = self.compute_statistics().cached_bytes;
        policy.stuck.store(if left > policy.max_free { left } else { 0 }, Ordering::Relaxed);
    }

    // Decay.

    /// Runs a decay, if one is due.
    fn decay_if_due(&self, now: u64) {
        let policy = &self.policy;
        if now < policy.due.load(Ordering::Relaxed) {
            return;
        }
        // One of the threads that come here at one time works.
        let Some(is_purging) = policy.begin() else { return };
        if now >= policy.due.load(Ordering::Relaxed) {
            policy.due.store(now.saturating_add(policy.age), Ordering::Relaxed);
            self.decay();
        }
        drop(is_purging);
        self.purge_again();
    }

    /// Returns memory that was not used since the last decay.
    pub(crate) fn decay(&self) {
        if self.is_frozen() {
            return;
        }
        let classes = &self.heaps.classes;
        // What stays of the lower layers is read before the higher ones decay, so that all of it
        // goes at one time.
        let used_idle = self.back.extents.lock().used_idle();
        let mut used_slabs = [0_u32; MAX_CLASSES];
        for class in classes.small() {
            used_slabs[class] = self.central(class).used_empties();
        }
        for class in classes.large() {
            self.merge_all(class, false, || self.transfer.take_unused_stock(class, classes.size(class)));
        }
        for _ in 0..self.transfer.unused_batches() {
            self.empty_batch(self.transfer.take(), false);
        }
        let mut work = FollowUp::new();
        self.deliver_open(&mut work);
        if let Some((index, heap)) = self.heaps.current() {
            self.empty_batch(self.take_outgoing(heap), false);
            let _section = self.heaps.enter(heap);
            self.decay_heap(index, heap, &mut work);
        }
        self.heaps.revoke_all(|index, heap| {
            self.empty_batch(heap.outgoing.take(), false);
            self.decay_heap(index, heap, &mut work);
        });
        self.drain_parent_inboxes(&mut work);
        self.finish(work);
        for class in classes.small() {
            let mut chain = 0;
            self.central(class).trim(used_slabs[class], &mut chain);
            self.remove_slabs(chain);
            self.central(class).begin_period();
        }
        for class in classes.large() {
            self.transfer.begin_period(class);
        }
        // If the provider refuses a region, it stays.
        let _ = self.back.return_idle(self.back.reserve_floor(), |extents| extents.idle().0 <= used_idle);
        self.back.extents.lock().begin_period();
    }

    /// Drains the inbox of a heap, empties bins that nothing was taken from, and halves the others.
    /// Inside the section, or while it is revoked.
    fn decay_heap(&self, index: u32, heap: &Heap, work: &mut FollowUp) {
        self.drain_to_bitmaps(index, heap, work);
        let Ok(seen) = self.policy.seen.get_or_grow(index) else { return };
        for class in heap.used() {
            let (allocations, _) = heap.bin(class).counts();
            let is_used = seen.0[class].swap(allocations, Ordering::Relaxed) != allocations;
            let len = heap.bin(class).len();
            let mut left = if is_used { len / 2 } else { len };
            if !self.heaps.classes.is_large(class) {
                self.empty_bin(index, heap, class, left, work);
                continue;
            }
            while left > 0 {
                let evicted = heap.evict(class, left);
                let entries = evicted.entries();
                if entries.is_empty() {
                    break;
                }
                left -= entries.len();
                let kept = if is_used { self.put_stock(class, entries) } else { 0 };
                self.merge(&entries[kept..], false);
            }
        }
    }

    // Trimming.

    /// Returns free regions until at most `keep` bytes are free, and returns the bytes that went.
    /// Blocks whose deferral has ended are free by then.
    pub(crate) fn release_free(&self, keep: usize) -> Result<usize> {
        if self.is_frozen() {
            return Ok(0);
        }
        let before = self.back.limits.bytes();
        self.back.upstream.poll();
        self.release_above(keep, 0)?;
        Ok(usize::try_from(before.saturating_sub(self.back.limits.bytes())).unwrap_or(usize::MAX))
    }

    /// Returns up to `bytes` free bytes for another pool that shares the limit.
    pub(crate) fn release_for_others(&self, limit: &SharedLimit, bytes: u64) -> u64 {
        if !self.back.limits.shares(limit) {
            return 0;
        }
        let mut released = 0;
        registry::POOLS.with(NonNull::from(self), |_| {
            let keep = self.compute_statistics().cached_bytes.saturating_sub(bytes);
            let keep = usize::try_from(keep).unwrap_or(usize::MAX);
            released = self.release_above(keep, self.back.reserve_floor()).unwrap_or(0);
        });
        released as u64
    }

    /// Returns free regions until at most `keep` bytes are free, or only `floor` bytes of regions
    /// are left.
    fn release_above(&self, keep: usize, floor: u64) -> Result<usize> {
        if self.is_frozen() {
            return Ok(0);
        }
        let before = self.back.limits.bytes();
        if self.compute_statistics().cached_bytes <= keep as u64 {
            return Ok(0);
        }
        let mut work = FollowUp::new();
        self.deliver_open(&mut work);
        self.heaps.revoke_all(|index, heap| self.empty_revoked(index, heap, &mut work));
        self.drain_parent_inboxes(&mut work);
        self.finish(work);
        if let Some((index, heap)) = self.heaps.current() {
            self.empty_own(index, heap, false);
        }
        let result = self.release_shared(keep, floor);
        result.map(|()| before.saturating_sub(self.back.limits.bytes()) as usize)
    }

    /// The same without the heaps.
    fn release_shared(&self, keep: usize, floor: u64) -> Result<()> {
        self.merge_batches(true);
        for class in self.heaps.classes.small() {
            let mut chain = 0;
            self.central(class).trim(0, &mut chain);
            self.remove_slabs(chain);
        }
        self.merge_transfer(true);
        let used = self.live_bytes().saturating_add(self.back.upstream.deferred().bytes);
        let least = used.saturating_add(keep as u64);
        self.back.return_idle(floor, |_| self.back.limits.bytes() <= least)
    }

    // Emptying a layer.

    /// Puts the open batches of all threads into the inboxes of their owners. The rest is left in
    /// `work`.
    fn deliver_open(&self, work: &mut FollowUp) {
        if let Some((_, heap)) = self.heaps.current() {
            let open = {
                let _section = self.heaps.enter(heap);
                heap.open.take_all()
            };
            self.deliver(open, work);
        }
        self.heaps.revoke_all(|_, heap| self.deliver(heap.open.take_all(), work));
    }

    /// Empties a heap whose section is revoked, without returning anything to the provider.
    fn empty_revoked(&self, index: u32, heap: &Heap, work: &mut FollowUp) {
        self.drain_to_bitmaps(index, heap, work);
        for class in heap.used() {
            if self.heaps.classes.is_large(class) {
                self.merge_all(class, false, || heap.evict(class, usize::MAX));
            } else {
                self.empty_bin(index, heap, class, usize::MAX, work);
                self.central(class).abandon(index, false);
            }
        }
        heap.set_large_bytes(0);
        self.empty_batch(heap.outgoing.take(), false);
    }

    /// Empties the calling thread's heap. If the thread `ends`, its slabs become unowned.
    pub(crate) fn empty_own(&self, index: u32, heap: &Heap, ends: bool) {
        self.empty_batch(self.take_outgoing(heap), true);
        for class in heap.used().filter(|&class| self.heaps.classes.is_large(class)) {
            loop {
                let evicted = self.heaps.evict(heap, class);
                if evicted.entries().is_empty() {
                    break;
                }
                self.return_blocks(class, evicted.entries());
            }
        }
        let mut work = FollowUp::new();
        let open = {
            let _section = self.heaps.enter(heap);
            for class in heap.used().filter(|&class| !self.heaps.classes.is_large(class)) {
                self.empty_bin(index, heap, class, usize::MAX, &mut work);
                self.central(class).abandon(index, ends);
            }
            // After the slabs were abandoned: what comes in later is drained by its sender.
            self.drain_to_bitmaps(index, heap, &mut work);
            heap.open.take_all()
        };
        work.batches.append(open);
        self.finish(work);
    }

    /// Merges the large blocks that the calling thread keeps.
    pub(crate) fn merge_own_large(&self, heap: &Heap) {
        self.empty_batch(self.take_outgoing(heap), false);
        for class in heap.used().filter(|&class| self.heaps.classes.is_large(class)) {
            self.merge_all(class, false, || self.heaps.evict(heap, class));
        }
    }

    /// Takes the calling thread's outgoing batch.
    pub(crate) fn take_outgoing(&self, heap: &Heap) -> Option<LargeBatch> {
        let _section = self.heaps.enter(heap);
        heap.outgoing.take()
    }

    /// Returns the blocks of a batch to their slabs and extents.
    fn empty_batch(&self, batch: Option<LargeBatch>, release: bool) {
        if let Some(mut batch) = batch {
            batch.drain(|_, entries| self.merge(entries, release));
            self.transfer.recycle(batch);
        }
    }

    fn merge_batches(&self, release: bool) {
        while let Some(batch) = self.transfer.take() {
            self.empty_batch(Some(batch), release);
        }
    }

    /// Empties the transfer cache.
    pub(crate) fn merge_transfer(&self, release: bool) {
        self.merge_batches(release);
        for class in self.heaps.classes.large().filter(|&class| self.transfer.has_stock(class)) {
            let size = self.heaps.classes.size(class);
            // SAFETY: `take_stock` writes as many entries as it returns.
            self.merge_all(class, release, || unsafe {
                Evicted::filled(|out, want| self.transfer.take_stock(class, size, out, want))
            });
        }
    }

    /// Merges large blocks that `take` takes out, until it takes none.
    fn merge_all(&self, class: usize, release: bool, take: impl Fn() -> Evicted) {
        debug_assert!(self.heaps.classes.is_large(class), "slabs are not merged");
        loop {
            let taken = take();
            if taken.entries().is_empty() {
                return;
            }
            self.merge(taken.entries(), release);
        }
    }
}

/// The background purger.
mod purger {
    use super::*;

    struct PurgerState {
        /// Pools that ask for it.
        pools: u32,
        /// The thread, once it runs, and the process that it is of.
        thread: Option<(Option<Thread>, u32)>,
    }

    static STATE: Lock<PurgerState> = Lock::new(PurgerState { pools: 0, thread: None });
    /// The process in which there is, or cannot be, a thread.
    static ENSURED: AtomicU32 = AtomicU32::new(0);

    /// Counts a pool that asks for the thread.
    pub(super) fn add_pool() {
        STATE.lock().pools += 1;
        ENSURED.store(0, Ordering::Relaxed);
        ensure_thread();
    }

    /// Counts that a pool asks no more.
    pub(super) fn remove_pool() {
        let mut state = STATE.lock();
        state.pools = state.pools.saturating_sub(1);
        if let Some((Some(thread), _)) = state.thread.as_ref().filter(|_| state.pools == 0) {
            thread.unpark();
        }
    }

    /// Starts the thread, if there is none: after a fork for instance, which it does not survive.
    pub(super) fn ensure_thread() {
        let generation = fork::generation();
        if ENSURED.load(Ordering::Relaxed) == generation {
            return;
        }
        let mut state = STATE.lock();
        if ENSURED.swap(generation, Ordering::Relaxed) == generation || state.pools == 0 {
            return;
        }
        if state.thread.as_ref().is_some_and(|(_, of)| *of == generation) {
            return;
        }
        match background::spawn(c"umf-purger", 256 << 10, run) {
            Ok(_) => state.thread = Some((None, generation)),
            Err(error) => {
                tracing::warn!(%error, "no thread to release memory in the background; pools do it on their slow paths");
            }
        }
    }

    fn run() {
        let this = std::thread::current();
        if let Some((thread, _)) = &mut STATE.lock().thread {
            *thread = Some(this);
        }
        loop {
            let mut pause = Duration::from_secs(1);
            registry::POOLS.for_each(|pool| {
                if pool.settings.background {
                    pool.purge_unpolled();
                    pause = pause.min(pool.policy.period());
                }
            });
            // Not while a pool is kept from being dropped: dropping what holds a block may drop its
            // pool.
            deferred::poll();
            {
                let mut state = STATE.lock();
                if state.pools == 0 {
                    state.thread = None;
                    ENSURED.store(0, Ordering::Relaxed);
                    return;
                }
            }
            std::thread::park_timeout(pause);
        }
    }
}

#[cfg(test)]
mod tests;
