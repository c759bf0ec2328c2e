//! [`ProxyPool`]: a block is a region.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::Freed;
use umf_core::statistics::{Gauge, PoolStatistics};
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, Layout, Pool, ProviderRef, Region, Result,
};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;
use umf_runtime::limit::Reserved;
use umf_runtime::observer::before_free;
use umf_runtime::tracker::{self, TrackedRegion};
use umf_sync::table::Table;

use crate::ProxySettings;
use crate::block::Block;

const OWNER: &str = "this proxy pool";

/// A pool that passes each request to its provider.
///
/// Dropping it gives every region back, those of live blocks included (their exports are retired first).
pub struct ProxyPool {
    // First, so that it is dropped before what its guards could still reach.
    upstream: Upstream,
    settings: ProxySettings,
    /// One record per region; its number is the tracker's span of the region.
    blocks: Table<Block>,
    live: Gauge,
    /// Regions that the provider has not got back: those of live blocks, and those that are held.
    reserved: Reserved,
    allocations: AtomicU64,
}

impl ProxyPool {
    /// A pool over `provider` with default settings.
    ///
    /// # Errors
    /// As [`ProxyPool::with_settings`].
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Arc<Self>> {
        Self::with_settings(provider, ProxySettings::default())
    }

    /// A pool over `provider`.
    ///
    /// # Errors
    /// [`Error::TooMany`] past 16,383 pools in one process.
    pub fn with_settings(provider: impl Into<ProviderRef>, settings: ProxySettings) -> Result<Arc<Self>> {
        let upstream = Upstream::new(provider)?;
        upstream.set_on_free(settings.on_free, settings.max_held);
        let reserved = Reserved::new(settings.memory_limit, settings.shared_limit.clone());
        upstream.set_on_out_of_memory(settings.out_of_memory.clone());
        let pool = Arc::new(Self {
            upstream,
            settings,
            blocks: Table::new(u32::MAX >> 2),
            live: Gauge::new(),
            reserved,
            allocations: AtomicU64::new(0),
        });
        let this = Arc::as_ptr(&pool) as *const dyn Pool;
        if let Some(this) = NonNull::new(this.cast_mut()) {
            // SAFETY: an `Arc`'s content does not move, and `upstream`, a field, is dropped before the pool goes.
            unsafe { pool.upstream.set_pool(this) };
        }
        Ok(pool)
    }

    /// Makes the region known as a block.
    fn enter(&self, region: &Region, number: tracker::RegionNumber) -> Result<()> {
        let (span, block) = self.blocks.allocate()?;
        block.publish(region);
        tracker::set_span(number, region.base(), region.size(), span).inspect_err(|_| {
            block.end(region);
            self.blocks.release(span);
        })
    }

    fn allocate_once(&self, layout: Layout) -> Result<Address> {
        self.upstream.admit()?;
        self.upstream.poll_pending();
        let (region, number) = match self.reserved.allocate_region(&self.upstream, layout) {
            // What nobody uses any more may be what is lacking; or what is free with those who share the limit.
            Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) if self.upstream.poll() > 0 => {
                self.reserved.allocate_region(&self.upstream, layout)?
            }
            Err(error) if self.reserved.reclaim(&error) => {
                self.reserved.allocate_region(&self.upstream, layout)?
            }
            result => result?,
        };
        if let Err(error) = self.enter(&region, number) {
            self.reserved.remove_region(region.size());
            // SAFETY: nobody has seen the region. If it cannot be taken back, the first error still matters more.
            let _ = unsafe { self.upstream.free(region) };
            return Err(error);
        }
        self.live.add(region.size());
        self.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(region.base())
    }

    /// Frees a block, which goes back when `completion` is ready.
    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        if self.upstream.is_frozen() {
            return Ok(());
        }
        let (found, block) = self.find_start(address)?;
        let size = found.region.size();
        let leases = match block.end(&found.region) {
            Some(true) => before_free(Freed::Block { address }),
            Some(false) => None,
            None => return Err(Error::NotAllocated { address }),
        };
        if leases.is_some() || completion.is_some() {
            // Before it can be let go.
            block.hold(&found.region);
            let held = match (completion, leases) {
                (Some(completion), leases) => self.upstream.defer_until(address, size, completion, leases),
                (None, Some(leases)) => self.upstream.defer(address, size, leases),
                (None, None) => false,
            };
            if held {
                self.live.remove(size);
                self.upstream.poll_some();
                return Ok(());
            }
            block.end_hold(&found.region);
        }
        self.give_back(&found).inspect_err(|_| block.revive(&found.region))?;
        self.live.remove(size);
        Ok(())
    }

    /// Gives the region of a block back, whose life the caller has taken. After an error the region is found as before.
    fn give_back(&self, freed: &TrackedRegion) -> Result<()> {
        // SAFETY: the caller owned the block, which is the whole region, and `end` let nobody else through.
        let fate = unsafe { self.upstream.free(freed.region) }.inspect_err(|_| self.reenter(freed))?;
        self.blocks.release(freed.span);
        if fate == FreeOutcome::Freed {
            self.reserved.remove_region(freed.region.size());
        }
        Ok(())
    }

    /// Makes a region findable whose provider did not take it back.
    fn reenter(&self, freed: &TrackedRegion) {
        // The tracker may have taken the region out and in again, without its span.
        if let Some(found) = tracker::find(freed.region.base()).filter(|found| found.region == freed.region) {
            let _ = tracker::set_span(found.number, found.region.base(), found.region.size(), freed.span);
        }
    }

    /// The region and record that hold `address`, if the block is live.
    fn find(&self, address: Address) -> Result<(TrackedRegion, &Block)> {
        let foreign = Error::ForeignAddress { address, owner: OWNER };
        let found =
            tracker::find(address).filter(|found| found.owner == self.upstream.id()).ok_or(foreign)?;
        let block = self.blocks.get(found.span).filter(|block| block.is_live(&found.region));
        Ok((found, block.ok_or(Error::NotAllocated { address })?))
    }

    fn find_start(&self, address: Address) -> Result<(TrackedRegion, &Block)> {
        let (found, block) = self.find(address)?;
        if found.region.base() == address {
            Ok((found, block))
        } else {
            Err(Error::InteriorAddress { address })
        }
    }
}

