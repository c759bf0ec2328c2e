//! Retiring: the exports of a block or region end before its memory is freed.

use super::*;

impl ExporterState {
    /// Retires the export of the block at `address`, which is about to be freed. Returns its leases
    /// if another process has it open.
    pub(in crate::exporter) fn retire_block(&self, address: Address) -> Option<Arc<dyn Leases>> {
        if !self.retire_block_fast(address) {
            let found = tracker::find(address)?;
            self.cache.peek(&found.region.id().get(), |entry| {
                let block = entry.value.blocks.lock().remove(address.to_bits());
                let (Some(block), Some(native)) = (block, &entry.value.native) else { return };
                let retired = self.exports.retire(&block.exported(address), native, RetireReason::BlockFreed);
                if retired && block.is_kept {
                    self.cache.pins().unpin(entry.number());
                }
            });
        }
        // Includes leases of earlier exports of the block, which were evicted.
        let leases = self.leases(address, 1);
        self.exports.ledger.publish_statistics(false, || self.counters());
        leases
    }

    /// Retires a block that is kept according to this thread's memo. If no process has it open, no
    /// table is locked or searched. Returns `false` if the memo does not have it, or the export is
    /// not current.
    fn retire_block_fast(&self, address: Address) -> bool {
        let find_kept = || {
            let memo = self.memo.current()?;
            let (bytes, note) = memo.by_key(Self::hash(address), address.to_bits())?;
            note.value.is_kept.then_some((memo, bytes, *note))
        };
        let Some((memo, bytes, note)) = find_kept() else { return false };
        let MemoizedExport { slot, generation, region, is_device, .. } = note.value;
        match self.exports.retire_fast(slot, generation, is_device) {
            RetireOutcome::NotCurrent => return false,
            RetireOutcome::Reclaimed => {}
            RetireOutcome::Leased(scan) => {
                // From the memo, not from the region's table: another thread may remove the ended
                // export there, and the region may leave the cache.
                let handle = Handle::from_known(bytes);
                let (size, is_region) = (handle.length() as usize, handle.is_region());
                let export = ExportedRange { slot, generation, base: address, size, is_region, is_device };
                let reclaim_or_defer = |native: Option<&Arc<NativeGuard>>| {
                    self.exports.reclaim_or_defer(&export, scan, region, native)
                };
                if self.cache.peek(&region, |entry| reclaim_or_defer(entry.value.native.as_ref())).is_none() {
                    reclaim_or_defer(None);
                }
            }
        }
        self.cache.pins().give_back(Pin::new(memo.thread(), note.pin), Some(memo.thread()));
        true
    }

    /// Returns the leases of a range, if another process has a part of it open.
    fn leases(&self, base: Address, size: usize) -> Option<Arc<dyn Leases>> {
        let leased = self.exports.has_pending() && self.exports.is_leased(base, size);
        leased.then(|| Arc::clone(&self.exports) as _)
    }

    /// Retires all exports of a region, which is about to be freed, and ends its native export. If
    /// another process has a part of it open, returns the leases; then the native export ends with
    /// the last of them.
    pub(in crate::exporter) fn retire_region(&self, region: &Region) -> Option<Arc<dyn Leases>> {
        self.remove_region(region, RetireReason::RegionFreed);
        self.leases(region.base(), region.size())
    }

    pub(super) fn remove_region(&self, region: &Region, reason: RetireReason) {
        let id = region.id().get();
        self.cache.peek(&id, |entry| *entry.value.retire_reason.lock() = reason);
        drop(self.cache.remove(&id));
        // Another thread may have evicted the entry, or still uses it, and drops it a little later.
        self.pending_unexports.wait_for(id);
        self.exports.ledger.publish_statistics(false, || self.counters());
    }
}
