//! Deferred free: freed memory that other processes still have open, or that a device still uses.
//!
//! A free retires the exports of the memory at once, so no process can open it any more. An
//! importer that opened it before keeps a lease ([`crate::observer::Leases`]). Until the last lease
//! ends, the free is deferred and the memory is *held*: its pool does not reuse a block, and a
//! region does not go back to its provider. [`umf_core::deferred::OnFree`] selects whether the
//! contents stay meanwhile.
//!
//! A block that was freed with a [`umf_core::Completion`] ([`umf_core::DeferredFree::free_after`])
//! is *pending*: it is held until the completion is ready. Pending blocks are also polled when the
//! cache of a thread is empty, and they do not count against `max_held`.
//!
//! | caller | call |
//! |---|---|
//! | a pool, in `free`, if [`crate::observer::before_free`] returned leases | [`Upstream::defer`] |
//! | a pool, in `free_after` | [`Upstream::defer_until`] |
//! | a pool that needs memory | [`Upstream::poll_pending`] |
//! | [`Upstream::free`] of a region with leases, or with held blocks | defers the free of the region |
//! | [`poll`] | [`umf_core::DeferredFree::reclaim`] and [`umf_core::Provider::free`], for what is not in use |
//!
//! The end of a lease sends no message. Polling finds it: a few items at a free that finds leases;
//! all items when a pool is trimmed, when an allocation would fail, and in [`poll`] and [`drain`].
//!
//! A region that is held when its pool or [`Upstream`] is dropped stays held, and keeps its
//! provider alive.
//!
//! A forked child holds nothing of the parent. Shared memory is frozen there, and the parent frees
//! it. Of private memory the child has a copy; the child never reuses blocks in it that the parent
//! held.
//!
//! # Locks
//! One lock guards the lists; no foreign code runs under it. Leases, pools and providers are called
//! without a lock of this module. Callers of [`poll`] and [`Upstream::admit`] must not hold a lock
//! that [`umf_core::DeferredFree::reclaim`] acquires.

mod items;
mod joined;
mod poll;
mod registry;
mod upstream;

use core::time::Duration;
use std::time::Instant;

pub(crate) use joined::Joined;
pub(crate) use poll::is_polling_all;
pub(crate) use upstream::Policy;

use registry::REGISTRY;
use umf_core::deferred::DeferredStatistics;

#[cfg(doc)]
use crate::Upstream;

/// The result of freeing a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeOutcome {
    /// The region went back to its provider.
    Freed,
    /// The region is still in use. It goes back to its provider when it is not any more; then
    /// [`umf_core::DeferredFree::reclaim`] is called.
    Deferred,
}

/// Reclaims all held memory of this process that is not in use any more, and returns its bytes.
///
/// Memory that a provider or pool fails to take back stays held. The next call tries again.
pub fn poll() -> u64 {
    let end = REGISTRY.lock().end();
    let went = (0..end).map(|account| poll::account(account, u32::MAX)).sum();
    let after_poll = REGISTRY.lock().after_poll;
    after_poll.inspect(|after_poll| after_poll());
    went
}

/// Sets the function that [`poll`] calls at its end, without a lock. For the crate that keeps
/// leases, which drops expired state there. A second function replaces the first.
pub fn after_poll(call: fn()) {
    REGISTRY.lock().after_poll = Some(call);
}

/// Waits until nothing is held, for at most `timeout`. Returns what is still held. Completions of
/// what was reclaimed are dropped then.
///
/// Polls in intervals of 50 microseconds to 5 milliseconds.
pub fn drain(timeout: Duration) -> DeferredStatistics {
    let is_settling = || {
        let end = REGISTRY.lock().end();
        (0..end).any(poll::is_settling)
    };
    wait(timeout, poll, statistics, is_settling)
}

/// Returns the held memory of this process.
#[must_use]
pub fn statistics() -> DeferredStatistics {
    registry::sum()
}

fn wait(
    timeout: Duration,
    poll: impl Fn() -> u64,
    held: impl Fn() -> DeferredStatistics,
    is_settling: impl Fn() -> bool,
) -> DeferredStatistics {
    const LONGEST: Duration = Duration::from_millis(5);
    let begin = Instant::now();
    let mut pause = Duration::from_micros(50);
    loop {
        poll();
        let held = held();
        let left = timeout.saturating_sub(begin.elapsed());
        if left.is_zero() || held.is_empty() && !is_settling() {
            return held;
        }
        std::thread::sleep(pause.min(left));
        pause = (2 * pause).min(LONGEST);
    }
}
