//! [`SharedLimit`]: a limit of the bytes that several pools reserve together.

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A limit of the bytes that several pools together allocate from their providers.
///
/// Each pool counts the regions that it allocates and frees. Before an allocation fails because of
/// the limit, the other pools release free memory ([`crate::ShareLimit::yield_free`]).
#[derive(Debug)]
pub struct SharedLimit {
    used: AtomicU64,
    limit: u64,
}

impl SharedLimit {
    /// Returns a limit of `bytes`; 0 is unlimited, but still counts.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { used: AtomicU64::new(0), limit: bytes }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that the pools reserve now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts `bytes` more. Returns `false` and counts nothing if that would exceed the limit.
    pub fn try_add(&self, bytes: u64) -> bool {
        add_up_to(&self.used, bytes, self.limit)
    }

    /// Counts `bytes` less.
    pub fn remove(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A reference to a [`SharedLimit`]. The static form is for a pool that is the global allocator.
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

/// Adds `bytes` to a counter. Returns `false` and adds nothing if the sum would exceed `limit`; 0
/// is unlimited.
pub fn add_up_to(counter: &AtomicU64, bytes: u64, limit: u64) -> bool {
    let more = |now: u64| now.checked_add(bytes).filter(|&sum| limit == 0 || sum <= limit);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_beyond_the_limit_or_the_counter_fails_and_changes_nothing() {
        let counter = AtomicU64::new(u64::MAX - 1);
        assert!(!add_up_to(&counter, 2, 0));
        assert!(add_up_to(&counter, 1, 0));
        assert_eq!(counter.load(Ordering::Relaxed), u64::MAX);
        let counter = AtomicU64::new(10);
        assert!(!add_up_to(&counter, 91, 100));
        assert!(add_up_to(&counter, 90, 100));
        assert_eq!(counter.load(Ordering::Relaxed), 100);
    }
}
