//! The path of a free, from the thread's bin to the shared lists.
//!
//! | step | for |
//! |---|---|
//! | `free_owned` | a block of a slab that the thread owns, or a large one that is biased towards it |
//! | `free_to_cache`, `locate_and_free_to_cache` | any block that fits into a bin or a batch |
//! | [`SlabPool::free_slow`] | all others: exported, full bin, regions, and errors |
//! | `put` | a block whose live bit is cleared: into the first layer with room for it |
//!
//! A block of another owner's slab goes to that owner: see `remote`.
//!
//! A freed large block goes to the thread's bin, then to the stock of its class, then to the
//! extents, where it is merged with its neighbours. How much is kept shrinks as the pool grows.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use umf_core::{Address, Error, Result};
use umf_sync::{failpoint, thread};

use crate::SlabPool;
use crate::central::remove_slab;
use crate::collect::FollowUp;
use crate::heaps::Heaps;
use crate::section::{FENCED, SHARED, Section, TRACED};
use crate::span::BlockRef;
use crate::state;
use crate::transfer::LargeBatch;
use crate::types::{Bin, EXPORTED, Entry, Heap, LIVE, REMOTE, Span, UNOWNED, thread_word};

/// The span of an address, located on the fast path, that the calling thread does not own. The
/// section is still entered.
pub(crate) struct LocatedSpan<'a> {
    pub(crate) section: Section<'a>,
    pub(crate) span: &'a Span,
    pub(crate) number: u32,
    /// The calling thread's number.
    pub(crate) index: u32,
}

