//! [`Span`]: what a number in the tracker's map stands for.
//!
//! Each granule of a pool's memory carries the number of a span. Slabs, large blocks and blocks that came straight
//! from the provider are read in the same way: blocks of equal size from a base, with a state byte each. A slab
//! has its granules for itself; a large block is named by the granule in which it begins (there is room for one
//! beginning in each, since it is no smaller). All other granules carry the span of their region, in which nothing
//! is freed.

mod divisor;
#[cfg(test)]
mod model;
mod record;

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use umf_core::{Address, Region};
use umf_runtime::tracker::RegionNumber;
use umf_sync::chunks::Zeroed;

use crate::arena::Run;
use crate::central::ListName;
use crate::reach::SHARED_LIFE;
use crate::state::Entry;
use crate::thread_cache::BinPlace;

pub(crate) use divisor::Divisor;
use record::Record;

/// What kind of span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not in use.
    Free,
    /// Equal blocks of one class.
    Slab,
    /// One block of a large class.
    Block,
    /// One block that is a region.
    Direct,
    /// A region, cut up by the large allocator.
    Region,
}

const SLAB: u32 = 1;
const BLOCK: u32 = 2;
const DIRECT: u32 = 3;
const REGION: u32 = 4;
const KIND_SHIFT: u32 = 16;
const ENTERED: u32 = (REGION << KIND_SHIFT) | 1;

/// A span's record. The first line is what `free(address)` reads; the second belongs to whoever holds the
/// lock that guards the span (the class's for slabs, the large allocator's for regions), or has the block.
#[repr(C, align(64))]
pub(crate) struct Span {
    base: AtomicU64,
    /// The size of a block, as what finds its number: see [`Divisor`]. Region: how many bytes the provider gave.
    inverse: AtomicU64,
    states: AtomicPtr<AtomicU8>,
    /// How many blocks; 0 while the record is not in use, and for a region.
    count: AtomicU64,
    shift: AtomicU8,
    /// The state of the one block of a [`Kind::Block`] or [`Kind::Direct`] span.
    own_state: AtomicU8,
    /// Kind in the upper half, class in the lower (region: whether its units are among those that the allocator cuts).
    kind_class: AtomicU32,
    /// Advances when the record is given back.
    generation: AtomicU32,
    /// Whose frees need no atomic exchange: see `reach`.
    pub(crate) owner: AtomicU32,
    /// The thread in whose bins its blocks are at home, as `owner` says it: the one that took the slab or the large block last. 0 for
    /// nobody. (A hint: who reads it late puts a block where it is found a little later.)
    pub(crate) home: AtomicU32,
    /// Where the bin of the class is in a thread's cache: a [`BinPlace`].
    bin: AtomicU16,
    /// Size of a block. Region: its bytes.
    block: AtomicU64,
    cold: UnsafeCell<Cold>,
    /// The span of the region around a slab or large block. Region: what the provider gave before the base, in bytes.
    region: AtomicU32,
}

/// The guarded part of a span.
#[derive(Clone, Copy)]
pub(crate) struct Cold {
    /// Neighbours in the list that the span is in, 0 for none.
    pub(crate) next: u32,
    pub(crate) prev: u32,
    /// Slab: the list that it is in.
    pub(crate) list: ListName,
    /// Slab: the list that it is in when it has blocks free and live.
    pub(crate) home: ListName,
    /// Slab: blocks in its bitmap, blocks in all, and where to begin looking.
    pub(crate) free: u32,
    pub(crate) total: u32,
    pub(crate) hint: u32,
    /// Slab, large block: its first unit in the region. Region: its units in all.
    pub(crate) unit: u32,
    /// Slab: its bitmap (1: free). Otherwise null.
    pub(crate) bitmap: *mut u64,
    /// Slab: the run that holds the states. Slab, region: the run with the bitmap or the units.
    pub(crate) state_run: MaybeUninit<Run>,
    pub(crate) table_run: MaybeUninit<Run>,
    /// Region and direct: what the provider gave.
    pub(crate) upstream: MaybeUninit<(Region, RegionNumber)>,
}

// SAFETY: the hot part is atomics; the cold part is reached through `cold`, whose contract is a lock.
unsafe impl Sync for Span {}
// SAFETY: sending a span moves plain words; what they point to belongs to the pool, which goes along.
unsafe impl Send for Span {}
// SAFETY: zeros are valid for atomics, integers, null pointers and `MaybeUninit`; a zeroed span is a free one.
unsafe impl Zeroed for Span {}

