//! [`Central`]: the slabs of each small class, under one lock per class.
//!
//! The middle of the pool, together with `transfer`. A slab is an extent of equal blocks with a bit
//! per free block. A slab with both free and live blocks is in the list of its owner thread, which
//! alone takes from it, so that one processor writes the states of neighbouring blocks. Or it is
//! unowned: then the next thread that needs blocks becomes its owner. Slabs are made out of extents
//! when a class has no free block, and are taken apart when they are empty.
//!
//! Freed blocks of other owners pass it by in the transfer cache, as long as threads take them
//! there.

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
use crate::span::{Cold, Entry, Span, thread_word};

/// The list that a slab is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListName(u32);

impl ListName {
    /// None.
    pub(crate) const NONE: Self = Self(0);
    /// Slabs whose blocks are all free.
    const EMPTY: Self = Self(1);
    /// Slabs with some blocks free that have no owner.
    pub(crate) const UNOWNED: Self = Self(2);

    /// Slabs with some blocks free that thread number `index` owns.
    const fn owned(index: u32) -> Self {
        Self(index + 3)
    }

    /// Returns the number of the owner.
    const fn owner(self) -> Option<u32> {
        self.0.checked_sub(3)
    }
}

/// The thread that takes blocks, and whether a slab that becomes its own is biased towards it.
#[derive(Clone, Copy)]
pub(crate) struct Taker {
    pub(crate) index: u32,
    pub(crate) is_biased: bool,
}

/// The heads of the lists of one class that belong to no thread.
struct Heads {
    unowned: u32,
    empty: u32,
    /// The number of empty slabs, and its minimum since the last decay.
    empties: u32,
    min_empties: u32,
}

/// The slabs of all small classes.
pub(crate) struct Central([Lock<Heads>; MAX_CLASSES]);

impl Central {
    pub(crate) const fn new() -> Self {
        Self([const { Lock::new(Heads { unowned: 0, empty: 0, empties: 0, min_empties: 0 }) }; MAX_CLASSES])
    }

    /// Locks the slabs of a class.
    pub(crate) fn lock<'a>(&'a self, meta: &'a Metadata, heaps: &'a Heaps, class: usize) -> Slabs<'a> {
        Slabs { heads: self.0[class].lock(), meta, heaps, class }
    }

    /// Locks the slabs of a class, unless they are locked.
    pub(crate) fn try_lock<'a>(
        &'a self,
        meta: &'a Metadata,
        heaps: &'a Heaps,
        class: usize,
    ) -> Option<Slabs<'a>> {
        Some(Slabs { heads: self.0[class].try_lock()?, meta, heaps, class })
    }
}

/// The slabs of one class, locked.
pub(crate) struct Slabs<'a> {
    heads: LockGuard<'a, Heads>,
    meta: &'a Metadata,
    heaps: &'a Heaps,
    class: usize,
}

