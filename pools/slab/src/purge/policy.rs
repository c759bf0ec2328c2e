//! [`Policy`]: the settings of automatic release and their state, and the limits on free memory.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use umf_sync::chunks::{Chunks, Zeroable};

use super::purger;
use crate::SlabSettings;
use crate::classes::MAX_CLASSES;
use crate::settings::SMALL_PER_CAPACITY;

/// The fewest bytes that threads return before one of them checks the limit.
const MIN_SLACK: u64 = 64 << 10;

/// The purge policy of a pool, and its state.
pub(crate) struct Policy {
    pub(super) is_active: bool,
    /// The most bytes that may be free; 0: any number.
    pub(super) max_free: u64,
    /// The bound on the bytes that may be free beyond as many as are live, if there is one.
    by_capacity: Option<CapacityBound>,
    /// How long memory may be unused, in ms; 0: for ever.
    pub(super) age: u64,
    /// Bytes that threads returned since the last check of the limit.
    pub(super) returned: AtomicU64,
    /// Free bytes when the last check could not release enough of them; 0 if it could.
    pub(super) stuck: AtomicU64,
    /// When the next decay is due, in ms.
    pub(super) due: AtomicU64,
    /// Whether a thread is releasing memory.
    pub(super) is_purging: AtomicBool,
    /// Whether the background purger counts this pool.
    in_background: AtomicBool,
    /// The counters of each thread's bins at the last decay.
    pub(super) at_decay: Chunks<AllocationCounts>,
}

/// The bound of `capacity_bounds_cache`.
struct CapacityBound {
    capacity: u64,
    most: u64,
    /// Bytes of small blocks: 0 until a small class is used.
    small: AtomicU64,
    /// Bytes of large blocks, of the classes that were used.
    large: AtomicU64,
    /// The classes that were used, a bit each.
    used: [AtomicU64; MAX_CLASSES / 64],
}

impl CapacityBound {
    /// What is kept of a pool without a used class: one region.
    const LEAST: u64 = 1 << 20;

    fn new(settings: &SlabSettings) -> Self {
        Self {
            capacity: settings.capacity.into(),
            most: settings.capacity_bound(),
            small: AtomicU64::new(0),
            large: AtomicU64::new(0),
            used: [const { AtomicU64::new(0) }; MAX_CLASSES / 64],
        }
    }

    /// Raises the bound for a class that is used for the first time.
    fn note(&self, class: usize, size: usize, is_large: bool) {
        let (word, bit) = (&self.used[class / 64], 1 << (class % 64));
        if word.load(Ordering::Relaxed) & bit != 0 || word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        if is_large {
            self.large.fetch_add(self.capacity.saturating_mul(size as u64), Ordering::Relaxed);
        } else {
            self.small.store(self.capacity.saturating_mul(SMALL_PER_CAPACITY), Ordering::Relaxed);
        }
    }

    fn bytes(&self) -> u64 {
        let used = self.small.load(Ordering::Relaxed).max(self.large.load(Ordering::Relaxed));
        used.min(self.most).max(Self::LEAST)
    }
}

/// The number of allocations from each bin of a thread.
pub(super) struct AllocationCounts(pub(super) [AtomicU64; MAX_CLASSES]);

// SAFETY: zeros are valid integers.
unsafe impl Zeroable for AllocationCounts {}

/// The calling thread releases memory until this is dropped. Then it calls
/// [`SlabPool::purge_again`], since other threads may have returned blocks meanwhile and left the
/// purge to it.
pub(super) struct PurgeInProgress<'a>(&'a AtomicBool);

impl Drop for PurgeInProgress<'_> {
    fn drop(&mut self) {
        // An exchange, not a store: it acquires the counts of threads that found this purge in
        // progress.
        self.0.swap(false, Ordering::AcqRel);
    }
}

impl Policy {
    pub(crate) fn new(settings: &SlabSettings) -> Self {
        let age = u64::try_from(settings.release_after.as_millis()).unwrap_or(u64::MAX);
        let age = if settings.release_after.is_zero() { 0 } else { age.max(1) };
        Self {
            is_active: settings.max_cached != 0 || settings.capacity_bounds_cache || age != 0,
            max_free: settings.max_cached,
            by_capacity: settings.capacity_bounds_cache.then(|| CapacityBound::new(settings)),
            age,
            returned: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            due: AtomicU64::new(0),
            is_purging: AtomicBool::new(false),
            in_background: AtomicBool::new(false),
            at_decay: Chunks::new(),
        }
    }

    /// Ends a purge in progress in a forked child: its thread exists in the parent only.
    pub(crate) fn forked(&self) {
        self.is_purging.store(false, Ordering::Relaxed);
    }

    /// Counts the pool in the background purger, if `background`.
    pub(crate) fn begin_background(&self, background: bool) {
        if background && !self.in_background.swap(true, Ordering::Relaxed) {
            purger::add_pool();
        }
    }

    /// Removes the pool from the background purger.
    pub(crate) fn end_background(&self) {
        if self.in_background.swap(false, Ordering::Relaxed) {
            purger::remove_pool();
        }
    }

    /// Returns how long the background purger may sleep between two checks.
    pub(super) fn period(&self) -> Duration {
        const LONGEST: u64 = 1000;
        Duration::from_millis(if self.age == 0 { 100 } else { (self.age / 2).clamp(1, LONGEST) })
    }

    pub(super) fn begin(&self) -> Option<PurgeInProgress<'_>> {
        (!self.is_purging.swap(true, Ordering::AcqRel)).then(|| PurgeInProgress(&self.is_purging))
    }

    /// Returns whether `returned` bytes since the last check make the next one due.
    pub(super) fn is_check_due(&self, returned: u64) -> bool {
        // If the last check could not release enough, the next one waits for a 32nd of the rest.
        let slack = (self.bound(0) / 8).max(self.stuck.load(Ordering::Relaxed) / 32);
        self.is_bounded() && returned >= slack.max(MIN_SLACK)
    }

    /// Returns whether the bytes that may be free are bounded.
    pub(super) fn is_bounded(&self) -> bool {
        self.max_free != 0 || self.by_capacity.is_some()
    }

    /// Returns the most bytes that may be free while `live` bytes are live.
    pub(super) fn bound(&self, live: u64) -> u64 {
        let fixed = if self.max_free == 0 { u64::MAX } else { self.max_free };
        self.by_capacity.as_ref().map_or(fixed, |bound| fixed.min(bound.bytes().saturating_add(live)))
    }

    /// Notes that a block or slab of a class is made.
    pub(crate) fn note_class(&self, class: usize, size: usize, is_large: bool) {
        if let Some(bound) = &self.by_capacity {
            bound.note(class, size, is_large);
        }
    }
}
