//! DeferredMemory an [`Upstream`] holds.

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

/// How many items are looked at when a free finds a lease.
const SOME: u32 = 8;
/// How many are where a pool looks what has become ready: each may be a call of a driver.
const FEW: u32 = 4;
/// And before it takes more memory instead.
const MANY: u32 = 16;

/// DeferredMemory an upstream does with memory that is freed while it is leased.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    release: AtomicBool,
    /// Bytes at which allocating fails; 0: none.
    limit: AtomicU64,
    /// Whether anything was ever held until a completion is ready.
    has_pending: AtomicBool,
}

impl Upstream {
    /// Sets what becomes of memory that is freed while other processes have it open, and how many bytes of it may be held
    /// (0 is unlimited) before allocating fails as [`Error::HeldLimit`]. Default: [`OnFree::Hold`], unlimited.
    ///
    /// Concerns what is freed from now on.
    pub fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        self.policy().release.store(on_free == OnFree::Release, Ordering::Relaxed);
        self.policy().limit.store(max_held_bytes, Ordering::Relaxed);
    }

    /// Holds a block that the pool has just freed and that [`crate::observer::before_free`] answered `leases` for, if any is
    /// left. For pools.
    ///
    /// `true`: the block is held. The pool keeps it from everyone until [`umf_core::DeferredFree::reclaim`]. `false`: no process has it open;
    /// it is free.
    #[must_use]
    pub fn defer(&self, address: Address, size: usize, leases: Arc<dyn Leases>) -> bool {
        if !leases.is_leased(address, size) {
            return false;
        }
        self.keep(DeferredMemory::Block, address, size, Users::lessees(leases), false);
        true
    }

    /// As [`Upstream::defer`], for a block that its owner freed with a completion: it is held until that is ready and nobody
    /// has the block open any more. `leases`: what [`crate::observer::before_free`] answered. Takes no memory from the global
    /// allocator.
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

    /// Whether anything waits for a completion. A load, where nothing ever did.
    #[inline]
    fn has_pending_blocks(&self) -> bool {
        self.policy().has_pending.load(Ordering::Relaxed) && registry::pending_bytes(self.id().number()) != 0
    }

    /// If blocks wait for completions, looks whether a few of them are ready. For pools, on the slow paths of allocating and of
    /// freeing with a completion, and without any lock that [`umf_core::DeferredFree::reclaim`] takes.
    #[inline]
    pub fn poll_pending(&self) {
        if self.has_pending_blocks() {
            poll::account(self.id().number(), FEW);
        }
    }

    /// The same with more of them, before a pool takes more memory instead; whether any went.
    #[must_use]
    pub fn poll_many_pending(&self) -> bool {
        self.has_pending_blocks() && poll::account(self.id().number(), MANY) > 0
    }

    /// Lets go of what this upstream holds and nobody leases any more; returns how many bytes that was.
    ///
    /// To be called without any lock that [`umf_core::DeferredFree::reclaim`] takes.
    pub fn poll(&self) -> u64 {
        poll::account(self.id().number(), u32::MAX)
    }

    /// As [`Upstream::poll`], for a few of the blocks and regions: for pools whose `free` found a lease.
    pub fn poll_some(&self) -> u64 {
        poll::account(self.id().number(), SOME)
    }

    /// Whether the bound of [`Upstream::set_on_free`] lets more be allocated; polls if it does not. For pools, on the way to more
    /// memory, and without any lock that [`umf_core::DeferredFree::reclaim`] takes.
    ///
    /// Costs a load where there is no bound.
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

    /// As [`Upstream::admit`], without polling.
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

    /// DeferredMemory this upstream holds. Takes no lock.
    #[must_use]
    pub fn deferred(&self) -> DeferredStatistics {
        registry::of(self.id().number())
    }

    /// Waits until this upstream holds nothing, but no longer than `timeout`; returns what it still holds. See
    /// [`crate::deferred::drain`].
    pub fn drain(&self, timeout: Duration) -> DeferredStatistics {
        wait(timeout, || self.poll(), || self.deferred())
    }

    /// From now on [`umf_core::DeferredFree::reclaim`] is not called any more. For pools, first thing when they are dropped: what they
    /// hold goes over to the regions that they free.
    pub fn stop_reclaiming(&self) {
        while !REGISTRY.lock().close(self.id().number()) {
            std::thread::yield_now();
        }
    }

    /// `lost`: their completion is lost, and the log says so already.
    fn keep(&self, what: DeferredMemory, base: Address, size: usize, users: Users, lost: bool) {
        // Work that was given away needs the contents.
        let done = users.completion.is_none();
        // Before anybody can let it go.
        let purged =
            done && self.policy().release.load(Ordering::Relaxed) && purge(self.provider(), base, size);
        let item = DeferredItem { what, base, size, purged, refused: false, lost, users };
        let unrecorded = registry::insert(self.id().number(), item).err();
        if let Some(item) = unrecorded {
            registry::lose(&item);
        }
        failpoint!("held.kept");
    }

    /// Holds a region whose life was taken, if any of the users is left.
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

    /// All users of what is held in a region that is about to go, and takes out what lies in it.
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

    /// Whether there may be something to claim. (Regions that are held share no byte with one that is not freed yet.)
    pub(crate) fn may_hold(&self) -> bool {
        REGISTRY.lock().has_parts(self.id().number())
    }

    /// The upstream goes, and nobody lets go of anything of it any more: regions are held on without it.
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
                        // Its owner's number will be another's.
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

/// Gives the whole pages in the range back, if the provider can.
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
    // SAFETY: the memory is freed: nobody in this process needs its content, and for others that is what was asked for.
    match unsafe { ability.purge_forced(first, pages) } {
        Ok(()) => {
            failpoint!("held.purged");
            true
        }
        Err(Error::NotSupported { .. }) => false,
        Err(error) => {
            tracing::warn!(address = %first, size = pages, %error, "pages of freed memory could not be given back; they are held");
            false
        }
    }
}
