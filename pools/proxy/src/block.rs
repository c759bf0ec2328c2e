//! What is known of one block, beside what the tracker knows of its region.

use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::{Address, Region};
use umf_sync::chunks::Zeroable;

const LIVE: u64 = 1;
/// With [`LIVE`]: an export names the block. Without: it is freed, and held for other processes.
const EXPORTED: u64 = 2;
const FLAGS: u32 = 2;

/// A block's record: flags with the region's id, so that a record taken over by another block is told from
/// the old one by the same compare-and-swap that frees it.
#[derive(Debug)]
pub(crate) struct Block {
    /// The region's id shifted by [`FLAGS`], with the flags; 0 if the record is free.
    state: AtomicU64,
    base: AtomicU64,
}

// SAFETY: all fields are atomics, and a zeroed record is a free one.
unsafe impl Zeroable for Block {}

const fn live(region: &Region) -> u64 {
    (region.id().get() << FLAGS) | LIVE
}

impl Block {
    /// Fills the record of a number that was just allocated.
    pub(crate) fn publish(&self, region: &Region) {
        self.base.store(region.base().to_bits(), Ordering::Relaxed);
        self.state.store(live(region), Ordering::Release);
    }

    /// Whether the record is that of `region`, live.
    pub(crate) fn is_live(&self, region: &Region) -> bool {
        self.state.load(Ordering::Acquire) & !EXPORTED == live(region)
    }

    /// Takes the block's life, once: `None` if it had none, else whether it was exported.
    pub(crate) fn end(&self, region: &Region) -> Option<bool> {
        let same = |state| (state & !EXPORTED == live(region)).then_some(0);
        let old = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, same).ok()?;
        Some(old & EXPORTED != 0)
    }

    /// Gives life back after [`Block::end`]: the provider refused to free.
    pub(crate) fn revive(&self, region: &Region) {
        self.state.store(live(region), Ordering::Release);
    }

    /// Marks the block as held, after [`Block::end`].
    pub(crate) fn hold(&self, region: &Region) {
        self.state.store((region.id().get() << FLAGS) | EXPORTED, Ordering::Release);
    }

    /// Ends what [`Block::hold`] began, once: `false` if the block was not held.
    pub(crate) fn end_hold(&self, region: &Region) -> bool {
        let held = (region.id().get() << FLAGS) | EXPORTED;
        self.state.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the record is that of `region`, live or held.
    pub(crate) fn belongs_to(&self, region: &Region) -> bool {
        self.state.load(Ordering::Acquire) >> FLAGS == region.id().get()
    }

    /// Flags a live block; `false` if it is not live.
    pub(crate) fn mark_exported(&self, region: &Region) -> bool {
        let same = |state| (state & !EXPORTED == live(region)).then_some(state | EXPORTED);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, same).is_ok()
    }

    /// Where the block begins, if the record is in use.
    pub(crate) fn address(&self) -> Option<Address> {
        let used = self.state.load(Ordering::Acquire) != 0;
        used.then(|| Address::from_bits(self.base.load(Ordering::Relaxed)))
    }
}
