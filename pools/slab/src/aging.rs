//! What lay unused since the last look goes back.
//!
//! How much lay unused is the least that there was in between: of idle regions, of empty slabs, of blocks in the stock. In the bins
//! of threads, whose common path counts nothing for this, it is everything if nothing was taken out in between. Otherwise half of
//! a bin goes to the stock, where a thread that needs it finds it again, and what it does not need comes of age.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_sync::chunks::Zeroed;

use crate::SlabPool;
use crate::classes::MAX_CLASSES;
use crate::portion::Portion;
use crate::span::{Entry, Kind};
use crate::thread_cache::ThreadCache;

/// How often each bin of a thread was taken from at the last look.
pub(crate) struct Seen([AtomicU64; MAX_CLASSES]);

// SAFETY: zeros are valid integers.
unsafe impl Zeroed for Seen {}

impl SlabPool {
    /// Gives back what lay unused since this was called last.
    pub(crate) fn expire(&self) {
        if self.is_frozen() {
            return;
        }
        // What is to stay of that which comes below what is looked at here, so that all of it goes at one time.
        let used_units = self.extents.lock().used_idle();
        let small = 0..self.classes.slab_count();
        let mut used_slabs = [0_u32; MAX_CLASSES];
        for class in small.clone() {
            used_slabs[class] = self.centrals[class].lock().used_empties();
        }
        for class in self.classes.slab_count()..self.classes.count() {
            self.expire_stock(class);
        }
        self.expire_depot();
        if let Some((index, cache)) = self.cache() {
            self.flush_outbox(cache, false);
            self.expire_bins(index, cache, |class, n| {
                let _inside = self.inside(cache);
                self.take_aged(cache, class, n)
            });
        }
        self.reach_all(|index, cache| {
            self.clear_outbox(cache);
            self.expire_bins(index, cache, |class, n| self.take_aged(cache, class, n));
        });
        for class in small {
            let doomed = self.centrals[class].lock().trim(self.slabs(class), used_slabs[class]);
            self.remove_slabs(doomed);
            self.centrals[class].lock().look_again();
        }
        for class in self.classes.slab_count()..self.classes.count() {
            self.centrals[class].lock().look_again();
        }
        self.expire_regions(used_units);
        self.extents.lock().begin_period();
    }

    /// Merges the blocks of a large class that lay in stock.
    fn expire_stock(&self, class: usize) {
        loop {
            let mut portion = [const { MaybeUninit::<Entry>::uninit() }; 16];
            let n = {
                let mut central = self.centrals[class].lock();
                // SAFETY: there is room for that many.
                let n = unsafe { central.take_unused(portion.as_mut_ptr().cast(), portion.len()) };
                self.stock_went(class, &central, n);
                n
            };
            if n == 0 {
                return;
            }
            // SAFETY: that many were written.
            self.give_units(unsafe { core::slice::from_raw_parts(portion.as_ptr().cast(), n) }, false);
        }
    }

    /// Empties bins that nothing was taken from, and halves the others. `take`: up to so many blocks of a class, of this cache.
    fn expire_bins(&self, index: u32, cache: &ThreadCache, take: impl Fn(usize, usize) -> Portion) {
        let Ok(seen) = self.policy.seen.get_or_grow(index) else { return };
        for class in cache.used() {
            let (allocations, _) = cache.bin(class).counts();
            let is_used = seen.0[class].swap(allocations, Ordering::Relaxed) != allocations;
            let len = cache.bin(class).len();
            let mut left = if is_used { len / 2 } else { len };
            while left > 0 {
                let portion = take(class, left);
                let entries = portion.entries();
                if entries.is_empty() {
                    break;
                }
                left -= entries.len();
                if self.is_large(class) {
                    let kept = if is_used { self.give_stock(class, entries) } else { 0 };
                    self.give_units(&entries[kept..], false);
                } else {
                    self.centrals[class].lock().put(self.slabs(class), entries);
                }
            }
        }
    }

    /// The oldest blocks of a bin, by whoever may touch it.
    fn take_aged(&self, cache: &ThreadCache, class: usize, n: usize) -> Portion {
        let portion = cache.bin(class).take_oldest(n);
        if self.is_large(class) {
            let bytes = portion.entries().len() * self.classes.size(class);
            cache.set_large_bytes(cache.large_bytes().saturating_sub(bytes));
            self.forget_owner(portion.entries());
        }
        portion
    }

    /// Gives idle regions back until no more units are idle than were used in between, but for what is reserved.
    fn expire_regions(&self, used_units: u64) {
        let floor = self.ahead.floor().div_ceil(crate::extents::UNIT as u64);
        for number in 1..self.meta.end() {
            if self.meta.span(number).is_none_or(|span| span.kind() != Kind::Region) {
                continue;
            }
            let removed = {
                let mut large = self.extents.lock();
                if large.idle().0 <= used_units {
                    return;
                }
                large.remove_region(&self.meta, number, floor)
            };
            if removed {
                // A provider that does not take it back leaves it with us.
                let _ = self.give_back(number);
            }
        }
    }
}
