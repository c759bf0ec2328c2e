//! [`Span`]: what a number in the tracker's map stands for.
//!
//! Each granule of a pool's memory carries the number of a span: a slab, a region (where large blocks lie), or
//! a block that came straight from the provider. All three are read in the same way: blocks of equal size
//! from a base, with a state byte each. In a region the "blocks" are the units of the large allocator, of
//! which those that begin a block have a state other than 0.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use umf_core::metadata::Zeroed;
use umf_core::tracker::RegionNumber;
use umf_core::{Address, Region};

use crate::arena::Run;
use crate::large::UNIT;
use crate::state::Entry;

/// What kind of span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not in use.
    Free,
    /// Equal blocks of one class.
    Slab,
    /// A region, cut up by the large allocator.
    Region,
    /// One block that is a region.
    Direct,
}

const SLAB: u32 = 1;
const REGION: u32 = 2;
const DIRECT: u32 = 3;
const KIND_SHIFT: u32 = 16;

/// A span's record. The first line is what `free(address)` reads; the second belongs to whoever holds the
/// lock that guards the span (the class's for slabs, the large allocator's for regions).
#[repr(C, align(64))]
pub(crate) struct Span {
    base: AtomicU64,
    /// Bytes from the base that blocks cover; 0 while the record is not in use.
    bytes: AtomicU64,
    /// Size of a block, and its reciprocal: see [`reciprocal`].
    block: AtomicU64,
    magic: AtomicU64,
    states: AtomicPtr<AtomicU8>,
    /// Kind in the upper half, class in the lower.
    kind_class: AtomicU32,
    /// Advances when the record is given back.
    generation: AtomicU32,
    /// The state of the one block of a [`Kind::Direct`] span.
    own_state: AtomicU8,
    cold: UnsafeCell<Cold>,
}

/// The guarded part of a span.
#[derive(Clone, Copy)]
pub(crate) struct Cold {
    /// Neighbours in the list that the span is in, 0 for none.
    pub(crate) next: u32,
    pub(crate) prev: u32,
    /// Slab: blocks in its bitmap, blocks in all, and where to begin looking.
    pub(crate) free: u32,
    pub(crate) total: u32,
    pub(crate) hint: u32,
    /// Slab: the span of its region, and its first unit there. Region: unused, and its units in all.
    pub(crate) region: u32,
    pub(crate) unit: u32,
    /// Slab: its bitmap (1: free). Region: null.
    pub(crate) bitmap: *mut u64,
    /// The run that holds the states, and the run with the bitmap or the units.
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

/// `m` such that `(n * m) >> 64 == n / d`, for all `n` with `n * d < 2^64` (and `d > 1`).
const fn reciprocal(d: u64) -> u64 {
    // m = (2^64 + e) / d with 0 < e <= d, so n * m / 2^64 = n / d + (n * e) / (d * 2^64), and the second term
    // is below 1 / d as long as n * e < 2^64.
    u64::MAX / d + 1 + (d.is_power_of_two() as u64)
}

/// A block of a span, found from an address.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) span: &'a Span,
    pub(crate) number: u32,
    pub(crate) index: u64,
    /// Bytes from the start of the block (or unit) to the address.
    pub(crate) rest: u64,
    /// The state of the block.
    pub(crate) state: &'a AtomicU8,
    generation: u32,
}

impl Span {
    /// Fills the record of a number that was just allocated.
    ///
    /// # Safety
    /// `states` has a zeroed byte for each of the `bytes / block` blocks (two for a region), in metadata that lives as long as the
    /// table that this record is in.
    pub(crate) unsafe fn publish(
        &self,
        kind: Kind,
        class: usize,
        base: Address,
        bytes: u64,
        block: u64,
        states: NonNull<AtomicU8>,
    ) {
        let kind = match kind {
            Kind::Free => 0,
            Kind::Slab => SLAB,
            Kind::Region => REGION,
            Kind::Direct => DIRECT,
        };
        // Whoever sees a word from below sees that the generation has advanced since `retract`.
        fence(Ordering::Release);
        self.base.store(base.to_bits(), Ordering::Relaxed);
        self.block.store(block, Ordering::Relaxed);
        // The one block of a direct span has index 0, whatever its size.
        let magic = if kind == DIRECT { 0 } else { reciprocal(block) };
        self.magic.store(magic, Ordering::Relaxed);
        self.states.store(states.as_ptr(), Ordering::Relaxed);
        self.kind_class.store((kind << KIND_SHIFT) | class as u32, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Release);
    }

