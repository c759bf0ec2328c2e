//! The end of exports: before their memory goes.

use std::sync::Arc;

use umf_core::observer::Leases;
use umf_core::{Address, Region, tracker};

use super::super::region_export::NativeGuard;
use super::{KnownExport, State};
use crate::cache::Pin;
use crate::handle::Handle;
use crate::lease::{Exported, Quick};
use crate::ledger::RetireReason;

impl State {
    /// The block at `address` is about to be freed. What of it is open elsewhere, if anything is.
    pub(in crate::exporter) fn retire_block(&self, address: Address) -> Option<Arc<dyn Leases>> {
        if !self.retire_known(address) {
            let found = tracker::find(address)?;
            self.cache.peek(&found.region.id().get(), |entry| {
                let block = entry.value.blocks.lock().remove(address.to_bits());
                let (Some(block), Some(native)) = (block, &entry.value.native) else { return };
                let retired = self.exports.retire(&block.exported(address), native, RetireReason::BlockFreed);
                if retired && block.kept {
                    self.cache.pins().unpin(entry.number());
                }
            });
        }
        // Or an earlier export of it, evicted meanwhile.
        let leases = self.leases(address, 1);
        self.exports.ledger.publish_statistics(false, || self.figures());
        leases
    }

    /// Retires a block that this thread exported until it is freed: without a look into any table if nobody has it open.
    /// `false` if that is not known of it.
    fn retire_known(&self, address: Address) -> bool {
        let known = || {
            let memo = self.memo.current()?;
            let (bytes, note) = memo.by_key(Self::hash(address), address.to_bits())?;
            note.value.is_kept.then_some((memo, bytes, *note))
        };
        let Some((memo, bytes, note)) = known() else { return false };
        let KnownExport { slot, generation, region, is_device, .. } = note.value;
        match self.exports.retire_closed(slot, generation, is_device) {
            Quick::Nothing => return false,
            Quick::Done => {}
            Quick::Ended(scan) => {
                // By what the note says, and not by the region's table: a thread that sees there that
                // the export has ended may take it out, and the region may leave the cache.
                let handle = Handle::from_known(bytes);
                let (size, is_region) = (handle.length() as usize, handle.is_region());
                let export = Exported { slot, generation, base: address, size, is_region, is_device };
                let settle =
                    |native: Option<&Arc<NativeGuard>>| self.exports.settle(&export, scan, region, native);
                if self.cache.peek(&region, |entry| settle(entry.value.native.as_ref())).is_none() {
                    settle(None);
                }
            }
        }
        self.cache.pins().give_back(Pin::new(memo.thread(), note.pin), Some(memo.thread()));
        true
    }

    fn leases(&self, base: Address, size: usize) -> Option<Arc<dyn Leases>> {
        let leased = self.exports.may_be_leased() && self.exports.is_leased(base, size);
        leased.then(|| Arc::clone(&self.exports) as _)
    }

    /// The region is about to be freed: when this returns, nothing of it opens, and its provider has its export back,
    /// unless something of it is open elsewhere.
    pub(in crate::exporter) fn retire_region(&self, region: &Region) -> Option<Arc<dyn Leases>> {
        self.end_region(region, RetireReason::RegionFreed);
        self.leases(region.base(), region.size())
    }

    pub(super) fn end_region(&self, region: &Region, reason: RetireReason) {
        let id = region.id().get();
        self.cache.peek(&id, |entry| *entry.value.leaving.lock() = reason);
        drop(self.cache.remove(&id));
        // Another thread may have evicted it, or may be looking at it, and drop it a little later.
        self.closing.wait_for(id);
        self.exports.ledger.publish_statistics(false, || self.figures());
    }
}
