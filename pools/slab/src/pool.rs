//! [`SlabPool`]: the layers, put together.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::leaks::LeakReport;
use umf_core::limit::SharedLimit;
use umf_core::map::PoolMap;
use umf_core::statistics::PoolStatistics;
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, Freed, Inspect, Layout, Pool, ProviderRef,
    Reserve, Result, ShareLimit,
};
use umf_sync::failpoint;

use crate::central::{Central, Slabs};
use crate::free::LocatedSpan;
use crate::heaps::Heaps;
use crate::inspect::Requested;
use crate::purge::Policy;
use crate::regions::{Backend, OWNER};
use crate::remote::FreeBatches;
use crate::section::{CLOSING, FENCED, SHARED, TRACED};
use crate::state;
use crate::transfer::TransferCache;
use crate::types::Kind;
use crate::{SlabSettings, registry};

/// A pool of slabs and large blocks with per-thread caches and all metadata out of band.
///
/// See the [crate documentation](crate) for its structure. Dropping the pool returns every region
/// to the provider, those with live blocks included. [`Pool::statistics`] counts live blocks.
///
/// ```no_run
/// use umf_core::{Layout, Pool, ProviderRef};
/// use umf_pool_slab::{SlabPool, SlabSettings};
///
/// fn use_pool(provider: ProviderRef) -> umf_core::Result<()> {
///     let pool = SlabPool::new(provider, SlabSettings::new().name("messages"))?;
///     let block = pool.allocate(Layout::new(100, 8)?)?;
///     // SAFETY: the block is ours, and no thread uses it.
///     unsafe { pool.free(block) }
/// }
/// ```
pub struct SlabPool {
    // First, so that its upstream is dropped, and guards waited for, before the data that they use.
    pub(crate) back: Backend,
    pub(crate) heaps: Heaps,
    pub(crate) transfer: TransferCache,
    /// Empty batches of remote frees.
    pub(crate) batches: FreeBatches,
    /// When a late double free may be reported again, in ms.
    pub(crate) late_report_due: AtomicU64,
    central: Central,
    pub(crate) policy: Policy,
    pub(crate) requested: Requested,
    /// Whether any block was ever exported.
    any_exported: AtomicBool,
    pub(crate) settings: SlabSettings,
}

impl SlabPool {
    /// Returns a pool over `provider`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for settings out of range, [`Error::TooMany`] past 16,384 pools;
    /// those of [`umf_core::Reserve::reserve`] if [`SlabSettings::reserve`] is set.
    pub fn new(provider: impl Into<ProviderRef>, settings: SlabSettings) -> Result<Arc<Self>> {
        let pool = Arc::new(Self::unregistered(provider.into(), settings)?);
        // SAFETY: an `Arc`'s content does not move, and `drop` removes the pool again.
        unsafe { pool.register()? };
        pool.begin()?;
        Ok(pool)
    }

    /// Returns a pool that nothing refers to yet.
    pub(crate) fn unregistered(provider: ProviderRef, settings: SlabSettings) -> Result<Self> {
        let settings = settings.checked()?;
        let shared = provider.visibility() == umf_core::Visibility::Shared;
        let fenced = !umf_sync::fence::is_usable();
        let flag = |set, flag| if set { flag } else { 0 };
        let flags = flag(shared, SHARED) | flag(fenced, FENCED) | flag(settings.trace >= 3, TRACED);
        Ok(Self {
            back: Backend::new(provider, &settings)?,
            heaps: Heaps::new(&settings, flags)?,
            transfer: TransferCache::new(&settings),
            batches: FreeBatches::new(),
            late_report_due: AtomicU64::new(0),
            central: Central::new(),
            policy: Policy::new(&settings),
            requested: Requested::new(),
            any_exported: AtomicBool::new(false),
            settings,
        })
    }

