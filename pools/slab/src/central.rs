//! [`Central`]: the slabs of each small class, under one lock per class.
//!
//! The middle of the pool, together with `transfer`. A slab is an extent of equal blocks, with a
//! bitmap of free blocks. Only the owner thread takes blocks from it: so one processor writes the
//! states of neighbouring blocks, by plain stores. A thread that needs blocks becomes the owner of
//! an unowned slab. If a class has no free block, the thread creates a slab in a new extent. The
//! extents of surplus empty slabs are freed.
//!
//! **Owners change** under the lock of the class. A slab leaves its owner when it becomes empty, or
//! when it is abandoned: by the owner thread inside its section, or by a thread that has revoked
//! the section. So inside its section a thread knows the slabs that it owns, without the lock. When
//! a slab leaves, it is cleared from the lookaside cache of its owner, and no bin of the owner has
//! blocks of it.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use umf_core::{Address, Error, Result};
use umf_runtime::tracker;
use umf_sync::{Lock, LockGuard, failpoint};

use crate::classes::MAX_CLASSES;
use crate::extents::Range;
use crate::heaps::Heaps;
use crate::metadata::Metadata;
use crate::regions::Backend;
use crate::span::BlockRef;
use crate::types::{Cold, Entry, Span, UNOWNED};

/// The list that a slab is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListId(u32);

impl ListId {
    /// The slab is in no list.
    pub(crate) const NONE: Self = Self(0);
    /// Slabs whose blocks are all free.
    const EMPTY: Self = Self(1);
    /// Unowned slabs with some free blocks.
    pub(crate) const UNOWNED: Self = Self(2);

    /// Slabs of thread number `index` with some blocks in the bitmap.
    const fn partial(index: u32) -> Self {
        Self(2 * index + 3)
    }

    /// Slabs of thread number `index` without blocks in the bitmap.
    const fn full(index: u32) -> Self {
        Self(2 * index + 4)
    }

    /// Returns the list of slabs of an owner with some blocks in the bitmap.
    const fn of_owner(owner: u32) -> Self {
        match owner.checked_sub(1) {
            Some(index) => Self::partial(index),
            None => Self::UNOWNED,
        }
    }

    /// Returns the number of the owner, and whether it is the list of full slabs.
    const fn owner(self) -> Option<(u32, bool)> {
        match self.0.checked_sub(3) {
            Some(owned) => Some((owned / 2, owned % 2 == 1)),
            None => None,
        }
    }
}

/// The heads of the lists of unowned slabs of one class.
struct SlabLists {
    unowned: u32,
    empty: u32,
    /// The number of empty slabs.
    empties: u32,
    /// The minimum of `empties` since the last decay.
    min_empties: u32,
}

/// The slabs of all small classes.
pub(crate) struct Central([Lock<SlabLists>; MAX_CLASSES]);

impl Central {
    pub(crate) const fn new() -> Self {
        Self(
            [const { Lock::new(SlabLists { unowned: 0, empty: 0, empties: 0, min_empties: 0 }) };
                MAX_CLASSES],
        )
    }

    /// Locks the slabs of a class.
    pub(crate) fn lock<'a>(&'a self, meta: &'a Metadata, heaps: &'a Heaps, class: usize) -> Slabs<'a> {
        Slabs { lists: self.0[class].lock(), meta, heaps, class }
    }

    /// Locks the slabs of a class, unless they are locked.
    pub(crate) fn try_lock<'a>(
        &'a self,
        meta: &'a Metadata,
        heaps: &'a Heaps,
        class: usize,
    ) -> Option<Slabs<'a>> {
        Some(Slabs { lists: self.0[class].try_lock()?, meta, heaps, class })
    }
}

/// The slabs of one class, locked.
pub(crate) struct Slabs<'a> {
    lists: LockGuard<'a, SlabLists>,
    meta: &'a Metadata,
    heaps: &'a Heaps,
    class: usize,
}

