//! One native export of a region, and the exports of blocks in it.

use hashbrown::HashMap;
use std::sync::Arc;

use umf_core::lock::Lock;
use umf_core::tracker::ProviderRef;
use umf_core::{NativeExport, ProviderKind, Region};

use crate::handle::Handle;
use crate::ledger::LedgerWriter;
use crate::sys::FileIdentity;

/// What the exporter's cache holds. Dropping it retires whatever is still exported and gives the native export
/// back to its provider.
#[derive(Debug)]
pub(super) struct RegionExport {
    pub region: Region,
    pub provider: ProviderRef,
    pub kind: ProviderKind,
    /// `Some` until dropped.
    pub native: Option<NativeExport>,
    pub identity: Option<FileIdentity>,
    pub opens_through_procfs: bool,
    pub ledger: Arc<LedgerWriter>,
    /// The slot of the region as a whole.
    pub slot: u32,
    pub generation: u64,
    pub blocks: Lock<Blocks>,
}

/// Exports in one region, by the block's address.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub by_address: HashMap<u64, BlockExport>,
    /// The region is going: nothing more is exported from it.
    pub closed: bool,
}

#[derive(Debug)]
pub(super) struct BlockExport {
    pub slot: u32,
    pub generation: u64,
    pub handle: Handle,
    /// Uses that last until the block is freed.
    pub kept: u64,
}

impl RegionExport {
    /// Retires all exports of the region, and returns the number of kept uses that end with them.
    pub(super) fn retire_all(&self) -> u64 {
        let blocks = {
            let mut blocks = self.blocks.lock();
            blocks.closed = true;
            core::mem::take(&mut blocks.by_address)
        };
        let mut kept = 0;
        for block in blocks.into_values() {
            kept += block.kept;
            self.ledger.retire(block.slot, block.generation);
            self.ledger.give_back(block.slot);
        }
        kept
    }
}

impl Drop for RegionExport {
    fn drop(&mut self) {
        self.retire_all();
        self.ledger.retire(self.slot, self.generation);
        self.ledger.give_back(self.slot);
        if let Some(native) = self.native.take()
            && let Some(ability) = self.provider.export()
            && let Err(error) = ability.unexport(&self.region, native)
        {
            tracing::warn!(region = ?self.region, %error, "the provider could not take its native export back");
        }
    }
}