    /// Registers the pool with the tracker, for forks and for ends of threads.
    ///
    /// # Safety
    /// The pool is not moved until it is dropped.
    pub(crate) unsafe fn register(&self) -> Result<()> {
        let pool: &dyn Pool = self;
        // SAFETY: only the lifetime of the trait object changes. The upstream is a field, so it is
        // dropped with the pool.
        unsafe {
            self.back
                .upstream
                .set_pool(core::mem::transmute::<NonNull<dyn Pool>, NonNull<dyn Pool>>(NonNull::from(pool)))
        };
        // SAFETY: passed on to the caller; `drop` removes the pool from the registry.
        unsafe { registry::enter(NonNull::from(self)) }
    }

    /// Starts the background purger and allocates the reserve, as the settings require.
    pub(crate) fn begin(&self) -> Result<()> {
        self.policy.begin_background(self.settings.background);
        match usize::try_from(self.settings.reserve) {
            Ok(0) => Ok(()),
            bytes => self.reserve(bytes.unwrap_or(usize::MAX)).map(drop),
        }
    }

    /// Frees a block of a span that the calling thread owns, if a few instructions suffice. Returns
    /// `false` and changes nothing otherwise. It takes no lock and calls no function, so a thread
    /// may call it inside another call of this pool.
    ///
    /// # Safety
    /// As [`Pool::free`].
    #[inline]
    pub unsafe fn try_free_owned(&self, address: Address) -> bool {
        self.free_owned(address).is_ok()
    }

    /// Locks the slabs of a small class.
    pub(crate) fn central(&self, class: usize) -> Slabs<'_> {
        self.central.lock(&self.back.meta, &self.heaps, class)
    }

    /// Locks the slabs of a small class; `None` if they are locked.
    pub(crate) fn try_central(&self, class: usize) -> Option<Slabs<'_>> {
        self.central.try_lock(&self.back.meta, &self.heaps, class)
    }

    /// Returns the bytes of a slab of a class.
    pub(crate) fn slab_size(&self, class: usize) -> usize {
        self.heaps.classes.slab_size(class, self.settings.slab_min_size)
    }

    /// Returns the bytes of the regions that the pool has. Costs one load, unlike
    /// [`Pool::statistics`].
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.back.limits.bytes()
    }

    /// Returns whether this process is a forked child, which must not use the shared memory.
    pub(crate) fn is_frozen(&self) -> bool {
        self.heaps.flags.is_set(SHARED) && self.back.upstream.is_frozen()
    }
}

// SAFETY: blocks lie in slabs and extents of the upstream's regions, which `Extents` and the slabs'
// bitmaps keep apart (the model tests check it); an exported block is announced in `free` before it
// reaches any bin.
unsafe impl Pool for SlabPool {
    fn name(&self) -> &str {
        self.settings.name.as_str()
    }

    fn provider(&self) -> &ProviderRef {
        self.back.upstream.provider()
    }

    #[inline]
    fn allocate(&self, layout: Layout) -> Result<Address> {
        match Self::allocate_fast(self, layout) {
            Some(address) => Ok(address),
            None => self.allocate_slow(layout),
        }
    }

    #[inline]
    fn allocate_fast(&self, layout: Layout) -> Option<Address> {
        Self::allocate_fast(self, layout)
    }

    #[inline]
    unsafe fn free_fast(&self, address: Address) -> bool {
        match self.free_owned(address) {
            Ok(()) => true,
            Err(Some(LocatedSpan { section, span, number, index })) => {
                self.free_to_cache(section, span, number, index, address).is_some()
            }
            // If a flag is set, `free` handles the block.
            Err(None) => self.heaps.flags.get() == 0 && self.locate_and_free_to_cache(address).is_some(),
        }
    }

    #[inline]
    unsafe fn free(&self, address: Address) -> Result<()> {
        match self.free_owned(address) {
            Ok(()) => Ok(()),
            // Dropped here, so that the fast path needs no stack frame for it.
            Err(found) => {
                drop(found);
                self.free_slow(address)
            }
        }
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        self.find_block(address).map(|(block, _)| block)
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        let released = self.release_free(keep);
        self.back.lower_reserve();
        released
    }

