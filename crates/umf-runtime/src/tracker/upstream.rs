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

/// A tracked user of a provider. It tracks the regions that it allocates, and retires their exports
/// before it frees them.
///
/// Each pool has one. An application that exports regions without a pool makes one itself.
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

    /// Sets the pool that the regions belong to, once the pool has its final address. From here on,
    /// other threads may use the pool and acquire its locks.
    ///
    /// # Safety
    /// Called once, before the first region is allocated. The pool does not move, and outlives this
    /// upstream. A pool that has its upstream as a field drops it in its own `drop`.
    pub unsafe fn set_pool(&self, pool: NonNull<dyn Pool>) {
        // SAFETY: passed on to the caller.
        unsafe { self.id.set_pool(pool) };
    }

    /// Hides the pool from [`for_each_pool`](super::for_each_pool) and [`OwnerId::guard`], and
    /// waits for the guards. A pool calls this at the end of its `drop`: other threads may hold the
    /// pool's locks until it returns. Idempotent.
    ///
    /// If a forked child has inherited the upstream, this does not wait: guards of the parent's
    /// threads never end there.
    pub fn close(&self) {
        self.id.close();
        if self.generation == fork::generation() {
            self.id.wait_for_guards();
        }
    }

    /// Returns the number of this upstream in the tracker.
    #[must_use]
    pub const fn id(&self) -> OwnerId {
        self.id
    }

    /// Returns the provider.
    #[must_use]
    pub const fn provider(&self) -> &ProviderRef {
        &self.provider
    }

    /// Returns whether a forked child has inherited this upstream, and its memory is shared with
    /// the parent. Such memory cannot be allocated or freed. Costs two loads.
    #[inline]
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.generation != fork::generation() && self.provider.visibility() == umf_core::Visibility::Shared
    }

    /// Returns the policy for memory that is freed while it is leased.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the slot of the out-of-memory callback.
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
        // A pool may call this with its locks held, so it polls itself, by `admit`.
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

    /// Returns the number of a live region of this upstream. A region from which live regions were
    /// carved at its base is not found, because [`find`] returns the innermost region.
    fn number_of(&self, region: &Region) -> Result<RegionNumber> {
        find(region.base())
            .filter(|found| found.region == *region && found.owner == self.id)
            .map(|found| found.number)
            .ok_or(Error::ForeignAddress { address: region.base(), owner: "this user of the provider" })
    }

    /// Retires the exports of a region, stops tracking it, and frees it, in this order.
    ///
    /// If other processes have the region or held blocks of it open, the free is deferred
    /// ([`FreeOutcome::Deferred`]; see [`crate::deferred`]). Meanwhile the region stays tracked,
    /// and cannot be freed again.
    ///
    /// In a forked child, freeing shared memory does nothing and succeeds.
    ///
    /// # Errors
    /// - [`Error::ForeignAddress`]: not a live region of this upstream, or regions that were carved
    ///   from it are live.
    /// - [`Error::NotAllocated`]: the region was freed, and its free is deferred.
    /// - The provider's. Then the exports are retired, and the region stays tracked, with another
    ///   number and without spans.
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
        // SAFETY: passed on to the caller. The region is not tracked any more, and has no lease.
        let freed = unsafe { self.provider.free(region) };
        failpoint!("upstream.freed");
        if freed.is_err() {
            // The region may still be mapped, so track it again; if that fails, it leaks. It was
            // removed before the free, because after it another region may have the addresses.
            let _ = insert(region, self.id);
        }
        freed.map(|()| FreeOutcome::Freed)
    }

    /// Clears the live bit of a region and retires its exports. Adds their leases to `leases`.
    fn retire(&self, number: RegionNumber, region: Region, leases: &mut Joined) -> Result<()> {
        if end(number, region)?
            && let Some(more) = before_free(Freed::Region(region))
        {
            leases.add(more);
        }
        Ok(())
    }
}

/// Checks that a region that starts or ends in another region is contained in it. If the pool of
/// the other region has a block there, the region must be contained in that block.
fn check_nesting(region: &Region) -> Result<()> {
    let ends_at = |address: Address, size: usize| address.to_bits().checked_add(size as u64);
    let last = region.base().checked_add((region.size() as u64).saturating_sub(1));
    let Some(outer) = find(region.base()).or_else(|| last.and_then(find)) else { return Ok(()) };
    // The owner was dropped, perhaps with its memory.
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
            // Guards of the parent's threads never end here, so the record stays used.
            return;
        }
        self.orphan();
        // SAFETY: `close` has waited for the guards, and this runs once.
        drop(unsafe { self.id.leave() });
    }
}

impl Controls for Upstream {
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        Self::set_on_free(self, on_free, max_held_bytes);
    }

    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) -> Result<()> {
        Self::set_on_out_of_memory(self, callback);
        Ok(())
    }

    fn drain(&self, timeout: Duration) -> DeferredStatistics {
        Self::drain(self, timeout)
    }
}