    /// Publishes a block that is a region, live.
    pub(crate) fn publish_direct(&self, base: Address, bytes: u64) {
        self.own_state.store(crate::state::LIVE, Ordering::Relaxed);
        // SAFETY: the one state byte is a field of the record, which is never unmapped while the table lives.
        unsafe { self.publish(Kind::Direct, 0, base, bytes, bytes, NonNull::from(&self.own_state)) };
    }

    /// Marks the record as not in use, before its number is given back.
    pub(crate) fn retract(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.kind_class.store(0, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The place of `address` in this span, whose number is given; `None` if it is not in it.
    #[inline]
    pub(crate) fn locate(&self, number: u32, address: Address) -> Option<Place<'_>> {
        let generation = self.generation.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Acquire);
        let offset = address.to_bits().wrapping_sub(self.base.load(Ordering::Relaxed));
        let magic = self.magic.load(Ordering::Relaxed);
        let block = self.block.load(Ordering::Relaxed);
        let states = self.states.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if offset >= bytes || self.generation.load(Ordering::Relaxed) != generation {
            return None;
        }
        let index = ((u128::from(offset) * u128::from(magic)) >> 64) as u64;
        let rest = offset.wrapping_sub(index.wrapping_mul(block));
        // SAFETY: the words belong together, since the generation did not advance; so the index is below the
        // number of blocks, and `publish` promised a state for each. (If the span goes from now on, the byte
        // remains a state: see `SlabPool::states`.)
        let state = unsafe { &*states.add(index as usize) };
        Some(Place { span: self, number, index, rest, state, generation })
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self.kind_class.load(Ordering::Relaxed) >> KIND_SHIFT {
            SLAB => Kind::Slab,
            REGION => Kind::Region,
            DIRECT => Kind::Direct,
            _ => Kind::Free,
        }
    }

    /// The class, if this is a slab.
    #[inline]
    pub(crate) fn slab_class(&self) -> Option<usize> {
        let word = self.kind_class.load(Ordering::Relaxed);
        (word >> KIND_SHIFT == SLAB).then_some((word & 0xffff) as usize)
    }

    pub(crate) fn base(&self) -> Address {
        Address::from_bits(self.base.load(Ordering::Relaxed))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn block(&self) -> u64 {
        self.block.load(Ordering::Relaxed)
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

impl Place<'_> {
    /// Where the class of the large block that begins here is kept, for a place in a region.
    #[inline]
    pub(crate) fn large_class(&self) -> &AtomicU8 {
        let units = self.span.bytes() / UNIT as u64;
        // SAFETY: in a region the run of states is twice as long as the units are many, and the index is below
        // that number. The caller has just taken the life of a block in it, so the region is still there.
        unsafe { &*self.span.states.load(Ordering::Relaxed).add((units + self.index) as usize) }
    }

    /// Whether the span is still what [`Span::locate`] saw.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.span.generation.load(Ordering::Acquire) == self.generation
    }

    /// Where the block (or unit) begins.
    pub(crate) fn start(&self) -> Address {
        Address::from_bits(self.span.base().to_bits() + self.index * self.span.block())
    }
}

impl Cold {
    pub(crate) const EMPTY: Self = Self {
        next: 0,
        prev: 0,
        free: 0,
        total: 0,
        hint: 0,
        region: 0,
        unit: 0,
        bitmap: ptr::null_mut(),
        state_run: MaybeUninit::uninit(),
        table_run: MaybeUninit::uninit(),
        upstream: MaybeUninit::uninit(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reciprocals_divide_exactly() {
        for d in [8_u64, 9, 24, 40, 56, 72, 112, 1000, 4096, 28_672, 32_768, 65_536, 1 << 20] {
            let magic = reciprocal(d);
            let divide = |n: u64| ((u128::from(n) * u128::from(magic)) >> 64) as u64;
            for n in (0..2_000_000).step_by(7).chain((1 << 34) - 5..(1 << 34) + 5) {
                assert_eq!(divide(n), n / d, "{n} / {d}");
            }
            for multiple in 1..5_000 {
                assert_eq!(divide(multiple * d), multiple);
                assert_eq!(divide(multiple * d - 1), multiple - 1);
            }
        }
    }
}
