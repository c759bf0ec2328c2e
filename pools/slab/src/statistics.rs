//! What is counted, and told.

use umf_core::statistics::PoolStatistics;
use umf_core::{Address, Region, thread};

use crate::SlabPool;

impl SlabPool {
    /// Calls `each` with the class, allocations and frees of every counter.
    fn counts(&self, mut each: impl FnMut(usize, u64, u64)) {
        for cache in (0..thread::end()).filter_map(|index| self.caches.get(index)) {
            for class in 0..self.classes.count() {
                let (allocations, frees) = cache.bin(class).counts();
                each(class, allocations, frees);
            }
        }
        for class in 0..self.classes.count() {
            let central = self.centrals[class].lock();
            each(class, central.allocations, central.frees);
        }
    }

    /// Bytes in live blocks.
    pub(crate) fn live_bytes(&self) -> u64 {
        // One thread may have freed what another allocated: only the sum is not below 0.
        let mut bytes = 0_i128;
        self.counts(|class, allocations, frees| {
            bytes += (i128::from(allocations) - i128::from(frees)) * self.classes.size(class) as i128;
        });
        u64::try_from(bytes).unwrap_or(0) + self.direct.bytes()
    }

    pub(crate) fn sum_up(&self) -> PoolStatistics {
        let mut statistics = PoolStatistics::default();
        self.counts(|_, allocations, frees| {
            statistics.allocations += allocations;
            statistics.frees += frees;
        });
        let direct = self.direct_allocations.load(core::sync::atomic::Ordering::Relaxed);
        statistics.allocations += direct;
        statistics.frees += direct.saturating_sub(self.direct.count());
        statistics.live_blocks = statistics.allocations.saturating_sub(statistics.frees);
        statistics.live_bytes = self.live_bytes();
        statistics.reserved_bytes = self.reserve.bytes();
        statistics.peak_reserved_bytes = self.reserve.peak();
        statistics.regions = self.reserve.regions();
        statistics.held_bytes = self.upstream.held().bytes;
        let used = statistics.live_bytes + statistics.held_bytes;
        statistics.cached_bytes = statistics.reserved_bytes.saturating_sub(used);
        statistics
    }

    #[cold]
    pub(crate) fn trace_block(&self, what: &str, size: usize, address: Option<&Address>) {
        match address {
            Some(address) => tracing::trace!(pool = self.settings.name.as_str(), what, size, %address),
            None => tracing::trace!(pool = self.settings.name.as_str(), what, size, "failed"),
        }
    }

    pub(crate) fn trace_slab(&self, what: &str, class: usize, size: usize) {
        if self.settings.trace >= 2 {
            let block = self.classes.size(class);
            tracing::debug!(pool = self.settings.name.as_str(), slab = what, size, block);
        }
    }

    pub(crate) fn trace_region(&self, what: &str, region: Region) {
        if self.settings.trace >= 2 {
            let (address, size) = (region.base(), region.size());
            tracing::debug!(pool = self.settings.name.as_str(), region = what, %address, size);
        }
    }

    pub(crate) fn trace_end(&self) {
        if self.settings.trace >= 1 {
            let statistics = self.sum_up();
            tracing::info!(
                pool = self.settings.name.as_str(),
                allocations = statistics.allocations,
                never_freed = statistics.live_blocks,
                never_freed_bytes = statistics.live_bytes,
                peak_reserved_bytes = statistics.peak_reserved_bytes,
                "dropped"
            );
        }
    }
}
