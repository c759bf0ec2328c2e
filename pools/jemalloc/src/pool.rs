//! [`JemallocPool`]: allocating and freeing blocks, the traits of a pool, and [`JemallocSettings`].

use core::ffi::c_int;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use umf_core::Freed;
use umf_core::deferred::{DeferredStatistics, OnFree};
use umf_core::leaks::{LeakReport, LeakTime};
use umf_core::limit::SharedLimit;
use umf_core::out_of_memory::OnOutOfMemory;
use umf_core::statistics::PoolStatistics;
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, FactoryError, Inspect, Layout, Pool,
    PoolFactory, PoolRequest, ProviderRef, Result, ShareLimit,
};
use umf_runtime::Upstream;
use umf_runtime::limit::Reserved;
use umf_runtime::observer::before_free;
use umf_sync::table::Table;

use crate::blocks::{Block, Blocks, LiveState};
use crate::classes::{Class, Classes, QUANTUM};
use crate::extents::REGIONS;
use crate::hooks::{self, Arena};
use crate::je;
use crate::regions::RegionRecord;
use crate::threads::{CurrentThread, ThreadCaches};

pub(crate) const OWNER: &str = "this jemalloc pool";

/// The error for `junk` or `zero` in the environment, over memory that the CPU must not access.
pub(crate) const FILLS_BLOCKS: Error = Error::NotSupported {
    what: "writing into blocks (junk or zero in _RJEM_MALLOC_CONF) over memory that the CPU must not access",
    owner: OWNER,
    native: 0,
};

/// The most arenas of a pool without settings.
const ARENAS: usize = 4;
/// How often an allocation is tried again after other threads allocated the extent that was
/// supplied for it.
const ATTEMPTS: u32 = 64;

umf_core::pool_settings! {
    /// Settings of a [`JemallocPool`].
    #[non_exhaustive]
    pub struct JemallocSettings {
        /// The number of arenas that threads are spread over. All pools of a process share about
        /// 4,090 arenas. 0 selects one per processor, at most four, and fewer if jemalloc has no
        /// more.
        pub arenas: u32 = 0;
    }
    name: String = "jemalloc"
}

/// A pool whose allocator is jemalloc.
///
/// Dropping the pool returns every region, those with live blocks included, after it has retired
/// the exports of these blocks.
///
/// While the pool is used, jemalloc purges pages ten seconds after they became free. [`Pool::trim`]
/// does so at once. Each thread caches up to a few hundred blocks of each size class up to 32 KiB,
/// until it ends or, after a trim, uses the pool again.
pub struct JemallocPool {
    // First, so that it is dropped, and its guards waited for, before the data that they use.
    pub(crate) upstream: Upstream,
    settings: JemallocSettings,
    /// The source of addresses for memory whose own addresses jemalloc cannot use.
    pub(crate) shadow: OnceLock<Upstream>,
    pub(crate) classes: &'static Classes,
    pub(crate) blocks: Blocks,
    pub(crate) caches: ThreadCaches,
    /// The arenas. Those that could not be created are at the end.
    arenas: Box<[Arena]>,
    /// The number of arenas that were created.
    arena_count: AtomicUsize,
    /// Whether jemalloc has freed all extents of some region.
    pub(crate) has_idle: AtomicBool,
    /// Whether there is an idle region or a dirty extent.
    pub(crate) has_pending_work: AtomicBool,
    /// Whether the CPU may access the memory.
    pub(crate) is_touchable: bool,
    pub(crate) regions: Table<RegionRecord>,
    /// Whether some region lies within another one: see [`JemallocPool::excludes_edge_pages`].
    pub(crate) excludes_edge_pages: AtomicBool,
    pub(crate) reserved: Reserved,
    /// The bytes of leased memory at which the pool allocates no more; 0 for any number.
    max_held: AtomicU64,
}

/// A request, as it is passed to jemalloc.
struct Request {
    size: usize,
    align: usize,
    class: Class,
}

impl JemallocPool {
    /// Returns a pool over `provider` with default settings.
    ///
    /// # Errors
    /// As [`JemallocPool::with_settings`].
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Arc<Self>> {
        Self::with_settings(provider, JemallocSettings::default())
    }

