//! [`SlabPool`], and the common paths of allocating and freeing.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use umf_core::held::{HeldStatistics, OnFree};
use umf_core::lock::Lock;
use umf_core::metadata::{Chunks, Table};
use umf_core::observer::Freed;
use umf_core::statistics::{Gauge, PoolStatistics};
use umf_core::{Address, BlockSpan, Error, Layout, Pool, ProviderRef, Result, Upstream, thread, tracker};

use crate::SlabSettings;
use crate::arena::Arena;
use crate::central::Central;
use crate::classes::{Classes, MAX_CLASSES};
use crate::large::{Large, Tables, UNIT};
use crate::limits::Reserve;
use crate::roster;
use crate::span::{Kind, Place, Span};
use crate::state::{self, EXPORTED, Entry, LIVE};
use crate::thread_cache::ThreadCache;

pub(crate) const OWNER: &str = "this slab pool";

/// The memory is shared with other processes: a forked child must not use it.
pub(crate) const SHARED: u8 = 1;
/// Each block is traced.
const TRACED: u8 = 2;
/// The pool is being dropped.
pub(crate) const CLOSING: u8 = 4;

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
    pub(crate) spans: Table<Span>,
    pub(crate) caches: Chunks<ThreadCache>,
    pub(crate) settings: SlabSettings,
    /// State bytes, and nothing else: a second free that races with the end of a slab may swap a byte of a run
    /// that has another owner by then. It notices and puts it back, and what it met was a state.
    pub(crate) states: Arena,
    pub(crate) arena: Arena,
    pub(crate) reserve: Reserve,
    /// Live blocks that are regions.
    pub(crate) direct: Gauge,
    pub(crate) direct_allocations: AtomicU64,
    /// Whether any block was ever exported.
    pub(crate) any_exported: AtomicBool,
    pub(crate) large: Lock<Large>,
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
    /// [`Error::InvalidArgument`] for settings out of range, [`Error::TooMany`] past 4,096 pools.
    pub fn new(provider: impl Into<ProviderRef>, settings: SlabSettings) -> Result<Arc<Self>> {
        let pool = Arc::new(Self::unplaced(provider.into(), settings)?);
        // SAFETY: an `Arc`'s content does not move, and `drop` takes the pool out again.
        unsafe { pool.settle()? };
        Ok(pool)
    }

    /// A pool that nothing refers to yet.
    pub(crate) fn unplaced(provider: ProviderRef, settings: SlabSettings) -> Result<Self> {
        let settings = settings.checked()?;
        let shared = provider.visibility() == umf_core::Visibility::Shared;
        let gates = if shared { SHARED } else { 0 } | if settings.trace >= 3 { TRACED } else { 0 };
        let upstream = Upstream::new(provider)?;
        upstream.set_on_free(settings.on_free, settings.max_held);
        Ok(Self {
            upstream,
            gates: AtomicU8::new(gates),
            classes: Classes::new(settings.min_block_size, settings.max_poolable_size),
            spans: Table::new(u32::MAX >> 2),
            caches: Chunks::new(),
            states: Arena::new(),
            arena: Arena::new(),
            reserve: Reserve::new(settings.memory_limit, settings.shared_limit.clone()),
            direct: Gauge::new(),
            direct_allocations: AtomicU64::new(0),
            any_exported: AtomicBool::new(false),
            large: Lock::new(Large::new()),
            centrals: [const { Lock::new(Central::new()) }; MAX_CLASSES],
            settings,
        })
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
        // SAFETY: passed on to the caller; `drop` unregisters.
        unsafe { umf_core::fork::register(crate::fork::erased(self))? };
        // SAFETY: passed on to the caller; `drop` leaves.
        unsafe { roster::enter(NonNull::from(self)) }
    }

    pub(crate) const fn tables(&self) -> Tables<'_> {
        Tables { arena: &self.arena, spans: &self.spans }
    }

    /// The calling thread's cache; `None` while the thread is ending, or if there is no memory for it.
    #[inline]
    pub(crate) fn cache(&self) -> Option<&ThreadCache> {
        self.caches.get(thread::current()?.get())
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
    const fn cacheable(&self, align: usize) -> usize {
        if align <= UNIT { self.classes.count() } else { self.classes.slab_count() }
    }

    #[cold]
    fn gate_allocation(&self) -> Result<()> {
        let gates = self.gates.load(Ordering::Relaxed);
        if gates & SHARED != 0 && self.upstream.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        if gates & CLOSING != 0 {
            return Err(Error::NotSupported {
                what: "allocating while it is dropped",
                owner: OWNER,
                native: 0,
            });
        }
        Ok(())
    }

    #[cold]
    fn allocate_slow(&self, layout: Layout) -> Result<Address> {
        let address = match self.route(layout) {
            Route::Cached(class) => self.allocate_refilling(class),
            Route::Aligned(class) => self.allocate_aligned(class, layout.align()),
            Route::Direct => self.allocate_direct(layout),
        };
        if self.gates.load(Ordering::Relaxed) & TRACED != 0 {
            self.trace_block("allocate", layout.size(), address.as_ref().ok());
        }
        address
    }

    /// What remains of a free once the block is known to have been live and is not any more.
    // Always: as in `locate`.
    #[inline(always)]
    pub(crate) fn put(&self, place: Place<'_>, address: Address) -> Result<()> {
        let class = match place.span.slab_class() {
            Some(class) => class,
            None if place.span.kind() == Kind::Direct => return self.free_direct(place),
            None => usize::from(place.large_class().load(Ordering::Relaxed)),
        };
        let entry = Entry::new(address.to_bits(), NonNull::from(place.state));
        if let Some(cache) = self.cache() {
            let bin = cache.bin(class);
            bin.count_free();
            if !cache.pending.load(Ordering::Relaxed) {
                if class < self.classes.slab_count() {
                    if bin.push(entry) {
                        return Ok(());
                    }
                } else {
                    let bytes = cache.large_bytes.get() + self.classes.size(class);
                    if bytes <= self.settings.thread_cache_size && bin.push(entry) {
                        cache.large_bytes.set(bytes);
                        return Ok(());
                    }
                }
            }
        }
        self.put_slow(class, entry);
        Ok(())
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
        if self.gates.load(Ordering::Relaxed) != 0 {
            self.gate_allocation()?;
            if self.gates.load(Ordering::Relaxed) & TRACED != 0 {
                return self.allocate_slow(layout);
            }
        }
        let class = self.classes.of_layout(layout);
        if class < self.cacheable(layout.align())
            && let Some(cache) = self.cache()
            && !cache.pending.load(Ordering::Relaxed)
        {
            let bin = cache.bin(class);
            if let Some(entry) = bin.pop() {
                bin.count_allocation();
                if class >= self.classes.slab_count() {
                    cache.large_bytes.set(cache.large_bytes.get() - self.classes.size(class));
                }
                // SAFETY: entries of this pool's caches name states in its own metadata, and a popped one is ours.
                return Ok(Address::from_bits(unsafe { entry.hand_out() }));
            }
        }
        self.allocate_slow(layout)
    }

    #[inline]
    unsafe fn free(&self, address: Address) -> Result<()> {
        let gates = self.gates.load(Ordering::Relaxed);
        if gates != 0 {
            if gates & SHARED != 0 && self.upstream.is_frozen() {
                return Ok(());
            }
            if gates & TRACED != 0 {
                self.trace_block("free", 0, Some(&address));
            }
        }
        let place = self.locate(address)?;
        if place.rest != 0 {
            return Err(self.why_not(address));
        }
        let old = place.state.swap(0, Ordering::AcqRel);
        if old != LIVE || !place.is_current() {
            if !place.is_current() {
                // A second free met a slab that was made anew; the block that it hit is someone else's.
                place.state.fetch_or(old, Ordering::AcqRel);
                return Err(Error::NotAllocated { address });
            }
            if old & LIVE == 0 {
                return Err(self.why_not(address));
            }
            return self.free_exported(place, address);
        }
        self.put(place, address)
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        self.find_block(address).map(|(block, _)| block)
    }

    fn mark_exported(&self, address: Address) -> Result<()> {
        let (block, state) = self.find_block(address)?;
        if block.address != address {
            return Err(Error::InteriorAddress { address });
        }
        self.any_exported.store(true, Ordering::Relaxed);
        if state::mark_exported(state) { Ok(()) } else { Err(Error::NotAllocated { address }) }
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        self.release_free(keep)
    }

    unsafe fn let_go(&self, freed: Freed) -> Result<()> {
        self.take_back(freed)
    }

    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) -> Result<()> {
        self.upstream.set_on_free(on_free, max_held_bytes);
        Ok(())
    }

    fn drain(&self, timeout: Duration) -> HeldStatistics {
        self.upstream.drain(timeout)
    }

    fn statistics(&self) -> PoolStatistics {
        self.sum_up()
    }
}

impl SlabPool {
    /// The block (or unit) that `address` lies in, live or not.
    // Always, for `free`'s sake: its other callers are cold, and are enough to have it called there too (a quarter slower).
    #[inline(always)]
    pub(crate) fn locate(&self, address: Address) -> Result<Place<'_>> {
        // A number that another pool set finds a span of ours that does not hold the address.
        let place =
            tracker::span(address).and_then(|(_, number)| self.spans.get(number)?.locate(number, address));
        place.ok_or_else(|| self.why_nowhere(address))
    }

    /// Whether a state says that an export names the block.
    pub(crate) const fn is_exported(state: u8) -> bool {
        state & (LIVE | EXPORTED) == LIVE | EXPORTED
    }
}

impl fmt::Debug for SlabPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slab pool {:?} over {:?}", self.name(), self.upstream.provider())
    }
}
