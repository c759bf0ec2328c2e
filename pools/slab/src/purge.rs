//! Purging: automatic release of free memory to the provider, and trimming.
//!
//! - **By bytes** (`max_cached`): free bytes above a limit are released. A thread checks the limit
//!   after threads have returned a fraction of it to the shared lists.
//! - **By age** (`release_after`): memory that was unused since the last decay is released. A decay
//!   runs at most once per period. Of the regions, of the empty slabs and of the blocks in the
//!   transfer cache, as many were unused as their minimum number since the last decay. The fast
//!   path counts nothing for this in the bins of threads. A bin from which no block was allocated
//!   since the last decay is emptied. Of another bin, half of the blocks move to the stock and
//!   decay there.
//! - **Trim**: all free memory, in all layers, is released.
//!
//! Threads apply the policy on slow paths only. With `release_thread`, the background purger
//! applies it too: one thread for all pools of the process with this setting. [`policy`] has the
//! limits and counters.

mod policy;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::thread::Thread;

use umf_core::Result;
use umf_core::limit::SharedLimit;
use umf_os::{background, clock};
use umf_runtime::deferred;
use umf_sync::{Lock, fork};

use crate::classes::MAX_CLASSES;
use crate::collect::FollowUp;
use crate::heap::Evicted;
use crate::transfer::LargeBatch;
use crate::types::Heap;
use crate::{SlabPool, registry};
pub(crate) use policy::Policy;

fn now() -> u64 {
    u64::try_from(clock::coarse().as_millis()).unwrap_or(u64::MAX)
}

impl SlabPool {
    // The policy.

    /// Counts `bytes` that were returned to the shared lists, and purges if the policy requires it.
    /// The calling thread is on a slow path, outside of its section, and holds no lock.
    #[inline]
    pub(crate) fn apply_policy(&self, bytes: usize) {
        if self.policy.is_active {
            self.apply_active_policy(bytes);
        }
    }

    #[cold]
    fn apply_active_policy(&self, bytes: usize) {
        let policy = &self.policy;
        if policy.is_bounded() && bytes != 0 {
            let returned = policy.returned.fetch_add(bytes as u64, Ordering::AcqRel) + bytes as u64;
            if policy.is_check_due(returned) {
                self.release_excess();
            }
        }
        if policy.age != 0 {
            self.decay_if_due(now());
        }
        if self.settings.background {
            purger::ensure_thread();
        }
    }

    /// Applies the policy now, without polling deferred frees: reclaiming one may drop an object
    /// that the caller must not drop.
    pub(crate) fn purge_unpolled(&self) {
        if self.policy.is_bounded() {
            self.release_excess();
        }
        if self.policy.age != 0 {
            self.decay_if_due(now());
        }
    }

    /// Releases free memory above the limit. If another thread is purging, leaves it to that
    /// thread, which checks again.
    fn release_excess(&self) {
        if let Some(purge) = self.policy.begin() {
            self.release_excess_exclusively();
            drop(purge);
            self.purge_again();
        }
    }

    /// Purges again for threads that returned blocks while this one was purging.
    fn purge_again(&self) {
        while self.policy.is_check_due(self.policy.returned.load(Ordering::Acquire))
            && let Some(purge) = self.policy.begin()
        {
            self.release_excess_exclusively();
            drop(purge);
        }
    }

    /// Releases free memory above the limit. No other thread purges meanwhile.
    fn release_excess_exclusively(&self) {
        let policy = &self.policy;
        // Bytes returned from here on count towards the next check. The statistics below include
        // all earlier ones.
        policy.returned.swap(0, Ordering::AcqRel);
        if self.back.limits.bytes() <= policy.bound(0) || self.is_frozen() {
            return;
        }
        let statistics = self.compute_statistics();
        let most = policy.bound(statistics.live_bytes);
        if statistics.cached_bytes <= most {
            return policy.stuck.store(0, Ordering::Relaxed);
        }
        let keep = usize::try_from(most - most / 8).unwrap_or(usize::MAX);
        let floor = self.back.reserve_floor();
        // A region that the provider refuses stays in the pool.
        let _ = self.release_shared(keep, floor);
        if self.compute_statistics().cached_bytes > most {
            let _ = self.release_above(keep, floor);
        }
        let left = self.compute_statistics().cached_bytes;
        policy.stuck.store(if left > most { left } else { 0 }, Ordering::Relaxed);
    }

