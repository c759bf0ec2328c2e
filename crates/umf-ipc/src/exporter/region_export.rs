//! One native export of a region, and the exports of blocks in it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hashbrown::HashMap;
use umf_core::lock::Lock;
use umf_core::step::{Step, step};
use umf_core::tracker::ProviderRef;
use umf_core::{Address, NativeExport, ProviderKind, Region};

use crate::cache::Cached;
use crate::handle::Handle;
use crate::lease::Exports;
use crate::ledger::event::RetireReason;
use crate::sys::FileIdentity;

/// A native export of a region. Dropping it gives it back to the region's provider.
#[derive(Debug)]
pub(crate) struct NativeGuard {
    pub region: Region,
    pub provider: ProviderRef,
    /// `Some` until dropped.
    pub native: Option<NativeExport>,
    pub identity: Option<FileIdentity>,
}

impl NativeGuard {
    pub(super) fn fd(&self) -> Option<&Arc<OwnedFd>> {
        self.native.as_ref().and_then(|native| native.fd.as_ref())
    }
}

impl Drop for NativeGuard {
    fn drop(&mut self) {
        if let Some(native) = self.native.take()
            && let Some(ability) = self.provider.export()
            && let Err(error) = ability.unexport(&self.region, native)
        {
            tracing::warn!(region = ?self.region, %error, "the provider could not take its native export back");
        }
        step(Step::ExportReturned);
    }
}

/// What the exporter's cache holds. Leaving the cache retires whatever is exported.
#[derive(Debug)]
pub(super) struct RegionExport {
    pub region: Region,
    pub kind: ProviderKind,
    /// `Some` until dropped. Others hold it as long as something of the region is open elsewhere.
    pub native: Option<Arc<NativeGuard>>,
    pub opens_through_procfs: bool,
    pub exports: Arc<Exports>,
    /// The slot of the region as a whole.
    pub slot: u32,
    pub generation: u64,
    /// Why it will have left the cache, for the flight recorder: evicted, if nobody says otherwise before.
    pub leaving: Lock<RetireReason>,
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
        let Some(native) = &self.native else { return 0 };
        // The region first: then importers see that all of it is gone.
        let whole = (self.region.base(), self.region.size());
        let reason = *self.leaving.lock();
        self.exports.retire((self.slot, self.generation), whole, native, reason);
        let mut kept = 0;
        for (address, block) in blocks {
            kept += u64::from(block.kept);
            let part = (Address::from_bits(address), block.handle.length() as usize);
            self.exports.retire((block.slot, block.generation), part, native, reason);
        }
        kept
    }
}

impl Drop for RegionExport {
    fn drop(&mut self) {
        // Back with the provider, unless somebody has it open: then the region is not freed either.
        drop(self.native.take());
        let mut closing = self.closing.0.lock();
        if let Some(place) = closing.iter().position(|&region| region == self.region.id().get()) {
            closing.swap_remove(place);
        }
    }
}
