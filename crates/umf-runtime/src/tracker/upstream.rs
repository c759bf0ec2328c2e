//! [`Upstream`]: the interface through which pools allocate and free regions.

use core::ptr::NonNull;
use core::time::Duration;
use std::sync::Arc;

use umf_core::deferred::{DeferredStatistics, OnFree};
use umf_core::out_of_memory::OnOutOfMemory;
use umf_core::{Controls, ProviderRef};

use super::{OwnerId, RegionNumber, end, find, insert, remove};
use crate::deferred::{FreeOutcome, Joined, Policy};
use crate::observer::before_free;
use crate::out_of_memory::CallbackSlot;
use umf_core::Freed;
#[cfg(doc)]
use umf_core::Provider;
use umf_sync::{failpoint, fork};

use umf_core::{Address, Error, Layout, Pool, Region, Result};

/// A provider as its user sees it: regions that are got here are tracked, and their exports are
/// retired before they go back.
///
/// Pools hold one; an application that exports regions of a provider without a pool holds one
/// itself.
#[derive(Debug)]
pub struct Upstream {
    id: OwnerId,
    provider: ProviderRef,
    generation: u32,
    policy: Policy,
    slot: CallbackSlot,
}

impl Upstream {
    /// Registers a user of `provider`.
    ///
    /// # Errors
    /// [`Error::TooMany`] past 16,383 of them in one process.
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Self> {
        let provider = provider.into();
        let id = OwnerId::enter(&provider)?;
        Ok(Self {
            id,
            provider,
            generation: fork::generation(),
            policy: Policy::default(),
            slot: CallbackSlot::default(),
        })
    }

    /// Says which pool the regions belong to, once, when the pool has its final address. From here
    /// on other threads may be shown the pool, and take its locks.
    ///
    /// # Safety
    /// The pool stays at that address and alive as long as this upstream, which is dropped before
    /// the pool is (a pool that holds its upstream as a field does that, in its own `drop`). Called
    /// once, before the first region is allocated.
    pub unsafe fn set_pool(&self, pool: NonNull<dyn Pool>) {
        // SAFETY: passed on to the caller.
        unsafe { self.id.set_pool(pool) };
    }

    /// Hides the pool from [`for_each_pool`](super::for_each_pool) and [`OwnerId::guard`], and
    /// waits for the threads that use it. A pool calls it at the end of its `drop`: another thread
    /// may hold the pool's locks until this returns. Idempotent.
    ///
    /// In a forked child of the process that made the upstream it does not wait: guards of the
    /// parent's threads never end there.
    pub fn close(&self) {
        self.id.close();
        if self.generation == fork::generation() {
            self.id.wait_for_guards();
        }
    }

    /// The number under which the tracker knows this upstream.
    #[must_use]
    pub const fn id(&self) -> OwnerId {
        self.id
    }

    /// The provider.
    #[must_use]
    pub const fn provider(&self) -> &ProviderRef {
        &self.provider
    }