// SAFETY: a block is a region that the provider handed out, and stays it until freed; exported ones are
// announced in `free` before their region goes.
unsafe impl Pool for ProxyPool {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn provider(&self) -> &ProviderRef {
        self.upstream.provider()
    }

    fn allocate(&self, layout: Layout) -> Result<Address> {
        self.upstream.retry_on_out_of_memory(self, layout, || self.allocate_once(layout))
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.free_block(address, None)
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        let (found, _) = self.find(address)?;
        Ok(BlockSpan { address: found.region.base(), size: found.region.size() })
    }

    fn trim(&self, _keep: usize) -> Result<usize> {
        // Nothing free is ever kept; what is freed may be held.
        if self.upstream.is_frozen() {
            return Ok(0);
        }
        let went = usize::try_from(self.upstream.poll());
        Ok(went.unwrap_or(usize::MAX))
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = PoolStatistics::default();
        statistics.live_bytes = self.live.bytes();
        statistics.live_blocks = self.live.count();
        statistics.reserved_bytes = self.reserved.bytes();
        statistics.peak_reserved_bytes = self.reserved.peak();
        statistics.regions = self.reserved.regions();
        statistics.held_bytes = self.upstream.deferred().bytes;
        statistics.allocations = self.allocations.load(Ordering::Relaxed);
        statistics.frees = statistics.allocations.saturating_sub(statistics.live_blocks);
        statistics
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        Some(self)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        Some(&self.upstream)
    }
}

// SAFETY: `free_block` announces exported blocks before they can be handed out again; what the upstream holds stays
// out of reach until `reclaim`.
unsafe impl DeferredFree for ProxyPool {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let (found, block) = self.find_start(address)?;
        if block.mark_exported(&found.region) { Ok(()) } else { Err(Error::NotAllocated { address }) }
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_block(address, Some(completion))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } => {
                let none = Error::NotAllocated { address };
                let found = tracker::find(address).filter(|found| found.owner == self.upstream.id());
                let found = found.filter(|found| found.region.base() == address).ok_or(none)?;
                let block = self.blocks.get(found.span).filter(|block| block.end_hold(&found.region));
                let block = block.ok_or(none)?;
                self.give_back(&found).inspect_err(|_| block.hold(&found.region))
            }
            Freed::Region(region) => {
                self.reserved.remove_region(region.size());
                Ok(())
            }
        }
    }
}

impl Drop for ProxyPool {
    fn drop(&mut self) {
        self.upstream.stop_reclaiming();
        for number in 1..self.blocks.end() {
            let Some((address, block)) =
                self.blocks.get(number).and_then(|block| Some((block.address()?, block)))
            else {
                continue;
            };
            let Some(found) = tracker::find(address).filter(|found| block.belongs_to(&found.region)) else {
                continue;
            };
            if block.end(&found.region) == Some(true)
                && !self.upstream.is_frozen()
                && let Some(leases) = before_free(Freed::Block { address })
            {
                // The region is held when it is freed, as long as the block is.
                let _ = self.upstream.defer(address, found.region.size(), leases);
            }
            // SAFETY: whoever still uses a block of a pool that is gone breaks the contract of `allocate`. A
            // provider that refuses keeps the region.
            let _ = unsafe { self.upstream.free(found.region) };
        }
        // What could not be given back no longer counts against the shared limit.
        self.reserved.remove(usize::try_from(self.reserved.bytes()).unwrap_or(0));
        // Waits for threads that are shown the pool.
        self.upstream.close();
    }
}

impl fmt::Debug for ProxyPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy pool {:?} over {:?}", self.settings.name, self.upstream.provider())
    }
}
