//! [`SlabPool`], and the common paths of allocating and freeing.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use umf_core::Freed;
use umf_core::leaks::LeakReport;
use umf_core::limit::SharedLimit;
use umf_core::map::PoolMap;
use umf_core::statistics::{Gauge, PoolStatistics};
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, Inspect, Layout, Pool, ProviderRef,
    Reserve, Result, ShareLimit,
};
use umf_runtime::Upstream;
use umf_runtime::limit::Reserved;
use umf_sync::{Lock, Wiped, thread};

use crate::SlabSettings;
use crate::ahead::Ahead;
use crate::asked::Asked;
use crate::caches::Caches;
use crate::central::Central;
use crate::classes::{Classes, MAX_CLASSES};
use crate::depot::Depot;
use crate::extents::{Extents, UNIT};
use crate::metadata::Metadata;
use crate::policy::Policy;
use crate::roster;
use crate::span;
use crate::thread_cache::ThreadCache;

pub(crate) const OWNER: &str = "this slab pool";

/// The memory is shared with other processes: a forked child must not use it.
pub(crate) const SHARED: u8 = 1;
/// Each block is traced.
pub(crate) const TRACED: u8 = 2;
/// The pool is being dropped.
pub(crate) const CLOSING: u8 = 4;
/// The kernel does not fence threads for others: they do it themselves (see `reach`).
pub(crate) const FENCED: u8 = 8;

/// What the gate may be: closed, open, or open as long as this process is the one that made the pool.
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
const OPEN_HERE: u32 = 2;

// SAFETY: the pointers that are not `Send` or `Sync` by themselves are into the pool's own metadata, which does not move.
unsafe impl Send for SlabPool {}
// SAFETY: as above.
unsafe impl Sync for SlabPool {}

/// A pool of slabs and large blocks with per-thread caches and all metadata out of band.
///
/// See the [crate's text](crate) for how it is built. Dropping the pool gives every region back, those with live
/// blocks included: [`Pool::statistics`] says before how many there are.
///
/// ```no_run
/// use umf_core::{Layout, Pool, ProviderRef};
/// use umf_pool_slab::{SlabPool, SlabSettings};
///
/// fn use_pool(provider: ProviderRef) -> umf_core::Result<()> {
///     let pool = SlabPool::new(provider, SlabSettings::new().name("messages"))?;
///     let block = pool.allocate(Layout::new(100, 8)?)?;
///     // SAFETY: the block is ours, and nobody uses it.
///     unsafe { pool.free(block) }
/// }
/// ```
pub struct SlabPool {
    // First, so that it is dropped, and guards waited for, before what they could still reach.
    pub(crate) upstream: Upstream,
    pub(crate) gates: AtomicU8,
    pub(crate) classes: Classes,
    pub(crate) meta: Metadata,
    pub(crate) caches: Caches,
    pub(crate) settings: SlabSettings,
    pub(crate) reserve: Reserved,
    pub(crate) ahead: Ahead,
    pub(crate) policy: Policy,
    /// What requests ask for, by class; the last is of blocks that are regions.
    pub(crate) asked: [Asked; MAX_CLASSES + 1],
    /// Live blocks that are regions.
    pub(crate) direct: Gauge,
    pub(crate) direct_allocations: AtomicU64,
    /// Whether any block was ever exported.
    pub(crate) any_exported: AtomicBool,
    /// What the most common paths look at: [`OPEN`] if there is nothing to look at but the thread's own bins.
    gate: AtomicU32,
    /// Where the first of the caches are: see [`Caches::first`].
    pub(crate) first_caches: [NonNull<ThreadCache>; Caches::FIRST as usize],
    /// Over shared memory, which a forked child must not use, a word that is 0 there.
    wiped: Option<Wiped>,
    /// Held while a thread reaches into what belongs to others. Taken before all other locks.
    pub(crate) outsiders: Lock<()>,
    /// Large blocks that are buffered for all threads: which classes have some, and how many bytes.
    pub(crate) stocked: [AtomicU64; MAX_CLASSES / 64],
    pub(crate) stock_bytes: AtomicU64,
    /// Bytes of large blocks that a thread keeps at most. What the settings say; 0 while `merging`.
    pub(crate) most_kept: AtomicUsize,
    /// So many large blocks are merged as they are freed, before threads keep any again.
    pub(crate) merging: AtomicU32,
    pub(crate) depot: Depot,
    pub(crate) extents: Lock<Extents>,
    pub(crate) centrals: [Lock<Central>; MAX_CLASSES],
}

/// How a request is served.
pub(crate) enum Route {
    /// From the thread's cache of this class.
    Cached(usize),
    /// From the large allocator, as a block of this class, because of its alignment.
    Aligned(usize),
    /// As a region.
    Direct,
}

