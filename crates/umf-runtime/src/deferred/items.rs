//! The records of deferred frees: one item, and the account of one [`crate::Upstream`].

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::observer::Leases;
use crate::tracker::RegionNumber;
use umf_core::{Address, Completion, Progress, ProviderRef, Region};
use umf_sync::chunks::Zeroable;

/// A block or region whose free is deferred.
#[derive(Clone, Debug)]
pub(super) enum DeferredMemory {
    /// A block, which its pool does not reuse.
    Block,
    /// A region that goes to its provider, and its number while the tracker has it.
    Region(Region, Option<RegionNumber>, ProviderRef),
}

/// The users of freed memory: the leases of other processes, asynchronous work, or both.
#[derive(Clone)]
pub(super) struct Users {
    pub(super) leases: Option<Arc<dyn Leases>>,
    pub(super) completion: Option<Arc<dyn Completion>>,
}

impl Users {
    pub(super) const NONE: Self = Self { leases: None, completion: None };

    pub(super) const fn lessees(leases: Arc<dyn Leases>) -> Self {
        Self { leases: Some(leases), completion: None }
    }

    /// Returns whether the memory is still in use. Called without a lock.
    pub(super) fn progress(&self, base: Address, size: usize) -> Progress {
        match self.completion.as_deref().map_or(Progress::Ready, poll_completion) {
            Progress::Ready if self.leases.as_ref().is_some_and(|leases| leases.is_leased(base, size)) => {
                Progress::Pending
            }
            progress => progress,
        }
    }
}

/// Polls a completion. A panic counts as lost: the work is not known to be done.
fn poll_completion(completion: &dyn Completion) -> Progress {
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| completion.progress()));
    polled.unwrap_or(Progress::Lost)
}

/// One deferred free.
#[derive(Clone)]
pub(super) struct DeferredItem {
    pub(super) what: DeferredMemory,
    pub(super) base: Address,
    pub(super) size: usize,
    /// The pages were purged, and are purged again before the block is reused.
    pub(super) purged: bool,
    /// The pool or provider failed to take the memory back, and that was logged.
    pub(super) refused: bool,
    /// The completion was lost at the last poll.
    pub(super) lost: bool,
    pub(super) users: Users,
}

impl DeferredItem {
    const fn is_pending(&self) -> bool {
        self.users.completion.is_some()
    }

    pub(super) const fn is_part(&self) -> bool {
        !matches!(self.what, DeferredMemory::Region(..))
    }

    /// Returns whether the memory overlaps the region.
    pub(super) fn touches(&self, region: &Region) -> bool {
        let begins_inside = region.contains(self.base);
        begins_inside || region.base().offset_from(self.base).is_some_and(|bytes| bytes < self.size as u64)
    }

    /// Returns whether the memory lies entirely in the region.
    pub(super) fn lies_in(&self, region: &Region) -> bool {
        let offset = self.base.offset_from(region.base());
        offset
            .and_then(|offset| offset.checked_add(self.size as u64))
            .is_some_and(|end| end <= region.size() as u64)
    }
}

/// A node of the list of an account. Guarded by the registry's lock.
pub(super) struct DeferredSlot {
    pub(super) next: u32,
    pub(super) prev: u32,
    pub(super) account: u32,
    /// The last claim that has seen it.
    pub(super) claim: u64,
    /// A thread is polling the item.
    pub(super) busy: bool,
    /// Whether `item` is initialised.
    pub(super) full: bool,
    pub(super) item: MaybeUninit<DeferredItem>,
}

/// A [`DeferredSlot`] in the table of all upstreams.
pub(super) struct DeferredRecord(pub(super) UnsafeCell<DeferredSlot>);

// SAFETY: the slot is reached through `DeferredRegistry` alone, of which there is one, behind a
// lock; items are `Send`.
unsafe impl Sync for DeferredRecord {}
// SAFETY: zeros are valid integers, flags that are not set, and a `MaybeUninit`.
unsafe impl Zeroable for DeferredRecord {}

/// The items of one upstream, the least recently polled first. Guarded by the registry's lock.
pub(super) struct List {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) count: u32,
    /// Those of them that are not regions, and so may lie in one that is not freed yet.
    pub(super) parts: u32,
    /// The items that a thread is polling or reclaiming.
    pub(super) busy: u32,
    /// Threads that poll an item, or have yet to drop what they polled.
    pub(super) dropping: u32,
    /// The pool is being dropped: its items are not polled any more.
    pub(super) closed: bool,
}

/// The deferred frees of one upstream, by its owner number. Number 0 has the regions whose upstream
/// was dropped.
pub(super) struct Account {
    pub(super) bytes: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) regions: AtomicU64,
    /// Bytes that wait for a completion, and those whose completion is lost.
    pub(super) pending: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) list: UnsafeCell<List>,
}

// SAFETY: the list is reached through `DeferredRegistry` alone, as in `DeferredRecord`; all else is
// atomic.
unsafe impl Sync for Account {}
// SAFETY: zeros are an empty list that is open.
unsafe impl Zeroable for Account {}

impl Account {
    /// Counts an item. Under the registry's lock.
    pub(super) fn count(&self, item: &DeferredItem) {
        let counter = match item.what {
            DeferredMemory::Block => &self.blocks,
            DeferredMemory::Region(..) => &self.regions,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(item.size as u64, Ordering::Relaxed);
        if item.is_pending() {
            self.pending.fetch_add(item.size as u64, Ordering::Relaxed);
        }
        if item.lost {
            self.lost.fetch_add(item.size as u64, Ordering::Relaxed);
        }
    }

    /// Counts an item less. Under the registry's lock.
    pub(super) fn discount(&self, item: &DeferredItem) {
        let counter = match item.what {
            DeferredMemory::Block => &self.blocks,
            DeferredMemory::Region(..) => &self.regions,
        };
        counter.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(item.size as u64, Ordering::Relaxed);
        if item.is_pending() {
            self.pending.fetch_sub(item.size as u64, Ordering::Relaxed);
        }
        if item.lost {
            self.lost.fetch_sub(item.size as u64, Ordering::Relaxed);
        }
    }
}
