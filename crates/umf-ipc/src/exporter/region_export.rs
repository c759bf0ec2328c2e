//! One native export of a region, and the exports of blocks in it.

use hashbrown::HashMap;
use std::sync::Arc;

use umf_core::lock::Lock;
use umf_core::step::{Step, step};
use umf_core::tracker::ProviderRef;
use umf_core::{NativeExport, ProviderKind, Region};

use crate::cache::Cached;
use crate::handle::Handle;
use crate::ledger::LedgerWriter;
use crate::sys::FileIdentity;

/// What the exporter's cache holds. Leaving the cache retires whatever is exported; dropping gives the native export back
/// to its provider.
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
    pub closing: Arc<Closing>,
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
    /// A use that lasts until the block is freed.
    pub kept: bool,
}

/// Regions whose native export left the cache and is not yet back with its provider. Whoever frees such a region, or
/// exports it again, waits for that.
#[derive(Debug, Default)]
pub(super) struct Closing(Lock<Vec<u64>>);

impl Closing {
    pub(super) fn wait_for(&self, region: u64) {
        while self.0.lock().contains(&region) {
            std::thread::yield_now();
        }
    }

    pub(super) fn lock_for_fork(&self) {
        self.0.lock_for_fork();
    }

    /// # Safety
    /// [`Closing::lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
    pub(super) unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.0.unlock_after_fork() };
    }
}

impl Cached for RegionExport {
    /// Retires everything that the region exports: from here on nothing of it opens.
    fn unlinked(&self) -> u64 {
        self.closing.0.lock().push(self.region.id().get());
        let blocks = {
            let mut blocks = self.blocks.lock();
            blocks.closed = true;
            core::mem::take(&mut blocks.by_address)
        };
        let mut kept = 0;
        for block in blocks.into_values() {
            kept += u64::from(block.kept);
            self.ledger.retire(block.slot, block.generation);
            self.ledger.give_back(block.slot);
        }
        self.ledger.retire(self.slot, self.generation);
        kept
    }
}

impl Drop for RegionExport {
    fn drop(&mut self) {
        self.ledger.give_back(self.slot);
        if let Some(native) = self.native.take()
            && let Some(ability) = self.provider.export()
            && let Err(error) = ability.unexport(&self.region, native)
        {
            tracing::warn!(region = ?self.region, %error, "the provider could not take its native export back");
        }
        step(Step::ExportReturned);
        let mut closing = self.closing.0.lock();
        if let Some(place) = closing.iter().position(|&region| region == self.region.id().get()) {
            closing.swap_remove(place);
        }
    }
}
