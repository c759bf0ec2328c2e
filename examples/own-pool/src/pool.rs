//! [`ClassPool`].

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

use crate::books::Books;
use crate::slab::State;

/// A pool of blocks whose sizes are powers of two.
pub struct ClassPool {
    // First, so that it is dropped before what its guards could still reach.
    upstream: Upstream,
    books: Lock<Books>,
}

impl ClassPool {
    /// A pool over `provider`.
    ///
    /// # Errors
    /// [`umf_core::Error::TooMany`] past some thousand pools in one process.
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Arc<Self>> {
        let upstream = Upstream::new(provider)?;
        let pool = Arc::new(Self { upstream, books: Lock::new(Books::default()) });
        let this: &(dyn Pool + 'static) = &*pool;
        // SAFETY: an `Arc`'s content does not move, and `upstream`, a field, is dropped before the pool goes.
        unsafe { pool.upstream.set_pool(NonNull::from(this)) };
        Ok(pool)
    }

    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        if self.upstream.is_frozen() {
            return Ok(());
        }
        let was = {
            let mut books = self.books.lock();
            std::mem::replace(books.slab_at(address)?.state_at(address)?, State::Leaving)
        };
        // Without the lock: an observer takes locks of its own.
        let leases = if was == State::Exported { before_free(Freed::Block { address }) } else { None };
        if leases.is_some() || completion.is_some() {
            let size = self.books.lock().slab_at(address)?.block_size;
            let held = match (completion, leases) {
                (Some(completion), leases) => self.upstream.defer_until(address, size, completion, leases),
                (None, Some(leases)) => self.upstream.defer(address, size, leases),
                (None, None) => false,
            };
            if held {
                // It stays `Leaving`, which is neither live nor free, until it comes back through `reclaim`.
                self.books.lock().count_free(size);
                self.upstream.poll_some();
                return Ok(());
            }
        }
        self.books.lock().free(&self.upstream, address)
    }
}

// SAFETY: blocks are parts of regions that the upstream handed out, at multiples of a block size that is a multiple of
// the alignment; the books hand none out twice, and `free` announces exported ones while they are still nobody's.
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
        // Without the lock: what is let go comes back through `reclaim`, and who is asked for memory may free some.
        self.upstream.retry_on_out_of_memory(self, layout, || {
            self.upstream.admit()?;
            self.upstream.poll_pending();
            self.books.lock().allocate(&self.upstream, layout)
        })
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.free_block(address, None)
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        self.books.lock().slab_at(address)?.block_at(address)
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        if self.upstream.is_frozen() {
            return Ok(0);
        }
        self.upstream.poll();
        self.books.lock().trim(&self.upstream, keep)
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = self.books.lock().statistics;
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

// SAFETY: `free_block` announces exported blocks before they can be handed out again; what the upstream holds stays
// out of reach until `reclaim`.
unsafe impl DeferredFree for ClassPool {
    fn mark_exported(&self, address: Address) -> Result<()> {
        *self.books.lock().slab_at(address)?.state_at(address)? = State::Exported;
        Ok(())
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_block(address, Some(completion))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } => {
                self.books.lock().end(&self.upstream, address, State::Leaving).map(drop)
            }
            Freed::Region(region) => {
                self.books.lock().remove_region(region);
                Ok(())
            }
        }
    }
}

impl Drop for ClassPool {
    fn drop(&mut self) {
        self.upstream.stop_reclaiming();
        let slabs = self.books.lock().take_all();
        for slab in slabs {
            for address in slab.exported().filter(|_| !self.upstream.is_frozen()) {
                if let Some(leases) = before_free(Freed::Block { address }) {
                    // The region is held when it is freed, as long as one of its blocks is.
                    let _ = self.upstream.defer(address, slab.block_size, leases);
                }
            }
            // SAFETY: whoever still uses a block of a pool that is gone breaks the contract of `allocate`. A provider that
            // refuses keeps the region.
            let _ = unsafe { self.upstream.free(slab.region) };
        }
        // Waits for threads that are shown the pool.
        self.upstream.close();
    }
}

impl fmt::Debug for ClassPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class pool over {:?}", self.upstream.provider())
    }
}
