//! Giving memory back: trimming, and the end of a pool.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_core::step::{Step, step};
use umf_core::{Result, fork};

use crate::pool::{CLOSING, SHARED};
use crate::span::Kind;
use crate::{SlabPool, roster};

impl SlabPool {
    fn is_frozen(&self) -> bool {
        self.gates.load(Ordering::Relaxed) & SHARED != 0 && self.upstream.is_frozen()
    }

    /// Gives free regions back until at most `keep` bytes are free; yields the bytes that went. What nobody leases any more is
    /// free by then.
    pub(crate) fn release_free(&self, keep: usize) -> Result<usize> {
        let keep = keep as u64;
        if self.is_frozen() {
            return Ok(0);
        }
        let before = self.reserve.bytes();
        self.upstream.poll();
        self.end_quarantine(0);
        if self.sum_up().cached_bytes <= keep {
            let went = before.saturating_sub(self.reserve.bytes()) as usize;
            self.watch_trim(keep, went);
            return Ok(went);
        }
        self.reach_all(|index, cache| self.empty(index, cache));
        if let Some((index, cache)) = self.cache() {
            self.flush(index, cache);
        }
        for class in 0..self.classes.slab_count() {
            let doomed = self.centrals[class].lock().trim(self.slabs(class), 0);
            self.remove_slabs(doomed);
        }
        self.sell_out(true);
        let mut result = Ok(());
        for number in 1..self.spans.end() {
            let used = self.live_bytes().saturating_add(self.upstream.held().bytes);
            if self.reserve.bytes() <= used.saturating_add(keep) {
                break;
            }
            let region = self.spans.get(number).is_some_and(|span| span.kind() == Kind::Region);
            if region && self.large.lock().remove_region(self.tables(), number) {
                result = result.and(self.give_back(number).map(drop));
            }
        }
        let went = before.saturating_sub(self.reserve.bytes()) as usize;
        self.watch_trim(keep, went);
        result.map(|()| went)
    }
}

impl Drop for SlabPool {
    fn drop(&mut self) {
        self.gates.fetch_or(CLOSING, Ordering::Relaxed);
        self.close_gate();
        roster::leave(NonNull::from(&*self));
        fork::unregister(crate::fork::erased(self));
        self.trace_end();
        self.watch_end();
        self.upstream.stop_letting_go();
        let frozen = self.is_frozen();
        for number in 1..self.spans.end() {
            let Some(span) = self.spans.get(number) else { continue };
            if span.kind() != Kind::Free && self.any_exported.load(Ordering::Relaxed) && !frozen {
                self.announce(span);
            }
        }
        step(Step::PoolClosing);
        for number in 1..self.spans.end() {
            let Some(span) = self.spans.get(number) else { continue };
            if matches!(span.kind(), Kind::Region | Kind::Direct) {
                // SAFETY: regions and direct spans have it, and nobody else is using the pool.
                let (region, _) = unsafe { span.cold().upstream.assume_init() };
                span.retract();
                // What is leased, or has held blocks in it, the upstream holds on. A provider that refuses keeps the region:
                // there is nobody left who could try again.
                let _ = self.return_region(region);
            } else {
                span.retract();
            }
        }
        // What could not be given back no longer counts against the shared limit.
        self.reserve.remove(usize::try_from(self.reserve.bytes()).unwrap_or(0));
    }
}
