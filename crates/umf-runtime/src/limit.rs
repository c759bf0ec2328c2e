//! Limits on what pools take from their providers.

use core::sync::atomic::{AtomicU64, Ordering};
use umf_core::limit::{SharedLimit, SharedLimitRef, add_up_to};

use crate::Upstream;
use crate::tracker::{RegionNumber, for_each_pool};
use umf_core::{Error, Layout, Region, Result};

/// What [`Error::LimitReached`] calls a pool's own limit.
pub const POOL_LIMIT: &str = "pool memory";
/// What it calls one that is shared.
pub const SHARED_LIMIT: &str = "shared memory";

/// Has pools that share `limit` give back what is free with them, until `bytes` have gone or there
/// is no more; yields how many bytes went. For pools on their slow path, without any lock.
pub fn reclaim(limit: &SharedLimit, bytes: u64) -> u64 {
    // What has become ready or was closed meanwhile is free by then.
    crate::deferred::poll();
    let mut went = 0_u64;
    for_each_pool(|pool| {
        let missing = bytes.saturating_sub(went);
        if missing > 0
            && let Some(sharing) = pool.share_limit()
        {
            went = went.saturating_add(sharing.yield_free(limit, missing));
        }
    });
    went
}

/// What one pool has got from its provider, against its own limit and one that it shares with
/// others. For pools: every change writes one or two shared lines.
#[derive(Debug)]
pub struct Reserved {
    bytes: AtomicU64,
    peak: AtomicU64,
    regions: AtomicU64,
    limit: u64,
    shared: Option<SharedLimitRef>,
}

impl Reserved {
    /// Nothing yet. `limit` in bytes, 0 for none.
    #[must_use]
    pub const fn new(limit: u64, shared: Option<SharedLimitRef>) -> Self {
        Self { bytes: AtomicU64::new(0), peak: AtomicU64::new(0), regions: AtomicU64::new(0), limit, shared }
    }

    /// Counts `size` bytes that are about to be got.
    ///
    /// # Errors
    /// [`Error::LimitReached`], with [`SHARED_LIMIT`] or [`POOL_LIMIT`] as the limit's name:
    /// nothing is counted.
    pub fn add(&self, size: usize) -> Result<()> {
        let bytes = size as u64;
        if !add_up_to(&self.bytes, bytes, self.limit) {
            return Err(Error::LimitReached { what: POOL_LIMIT, limit: self.limit, size });
        }
        if let Some(shared) = self.shared.as_ref().filter(|shared| !shared.try_add(bytes)) {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::LimitReached { what: SHARED_LIMIT, limit: shared.limit(), size });
        }
        self.peak.fetch_max(self.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// A region from `upstream`, counted before its provider is asked, so that no limit is ever
    /// passed; to be counted out by [`Reserved::remove_region`].
    ///
    /// # Errors
    /// Those of [`Reserved::add`] and of [`Upstream::allocate`]: nothing has come, and nothing is
    /// counted.
    pub fn allocate_region(&self, upstream: &Upstream, layout: Layout) -> Result<(Region, RegionNumber)> {
        let asked = layout.pad_to(upstream.provider().page_size())?.size();
        self.add(asked)?;
        let got = upstream.allocate(layout).inspect_err(|_| self.remove(asked))?;
        let more = got.0.size().saturating_sub(asked);
        if more > 0
            && let Err(error) = self.add(more)
        {
            self.remove(asked);
            // SAFETY: no other code has seen the region. The error that matters is the limit's.
            let _ = unsafe { upstream.free(got.0) };
            return Err(error);
        }
        self.regions.fetch_add(1, Ordering::Relaxed);
        Ok(got)
    }

    /// Takes back what [`Reserved::add`] counted.
    pub fn remove(&self, size: usize) {
        self.bytes.fetch_sub(size as u64, Ordering::Relaxed);
        if let Some(shared) = &self.shared {
            shared.remove(size as u64);
        }
    }

    /// Counts one region of `size` bytes less.
    pub fn remove_region(&self, size: usize) {
        self.regions.fetch_sub(1, Ordering::Relaxed);
        self.remove(size);
    }

    /// Bytes now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The most bytes there have been.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Regions now.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.regions.load(Ordering::Relaxed)
    }

    /// Whether it counts against this limit.
    #[must_use]
    pub fn shares(&self, limit: &SharedLimit) -> bool {
        self.shared.as_deref().is_some_and(|shared| core::ptr::eq(shared, limit))
    }

    /// If `error` is the shared limit's: has all pools that share it give back what is free with
    /// them, and says whether anything went. For pools, without any lock.
    pub fn reclaim(&self, error: &Error) -> bool {
        match error {
            Error::LimitReached { what, size, .. } if *what == SHARED_LIMIT => {
                self.shared.as_ref().is_some_and(|shared| reclaim(shared, *size as u64) > 0)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_one_limit_refuses_the_other_does_not_count() {
        let shared = Arc::new(SharedLimit::new(100));
        let one = Reserved::new(80, Some(Arc::clone(&shared).into()));
        let two = Reserved::new(0, Some(Arc::clone(&shared).into()));
        one.add(70).unwrap();
        assert!(matches!(one.add(20), Err(Error::LimitReached { what: "pool memory", .. })));
        assert!(matches!(two.add(40), Err(Error::LimitReached { what: "shared memory", .. })));
        assert_eq!((one.bytes(), two.bytes(), shared.used()), (70, 0, 70));
        one.remove(70);
        two.add(100).unwrap();
        two.remove(100);
        assert_eq!((shared.used(), one.peak()), (0, 70));
    }
}
