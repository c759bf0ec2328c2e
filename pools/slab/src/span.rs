//! The record of a [`Span`]: from an address to the state byte of a block.
//!
//! Each granule of a pool's memory has the number of a span in the tracker's map. Slabs, large
//! blocks and blocks that are regions have records of one form: blocks of equal size from a base,
//! with a state byte each. The granules of a slab are its own. The granule in which a large block
//! begins has the span of the block; no two large blocks begin in one granule, since each is at
//! least a granule long. All other granules have the span of their region, which has no blocks.
//!
//! [`Span::owner`] says which thread may clear the live bit of a block without an atomic exchange:
//! see `state`.
//!
//! **Records change while threads read them**, since a thread may free an address whose span was
//! removed. So a record has a generation, as a sequence lock has: [`publish`] and [`retract`] write
//! it, [`read`] and [`is_current`] compare it.

#[cfg(test)]
mod model;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering, fence};

use umf_core::Address;

use crate::classes::Divisor;
use crate::types::{BinOffset, Cold, Entry, Kind, LIVE, Span, UNOWNED};

const SLAB: u32 = 1;
const BLOCK: u32 = 2;
const DIRECT: u32 = 3;
const REGION: u32 = 4;
const KIND_SHIFT: u32 = 16;
const ENTERED: u32 = (REGION << KIND_SHIFT) | 1;

/// A block of a span, found from an address.
#[derive(Clone, Copy)]
pub(crate) struct BlockRef<'a> {
    pub(crate) span: &'a Span,
    pub(crate) number: u32,
    pub(crate) index: u64,
    /// The state of the block.
    pub(crate) state: &'a AtomicU8,
    generation: u32,
}

impl BlockRef<'_> {
    /// Returns whether the span is unchanged since [`Span::locate`] read it.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        is_current(self.span, self.generation)
    }

    /// Returns the address of the block.
    pub(crate) fn start(&self) -> Address {
        Address::from_bits(self.span.base().to_bits() + self.index * self.span.block())
    }

    /// Returns the class of the block; `None` for a block that is a region.
    pub(crate) fn class(&self) -> Option<usize> {
        (!self.span.is_direct()).then(|| self.span.class())
    }

    /// Returns the block, which begins at `address`, as an entry.
    #[inline(always)]
    pub(crate) fn entry(&self, address: Address) -> Entry {
        Entry::new(address.to_bits(), NonNull::from(self.state))
    }
}

/// A consistent copy of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) kind: Kind,
    pub(crate) base: Address,
    /// Bytes from the base that blocks cover; 0 for a region.
    pub(crate) bytes: u64,
    /// Size of a block; region: its bytes.
    pub(crate) block: u64,
    /// The span of the region around it; region: the bytes of the provider's region before the
    /// base.
    pub(crate) region: u32,
    /// Region: the bytes of the provider's region.
    pub(crate) whole: u64,
    pub(crate) class: usize,
}

impl Span {
    /// Fills the record of a number that was just allocated, with a slab in the span `region`.
    ///
    /// # Safety
    /// `states` has a zeroed byte for each of the `count` blocks, in metadata that lives as long as
    /// the table that this record is in.
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

    /// Fills the record with a free large block in the span `region`.
    pub(crate) fn publish_block(&self, class: usize, region: u32, base: Address, bytes: u64) {
        self.own_state.store(0, Ordering::Relaxed);
        let state = NonNull::from(&self.own_state);
        // SAFETY: the one state byte is a field of the record, which is not unmapped while the
        // table lives.
        unsafe { self.publish((BLOCK, class), region, base, (1, bytes, Divisor::ONE_BLOCK), state) };
    }

    /// Fills the record with a live block that is a region.
    pub(crate) fn publish_direct(&self, base: Address, bytes: u64) {
        self.own_state.store(LIVE, Ordering::Relaxed);
        let state = NonNull::from(&self.own_state);
        // SAFETY: as in `publish_block`.
        unsafe { self.publish((DIRECT, 0), 0, base, (1, bytes, Divisor::ONE_BLOCK), state) };
    }

    /// Fills the record with a region that is divided into extents: `bytes` from `base`. The
    /// provider's region has `whole` bytes, `front` of them before the base.
    pub(crate) fn publish_region(&self, base: Address, bytes: u64, (front, whole): (u32, u64)) {
        let state = NonNull::from(&self.own_state);
        // SAFETY: a region has no blocks, so no block is located in it.
        unsafe {
            // A region without blocks has no divisor; its place holds the whole.
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
        publish(self, count, || {
            self.base.store(base.to_bits(), Ordering::Relaxed);
            self.block.store(block, Ordering::Relaxed);
            self.inverse.store(divisor.inverse, Ordering::Relaxed);
            self.shift.store(divisor.shift, Ordering::Relaxed);
            self.states.store(states.as_ptr(), Ordering::Relaxed);
            self.owner.store(UNOWNED, Ordering::Relaxed);
            self.last_user.store(0, Ordering::Relaxed);
            self.region.store(region, Ordering::Relaxed);
            self.bin.store(BinOffset::of(class).offset(), Ordering::Relaxed);
            self.kind_class.store((kind << KIND_SHIFT) | class as u32, Ordering::Relaxed);
        });
    }

    /// Marks the record as not in use, before its number is released.
    pub(crate) fn retract(&self) {
        retract(self, || self.kind_class.store(0, Ordering::Relaxed));
    }

    /// Returns the block of this span around `address`; `None` if the span does not hold the
    /// address.
    pub(crate) fn locate(&self, number: u32, address: Address) -> Option<BlockRef<'_>> {
        let block = || self.block.load(Ordering::Relaxed);
        self.place(number, address, block, |offset, block| offset.checked_div(block))
    }

