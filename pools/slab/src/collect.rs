//! Collecting remote frees: batches of addresses are sent, drained into bins and bitmaps, and
//! forwarded.
//!
//! See `remote` for the states and the batches. A batch reaches
//!
//! - the owner, which drains its inbox when a bin is empty: `drain_own`;
//! - another thread, which revokes the owner's section and drains the inbox: `drain_revoked`. It
//!   does so if the owner has ended, if too much waits for the owner, if the thread would need a
//!   new slab otherwise, and if the pool is trimmed;
//! - the sender itself, if the slabs are unowned: `collect_batch`.
//!
//! A slab may have another owner by then. Blocks that the calling thread may not collect are sorted
//! by owner and sent again: [`FollowUp`].

use core::sync::atomic::Ordering;

use umf_core::Address;
use umf_os::clock;

use crate::SlabPool;
use crate::central::Slabs;
use crate::classes::MAX_CLASSES;
use crate::registry::is_thread_ending;
use crate::remote::{Chain, MIXED, RemoteBatch};
use crate::span::BlockRef;
use crate::state;
use crate::types::{Entry, Heap, REMOTE, Span, UNOWNED, thread_word};

/// The work that a thread does after it has left its section and its locks.
pub(crate) struct FollowUp {
    /// Batches to be sent, by their owners.
    pub(crate) batches: Chain,
    /// The chain of empty slabs whose extents are to be freed: see [`Slabs::trim`].
    pub(crate) emptied: u32,
    /// Bytes that were returned to the shared lists, or wait for owners.
    pub(crate) bytes: usize,
    /// The classes of the blocks that were returned to slabs, a bit each.
    classes: [u64; MAX_CLASSES / 64],
    /// A block whose second free was dropped.
    late: Option<Address>,
}

impl FollowUp {
    pub(crate) const fn new() -> Self {
        Self { batches: Chain::EMPTY, emptied: 0, bytes: 0, classes: [0; MAX_CLASSES / 64], late: None }
    }
}

impl SlabPool {
    // Sending.

    /// Puts the address of a block that was marked as [`REMOTE`] into the calling thread's batch
    /// for the owner, and counts the free unless `is_counted`. The calling thread is outside of its
    /// section, and holds no lock.
    pub(crate) fn add_remote(&self, class: usize, owner: u32, address: Address, is_counted: bool) {
        let runs = &self.back.meta.runs;
        let Some((_, heap)) = self.heaps.current_with_bin(class, runs) else {
            if !is_counted {
                self.heaps.count_free(class, runs);
            }
            return self.send_alone(owner, class, address);
        };
        let block = (address.to_bits(), class, self.heaps.classes.size(class));
        loop {
            let taken = {
                let _section = self.heaps.enter(heap);
                if heap.open.add(owner, block, self.heaps.max_remote_batch(), || true) {
                    if !is_counted {
                        heap.bin(class).count_free();
                    }
                    return;
                }
                heap.open.take(owner)
            };
            taken.into_iter().for_each(|batch| self.send(batch));
            let Some(batch) = self.batches.empty(runs, owner) else {
                if !is_counted {
                    self.heaps.count_free(class, runs);
                }
                return self.collect_one(class, address);
            };
            let other = {
                let _section = self.heaps.enter(heap);
                heap.open.set(owner, batch)
            };
            // The thread called a provider meanwhile, which freed blocks of this pool.
            other.into_iter().for_each(|batch| self.send(batch));
        }
    }

    /// Sends an address in a batch of its own, for a thread without a heap.
    fn send_alone(&self, owner: u32, class: usize, address: Address) {
        match self.batches.empty(&self.back.meta.runs, owner) {
            Some(mut batch) => {
                batch.push(address.to_bits(), class, self.heaps.classes.size(class));
                self.send(batch);
            }
            None => self.collect_one(class, address),
        }
    }

    /// Sends a batch to its owner. The conditions are those of [`SlabPool::finish`].
    pub(crate) fn send(&self, batch: RemoteBatch) {
        let mut work = FollowUp::new();
        work.batches.push(batch);
        self.finish(work);
    }

