//! How much a cache may hold, and what it counts.

use core::sync::atomic::{AtomicU64, Ordering};

/// What to do when a limit is reached and everything is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LimitPolicy {
    /// Go past the limit; come back under it as entries become idle.
    #[default]
    Soft,
    /// Fail.
    Hard,
}

/// Limits of one cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Entries, 0 for no limit.
    pub entries: u64,
    /// Bytes, 0 for no limit.
    pub bytes: u64,
    pub policy: LimitPolicy,
    /// What the entries are and which setting limits them, for the error.
    pub what: &'static str,
    pub setting: &'static str,
}

/// What a cache counts. Hits are summed over the threads when asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Found without a lock.
    pub hits: u64,
    /// Found after a look into the table.
    pub table_hits: u64,
    /// Made anew.
    pub misses: u64,
    /// Refused because the handle was stale.
    pub stale: u64,
    /// Evicted to keep a limit.
    pub evictions: u64,
    /// Entries now.
    pub entries: u64,
    /// Of them, in use.
    pub in_use: u64,
    /// Bytes of memory that the entries name.
    pub bytes: u64,
    /// File descriptors held.
    pub fds: u64,
}

/// The counters that are written on misses only.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub table_hits: AtomicU64,
    pub misses: AtomicU64,
    pub stale: AtomicU64,
    pub evictions: AtomicU64,
    pub entries: AtomicU64,
    pub bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