impl<'a> Slabs<'a> {
    fn cold(&self, number: u32) -> Option<&'a mut Cold> {
        // SAFETY: this value holds the lock of the class. All spans in its lists, and those of the
        // blocks that callers pass, are slabs of the class. Each reference is used before the next
        // is created.
        self.meta.span(number).filter(|_| number != 0).map(|span| unsafe { span.cold() })
    }

    fn slab(&self, number: u32) -> Option<(&'a Span, &'a mut Cold)> {
        self.meta.span(number).zip(self.cold(number))
    }

    /// Returns the head of a list of a thread's slabs, which lies in its heap.
    fn owned_head(&self, list: ListId) -> Option<&'a AtomicU32> {
        let (index, is_full) = list.owner()?;
        let heap = self.heaps.get(index)?;
        Some(if is_full { heap.full_slabs(self.class) } else { heap.partial_slabs(self.class) })
    }

    fn head(&self, list: ListId) -> u32 {
        match list {
            ListId::NONE => 0,
            ListId::EMPTY => self.lists.empty,
            ListId::UNOWNED => self.lists.unowned,
            owned => self.owned_head(owned).map_or(0, |head| head.load(Ordering::Relaxed)),
        }
    }

    fn set_head(&mut self, list: ListId, number: u32) {
        match list {
            ListId::NONE => {}
            ListId::EMPTY => self.lists.empty = number,
            ListId::UNOWNED => self.lists.unowned = number,
            owned => {
                if let Some(head) = self.owned_head(owned) {
                    head.store(number, Ordering::Relaxed);
                }
            }
        }
    }

    fn push(&mut self, list: ListId, number: u32) {
        let next = self.head(list);
        if let Some(cold) = self.cold(number) {
            (cold.prev, cold.next, cold.list) = (0, next, list);
        }
        if let Some(next) = self.cold(next) {
            next.prev = number;
        }
        self.set_head(list, number);
        if list == ListId::EMPTY {
            self.lists.empties += 1;
        }
    }

    /// Removes a slab from its list, if it is in one.
    fn unlink(&mut self, number: u32) {
        let Some(cold) = self.cold(number).filter(|cold| cold.list != ListId::NONE) else { return };
        let (next, prev, list) = (cold.next, cold.prev, core::mem::replace(&mut cold.list, ListId::NONE));
        if let Some(next) = self.cold(next) {
            next.prev = prev;
        }
        match self.cold(prev) {
            Some(prev) => prev.next = next,
            None => self.set_head(list, next),
        }
        if list == ListId::EMPTY {
            self.lists.empties -= 1;
            self.lists.min_empties = self.lists.min_empties.min(self.lists.empties);
        }
    }

    /// Moves up to `want` blocks from slabs to `out`, and returns their number. `owner` becomes the
    /// owner of these slabs: the calling thread, which is inside its section, or [`UNOWNED`].
    ///
    /// # Safety
    /// `out` has room for `want` entries.
    pub(crate) unsafe fn take(&mut self, owner: u32, out: *mut Entry, want: usize) -> usize {
        let mut n = 0;
        while n < want {
            let number = self.pick(owner);
            let Some((span, cold)) = self.slab(number) else { break };
            let words = cold.total.div_ceil(64);
            while n < want && cold.free > 0 {
                // SAFETY: the bitmap of a slab has `words` words, and `hint` lies below.
                let word = unsafe { &mut *cold.bitmap.add(cold.hint as usize) };
                if *word == 0 {
                    cold.hint = (cold.hint + 1) % words;
                    continue;
                }
                let index = u64::from(cold.hint * 64 + word.trailing_zeros());
                *word &= *word - 1;
                cold.free -= 1;
                // SAFETY: set bits are blocks of the slab; `out` has room for `want` entries.
                unsafe { out.add(n).write(span.entry(index)) };
                n += 1;
            }
            if cold.free == 0 {
                self.unlink(number);
                if let Some(index) = owner.checked_sub(1) {
                    self.push(ListId::full(index), number);
                }
            }
        }
        n
    }

    /// Returns a slab with free blocks, and makes `owner` its owner; 0 if there is none.
    fn pick(&mut self, owner: u32) -> u32 {
        let owned = ListId::of_owner(owner);
        for list in [owned, ListId::UNOWNED, ListId::EMPTY] {
            let number = self.head(list);
            if number == 0 {
                continue;
            }
            if list != owned {
                self.unlink(number);
                self.push(owned, number);
                if let Some(span) = self.meta.span(number) {
                    span.owner.store(owner, Ordering::Release);
                }
            }
            return number;
        }
        0
    }

    /// Adds a slab whose blocks are all free.
    pub(crate) fn add(&mut self, number: u32) {
        self.push(ListId::EMPTY, number);
    }

    /// Returns blocks to their slabs, as [`Slabs::put_block`] does.
    pub(crate) fn put(&mut self, entries: &[Entry], owner: u32) {
        for entry in entries {
            if let Some(place) = self.meta.locate_start(Address::from_bits(entry.address)) {
                self.put_block(&place, owner);
            }
        }
    }

    /// Returns a block, which the caller alone has, to its slab. The slab is unowned, or `owner` is
    /// its owner: either the calling thread inside its section, or a thread whose section is
    /// revoked.
    pub(crate) fn put_block(&mut self, place: &BlockRef<'_>, owner: u32) {
        let Some((span, cold)) = self.slab(place.number) else { return };
        // SAFETY: the index is that of a block of the slab, whose bitmap has a bit for each.
        unsafe { *cold.bitmap.add((place.index / 64) as usize) |= 1 << (place.index % 64) };
        cold.free += 1;
        let (free, total) = (cold.free, cold.total);
        let now = span.owner.load(Ordering::Relaxed);
        debug_assert!(now == UNOWNED || now == owner, "the slab of a thread that may be inside");
        if free == total && (now == UNOWNED || now == owner) {
            self.disown(span);
            self.unlink(place.number);
            self.push(ListId::EMPTY, place.number);
        } else if free == 1 {
            cold.hint = (place.index / 64) as u32;
            self.unlink(place.number);
            self.push(ListId::of_owner(now), place.number);
        }
    }

    /// Makes the slab unowned. The conditions are those of [`Slabs::put_block`].
    fn disown(&self, span: &Span) {
        let owner = span.owner.load(Ordering::Relaxed);
        if let Some(heap) = owner.checked_sub(1).and_then(|index| self.heaps.get(index)) {
            heap.lookaside.forget(span);
            span.owner.store(UNOWNED, Ordering::Release);
        }
    }

    /// Abandons the slabs of thread number `index`: those with blocks in the bitmap, and with
    /// `full` the others too. No bin of the thread has blocks of the class. The conditions are
    /// those of [`Slabs::put_block`].
    pub(crate) fn abandon(&mut self, index: u32, full: bool) {
        self.abandon_list(ListId::partial(index));
        if full {
            self.abandon_list(ListId::full(index));
        }
    }

    fn abandon_list(&mut self, list: ListId) {
        loop {
            let number = self.head(list);
            let Some((span, cold)) = self.slab(number) else { return };
            let to = match cold.free {
                0 => ListId::NONE,
                free if free == cold.total => ListId::EMPTY,
                _ => ListId::UNOWNED,
            };
            self.disown(span);
            self.unlink(number);
            if to != ListId::NONE {
                self.push(to, number);
            }
        }
    }

    /// Unlinks the empty slabs beyond `capacity`, and adds them to a chain for [`remove_slab`].
    pub(crate) fn trim(&mut self, capacity: u32, chain: &mut u32) {
        while self.lists.empties > capacity && self.lists.empty != 0 {
            let number = self.lists.empty;
            self.unlink(number);
            if let Some(cold) = self.cold(number) {
                cold.next = core::mem::replace(chain, number);
            }
        }
    }

    /// Returns how many empty slabs were used since the last decay.
    pub(crate) fn used_empties(&self) -> u32 {
        self.lists.empties - self.lists.min_empties
    }

    /// Begins a new decay period.
    pub(crate) fn begin_period(&mut self) {
        self.lists.min_empties = self.lists.empties;
    }
}

