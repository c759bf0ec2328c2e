//! Limits of the bytes that pools allocate from their providers.

use core::sync::atomic::{AtomicU64, Ordering};
use umf_core::limit::{SharedLimit, SharedLimitRef, add_up_to};

use crate::Upstream;
use crate::tracker::{RegionNumber, for_each_pool};
use umf_core::{Error, Layout, Region, Result};

/// The name of a pool's own limit in [`Error::LimitReached`].
pub const POOL_LIMIT: &str = "pool memory";
/// The name of a shared limit in [`Error::LimitReached`].
pub const SHARED_LIMIT: &str = "shared memory";

/// Releases free memory of the pools that share `limit`, until `bytes` are released or there is no
/// more. Returns the bytes that were released. For the slow path of pools, which must not hold a
/// lock.
pub fn reclaim(limit: &SharedLimit, bytes: u64) -> u64 {
    // Deferred frees whose users have ended become free memory.
    crate::deferred::poll();
    let mut released = 0_u64;
    for_each_pool(|pool| {
        let missing = bytes.saturating_sub(released);
        if missing > 0
            && let Some(sharing) = pool.share_limit()
        {
            released = released.saturating_add(sharing.yield_free(limit, missing));
        }
    });
    released
}

/// The memory that a pool has allocated from its provider, counted against its own limit and a
/// shared one. For slow paths: each change writes one or two shared cache lines.
#[derive(Debug)]
pub struct Reserved {
    bytes: AtomicU64,
    peak: AtomicU64,
    regions: AtomicU64,
    limit: u64,
    shared: Option<SharedLimitRef>,
}

impl Reserved {
    /// Returns a count of zero. `limit` is in bytes; 0 is unlimited.
    #[must_use]
    pub const fn new(limit: u64, shared: Option<SharedLimitRef>) -> Self {
        Self { bytes: AtomicU64::new(0), peak: AtomicU64::new(0), regions: AtomicU64::new(0), limit, shared }
    }

    /// Counts `size` bytes, before they are allocated.
    ///
    /// # Errors
    /// [`Error::LimitReached`] with the name [`SHARED_LIMIT`] or [`POOL_LIMIT`]. Then nothing is
    /// counted.
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

    /// Allocates a region from `upstream` and counts it. The bytes are counted before the provider
    /// is called, so that the limit is never exceeded. [`Reserved::remove_region`] is the inverse.
    ///
    /// # Errors
    /// As [`Reserved::add`] and [`Upstream::allocate`]. Then nothing is allocated and counted.
    pub fn allocate_region(&self, upstream: &Upstream, layout: Layout) -> Result<(Region, RegionNumber)> {
        let requested = layout.pad_to(upstream.provider().page_size())?.size();
        self.add(requested)?;
        let allocated = upstream.allocate(layout).inspect_err(|_| self.remove(requested))?;
        // A provider may round up further than to its pages.
        let excess = allocated.0.size().saturating_sub(requested);
        if excess > 0
            && let Err(error) = self.add(excess)
        {
            self.remove(requested);
            // SAFETY: the region was allocated above, and no other code has its address. An error
            // of the free is dropped in favour of that of the limit.
            let _ = unsafe { upstream.free(allocated.0) };
            return Err(error);
        }
        self.regions.fetch_add(1, Ordering::Relaxed);
        Ok(allocated)
    }

    /// Counts `size` bytes less: the inverse of [`Reserved::add`].
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

    /// Returns the bytes that are allocated now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the peak of [`Reserved::bytes`].
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the number of regions that are allocated now.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.regions.load(Ordering::Relaxed)
    }

    /// Returns whether the bytes count against this shared limit.
    #[must_use]
    pub fn shares(&self, limit: &SharedLimit) -> bool {
        self.shared.as_deref().is_some_and(|shared| core::ptr::eq(shared, limit))
    }

    /// If `error` comes from the shared limit, calls [`reclaim`] for it. Returns whether memory was
    /// released. The caller must not hold a lock.
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
    fn bytes_above_one_limit_are_not_counted_by_the_other() {
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
