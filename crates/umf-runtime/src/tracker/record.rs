//! [`RegionRecord`]: the record of a region, which readers copy without a lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::owner::OwnerId;
use super::{RegionNumber, TrackedRegion};
use umf_core::provider::RegionId;
use umf_core::{Address, Region};
use umf_sync::SequenceLock;
use umf_sync::chunks::Zeroable;
use umf_sync::table::Table;

pub(super) static REGIONS: Table<RegionRecord> = Table::new(u32::MAX >> 2);

const LIVE: u32 = 1;
const EXPORTED: u32 = 2;

/// The record of a region: words behind a sequence lock, written under the tracker's writer lock.
#[derive(Debug)]
pub(super) struct RegionRecord {
    /// Odd while the record is unused or being written.
    sequence: SequenceLock,
    owner: AtomicU32,
    base: AtomicU64,
    size: AtomicU64,
    id: AtomicU64,
    state: AtomicU32,
}

// SAFETY: all fields are atomics. A zeroed record is a region of size 0, which contains no address.
unsafe impl Zeroable for RegionRecord {}

impl RegionRecord {
    /// Fills the record of a number that was just allocated.
    pub(super) fn publish(&self, region: Region, owner: OwnerId) {
        self.sequence.write(|| {
            self.owner.store(owner.number(), Ordering::Relaxed);
            self.base.store(region.base().to_bits(), Ordering::Relaxed);
            self.size.store(region.size() as u64, Ordering::Relaxed);
            self.id.store(region.id().get(), Ordering::Relaxed);
            self.state.store(LIVE, Ordering::Relaxed);
        });
    }

    /// Marks the record as unused.
    pub(super) fn withdraw(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.sequence.withdraw();
    }

    /// Returns the owner, if the record is in use and is not being changed.
    #[inline]
    pub(super) fn owner(&self) -> Option<OwnerId> {
        OwnerId::from_number(self.owner.load(Ordering::Acquire))
    }

    /// Returns the owner, if the region contains the address. `None` also while the record is being
    /// changed.
    #[inline(always)]
    pub(super) fn owner_around(&self, address: Address) -> Option<OwnerId> {
        let (owner, base, size) = self.sequence.read(|| {
            (
                self.owner.load(Ordering::Relaxed),
                self.base.load(Ordering::Relaxed),
                self.size.load(Ordering::Relaxed),
            )
        })?;
        let is_inside = address.to_bits().wrapping_sub(base) < size;
        if is_inside { OwnerId::from_number(owner) } else { None }
    }

    /// Returns a consistent copy; `None` if the record is unused or being changed.
    #[inline]
    pub(super) fn read(&self, number: u32, span: u32) -> Option<TrackedRegion> {
        let (owner, base, size, id) = self.sequence.read(|| {
            (
                self.owner.load(Ordering::Relaxed),
                self.base.load(Ordering::Relaxed),
                self.size.load(Ordering::Relaxed),
                self.id.load(Ordering::Relaxed),
            )
        })?;
        let region = Region::with_id(Address::from_bits(base), size as usize, RegionId::from_number(id)?);
        Some(TrackedRegion {
            region,
            owner: OwnerId::from_number(owner)?,
            span,
            number: RegionNumber(number),
        })
    }

    /// Marks the region as exported. Returns `false` if the record does not belong to a live region
    /// `id` any more. The caller holds the tracker's writer lock, so the record is not reused
    /// meanwhile.
    pub(super) fn mark_exported(&self, id: RegionId) -> bool {
        let is_same = self.id.load(Ordering::Relaxed) == id.get();
        let mark = |state: u32| (state & LIVE != 0).then_some(state | EXPORTED);
        is_same && self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, mark).is_ok()
    }

    /// Clears the live bit of region `id`. Returns whether the region is exported; `None` if the
    /// bit was clear. The caller holds the tracker's writer lock.
    pub(super) fn end(&self, id: RegionId) -> Option<bool> {
        if self.id.load(Ordering::Relaxed) != id.get() {
            return None;
        }
        let old = self.state.swap(0, Ordering::AcqRel);
        (old & LIVE != 0).then_some(old & EXPORTED != 0)
    }
}
