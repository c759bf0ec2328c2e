//! The end of exports: before their memory goes.

use std::sync::Arc;

use umf_core::observer::Leases;
use umf_core::{Address, Region, tracker};

use super::{KEPT, State};
use crate::cache::Pin;
use crate::lease::Quick;
use crate::ledger::event::RetireReason;

impl State {
    /// The block at `address` is about to be freed. What of it is open elsewhere, if anything is.
    pub(in crate::exporter) fn retire_block(&self, address: Address) -> Option<Arc<dyn Leases>> {
        let quick = self.retire_known(address);
        if quick != Quick::Done {
            let found = tracker::find(address)?;
            self.cache.peek(&found.region.id().get(), |entry| {
                let block = entry.value.blocks.lock().remove(address.to_bits());
                let (Some(block), Some(native)) = (block, &entry.value.native) else { return };
                let export = block.exported(address);
                let retired = if quick == Quick::Ended {
                    self.exports.settle(&export, native);
                    true
                } else {
                    self.exports.retire(&export, native, RetireReason::BlockFreed)
                };
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

    /// Retires a block that this thread exported until it is freed and that nobody has open, without a look into any table.
    fn retire_known(&self, address: Address) -> Quick {
        let known = || {
            let memo = self.memo.current()?;
            let (_, note) = memo.by_key(Self::hash(address), address.to_bits())?;
            (note.flags & KEPT != 0).then_some((memo, *note))
        };
        let Some((memo, note)) = known() else { return Quick::Nothing };
        let (slot, region) = (note.base as u32, note.length);
        let quick = self.exports.retire_closed(slot, note.generation, region);
        if quick == Quick::Done {
            self.cache.pins().give_back(Pin::new(memo.thread(), note.pin), Some(memo.thread()));
        }
        quick
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