    /// Does the follow-up work. The calling thread is outside of its section, and holds no lock.
    pub(crate) fn finish(&self, mut work: FollowUp) {
        while let Some(batch) = work.batches.pop() {
            match batch.owner() {
                _ if batch.is_empty() => self.batches.recycle(batch),
                MIXED => self.sort(batch, &mut work),
                UNOWNED => self.collect_batch(batch, UNOWNED, &mut work),
                owner => {
                    let Some(heap) = self.heaps.get(owner - 1) else { continue };
                    work.bytes += batch.bytes() as usize;
                    if heap.inbox.push(batch, self.heaps.max_pending()) {
                        self.drain_revoked(owner - 1, None, &mut work);
                    }
                }
            }
        }
        if work.bytes > 0 {
            self.after_return();
        }
        self.remove_slabs(work.emptied);
        if work.bytes > 0 {
            self.apply_policy(work.bytes);
        }
        if let Some(address) = work.late {
            self.report_late(address);
        }
    }

    /// Pushes batches to the inboxes of their owners, which the caller drains. Leaves batches
    /// without an owner in `work`.
    pub(crate) fn deliver(&self, mut batches: Chain, work: &mut FollowUp) {
        while let Some(batch) = batches.pop() {
            match batch.owner().checked_sub(1).and_then(|index| self.heaps.get(index)) {
                Some(heap) if !batch.is_empty() => {
                    heap.inbox.push(batch, u64::MAX);
                }
                _ => work.batches.push(batch),
            }
        }
    }