    // Decay.

    /// Runs a decay, if one is due.
    fn decay_if_due(&self, now: u64) {
        let policy = &self.policy;
        if now < policy.due.load(Ordering::Relaxed) {
            return;
        }
        // Of threads that arrive at the same time, one runs the decay.
        let Some(purge) = policy.begin() else { return };
        if now >= policy.due.load(Ordering::Relaxed) {
            policy.due.store(now.saturating_add(policy.age), Ordering::Relaxed);
            self.decay();
        }
        drop(purge);
        self.purge_again();
    }

    /// Releases memory that was not used since the last decay.
    pub(crate) fn decay(&self) {
        if self.is_frozen() {
            return;
        }
        let classes = &self.heaps.classes;
        // Read before the upper layers decay, so that memory which they return to the lower layers
        // is released in this period.
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
        // A region that the provider refuses stays in the pool.
        let _ = self.back.return_idle(self.back.reserve_floor(), |extents| extents.idle().0 <= used_idle);
        self.back.extents.lock().begin_period();
    }

    /// Drains the inbox of a heap. Empties the bins from which no block was allocated since the
    /// last decay, and halves the others. Inside the section, or while it is revoked.
    fn decay_heap(&self, index: u32, heap: &Heap, work: &mut FollowUp) {
        self.drain_to_bitmaps(index, heap, work);
        let Ok(at_decay) = self.policy.at_decay.get_or_grow(index) else { return };
        for class in heap.used() {
            let (allocations, _) = heap.bin(class).counts();
            let is_used = at_decay.0[class].swap(allocations, Ordering::Relaxed) != allocations;
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
                let stocked = if is_used { self.put_stock(class, entries) } else { 0 };
                self.merge(&entries[stocked..], false);
            }
        }
    }

    // Trimming.

    /// Polls deferred frees, then releases free regions until at most `keep` bytes are free.
    /// Returns the bytes released.
    pub(crate) fn release_free(&self, keep: usize) -> Result<usize> {
        if self.is_frozen() {
            return Ok(0);
        }
        let before = self.back.limits.bytes();
        self.back.upstream.poll();
        self.release_above(keep, 0)?;
        Ok(usize::try_from(before.saturating_sub(self.back.limits.bytes())).unwrap_or(usize::MAX))
    }

    /// Releases up to `bytes` free bytes for another pool that shares the limit. Returns the bytes
    /// released.
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

    /// Releases free regions until at most `keep` bytes are free, or only `floor` bytes of regions
    /// are left. Returns the bytes released.
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

    /// Does the same, but leaves the blocks in the heaps there.
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

    /// Delivers the open batches of all threads to the inboxes of their owners. Leaves in `work`
    /// what no inbox accepts.
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

    /// Empties a heap whose section is revoked. Returns no region to the provider.
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
            // After the slabs were abandoned: a batch that arrives later is drained by its sender.
            self.drain_to_bitmaps(index, heap, &mut work);
            heap.open.take_all()
        };
        work.batches.append(open);
        self.finish(work);
    }

    /// Merges the large blocks in the heap of the calling thread.
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

    /// Merges the large blocks that `take` returns, until it returns none.
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
        /// The number of pools that use the purger.
        pools: u32,
        /// The thread, once it runs, and the fork generation of its process.
        thread: Option<(Option<Thread>, u32)>,
    }

    static STATE: Lock<PurgerState> = Lock::new(PurgerState { pools: 0, thread: None });
    /// The fork generation of the process in which the thread was started, or failed to start.
    static ENSURED: AtomicU32 = AtomicU32::new(0);

    /// Counts a pool that uses the purger.
    pub(super) fn add_pool() {
        STATE.lock().pools += 1;
        ENSURED.store(0, Ordering::Relaxed);
        ensure_thread();
    }

    /// Removes a pool. The purger ends after the last one.
    pub(super) fn remove_pool() {
        let mut state = STATE.lock();
        state.pools = state.pools.saturating_sub(1);
        if let Some((Some(thread), _)) = state.thread.as_ref().filter(|_| state.pools == 0) {
            thread.unpark();
        }
    }

    /// Starts the thread unless it runs in this process. It does not run in a forked child.
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
                tracing::warn!(%error, "cannot start the thread umf-purger; pools release memory on their slow paths instead");
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
            // After the loop, which keeps pools from being dropped: a deferred free may drop the
            // last reference to its pool.
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
