//! The caches of exporters and importers: native exports, and mappings. This file has the limits
//! and counters.
//!
//! | part | what it does | cost of a hit |
//! |---|---|---|
//! | [`Memo`] | remembers the look-ups of each thread: handles, windows | comparing or copying 256 bytes |
//! | [`Pins`] | counts uses, one counter per thread and entry | a load and a store on a line of its own, and a load |
//! | [`Cache`] | owns the entries: hashbrown for look-up, an intrusive LRU list, limits | only on a miss |
//!
//! A hit takes no lock and writes no cache line that another thread writes. Eviction bears the
//! cost: it invalidates the entry's *stamp*, then sums the pins of all threads. A thread that pins
//! adds its pin first and reads the stamp afterwards. So either it sees the invalid stamp and
//! removes its pin, or the evicting thread sees the pin.

mod entries;
mod memo;
mod pins;

pub(crate) use entries::{Cache, Cached, Entry, Pinned};
pub(crate) use memo::{Memo, MemoEntry, MemoValue};
pub(crate) use pins::{Pin, Pins};

use core::sync::atomic::{AtomicU64, Ordering};

umf_core::words! {
    /// Policy of a limit that is reached while all entries are in use.
    #[derive(Default)]
    pub enum LimitPolicy {
        /// Exceed the limit. Later insertions evict entries that have become idle.
        #[default]
        Soft = "soft",
        /// Return an error.
        Hard = "hard",
    }
}

/// Limits of one cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Entries, 0 for no limit.
    pub entries: u64,
    /// Bytes, 0 for no limit.
    pub bytes: u64,
    pub policy: LimitPolicy,
    /// Name of the entries, for the error.
    pub what: &'static str,
    /// The variables that set the limits, for the error.
    pub setting: &'static str,
}

/// Counters of a cache. Hits are the sum over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Look-ups in a memo, without a lock.
    pub hits: u64,
    /// Look-ups in the table.
    pub table_hits: u64,
    /// Entries that were created.
    pub misses: u64,
    /// Opens that were refused because the handle was stale.
    pub stale: u64,
    /// Entries that were evicted.
    pub evictions: u64,
    /// Current entries.
    pub entries: u64,
    /// Current entries that are in use.
    pub in_use: u64,
    /// Bytes of memory that the entries export or map.
    pub bytes: u64,
    /// Open file descriptors.
    pub fds: u64,
}

impl CacheStatistics {
    /// Returns the counters in the order of their declaration, which is the order in ledgers.
    pub(crate) const fn words(&self) -> [u64; 9] {
        let Self { hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds } = *self;
        [hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds]
    }

    pub(crate) const fn from_words(words: [u64; 9]) -> Self {
        let [hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds] = words;
        Self { hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds }
    }

    /// Returns the sum of the counters of two caches. Saturates, because another process may
    /// publish any number.
    #[must_use]
    pub fn saturating_add(&self, other: &Self) -> Self {
        let (one, other) = (self.words(), other.words());
        Self::from_words(core::array::from_fn(|index| one[index].saturating_add(other[index])))
    }
}

/// The counters that only misses write.
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

#[cfg(test)]
mod tests;