    /// Returns the block of this span that begins at `address`; `None` if none does.
    #[inline]
    pub(crate) fn locate_start(&self, number: u32, address: Address) -> Option<BlockRef<'_>> {
        let divisor = || Divisor {
            inverse: self.inverse.load(Ordering::Relaxed),
            shift: self.shift.load(Ordering::Relaxed),
        };
        self.place(number, address, divisor, |offset, divisor| Some(divisor.number(offset)))
    }

    /// Returns the block whose number `find` computes from the offset of `address` and from the
    /// words that `read_words` reads.
    #[inline(always)]
    fn place<T>(
        &self,
        number: u32,
        address: Address,
        read_words: impl FnOnce() -> T,
        find: impl FnOnce(u64, T) -> Option<u64>,
    ) -> Option<BlockRef<'_>> {
        let (generation, count, (base, words, states)) = read(self, || {
            (self.base.load(Ordering::Relaxed), read_words(), self.states.load(Ordering::Relaxed))
        })?;
        let offset = address.to_bits().wrapping_sub(base);
        let index = find(offset, words).filter(|&index| index < count)?;
        // SAFETY: the words belong together, since the generation did not advance; and `publish`
        // promised a state for each block. If the span is retracted from now on, the byte remains a
        // state: see `Metadata::states`.
        let state = unsafe { &*states.add(index as usize) };
        Some(BlockRef { span: self, number, index, state, generation })
    }

    /// Returns a copy of the record, and the result of `read_states` for the states of its blocks.
    /// Returns `None` if the record changed meanwhile.
    pub(crate) fn snapshot<T>(
        &self,
        read_states: impl FnOnce(&mut dyn Iterator<Item = u8>) -> T,
    ) -> Option<(Snapshot, T)> {
        let (generation, count, words) = read(self, || {
            let (kind, base, block) = (self.kind(), self.base(), self.block());
            let (region, class) = (self.region.load(Ordering::Relaxed), self.class());
            let whole = self.inverse.load(Ordering::Relaxed);
            (kind, base, block, region, class, whole, self.states.load(Ordering::Relaxed))
        })?;
        let (kind, base, block, region, class, whole, states) = words;
        let bytes = count * block;
        // SAFETY: as in `place`.
        let state = |index: u64| unsafe { &*states.add(index as usize) }.load(Ordering::Relaxed);
        let result = read_states(&mut (0..count).map(state));
        fence(Ordering::Acquire);
        let is_same = self.generation.load(Ordering::Relaxed) == generation;
        is_same.then_some((Snapshot { kind, base, bytes, block, region, whole, class }, result))
    }

    /// Returns the offset of the bin of the class in a heap.
    ///
    /// # Safety
    /// The record does not change meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn bin(&self) -> BinOffset {
        // SAFETY: no thread writes the word meanwhile, as the caller says. It is an offset that
        // `publish` wrote, or 0.
        unsafe { BinOffset::from_bytes(*self.bin.as_ptr()) }
    }

    /// Returns the state of the block that begins at `address`.
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

    /// Returns base, divisor, number of blocks, and the pointer to their states.
    ///
    /// # Safety
    /// The record does not change meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn parts(&self) -> (u64, Divisor, u64, *mut AtomicU8) {
        // SAFETY: no thread writes these words meanwhile, as the caller says. The compiler can fold
        // a plain read into another instruction, but not an atomic one.
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

    /// Returns whether this is a slab.
    #[inline]
    pub(crate) fn is_slab(&self) -> bool {
        self.kind_class.load(Ordering::Relaxed) >> KIND_SHIFT == SLAB
    }

    /// Returns whether this is one block that is a region.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.kind_class.load(Ordering::Relaxed) >> KIND_SHIFT == DIRECT
    }

    /// Returns whether this is a region whose units are among the extents. The lock of the extents
    /// guards this. A number that was read without the lock may name another region by now.
    pub(crate) fn is_entered(&self) -> bool {
        self.kind_class.load(Ordering::Relaxed) == ENTERED
    }

    /// Sets [`Span::is_entered`] of a region, under the lock of the extents.
    pub(crate) fn set_entered(&self, entered: bool) {
        let kind_class = if entered { ENTERED } else { REGION << KIND_SHIFT };
        self.kind_class.store(kind_class, Ordering::Relaxed);
    }

    /// Returns the class of the blocks of a slab, or of a large block.
    #[inline]
    pub(crate) fn class(&self) -> usize {
        (self.kind_class.load(Ordering::Relaxed) & 0xffff) as usize
    }

    /// Returns the span of the region around a slab or large block; 0 for others.
    pub(crate) fn region(&self) -> u32 {
        self.region.load(Ordering::Relaxed)
    }

    pub(crate) fn base(&self) -> Address {
        Address::from_bits(self.base.load(Ordering::Relaxed))
    }

    /// Returns the bytes from the base that blocks cover; 0 for a region, and while the record is
    /// not in use.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.count.load(Ordering::Relaxed) * self.block()
    }

    /// Returns the size of a block; region: its bytes.
    pub(crate) fn block(&self) -> u64 {
        self.block.load(Ordering::Relaxed)
    }

    /// Returns the pointer to its states. No other span in use has the same.
    pub(crate) fn states(&self) -> *const AtomicU8 {
        self.states.load(Ordering::Relaxed)
    }

    /// Returns the state of block `index`.
    ///
    /// # Safety
    /// The record is in use and has more than `index` blocks.
    #[inline]
    pub(crate) unsafe fn state(&self, index: u64) -> NonNull<AtomicU8> {
        let first = self.states.load(Ordering::Relaxed);
        // SAFETY: `publish` promised a state byte for each block, and the pointer is not null.
        unsafe { NonNull::new_unchecked(first.add(index as usize)) }
    }

    /// Returns the span of a large block.
    ///
    /// # Safety
    /// The entry is that of a large block of a pool that is alive for as long as the reference is
    /// used.
    pub(crate) unsafe fn of_own_state<'a>(entry: Entry) -> &'a Self {
        // SAFETY: `publish_block` made the state a field of the span; records are not unmapped
        // while the pool lives.
        unsafe { entry.state().byte_sub(core::mem::offset_of!(Self, own_state)).cast().as_ref() }
    }

    /// Returns block `index` as an entry.
    ///
    /// # Safety
    /// As [`Span::state`].
    pub(crate) unsafe fn entry(&self, index: u64) -> Entry {
        let address = self.base.load(Ordering::Relaxed) + index * self.block.load(Ordering::Relaxed);
        // SAFETY: passed on to the caller.
        Entry::new(address, unsafe { self.state(index) })
    }

    /// Returns the guarded part, to read words that do not change while the span is in use.
    ///
    /// # Safety
    /// The span is in use as long as the reference is.
    pub(crate) unsafe fn published(&self) -> &Cold {
        // SAFETY: passed on to the caller; a region's or slab's place and tables do not change
        // while it is in use.
        unsafe { &*self.cold.get() }
    }

    /// Returns the guarded part.
    ///
    /// # Safety
    /// The caller holds the lock that guards this span, or has taken it out of reach of all other
    /// threads, and uses the reference no longer than that.
    #[expect(clippy::mut_from_ref, reason = "the lock, not the borrow, makes it exclusive")]
    pub(crate) unsafe fn cold(&self) -> &mut Cold {
        // SAFETY: passed on to the caller.
        unsafe { &mut *self.cold.get() }
    }
}

