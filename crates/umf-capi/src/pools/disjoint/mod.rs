//! `umf/pools/pool_disjoint.h`: the slab pool behind the C interface.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::Ordering;
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use umf_core::{Address, Error, Layout, Pool as _, Result};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_plugin::table::State;
use umf_sync::Lock;

use super::table::{TablePool, functions, settings, start};
use crate::boundary::{Code, Failure, Handle, Out, Outcome, Text, call, settings_functions};
use crate::last_error::{PoolKind, explain};
use crate::memory::owners;
use crate::pool::{Functions, Pool, PoolTable};
use crate::provider::{Provider, short_name};

mod control;
mod counts;

use counts::{SharedLimits, TraceCounters, sizes};

/// The settings of a pool to be created.
#[derive(Clone)]
struct Params {
    slab_min_size: usize,
    max_poolable_size: usize,
    capacity: usize,
    /// Smallest block; `None` is the provider's cache line.
    min_bucket_size: Option<usize>,
    trace: i32,
    limits: Option<Arc<SharedLimits>>,
    name: CString,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            slab_min_size: 64 << 10,
            max_poolable_size: 2 << 20,
            capacity: 4,
            min_bucket_size: None,
            trace: 0,
            limits: None,
            name: c"disjoint".to_owned(),
        }
    }
}

settings_functions! {
    Params;
    create fn umfDisjointPoolParamsCreate() { Params::default() }
    destroy fn umfDisjointPoolParamsDestroy;

    fn umfDisjointPoolParamsSetSlabMinSize(params, size: usize) { params.slab_min_size = size; }
    fn umfDisjointPoolParamsSetMaxPoolableSize(params, size: usize) { params.max_poolable_size = size; }
    fn umfDisjointPoolParamsSetCapacity(params, slabs: usize) { params.capacity = slabs; }
    fn umfDisjointPoolParamsSetMinBucketSize(params, size: usize) {
        params.min_bucket_size = Some(checked_bucket(size)?);
    }
    fn umfDisjointPoolParamsSetTrace(params, level: i32) { params.trace = level; }
    fn umfDisjointPoolParamsSetSharedLimits(params, limits: Handle<Arc<SharedLimits>>) {
        params.limits = if limits.is_null() { None } else { Some(Arc::clone(limits.get()?)) };
    }
    fn umfDisjointPoolParamsSetName(params, name: Text) { params.name = short_name(name.get()?); }
}

// Pools hold a reference to their shared limits.
settings_functions! {
    Arc<SharedLimits>;
    create fn umfDisjointPoolSharedLimitsCreate(most: usize) { Arc::new(SharedLimits::new(most)) }
    destroy fn umfDisjointPoolSharedLimitsDestroy;
}

/// Checks that the smallest block is a power of two.
fn checked_bucket(size: usize) -> Outcome<usize> {
    if size.is_power_of_two() {
        Ok(size)
    } else {
        Err(Failure::argument("the smallest bucket must be a power of two"))
    }
}

/// The state of a disjoint pool. The slab pool is created once its settings are final: after the
/// defaults of the control tree are applied.
pub(crate) struct Disjoint {
    params: Lock<Params>,
    name: CString,
    core: Arc<dyn umf_core::Provider>,
    cache_line: usize,
    /// The pool handle that owns the memory.
    handle: Option<*mut Pool>,
    made: OnceLock<BuiltPool>,
}

// SAFETY: the handle is only compared and passed on.
unsafe impl Send for Disjoint {}
// SAFETY: the handle is only compared and passed on.
unsafe impl Sync for Disjoint {}

/// The most bytes that a thread caches in blocks below 64 KiB. As much as the buckets of the
/// original keep: up to four slabs for each of these sizes.
const SMALL_CACHE: usize = 32 << 20;

/// The slab pool with its final settings.
pub(crate) struct BuiltPool {
    slab: Arc<SlabPool>,
    params: Params,
    /// Block sizes in ascending order.
    sizes: Vec<usize>,
    counts: Option<TraceCounters>,
}

/// Returns the layout of an allocation of `size` bytes. Blocks are aligned to the smallest bucket,
/// usually a cache line.
#[inline]
pub(crate) fn layout(size: usize) -> Result<Layout> {
    Layout::new(size, SlabSettings::SMALLEST_BLOCK)
}

impl Disjoint {
    fn new(provider: &Provider, params: Params) -> Self {
        Self {
            name: params.name.clone(),
            params: Lock::new(params),
            core: provider.core(),
            cache_line: provider.cache_line(),
            handle: provider.pool(),
            made: OnceLock::new(),
        }
    }

    /// Returns whether allocations and frees need no counters and limits.
    pub(crate) fn is_plain(&self) -> bool {
        self.made().is_ok_and(|made| made.counts.is_none() && made.params.limits.is_none())
    }

    pub(crate) fn slab(&self) -> Outcome<&SlabPool> {
        Ok(&self.made()?.slab)
    }

    /// Changes the settings, if the slab pool does not exist yet.
    fn change(&self, change: impl FnOnce(&mut Params)) -> Outcome<()> {
        if self.made.get().is_some() {
            return Err(Failure::unsupported(
                "a pool's settings cannot be changed once it is made; set a default",
            ));
        }
        change(&mut self.params.lock());
        Ok(())
    }

