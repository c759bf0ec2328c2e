//! Limits on what pools take from their providers.

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::{Error, Result};

/// A number of bytes that several pools together may take from their providers.
///
/// A pool counts what it has reserved, and gives its part back as regions go back: when it trims, and when it
/// is dropped.
#[derive(Debug)]
pub struct SharedLimit {
    used: AtomicU64,
    limit: u64,
}

impl SharedLimit {
    /// A limit of `bytes`; 0 is unlimited (and counts).
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { used: AtomicU64::new(0), limit: bytes }
    }

    /// The limit in bytes.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that the pools hold now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn try_add(&self, bytes: u64) -> bool {
        add_up_to(&self.used, bytes, self.limit)
    }

    fn remove(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn add_up_to(counter: &AtomicU64, bytes: u64, limit: u64) -> bool {
    let more = |now: u64| now.checked_add(bytes).filter(|&sum| limit == 0 || sum <= limit);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// A [`SharedLimit`], counted or static (for a pool that is the global allocator).
#[derive(Clone)]
pub enum SharedLimitRef {
    /// Reference counted.
    Shared(Arc<SharedLimit>),
    /// Static.
    Static(&'static SharedLimit),
}

impl Deref for SharedLimitRef {
    type Target = SharedLimit;

    fn deref(&self) -> &SharedLimit {
        match self {
            Self::Shared(limit) => limit,
            Self::Static(limit) => limit,
        }
    }
}

impl fmt::Debug for SharedLimitRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl From<Arc<SharedLimit>> for SharedLimitRef {
    fn from(limit: Arc<SharedLimit>) -> Self {
        Self::Shared(limit)
    }
}

impl From<&'static SharedLimit> for SharedLimitRef {
    fn from(limit: &'static SharedLimit) -> Self {
        Self::Static(limit)
    }
}

/// What one pool has reserved, against both limits.
#[derive(Debug)]
pub(crate) struct Reserve {
    bytes: AtomicU64,
    peak: AtomicU64,
    regions: AtomicU64,
    limit: u64,
    shared: Option<SharedLimitRef>,
}

impl Reserve {
    pub(crate) const fn new(limit: u64, shared: Option<SharedLimitRef>) -> Self {
        Self { bytes: AtomicU64::new(0), peak: AtomicU64::new(0), regions: AtomicU64::new(0), limit, shared }
    }

    /// Counts `size` bytes that are about to be reserved.
    pub(crate) fn add(&self, size: usize) -> Result<()> {
        let bytes = size as u64;
        if !add_up_to(&self.bytes, bytes, self.limit) {
            return Err(Error::LimitReached { what: "pool memory", limit: self.limit, size });
        }
        if let Some(shared) = self.shared.as_ref().filter(|shared| !shared.try_add(bytes)) {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::LimitReached { what: "shared memory", limit: shared.limit(), size });
        }
        self.peak.fetch_max(self.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Takes back what [`Reserve::add`] counted.
    pub(crate) fn remove(&self, size: usize) {
        self.bytes.fetch_sub(size as u64, Ordering::Relaxed);
        if let Some(shared) = &self.shared {
            shared.remove(size as u64);
        }
    }

    /// Counts one more region.
    pub(crate) fn region_came(&self) {
        self.regions.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one region of `size` bytes less.
    pub(crate) fn region_went(&self, size: usize) {
        self.regions.fetch_sub(1, Ordering::Relaxed);
        self.remove(size);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn regions(&self) -> u64 {
        self.regions.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_limit_refuses_the_other_does_not_count() {
        let shared = Arc::new(SharedLimit::new(100));
        let one = Reserve::new(80, Some(Arc::clone(&shared).into()));
        let two = Reserve::new(0, Some(Arc::clone(&shared).into()));
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