    /// Returns a pool over `provider`.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 16,383 pools in one process, and if jemalloc has no more arenas
    /// ([`JemallocSettings::arenas`]). [`Error::NotSupported`] over memory that the CPU must not
    /// access, if the environment has jemalloc write into blocks (`_RJEM_MALLOC_CONF=junk:true`).
    pub fn with_settings(provider: impl Into<ProviderRef>, settings: JemallocSettings) -> Result<Arc<Self>> {
        je::ensure_ready();
        let upstream = Upstream::new(provider)?;
        let is_touchable = upstream.provider().memory_kind().is_host_accessible();
        if !is_touchable && je::fills_blocks() {
            return Err(FILLS_BLOCKS);
        }
        upstream.set_on_out_of_memory(settings.out_of_memory.clone());
        let classes = Classes::get()?;
        let wanted = match settings.arenas {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(ARENAS) as u32,
            wanted => wanted,
        };
        if wanted as usize > je::ARENAS {
            return Err(je::NO_ARENA);
        }
        let pool = Arc::new(Self {
            shadow: OnceLock::new(),
            classes,
            blocks: Blocks::new(classes),
            caches: ThreadCaches::new(),
            arenas: (0..wanted).map(Arena::new).collect(),
            arena_count: AtomicUsize::new(0),
            has_idle: AtomicBool::new(false),
            has_pending_work: AtomicBool::new(false),
            is_touchable,
            regions: Table::new(REGIONS - 1),
            excludes_edge_pages: AtomicBool::new(false),
            reserved: Reserved::new(settings.memory_limit, settings.shared_limit.clone()),
            max_held: AtomicU64::new(0),
            upstream,
            settings,
        });
        pool.set_held_limit(pool.settings.on_free, pool.settings.max_held);
        // SAFETY: an `Arc`'s content does not move.
        unsafe { pool.create_arenas() }?;
        let this = Arc::as_ptr(&pool) as *const dyn Pool;
        if let Some(this) = NonNull::new(this.cast_mut()) {
            // SAFETY: the pool does not move, and `upstream`, a field, is dropped before the pool
            // is.
            unsafe { pool.upstream.set_pool(this) };
        }
        // SAFETY: the pool does not move, and `drop` removes it again.
        unsafe { crate::threads::register(NonNull::from(&*pool)) }?;
        Ok(pool)
    }