impl<'a> Slabs<'a> {
    fn cold(&self, number: u32) -> Option<&'a mut Cold> {
        // SAFETY: this value is the lock of the class; the spans in its lists, and those of the
        // blocks that it is given, are slabs of the class. Each reference is used before the next
        // is made.
        self.meta.span(number).filter(|_| number != 0).map(|span| unsafe { span.cold() })
    }

    fn slab(&self, number: u32) -> Option<(&'a Span, &'a mut Cold)> {
        self.meta.span(number).zip(self.cold(number))
    }

    /// Returns the head of the list of a thread's slabs, which lies in its heap.
    fn owned_head(&self, index: u32) -> Option<&'a AtomicU32> {
        self.heaps.get(index).map(|heap| heap.owned_slabs(self.class))
    }

    fn head(&self, list: ListName) -> u32 {
        match list {
            ListName::NONE => 0,
            ListName::EMPTY => self.heads.empty,
            ListName::UNOWNED => self.heads.unowned,
            ListName(owned) => self.owned_head(owned - 3).map_or(0, |head| head.load(Ordering::Relaxed)),
        }
    }

    fn set_head(&mut self, list: ListName, number: u32) {
        match list {
            ListName::NONE => {}
            ListName::EMPTY => self.heads.empty = number,
            ListName::UNOWNED => self.heads.unowned = number,
            ListName(owned) => {
                if let Some(head) = self.owned_head(owned - 3) {
                    head.store(number, Ordering::Relaxed);
                }
            }
        }
    }

    fn push(&mut self, list: ListName, number: u32) {
        let next = self.head(list);
        if let Some(cold) = self.cold(number) {
            (cold.prev, cold.next, cold.list) = (0, next, list);
        }
        if let Some(next) = self.cold(next) {
            next.prev = number;
        }
        self.set_head(list, number);
        if list == ListName::EMPTY {
            self.heads.empties += 1;
        }
    }

    fn unlink(&mut self, number: u32) {
        let Some(cold) = self.cold(number) else { return };
        let (next, prev, list) = (cold.next, cold.prev, core::mem::replace(&mut cold.list, ListName::NONE));
        if let Some(next) = self.cold(next) {
            next.prev = prev;
        }
        match self.cold(prev) {
            Some(prev) => prev.next = next,
            None => self.set_head(list, next),
        }
        if list == ListName::EMPTY {
            self.heads.empties -= 1;
            self.heads.min_empties = self.heads.min_empties.min(self.heads.empties);
        }
    }

    /// Moves up to `want` blocks from slabs to `out`, and returns how many.
    ///
    /// # Safety
    /// `out` has room for `want` entries.
    pub(crate) unsafe fn take(&mut self, taker: Option<Taker>, out: *mut Entry, want: usize) -> usize {
        let owned = taker.map_or(ListName::UNOWNED, |taker| ListName::owned(taker.index));
        let mut n = 0;
        while n < want {
            let number = self.pick(taker, owned);
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
            }
        }
        n
    }

    /// Returns a slab with free blocks, which is in the taker's list then; 0 if there is none.
    fn pick(&mut self, taker: Option<Taker>, owned: ListName) -> u32 {
        for list in [owned, ListName::UNOWNED, ListName::EMPTY] {
            let number = self.head(list);
            if number == 0 {
                continue;
            }
            if list != owned {
                self.unlink(number);
                self.push(owned, number);
                if let Some((span, cold)) = self.slab(number) {
                    cold.owner_list = owned;
                    span.owner.store(taker.map_or(0, |taker| thread_word(taker.index)), Ordering::Relaxed);
                }
            }
            if list == ListName::EMPTY
                && let Some((span, taker)) = self.meta.span(number).zip(taker)
                && taker.is_biased
            {
                // No block of it is live, so no free is under way that would have to be waited for.
                span.bias.store(thread_word(taker.index), Ordering::Relaxed);
            }
            return number;
        }
        0
    }

    /// Adds a slab whose blocks are all free.
    pub(crate) fn add(&mut self, number: u32) {
        self.push(ListName::EMPTY, number);
    }

    /// Puts blocks back into their slabs.
    pub(crate) fn put(&mut self, entries: &[Entry]) {
        for entry in entries {
            let address = Address::from_bits(entry.address);
            let Some(place) = self.meta.locate_start(address) else { continue };
            let Some((span, cold)) = self.slab(place.number) else { continue };
            // SAFETY: the index is that of a block of the slab, whose bitmap has a bit for each.
            unsafe { *cold.bitmap.add((place.index / 64) as usize) |= 1 << (place.index % 64) };
            cold.free += 1;
            let owner = cold.owner_list.owner().and_then(|index| self.heaps.get(index));
            if owner.is_some_and(|heap| heap.ended.load(Ordering::Relaxed)) {
                cold.owner_list = ListName::UNOWNED;
            }
            let (free, total, owner_list) = (cold.free, cold.total, cold.owner_list);
            if free == total {
                // The thread that the slab is biased towards is outside of its section: the last of
                // its blocks came from that thread itself, or while its section was revoked.
                self.heaps.unbias(span);
                self.unlink(place.number);
                self.push(ListName::EMPTY, place.number);
            } else if free == 1 {
                cold.hint = (place.index / 64) as u32;
                self.push(owner_list, place.number);
            }
        }
    }

    /// Takes the slabs of a thread from it, for other threads to use.
    pub(crate) fn abandon(&mut self, index: u32) {
        loop {
            let number = self.head(ListName::owned(index));
            if number == 0 {
                return;
            }
            self.unlink(number);
            self.push(ListName::UNOWNED, number);
            if let Some((span, cold)) = self.slab(number) {
                cold.owner_list = ListName::UNOWNED;
                span.owner.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Unlinks the empty slabs beyond `capacity`, and returns the first of their chain for
    /// [`remove_slab`].
    pub(crate) fn trim(&mut self, capacity: u32) -> u32 {
        let mut chain = 0;
        while self.heads.empties > capacity && self.heads.empty != 0 {
            let number = self.heads.empty;
            self.unlink(number);
            if let Some(cold) = self.cold(number) {
                cold.next = core::mem::replace(&mut chain, number);
            }
        }
        chain
    }

    /// Returns how many empty slabs were used since the last decay.
    pub(crate) fn used_empties(&self) -> u32 {
        self.heads.empties - self.heads.min_empties
    }

    /// Begins a new decay period.
    pub(crate) fn begin_period(&mut self) {
        self.heads.min_empties = self.heads.empties;
    }
}

/// Makes a slab of blocks of `block` bytes out of an extent of `size` bytes, and returns its span.
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

/// Takes the first slab of a chain from [`Slabs::trim`] apart, and returns the bytes that became
/// free; `None` at the end of the chain. The slab has blocks of `block` bytes, and takes `size`
/// bytes.
pub(crate) fn remove_slab(back: &Backend, chain: &mut u32, (block, size): (usize, usize)) -> Option<usize> {
    let meta = &back.meta;
    let span = meta.span(*chain).filter(|_| *chain != 0)?;
    // SAFETY: the slab is in no list any more but this chain, which is the caller's.
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
