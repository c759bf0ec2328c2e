//! Deferred frees: blocks that are freed while other processes have them open, or while a device
//! may still use them.
//!
//! A deferred block counts as freed and is not reused. Its state byte is [`DEFERRED`]. It is in no
//! bin, bitmap or free extent, so its region is not returned either. The upstream holds it until
//! its importers have closed it, or until its completion is ready. Then
//! [`SlabPool::reclaim_deferred`] frees it.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::{Address, Completion, Error, Freed, Result};
use umf_runtime::observer::before_free;

use crate::SlabPool;
use crate::section::{SHARED, TRACED};
use crate::span::BlockRef;
use crate::state::is_exported;
use crate::types::{DEFERRED, EXPORTED, LIVE, Span};

impl SlabPool {
    /// Frees an exported block, whose live bit the caller has cleared.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_exported(&self, place: BlockRef<'_>, address: Address) -> Result<()> {
        let Some(leases) = before_free(Freed::Block { address }) else { return self.put(place, address) };
        let upstream = &self.back.upstream;
        if !self.defer(place, |size| upstream.defer(address, size, leases)) {
            return self.put(place, address);
        }
        upstream.poll_some();
        Ok(())
    }

    /// Frees a block that may be reused once `completion` is ready.
    pub(crate) fn free_when_ready(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        let flags = self.heaps.flags.get();
        if flags & SHARED != 0 && self.back.upstream.is_frozen() {
            return Ok(());
        }
        if flags & TRACED != 0 {
            self.back.trace.block("free after", 0, Some(&address));
        }
        let (place, old) = self.clear_state(address)?;
        let leases = if old & EXPORTED != 0 { before_free(Freed::Block { address }) } else { None };
        let is_exported = leases.is_some();
        let upstream = &self.back.upstream;
        if !self.defer(place, |size| upstream.defer_until(address, size, completion, leases)) {
            return self.put(place, address);
        }
        if is_exported {
            upstream.poll_some();
        } else {
            upstream.poll_pending();
        }
        Ok(())
    }

    /// Marks a block as deferred, and passes it to the upstream with `hold`. Returns `false` if the
    /// upstream does not hold it. Counts the free.
    fn defer(&self, place: BlockRef<'_>, hold: impl FnOnce(usize) -> bool) -> bool {
        // Read before other threads can reclaim the block and reuse its span.
        let (class, size) = (place.class(), place.span.block() as usize);
        if class.is_some_and(|class| self.heaps.classes.is_large(class)) {
            // Other threads reclaim it.
            self.heaps.revoke_bias(place.span);
        }
        // Before `hold`: from then on other threads may reclaim the block.
        place.state.store(DEFERRED, Ordering::Release);
        if !hold(size) {
            place.state.store(0, Ordering::Release);
            return false;
        }
        match class {
            Some(class) => self.heaps.count_free(class, &self.back.meta.runs),
            None => self.back.direct.remove(size),
        }
        true
    }

    /// Frees a block or counts a region that the upstream held.
    pub(crate) fn reclaim_deferred(&self, freed: Freed) -> Result<()> {
        let address = match freed {
            Freed::Block { address } => address,
            Freed::Region(region) => {
                self.back.region_returned(region);
                return Ok(());
            }
        };
        let missing = Error::NotAllocated { address };
        let place = self.back.meta.locate_start(address).ok_or(missing)?;
        if place.state.load(Ordering::Acquire) & LIVE != 0 {
            return Err(missing);
        }
        place.state.store(0, Ordering::Release);
        match place.class() {
            Some(_) if place.span.is_slab() => self.put_remote(&place, address, true),
            Some(class) => self.return_blocks(class, &[place.entry(address)]),
            None => return self.back.return_direct(place),
        }
        Ok(())
    }

    /// Announces the free of all live exported blocks of a span, when the pool is dropped.
    pub(crate) fn announce_exported(&self, span: &Span) {
        let blocks = span.bytes().checked_div(span.block()).unwrap_or(0);
        let size = span.block() as usize;
        for index in 0..blocks {
            // SAFETY: the span is in use, and has that many blocks.
            let state = unsafe { span.state(index).as_ref() };
            if !is_exported(state.load(Ordering::Acquire)) {
                continue;
            }
            let address = Address::from_bits(span.base().to_bits() + index * span.block());
            if let Some(leases) = before_free(Freed::Block { address }) {
                // The upstream then holds the region until the leases of the block end.
                let _ = self.back.upstream.defer(address, size, leases);
            }
        }
    }
}