impl SlabPool {
    /// A pool over `provider`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for settings out of range, [`Error::TooMany`] past 4,096 pools; those of [`umf_core::Reserve::reserve`] if
    /// [`SlabSettings::reserve`] is set.
    pub fn new(provider: impl Into<ProviderRef>, settings: SlabSettings) -> Result<Arc<Self>> {
        let pool = Arc::new(Self::unplaced(provider.into(), settings)?);
        // SAFETY: an `Arc`'s content does not move, and `drop` takes the pool out again.
        unsafe { pool.settle()? };
        pool.begin()?;
        Ok(pool)
    }

    /// A pool that nothing refers to yet.
    pub(crate) fn unplaced(provider: ProviderRef, settings: SlabSettings) -> Result<Self> {
        let settings = settings.checked()?;
        let shared = provider.visibility() == umf_core::Visibility::Shared;
        let fenced = !umf_sync::fence::is_usable();
        let flag = |set, flag| if set { flag } else { 0 };
        let gates = flag(shared, SHARED) | flag(fenced, FENCED) | flag(settings.trace >= 3, TRACED);
        let upstream = Upstream::new(provider)?;
        upstream.set_on_free(settings.on_free, settings.max_held);
        upstream.set_out_of_memory(settings.out_of_memory.clone());
        let wiped = if gates == SHARED { Wiped::new(1).ok() } else { None };
        let caches = Caches::new();
        let first_caches = caches.first()?;
        let pool = Self {
            first_caches,
            gate: AtomicU32::new(CLOSED),
            wiped,
            upstream,
            gates: AtomicU8::new(gates),
            classes: Classes::new(settings.min_block_size, settings.max_poolable_size),
            meta: Metadata::new()?,
            caches,
            reserve: Reserved::new(settings.memory_limit, settings.shared_limit.clone()),
            ahead: Ahead::new(),
            policy: Policy::new(&settings),
            asked: [const { Asked::new() }; MAX_CLASSES + 1],
            direct: Gauge::new(),
            direct_allocations: AtomicU64::new(0),
            any_exported: AtomicBool::new(false),
            outsiders: Lock::new(()),
            stocked: [const { AtomicU64::new(0) }; MAX_CLASSES / 64],
            stock_bytes: AtomicU64::new(0),
            most_kept: AtomicUsize::new(settings.thread_cache_size),
            merging: AtomicU32::new(0),
            depot: Depot::new(),
            extents: Lock::new(Extents::new()),
            centrals: [const { Lock::new(Central::new()) }; MAX_CLASSES],
            settings,
        };
        pool.open_gate();
        Ok(pool)
    }

    /// Lets threads take the most common paths, if nothing is set that they do not heed.
    pub(crate) fn open_gate(&self) {
        let gate = match (self.gates.load(Ordering::Relaxed), &self.wiped) {
            (SHARED, Some(_)) => OPEN_HERE,
            (0, _) => OPEN,
            _ => CLOSED,
        };
        self.gate.store(gate, Ordering::Release);
    }

    /// Keeps threads from taking the most common paths. Those who are inside may be on one still.
    pub(crate) fn close_gate(&self) {
        self.gate.store(CLOSED, Ordering::Relaxed);
    }

    /// Whether threads may take the most common paths.
    #[inline(always)]
    pub(crate) fn is_gate_open(&self) -> bool {
        /// Says to the compiler which way is the less common one.
        #[cold]
        const fn seldom() {}
        let gate = self.gate.load(Ordering::Acquire);
        if gate == OPEN {
            return true;
        }
        seldom();
        gate == OPEN_HERE
            && self.wiped.as_ref().is_some_and(|wiped| wiped.word().load(Ordering::Relaxed) != 0)
    }

    /// Makes the pool known to the tracker, to forks and to ending threads.
    ///
    /// # Safety
    /// The pool stays where it is until dropped.
    pub(crate) unsafe fn settle(&self) -> Result<()> {
        let pool: &dyn Pool = self;
        // SAFETY: only the lifetime of the trait object changes. The upstream, a field, goes before the pool does.
        unsafe {
            self.upstream
                .set_pool(core::mem::transmute::<NonNull<dyn Pool>, NonNull<dyn Pool>>(NonNull::from(pool)))
        };
        // SAFETY: passed on to the caller; `drop` leaves.
        unsafe { roster::enter(NonNull::from(self))? };
        Ok(())
    }

    /// What the settings say is there from the beginning.
    pub(crate) fn begin(&self) -> Result<()> {
        self.policy.begin_in(self.settings.background);
        match usize::try_from(self.settings.reserve) {
            Ok(0) => Ok(()),
            bytes => self.take_ahead(bytes.unwrap_or(usize::MAX)).map(drop),
        }
    }