    /// Creates the arenas; without settings, as many as jemalloc has.
    ///
    /// # Safety
    /// The pool is not moved until `drop`, which retires its arenas. No other thread has the pool
    /// yet.
    unsafe fn create_arenas(&self) -> Result<()> {
        for (count, arena) in (1..).zip(&self.arenas) {
            // SAFETY: the arenas are fields of the pool, which does not move and retires them in
            // `drop`.
            match unsafe { arena.create(self) } {
                Ok(()) => self.arena_count.store(count, Ordering::Relaxed),
                Err(_) if self.settings.arenas == 0 && count > 1 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the arenas of the pool.
    #[inline]
    pub(crate) fn arenas(&self) -> &[Arena] {
        self.arenas.get(..self.arena_count.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Returns the number of arenas that the threads of the pool are spread over.
    #[must_use]
    pub fn arena_count(&self) -> usize {
        self.arenas().len()
    }

    /// Empties an arena and keeps it for the next pool, or destroys it if it does not become empty.
    /// No page is purged: regions are returned as they are, or stay while other processes have
    /// blocks in them open.
    ///
    /// # Safety
    /// No thread uses the pool any more, and no cache has any of the arena's blocks.
    unsafe fn retire(&self, arena: &Arena) -> Result<()> {
        let Some(number) = arena.number() else { return Ok(()) };
        // SAFETY: passed on to the caller.
        let emptied = hooks::keeping_pages(|| unsafe { je::empty_arena(number) });
        if emptied.is_ok() && self.is_empty(arena) {
            // SAFETY: the arena has no extents, and no thread uses it.
            return unsafe { je::make_spare(number) };
        }
        // SAFETY: passed on to the caller.
        hooks::keeping_pages(|| unsafe { je::destroy_arena(number) })
    }

    /// Makes jemalloc free all unused extents of the pool.
    pub(crate) fn purge_arenas(&self) {
        je::ensure_ready();
        for arena in self.arenas().iter().filter_map(Arena::number) {
            // Cannot fail for an arena that exists.
            let _ = je::purge_arena(arena);
        }
    }

    fn set_held_limit(&self, on_free: OnFree, max_held: u64) {
        self.upstream.set_on_free(on_free, max_held);
        self.max_held.store(max_held, Ordering::Relaxed);
    }

    /// Returns whether the limit of leased memory is reached. Then the pool allocates no more
    /// extents.
    pub(crate) fn is_held_limit_reached(&self) -> bool {
        let max = self.max_held.load(Ordering::Relaxed);
        max != 0 && {
            let deferred = self.upstream.deferred();
            deferred.bytes.saturating_sub(deferred.pending_bytes) >= max
        }
    }

    #[inline]
    fn request(&self, layout: Layout) -> Result<Request> {
        let (size, align) = (layout.size().max(QUANTUM), layout.align());
        let overflow = Error::SizeOverflow { size, align };
        if align <= QUANTUM {
            let class = self.classes.of(size).ok_or(overflow)?;
            return Ok(Request { size, align: 1, class });
        }
        // jemalloc may round up the size of an aligned block.
        let usable = je::usable(size, je::align_flags(align));
        let class = self.classes.of(usable).filter(|_| usable >= size).ok_or(overflow)?;
        Ok(Request { size, align, class })
    }

    fn allocate_once(&self, layout: Layout) -> Result<Address> {
        if self.upstream.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        let request = self.request(layout)?;
        let (thread, index) = self.caches.current();
        let none = Error::OutOfMemory { size: layout.size(), owner: "jemalloc", native: 0 };
        let arena = match self.arenas() {
            [] => return Err(none),
            [arena] => arena,
            arenas => &arenas[index as usize % arenas.len()],
        };
        let (mut attempt, mut was_reclaimed) = (0, false);
        loop {
            if let Some(block) = Self::allocate_from(arena, &request, thread) {
                return self.publish_block(block, &request, thread);
            }
            let missing = hooks::take_missing().filter(|_| attempt < ATTEMPTS).ok_or(none)?;
            if let Err(error) = self.supply_extent(arena, missing, attempt == 0, &mut was_reclaimed) {
                let lacks_memory = matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. });
                return if lacks_memory {
                    self.allocate_elsewhere(arena, &request, thread, error)
                } else {
                    Err(error)
                };
            }
            attempt += 1;
        }
    }

    /// Allocates a block from any other arena, after one has failed with `error`.
    #[cold]
    fn allocate_elsewhere(
        &self,
        arena: &Arena,
        request: &Request,
        thread: CurrentThread<'_>,
        error: Error,
    ) -> Result<Address> {
        let others = self.arenas().iter().filter(|other| other.index() != arena.index());
        let block = others.into_iter().find_map(|other| Self::allocate_from(other, request, thread));
        hooks::take_missing();
        block.map_or(Err(error), |block| self.publish_block(block, request, thread))
    }

    #[inline]
    fn allocate_from(arena: &Arena, request: &Request, thread: CurrentThread<'_>) -> Option<usize> {
        let aligned = if request.align > 1 { je::align_flags(request.align) } else { 0 };
        let flags = je::arena_flags(arena.number()?) | aligned | thread.flags();
        // SAFETY: the arena is the pool's, and the cache is the calling thread's.
        unsafe { je::allocate(request.size, flags) }.map(|block| block.addr().get())
    }

    /// Makes a block of jemalloc live, and returns its address.
    #[inline]
    fn publish_block(
        &self,
        je_address: usize,
        request: &Request,
        thread: CurrentThread<'_>,
    ) -> Result<Address> {
        let je_address = Address::from_bits(je_address as u64);
        let size = self.classes.size(request.class);
        if let Some((number, granule)) = self.blocks.granule_at(self.upstream.id(), je_address)
            && self.blocks.publish(number, granule, je_address, request.class).is_some()
        {
            thread.count_allocation(size);
            self.run_pending_work();
            return Ok(je_address);
        }
        self.publish_shadowed(je_address, request, thread)
    }

    /// Does the same for a block in a region with a shadow.
    #[cold]
    fn publish_shadowed(
        &self,
        je_address: Address,
        request: &Request,
        thread: CurrentThread<'_>,
    ) -> Result<Address> {
        let size = self.classes.size(request.class);
        let error = if let Some(real) = self.real_address(je_address) {
            if real.is_aligned_to(request.align)
                && let Some((number, granule)) = self.blocks.granule_at(self.upstream.id(), real)
                && self.blocks.publish(number, granule, real, request.class).is_some()
            {
                thread.count_allocation(size);
                self.run_pending_work();
                return Ok(real);
            }
            // Memory and its shadow are aligned alike up to `SHADOW_ALIGNMENT` only.
            Error::BadAlignment { align: request.align }
        } else {
            // The block is not in this pool: jemalloc has used its own arena. It does so inside a
            // hook, where threads never allocate, and after it destroyed its data of the thread.
            Error::NotSupported {
                what: "allocating in a pthread key destructor, after jemalloc destroyed its data of the thread,",
                owner: OWNER,
                native: 0,
            }
        };
        self.sdallocx(je_address, size, je::cache_flags(None));
        Err(error)
    }

    /// Frees a block by the address that jemalloc knows.
    fn sdallocx(&self, je_address: Address, size: usize, flags: c_int) {
        if let Some(block) = je_address.as_ptr().and_then(NonNull::new) {
            // SAFETY: the block is jemalloc's, of this size, and the caller has cleared its live
            // state. The cache is the calling thread's.
            unsafe { je::free(block.cast(), size, flags) };
        }
    }

    /// Frees a block whose live state the caller has cleared, into the cache in `flags`: the
    /// calling thread's, or none.
    #[inline]
    pub(crate) fn free_to_jemalloc(&self, block: &Block<'_>, flags: c_int) {
        let (region, is_shadowed) = block.granule.region();
        let je_address =
            if is_shadowed { self.je_address(region, block.address) } else { Some(block.address) };
        if let Some(je_address) = je_address {
            self.sdallocx(je_address, self.classes.size(block.class), flags);
        }
        self.run_pending_work();
    }

    #[inline]
    fn run_pending_work(&self) {
        if self.has_pending_work.load(Ordering::Relaxed) {
            self.run_pending_work_now();
        }
    }

    #[cold]
    fn run_pending_work_now(&self) {
        // An exchange, not a store: work that is noted from here on stays noted.
        self.has_pending_work.swap(false, Ordering::AcqRel);
        self.purge_dirty();
        if self.has_idle.load(Ordering::Acquire) {
            // A region that the provider refuses stays in the pool.
            let _ = self.release_idle(0);
        }
    }

    /// Frees a block; with a `completion`, when that is ready.
    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        if self.upstream.is_frozen() {
            return Ok(());
        }
        let block = self.blocks.find_start(self.upstream.id(), address)?;
        let live_state = block.clear_live().ok_or(Error::NotAllocated { address })?;
        let (thread, _) = self.caches.current();
        if live_state == LiveState::Exported || completion.is_some() {
            let leases =
                if live_state == LiveState::Exported { before_free(Freed::Block { address }) } else { None };
            if self.defer(&block, completion, leases) {
                thread.count_free(self.classes.size(block.class));
                self.upstream.poll_some();
                return Ok(());
            }
        }
        thread.count_free(self.classes.size(block.class));
        self.free_to_jemalloc(&block, thread.flags());
        Ok(())
    }

    /// Destroys the cache of the calling thread, which ends and has this index.
    pub(crate) fn end_thread(&self, index: umf_sync::thread::ThreadIndex) {
        // SAFETY: the thread is the calling one, and ends.
        let had_cache = unsafe { self.caches.destroy(index) };
        // A thread that did not use the pool does no work for it.
        if had_cache {
            self.run_pending_work();
        }
    }
}

// SAFETY: jemalloc allocates blocks from extents in regions of the provider, and reuses none before
// it is freed. `free_block` announces an exported block before it frees it, and `reclaim` frees a
// deferred one.
unsafe impl Pool for JemallocPool {
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
        let block = self.blocks.find(self.upstream.id(), address)?;
        Ok(BlockSpan { address: block.address, size: self.classes.size(block.class) })
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        self.trim_to(keep)
    }

    fn statistics(&self) -> PoolStatistics {
        let counts = self.caches.counts();
        let mut statistics = PoolStatistics::default();
        statistics.live_bytes = counts.live_bytes();
        statistics.requested_bytes = statistics.live_bytes;
        statistics.live_blocks = counts.live_blocks();
        statistics.held_bytes = self.upstream.deferred().bytes;
        statistics.reserved_bytes = self.reserved.bytes();
        statistics.peak_reserved_bytes = self.reserved.peak();
        statistics.regions = self.reserved.regions();
        statistics.cached_bytes =
            statistics.reserved_bytes.saturating_sub(statistics.live_bytes + statistics.held_bytes);
        statistics.allocations = counts.allocations;
        statistics.frees = counts.frees;
        statistics
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        Some(self)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        Some(self)
    }

    fn share_limit(&self) -> Option<&dyn ShareLimit> {
        Some(self)
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

// SAFETY: `free_block` announces exported blocks before they can be handed out again. Blocks that
// the upstream holds are not handed out until `reclaim`.
unsafe impl DeferredFree for JemallocPool {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let block = self.blocks.find_start(self.upstream.id(), address)?;
        if block.mark_exported() { Ok(()) } else { Err(Error::NotAllocated { address }) }
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_block(address, Some(completion))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        self.reclaim_deferred(freed)
    }
}

impl Controls for JemallocPool {
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        self.set_held_limit(on_free, max_held_bytes);
    }

    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) -> Result<()> {
        self.upstream.set_on_out_of_memory(callback);
        Ok(())
    }

