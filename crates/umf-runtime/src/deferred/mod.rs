//! Freed memory that is still in use: other processes have it open, or a device works on it.
//!
//! Freeing retires an export at once, so that nobody opens it anew. Who opened it before may go on using it, and says so by
//! a lease ([`crate::observer::Leases`]). Until the last lease is gone the memory is *held*: a block is not handed out
//! again, a region does not go back to its provider. DeferredMemory becomes of the contents meanwhile is the choice of [`umf_core::deferred::OnFree`].
//!
//! The same is done with a block that was freed with a [`umf_core::Completion`] ([`umf_core::DeferredFree::free_after`]): until that is ready. Such
//! blocks are looked at where a thread's cache has run out too, but do not count against the bound on what is held.
//!
//! | who | does |
//! |---|---|
//! | a pool, in `free`, when [`crate::observer::before_free`] says that a block may still be in use | [`Upstream::defer`] |
//! | a pool, in `free_after` | [`Upstream::defer_until`] |
//! | a pool, where it needs memory | [`Upstream::poll_pending`] |
//! | [`Upstream::free`] of a region that may still be in use, or in which blocks are held | holds the region |
//! | [`poll`] | looks which leases are gone, and lets go: [`umf_core::DeferredFree::reclaim`], [`umf_core::Provider::free`] |
//!
//! Nobody has to tell when a lease goes. It is noticed by looking: at frees that find leases (a few at a time), when a pool is
//! trimmed, when an allocation would fail, and whenever the user calls [`poll`] or [`drain`].
//!
//! A region that is held when its pool or [`Upstream`] goes is held on, and keeps its provider alive.
//!
//! In a forked child nothing of the parent is held: shared memory is frozen there, and the parent's to free. Of private memory a child
//! has a copy; blocks in it that were held in the parent are not used again in the child.
//!
//! # Locks
//! One lock guards the lists, and nothing else is called under it. Leases, pools and providers are called without any lock of this module, and
//! [`poll`] (and [`Upstream::admit`]) are to be called without any lock that [`umf_core::DeferredFree::reclaim`] takes.

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

/// DeferredMemory became of a region that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeOutcome {
    /// Its provider has it back.
    Freed,
    /// Other processes have it open: its provider gets it back when they do not any more, and
    /// [`umf_core::DeferredFree::reclaim`] is told.
    Deferred,
}

/// Lets go of everything in this process that nobody leases any more; returns how many bytes that was.
///
/// DeferredMemory a provider or pool refuses to take back stays held, and is tried again at the next call.
pub fn poll() -> u64 {
    let end = REGISTRY.lock().end();
    let went = (0..end).map(|account| poll::account(account, u32::MAX)).sum();
    let after_poll = REGISTRY.lock().after_poll;
    after_poll.inspect(|after_poll| after_poll());
    went
}

/// Has [`poll`] call a function each time when it has looked at everything, without a lock. For the crate
/// that keeps leases, which drops then what it kept for them. A second function replaces the first.
pub fn after_poll(call: fn()) {
    REGISTRY.lock().after_poll = Some(call);
}

/// Waits until nothing is held any more, but no longer than `timeout`. Returns what still is.
///
/// Looks again after pauses of 50 microseconds to 5 milliseconds.
pub fn drain(timeout: Duration) -> DeferredStatistics {
    wait(timeout, poll, statistics)
}

/// DeferredMemory is held in this process.
#[must_use]
pub fn statistics() -> DeferredStatistics {
    registry::sum()
}

fn wait(
    timeout: Duration,
    poll: impl Fn() -> u64,
    held: impl Fn() -> DeferredStatistics,
) -> DeferredStatistics {
    const LONGEST: Duration = Duration::from_millis(5);
    let begin = Instant::now();
    let mut pause = Duration::from_micros(50);
    loop {
        poll();
        let held = held();
        let left = timeout.saturating_sub(begin.elapsed());
        if held.is_empty() || left.is_zero() {
            return held;
        }
        std::thread::sleep(pause.min(left));
        pause = (2 * pause).min(LONGEST);
    }
}
