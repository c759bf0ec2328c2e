//! [`JemallocPool`].

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
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, Inspect, Layout, Pool, ProviderRef,
    Result, ShareLimit,
};
use umf_runtime::Upstream;
use umf_runtime::limit::Reserved;
use umf_runtime::observer::before_free;
use umf_sync::table::Table;

use crate::JemallocSettings;
use crate::blocks::{Block, Blocks, Life};
use crate::caches::{Caches, Own};
use crate::classes::{Class, Classes, QUANTUM};
use crate::hooks::{self, Arena};
use crate::je;
use crate::regions::Record;
use crate::room::REGIONS;

pub(crate) const OWNER: &str = "this jemalloc pool";

/// What the environment can have jemalloc do, by its `junk` and `zero`.
pub(crate) const FILLS: Error = Error::NotSupported {
    what: "jemalloc's filling of blocks (junk, zero) over memory that the CPU must not touch",
    owner: OWNER,
    native: 0,
};

/// Without settings there are no more arenas than this.
const ARENAS: usize = 4;
/// How often jemalloc is asked again when others took what was got for it.
const ATTEMPTS: u32 = 64;

/// A pool whose allocator is jemalloc.
///
/// Dropping it gives every region back, those of live blocks included (their exports are retired first).
///
/// jemalloc gives free pages back ten seconds after they became free, as the pool is used; [`Pool::trim`] does it at once. Each
/// thread keeps up to a few hundred blocks of each size up to 32 KiB for itself, until it ends or, after a trim, uses the pool again.
pub struct JemallocPool {
    // First, so that it is dropped before what its guards could still reach.
    pub(crate) upstream: Upstream,
    settings: JemallocSettings,
    /// Whose addresses jemalloc knows instead of those that it cannot know.
    pub(crate) shadow: OnceLock<Upstream>,
    pub(crate) classes: &'static Classes,
    pub(crate) blocks: Blocks,
    pub(crate) caches: Caches,
    /// Those without a number could not be made, and are at the end.
    arenas: Box<[Arena]>,
    /// How many could.
    arena_count: AtomicUsize,
    /// jemalloc has given back all of some region.
    pub(crate) has_idle: AtomicBool,
    /// That, or something to purge.
    pub(crate) has_work: AtomicBool,
    /// The CPU may touch the memory.
    pub(crate) is_touchable: bool,
    pub(crate) regions: Table<Record>,
    /// Some region turned out to lie within another one.
    pub(crate) has_margins: AtomicBool,
    pub(crate) reserved: Reserved,
    /// Bytes of leased memory at which no more is handed out; 0: none.
    max_held: AtomicU64,
}

/// What jemalloc is asked for.
struct Request {
    size: usize,
    align: usize,
    class: Class,
}

impl JemallocPool {
    /// A pool over `provider` with default settings.
    ///
    /// # Errors
    /// As [`JemallocPool::with_settings`].
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Arc<Self>> {
        Self::with_settings(provider, JemallocSettings::default())
    }

