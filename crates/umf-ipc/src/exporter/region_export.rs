//! [`RegionExport`]: an entry of the exporter's cache, with one native export of a region and the
//! exports of blocks in it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hashbrown::HashMap;
use rustix::io::Errno;
use umf_core::ProviderRef;
use umf_core::{Address, NativeExport, ProviderKind, Region};
use umf_sync::{Lock, failpoint};

use crate::cache::Cached;
use crate::handle::Handle;
use crate::lease::{ExportTable, ExportedRange};
use crate::ledger::RetireReason;
use umf_os::FileIdentity;

/// A native export of a region. Dropping it returns the export to the region's provider.
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

    /// Returns a clone of the descriptor; `None` if the export has none.
    ///
    /// # Errors
    /// [`crate::Error::System`] if the descriptor was closed, or its number now names another file.
    pub(crate) fn checked_fd(&self) -> Option<crate::Result<Arc<OwnedFd>>> {
        let fd = self.fd()?;
        if umf_os::file::identity(fd).ok() == self.identity {
            return Some(Ok(Arc::clone(fd)));
        }
        Some(Err(crate::Error::system("use of an exported descriptor", Errno::STALE)))
    }
}

impl Drop for NativeGuard {
    fn drop(&mut self) {
        if let (Some(Err(_)), Some(fd)) = (self.checked_fd(), self.fd()) {
            // The descriptor number belongs to another file: leak a reference, so that it is not
            // closed.
            core::mem::forget(Arc::clone(fd));
        }
        if let Some(native) = self.native.take()
            && let Some(ability) = self.provider.export()
            && let Err(error) = ability.unexport(&self.region, native)
        {
            tracing::warn!(region = ?self.region, %error, "the provider could not end its native export");
        }
        failpoint!("export.returned");
    }
}

/// An entry of the exporter's cache: the exports of one region. Removing it from the cache retires
/// them.
#[derive(Debug)]
pub(super) struct RegionExport {
    pub region: Region,
    pub kind: ProviderKind,
    /// `Some` until dropped. Deferred exports hold it as long as an importer has memory of the
    /// region open.
    pub native: Option<Arc<NativeGuard>>,
    pub opens_through_procfs: bool,
    pub exports: Arc<ExportTable>,
    /// The ledger slot of the export of the whole region.
    pub slot: u32,
    pub generation: u64,
    /// The reason to record when the entry leaves the cache. Eviction, unless another one was set
    /// before.
    pub retire_reason: Lock<RetireReason>,
    pub blocks: Lock<Blocks>,
    pub pending_unexports: Arc<PendingUnexports>,
}

/// The exports of blocks in one region, by the block's address.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Includes ended exports: freeing a block that was never opened does not remove its entry.
    by_address: HashMap<u64, BlockExport>,
    /// The number of entries at which ended ones are removed next.
    sweep_at: usize,
    /// Whether the region is being removed, so that no further block of it is exported.
    pub closed: bool,
    /// The export of the region as a whole has a use that lasts until the region is freed.
    pub whole_is_kept: bool,
}

impl Blocks {
    /// Returns the export of the block at this address, if it has not ended.
    pub(super) fn get_mut(&mut self, address: u64, exports: &ExportTable) -> Option<&mut BlockExport> {
        let block = self.by_address.get_mut(&address)?;
        exports.ledger.is_current(block.slot, block.generation).then_some(block)
    }

    /// Reserves memory for one more entry, so that [`Blocks::insert`] does not allocate.
    ///
    /// # Errors
    /// [`umf_core::Error::OutOfMemory`] if there is none.
    pub(super) fn reserve(&mut self, exports: &ExportTable) -> umf_core::Result<()> {
        if self.by_address.len() >= self.sweep_at {
            self.by_address.retain(|_, block| exports.ledger.is_current(block.slot, block.generation));
            self.sweep_at = (self.by_address.len() * 2).max(64);
        }
        let size = (self.by_address.len() + 1) * size_of::<(u64, BlockExport)>();
        self.by_address.try_reserve(1).map_err(|_| umf_core::Error::OutOfMemory {
            size,
            owner: "the table of exported blocks",
            native: Errno::NOMEM.raw_os_error(),
        })
    }

    /// Adds a block. [`Blocks::reserve`] must have been called before.
    pub(super) fn insert(&mut self, address: u64, block: BlockExport) {
        self.by_address.insert(address, block);
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<BlockExport> {
        self.by_address.remove(&address)
    }
}

/// The export of one block.
#[derive(Debug)]
pub(super) struct BlockExport {
    pub slot: u32,
    pub generation: u64,
    pub handle: Handle,
    /// Whether the export is kept in use until the block is freed.
    pub is_kept: bool,
}

impl BlockExport {
    /// Returns the exported range, for the block at `base`.
    pub(super) fn exported(&self, base: Address) -> ExportedRange {
        let (slot, generation, size) = (self.slot, self.generation, self.handle.length() as usize);
        let (is_region, is_device) = (self.handle.is_region(), self.handle.may_be_imported_by_device());
        ExportedRange { slot, generation, base, size, is_region, is_device }
    }
}

/// The regions whose native export has left the cache and was not returned to its provider yet. A
/// thread that frees such a region or exports it again waits for that.
#[derive(Debug, Default)]
pub(super) struct PendingUnexports(Lock<Vec<u64>>);

impl PendingUnexports {
    pub(super) fn wait_for(&self, region: u64) {
        while self.0.lock().contains(&region) {
            std::thread::yield_now();
        }
    }
}

impl Cached for RegionExport {
    /// Retires all exports of the region. After that no handle of them opens.
    fn on_unlink(&self) -> u64 {
        self.pending_unexports.0.lock().push(self.region.id().get());
        // Locked until all are retired: a thread that found this entry earlier may be freeing a
        // block.
        let mut blocks = self.blocks.lock();
        blocks.closed = true;
        let Some(native) = &self.native else { return 0 };
        // The region first: importers then see that the whole region is gone.
        let whole = ExportedRange {
            slot: self.slot,
            generation: self.generation,
            base: self.region.base(),
            size: self.region.size(),
            is_region: true,
            is_device: !self.opens_through_procfs,
        };
        let reason = *self.retire_reason.lock();
        self.exports.retire(&whole, native, reason);
        let mut kept = u64::from(blocks.whole_is_kept);
        for (address, block) in blocks.by_address.drain() {
            let export = block.exported(Address::from_bits(address));
            let retired = self.exports.retire(&export, native, reason);
            // If another thread retired it, the block was freed, and its use has ended.
            kept += u64::from(retired && block.is_kept);
        }
        kept
    }
}

impl Drop for RegionExport {
    fn drop(&mut self) {
        // Ends the native export, unless an importer has memory of the region open. Then the
        // deferred free holds it, and the region.
        drop(self.native.take());
        let mut pending_unexports = self.pending_unexports.0.lock();
        if let Some(index) = pending_unexports.iter().position(|&region| region == self.region.id().get()) {
            pending_unexports.swap_remove(index);
        }
    }
}