/// Creates a slab of blocks of `block` bytes in an extent of `size` bytes. Returns its span.
pub(crate) fn make_slab(
    back: &Backend,
    class: usize,
    range: Range,
    (block, size): (usize, usize),
) -> Result<u32> {
    let meta = &back.meta;
    let total = size / block;
    let (state_run, states) = meta.states.allocate(total)?;
    let words = total.div_ceil(64);
    let bitmap = meta.runs.allocate(words * size_of::<u64>()).inspect_err(|_| meta.states.release(state_run));
    let (table_run, bitmap) = bitmap?;
    let release_runs = || {
        meta.states.release(state_run);
        meta.runs.release(table_run);
    };
    let (number, span) = meta.allocate_span().inspect_err(|_| release_runs())?;
    // SAFETY: both runs are this slab's, and long enough.
    unsafe {
        states.as_ptr().write_bytes(0, total);
        let bitmap = bitmap.cast::<u64>().as_ptr();
        for word in 0..words {
            let bits = (total - word * 64).min(64);
            bitmap.add(word).write(u64::MAX >> (64 - bits));
        }
    }
    let missing = Error::OutOfMemory { size, owner: "metadata", native: 0 };
    let published = back.resolve(range).ok_or(missing).and_then(|(base, region)| {
        // SAFETY: no other thread knows the number yet.
        unsafe {
            *span.cold() = Cold {
                free: total as u32,
                total: total as u32,
                unit: range.first,
                bitmap: bitmap.cast().as_ptr(),
                state_run: MaybeUninit::new(state_run),
                table_run: MaybeUninit::new(table_run),
                ..Cold::EMPTY
            };
        }
        let states: NonNull<AtomicU8> = states.cast();
        // SAFETY: `states` has `total` zeroed bytes in the arena.
        unsafe {
            span.publish_slab(class, range.region, base, total as u32, block as u64, states);
        }
        tracker::set_span(region, base, size, number).inspect_err(|_| {
            let _ = tracker::set_span(region, base, size, range.region);
            span.retract();
        })
    });
    if let Err(error) = published {
        meta.release_span(number);
        release_runs();
        return Err(error);
    }
    Ok(number)
}