    /// A pool over `provider`.
    ///
    /// # Errors
    /// [`Error::TooMany`] past 16,383 pools in one process, and past the arenas that jemalloc has ([`JemallocSettings::arenas`]);
    /// [`Error::NotSupported`] over memory that the CPU must not touch, if the environment has jemalloc fill blocks
    /// (`_RJEM_MALLOC_CONF=junk:true`).
    pub fn with_settings(provider: impl Into<ProviderRef>, settings: JemallocSettings) -> Result<Arc<Self>> {
        je::ready();
        let upstream = Upstream::new(provider)?;
        let is_touchable = upstream.provider().memory_kind().is_host_accessible();
        if !is_touchable && je::fills_blocks() {
            return Err(FILLS);
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
            caches: Caches::new(),
            arenas: (0..wanted).map(Arena::new).collect(),
            arena_count: AtomicUsize::new(0),
            has_idle: AtomicBool::new(false),
            has_work: AtomicBool::new(false),
            is_touchable,
            regions: Table::new(REGIONS - 1),
            has_margins: AtomicBool::new(false),
            reserved: Reserved::new(settings.memory_limit, settings.shared_limit.clone()),
            max_held: AtomicU64::new(0),
            upstream,
            settings,
        });
        pool.set_held(pool.settings.on_free, pool.settings.max_held);
        // SAFETY: an `Arc`'s content does not move.
        unsafe { pool.make_arenas() }?;
        let this = Arc::as_ptr(&pool) as *const dyn Pool;
        if let Some(this) = NonNull::new(this.cast_mut()) {
            // SAFETY: as above, and `upstream`, a field, is dropped before the pool goes.
            unsafe { pool.upstream.set_pool(this) };
        }
        // SAFETY: as above, and `drop` leaves.
        unsafe { crate::fork::enter(NonNull::from(&*pool)) }?;
        Ok(pool)
    }

    /// As many arenas as are wanted; without settings, as there are.
    ///
    /// # Safety
    /// The pool stays where it is. (`drop` retires its arenas.) Nobody else has it yet.
    unsafe fn make_arenas(&self) -> Result<()> {
        for (count, arena) in (1..).zip(&self.arenas) {
            // SAFETY: the arenas are a part of this pool, which retires them before it goes.
            match unsafe { arena.create(self) } {
                Ok(()) => self.arena_count.store(count, Ordering::Relaxed),
                Err(_) if self.settings.arenas == 0 && count > 1 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The pool's arenas.
    #[inline]
    pub(crate) fn arenas(&self) -> &[Arena] {
        self.arenas.get(..self.arena_count.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// How many arenas the pool's threads are spread over.
    #[must_use]
    pub fn arena_count(&self) -> usize {
        self.arenas().len()
    }

    /// Empties an arena and keeps it for the next pool, or destroys it if it does not become empty.
    /// No page is purged: regions go as they are, or stay with what other processes still have open
    /// in them.
    ///
    /// # Safety
    /// Nothing uses the pool any more, and no cache has any of the arena's blocks.
    unsafe fn retire(&self, arena: &Arena) -> Result<()> {
        let Some(number) = arena.number() else { return Ok(()) };
        // SAFETY: passed on to the caller.
        let emptied = hooks::sweeping(|| unsafe { je::empty_arena(number) });
        if emptied.is_ok() && self.is_empty(arena) {
            // SAFETY: as above; it has no extents.
            return unsafe { je::make_spare(number) };
        }
        // SAFETY: as above.
        hooks::sweeping(|| unsafe { je::destroy_arena(number) })
    }

    pub(crate) fn purge_arenas(&self) {
        je::ready();
        for arena in self.arenas().iter().filter_map(Arena::number) {
            // (It cannot fail for an arena that there is.)
            let _ = je::purge_arena(arena);
        }
    }

    fn set_held(&self, on_free: OnFree, max_held: u64) {
        self.upstream.set_on_free(on_free, max_held);
        self.max_held.store(max_held, Ordering::Relaxed);
    }

    /// Whether as much is leased as may be: then jemalloc gets no more pages.
    pub(crate) fn is_held_at_bound(&self) -> bool {
        let most = self.max_held.load(Ordering::Relaxed);
        most != 0 && {
            let held = self.upstream.deferred();
            held.bytes.saturating_sub(held.pending_bytes) >= most
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
        // What blocks that are aligned so have may be more.
        let usable = je::usable(size, je::align_flags(align));
        let class = self.classes.of(usable).filter(|_| usable >= size).ok_or(overflow)?;
        Ok(Request { size, align, class })
    }

    fn allocate_once(&self, layout: Layout) -> Result<Address> {
        if self.upstream.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        let request = self.request(layout)?;
        let (own, index) = self.caches.own();
        let none = Error::OutOfMemory { size: layout.size(), owner: "jemalloc", native: 0 };
        let arena = match self.arenas() {
            [] => return Err(none),
            [arena] => arena,
            arenas => &arenas[index as usize % arenas.len()],
        };
        let (mut attempt, mut was_gathered) = (0, false);
        loop {
            if let Some(block) = Self::ask(arena, &request, own) {
                return self.hand_out(block, &request, own);
            }
            let wanted = hooks::wanted().filter(|_| attempt < ATTEMPTS).ok_or(none)?;
            if let Err(error) = self.make_room(arena, wanted, attempt == 0, &mut was_gathered) {
                let lacks_memory = matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. });
                return if lacks_memory {
                    self.allocate_elsewhere(arena, &request, own, error)
                } else {
                    Err(error)
                };
            }
            attempt += 1;
        }
    }

    /// A block from any other arena, which may have what this one lacks.
    #[cold]
    fn allocate_elsewhere(
        &self,
        arena: &Arena,
        request: &Request,
        own: Own<'_>,
        error: Error,
    ) -> Result<Address> {
        let others = self.arenas().iter().filter(|other| other.index() != arena.index());
        let block = others.into_iter().find_map(|other| Self::ask(other, request, own));
        hooks::wanted();
        block.map_or(Err(error), |block| self.hand_out(block, request, own))
    }

    #[inline]
    fn ask(arena: &Arena, request: &Request, own: Own<'_>) -> Option<usize> {
        let aligned = if request.align > 1 { je::align_flags(request.align) } else { 0 };
        let flags = je::arena_flags(arena.number()?) | aligned | own.flags();
        // SAFETY: the pool's arena, and the thread's own cache.
        unsafe { je::allocate(request.size, flags) }.map(|block| block.addr().get())
    }

    /// Makes a block known that jemalloc gave.
    #[inline]
    fn hand_out(&self, visible: usize, request: &Request, own: Own<'_>) -> Result<Address> {
        let visible = Address::from_bits(visible as u64);
        let size = self.classes.size(request.class);
        if let Some((number, granule)) = self.blocks.granule_at(self.upstream.id(), visible)
            && self.blocks.enter(number, granule, visible, request.class).is_some()
        {
            own.count_allocation(size);
            self.do_work();
            return Ok(visible);
        }
        self.hand_out_real(visible, request, own)
    }

    /// The same for memory that jemalloc knows by other addresses.
    #[cold]
    fn hand_out_real(&self, visible: Address, request: &Request, own: Own<'_>) -> Result<Address> {
        let size = self.classes.size(request.class);
        let refused = if let Some(real) = self.real(visible) {
            if real.is_aligned_to(request.align)
                && let Some((number, granule)) = self.blocks.granule_at(self.upstream.id(), real)
                && self.blocks.enter(number, granule, real, request.class).is_some()
            {
                own.count_allocation(size);
                self.do_work();
                return Ok(real);
            }
            // Beyond what memory and its shadow have in common.
            Error::BadAlignment { align: request.align }
        } else {
            // jemalloc takes what is asked for from an arena of its own where a thread is in a hook, which nobody asks in, or has lost its
            // state.
            Error::NotSupported {
                what: "allocating from jemalloc in a destructor of a pthread key, as the thread ends,",
                owner: OWNER,
                native: 0,
            }
        };
        self.free_visible(visible, size, je::cache_flags(None));
        Err(refused)
    }

    fn free_visible(&self, visible: Address, size: usize, flags: c_int) {
        if let Some(block) = visible.as_ptr().and_then(NonNull::new) {
            // SAFETY: a block of jemalloc's whose life the caller took, of this size; the cache is the thread's own.
            unsafe { je::free(block.cast(), size, flags) };
        }
    }

    /// Gives a block to jemalloc, whose life the caller has taken; by the cache in `flags`, the thread's own, or by none.
    #[inline]
    pub(crate) fn put(&self, block: &Block<'_>, flags: c_int) {
        let (region, is_shadowed) = block.granule.region();
        let visible = if is_shadowed { self.visible(region, block.address) } else { Some(block.address) };
        if let Some(visible) = visible {
            self.free_visible(visible, self.classes.size(block.class), flags);
        }
        self.do_work();
    }

    #[inline]
    fn do_work(&self) {
        if self.has_work.load(Ordering::Relaxed) {
            self.do_noted_work();
        }
    }

    #[cold]
    fn do_noted_work(&self) {
        // Not a plain store: what is noted from here on stays noted.
        self.has_work.swap(false, Ordering::AcqRel);
        self.purge_dirty();
        if self.has_idle.load(Ordering::Acquire) {
            // A provider that does not take it back leaves it with us.
            let _ = self.release_idle(0);
        }
    }

    /// Frees a block, which is handed out again when `completion` is ready.
    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        if self.upstream.is_frozen() {
            return Ok(());
        }
        let block = self.blocks.find_start(self.upstream.id(), address)?;
        let life = block.end().ok_or(Error::NotAllocated { address })?;
        let (own, _) = self.caches.own();
        if life == Life::Exported || completion.is_some() {
            let leases = if life == Life::Exported { before_free(Freed::Block { address }) } else { None };
            if self.hold(&block, completion, leases) {
                own.count_free(self.classes.size(block.class));
                self.upstream.poll_some();
                return Ok(());
            }
        }
        own.count_free(self.classes.size(block.class));
        self.put(&block, own.flags());
        Ok(())
    }

    /// A thread with this number ends.
    pub(crate) fn forget_thread(&self, index: umf_sync::thread::ThreadIndex) {
        // SAFETY: it is the calling one, at its end.
        let had_cache = unsafe { self.caches.forget(index) };
        // (Whoever has nothing to do with the pool does nothing with it.)
        if had_cache {
            self.do_work();
        }
    }
}

// SAFETY: jemalloc hands out parts of extents, which come from regions of the provider, and hands none out again before it is
// freed; exported blocks are announced in `free_block` before that, and held ones are not freed before `reclaim`.
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

// SAFETY: `free_block` announces exported blocks before they can be handed out again; what the upstream holds stays
// out of reach until `reclaim`.
unsafe impl DeferredFree for JemallocPool {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let block = self.blocks.find_start(self.upstream.id(), address)?;
        if block.mark_exported() { Ok(()) } else { Err(Error::NotAllocated { address }) }
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_block(address, Some(completion))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        self.take_back(freed)
    }
}

impl Controls for JemallocPool {
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        self.set_held(on_free, max_held_bytes);
    }

    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) {
        self.upstream.set_on_out_of_memory(callback);
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
        // The pool may be going.
        crate::fork::POOLS.with(NonNull::from(self), |pool| pool.give(bytes)).unwrap_or(0)
    }
}

