//! [`ProxyPool`]: a block is a region.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::fork::{self, ForkAware};
use umf_core::metadata::Table;
use umf_core::observer::{Freed, before_free};
use umf_core::statistics::{Gauge, PoolStatistics};
use umf_core::tracker::{self, Found};
use umf_core::{Address, BlockSpan, Error, Layout, Pool, ProviderRef, Region, Result, Upstream};

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
        let pool = Arc::new(Self {
            upstream: Upstream::new(provider)?,
            settings,
            blocks: Table::new(u32::MAX >> 2),
            live: Gauge::new(),
            allocations: AtomicU64::new(0),
        });
        let this = Arc::as_ptr(&pool) as *const dyn Pool;
        if let Some(this) = NonNull::new(this.cast_mut()) {
            // SAFETY: an `Arc`'s content does not move, and `upstream`, a field, is dropped before it goes.
            unsafe { pool.upstream.set_pool(this) };
        }
        // SAFETY: as above, and `drop` unregisters.
        unsafe { fork::register(pool.fork_aware())? };
        Ok(pool)
    }

    fn fork_aware(&self) -> NonNull<dyn ForkAware> {
        let this: &dyn ForkAware = self;
        // SAFETY: only the lifetime changes; `drop` unregisters the pool before it goes.
        unsafe { core::mem::transmute::<NonNull<dyn ForkAware>, NonNull<dyn ForkAware>>(NonNull::from(this)) }
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

    /// Makes a block live again whose region the provider did not take back.
    fn reenter(&self, freed: &Found, block: &Block) {
        block.revive(&freed.region);
        // The tracker may have taken the region out and in again, without its span.
        if let Some(found) = tracker::find(freed.region.base()).filter(|found| found.region == freed.region) {
            let _ = tracker::set_span(found.number, found.region.base(), found.region.size(), freed.span);
        }
    }

    /// The region and record that hold `address`, if the block is live.
    fn find(&self, address: Address) -> Result<(Found, &Block)> {
        let foreign = Error::ForeignAddress { address, owner: OWNER };
        let found =
            tracker::find(address).filter(|found| found.owner == self.upstream.id()).ok_or(foreign)?;
        let block = self.blocks.get(found.span).filter(|block| block.is_live(&found.region));
        Ok((found, block.ok_or(Error::NotAllocated { address })?))
    }

    fn find_start(&self, address: Address) -> Result<(Found, &Block)> {
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
        let limit = self.settings.memory_limit;
        let size = layout.pad_to(self.provider().page_size())?.size();
        let reached = Error::LimitReached { what: "pool memory", limit, size };
        // Asked before the provider is, so that the limit is never passed, and set right by what it gave.
        if limit != 0 && size as u64 > limit.saturating_sub(self.live.bytes()) {
            return Err(reached);
        }
        let (region, number) = self.upstream.allocate(layout)?;
        let entered = if self.live.try_add(region.size(), limit) {
            self.enter(&region, number).inspect_err(|_| self.live.remove(region.size()))
        } else {
            Err(reached)
        };
        if let Err(error) = entered {
            // SAFETY: nobody has seen the region. If it cannot be taken back, the first error still matters more.
            let _ = unsafe { self.upstream.free(region) };
            return Err(error);
        }
        self.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(region.base())
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        if self.upstream.is_frozen() {
            return Ok(());
        }
        let (found, block) = self.find_start(address)?;
        match block.end(&found.region) {
            Some(true) => drop(before_free(Freed::Block { address })),
            Some(false) => {}
            None => return Err(Error::NotAllocated { address }),
        }
        // SAFETY: the caller owns the block, which is the whole region, and `end` let nobody else through.
        unsafe { self.upstream.free(found.region) }.inspect_err(|_| self.reenter(&found, block))?;
        self.blocks.release(found.span);
        self.live.remove(found.region.size());
        Ok(())
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        let (found, _) = self.find(address)?;
        Ok(BlockSpan { address: found.region.base(), size: found.region.size() })
    }

    fn mark_exported(&self, address: Address) -> Result<()> {
        let (found, block) = self.find_start(address)?;
        if block.mark_exported(&found.region) { Ok(()) } else { Err(Error::NotAllocated { address }) }
    }

    fn trim(&self, _keep: usize) -> Result<usize> {
        // Nothing free is ever kept.
        Ok(0)
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = PoolStatistics::default();
        statistics.live_bytes = self.live.bytes();
        statistics.live_blocks = self.live.count();
        statistics.reserved_bytes = statistics.live_bytes;
        statistics.peak_reserved_bytes = self.live.peak();
        statistics.regions = statistics.live_blocks;
        statistics.allocations = self.allocations.load(Ordering::Relaxed);
        statistics.frees = statistics.allocations.saturating_sub(statistics.live_blocks);
        statistics
    }
}

impl ForkAware for ProxyPool {
    fn prepare(&self) {
        self.blocks.lock_for_fork();
    }

    fn parent(&self) {
        // SAFETY: `prepare` took it in this thread, or in the one of which this is the copy.
        unsafe { self.blocks.unlock_after_fork() };
    }

    fn child(&self) {
        self.parent();
    }
}

impl Drop for ProxyPool {
    fn drop(&mut self) {
        fork::unregister(self.fork_aware());
        for number in 1..self.blocks.end() {
            let Some((address, block)) =
                self.blocks.get(number).and_then(|block| Some((block.address()?, block)))
            else {
                continue;
            };
            let Some(found) = tracker::find(address).filter(|found| block.is_live(&found.region)) else {
                continue;
            };
            if block.end(&found.region) == Some(true) && !self.upstream.is_frozen() {
                drop(before_free(Freed::Block { address }));
            }
            // SAFETY: whoever still uses a block of a pool that is gone breaks the contract of `allocate`. A
            // provider that refuses keeps the region.
            let _ = unsafe { self.upstream.free(found.region) };
        }
    }
}

impl fmt::Debug for ProxyPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy pool {:?} over {:?}", self.settings.name, self.upstream.provider())
    }
}