    /// Returns the block of a slab that begins at an address.
    fn locate_small(&self, address: u64) -> Option<BlockRef<'_>> {
        let place = self.back.meta.locate_start(Address::from_bits(address))?;
        place.span.is_slab().then_some(place)
    }

    /// Sorts a mixed batch into one for the owner of the first block, and one with all others.
    fn sort(&self, mut batch: RemoteBatch, work: &mut FollowUp) {
        let (mut first, mut rest) = (None, None);
        batch.retain(|address, class| {
            let place = self.locate_small(address);
            let Some(place) = place.filter(|place| place.state.load(Ordering::Acquire) == REMOTE) else {
                self.note_late(address, class, work);
                return false;
            };
            let owner = place.span.owner.load(Ordering::Acquire);
            if *first.get_or_insert(owner) == owner {
                return true;
            }
            rest = rest.take().or_else(|| self.batches.empty(&self.back.meta.runs, MIXED));
            match &mut rest {
                Some(rest) => rest.push(address, class, self.heaps.classes.size(class)),
                None => self.collect_one(class, Address::from_bits(address)),
            }
            false
        });
        batch.set_owner(first.unwrap_or(UNOWNED));
        work.batches.push(batch);
        rest.into_iter().for_each(|rest| work.batches.push(rest));
    }

    // Collecting.

    /// Puts the blocks of a batch into the bitmaps of slabs that are unowned or `owner`'s. Leaves
    /// all others in `work`. The conditions are those of [`Slabs::put_block`].
    pub(crate) fn collect_batch(&self, mut batch: RemoteBatch, owner: u32, work: &mut FollowUp) {
        let mut locked: Option<(usize, Slabs<'_>)> = None;
        let mut left = false;
        batch.retain(|address, class| {
            // The class of the freed block is in the batch.
            let Some(place) = self.locate_small(address).filter(|place| place.span.class() == class) else {
                self.note_late(address, class, work);
                return false;
            };
            if locked.as_ref().is_none_or(|(of, _)| *of != class) {
                self.unlock(locked.take(), work);
                locked = Some((class, self.central(class)));
            }
            let Some((_, slabs)) = &mut locked else { return true };
            let now = place.span.owner.load(Ordering::Relaxed);
            if now != UNOWNED && now != owner {
                left = true;
                return true;
            }
            if place.is_current() && state::collect(place.state) {
                slabs.put_block(&place, owner);
                work.bytes += place.span.block() as usize;
                work.classes[class / 64] |= 1 << (class % 64);
            } else {
                self.note_late(address, class, work);
            }
            false
        });
        self.unlock(locked, work);
        if left {
            batch.set_owner(MIXED);
            work.batches.push(batch);
        } else {
            self.batches.recycle(batch);
        }
    }

    /// Unlocks the slabs of a class. Leaves in `work` the empty slabs above the capacity.
    fn unlock(&self, locked: Option<(usize, Slabs<'_>)>, work: &mut FollowUp) {
        if let Some((_, mut slabs)) = locked {
            slabs.trim(self.settings.capacity, &mut work.emptied);
        }
    }

    /// Puts one block into its slab's bitmap, whichever thread owns the slab.
    #[cold]
    fn collect_one(&self, class: usize, address: Address) {
        let mut work = FollowUp::new();
        match self.locate_small(address.to_bits()) {
            Some(place) => {
                let collected = self.exclusively(&place, |slabs, owner| {
                    let collected = place.is_current() && state::collect(place.state);
                    if collected {
                        slabs.put_block(&place, owner);
                        slabs.trim(self.settings.capacity, &mut work.emptied);
                    }
                    collected
                });
                if !collected {
                    self.note_late(address.to_bits(), class, &mut work);
                }
            }
            None => self.note_late(address.to_bits(), class, &mut work),
        }
        self.finish(work);
    }

    /// Puts one block into the bitmap of its slab, which the calling thread owned. If the slab has
    /// a new owner, sends the block there. The calling thread is outside of its section, and holds
    /// no lock.
    pub(crate) fn collect_own(&self, index: u32, heap: &Heap, class: usize, address: Address) {
        let Some(mut batch) = self.batches.empty(&self.back.meta.runs, MIXED) else {
            return self.collect_one(class, address);
        };
        batch.push(address.to_bits(), class, self.heaps.classes.size(class));
        let mut work = FollowUp::new();
        {
            let _section = self.heaps.enter(heap);
            self.collect_batch(batch, thread_word(index), &mut work);
        }
        self.finish(work);
    }

    /// Runs `change` while no thread changes states of the slab by plain stores. Passes it the
    /// locked slabs of the class and the owner, whose section is revoked. The calling thread is
    /// outside of its own section, and holds no lock. The slab may no longer exist.
    pub(crate) fn exclusively<R>(
        &self,
        place: &BlockRef<'_>,
        mut change: impl FnMut(&mut Slabs<'_>, u32) -> R,
    ) -> R {
        let span: &Span = place.span;
        loop {
            let owner = span.owner.load(Ordering::Acquire);
            let mut run = || {
                let mut slabs = self.central(span.class());
                let now = span.owner.load(Ordering::Acquire);
                (now == UNOWNED || now == owner || !place.is_current()).then(|| change(&mut slabs, owner))
            };
            let heap = owner.checked_sub(1).and_then(|index| Some((index, self.heaps.get(index)?)));
            let done = match heap {
                Some((index, heap)) => self.heaps.with_revoked(index, heap, run),
                None => run(),
            };
            if let Some(done) = done {
                return done;
            }
        }
    }

    // Draining.

    /// Drains the calling thread's inbox into its bins, and into bitmaps if a bin is full. The
    /// calling thread is outside of its section, and holds no lock.
    pub(crate) fn drain_own(&self, index: u32, heap: &Heap) {
        if heap.inbox.is_empty() {
            return;
        }
        let mut work = FollowUp::new();
        {
            let _section = self.heaps.enter(heap);
            let mut batches = heap.inbox.take_all();
            while let Some(batch) = batches.pop() {
                self.drain(index, heap, batch, &mut work);
            }
        }
        self.finish(work);
    }

    /// Drains a batch. Inside the section.
    fn drain(&self, index: u32, heap: &Heap, mut batch: RemoteBatch, work: &mut FollowUp) {
        batch.retain(|address, _| {
            let Some((state, place)) = heap.lookaside.find(Address::from_bits(address)) else { return true };
            let bin = heap.bin_at(place);
            // SAFETY: the lookaside cache has slabs of this thread, which are in use.
            let collected = bin.weight() == 0 && !bin.is_full() && state::collect(unsafe { state.as_ref() });
            if collected {
                // SAFETY: it is not full.
                unsafe { bin.receive(Entry::new(address, state)) };
            }
            !collected
        });
        // Once: a bin that cannot grow would lower the limits of all other classes.
        let mut may_widen = true;
        batch.retain(|address, class| {
            let Some(place) = self.locate_small(address) else { return true };
            let is_owner = place.span.owner.load(Ordering::Acquire) == thread_word(index);
            if !is_owner || place.span.class() != class {
                return true;
            }
            let bin = heap.bin(class);
            if bin.is_full() && core::mem::take(&mut may_widen) {
                self.heaps.widen(heap, class);
            }
            let collected = !bin.is_full() && state::collect(place.state);
            if collected {
                // SAFETY: it is not full.
                unsafe { bin.receive(place.entry(Address::from_bits(address))) };
            }
            !collected
        });
        if batch.is_empty() {
            self.batches.recycle(batch);
        } else {
            self.collect_batch(batch, thread_word(index), work);
        }
    }

    /// Drains the inbox of a heap into bitmaps. Inside the section, or while it is revoked.
    pub(crate) fn drain_to_bitmaps(&self, index: u32, heap: &Heap, work: &mut FollowUp) {
        let mut batches = heap.inbox.take_all();
        while let Some(batch) = batches.pop() {
            self.collect_batch(batch, thread_word(index), work);
        }
    }

    /// Revokes the section of thread number `index` and drains its inbox. Abandons its slabs with
    /// free blocks, of the drained classes and of `class`. The calling thread is outside of its
    /// section, and holds no lock.
    #[cold]
    fn drain_revoked(&self, index: u32, class: Option<usize>, work: &mut FollowUp) {
        let Some(heap) = self.heaps.get(index) else { return };
        self.heaps.with_revoked(index, heap, || {
            work.classes = [0; MAX_CLASSES / 64];
            self.drain_to_bitmaps(index, heap, work);
            // In a forked child, blocks in the bins of the parent's threads are lost.
            if heap.of_parent.load(Ordering::Relaxed) {
                return;
            }
            let drained = work.classes;
            let was_drained = |other: &usize| drained[other / 64] & (1 << (other % 64)) != 0;
            for class in
                self.heaps.classes.small().filter(|other| class == Some(*other) || was_drained(other))
            {
                self.empty_bin(index, heap, class, usize::MAX, work);
                self.central(class).abandon(index, false);
            }
        });
    }

    /// Drains the inbox of a thread other than number `current` in which many bytes wait, and
    /// abandons its slabs of `class` with free blocks. Returns `false` if no inbox holds that much.
    pub(crate) fn drain_idle_owner(&self, current: u32, class: usize) -> bool {
        let waits = |heap: &Heap| {
            let many = if heap.inbox.has_ended() { 1 } else { self.heaps.many_pending() };
            !heap.inbox.is_empty() && heap.inbox.pending() >= many
        };
        let Some((index, _)) = self.heaps.iter().find(|&(index, heap)| index != current && waits(heap))
        else {
            return false;
        };
        let mut work = FollowUp::new();
        self.drain_revoked(index, Some(class), &mut work);
        self.finish(work);
        true
    }

    /// Sends the open batches of the calling thread to their owners.
    pub(crate) fn send_open(&self, heap: &Heap) {
        let mut work = FollowUp::new();
        work.batches = {
            let _section = self.heaps.enter(heap);
            heap.open.take_all()
        };
        self.finish(work);
    }

    /// Collects the blocks in unowned slabs that the calling thread has freed. Returns `false` if
    /// there are none.
    pub(crate) fn collect_unowned(&self, heap: &Heap) -> bool {
        let batch = {
            let _section = self.heaps.enter(heap);
            heap.open.take(UNOWNED)
        };
        let Some(batch) = batch else { return false };
        let any = !batch.is_empty();
        self.send(batch);
        any
    }

    /// Drains the inboxes of threads of the parent, in a forked child.
    pub(crate) fn drain_parent_inboxes(&self, work: &mut FollowUp) {
        for (index, heap) in self.heaps.iter() {
            if heap.of_parent.load(Ordering::Relaxed) && !heap.inbox.is_empty() {
                self.drain_revoked(index, None, work);
            }
        }
    }

    /// Puts the oldest blocks of a small class into the bitmaps of their slabs, up to `n`. Inside
    /// the section, or while it is revoked.
    pub(crate) fn empty_bin(&self, index: u32, heap: &Heap, class: usize, n: usize, work: &mut FollowUp) {
        let mut left = n;
        while left > 0 {
            let evicted = heap.evict(class, left);
            let entries = evicted.entries();
            if entries.is_empty() {
                return;
            }
            left -= entries.len().min(left);
            let mut slabs = self.central(class);
            slabs.put(entries, thread_word(index));
            slabs.trim(self.settings.capacity, &mut work.emptied);
            work.bytes += entries.len() * self.heaps.classes.size(class);
        }
    }

    // Double frees.

    /// Counts a remote free whose block was not [`REMOTE`]: another thread freed the block at the
    /// same time.
    #[cold]
    fn note_late(&self, address: u64, class: usize, work: &mut FollowUp) {
        self.heaps.count_late(class);
        work.late = Some(Address::from_bits(address));
    }

    /// Reports a double free, at most once in [`REPORT_INTERVAL`] milliseconds.
    #[cold]
    fn report_late(&self, address: Address) {
        /// Milliseconds.
        const REPORT_INTERVAL: u64 = 1000;
        let now = u64::try_from(clock::coarse().as_millis()).unwrap_or(u64::MAX);
        let due = self.late_report_due.load(Ordering::Relaxed);
        if now >= due && !is_thread_ending() {
            self.late_report_due.store(now.saturating_add(REPORT_INTERVAL), Ordering::Relaxed);
            self.back.trace.late_double_free(address, self.heaps.late());
        }
    }
}

#[cfg(test)]
mod tests;