impl Inspect for JemallocPool {
    fn leaks(&self, look: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        self.show_leaks(LeakTime::Asked, look);
        true
    }
}

impl Drop for JemallocPool {
    fn drop(&mut self) {
        self.upstream.stop_reclaiming();
        crate::fork::POOLS.leave(NonNull::from(&*self));
        if !self.upstream.is_frozen() {
            self.tell_leaks();
            self.announce();
        }
        je::ready();
        // SAFETY: nobody is left.
        unsafe { self.caches.forget_all() };
        for arena in self.arenas() {
            // SAFETY: as above; the caches have nothing of it any more.
            if let Err(error) = unsafe { self.retire(arena) } {
                // Its blocks are not used again, and its hooks not called: nobody allocates from it.
                let arena = arena.number().unwrap_or_default();
                umf_os::output::event(|| {
                    tracing::error!(pool = self.settings.name, arena, %error, "jemalloc keeps an arena");
                });
            }
        }
        self.give_all_back();
        // What could not be given back no longer counts against the shared limit.
        self.reserved.remove(usize::try_from(self.reserved.bytes()).unwrap_or(0));
        // Waits for threads that are shown the pool.
        self.upstream.close();
    }
}

impl fmt::Debug for JemallocPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "jemalloc pool {:?} over {:?}", self.settings.name, self.upstream.provider())
    }
}