/// A block of a span, found from an address.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) span: &'a Span,
    pub(crate) number: u32,
    pub(crate) index: u64,
    /// The state of the block.
    pub(crate) state: &'a AtomicU8,
    generation: u32,
}

/// What a record says at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) kind: Kind,
    pub(crate) base: Address,
    /// Bytes from the base that blocks cover; 0 for a region.
    pub(crate) bytes: u64,
    /// Size of a block; region: its bytes.
    pub(crate) block: u64,
    /// The span of the region around it; region: what the provider gave before the base.
    pub(crate) region: u32,
    /// Region: what the provider gave in all.
    pub(crate) whole: u64,
    pub(crate) class: usize,
}

impl Span {
    /// Fills the record of a number that was just allocated, with a slab in the span `region`.
    ///
    /// # Safety
    /// `states` has a zeroed byte for each of the `count` blocks, in metadata that lives as long as the
    /// table that this record is in.
    pub(crate) unsafe fn publish_slab(
        &self,
        class: usize,
        region: u32,
        base: Address,
        count: u32,
        block: u64,
        states: NonNull<AtomicU8>,
    ) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.publish((SLAB, class), region, base, (u64::from(count), block, Divisor::of(block)), states)
        };
    }

    /// The same with a large block, free, in the span `region`.
    pub(crate) fn publish_block(&self, class: usize, region: u32, base: Address, bytes: u64) {
        self.own_state.store(0, Ordering::Relaxed);
        let state = NonNull::from(&self.own_state);
        // SAFETY: the one state byte is a field of the record, which is never unmapped while the table lives.
        unsafe { self.publish((BLOCK, class), region, base, (1, bytes, Divisor::ONE_BLOCK), state) };
    }

    /// The same with a block that is a region, live.
    pub(crate) fn publish_direct(&self, base: Address, bytes: u64) {
        self.own_state.store(crate::state::LIVE, Ordering::Relaxed);
        let state = NonNull::from(&self.own_state);
        // SAFETY: as above.
        unsafe { self.publish((DIRECT, 0), 0, base, (1, bytes, Divisor::ONE_BLOCK), state) };
    }

    /// The same with a region that is cut up: `bytes` from `base`, of `whole` that the provider gave, `front` of them before.
    pub(crate) fn publish_region(&self, base: Address, bytes: u64, (front, whole): (u32, u64)) {
        let state = NonNull::from(&self.own_state);
        // SAFETY: a region has no blocks: nothing is located in it.
        unsafe {
            // The divisor's place, which a region without blocks has no use for, holds the whole.
            let whole = Divisor { inverse: whole, shift: 0 };
            self.publish((REGION, 0), front, base, (0, bytes, whole), state);
        }
    }

    /// # Safety
    /// As [`Span::publish_slab`].
    unsafe fn publish(
        &self,
        (kind, class): (u32, usize),
        region: u32,
        base: Address,
        (count, block, divisor): (u64, u64, Divisor),
        states: NonNull<AtomicU8>,
    ) {
        record::publish(self, count, || {
            self.base.store(base.to_bits(), Ordering::Relaxed);
            self.block.store(block, Ordering::Relaxed);
            self.inverse.store(divisor.inverse, Ordering::Relaxed);
            self.shift.store(divisor.shift, Ordering::Relaxed);
            self.states.store(states.as_ptr(), Ordering::Relaxed);
            self.owner.store(SHARED_LIFE, Ordering::Relaxed);
            self.home.store(0, Ordering::Relaxed);
            self.region.store(region, Ordering::Relaxed);
            self.bin.store(BinPlace::of(class).offset(), Ordering::Relaxed);
            self.kind_class.store((kind << KIND_SHIFT) | class as u32, Ordering::Relaxed);
        });
    }

    /// Marks the record as not in use, before its number is given back.
    pub(crate) fn retract(&self) {
        record::retract(self, || self.kind_class.store(0, Ordering::Relaxed));
    }

    /// The place of `address` in this span, whose number is given; `None` if it is not in it.
    pub(crate) fn locate(&self, number: u32, address: Address) -> Option<Place<'_>> {
        let block = || self.block.load(Ordering::Relaxed);
        self.place(number, address, block, |offset, block| (offset.checked_div(block), offset % block.max(1)))
    }

    /// The place of the block that begins at `address` in this span, whose number is given; `None` if none does.
    #[inline]
    pub(crate) fn locate_start(&self, number: u32, address: Address) -> Option<Place<'_>> {
        let divisor = || Divisor {
            inverse: self.inverse.load(Ordering::Relaxed),
            shift: self.shift.load(Ordering::Relaxed),
        };
        self.place(number, address, divisor, |offset, divisor| (Some(divisor.number(offset)), 0))
    }

    /// What `read` reads and `find` makes a number and a rest of is one moment's.
    #[inline(always)]
    fn place<T>(
        &self,
        number: u32,
        address: Address,
        read: impl FnOnce() -> T,
        find: impl FnOnce(u64, T) -> (Option<u64>, u64),
    ) -> Option<Place<'_>> {
        let (generation, count, (base, words, states)) = record::read(self, || {
            (self.base.load(Ordering::Relaxed), read(), self.states.load(Ordering::Relaxed))
        })?;
        let offset = address.to_bits().wrapping_sub(base);
        let (index, _) = find(offset, words);
        let index = index.filter(|&index| index < count)?;
        // SAFETY: the words belong together, since the generation did not advance; and `publish` promised a state for
        // each block. (If the span goes from now on, the byte remains a state: see `SlabPool::states`.)
        let state = unsafe { &*states.add(index as usize) };
        Some(Place { span: self, number, index, state, generation })
    }

    /// What the record says, and what `read` makes of the states of its blocks; `None` if it changed meanwhile.
    pub(crate) fn look<T>(&self, read: impl FnOnce(&mut dyn Iterator<Item = u8>) -> T) -> Option<(Look, T)> {
        let (generation, count, words) = record::read(self, || {
            let (kind, base, block) = (self.kind(), self.base(), self.block());
            let (region, class) = (self.region.load(Ordering::Relaxed), self.class());
            let whole = self.inverse.load(Ordering::Relaxed);
            (kind, base, block, region, class, whole, self.states.load(Ordering::Relaxed))
        })?;
        let (kind, base, block, region, class, whole, states) = words;
        let is_same = || {
            fence(Ordering::Acquire);
            self.generation.load(Ordering::Relaxed) == generation
        };
        let bytes = count * block;
        // SAFETY: the words belong together, since the generation did not advance: there is a state for each block. (If the
        // span goes from now on, the byte remains a state: see `SlabPool::states`.)
        let state = |index: u64| unsafe { &*states.add(index as usize) }.load(Ordering::Relaxed);
        let read = read(&mut (0..count).map(state));
        is_same().then_some((Look { kind, base, bytes, block, region, whole, class }, read))
    }

    /// Where the bin of the class is in a thread's cache.
    ///
    /// # Safety
    /// The record does not change meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn bin(&self) -> BinPlace {
        // SAFETY: nobody writes it meanwhile, says the caller; `publish` wrote a place, or it is 0 still.
        unsafe { BinPlace::again(*self.bin.as_ptr()) }
    }

    /// The state of the block that begins at `address`.
    ///
    /// # Safety
    /// The record does not change meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn state_of(&self, address: Address) -> Option<NonNull<AtomicU8>> {
        // SAFETY: passed on to the caller.
        let (base, divisor, count, _) = unsafe { self.parts() };
        let index = divisor.number(address.to_bits().wrapping_sub(base));
        if index >= count {
            return None;
        }
        // SAFETY: the record is in use, and has a block with this index.
        Some(unsafe { self.state(index) })
    }

    /// Base, size of a block, how many there are and where their states are.
    ///
    /// # Safety
    /// The record does not change meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn parts(&self) -> (u64, Divisor, u64, *mut AtomicU8) {
        // SAFETY: nobody writes these words meanwhile, says the caller. (What is not read as an atomic needs no instruction of its
        // own.)
        unsafe {
            let divisor = Divisor { inverse: *self.inverse.as_ptr(), shift: *self.shift.as_ptr() };
            (*self.base.as_ptr(), divisor, *self.count.as_ptr(), *self.states.as_ptr())
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.kind_class.load(Ordering::Relaxed) >> KIND_SHIFT {
            SLAB => Kind::Slab,
            BLOCK => Kind::Block,
            DIRECT => Kind::Direct,
            REGION => Kind::Region,
            _ => Kind::Free,
        }
    }

    /// Whether this is one block that is a region.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.kind_class.load(Ordering::Relaxed) >> KIND_SHIFT == DIRECT
    }

    /// Whether this is a region whose units are among those that the allocator cuts. Under its lock this is final: a number may have
    /// become something else, or another region, since it was looked up.
    pub(crate) fn is_entered(&self) -> bool {
        self.kind_class.load(Ordering::Relaxed) == ENTERED
    }

    /// Says so of a region, under the allocator's lock.
    pub(crate) fn set_entered(&self, entered: bool) {
        let kind_class = if entered { ENTERED } else { REGION << KIND_SHIFT };
        self.kind_class.store(kind_class, Ordering::Relaxed);
    }

    /// The class of the blocks of a slab, or of a large block.
    #[inline]
    pub(crate) fn class(&self) -> usize {
        (self.kind_class.load(Ordering::Relaxed) & 0xffff) as usize
    }

    /// The span of the region around a slab or large block; 0 for others.
    pub(crate) fn region(&self) -> u32 {
        self.region.load(Ordering::Relaxed)
    }

    pub(crate) fn base(&self) -> Address {
        Address::from_bits(self.base.load(Ordering::Relaxed))
    }

    #[inline]
    /// Bytes from the base that blocks cover; 0 for a region, and while the record is not in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.load(Ordering::Relaxed) * self.block()
    }

    pub(crate) fn block(&self) -> u64 {
        self.block.load(Ordering::Relaxed)
    }

    /// Where its states lie: nowhere that another span in use has any.
    pub(crate) fn states(&self) -> *const AtomicU8 {
        self.states.load(Ordering::Relaxed)
    }

    /// The state of block `index`.
    ///
    /// # Safety
    /// The record is in use and has more than `index` blocks.
    #[inline]
    pub(crate) unsafe fn state(&self, index: u64) -> NonNull<AtomicU8> {
        let first = self.states.load(Ordering::Relaxed);
        // SAFETY: `publish` promised a byte for each block, none of them at null.
        unsafe { NonNull::new_unchecked(first.add(index as usize)) }
    }

    /// The span of a large block.
    ///
    /// # Safety
    /// The entry is that of a large block of a pool that is alive for as long as the reference is used.
    pub(crate) unsafe fn of_own_state<'a>(entry: Entry) -> &'a Self {
        // SAFETY: `publish_block` made the state a field of the span; records are never unmapped while the pool lives.
        unsafe { entry.state().byte_sub(core::mem::offset_of!(Self, own_state)).cast().as_ref() }
    }

    /// Block `index` as a cache entry.
    ///
    /// # Safety
    /// As [`Span::state`].
    pub(crate) unsafe fn entry(&self, index: u64) -> Entry {
        let address = self.base.load(Ordering::Relaxed) + index * self.block.load(Ordering::Relaxed);
        // SAFETY: passed on to the caller.
        Entry::new(address, unsafe { self.state(index) })
    }

    /// The guarded part, for reading what is written before the span is published and not while it is used.
    ///
    /// # Safety
    /// The span is in use as long as the reference is.
    pub(crate) unsafe fn settled(&self) -> &Cold {
        // SAFETY: passed on to the caller; a region's or slab's place and tables do not change while it is used.
        unsafe { &*self.cold.get() }
    }

    /// The guarded part.
    ///
    /// # Safety
    /// The caller holds the lock that guards this span, or has taken it out of everyone else's reach, and uses
    /// the pointer no longer than that.
    #[expect(clippy::mut_from_ref, reason = "the lock, not the borrow, makes it exclusive")]
    pub(crate) unsafe fn cold(&self) -> &mut Cold {
        // SAFETY: passed on to the caller.
        unsafe { &mut *self.cold.get() }
    }
}

impl Record for Span {
    #[inline(always)]
    fn generation(&self, order: Ordering) -> u32 {
        self.generation.load(order)
    }

    fn advance(&self, order: Ordering) {
        self.generation.fetch_add(1, order);
    }

    #[inline(always)]
    fn count(&self, order: Ordering) -> u64 {
        self.count.load(order)
    }

    fn set_count(&self, count: u64, order: Ordering) {
        self.count.store(count, order);
    }

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }
}

impl Place<'_> {
    /// Whether the span is still what [`Span::locate`] saw.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        record::is_current(self.span, self.generation)
    }

    /// Where the block begins.
    pub(crate) fn start(&self) -> Address {
        Address::from_bits(self.span.base().to_bits() + self.index * self.span.block())
    }
}

impl Cold {
    pub(crate) const EMPTY: Self = Self {
        next: 0,
        prev: 0,
        list: ListName::NONE,
        home: ListName::HOMELESS,
        free: 0,
        total: 0,
        hint: 0,
        unit: 0,
        bitmap: ptr::null_mut(),
        state_run: MaybeUninit::uninit(),
        table_run: MaybeUninit::uninit(),
        upstream: MaybeUninit::uninit(),
    };
}