    /// Frees a block that the calling thread took, if that is a matter of a few instructions; if this is `false`, nothing has happened. It
    /// takes no lock and calls nothing: for who may be in the middle of another call of this pool.
    ///
    /// # Safety
    /// As [`Pool::free`].
    #[inline]
    pub unsafe fn free_own_at_once(&self, address: Address) -> bool {
        self.put_at_once(address).is_ok()
    }

    /// The calling thread's number and cache; `None` while the thread is ending, and before it needs one.
    #[inline]
    pub(crate) fn cache(&self) -> Option<(u32, &ThreadCache)> {
        let index = thread::current()?.get();
        Some((index, self.caches.get(index)?))
    }

    pub(crate) fn route(&self, layout: Layout) -> Route {
        let (size, align) = (layout.size(), layout.align());
        let class = self.classes.of_layout(layout);
        if class < self.cacheable(align) {
            return Route::Cached(class);
        }
        // Below a page the class system aligns; above, a large block is placed.
        const LARGEST_ALIGNMENT: usize = 64 << 20;
        let class = self.classes.of(size).max(self.classes.slab_count());
        if align > UNIT && align <= LARGEST_ALIGNMENT && class < self.classes.count() {
            Route::Aligned(class)
        } else {
            Route::Direct
        }
    }

    /// Classes below this number have blocks that are aligned to `align` whenever their size is.
    #[inline]
    pub(crate) const fn cacheable(&self, align: usize) -> usize {
        if align <= UNIT { self.classes.count() } else { self.classes.slab_count() }
    }
}

// SAFETY: blocks lie in slabs and ranges of regions of the upstream, which `Large` and the slabs' bitmaps keep
// apart (the model tests check it); an exported block is announced in `free` before it reaches any cache.
unsafe impl Pool for SlabPool {
    fn name(&self) -> &str {
        self.settings.name.as_str()
    }

    fn provider(&self) -> &ProviderRef {
        self.upstream.provider()
    }

    #[inline]
    fn allocate(&self, layout: Layout) -> Result<Address> {
        match self.take_at_once(layout) {
            Some(address) => Ok(address),
            None => self.allocate_else(layout),
        }
    }

    #[inline]
    fn allocate_fast(&self, layout: Layout) -> Option<Address> {
        self.take_at_once(layout)
    }

    #[inline]
    unsafe fn free_fast(&self, address: Address) -> bool {
        match self.put_at_once(address) {
            Ok(()) => true,
            Err(Some(found)) => self.put_found(found, address).is_some(),
            Err(None) => self.free_shared(address).is_some(),
        }
    }

    #[inline]
    unsafe fn free(&self, address: Address) -> Result<()> {
        match self.put_at_once(address) {
            Ok(()) => Ok(()),
            Err(found) => {
                drop(found);
                self.free_else(address)
            }
        }
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        self.find_block(address).map(|(block, _)| block)
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        let went = self.release_free(keep);
        self.lower_floor();
        went
    }

    fn statistics(&self) -> PoolStatistics {
        self.sum_up()
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        Some(self)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        Some(&self.upstream)
    }

    fn reserves(&self) -> Option<&dyn Reserve> {
        let pools_blocks = self.classes.count() > 0;
        pools_blocks.then_some(self as &dyn Reserve)
    }

    fn share_limit(&self) -> Option<&dyn ShareLimit> {
        Some(self)
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

// SAFETY: `free` announces exported blocks before they can be handed out again; what the upstream holds stays
// out of reach until `reclaim`.
unsafe impl DeferredFree for SlabPool {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let (block, place) = self.find_block(address)?;
        if block.address != address {
            return Err(Error::InteriorAddress { address });
        }
        self.any_exported.store(true, Ordering::Relaxed);
        self.share_with_caller(place.span);
        if place.is_current() && span::mark_exported(place.state) {
            Ok(())
        } else {
            Err(Error::NotAllocated { address })
        }
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_when_ready(address, completion)
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        self.take_back(freed)
    }
}

impl Reserve for SlabPool {
    fn reserve(&self, bytes: usize) -> Result<usize> {
        self.take_ahead(bytes)
    }

    fn purge(&self) -> Result<usize> {
        self.tidy_now()
    }
}

impl ShareLimit for SlabPool {
    fn yield_free(&self, limit: &SharedLimit, bytes: u64) -> u64 {
        self.give_others(limit, bytes)
    }
}

impl Inspect for SlabPool {
    fn map(&self) -> Option<PoolMap> {
        Some(self.draw())
    }

    fn leaks(&self, look: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        self.show_leaks(look);
        true
    }
}

impl fmt::Debug for SlabPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slab pool {:?} over {:?}", self.name(), self.upstream.provider())
    }
}
