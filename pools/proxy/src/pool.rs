//! [`ProxyPool`]: each block is a region, with a record whose state word says whether it is live.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::Freed;
use umf_core::statistics::{Gauge, PoolStatistics};
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, FactoryError, Layout, Pool, PoolFactory,
    PoolRequest, ProviderRef, Region, Result,
};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;
use umf_runtime::limit::Reserved;
use umf_runtime::observer::before_free;
use umf_runtime::tracker::{self, TrackedRegion};
use umf_sync::chunks::Zeroable;
use umf_sync::table::Table;

const OWNER: &str = "this proxy pool";

/// A pool that passes each request to its provider.
///
/// Dropping the pool returns every region, those of live blocks included, after it has retired the
/// exports of these blocks.
pub struct ProxyPool {
    // First, so that it is dropped, and its guards waited for, before the data that they use.
    upstream: Upstream,
    settings: ProxySettings,
    /// One record per region. The tracker has its number as the span of the region.
    blocks: Table<BlockState>,
    live: Gauge,
    /// The bytes of regions that are not returned: those of live blocks, and of deferred ones.
    reserved: Reserved,
    allocations: AtomicU64,
}

impl ProxyPool {
    /// Returns a pool over `provider` with default settings.
    ///
    /// # Errors
    /// As [`ProxyPool::with_settings`].
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Arc<Self>> {
        Self::with_settings(provider, ProxySettings::default())
    }

    /// Returns a pool over `provider`.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 16,383 pools in one process.
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
            // SAFETY: an `Arc`'s content does not move, and `upstream`, a field, is dropped before
            // the pool is.
            unsafe { pool.upstream.set_pool(this) };
        }
        Ok(pool)
    }

    /// Publishes a region as a live block.
    fn publish(&self, region: &Region, number: tracker::RegionNumber) -> Result<()> {
        let (span, block) = self.blocks.allocate()?;
        block.publish(region);
        tracker::set_span(number, region.base(), region.size(), span).inspect_err(|_| {
            block.clear_live(region);
            self.blocks.release(span);
        })
    }

    fn allocate_once(&self, layout: Layout) -> Result<Address> {
        self.upstream.admit()?;
        self.upstream.poll_pending();
        // Memory that only leases deferred.
        if !self.upstream.deferred().is_empty() {
            self.upstream.poll_some();
        }
        let (region, number) = match self.reserved.allocate_region(&self.upstream, layout) {
            // The memory that is missing may be deferred, or free in pools that share the limit.
            Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) if self.upstream.poll() > 0 => {
                self.reserved.allocate_region(&self.upstream, layout)?
            }
            Err(error) if self.reserved.reclaim(&error) => {
                self.reserved.allocate_region(&self.upstream, layout)?
            }
            result => result?,
        };
        if let Err(error) = self.publish(&region, number) {
            self.reserved.remove_region(region.size());
            // The first error is returned, even if the provider refuses the region.
            // SAFETY: no other code knows the region.
            let _ = unsafe { self.upstream.free(region) };
            return Err(error);
        }
        self.live.add(region.size());
        self.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(region.base())
    }

    /// Frees a block; with a `completion`, when that is ready.
    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        if self.upstream.is_frozen() {
            return Ok(());
        }
        let (found, block) = self.find_start(address)?;
        let size = found.region.size();
        let leases = match block.clear_live(&found.region) {
            Some(true) => before_free(Freed::Block { address }),
            Some(false) => None,
            None => return Err(Error::NotAllocated { address }),
        };
        if leases.is_some() || completion.is_some() {
            // Before the upstream holds the block: from then on another thread may reclaim it.
            block.set_deferred(&found.region);
            let is_held = match (completion, leases) {
                (Some(completion), leases) => self.upstream.defer_until(address, size, completion, leases),
                (None, Some(leases)) => self.upstream.defer(address, size, leases),
                (None, None) => false,
            };
            if is_held {
                self.live.remove(size);
                self.upstream.poll_some();
                return Ok(());
            }
            block.clear_deferred(&found.region);
        }
        self.return_region(&found).inspect_err(|_| block.restore_live(&found.region))?;
        self.live.remove(size);
        Ok(())
    }

    /// Returns the region of a block whose live state the caller has cleared. After an error the
    /// tracker has the region as before.
    fn return_region(&self, freed: &TrackedRegion) -> Result<()> {
        // SAFETY: the block is the whole region, and only the caller has cleared its live state.
        let outcome =
            unsafe { self.upstream.free(freed.region) }.inspect_err(|_| self.restore_span(freed))?;
        self.blocks.release(freed.span);
        if outcome == FreeOutcome::Freed {
            self.reserved.remove_region(freed.region.size());
        }
        Ok(())
    }

    /// Sets the span of a region again, after the provider refused the region.
    fn restore_span(&self, freed: &TrackedRegion) {
        // The tracker may have removed the region and entered it again, without its span.
        if let Some(found) = tracker::find(freed.region.base()).filter(|found| found.region == freed.region) {
            let _ = tracker::set_span(found.number, found.region.base(), found.region.size(), freed.span);
        }
    }

    /// Returns the region and the record of the live block that holds `address`.
    fn find(&self, address: Address) -> Result<(TrackedRegion, &BlockState)> {
        let foreign = Error::ForeignAddress { address, owner: OWNER };
        let found =
            tracker::find(address).filter(|found| found.owner == self.upstream.id()).ok_or(foreign)?;
        let block = self.blocks.get(found.span).filter(|block| block.is_live(&found.region));
        Ok((found, block.ok_or(Error::NotAllocated { address })?))
    }

    /// Returns the region and the record of the live block that begins at `address`.
    fn find_start(&self, address: Address) -> Result<(TrackedRegion, &BlockState)> {
        let (found, block) = self.find(address)?;
        if found.region.base() == address {
            Ok((found, block))
        } else {
            Err(Error::InteriorAddress { address })
        }
    }
}

