//! [`Disjoint`]: the state of a disjoint pool.

use core::ffi::c_void;
use core::sync::atomic::Ordering;
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use umf_core::{Address, Layout, Pool as _, Result};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_sync::Lock;

use super::counts::{Counts, sizes};
use super::params::Params;
use crate::boundary::{Failure, Outcome};
use crate::memory::owners;
use crate::pool::Pool;
use crate::provider::{Provider, Tracking};

/// The state. The slab pool is made when its settings are certain: after the defaults of the control tree were written.
pub(crate) struct Disjoint {
    params: Lock<Params>,
    pub(super) name: CString,
    pub(super) core: Arc<dyn umf_core::Provider>,
    cache_line: usize,
    /// The handle whose memory is tracked as this pool's.
    handle: Option<*mut Pool>,
    made: OnceLock<Made>,
}

// SAFETY: the handle is only compared and handed out.
unsafe impl Send for Disjoint {}
// SAFETY: as above.
unsafe impl Sync for Disjoint {}

/// What a thread may keep in blocks below 64 KiB: as much as the original keeps in its buckets of these sizes by itself, which has
/// up to four slabs of each.
const SMALL_CACHE: usize = 32 << 20;

/// The slab pool, and what goes with it.
pub(crate) struct Made {
    pub(super) slab: Arc<SlabPool>,
    pub(super) params: Params,
    /// The sizes of blocks.
    pub(super) sizes: Vec<usize>,
    pub(super) counts: Option<Counts>,
}

/// What `size` bytes are asked for as. Blocks are aligned to the smallest bucket, a cache line as a rule.
#[inline]
pub(crate) fn layout(size: usize) -> Result<Layout> {
    Layout::new(size, SlabSettings::SMALLEST_BLOCK)
}

impl Disjoint {
    pub(super) fn new(provider: &Provider, params: Params) -> Outcome<Self> {
        let tracking = Tracking::of(provider);
        let (base, handle) = match tracking {
            Some(tracking) => (tracking.base()?, tracking.pool()),
            None => (provider, None),
        };
        Ok(Self {
            name: params.name.clone(),
            params: Lock::new(params),
            core: base.core(),
            cache_line: base.cache_line(),
            handle,
            made: OnceLock::new(),
        })
    }

    /// Whether nothing is to be done beside allocating and freeing.
    pub(crate) fn is_plain(&self) -> bool {
        self.made().is_ok_and(|made| made.counts.is_none() && made.params.limits.is_none())
    }

    pub(crate) fn slab(&self) -> Outcome<&SlabPool> {
        Ok(&self.made()?.slab)
    }

    /// Changes the settings, as long as they are not in use.
    pub(super) fn change(&self, change: impl FnOnce(&mut Params)) -> Outcome<()> {
        if self.made.get().is_some() {
            return Err(Failure::unsupported(
                "a pool's settings cannot be changed once it is made; set a default",
            ));
        }
        change(&mut self.params.lock());
        Ok(())
    }

    /// The slab pool, made now if it was not.
    pub(crate) fn made(&self) -> Outcome<&Made> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let mut params = self.params.lock().clone();
        let smallest = *params.min_bucket_size.get_or_insert(self.cache_line);
        let smallest = smallest.clamp(SlabSettings::SMALLEST_BLOCK, SlabSettings::LARGEST_MIN_BLOCK);
        let largest = params.max_poolable_size.min(SlabSettings::LARGEST_POOLABLE);
        let settings = SlabSettings::new()
            .name(&params.name.to_string_lossy())
            .slab_min_size(params.slab_min_size.clamp(1, SlabSettings::LARGEST_SLAB))
            .max_poolable_size(largest)
            .capacity(u32::try_from(params.capacity).unwrap_or(u32::MAX))
            .min_block_size(smallest)
            .small_cache_size(SMALL_CACHE)
            .trace(u32::try_from(params.trace).unwrap_or(0));
        let slab = SlabPool::new(Arc::clone(&self.core), settings)?;
        let sizes = if largest == 0 { Vec::new() } else { sizes(smallest, largest) };
        let counts = (params.trace > 0).then(|| Counts::new(&sizes));
        let made = self.made.get_or_init(|| Made { slab, params, sizes, counts });
        if let Some(handle) = self.handle {
            owners::enter(Arc::as_ptr(&made.slab).cast(), handle);
        }
        if let Some(limits) = &made.params.limits {
            limits.enter(&made.slab);
        }
        Ok(made)
    }

    /// Allocates, and counts if that is wanted.
    pub(super) fn allocate(&self, layout: Layout) -> Outcome<*mut c_void> {
        let made = self.made()?;
        let regions = made.counts.is_some().then(|| made.slab.statistics().regions);
        let address = made.slab.allocate(layout).map_err(crate::provider::explain)?;
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

    /// Frees, and counts if that is wanted.
    pub(super) fn free(&self, block: *mut c_void) -> Outcome<()> {
        let made = self.made()?;
        let address = Address::from_ptr(block.cast::<u8>());
        let watched = made.counts.is_some() || made.params.limits.is_some();
        let size = if watched { made.size_of(address, 0) } else { 0 };
        // SAFETY: the block is C's to give; one that is none is an error.
        unsafe { made.slab.free(address) }.map_err(crate::provider::explain)?;
        if let Some(counts) = &made.counts {
            counts.of(&made.sizes, size).frees.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(limits) = &made.params.limits {
            limits.freed(size);
        }
        Ok(())
    }
}

impl Made {
    /// Bytes of the live block at an address.
    fn size_of(&self, address: Address, otherwise: usize) -> usize {
        self.slab.block_at(address).map_or(otherwise, |block| block.size)
    }
}

impl Drop for Disjoint {
    fn drop(&mut self) {
        let Some(made) = self.made.take() else { return };
        let limits = made.params.limits.clone();
        drop(made);
        if let Some(limits) = limits {
            limits.enforce();
        }
    }
}
