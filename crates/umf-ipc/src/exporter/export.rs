//! [`Export`]: a handle that is kept from being evicted.

use core::fmt;
use core::ops::Deref;

use umf_core::Address;

use super::state::State;
use crate::cache::Pin;
use crate::handle::Handle;

/// An export in use. Dropping it gives the use back (what other libraries call "put"); the handle's bytes may
/// be copied out and outlive it.
pub struct Export<'e> {
    state: &'e State,
    /// Where the block begins.
    address: Address,
    handle: Handle,
    pin: Pin,
}

// SAFETY: its pin points to atomics that stay as long as the state, and any thread may give it back.
unsafe impl Send for Export<'_> {}
// SAFETY: as above; nothing of it changes while it is shared.
unsafe impl Sync for Export<'_> {}

impl<'e> Export<'e> {
    /// Takes over a pin on the handle's region.
    #[inline]
    pub(super) const fn new(state: &'e State, address: Address, handle: Handle, pin: Pin) -> Self {
        Self { state, address, handle, pin }
    }

    /// The handle.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Leaves the export in use until its block is freed, and returns the handle.
    #[must_use]
    pub fn keep(self) -> Handle {
        let handle = self.handle;
        // If the block is gone already there is nothing to keep, and dropping `self` gives the use back.
        if self.state.keep(self.address, &handle) {
            core::mem::forget(self);
        }
        handle
    }
}

impl Deref for Export<'_> {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Export<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.put(self.pin);
    }
}

impl fmt::Debug for Export<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Export").field(&self.handle).finish()
    }
}