    /// Whether memory of this upstream may be allocated here: not if it is shared with the parent
    /// that this process was forked from. Two loads.
    #[inline]
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.generation != fork::generation() && self.provider.visibility() == umf_core::Visibility::Shared
    }

    /// What becomes of memory that is freed while it is leased.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The callback for a lack of memory.
    pub(crate) const fn slot(&self) -> &CallbackSlot {
        &self.slot
    }

    /// Allocates a region and tracks it.
    ///
    /// # Errors
    /// Those of [`Provider::allocate`]; [`Error::Frozen`]; [`Error::HeldLimit`];
    /// [`Error::OutOfMemory`] for the tracker's own memory; [`Error::Untrusted`] if the provider's
    /// memory lies only partly in another region, or in a block of another pool. After an error
    /// nothing is allocated.
    pub fn allocate(&self, layout: Layout) -> Result<(Region, RegionNumber)> {
        if self.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        // A pool may be calling with its locks taken; it polls by itself (`admit`).
        if self.id.has_pool() { self.check_held() } else { self.admit() }?;
        let region = self.provider.allocate(layout)?;
        failpoint!("upstream.allocated");
        match check_nesting(&region).and_then(|()| insert(region, self.id)) {
            Ok(number) => {
                failpoint!("upstream.tracked");
                Ok((region, number))
            }
            Err(error) => {
                // SAFETY: the region was allocated above and is not shared yet. If the provider
                // fails to take it back, the region leaks; the first error is the one to return.
                let _ = unsafe { self.provider.free(region) };
                Err(error)
            }
        }
    }

    /// The number of a region of this upstream that is live.
    fn number_of(&self, region: &Region) -> Result<RegionNumber> {
        let foreign = Error::ForeignAddress { address: region.base(), owner: "this provider's user" };
        let found = self.find_exact(region).ok_or(foreign)?;
        Ok(found)
    }

    fn find_exact(&self, region: &Region) -> Option<RegionNumber> {
        // A nested region may begin at the same address; the record's id decides, and the innermost
        // is what `find` yields, so a region can only be freed after what was carved from it.
        let found = find(region.base())?;
        (found.region == *region && found.owner == self.id).then_some(found.number)
    }

    /// Retires the exports of a region, stops tracking it, and frees it, in this order.
    ///
    /// While other processes have it open, or blocks of it that are held, its provider does not get
    /// it back ([`FreeOutcome::Deferred`]; see [`crate::deferred`]). It stays tracked meanwhile,
    /// and cannot be freed again.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] if it is no live region of this upstream (or regions carved from
    /// it are still live), [`Error::NotAllocated`] if it was freed and is held, or what the
    /// provider says; the region then stays tracked, its exports retired, under another number and
    /// without spans: find it again. In a forked child, freeing shared memory does nothing and
    /// succeeds.
    ///
    /// # Safety
    /// As [`Provider::free`].
    pub unsafe fn free(&self, region: Region) -> Result<FreeOutcome> {
        if self.is_frozen() {
            return Ok(FreeOutcome::Freed);
        }
        let number = self.number_of(&region)?;
        let mut users = Joined::default();
        self.retire(number, region, &mut users)?;
        failpoint!("upstream.retired");
        if self.may_hold() {
            self.claim(&region, &mut users);
        }
        if self.hold_region(region, number, users) {
            return Ok(FreeOutcome::Deferred);
        }
        remove(number, region);
        failpoint!("upstream.removed");
        // SAFETY: passed on to the caller; nothing names the region any more.
        let freed = unsafe { self.provider.free(region) };
        failpoint!("upstream.freed");
        if freed.is_err() {
            // The region may still be mapped: track it again. If that fails, it is not found any
            // more. It had to be removed first: after the provider's free, another region may have
            // the addresses.
            let _ = insert(region, self.id);
        }
        freed.map(|()| FreeOutcome::Freed)
    }

    fn retire(&self, number: RegionNumber, region: Region, leases: &mut Joined) -> Result<()> {
        if end(number, region)?
            && let Some(more) = before_free(Freed::Region(region))
        {
            leases.add(more);
        }
        Ok(())
    }
}

/// Checks that a region which begins or ends in another region is contained in it; and in one block, if
/// that region's pool has a block there.
fn check_nesting(region: &Region) -> Result<()> {
    let ends_at = |address: Address, size: usize| address.to_bits().checked_add(size as u64);
    let last = region.base().checked_add((region.size() as u64).saturating_sub(1));
    let Some(outer) = find(region.base()).or_else(|| last.and_then(find)) else { return Ok(()) };
    // The region of an owner that is gone: its memory may have gone with it.
    let Some(owner) = outer.owner.guard() else { return Ok(()) };
    let block = owner.pool().and_then(|pool| pool.block_at(region.base()).ok());
    let (start, size) = match &block {
        Some(block) => (block.address, block.size),
        None => (outer.region.base(), outer.region.size()),
    };
    let ends_inside = ends_at(region.base(), region.size()) <= ends_at(start, size);
    if region.base().to_bits() >= start.to_bits() && ends_inside {
        return Ok(());
    }
    Err(Error::Untrusted {
        why: "the provider's memory lies only partly in a region or block of another one",
    })
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop_reclaiming();
        self.close();
        if self.generation != fork::generation() {
            // Guards of the parent's threads never end here: the record stays used in this child.
            return;
        }
        self.orphan();
        // SAFETY: it was closed, and no guard is left; this is its one upstream.
        drop(unsafe { self.id.leave() });
    }
}

impl Controls for Upstream {
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        Self::set_on_free(self, on_free, max_held_bytes);
    }

    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) {
        Self::set_on_out_of_memory(self, callback);
    }

    fn drain(&self, timeout: Duration) -> DeferredStatistics {
        Self::drain(self, timeout)
    }
}