/// Removes the first slab of a chain from [`Slabs::trim`], and frees its extent. Returns the freed
/// bytes; `None` at the end of the chain. `sizes_of` returns the bytes of a block and of a slab of
/// a class.
pub(crate) fn remove_slab(
    back: &Backend,
    chain: &mut u32,
    sizes_of: impl Fn(usize) -> (usize, usize),
) -> Option<usize> {
    let meta = &back.meta;
    let span = meta.span(*chain).filter(|_| *chain != 0)?;
    let (block, size) = sizes_of(span.class());
    // SAFETY: the slab is in no list but this chain, which is the caller's.
    let cold = unsafe { *span.cold() };
    let number = core::mem::replace(chain, cold.next);
    let range = Range { region: span.region(), first: cold.unit };
    if let Some((base, region)) = back.resolve(range) {
        // Cannot fail: the granules are the region's, and the slab's alone.
        let _ = tracker::set_span(region, base, size, range.region);
    }
    span.retract();
    // SAFETY: a slab has both runs.
    unsafe {
        meta.states.release(cold.state_run.assume_init());
        meta.runs.release(cold.table_run.assume_init());
    }
    meta.release_span(number);
    failpoint!("pool.slab_removed");
    back.trace.slab("removed", size, block);
    Some(back.free(range))
}
