//! [`Upstream`]: the one way in which pools get regions.

use core::ptr::NonNull;
use std::sync::Arc;

use super::record::REGIONS;
use super::reserved::Reserved;
use super::{OwnerId, ProviderRef, RegionNumber, end, find, insert, mark_exported, remove};
#[cfg(doc)]
use crate::Provider;
use crate::held::{Fate, Joined, Policy};
use crate::observer::{Freed, Leases, before_free};
use crate::shortage::Slot;
use crate::step::{Step, step};
use crate::{Address, Error, Layout, Pool, Region, Result, fork};

/// A provider as its user sees it: regions that are got here are tracked, and their exports are retired
/// before they go back.
///
/// Pools hold one; an application that exports regions of a provider without a pool holds one itself.
#[derive(Debug)]
pub struct Upstream {
    id: OwnerId,
    provider: ProviderRef,
    generation: u32,
    policy: Policy,
    slot: Slot,
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
            slot: Slot::default(),
        })
    }

    /// Says which pool the regions belong to, once, when the pool has its final address. From here
    /// on other threads may be shown the pool, and take its locks: a pool with locks is registered
    /// for forks before ([`fork::register`]).
    ///
    /// # Safety
    /// The pool stays at that address and alive as long as this upstream, which is dropped before the pool
    /// is (a pool that holds its upstream as a field does that, in its own `drop`). Called once, before the
    /// first region is allocated.
    pub unsafe fn set_pool(&self, pool: NonNull<dyn Pool>) {
        // SAFETY: passed on to the caller.
        unsafe { self.id.set_pool(pool) };
    }

    /// Hides the pool from [`for_each_pool`](super::for_each_pool) and [`OwnerId::guard`], and waits
    /// for the threads that use it. A pool calls it at the end of its `drop`, before
    /// [`fork::unregister`]: another thread may hold the pool's locks until this returns. Idempotent.
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

    /// Whether memory of this upstream may be allocated here: not if it is shared with the parent that this
    /// process was forked from. Two loads.
    #[inline]
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.generation != fork::generation() && self.provider.visibility() == crate::Visibility::Shared
    }

    /// What becomes of memory that is freed while it is leased.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whom to ask when memory is lacking.
    pub(crate) const fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Allocates a region and tracks it.
    ///
    /// # Errors
    /// Those of [`Provider::allocate`]; [`Error::Frozen`]; [`Error::HeldLimit`]; [`Error::OutOfMemory`] for the tracker's own
    /// memory. After an error nothing is allocated.
    pub fn allocate(&self, layout: Layout) -> Result<(Region, RegionNumber)> {
        if self.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        // A pool may be calling with its locks taken; it polls by itself (`admit`).
        if self.id.has_pool() { self.check_held() } else { self.admit() }?;
        let region = self.provider.allocate(layout)?;
        step(Step::UpstreamAllocated);
        match insert(region, self.id) {
            Ok(number) => {
                step(Step::UpstreamTracked);
                Ok((region, number))
            }
            Err(error) => {
                // SAFETY: the region was allocated above and nobody has seen it. A provider that cannot take it
                // back keeps it; the error that matters is the first.
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
        // A nested region may begin at the same address; the record's id decides, and the innermost is what
        // `find` yields, so a region can only be freed after what was carved from it.
        let found = find(region.base())?;
        (found.region == *region && found.owner == self.id).then_some(found.number)
    }

    /// Retires the exports of a region, stops tracking it, and frees it, in this order.
    ///
    /// While other processes have it open, or blocks of it that are held, its provider does not get it back
    /// ([`Fate::Held`]; see [`crate::held`]). It stays tracked meanwhile, and cannot be freed again.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] if it is no live region of this upstream (or regions carved from it are still
    /// live), [`Error::NotAllocated`] if it was freed and is held, or what the provider says; the region then stays tracked,
    /// its exports retired, under another number and without spans: find it again.
    /// In a forked child, freeing shared memory does nothing and succeeds.
    ///
    /// # Safety
    /// As [`Provider::free`].
    pub unsafe fn free(&self, region: Region) -> Result<Fate> {
        if self.is_frozen() {
            return Ok(Fate::Gone);
        }
        let number = self.number_of(&region)?;
        let mut users = Joined::default();
        self.retire(number, region, &mut users)?;
        step(Step::UpstreamRetired);
        if self.may_hold() {
            self.claim(&region, &mut users);
        }
        if self.hold_region(region, number, users) {
            return Ok(Fate::Held);
        }
        remove(number, region);
        step(Step::UpstreamRemoved);
        // SAFETY: passed on to the caller; nothing names the region any more.
        let freed = unsafe { self.provider.free(region) };
        step(Step::UpstreamFreed);
        if freed.is_err() {
            // Still mapped as far as anyone knows: keep it findable. If even that fails, it is merely not found. (It was
            // taken out first, because after the provider's free the addresses may be another region's.)
            let _ = insert(region, self.id);
        }
        freed.map(|()| Fate::Gone)
    }

    fn retire(&self, number: RegionNumber, region: Region, leases: &mut Joined) -> Result<()> {
        if end(number, region)?
            && let Some(more) = before_free(Freed::Region(region))
        {
            leases.add(more);
        }
        Ok(())
    }

    /// Remembers the leases on memory that stays in use, for when it is freed.
    fn remember(&self, base: Address, size: usize, leases: Option<&Arc<dyn Leases>>) -> Result<()> {
        match leases.filter(|leases| leases.is_leased(base, size)) {
            Some(leases) => self.lend(base, size, leases),
            None => Ok(()),
        }
    }

    /// Splits a region after `first` bytes, retiring its exports. Where other processes have them open, each part is held when
    /// it is freed.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the provider cannot, [`Error::InvalidArgument`] if a part would be empty, [`Error::OutOfMemory`] for
    /// the tracker's own memory, or what the provider says. The region is as it was then, its exports retired.
    ///
    /// # Safety
    /// The caller owns the region.
    pub unsafe fn split(&self, region: Region, first: usize) -> Result<(Region, Region)> {
        let ability = self.split_merge()?;
        let number = self.number_of(&region)?;
        let outside = Error::InvalidArgument { what: "split", why: "must leave something on both sides" };
        let rest = region.size().checked_sub(first).filter(|&rest| rest > 0 && first > 0).ok_or(outside)?;
        let middle = region.base().checked_add(first as u64).ok_or(outside)?;
        let parts = [(region.base(), first), (middle, rest)];
        let reserved =
            Reserved::new(parts.map(|(base, size)| Region::with_id(base, size, region.id())), self.id)?;
        let mut leases = Joined::default();
        self.retire(number, region, &mut leases)?;
        // What was remembered of the whole before reaches over both parts and stays.
        if let Err(error) = self.remember(region.base(), region.size(), leases.all().as_ref()) {
            revive_exported(number, region);
            return Err(error);
        }
        // SAFETY: passed on to the caller.
        let split = unsafe { ability.split(region, first) };
        step(Step::UpstreamSplit);
        match split {
            Ok((low, high)) if reserved.fill([(number, region)], [low, high], self.id) => Ok((low, high)),
            Ok((low, high)) => {
                // A provider that does something else than it was asked. The whole again, if it can.
                // SAFETY: both come from the split, and nobody else has seen them.
                if unsafe { ability.merge(low, high) }.is_ok() {
                    revive(number);
                }
                Err(elsewhere(&low))
            }
            Err(error) => {
                revive(number);
                Err(error)
            }
        }
    }

    /// Merges two adjacent regions, retiring their exports. Where other processes have them open, the whole is held when it is
    /// freed.
    ///
    /// # Errors
    /// As [`Upstream::split`].
    ///
    /// # Safety
    /// The caller owns both regions.
    pub unsafe fn merge(&self, low: Region, high: Region) -> Result<Region> {
        let ability = self.split_merge()?;
        let numbers = (self.number_of(&low)?, self.number_of(&high)?);
        let apart = Error::InvalidArgument {
            what: "merge",
            why: "the second region must begin where the first ends",
        };
        if low.base().checked_add(low.size() as u64) != Some(high.base()) {
            return Err(apart);
        }
        let size = low.size().checked_add(high.size()).ok_or(apart)?;
        let reserved = Reserved::new([Region::with_id(low.base(), size, low.id())], self.id)?;
        for (index, (number, region)) in [(numbers.0, low), (numbers.1, high)].into_iter().enumerate() {
            let mut leases = Joined::default();
            let retired = self.retire(number, region, &mut leases).and_then(|()| {
                self.remember(region.base(), region.size(), leases.all().as_ref())
                    .inspect_err(|_| revive_exported(number, region))
            });
            if let Err(error) = retired {
                if index == 1 {
                    revive(numbers.0);
                }
                return Err(error);
            }
        }
        let revive_both = || {
            revive(numbers.0);
            revive(numbers.1);
        };
        // SAFETY: passed on to the caller.
        let merged = unsafe { ability.merge(low, high) };
        step(Step::UpstreamMerged);
        match merged {
            Ok(whole) if reserved.fill([(numbers.0, low), (numbers.1, high)], [whole], self.id) => Ok(whole),
            Ok(whole) => {
                // SAFETY: it comes from the merge, and nobody else has seen it.
                if unsafe { ability.split(whole, low.size()) }.is_ok() {
                    revive_both();
                }
                Err(elsewhere(&whole))
            }
            Err(error) => {
                revive_both();
                Err(error)
            }
        }
    }

    fn split_merge(&self) -> Result<&dyn crate::SplitMerge> {
        let unsupported =
            Error::NotSupported { what: "splitting and merging regions", owner: "this provider", native: 0 };
        self.provider.split_merge().ok_or(unsupported)
    }
}

/// A region is not where its provider was asked to make it.
fn elsewhere(region: &Region) -> Error {
    Error::ForeignAddress { address: region.base(), owner: "the memory that was split or merged" }
}

fn revive(number: RegionNumber) {
    if let Some(record) = REGIONS.get(number.0) {
        record.revive();
    }
}

/// As [`revive`], where other processes may still have the region open: its free asks the observers again.
fn revive_exported(number: RegionNumber, region: Region) {
    revive(number);
    let _ = mark_exported(number, region);
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop_letting_go();
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
