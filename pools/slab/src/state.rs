//! One byte of state per block, out of band.
//!
//! Freeing takes the life of the block in this byte: of two that free it one succeeds, and it says whether the
//! block was exported, so that the observers are told before the block goes anywhere. Who may do that without
//! an atomic exchange is what `reach` is about.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

/// The block is handed out.
pub(crate) const LIVE: u8 = 1;
/// An export names the block.
pub(crate) const EXPORTED: u8 = 2;
/// The block was freed, and others have it open still: see `held`.
pub(crate) const HELD: u8 = 4;

/// A free block, as caches hold it: its address, and where its state lies, so that handing it out looks
/// nothing up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// [`umf_core::Address::to_bits`].
    pub(crate) address: u64,
    state: NonNull<AtomicU8>,
}

impl Entry {
    /// A free block at `address` whose state is `state`.
    #[inline]
    pub(crate) const fn new(address: u64, state: NonNull<AtomicU8>) -> Self {
        Self { address, state }
    }

    /// Where its state lies.
    pub(crate) const fn state(self) -> NonNull<AtomicU8> {
        self.state
    }

    /// Marks the block as handed out, and yields its address.
    ///
    /// # Safety
    /// The state lies in metadata of a pool that is alive, and the caller alone has this entry.
    #[inline]
    pub(crate) unsafe fn hand_out(self) -> u64 {
        // SAFETY: passed on to the caller.
        unsafe { self.state.as_ref() }.store(LIVE, Ordering::Release);
        self.address
    }
}

/// Flags a live block as exported; `false` if it is not live.
pub(crate) fn mark_exported(state: &AtomicU8) -> bool {
    let flag = |old: u8| (old & LIVE != 0).then_some(old | EXPORTED);
    state.fetch_update(Ordering::AcqRel, Ordering::Acquire, flag).is_ok()
}