/// The words that order the others of a record. The loom model implements it with its own atomics.
trait VersionedRecord {
    fn generation(&self, order: Ordering) -> u32;
    fn advance(&self, order: Ordering);
    fn count(&self, order: Ordering) -> u64;
    fn set_count(&self, count: u64, order: Ordering);
    fn fence(order: Ordering);
}

/// Fills a record that is not in use. `write` writes its words with relaxed stores; `count` is the
/// number of blocks.
#[inline(always)]
fn publish<R: VersionedRecord>(record: &R, count: u64, write: impl FnOnce()) {
    // A reader that sees a word written below also sees the generation that `retract` advanced.
    R::fence(Ordering::Release);
    write();
    record.set_count(count, Ordering::Release);
}

/// Marks a record as not in use, before it is filled again. `clear` clears words with relaxed
/// stores.
#[inline(always)]
fn retract<R: VersionedRecord>(record: &R, clear: impl FnOnce()) {
    record.set_count(0, Ordering::Relaxed);
    clear();
    record.advance(Ordering::Release);
}

/// Returns a consistent read of the generation, the count and the words that `words` reads with
/// relaxed loads. Returns `None` if the record changed meanwhile.
#[inline(always)]
fn read<R: VersionedRecord, T>(record: &R, words: impl FnOnce() -> T) -> Option<(u32, u64, T)> {
    let generation = record.generation(Ordering::Acquire);
    let count = record.count(Ordering::Acquire);
    let words = words();
    R::fence(Ordering::Acquire);
    (record.generation(Ordering::Relaxed) == generation).then_some((generation, count, words))
}

/// Returns whether the record is unchanged since a [`read`] returned `generation`. A caller that
/// has cleared a live bit restores it if the record has changed.
#[inline(always)]
fn is_current<R: VersionedRecord>(record: &R, generation: u32) -> bool {
    record.generation(Ordering::Acquire) == generation
}

impl VersionedRecord for Span {
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