    fn drain(&self, timeout: Duration) -> DeferredStatistics {
        self.upstream.drain(timeout)
    }
}

impl ShareLimit for JemallocPool {
    fn yield_free(&self, limit: &SharedLimit, bytes: u64) -> u64 {
        if !self.reserved.shares(limit) {
            return 0;
        }
        // The pool may be about to be dropped.
        crate::threads::POOLS.with(NonNull::from(self), |pool| pool.release_for_others(bytes)).unwrap_or(0)
    }
}

impl Inspect for JemallocPool {
    fn leaks(&self, visit: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        self.report_leaks(LeakTime::Requested, visit);
        true
    }
}

impl Drop for JemallocPool {
    fn drop(&mut self) {
        self.upstream.stop_reclaiming();
        crate::threads::POOLS.leave(NonNull::from(&*self));
        if !self.upstream.is_frozen() {
            self.log_leaks();
            self.announce_exported();
        }
        je::ensure_ready();
        // SAFETY: the pool is being dropped, so no thread uses it.
        unsafe { self.caches.destroy_all() };
        for arena in self.arenas() {
            // SAFETY: as above, and all caches are destroyed.
            if let Err(error) = unsafe { self.retire(arena) } {
                // jemalloc calls no hooks of this arena: no thread allocates from it or frees into
                // it.
                let arena = arena.number().unwrap_or_default();
                umf_os::output::event(|| {
                    tracing::error!(pool = self.settings.name, arena, %error, "jemalloc cannot destroy an arena of the pool; its metadata stays mapped");
                });
            }
        }
        self.return_all_regions();
        // Regions that the provider refused no longer count against the shared limit.
        self.reserved.remove(usize::try_from(self.reserved.bytes()).unwrap_or(0));
        // Waits for threads that use the pool through the tracker.
        self.upstream.close();
    }
}

impl PoolFactory for JemallocPool {
    const KIND: &'static str = "jemalloc";
    type Settings = JemallocSettings;

    fn build(request: PoolRequest<'_>, settings: JemallocSettings) -> Result<Arc<dyn Pool>, FactoryError> {
        let settings = settings.requested(&request);
        Ok(Self::with_settings(request.provider, settings)?)
    }
}

impl fmt::Debug for JemallocPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "jemalloc pool {:?} over {:?}", self.settings.name, self.upstream.provider())
    }
}
