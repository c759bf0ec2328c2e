//! [`ClassPool`]: the pool, with its deferred free.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use umf_core::statistics::PoolStatistics;
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Freed, Layout, Pool, ProviderRef, Result,
};
use umf_runtime::Upstream;
use umf_runtime::observer::before_free;
use umf_sync::Lock;

use crate::slabs::{BlockState, SlabTable};

/// A pool of blocks whose sizes are powers of two.
pub struct ClassPool {
    // The first field, so that it is dropped before the slabs, which its guards access.
    upstream: Upstream,
    slabs: Lock<SlabTable>,
}

impl ClassPool {
    /// Makes a pool over `provider`.
    ///
    /// # Errors
    /// [`umf_core::Error::TooMany`] past some thousand pools in one process.
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Arc<Self>> {
        let upstream = Upstream::new(provider)?;
        let pool = Arc::new(Self { upstream, slabs: Lock::new(SlabTable::default()) });
        let this: &(dyn Pool + 'static) = &*pool;
        // SAFETY: the content of an `Arc` does not move. `upstream` is a field of the pool, so it
        // does not outlive the pool.
        unsafe { pool.upstream.set_pool(NonNull::from(this)) };
        Ok(pool)
    }

    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        if self.upstream.is_frozen() {
            return Ok(());
        }
        let former = {
            let mut slabs = self.slabs.lock();
            std::mem::replace(slabs.slab_at(address)?.state_at(address)?, BlockState::Freed)
        };
        // Without the lock, because observers lock, too.
        let leases =
            if former == BlockState::Exported { before_free(Freed::Block { address }) } else { None };
        if leases.is_some() || completion.is_some() {
            let size = self.slabs.lock().slab_at(address)?.block_size;
            let is_deferred = match (completion, leases) {
                (Some(completion), leases) => self.upstream.defer_until(address, size, completion, leases),
                (None, Some(leases)) => self.upstream.defer(address, size, leases),
                (None, None) => false,
            };
            if is_deferred {
                // The block stays `Freed`, which is neither live nor free, until `reclaim`.
                self.slabs.lock().count_free(size);
                self.upstream.poll_some();
                return Ok(());
            }
        }
        self.slabs.lock().free(&self.upstream, address)
    }
}

// SAFETY: blocks lie in regions of the upstream, at multiples of a block size that is a multiple of
// the alignment. The slabs never allocate a live block, and `free` announces exported blocks before
// they are reused.
unsafe impl Pool for ClassPool {
    fn name(&self) -> &str {
        "classes"
    }

    fn provider(&self) -> &ProviderRef {
        self.upstream.provider()
    }

    fn allocate(&self, layout: Layout) -> Result<Address> {
        if self.upstream.is_frozen() {
            return Err(umf_core::Error::Frozen { what: "a pool of shared memory" });
        }
        // Without the lock, because the upstream calls `reclaim`, and the out-of-memory callback
        // may free blocks.
        self.upstream.retry_on_out_of_memory(self, layout, || {
            self.upstream.admit()?;
            self.upstream.poll_pending();
            self.slabs.lock().allocate(&self.upstream, layout)
        })
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.free_block(address, None)
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        self.slabs.lock().slab_at(address)?.block_at(address)
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        if self.upstream.is_frozen() {
            return Ok(0);
        }
        self.upstream.poll();
        self.slabs.lock().trim(&self.upstream, keep)
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = self.slabs.lock().statistics;
        statistics.held_bytes = self.upstream.deferred().bytes;
        let used = statistics.live_bytes + statistics.held_bytes;
        statistics.cached_bytes = statistics.reserved_bytes.saturating_sub(used);
        statistics
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        Some(self)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        Some(&self.upstream)
    }
}

// SAFETY: `free_block` announces exported blocks before they can be allocated again. A deferred
// block is not allocated until `reclaim`.
unsafe impl DeferredFree for ClassPool {
    fn mark_exported(&self, address: Address) -> Result<()> {
        *self.slabs.lock().slab_at(address)?.state_at(address)? = BlockState::Exported;
        Ok(())
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_block(address, Some(completion))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } => {
                self.slabs.lock().free_uncounted(&self.upstream, address, BlockState::Freed).map(drop)
            }
            Freed::Region(region) => {
                self.slabs.lock().count_released_region(region);
                Ok(())
            }
        }
    }
}

impl Drop for ClassPool {
    fn drop(&mut self) {
        self.upstream.stop_reclaiming();
        let slabs = self.slabs.lock().take_all();
        for slab in slabs {
            for address in slab.exported().filter(|_| !self.upstream.is_frozen()) {
                if let Some(leases) = before_free(Freed::Block { address }) {
                    // The free of the region is deferred as long as that of one of its blocks.
                    let _ = self.upstream.defer(address, slab.block_size, leases);
                }
            }
            // If the provider fails, it keeps the region.
            // SAFETY: by the contract of `allocate`, no block of a dropped pool is in use.
            let _ = unsafe { self.upstream.free(slab.region) };
        }
        // Waits for threads that access the pool through the upstream.
        self.upstream.close();
    }
}

impl fmt::Debug for ClassPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class pool over {:?}", self.upstream.provider())
    }
}
