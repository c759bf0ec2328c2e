//! Deferred frees: blocks that are freed while other processes have them open, or while a device
//! may still use them.
//!
//! Such a block counts as freed and is not reused. Its state byte is [`DEFERRED`], and no bin,
//! bitmap or free extent has it, so its region is not returned either. The upstream holds it until
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

    /// Frees a block that is to be handed out again when `completion` is ready.
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

    /// Marks a block as deferred, and has `hold` hold it; `false` if that does not. Counts the
    /// free.
    fn defer(&self, place: BlockRef<'_>, hold: impl FnOnce(usize) -> bool) -> bool {
        // Before other threads can reclaim the block: then the span may be another one's.
        let (class, size) = (place.class(), place.span.block() as usize);
        if class.is_some_and(|class| self.heaps.classes.is_large(class)) {
            // Other threads reclaim it.
            self.heaps.revoke_bias(place.span);
        }
        // Before it is held: from then on other threads may reclaim it.
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

    /// Announces all live exported blocks of a span that is about to go.
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
                // Its region is held when it is freed, as long as this block is.
                let _ = self.back.upstream.defer(address, size, leases);
            }
        }
    }
}
