//! Reserving ahead: regions that are there before they are needed, and stay.
//!
//! How much that is, is a floor below the regions that are cut up: what gives regions back by itself stops there. Explicit
//! trimming does not, and lowers the floor to what it leaves; nor does an allocation that would fail otherwise.

use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::{Error, Result};
use umf_runtime::tracker::GRANULE;
use umf_sync::Lock;

use crate::SlabPool;
use crate::extents::UNIT;
use crate::pool::OWNER;
use crate::span::Kind;

/// Where halving what is asked of the provider ends.
const LEAST_PART: usize = 1 << 20;

/// What stays.
pub(crate) struct Ahead {
    floor: AtomicU64,
    /// Held while regions are taken ahead, and while the floor changes. Taken before all other locks.
    changes: Lock<()>,
}

impl Ahead {
    pub(crate) const fn new() -> Self {
        Self { floor: AtomicU64::new(0), changes: Lock::new(()) }
    }

    /// Bytes of regions that are not given back unasked.
    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }
}

impl SlabPool {
    /// Bytes of regions that are cut up.
    pub(crate) fn cut_up_bytes(&self) -> u64 {
        self.extents.lock().units() * UNIT as u64
    }

    /// Takes regions until there are `bytes` of them; yields how many bytes came.
    pub(crate) fn take_ahead(&self, bytes: usize) -> Result<usize> {
        self.check_usable()?;
        if self.classes.count() == 0 && bytes > 0 {
            return Err(Error::NotSupported {
                what: "reserving ahead where nothing is pooled (max_poolable_size is 0)",
                owner: OWNER,
                native: 0,
            });
        }
        let _changes = self.ahead.changes.lock();
        let (before, floor) = (self.cut_up_bytes(), self.ahead.floor());
        // Before the first comes, so that none of them goes meanwhile.
        self.ahead.floor.store(floor.max(bytes as u64), Ordering::Relaxed);
        let mut part = usize::MAX;
        loop {
            let there = self.cut_up_bytes();
            let missing = usize::try_from((bytes as u64).saturating_sub(there)).unwrap_or(usize::MAX);
            if missing == 0 {
                return Ok(usize::try_from(there.saturating_sub(before)).unwrap_or(usize::MAX));
            }
            part = part.min(missing);
            match self.add_populated(part) {
                Ok(()) => {}
                // Perhaps in more than one piece. (Not if there are more regions now: the provider
                // did not take one back that lacks its pages.)
                Err(Error::OutOfMemory { .. }) if part > LEAST_PART && self.cut_up_bytes() <= there => {
                    part = (part / 2).max(LEAST_PART);
                }
                Err(error) => {
                    self.ahead.floor.store(floor, Ordering::Relaxed);
                    // What came goes again. (What somebody uses by now stays.)
                    let _ = self.give_idle_down_to(before.max(floor));
                    return Err(error);
                }
            }
        }
    }

    /// A region of `size` bytes, with its pages made if the provider can.
    fn add_populated(&self, size: usize) -> Result<()> {
        let page = self.upstream.provider().page_size();
        let size =
            size.checked_next_multiple_of(page.max(UNIT)).ok_or(Error::SizeOverflow { size, align: page })?;
        self.enter_region(size, size, GRANULE, |region| {
            let Some(ability) = self.upstream.provider().populate() else { return Ok(()) };
            match ability.populate(region.base(), region.size()) {
                // They come when they are used.
                Err(Error::NotSupported { .. }) => Ok(()),
                result => result,
            }
        })
    }

    /// Gives idle regions back while there are more than `bytes` of regions that are cut up.
    pub(crate) fn give_idle_down_to(&self, bytes: u64) -> Result<()> {
        let mut result = Ok(());
        for number in 1..self.meta.end() {
            let region = self.meta.span(number).is_some_and(|span| span.kind() == Kind::Region);
            if region && self.extents.lock().remove_region(&self.meta, number, bytes / UNIT as u64) {
                result = result.and(self.give_back(number).map(drop));
            }
        }
        result
    }

    /// The floor is no higher than what an explicit trimming left.
    pub(crate) fn lower_floor(&self) {
        if self.ahead.floor() == 0 {
            return;
        }
        let _changes = self.ahead.changes.lock();
        let left = self.cut_up_bytes();
        self.ahead.floor.fetch_min(left, Ordering::Relaxed);
    }
}
