//! [`Limits`]: how much free memory several pools may keep together.
//!
//! It bounds what is kept free, not what is allocated: past it, what is freed goes back to the provider.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use umf_core::Pool as _;
use umf_pool_slab::SlabPool;

/// Looking costs a sum over all threads: done after so many frees of small blocks, and after each large one.
const FREES: u32 = 256;
const LARGE: usize = 64 << 10;

/// A limit, and who has it.
pub(crate) struct Limits {
    most: usize,
    pools: Mutex<Vec<Weak<SlabPool>>>,
    frees: AtomicU32,
}

impl Limits {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, pools: Mutex::new(Vec::new()), frees: AtomicU32::new(0) }
    }

    pub(super) fn enter(&self, pool: &Arc<SlabPool>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// A block was freed: gives back what is too much, now and then.
    pub(super) fn freed(&self, size: usize) {
        let frees = self.frees.fetch_add(1, Ordering::Relaxed);
        if size >= LARGE || frees.is_multiple_of(FREES) {
            self.enforce();
        }
    }

    /// Gives back what is kept above the limit.
    pub(super) fn enforce(&self) {
        let pools: Vec<_> = {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.iter().filter_map(Weak::upgrade).collect()
        };
        let kept =
            |pool: &Arc<SlabPool>| usize::try_from(pool.statistics().cached_bytes).unwrap_or(usize::MAX);
        let all = pools.iter().map(kept).fold(0, usize::saturating_add);
        let mut excess = all.saturating_sub(self.most);
        for pool in pools {
            if excess == 0 {
                return;
            }
            let keep = kept(&pool).saturating_sub(excess);
            // What cannot be given back stays; another pool may have more.
            let went = pool.trim(keep).unwrap_or(0);
            excess = excess.saturating_sub(went);
        }
    }
}
