//! What is known of one block, beside what the tracker knows of its region.

use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::metadata::Zeroed;
use umf_core::{Address, Region};

const LIVE: u64 = 1;
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
unsafe impl Zeroed for Block {}

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

    /// Flags a live block; `false` if it is not live.
    pub(crate) fn mark_exported(&self, region: &Region) -> bool {
        let same = |state| (state & !EXPORTED == live(region)).then_some(state | EXPORTED);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, same).is_ok()
    }

    /// Where the block begins, if the record is in use.
    pub(crate) fn address(&self) -> Option<Address> {
        let used = self.state.load(Ordering::Acquire) & LIVE != 0;
        used.then(|| Address::from_bits(self.base.load(Ordering::Relaxed)))
    }
}
