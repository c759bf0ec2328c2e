//! The caches of both sides.
//!
//! | part | what it does | cost of a hit |
//! |---|---|---|
//! | [`Memo`] | remembers, per thread, what it looked up before: whole handles, windows | comparing or copying 256 bytes |
//! | [`Pins`] | counts uses, one counter per thread and entry | an atomic add on a line of its own, a load |
//! | [`Cache`] | owns the entries: hashbrown for look-up, an intrusive LRU list, limits | only on a miss |
//!
//! A hit takes no lock and writes no line that another thread writes. Eviction bears the cost: it
//! invalidates the entry's *stamp*, then sums the pins of all threads. A thread that pins adds its
//! pin first and reads the stamp after; so either it sees that the stamp is gone and takes its pin
//! back, or the evicting thread sees the pin.

mod entries;
mod memo;
mod pins;

pub(crate) use entries::{Cache, Cached, Entry, Pinned};
pub(crate) use memo::{Memo, MemoEntry, MemoValue};
pub(crate) use pins::{Pin, Pins};

use core::sync::atomic::{AtomicU64, Ordering};

umf_core::words! {
    /// What to do when a limit is reached and all entries are in use.
    #[derive(Default)]
    pub enum LimitPolicy {
        /// Go past the limit; come back under it as entries become idle.
        #[default]
        Soft = "soft",
        /// Fail.
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
    /// What the entries are and which setting limits them, for the error.
    pub what: &'static str,
    pub setting: &'static str,
}

/// What a cache counts. Hits are summed over the threads when asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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

impl CacheStatistics {
    /// Returns the counters in the order of their declaration, as ledgers have them.
    pub(crate) const fn words(&self) -> [u64; 9] {
        let Self { hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds } = *self;
        [hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds]
    }

    pub(crate) const fn from_words(words: [u64; 9]) -> Self {
        let [hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds] = words;
        Self { hits, table_hits, misses, stale, evictions, entries, in_use, bytes, fds }
    }

    /// Returns the sum of the counters of two caches. Sums stay where a `u64` ends: another process
    /// may have published anything.
    #[must_use]
    pub fn saturating_add(&self, other: &Self) -> Self {
        let (one, other) = (self.words(), other.words());
        Self::from_words(core::array::from_fn(|place| one[place].saturating_add(other[place])))
    }
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

#[cfg(test)]
mod tests;
