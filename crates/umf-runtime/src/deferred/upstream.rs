//! The methods of [`Upstream`] for deferred frees.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use super::items::{DeferredItem, DeferredMemory, Users};
use super::registry::{self, Claimed, REGISTRY};
use super::{Joined, poll, wait};
use crate::Upstream;
use crate::observer::Leases;
use crate::tracker::{self, RegionNumber};
use umf_core::deferred::{DeferredStatistics, OnFree};
use umf_core::{Address, Completion, Error, Progress, ProviderRef, Region, Result};
use umf_sync::failpoint;

/// The items that are polled when a free finds a lease.
const SOME: u32 = 8;
/// The items that are polled when a pool looks for ready completions: each poll may be a driver
/// call.
const FEW: u32 = 4;
/// The items that are polled before a pool takes more memory instead.
const MANY: u32 = 16;

/// The policy of an upstream for memory that is freed while it is leased.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    release: AtomicBool,
    /// Bytes at which allocating fails; 0: none.
    limit: AtomicU64,
    /// Whether a block was ever freed with a completion that was not ready.
    has_pending: AtomicBool,
}

impl Upstream {
    /// Sets the policy for memory that is freed while other processes have it open, and the bytes
    /// of it that may be held (0 is unlimited) before allocations fail with [`Error::HeldLimit`].
    /// Default: [`OnFree::Hold`], unlimited. Applies to later frees.
    pub fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        self.policy().release.store(on_free == OnFree::Release, Ordering::Relaxed);
        self.policy().limit.store(max_held_bytes, Ordering::Relaxed);
    }

    /// Defers the free of a block for which [`crate::observer::before_free`] returned `leases`, if
    /// any lease is left. For pools.
    ///
    /// Returns `true` if the free is deferred: the pool must not reuse the block before
    /// [`umf_core::DeferredFree::reclaim`]. Returns `false` if no process has the block open.
    #[must_use]
    pub fn defer(&self, address: Address, size: usize, leases: Arc<dyn Leases>) -> bool {
        if !leases.is_leased(address, size) {
            return false;
        }
        self.keep(DeferredMemory::Block, address, size, Users::lessees(leases), false);
        true
    }

    /// Defers the free of a block that was freed with a completion, until the completion is ready
    /// and the block has no leases left. `leases` is the result of
    /// [`crate::observer::before_free`]. Does not use the global allocator. Returns as
    /// [`Upstream::defer`] does.
    #[must_use]
    pub fn defer_until(
        &self,
        address: Address,
        size: usize,
        completion: Arc<dyn Completion>,
        leases: Option<Arc<dyn Leases>>,
    ) -> bool {
        let mut users = Users { leases, completion: Some(completion) };
        match users.progress(address, size) {
            Progress::Ready => return false,
            // Leased, and what it was freed with may be ready.
            Progress::Pending | Progress::Lost => {}
        }
        if users.leases.as_ref().is_some_and(|leases| !leases.is_leased(address, size)) {
            users.leases = None;
        }
        if users.leases.is_some() && users.completion.as_ref().is_some_and(|one| one.yields_to_leases()) {
            users.completion = None;
        }
        self.policy().has_pending.store(true, Ordering::Relaxed);
        self.keep(DeferredMemory::Block, address, size, users, false);
        true
    }

    /// Returns whether a block waits for a completion. Costs one load if no block ever did.
    #[inline]
    fn has_pending_blocks(&self) -> bool {
        self.policy().has_pending.load(Ordering::Relaxed) && registry::pending_bytes(self.id().number()) != 0
    }

    /// Polls a few blocks and regions, the least recently polled first, if a block waits for a
    /// completion. For pools, on the slow paths of allocating and of freeing with a completion.
    /// Memory that only leases defer does not cause a poll here. The caller must not hold a lock
    /// that [`umf_core::DeferredFree::reclaim`] acquires.
    #[inline]
    pub fn poll_pending(&self) {
        if self.has_pending_blocks() {
            poll::account(self.id().number(), FEW);
        }
    }

    /// As [`Upstream::poll_pending`], but polls more of them, before a pool takes more memory
    /// instead. Returns whether any was reclaimed.
    #[must_use]
    pub fn poll_many_pending(&self) -> bool {
        self.has_pending_blocks() && poll::account(self.id().number(), MANY) > 0
    }

    /// Reclaims all memory of this upstream that is not in use any more, and returns its bytes.
    ///
    /// The caller must not hold a lock that [`umf_core::DeferredFree::reclaim`] acquires.
    pub fn poll(&self) -> u64 {
        poll::account(self.id().number(), u32::MAX)
    }

    /// Polls a few blocks and regions, as [`Upstream::poll`] does. For pools whose `free` found a
    /// lease.
    pub fn poll_some(&self) -> u64 {
        poll::account(self.id().number(), SOME)
    }

    /// Checks the limit of [`Upstream::set_on_free`], and polls if it is reached. For pools, before
    /// they take more memory. The caller must not hold a lock that
    /// [`umf_core::DeferredFree::reclaim`] acquires.
    ///
    /// Costs one load if there is no limit.
    ///
    /// # Errors
    /// [`Error::HeldLimit`].
    #[inline]
    pub fn admit(&self) -> Result<()> {
        if self.policy().limit.load(Ordering::Relaxed) == 0 || self.check_held().is_ok() {
            return Ok(());
        }
        self.poll();
        self.check_held()
    }

    /// Checks the limit as [`Upstream::admit`] does, without polling.
    pub(crate) fn check_held(&self) -> Result<()> {
        let limit = self.policy().limit.load(Ordering::Relaxed);
        if limit == 0 {
            return Ok(());
        }
        match registry::leased_bytes(self.id().number()) {
            held if held >= limit => Err(Error::HeldLimit { held, limit }),
            _ => Ok(()),
        }
    }

    /// Returns what this upstream holds. Takes no lock.
    #[must_use]
    pub fn deferred(&self) -> DeferredStatistics {
        registry::of(self.id().number())
    }

    /// Waits until this upstream holds nothing, but no longer than `timeout`; returns what it still
    /// holds. See [`crate::deferred::drain`].
    pub fn drain(&self, timeout: Duration) -> DeferredStatistics {
        let account = self.id().number();
        wait(timeout, || self.poll(), || self.deferred(), || poll::is_settling(account))
    }

    /// Stops calls of [`umf_core::DeferredFree::reclaim`], and waits for those that have begun.
    /// Pools call it first in their `drop`: the deferred frees of blocks then move to the regions
    /// that the pool frees.
    pub fn stop_reclaiming(&self) {
        while !REGISTRY.lock().close(self.id().number()) {
            std::thread::yield_now();
        }
    }

    /// Records a deferred free. `lost`: the completion is lost, and that was logged.
    fn keep(&self, what: DeferredMemory, base: Address, size: usize, users: Users, lost: bool) {
        // Asynchronous work needs the contents.
        let done = users.completion.is_none();
        // Purged before the item is in the registry, where another thread may reclaim it.
        let purged =
            done && self.policy().release.load(Ordering::Relaxed) && purge(self.provider(), base, size);
        let item = DeferredItem { what, base, size, purged, refused: false, lost, users };
        let unrecorded = registry::insert(self.id().number(), item).err();
        if let Some(item) = unrecorded {
            registry::lose(&item);
        }
        failpoint!("held.kept");
    }

    /// Defers the free of a retired region, if any of the users is left.
    #[must_use]
    pub(crate) fn hold_region(&self, region: Region, number: RegionNumber, joined: Joined) -> bool {
        let lost = joined.lost;
        let users = joined.users();
        if users.progress(region.base(), region.size()) == Progress::Ready {
            return false;
        }
        let what = DeferredMemory::Region(region, Some(number), self.provider().clone());
        self.keep(what, region.base(), region.size(), users, lost);
        true
    }

    /// Collects the users of held memory that overlaps a region which is being freed, and takes out
    /// the items that lie in it.
    pub(crate) fn claim(&self, region: &Region, users: &mut Joined) {
        let account = self.id().number();
        loop {
            let claimed = REGISTRY.lock().claim(account, region);
            match claimed {
                Claimed::Chain(0) => break,
                Claimed::Busy => std::thread::yield_now(),
                Claimed::Chain(mut chain) => {
                    // The lock is free again while users are gathered, which may take memory.
                    loop {
                        let popped = REGISTRY.lock().pop(account, chain);
                        let Some((item, rest)) = popped else { break };
                        chain = rest;
                        users.lost |= item.lost;
                        users.add_users(item.users);
                    }
                }
            }
        }
        let claim = REGISTRY.lock().next_claim();
        loop {
            let met = REGISTRY.lock().peek(account, region, claim);
            let Some(met) = met else { break };
            users.add_users(met);
        }
    }

    /// Returns whether there may be items to claim. Held regions overlap no region that is not
    /// freed yet.
    pub(crate) fn may_hold(&self) -> bool {
        REGISTRY.lock().has_parts(self.id().number())
    }

    /// Moves the held regions of an upstream that is being dropped to the account of orphans.
    pub(crate) fn orphan(&self) {
        let account = self.id().number();
        loop {
            let mut registry = REGISTRY.lock();
            let Some((number, item)) = registry.first(account) else {
                registry.reopen(account);
                return;
            };
            match &mut item.what {
                DeferredMemory::Region(region, known, _) => match known.take() {
                    Some(known) => {
                        let region = *region;
                        drop(registry);
                        // The number of its owner will be reused.
                        tracker::remove(known, region);
                        failpoint!("held.orphaned");
                    }
                    None => registry.orphan(account, number),
                },
                // A block of a region that was not freed: neither is ever used again.
                DeferredMemory::Block => {
                    let item = registry.detach(number);
                    if let Some(item) = &item {
                        registry.forget(account, number, item);
                    }
                    drop(registry);
                    drop(item);
                }
            }
        }
    }
}

/// Purges the whole pages in the range, if the provider can. Returns whether it did.
pub(super) fn purge(provider: &ProviderRef, base: Address, size: usize) -> bool {
    let Some(ability) = provider.purge() else { return false };
    let page = provider.page_size();
    let whole = || {
        let first = base.align_up(page)?;
        let before = usize::try_from(first.offset_from(base)?).ok()?;
        let pages = size.checked_sub(before)? / page * page;
        (pages > 0).then_some((first, pages))
    };
    let Some((first, pages)) = whole() else { return false };
    // SAFETY: the memory is freed, so this process does not need its content. For importers the
    // application chose `OnFree::Release`.
    match unsafe { ability.purge_forced(first, pages) } {
        Ok(()) => {
            failpoint!("held.purged");
            true
        }
        Err(Error::NotSupported { .. }) => false,
        Err(error) => {
            tracing::warn!(address = %first, size = pages, %error, "cannot purge freed memory; its pages stay until it is reclaimed");
            false
        }
    }
}
