//! The state byte of a block, and its transitions.
//!
//! ```text
//!   0 --allocate--> LIVE --export--> LIVE | EXPORTED
//!   LIVE --free by the owner--> 0
//!   LIVE --remote free--> REMOTE --collected by the owner--> 0
//!   LIVE | EXPORTED --free--> 0, or DEFERRED while other processes have the block open
//!   LIVE --free with a completion--> DEFERRED --reclaimed--> 0 --slab of an owner--> REMOTE
//! ```
//!
//! A thread that may be the only one to change a state uses a load and a store: the thread that
//! [`Span::owner`](crate::types::Span::owner) names in a free, the thread that drains an inbox, and
//! the thread that defers or reclaims a block, which no other thread has then. The other
//! transitions are compare-exchanges. `remote` explains two frees of one block.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::types::{EXPORTED, LIVE, REMOTE};

/// Returns whether a state says that an export names the block.
pub(crate) const fn is_exported(state: u8) -> bool {
    state & (LIVE | EXPORTED) == LIVE | EXPORTED
}

/// A state byte. The loom model implements it with its own atomics.
pub(crate) trait StateByte {
    fn load(&self, order: Ordering) -> u8;
    fn store(&self, state: u8, order: Ordering);
    fn compare_exchange(&self, current: u8, new: u8) -> Result<u8, u8>;
}

impl StateByte for AtomicU8 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u8 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, state: u8, order: Ordering) {
        self.store(state, order);
    }

    #[inline(always)]
    fn compare_exchange(&self, current: u8, new: u8) -> Result<u8, u8> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// Frees a block of a slab of the calling thread; returns `false` if its state is not exactly
/// [`LIVE`]. Inside the section of the owner, or while that is revoked.
#[inline(always)]
pub(crate) fn free_by_owner(state: &impl StateByte) -> bool {
    let is_live = state.load(Ordering::Relaxed) == LIVE;
    if is_live {
        state.store(0, Ordering::Release);
    }
    is_live
}

/// Marks a block of another owner's slab as freed; returns `false` if its state is not exactly
/// [`LIVE`].
#[inline(always)]
pub(crate) fn mark_remote(state: &impl StateByte) -> bool {
    state.compare_exchange(LIVE, REMOTE).is_ok()
}

/// Undoes [`mark_remote`], for a thread whose span was reused meanwhile.
#[cold]
pub(crate) fn unmark_remote(state: &impl StateByte) {
    let _ = state.compare_exchange(REMOTE, LIVE);
}

/// Collects a remotely freed block; returns `false` if it is not marked as [`REMOTE`]. The calling
/// thread may put blocks into the bitmap of the slab or into a bin of its owner.
#[inline(always)]
pub(crate) fn collect(state: &impl StateByte) -> bool {
    let is_remote = state.load(Ordering::Acquire) == REMOTE;
    if is_remote {
        state.store(0, Ordering::Release);
    }
    is_remote
}

/// Replaces a state for which `new` returns another, and returns the state before. This is exact
/// for an exported block, whose state no thread changes by a plain store. For other blocks it is
/// exact if no thread does so meanwhile.
pub(crate) fn exchange(state: &impl StateByte, new: impl Fn(u8) -> Option<u8>) -> Option<u8> {
    let mut old = state.load(Ordering::Acquire);
    loop {
        match state.compare_exchange(old, new(old)?) {
            Ok(old) => return Some(old),
            Err(now) => old = now,
        }
    }
}

/// Flags a live block as exported; returns `false` if it is not live. No thread changes the state
/// by plain stores meanwhile.
pub(crate) fn mark_exported(state: &impl StateByte) -> bool {
    exchange(state, |old| (old & LIVE != 0).then_some(old | EXPORTED)).is_some()
}

/// Clears the state of a live block, and returns the state before. Exact as [`exchange`] is.
pub(crate) fn clear(state: &impl StateByte) -> Option<u8> {
    exchange(state, |old| (old & LIVE != 0).then_some(0))
}
