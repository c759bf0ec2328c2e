//! [`PoolStatistics`] of a pool, and [`Gauge`]s for providers.

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
    /// Free bytes in the pool, thread caches included.
    pub cached_bytes: u64,
    /// The part of `cached_bytes` that serves requests of any size; 0 if the pool does not know.
    pub free_bytes: u64,
    /// The largest range of `free_bytes`; 0 if the pool does not know.
    pub largest_free_bytes: u64,
    /// Bytes whose free is deferred, until other processes close them or a completion is ready:
    /// neither live nor free.
    pub held_bytes: u64,
    /// Freed bytes in quarantine, to detect writes after the free: neither live nor free.
    pub quarantined_bytes: u64,
    /// Bytes of the regions that the pool has from its provider.
    pub reserved_bytes: u64,
    /// The peak of `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// Regions that the pool has from its provider.
    pub regions: u64,
    /// Allocations so far.
    pub allocations: u64,
    /// Frees so far.
    pub frees: u64,
    /// Double frees that the pool detected after it had reported success: see the pool's
    /// documentation. Not in `frees`.
    pub late_double_frees: u64,
}

impl PoolStatistics {
    /// Returns the internal fragmentation: the fraction of live bytes that was not requested, from
    /// 0 to 1. An estimate, as [`PoolStatistics::requested_bytes`] is.
    #[must_use]
    pub fn internal_fragmentation(&self) -> f64 {
        fraction_outside(self.requested_bytes, self.live_bytes)
    }

    /// Returns the external fragmentation: the fraction of the free bytes that lies outside of the
    /// largest free range, from 0 to 1.
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        fraction_outside(self.largest_free_bytes, self.free_bytes)
    }
}

/// Returns the fraction of `all` that is not in `part`; 0 if `all` is 0.
pub(crate) fn fraction_outside(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { 1.0 - part.min(all) as f64 / all as f64 }
}

/// The bytes and number of allocated regions, and the peak of the bytes. For providers and the slow
/// paths of pools: each change writes one shared cache line.
#[derive(Debug, Default)]
pub struct Gauge {
    bytes: AtomicU64,
    count: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Returns a gauge at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: AtomicU64::new(0), count: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    /// Counts one more region of `bytes` bytes.
    pub fn add(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    /// Counts one more region of `bytes` bytes. Returns `false` and counts nothing if the sum would
    /// exceed `limit` bytes; 0 is unlimited.
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

    /// Counts one less region of `bytes` bytes.
    pub fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the current bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the current number of regions.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the peak of the bytes.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Sets the peak to the current bytes.
    pub fn reset_peak(&self) {
        self.peak.store(self.bytes(), Ordering::Relaxed);
    }
}
