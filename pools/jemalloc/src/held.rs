//! Blocks that are freed while other processes have them open, or until a completion is ready.
//!
//! Such a block counts as freed and stays jemalloc's: nothing around it is given back either.

use std::sync::Arc;

use umf_core::Freed;
use umf_core::{Completion, Error, Result};
use umf_runtime::observer::{Leases, before_free};

use crate::JemallocPool;
use crate::blocks::Block;
use crate::je;

impl JemallocPool {
    /// Holds a block whose life the caller has taken; `false` if nobody has it open and nothing is to be awaited.
    pub(crate) fn hold(
        &self,
        block: &Block<'_>,
        completion: Option<Arc<dyn Completion>>,
        leases: Option<Arc<dyn Leases>>,
    ) -> bool {
        let (address, size) = (block.address, self.classes.size(block.class));
        // Before it can be let go.
        block.hold();
        let held = match (completion, leases) {
            (Some(completion), leases) => self.upstream.defer_until(address, size, completion, leases),
            (None, Some(leases)) => self.upstream.defer(address, size, leases),
            (None, None) => false,
        };
        if !held {
            block.end_hold();
        }
        held
    }

    /// Takes back what was held.
    pub(crate) fn take_back(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } => {
                let missing = Error::NotAllocated { address };
                let block = self.blocks.find_held(self.upstream.id(), address).ok_or(missing)?;
                if !block.end_hold() {
                    return Err(missing);
                }
                // Whoever polls may have nothing to do with the pool otherwise: a cache of its own would keep the block.
                je::ready();
                self.put(&block, je::cache_flags(None));
                Ok(())
            }
            Freed::Region(region) => {
                self.reserved.remove_region(region.size());
                Ok(())
            }
        }
    }

    /// Announces all live exported blocks: the pool goes.
    pub(crate) fn announce(&self) {
        self.each_block(|block| {
            if !block.is_exported() || block.end().is_none() {
                return;
            }
            if let Some(leases) = before_free(Freed::Block { address: block.address }) {
                // The region is held when it is freed, as long as the block is.
                let _ = self.upstream.defer(block.address, self.classes.size(block.class), leases);
            }
        });
    }

    /// Shows each block that is live or held.
    pub(crate) fn each_block(&self, mut look: impl FnMut(&Block<'_>)) {
        let records = (1..self.regions.end()).filter_map(|number| self.regions.get(number));
        for record in records.filter(|record| record.is_entered()) {
            for granule in self.granules(record) {
                self.blocks.each_in(granule, |block| look(&block));
            }
        }
    }
}
