//! What is counted, and told.

use umf_core::statistics::PoolStatistics;
use umf_core::{Address, Region};
use umf_os::output;
use umf_sync::thread;

use crate::classes::MAX_CLASSES;
use crate::extents::UNIT;
use crate::{SlabPool, roster};

/// What blocks that are regions count as among the classes.
pub(crate) const DIRECT: usize = MAX_CLASSES;

impl SlabPool {
    /// A request of `asked` bytes got the block at `address`. From the slower paths, at each of which it is said.
    pub(crate) fn note_asked(&self, asked: usize, address: Address) {
        let Some(place) = self.meta.locate(address) else { return };
        let class = if place.span.is_direct() { DIRECT } else { place.span.class() };
        self.asked[class % self.asked.len()].note(asked, place.span.block() as usize);
    }

    /// How much of live bytes of a class (or [`DIRECT`]) was asked for.
    pub(crate) fn asked_of(&self, class: usize, live: u64) -> u64 {
        self.asked.get(class).map_or(live, |asked| asked.of(live))
    }

    /// Calls `each` with the class, allocations and frees of every counter.
    pub(crate) fn counts(&self, mut each: impl FnMut(usize, u64, u64)) {
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

    /// Bytes in live blocks, and what was asked for of them.
    pub(crate) fn live_and_requested(&self) -> (u64, u64) {
        // One thread may have freed what another allocated: only the sum is not below 0.
        let mut blocks = [0_i64; MAX_CLASSES];
        self.counts(|class, allocations, frees| {
            blocks[class] = blocks[class].wrapping_add(allocations.wrapping_sub(frees).cast_signed());
        });
        let direct = self.direct.bytes();
        let (mut live, mut requested) = (direct, self.asked_of(DIRECT, direct));
        for (class, &blocks) in blocks.iter().enumerate().filter(|&(_, &blocks)| blocks > 0) {
            let bytes = blocks.unsigned_abs() * self.classes.size(class) as u64;
            live += bytes;
            requested += self.asked_of(class, bytes);
        }
        (live, requested)
    }

    /// Bytes in live blocks.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_and_requested().0
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
        (statistics.live_bytes, statistics.requested_bytes) = self.live_and_requested();
        statistics.reserved_bytes = self.reserve.bytes();
        statistics.peak_reserved_bytes = self.reserve.peak();
        statistics.regions = self.reserve.regions();
        statistics.held_bytes = self.upstream.held().bytes;
        let used = statistics.live_bytes + statistics.held_bytes;
        statistics.cached_bytes = statistics.reserved_bytes.saturating_sub(used);
        let (free, largest) = {
            let large = self.extents.lock();
            (large.free_units(), large.longest(&self.meta))
        };
        statistics.free_bytes = free * UNIT as u64;
        statistics.largest_free_bytes = u64::from(largest) * UNIT as u64;
        statistics
    }

    #[cold]
    pub(crate) fn trace_block(&self, what: &str, size: usize, address: Option<&Address>) {
        output::event(|| match address {
            Some(address) => tracing::trace!(pool = self.settings.name.as_str(), what, size, %address),
            None => tracing::trace!(pool = self.settings.name.as_str(), what, size, "failed"),
        });
    }

    pub(crate) fn trace_slab(&self, what: &str, class: usize, size: usize) {
        if self.settings.trace >= 2 && !roster::is_thread_ending() {
            let block = self.classes.size(class);
            output::event(|| tracing::debug!(pool = self.settings.name.as_str(), slab = what, size, block));
        }
    }

    pub(crate) fn trace_region(&self, what: &str, region: Region) {
        if self.settings.trace >= 2 && !roster::is_thread_ending() {
            let (address, size) = (region.base(), region.size());
            output::event(
                || tracing::debug!(pool = self.settings.name.as_str(), region = what, %address, size),
            );
        }
    }

    pub(crate) fn trace_end(&self) {
        if self.settings.trace >= 1 {
            let statistics = self.sum_up();
            output::event(|| {
                tracing::info!(
                    pool = self.settings.name.as_str(),
                    allocations = statistics.allocations,
                    never_freed = statistics.live_blocks,
                    never_freed_bytes = statistics.live_bytes,
                    peak_reserved_bytes = statistics.peak_reserved_bytes,
                    "dropped"
                );
            });
        }
    }
}
