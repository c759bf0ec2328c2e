//! Blocks that are freed while other processes have them open.
//!
//! Such a block counts as freed and goes nowhere: its state says that it is not live, and no bin, slab or list of units
//! has it, so that nothing around it is given back either. [`SlabPool::take_back`] ends that.

use core::sync::atomic::Ordering;

use umf_core::Freed;
use umf_core::{Address, Error, Result};
use umf_runtime::observer::before_free;

use crate::SlabPool;
use crate::span::{DEFERRED, LIVE, Place, Span, is_exported};

impl SlabPool {
    /// What remains of a free once the block is known to have been live and is not any more.
    pub(crate) fn put(&self, place: Place<'_>, address: Address) -> Result<()> {
        match place.class() {
            Some(class) => {
                let entry = place.entry(address);
                if !self.post(place, class, entry) {
                    self.put_class(class, entry);
                }
                Ok(())
            }
            None => self.free_direct(place),
        }
    }

    /// Frees an exported block, whose life the caller has taken.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_exported(&self, place: Place<'_>, address: Address) -> Result<()> {
        // Before others can take it back: then the span may be another one's.
        let (class, size) = (place.class(), place.span.block() as usize);
        if let Some(leases) = before_free(Freed::Block { address }) {
            self.forget_held(place.span, class);
            // Before it is: from then on others may take it back.
            place.state.store(DEFERRED, Ordering::Release);
            if !self.upstream.hold(address, size, leases) {
                place.state.store(0, Ordering::Release);
                return self.put(place, address);
            }
            self.count_held(class, size);
            self.upstream.poll_some();
            return Ok(());
        }
        self.put(place, address)
    }

    /// A large block whose life the calling thread took will be held, or wait: others take it back, so it is not the thread's own any
    /// more.
    pub(crate) fn forget_held(&self, span: &Span, class: Option<usize>) {
        if class.is_some_and(|class| self.is_large(class)) {
            self.share_life(span);
        }
    }

    /// Counts the free of a block that is held.
    pub(crate) fn count_held(&self, class: Option<usize>, size: usize) {
        match class {
            Some(class) => self.count_free(class),
            None => self.direct.remove(size),
        }
    }

    /// Takes back what was held.
    pub(crate) fn take_back(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } => {
                let missing = Error::NotAllocated { address };
                let place = self.meta.locate_start(address).ok_or(missing)?;
                if place.state.load(Ordering::Acquire) & LIVE != 0 {
                    return Err(Error::NotAllocated { address });
                }
                place.state.store(0, Ordering::Release);
                match place.class() {
                    Some(class) => {
                        self.give(class, &[place.entry(address)]);
                        Ok(())
                    }
                    None => self.end_direct(place),
                }
            }
            Freed::Region(region) => {
                self.region_went(region);
                Ok(())
            }
        }
    }

    /// Announces all live exported blocks of a span that is about to go.
    pub(crate) fn announce(&self, span: &Span) {
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
                let _ = self.upstream.hold(address, size, leases);
            }
        }
    }
}
