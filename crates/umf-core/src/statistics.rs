//! What pools and providers count.

use core::sync::atomic::{AtomicU64, Ordering};

/// The counters of a pool, in bytes and blocks. A snapshot: the fields are read one after another
/// while other threads continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Bytes in live blocks, as rounded up by the pool.
    pub live_bytes: u64,
    /// The part of `live_bytes` that was requested: an estimate from the requests that took the
    /// slow paths. Equals `live_bytes` if the pool has no estimate.
    pub requested_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes free in the pool, thread caches included.
    pub cached_bytes: u64,
    /// Of those, bytes that serve requests of any size; 0 where the pool does not know.
    pub free_bytes: u64,
    /// The longest range of them; 0 where the pool does not know.
    pub largest_free_bytes: u64,
    /// Bytes whose free is deferred, until other processes close them or a completion is ready:
    /// neither live nor free.
    pub held_bytes: u64,
    /// Freed bytes in quarantine, to detect writes after the free: neither live nor free.
    pub quarantined_bytes: u64,
    /// Bytes got from the provider.
    pub reserved_bytes: u64,
    /// The most that `reserved_bytes` has been.
    pub peak_reserved_bytes: u64,
    /// Regions got from the provider.
    pub regions: u64,
    /// Allocations so far.
    pub allocations: u64,
    /// Frees so far.
    pub frees: u64,
    /// Frees so far that were the second of their block, and that the pool found only after it had
    /// reported success: see the pool's documentation. Not in `frees`.
    pub late_double_frees: u64,
}

impl PoolStatistics {
    /// Returns the internal fragmentation: the fraction of live bytes that was not requested, from
    /// 0 to 1. An estimate, as [`PoolStatistics::requested_bytes`] is.
    #[must_use]
    pub fn internal_fragmentation(&self) -> f64 {
        missing(self.requested_bytes, self.live_bytes)
    }

    /// Returns the external fragmentation: the fraction of the free bytes that lies outside of the
    /// largest free range, from 0 to 1.
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        missing(self.largest_free_bytes, self.free_bytes)
    }
}

/// Which part of `all` is not in `part`; 0 of nothing.
pub(crate) fn missing(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { 1.0 - part.min(all) as f64 / all as f64 }
}

/// Bytes and regions that are allocated, and the most there have been. For providers and the slow
/// paths of pools: every change writes one shared line.
#[derive(Debug, Default)]
pub struct Gauge {
    bytes: AtomicU64,
    count: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// A gauge at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: AtomicU64::new(0), count: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    /// Counts one more, of `bytes` bytes.
    pub fn add(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    /// Counts one more of `bytes` bytes, unless that would pass `limit` bytes (0: no limit).
    pub fn try_add(&self, bytes: usize, limit: u64) -> bool {
        if limit == 0 {
            self.add(bytes);
            return true;
        }
        let more = |now: u64| now.checked_add(bytes as u64).filter(|&sum| sum <= limit);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(before) => {
                self.count.fetch_add(1, Ordering::Relaxed);
                self.peak.fetch_max(before + bytes as u64, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Counts one less, of `bytes` bytes.
    pub fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Bytes now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many now.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The most bytes there have been.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Makes the peak what there is now.
    pub fn reset_peak(&self) {
        self.peak.store(self.bytes(), Ordering::Relaxed);
    }
}
