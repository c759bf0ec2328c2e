//! Giving memory back: trimming, and the end of a pool.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_core::Result;
use umf_core::limit::SharedLimit;
use umf_sync::failpoint;

use crate::extents::UNIT;
use crate::pool::{CLOSING, SHARED};
use crate::span::Kind;
use crate::{SlabPool, roster};

impl SlabPool {
    pub(crate) fn is_frozen(&self) -> bool {
        self.gates.load(Ordering::Relaxed) & SHARED != 0 && self.upstream.is_frozen()
    }

    /// Gives free regions back until at most `keep` bytes are free; yields the bytes that went. What nobody uses any more is
    /// free by then.
    pub(crate) fn release_free(&self, keep: usize) -> Result<usize> {
        if self.is_frozen() {
            return Ok(0);
        }
        let before = self.reserve.bytes();
        self.upstream.poll();
        self.release_above(keep, 0)?;
        let went = usize::try_from(before.saturating_sub(self.reserve.bytes())).unwrap_or(usize::MAX);
        Ok(went)
    }

    /// Gives `bytes` back, or what is free, for another pool that shares the limit.
    pub(crate) fn give_others(&self, limit: &SharedLimit, bytes: u64) -> u64 {
        if !self.reserve.shares(limit) {
            return 0;
        }
        let mut went = 0;
        roster::POOLS.visit_one(NonNull::from(self), |_| {
            let keep = self.sum_up().cached_bytes.saturating_sub(bytes);
            let keep = usize::try_from(keep).unwrap_or(usize::MAX);
            went = self.release_above(keep, self.ahead.floor()).unwrap_or(0);
        });
        went as u64
    }

    /// Gives free regions back until at most `keep` bytes are free, or only `floor` bytes of regions that are cut up are left.
    pub(crate) fn release_above(&self, keep: usize, floor: u64) -> Result<usize> {
        let keep = keep as u64;
        if self.is_frozen() {
            return Ok(0);
        }
        let before = self.reserve.bytes();
        if self.sum_up().cached_bytes <= keep {
            return Ok(0);
        }
        self.reach_all(|index, cache| self.empty(index, cache));
        if let Some((index, cache)) = self.cache() {
            self.flush(index, cache);
        }
        let result = self.release_shared(keep as usize, floor);
        let went = before.saturating_sub(self.reserve.bytes()) as usize;
        result.map(|()| went)
    }

    /// The same of what no thread keeps.
    pub(crate) fn release_shared(&self, keep: usize, floor: u64) -> Result<()> {
        self.clear_depot(true);
        for class in 0..self.classes.slab_count() {
            let doomed = self.centrals[class].lock().trim(self.slabs(class), 0);
            self.remove_slabs(doomed);
        }
        self.sell_out(true);
        let mut result = Ok(());
        let floor = floor.div_ceil(UNIT as u64);
        let used = self.live_bytes().saturating_add(self.upstream.held().bytes);
        let least = used.saturating_add(keep as u64);
        for number in 1..self.meta.end() {
            if self.reserve.bytes() <= least {
                break;
            }
            let region = self.meta.span(number).is_some_and(|span| span.kind() == Kind::Region);
            if region && self.extents.lock().remove_region(&self.meta, number, floor) {
                result = result.and(self.give_back(number).map(drop));
            }
        }
        result
    }
}

impl Drop for SlabPool {
    fn drop(&mut self) {
        self.gates.fetch_or(CLOSING, Ordering::Relaxed);
        self.close_gate();
        roster::POOLS.leave(NonNull::from(&*self));
        self.policy.end();
        self.trace_end();
        self.upstream.stop_letting_go();
        let frozen = self.is_frozen();
        for number in 1..self.meta.end() {
            let Some(span) = self.meta.span(number) else { continue };
            if span.kind() != Kind::Free && self.any_exported.load(Ordering::Relaxed) && !frozen {
                self.announce(span);
            }
        }
        failpoint!("pool.closing");
        for number in 1..self.meta.end() {
            let Some(span) = self.meta.span(number) else { continue };
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
        // Waits for threads that are shown the pool.
        self.upstream.close();
    }
}