    /// Returns the slab pool. Creates it at the first call.
    pub(crate) fn made(&self) -> Outcome<&BuiltPool> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let mut params = self.params.lock().clone();
        let smallest = *params.min_bucket_size.get_or_insert(self.cache_line);
        let smallest = smallest.clamp(SlabSettings::SMALLEST_BLOCK, SlabSettings::LARGEST_MIN_BLOCK);
        let largest = params.max_poolable_size.min(SlabSettings::LARGEST_POOLABLE);
        let settings = SlabSettings::new()
            .name(params.name.to_string_lossy())
            .slab_min_size(params.slab_min_size.clamp(1, SlabSettings::LARGEST_SLAB))
            .max_poolable_size(largest)
            .capacity(u32::try_from(params.capacity).unwrap_or(u32::MAX))
            .min_block_size(smallest)
            .small_cache_size(SMALL_CACHE)
            .capacity_bounds_cache(true)
            .trace(u32::try_from(params.trace).unwrap_or(0));
        let slab = SlabPool::new(Arc::clone(&self.core), settings)?;
        let sizes = if largest == 0 { Vec::new() } else { sizes(smallest, largest) };
        let counts = (params.trace > 0).then(|| TraceCounters::new(&sizes));
        let made = self.made.get_or_init(|| BuiltPool { slab, params, sizes, counts });
        if let Some(handle) = self.handle {
            owners::register(Arc::as_ptr(&made.slab).cast(), handle);
        }
        if let Some(limits) = &made.params.limits {
            limits.enter(&made.slab);
        }
        Ok(made)
    }

    /// Allocates, and counts if the pool is traced.
    fn allocate(&self, layout: Layout) -> Outcome<*mut c_void> {
        let made = self.made()?;
        let regions = made.counts.is_some().then(|| made.slab.statistics().regions);
        let address = made.slab.allocate(layout).map_err(explain)?;
        if let Some(limits) = &made.params.limits {
            limits.allocated(made.size_of(address, layout.size()));
        }
        if let (Some(counts), Some(regions)) = (&made.counts, regions) {
            let count = counts.of(&made.sizes, made.size_of(address, layout.size()));
            count.allocations.fetch_add(1, Ordering::Relaxed);
            if made.slab.statistics().regions <= regions {
                count.from_pool.fetch_add(1, Ordering::Relaxed);
            }
            count.most_in_use.fetch_max(count.live(), Ordering::Relaxed);
        }
        let outside = Failure::argument("the memory lies in no address space of this process");
        address.as_ptr().map(<*mut u8>::cast).ok_or(outside)
    }

    /// Frees, counts if the pool is traced, and enforces shared limits.
    fn free_counted(&self, block: *mut c_void) -> Outcome<()> {
        let made = self.made()?;
        let address = Address::from_ptr(block.cast::<u8>());
        let watched = made.counts.is_some() || made.params.limits.is_some();
        let size = if watched { made.size_of(address, 0) } else { 0 };
        // SAFETY: C guarantees that the block is not in use. An invalid address is an error.
        unsafe { made.slab.free(address) }.map_err(explain)?;
        if let Some(counts) = &made.counts {
            counts.of(&made.sizes, size).frees.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(limits) = &made.params.limits {
            limits.freed(size);
        }
        Ok(())
    }
}

impl BuiltPool {
    /// Returns the size of the live block at an address.
    fn size_of(&self, address: Address, otherwise: usize) -> usize {
        self.slab.block_at(address).map_or(otherwise, |block| block.size)
    }
}

impl Drop for Disjoint {
    fn drop(&mut self) {
        let Some(made) = self.made.take() else { return };
        let limits = made.params.limits.clone();
        if let Some(limits) = &limits {
            limits.leave(&made.slab);
        }
        drop(made);
        if let Some(limits) = limits {
            limits.pool_is_gone();
        }
    }
}

pub(crate) const FUNCTIONS: Functions = functions::<Disjoint>(initialize);

static TABLE: PoolTable = PoolTable::of(FUNCTIONS);

#[unsafe(no_mangle)]
extern "C" fn umfDisjointPoolOps() -> *const PoolTable {
    &raw const TABLE
}

extern "C" fn initialize(provider: Handle<Provider>, params: *const c_void, state: *mut State) -> Code {
    start(provider, state, |provider| Ok(Disjoint::new(provider, settings(params)?)))
}

impl TablePool for Disjoint {
    const KIND: PoolKind = PoolKind::Disjoint;
    const NAME: &'static CStr = c"disjoint";
    const ALIGN: usize = SlabSettings::SMALLEST_BLOCK;

    fn name(&self) -> *const c_char {
        self.name.as_ptr()
    }

    /// Returns NULL for 0 bytes, without a failure.
    fn aligned_malloc(&self, size: usize, align: usize) -> Outcome<*mut c_void> {
        match Layout::new(size, align.max(1)) {
            Err(Error::ZeroSize) => Ok(core::ptr::null_mut()),
            layout => self.allocate(layout?),
        }
    }

    fn free(&self, block: *mut c_void) -> Outcome<()> {
        self.free_counted(block)
    }

    fn pool(&self) -> Outcome<&dyn umf_core::Pool> {
        Ok(self.slab()?)
    }

    fn is_host(&self) -> bool {
        self.core.memory_kind().is_host_accessible()
    }
}
