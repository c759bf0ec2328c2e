//! The state byte of each block, and who may change it how.
//!
//! Freeing clears the live bit of a block in its state byte. The byte also says whether an export
//! names the block, so that exports are retired before the block is reused. The thread that
//! [`Span::owner`](crate::span::Span::owner) names frees blocks by a load and a store; all other
//! changes are exchanges. `remote` says what becomes of two frees of one block.

use core::sync::atomic::{AtomicU8, Ordering};

/// Flag of a state byte: the block is handed out.
pub(crate) const LIVE: u8 = 1;
/// Flag of a state byte: an export names the block.
pub(crate) const EXPORTED: u8 = 2;
/// Flag of a state byte: the block was freed and waits for other processes or a completion: see
/// `deferred`.
pub(crate) const DEFERRED: u8 = 4;
/// State of a block that a thread has freed which does not own its slab, until the free reaches the
/// owner: see `remote`.
pub(crate) const REMOTE: u8 = 8;

/// Returns whether a state says that an export names the block.
pub(crate) const fn is_exported(state: u8) -> bool {
    state & (LIVE | EXPORTED) == LIVE | EXPORTED
}

/// The state of a block. The model has words of its own.
pub(crate) trait State {
    fn load(&self, order: Ordering) -> u8;
    fn store(&self, state: u8, order: Ordering);
    fn compare_exchange(&self, current: u8, new: u8) -> Result<u8, u8>;
}

impl State for AtomicU8 {
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

/// Frees a block of an own slab; `false` if its state is not exactly [`LIVE`]. Inside the section of
/// the owner, or while that is revoked.
#[inline(always)]
pub(crate) fn free_own(state: &impl State) -> bool {
    let is_live = state.load(Ordering::Relaxed) == LIVE;
    if is_live {
        state.store(0, Ordering::Release);
    }
    is_live
}

/// Marks a block of another owner's slab as freed; `false` if its state is not exactly [`LIVE`].
#[inline(always)]
pub(crate) fn mark_remote(state: &impl State) -> bool {
    state.compare_exchange(LIVE, REMOTE).is_ok()
}

/// Undoes [`mark_remote`], for a thread that met a span that was filled anew.
#[cold]
pub(crate) fn unmark_remote(state: &impl State) {
    let _ = state.compare_exchange(REMOTE, LIVE);
}

/// Frees a block that was marked; `false` if it is not marked. The calling thread may put blocks
/// into the slab's bitmap or into its owner's bin.
#[inline(always)]
pub(crate) fn settle(state: &impl State) -> bool {
    let is_remote = state.load(Ordering::Acquire) == REMOTE;
    if is_remote {
        state.store(0, Ordering::Release);
    }
    is_remote
}

/// Replaces a state for which `new` returns one, and returns what it was. Exact for an exported
/// block, whose state no thread changes by a plain store; for others if no thread does meanwhile.
pub(crate) fn exchange(state: &impl State, new: impl Fn(u8) -> Option<u8>) -> Option<u8> {
    let mut old = state.load(Ordering::Acquire);
    loop {
        match state.compare_exchange(old, new(old)?) {
            Ok(old) => return Some(old),
            Err(now) => old = now,
        }
    }
}

/// Flags a live block as exported; `false` if it is not live. No thread changes the state by plain
/// stores meanwhile.
pub(crate) fn mark_exported(state: &impl State) -> bool {
    exchange(state, |old| (old & LIVE != 0).then_some(old | EXPORTED)).is_some()
}

/// Clears the state of a live block, and returns what it was. As [`exchange`].
pub(crate) fn clear(state: &impl State) -> Option<u8> {
    exchange(state, |old| (old & LIVE != 0).then_some(0))
}
