//! The bound of what is in transit: the bytes of handles that this process has sent and whose
//! readers have not opened them ([`crate::Exporter::send_handle`],
//! [`crate::Mapping::send_handle`]).
//!
//! At the limit of bytes a send releases what was claimed of the same producer's memory. Then it
//! cancels handles that are older than [`TransitLimits::expire_after`], the oldest ones first,
//! until that suffices. Otherwise it fails. The caller waits for readers and tries again, or sends
//! the bytes.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use umf_os::{AvailableMemory, cgroup};
use umf_sync::fork::{self, Hooks};

use crate::{Error, Result};

/// Limits of the handles in transit that this process has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransitLimits {
    /// Bytes of memory with handles in transit. Several handles of a block count it once; a block
    /// that this process both exports and has opened counts twice.
    pub max_bytes: u64,
    /// Age from which a handle is cancelled when `max_bytes` is reached. Below it, no handle is.
    pub expire_after: Duration,
}

/// The handles in transit that this process has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransitStatistics {
    /// Bytes of memory with handles in transit, including handles whose claims this process has not
    /// noticed yet.
    pub bytes: u64,
    /// Number of handles that were cancelled because they were too old.
    pub expired: u64,
}

/// The default of [`TransitLimits::expire_after`].
pub const DEFAULT_EXPIRE_AFTER: Duration = Duration::from_secs(600);
/// The default of [`TransitLimits::max_bytes`] is the machine's or control group's memory divided
/// by this.
const DEFAULT_SHARE: u64 = 4;

static BYTES: AtomicU64 = AtomicU64::new(0);
static EXPIRED: AtomicU64 = AtomicU64::new(0);
/// 0: not determined yet.
static MAX_BYTES: AtomicU64 = AtomicU64::new(0);
static EXPIRE_AFTER: AtomicU64 = AtomicU64::new(DEFAULT_EXPIRE_AFTER.as_millis() as u64);

/// Sets the limits of this process. With `max_bytes` 0 the limit is a quarter of the memory that
/// this machine, or this process's control group, has.
pub fn set_limits(max_bytes: u64, expire_after: Duration) {
    MAX_BYTES.store(max_bytes, Ordering::Relaxed);
    let age = u64::try_from(expire_after.as_millis()).unwrap_or(u64::MAX);
    EXPIRE_AFTER.store(age, Ordering::Relaxed);
}

/// Returns the limits of this process.
#[must_use]
pub fn limits() -> TransitLimits {
    let expire_after = Duration::from_millis(EXPIRE_AFTER.load(Ordering::Relaxed));
    TransitLimits { max_bytes: max_bytes(), expire_after }
}

/// Returns the sums of this process.
#[must_use]
pub fn statistics() -> TransitStatistics {
    TransitStatistics { bytes: BYTES.load(Ordering::Relaxed), expired: EXPIRED.load(Ordering::Relaxed) }
}

fn max_bytes() -> u64 {
    match MAX_BYTES.load(Ordering::Relaxed) {
        0 => {
            let group = cgroup::tightest().ok().flatten().map(|(_, limit)| limit);
            let memory = AvailableMemory::whole_machine().into_iter().chain(group).min();
            let bytes = memory.map_or(u64::MAX, |memory| (memory / DEFAULT_SHARE).max(1));
            MAX_BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

/// Checks that `bytes` more may be in transit. Memory larger than the limit may be, alone.
pub(crate) fn check(bytes: u64) -> Result<()> {
    let limit = max_bytes();
    match BYTES.load(Ordering::Relaxed) {
        0 => Ok(()),
        now if now.saturating_add(bytes) <= limit => Ok(()),
        now => Err(Error::TransitFull { bytes: now, limit }),
    }
}

/// Notes that `count` handles were cancelled because they were too old.
pub(crate) fn note_expired(count: usize) {
    if count != 0 {
        EXPIRED.fetch_add(count as u64, Ordering::Relaxed);
        tracing::warn!(
            count,
            "handles in transit were given up: no reader has opened them within ipc.expire_after_ms, and the \
             limit ipc.max_in_transit is reached"
        );
    }
}

/// The part of one sender in the sum of the process. A forked child begins with a sum of zero.
#[derive(Debug, Default)]
pub(crate) struct Bytes(u64);

impl Bytes {
    pub(crate) fn add(&mut self, bytes: u64) {
        static AT_FORK: Hooks = Hooks { child: || BYTES.store(0, Ordering::Relaxed), ..Hooks::NONE };
        static HAS_HOOK: AtomicBool = AtomicBool::new(false);
        if !HAS_HOOK.load(Ordering::Relaxed) {
            // Without the hook, a child counts what its parent had in transit.
            let _ = fork::add_hooks(&AT_FORK);
            HAS_HOOK.store(true, Ordering::Relaxed);
        }
        self.0 += bytes;
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&mut self, bytes: u64) {
        let bytes = bytes.min(self.0);
        self.0 -= bytes;
        BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.subtract(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_limit_is_a_share_of_the_memory() {
        let limit = max_bytes();
        assert!(limit > 1 << 20 && limit < 1 << 60, "{limit}");
    }
}