// SAFETY: a block is a region of the provider until it is freed. `free_block` announces an exported
// block before it returns the region.
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
        // The pool keeps no free memory. Deferred blocks may be ready.
        if self.upstream.is_frozen() {
            return Ok(0);
        }
        Ok(usize::try_from(self.upstream.poll()).unwrap_or(usize::MAX))
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

// SAFETY: `free_block` announces exported blocks before it returns their regions. Blocks that the
// upstream holds stay regions of the pool until `reclaim`.
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
                let block = self.blocks.get(found.span).filter(|block| block.clear_deferred(&found.region));
                let block = block.ok_or(none)?;
                self.return_region(&found).inspect_err(|_| block.set_deferred(&found.region))
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
            if block.clear_live(&found.region) == Some(true)
                && !self.upstream.is_frozen()
                && let Some(leases) = before_free(Freed::Block { address })
            {
                // The upstream then holds the region until the leases of the block end.
                let _ = self.upstream.defer(address, found.region.size(), leases);
            }
            // A region that the provider refuses is leaked.
            // SAFETY: by the contract of `allocate`, no thread uses a block of a dropped pool.
            let _ = unsafe { self.upstream.free(found.region) };
        }
        // Regions that the provider refused no longer count against the shared limit.
        self.reserved.remove(usize::try_from(self.reserved.bytes()).unwrap_or(0));
        // Waits for threads that use the pool through the tracker.
        self.upstream.close();
    }
}

impl fmt::Debug for ProxyPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy pool {:?} over {:?}", self.settings.name, self.upstream.provider())
    }
}

// Flags of a state word.

const LIVE: u64 = 1;
/// With [`LIVE`]: an export names the block. Alone: the free of the block is deferred.
const EXPORTED: u64 = 2;
const FLAGS: u32 = 2;

/// The record of a block. Its state word has the id of the region besides the flags, so that the
/// compare-and-swap of a free fails if the record is now that of another block.
#[derive(Debug)]
struct BlockState {
    /// The id of the region shifted by [`FLAGS`], with the flags; 0 while the record is not in use.
    state: AtomicU64,
    base: AtomicU64,
}

// SAFETY: all fields are atomics, and a zeroed record is not in use.
unsafe impl Zeroable for BlockState {}

const fn live(region: &Region) -> u64 {
    (region.id().get() << FLAGS) | LIVE
}

impl BlockState {
    /// Fills the record of a number that was just allocated.
    fn publish(&self, region: &Region) {
        self.base.store(region.base().to_bits(), Ordering::Relaxed);
        self.state.store(live(region), Ordering::Release);
    }

    /// Returns whether the record is that of `region`, live.
    fn is_live(&self, region: &Region) -> bool {
        self.state.load(Ordering::Acquire) & !EXPORTED == live(region)
    }

    /// Clears the live state, once. Returns whether the block was exported; `None` if it is not
    /// live.
    fn clear_live(&self, region: &Region) -> Option<bool> {
        let same = |state| (state & !EXPORTED == live(region)).then_some(0);
        let old = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, same).ok()?;
        Some(old & EXPORTED != 0)
    }

    /// Makes the block live again, after the provider refused its region.
    fn restore_live(&self, region: &Region) {
        self.state.store(live(region), Ordering::Release);
    }

    /// Marks a block whose live state was cleared as deferred.
    fn set_deferred(&self, region: &Region) {
        self.state.store((region.id().get() << FLAGS) | EXPORTED, Ordering::Release);
    }

    /// Clears the state of a deferred block, once; returns `false` if the block is not deferred.
    fn clear_deferred(&self, region: &Region) -> bool {
        let deferred = (region.id().get() << FLAGS) | EXPORTED;
        self.state.compare_exchange(deferred, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns whether the record is that of `region`, live or deferred.
    fn belongs_to(&self, region: &Region) -> bool {
        self.state.load(Ordering::Acquire) >> FLAGS == region.id().get()
    }

    /// Flags a live block as exported; returns `false` if it is not live.
    fn mark_exported(&self, region: &Region) -> bool {
        let same = |state| (state & !EXPORTED == live(region)).then_some(state | EXPORTED);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, same).is_ok()
    }

    /// Returns where the block begins, if the record is in use.
    fn address(&self) -> Option<Address> {
        let used = self.state.load(Ordering::Acquire) != 0;
        used.then(|| Address::from_bits(self.base.load(Ordering::Relaxed)))
    }
}

// Settings.

umf_core::pool_settings! {
    /// The settings of a [`crate::ProxyPool`]. The kind has no keys of its own.
    #[non_exhaustive]
    pub struct ProxySettings {}
    name: String = "proxy"
}

impl PoolFactory for ProxyPool {
    const KIND: &'static str = "proxy";
    type Settings = ProxySettings;

    fn build(request: PoolRequest<'_>, settings: ProxySettings) -> Result<Arc<dyn Pool>, FactoryError> {
        let settings = settings.requested(&request);
        Ok(Self::with_settings(request.provider, settings)?)
    }
}
