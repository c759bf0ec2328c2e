//! Blocks that are freed while work that was given away may still use them.
//!
//! As in `held`: such a block counts as freed, its state says that it is not live, and nothing has it, until
//! [`SlabPool::take_back`].

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::Freed;
use umf_core::{Address, Completion, Error, Result};
use umf_runtime::observer::before_free;

use crate::SlabPool;
use crate::pool::{SHARED, TRACED};
use crate::span::{DEFERRED, EXPORTED, LIVE, Place};

impl SlabPool {
    /// Takes the life of the block at `address`; yields its place, and its state before.
    fn take_life(&self, address: Address) -> Result<(Place<'_>, u8)> {
        let Some(place) = self.meta.locate_start(address) else {
            return Err(self.why_not(address));
        };
        self.share_with_caller(place.span);
        let life = |old: u8| (old & LIVE != 0).then_some(0);
        match place.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, life) {
            Ok(old) if place.is_current() => Ok((place, old)),
            Ok(old) => {
                // A second free met a span that was made anew; the block that it hit is someone else's.
                place.state.fetch_or(old, Ordering::AcqRel);
                Err(Error::NotAllocated { address })
            }
            Err(_) => Err(self.why_not(address)),
        }
    }

    /// Frees a block that is to be handed out again when `completion` is ready.
    pub(crate) fn free_when_ready(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        let gates = self.gates.load(Ordering::Relaxed);
        if gates & SHARED != 0 && self.upstream.is_frozen() {
            return Ok(());
        }
        if gates & TRACED != 0 {
            self.trace_block("free after", 0, Some(&address));
        }
        let (place, old) = self.take_life(address)?;
        let exported = old & EXPORTED != 0;
        let leases = if exported { before_free(Freed::Block { address }) } else { None };
        let is_exported = leases.is_some();
        // Before others can take it back: then the span may be another one's.
        let (class, size) = (place.class(), place.span.block() as usize);
        self.forget_held(place.span, class);
        place.state.store(DEFERRED, Ordering::Release);
        if !self.upstream.hold_until(address, size, completion, leases) {
            place.state.store(0, Ordering::Release);
            return self.put(place, address);
        }
        self.count_held(class, size);
        if is_exported {
            self.upstream.poll_some();
        } else {
            self.upstream.poll_awaited();
        }
        Ok(())
    }
}
