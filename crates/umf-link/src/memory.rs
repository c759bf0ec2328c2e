//! [`Memory`]: memory of a pool that a peer may map.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::{HostAccess, View};
use umf_ipc::{HANDLE_SIZE, Handle};

use crate::parts::MemoryPart;
use crate::{Error, Result};

/// Exported memory of this process, and its handle: what is sent from it or received into it can be
/// mapped by the peer, and handed over without a copy.
///
/// Make it once for each block and keep it: a link announces each of these once.
pub struct Memory<'m> {
    handle: Handle,
    /// Unique in this process.
    id: u64,
    slice: View<'m>,
    /// The ability of its provider that brackets accesses by the CPU.
    host_access: Option<&'m dyn HostAccess>,
}

// SAFETY: other processes may write the memory at any time, so other threads change nothing; it is
// only copied.
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

impl<'m> Memory<'m> {
    /// Pairs `slice`, which is the beginning (or all) of what `handle` names, with that handle.
    /// With another handle, peers see other memory; nothing worse happens.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the handle's block is smaller.
    pub fn new(handle: &Handle, slice: View<'m>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let size = usize::try_from(handle.length()).unwrap_or(0);
        if slice.len() > size {
            return Err(Error::OutOfBounds { offset: 0, length: slice.len(), size });
        }
        Ok(Self { handle: *handle, id: NEXT.fetch_add(1, Ordering::Relaxed), slice, host_access: None })
    }

    /// Sets the ability of its provider that brackets each access of a link in this process, for
    /// memory that devices use, too (a dma-buf).
    #[must_use]
    pub const fn with_host_access(mut self, ability: Option<&'m dyn HostAccess>) -> Self {
        self.host_access = ability;
        self
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Returns whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of it, to send or to receive into.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn part(&self, offset: usize, length: usize) -> Result<MemoryPart<'_>> {
        MemoryPart::new(self, offset, length)
    }

    /// Returns the memory, which other processes may write at any time.
    #[must_use]
    pub fn slice(&self) -> View<'m> {
        self.slice
    }

    /// Returns its handle.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) const fn host_access(&self) -> Option<&'m dyn HostAccess> {
        self.host_access
    }

    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.slice.as_mut_ptr()
    }

    #[inline]
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn bytes(&self) -> &[u8; HANDLE_SIZE] {
        self.handle.as_bytes()
    }
}

impl fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).field("handle", &self.handle).finish()
    }
}
