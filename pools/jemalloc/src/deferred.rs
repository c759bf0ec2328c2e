//! Deferred frees: blocks that other processes have open, or whose completion is not ready; and
//! reports of live blocks.
//!
//! A deferred block counts as freed. It stays allocated in jemalloc, so its extent is not freed
//! either.

use std::sync::Arc;

use umf_core::leaks::{LeakReport, LeakSize, LeakTime};
use umf_core::{Completion, Error, Freed, Result};
use umf_os::output;
use umf_runtime::observer::{Leases, before_free};

use crate::blocks::Block;
use crate::classes::Class;
use crate::{JemallocPool, je};

impl JemallocPool {
    /// Defers the free of a block whose live state the caller has cleared, until `completion` is
    /// ready and `leases` end. Returns `false` if the upstream does not hold it.
    pub(crate) fn defer(
        &self,
        block: &Block<'_>,
        completion: Option<Arc<dyn Completion>>,
        leases: Option<Arc<dyn Leases>>,
    ) -> bool {
        let (address, size) = (block.address, self.classes.size(block.class));
        // Before the upstream holds the block: from then on another thread may reclaim it.
        block.set_deferred();
        let is_held = match (completion, leases) {
            (Some(completion), leases) => self.upstream.defer_until(address, size, completion, leases),
            (None, Some(leases)) => self.upstream.defer(address, size, leases),
            (None, None) => false,
        };
        if !is_held {
            block.clear_deferred();
        }
        is_held
    }

    /// Frees a block or counts a region that the upstream held.
    pub(crate) fn reclaim_deferred(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } => {
                let missing = Error::NotAllocated { address };
                let block = self.blocks.find_deferred(self.upstream.id(), address).ok_or(missing)?;
                if !block.clear_deferred() {
                    return Err(missing);
                }
                // Not into a thread cache: the polling thread may never use the pool again.
                je::ensure_ready();
                self.free_to_jemalloc(&block, je::cache_flags(None));
                Ok(())
            }
            Freed::Region(region) => {
                self.reserved.remove_region(region.size());
                Ok(())
            }
        }
    }

    /// Announces the free of all live exported blocks, when the pool is dropped.
    pub(crate) fn announce_exported(&self) {
        self.each_block(|block| {
            if !block.is_exported() || block.clear_live().is_none() {
                return;
            }
            if let Some(leases) = before_free(Freed::Block { address: block.address }) {
                // The upstream then holds the region until the leases of the block end.
                let _ = self.upstream.defer(block.address, self.classes.size(block.class), leases);
            }
        });
    }

    /// Passes each live or deferred block to `visit`.
    pub(crate) fn each_block(&self, mut visit: impl FnMut(&Block<'_>)) {
        let records = (1..self.regions.end()).filter_map(|number| self.regions.get(number));
        for record in records.filter(|record| record.is_entered()) {
            for granule in self.granules(record) {
                self.blocks.each_in(granule, |block| visit(&block));
            }
        }
    }

    /// Passes a report of the live blocks, by size, to `visit`.
    pub(crate) fn report_leaks(&self, time: LeakTime, visit: &mut dyn FnMut(&LeakReport<'_>)) {
        let mut blocks = [0_u64; 256];
        self.each_block(|block| {
            if !block.is_deferred() {
                blocks[usize::from(block.class.number())] += 1;
            }
        });
        let mut sizes = [LeakSize { block_size: 0, blocks: 0 }; 256];
        let mut count = 0;
        for (number, &blocks) in (0..self.classes.count()).zip(&blocks).filter(|&(_, &blocks)| blocks > 0) {
            sizes[count] = LeakSize { block_size: self.classes.size(Class::new(number)) as u64, blocks };
            count += 1;
        }
        let sizes = &sizes[..count];
        visit(&LeakReport {
            pool: umf_core::Pool::name(self),
            time,
            blocks: sizes.iter().map(|size| size.blocks).sum(),
            bytes: sizes.iter().map(|size| size.blocks * size.block_size).sum(),
            sizes,
            sampled: 0,
            sites: &[],
            is_global: false,
        });
    }

    /// Logs the live blocks at level debug, when the pool is dropped.
    pub(crate) fn log_leaks(&self) {
        output::event(|| {
            if !tracing::enabled!(tracing::Level::DEBUG) || self.caches.counts().live_blocks() == 0 {
                return;
            }
            self.report_leaks(LeakTime::PoolEnd, &mut |report| {
                let (pool, blocks, bytes) = (report.pool, report.blocks, report.bytes);
                tracing::debug!(pool, blocks, bytes, "{report}");
            });
        });
    }
}