impl SlabPool {
    /// Frees a block of a span that the calling thread owns. Otherwise it does nothing; if the
    /// tracker has a span for the address, the error is that span.
    #[inline(always)]
    pub(crate) fn free_owned(&self, address: Address) -> Result<(), Option<LocatedSpan<'_>>> {
        let word = thread::index_plus_one();
        let section = self.heaps.enter_fast(word).ok_or(None)?;
        let heap = section.heap();
        if let Some((state, place)) = heap.lookaside.find(address) {
            // SAFETY: this thread owns the spans in its lookaside cache.
            return unsafe { self.push_owned(heap, heap.bin_at(place), state, address) }.ok_or(None);
        }
        let (number, span) = self.back.meta.first_span_at(address).ok_or(None)?;
        // Read inside: if this thread owns the span, it is still the one that the tracker named.
        let owner = span.owner.load(Ordering::Acquire);
        if u64::from(owner) != word {
            let index = (word as u32).wrapping_sub(1);
            return Err((word != 0).then_some(LocatedSpan { section, span, number, index }));
        }
        // SAFETY: a span that this thread owns does not change while the thread is inside. A thread
        // without a number gets here with an unowned span, and its bins are always full.
        unsafe {
            let state = span.state_of(address).ok_or(None)?;
            self.push_owned(heap, heap.bin_at(span.bin()), state, address).ok_or(None)
        }
    }

    /// Frees a block into its bin if the block is live and the bin has room. Returns `None` and
    /// changes nothing otherwise. Inside the section. Inlined twice: the bin is known before the
    /// state is.
    ///
    /// # Safety
    /// The state is that of the block that begins at `address`, of a span that this thread owns.
    #[inline(always)]
    unsafe fn push_owned(
        &self,
        heap: &Heap,
        bin: &Bin,
        state: NonNull<AtomicU8>,
        address: Address,
    ) -> Option<()> {
        let top = bin.top();
        // SAFETY: a state of this pool.
        let word = unsafe { state.as_ref() };
        if word.load(Ordering::Relaxed) != LIVE {
            return None;
        }
        if bin.is_full_or_large(top) {
            let bytes = heap.large_bytes() + bin.weight();
            if bin.is_full_at(top) || bytes > self.heaps.max_large() {
                return None;
            }
            heap.set_large_bytes(bytes);
        }
        word.store(0, Ordering::Release);
        // SAFETY: it is not full.
        unsafe { bin.push_at(top, Entry::new(address.to_bits(), state)) };
        Some(())
    }

    /// Enters the section and finds the block, for [`SlabPool::free_to_cache`].
    #[inline(never)]
    pub(crate) fn locate_and_free_to_cache(&self, address: Address) -> Option<()> {
        let (index, heap) = self.heaps.current()?;
        let section = heap.enter(self.heaps.flags.is_set(FENCED))?;
        let number = self.back.meta.span_number(address)?;
        self.free_to_cache(section, self.back.meta.span(number)?, number, index, address)
    }

    /// Frees a block of a located span into the bin of thread number `index`, or into a batch for
    /// another owner. Returns `None` and changes nothing if there is no room, or if the block is
    /// exported or a region. A tail call of the fast path: the arguments are in registers.
    #[inline(never)]
    pub(crate) fn free_to_cache(
        &self,
        section: Section<'_>,
        span: &Span,
        number: u32,
        index: u32,
        address: Address,
    ) -> Option<()> {
        let heap = section.heap();
        let place = span.locate_start(number, address)?;
        let bin = heap.bin(span.class());
        if span.is_slab() {
            let owner = span.owner.load(Ordering::Acquire);
            if owner != thread_word(index) {
                let mark = || state::mark_remote(place.state) && Self::confirm_mark(&place);
                let block = (address.to_bits(), span.class(), span.block() as usize);
                let added = heap.open.add(owner, block, self.heaps.max_remote_batch(), mark);
                return added.then(|| bin.count_free());
            }
            // The slab does not change as long as this thread is inside.
            if bin.is_full() || !state::free_by_owner(place.state) {
                return None;
            }
            // SAFETY: this thread owns the slab, which is in use.
            unsafe { heap.lookaside.remember(address, span) };
            // SAFETY: it is not full.
            unsafe { bin.push_at(bin.top(), place.entry(address)) };
            return Some(());
        }
        if Heaps::is_foreign(span, index) {
            let block = (span.class(), place.entry(address));
            return self.heaps.add_outgoing(heap, block, || Self::clear_live(&place));
        }
        let bytes = heap.large_bytes() + bin.weight();
        if bin.is_full() || bytes > self.heaps.max_large() {
            return None;
        }
        let bias = span.owner.load(Ordering::Acquire);
        if bias == thread_word(index) {
            // No other thread clears a live bit in this span as long as this thread is inside.
            if !state::free_by_owner(place.state) {
                return None;
            }
            // SAFETY: the span is biased towards this thread, and in use.
            unsafe { heap.lookaside.remember(address, span) };
        } else if bias == UNOWNED && !span.is_direct() {
            Self::clear_live(&place)?;
            heap.keep_large(index, span);
        } else {
            return None;
        }
        heap.set_large_bytes(bytes);
        // SAFETY: it is not full.
        unsafe { bin.push_at(bin.top(), place.entry(address)) };
        Some(())
    }

    /// Returns whether the span of a block that was just marked as [`REMOTE`] is still current.
    /// Undoes the mark if it is not.
    #[inline(always)]
    fn confirm_mark(place: &BlockRef<'_>) -> bool {
        let is_current = place.is_current();
        if !is_current {
            // A double free: the span was reused meanwhile, and the block is another thread's.
            state::unmark_remote(place.state);
        }
        is_current
    }

    /// Clears the live bit of an unbiased large block by atomic exchange, if the block is live and
    /// not exported.
    #[inline(always)]
    fn clear_live(place: &BlockRef<'_>) -> Option<()> {
        place.state.compare_exchange(LIVE, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        if place.is_current() {
            return Some(());
        }
        // A double free: the span was reused meanwhile, and the bit is that of another thread's
        // block.
        place.state.fetch_or(LIVE, Ordering::AcqRel);
        None
    }

    /// Frees a block that is not on the fast path.
    #[inline(never)]
    pub(crate) fn free_slow(&self, address: Address) -> Result<()> {
        let flags = self.heaps.flags.get();
        if flags != 0 {
            if flags & SHARED != 0 && self.back.upstream.is_frozen() {
                return Ok(());
            }
            if flags & TRACED != 0 {
                self.back.trace.block("free", 0, Some(&address));
            }
        }
        if self.locate_and_free_to_cache(address).is_some() {
            return Ok(());
        }
        let place = self.back.meta.locate_start(address).filter(|place| place.span.is_slab());
        if let Some(place) = place {
            return self.free_small(place, address);
        }
        let (place, old) = self.clear_state(address)?;
        if old & EXPORTED != 0 {
            return self.free_exported(place, address);
        }
        self.put(place, address)
    }

    /// Frees a block of a slab: exported or not, with or without room in the bin.
    fn free_small(&self, place: BlockRef<'_>, address: Address) -> Result<()> {
        let (span, state) = (place.span, place.state);
        let current = self.heaps.current();
        loop {
            if state.load(Ordering::Acquire) & EXPORTED != 0 {
                // Exact: no thread changes such a state by a plain store.
                let clear = |old| (old & (LIVE | EXPORTED) == LIVE | EXPORTED).then_some(0);
                let Some(old) = state::exchange(state, clear) else { break };
                if place.is_current() {
                    return self.free_exported(place, address);
                }
                // A double free: the span was reused meanwhile.
                state.fetch_or(old, Ordering::AcqRel);
                break;
            }
            if let Some((index, heap)) = current {
                let freed = {
                    let _section = self.heaps.enter(heap);
                    let is_owner = span.owner.load(Ordering::Acquire) == thread_word(index);
                    (is_owner && place.is_current()).then(|| state::free_by_owner(state))
                };
                if freed == Some(true) {
                    return self.put(place, address);
                }
            }
            let owner = span.owner.load(Ordering::Acquire);
            let is_owner = current.is_some_and(|(index, _)| thread_word(index) == owner);
            if !is_owner && state::mark_remote(state) {
                if !Self::confirm_mark(&place) {
                    break;
                }
                self.add_remote(span.class(), owner, address, false);
                return Ok(());
            }
            let now = state.load(Ordering::Acquire);
            if now & LIVE == 0 || !place.is_current() {
                break;
            }
            // The block was exported meanwhile, or its slab has a new owner: try again.
        }
        Err(self.why_not_live(address))
    }

    /// Clears the state of the live block at `address`, in a span of any kind. Returns the block
    /// and its state before.
    #[cold]
    #[inline(never)]
    pub(crate) fn clear_state(&self, address: Address) -> Result<(BlockRef<'_>, u8)> {
        let Some(place) = self.back.meta.locate_start(address) else {
            return Err(self.why_not_live(address));
        };
        if place.span.is_slab() {
            let cleared =
                self.exclusively(
                    &place,
                    |_, _| {
                        if place.is_current() { state::clear(place.state) } else { None }
                    },
                );
            return cleared.map(|old| (place, old)).ok_or_else(|| self.why_not_live(address));
        }
        self.heaps.ensure_exchange(place.span);
        match state::clear(place.state) {
            Some(old) if place.is_current() => Ok((place, old)),
            Some(old) => {
                // A double free: the span was reused meanwhile, and the bits are those of another
                // thread's block.
                place.state.fetch_or(old, Ordering::AcqRel);
                Err(Error::NotAllocated { address })
            }
            None => Err(self.why_not_live(address)),
        }
    }

    /// Puts a block whose live bit the caller has cleared into the first layer with room for it.
    /// The caller is outside of its section.
    #[cold]
    #[inline(never)]
    pub(crate) fn put(&self, place: BlockRef<'_>, address: Address) -> Result<()> {
        let Some(class) = place.class() else { return self.back.free_direct(place) };
        if place.span.is_slab() {
            self.put_small(&place, address);
            return Ok(());
        }
        let entry = place.entry(address);
        let runs = &self.back.meta.runs;
        match self.heaps.current_with_bin(class, runs) {
            None => {
                self.heaps.count_free(class, runs);
                self.return_blocks(class, &[entry]);
            }
            Some((index, heap)) if Heaps::is_foreign(place.span, index) => {
                self.put_outgoing(index, heap, class, entry);
            }
            Some((index, heap)) => self.put_large(index, heap, class, entry),
        }
        Ok(())
    }

    /// Puts a block of a slab into the bin of the calling thread, or sends it to the owner of the
    /// slab. Counts the free. The state of the block is 0, and the caller alone has it.
    fn put_small(&self, place: &BlockRef<'_>, address: Address) {
        let class = place.span.class();
        if let Some((index, heap)) = self.heaps.current_with_bin(class, &self.back.meta.runs) {
            let bin = heap.bin(class);
            let mut work = FollowUp::new();
            let is_owner = {
                let _section = self.heaps.enter(heap);
                let is_owner = place.span.owner.load(Ordering::Acquire) == thread_word(index);
                if is_owner {
                    if bin.is_full() {
                        self.heaps.widen(heap, class);
                    }
                    if bin.is_full() {
                        let limit = heap.limits(class).limit();
                        self.empty_bin(index, heap, class, (limit - limit / 4) as usize, &mut work);
                    }
                    // SAFETY: it is not full: a limit is at least 1.
                    unsafe { bin.push_at(bin.top(), place.entry(address)) };
                }
                is_owner
            };
            self.finish(work);
            if is_owner {
                return;
            }
        }
        self.put_remote(place, address, false);
    }

    /// Sends a block of a slab to the owner of the slab, or returns it to an unowned slab. Counts
    /// the free unless `is_counted`. The state of the block is 0, and the caller alone has it.
    pub(crate) fn put_remote(&self, place: &BlockRef<'_>, address: Address, is_counted: bool) {
        let (span, class) = (place.span, place.span.class());
        place.state.store(REMOTE, Ordering::Release);
        match self.heaps.current() {
            Some((index, heap)) if span.owner.load(Ordering::Acquire) == thread_word(index) => {
                if !is_counted {
                    self.heaps.count_free(class, &self.back.meta.runs);
                }
                self.collect_own(index, heap, class, address);
            }
            _ => self.add_remote(class, span.owner.load(Ordering::Acquire), address, is_counted),
        }
    }

    /// Puts a freed large block of another thread into the outgoing batch, and sends that if it
    /// is full.
    fn put_outgoing(&self, index: u32, heap: &Heap, class: usize, entry: Entry) {
        loop {
            let batch = {
                let _section = self.heaps.enter(heap);
                if self.heaps.add_outgoing(heap, (class, entry), || Some(())).is_some() {
                    return;
                }
                heap.outgoing.take()
            };
            let is_too_large = batch.as_ref().is_some_and(LargeBatch::is_empty);
            let empty = match batch {
                Some(batch) if !is_too_large => self.send_large_batch(batch),
                batch => batch,
            };
            if let Some(empty) = empty.or_else(|| self.transfer.empty_batch(&self.back.meta.runs)) {
                self.set_outgoing(heap, empty);
                if !is_too_large {
                    continue;
                }
            }
            // The block is larger than a batch may be, or there is no memory for a batch.
            return self.put_large(index, heap, class, entry);
        }
    }

    /// Sets an empty batch for the thread to fill, unless it has one.
    fn set_outgoing(&self, heap: &Heap, batch: LargeBatch) {
        let surplus = {
            let _section = self.heaps.enter(heap);
            match heap.outgoing.take() {
                // The thread called a provider meanwhile, which used this pool.
                Some(other) => {
                    heap.outgoing.set(Some(other));
                    Some(batch)
                }
                None => heap.outgoing.replace(Some(batch)),
            }
        };
        surplus.into_iter().for_each(|batch| self.transfer.recycle(batch));
    }

    /// Sends a batch to the transfer cache, or its blocks to the shared lists if too many batches
    /// wait; returns an empty batch, if there is one.
    pub(crate) fn send_large_batch(&self, batch: LargeBatch) -> Option<LargeBatch> {
        let bytes = batch.bytes();
        match self.transfer.put(batch, self.back.limits.bytes()) {
            Ok(empty) => {
                self.apply_policy(usize::try_from(bytes).unwrap_or(usize::MAX));
                empty
            }
            Err(mut batch) => {
                batch.drain(|class, entries| self.return_blocks(class, entries));
                Some(batch)
            }
        }
    }

    /// Puts a freed block into the bin of a large class. If the thread then caches too much, moves
    /// other blocks to the stock.
    fn put_large(&self, index: u32, heap: &Heap, class: usize, entry: Entry) {
        // SAFETY: it is a large block of this pool, and the caller's alone.
        let span = unsafe { Span::of_own_state(entry) };
        let (bin, size) = (heap.bin(class), self.heaps.classes.size(class));
        let max = self.heaps.max_large();
        if self.heaps.merges_next() {
            self.heaps.revoke_bias(span);
            self.heaps.count_free(class, &self.back.meta.runs);
            return self.merge(&[entry], true);
        }
        let mut target = max;
        loop {
            let (from, evicted) = {
                let _section = self.heaps.enter(heap);
                let bytes = heap.large_bytes() + size;
                if bytes <= target && !bin.is_full() {
                    heap.set_large_bytes(bytes);
                    if span.owner.load(Ordering::Relaxed) == UNOWNED {
                        heap.keep_large(index, span);
                    }
                    // SAFETY: it is not full.
                    return unsafe { bin.push_at(bin.top(), entry) };
                }
                // Makes room for several blocks at a time.
                target = max - max / 8;
                let in_turn = || heap.next_in_turn(self.heaps.classes.large()).unwrap_or(class);
                let from = if bin.is_full() { class } else { in_turn() };
                (from, heap.evict(from, heap.bin(from).len().div_ceil(4)))
            };
            if evicted.entries().is_empty() && heap.large_bytes() == 0 {
                // The block alone is larger than a thread may cache.
                self.heaps.revoke_bias(span);
                self.heaps.count_free(class, &self.back.meta.runs);
                return self.return_blocks(class, &[entry]);
            }
            self.return_blocks(from, evicted.entries());
        }
    }

    // Blocks that threads do not cache.

    /// Returns blocks of a large class to the stock and the extents. The caller is outside of its
    /// section, and holds no lock.
    pub(crate) fn return_blocks(&self, class: usize, entries: &[Entry]) {
        let rest = &entries[self.put_stock(class, entries)..];
        self.after_return();
        self.merge(rest, true);
        self.apply_policy(entries.len() * self.heaps.classes.size(class));
    }

    /// Runs the failpoint after blocks were returned to the shared lists.
    pub(crate) fn after_return(&self) {
        failpoint!("pool.blocks_given");
    }

    /// Puts blocks of a large class into stock, and returns how many of them fit.
    pub(crate) fn put_stock(&self, class: usize, entries: &[Entry]) -> usize {
        let size = self.heaps.classes.size(class);
        self.transfer.put_stock(class, size, entries, self.back.limits.bytes(), &self.back.meta.runs)
    }

    /// Merges large blocks with the free extents around them. With `release`, regions that are idle
    /// then may go to the provider.
    pub(crate) fn merge(&self, entries: &[Entry], release: bool) {
        for entry in entries {
            let bytes = self.back.merge(entry, release);
            if release {
                self.apply_policy(bytes);
            }
        }
    }

    /// Frees the extents of a chain of empty slabs.
    pub(crate) fn remove_slabs(&self, mut chain: u32) {
        let sizes = |class| (self.heaps.classes.size(class), self.slab_size(class));
        while let Some(bytes) = remove_slab(&self.back, &mut chain, sizes) {
            self.apply_policy(bytes);
        }
    }
}