    fn statistics(&self) -> PoolStatistics {
        self.compute_statistics()
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        Some(self)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        Some(&self.back.upstream)
    }

    fn reserves(&self) -> Option<&dyn Reserve> {
        let pools_blocks = self.heaps.classes.count() > 0;
        pools_blocks.then_some(self as &dyn Reserve)
    }

    fn share_limit(&self) -> Option<&dyn ShareLimit> {
        Some(self)
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

// SAFETY: `free` announces exported blocks before they can be handed out again. Blocks that the
// upstream holds are not handed out until `reclaim`.
unsafe impl DeferredFree for SlabPool {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let (block, place) = self.find_block(address)?;
        if block.address != address {
            return Err(Error::InteriorAddress { address });
        }
        self.any_exported.store(true, Ordering::Relaxed);
        let mark = || place.is_current() && state::mark_exported(place.state);
        let is_marked = if place.span.is_slab() {
            self.exclusively(&place, |_, _| mark())
        } else {
            self.heaps.ensure_exchange(place.span);
            mark()
        };
        is_marked.then_some(()).ok_or(Error::NotAllocated { address })
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_when_ready(address, completion)
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        self.reclaim_deferred(freed)
    }
}

impl Reserve for SlabPool {
    fn reserve(&self, bytes: usize) -> Result<usize> {
        self.check_usable()?;
        if self.heaps.classes.count() == 0 && bytes > 0 {
            let what = "reserving with max_poolable_size = 0, which pools no blocks";
            return Err(Error::NotSupported { what, owner: OWNER, native: 0 });
        }
        self.back.reserve(bytes)
    }

    fn purge(&self) -> Result<usize> {
        let before = self.back.limits.bytes();
        self.back.upstream.poll();
        self.purge_unpolled();
        Ok(usize::try_from(before.saturating_sub(self.back.limits.bytes())).unwrap_or(usize::MAX))
    }
}

impl ShareLimit for SlabPool {
    fn yield_free(&self, limit: &SharedLimit, bytes: u64) -> u64 {
        self.release_for_others(limit, bytes)
    }
}

impl Inspect for SlabPool {
    fn map(&self) -> Option<PoolMap> {
        Some(self.read_map())
    }

    fn leaks(&self, visit: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        self.report_leaks(visit);
        true
    }
}

impl fmt::Debug for SlabPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slab pool {:?} over {:?}", self.name(), self.provider())
    }
}

impl Drop for SlabPool {
    fn drop(&mut self) {
        self.heaps.flags.set(CLOSING);
        registry::POOLS.leave(NonNull::from(&*self));
        self.policy.end_background();
        self.back.trace.end(|| self.compute_statistics());
        self.back.upstream.stop_reclaiming();
        if self.any_exported.load(Ordering::Relaxed) && !self.is_frozen() {
            self.back.meta.spans().for_each(|(_, span)| self.announce_exported(span));
        }
        failpoint!("pool.closing");
        for (_, span) in self.back.meta.spans() {
            if matches!(span.kind(), Kind::Region | Kind::Direct) {
                // SAFETY: regions and direct spans have it, and no other thread uses the pool.
                let (region, _) = unsafe { span.cold().upstream.assume_init() };
                span.retract();
                // The upstream holds regions with leases or deferred blocks. A region that the
                // provider refuses is leaked, since no caller is left to try again.
                let _ = self.back.return_region(region);
            } else {
                span.retract();
            }
        }
        // Regions that the provider refused no longer count against the shared limit.
        self.back.limits.remove(usize::try_from(self.back.limits.bytes()).unwrap_or(0));
        // Waits for threads that use the pool through the tracker.
        self.back.upstream.close();
    }
}
