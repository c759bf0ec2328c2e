//! [`Memory`]: memory of a pool that a peer may map.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_ipc::{HANDLE_SIZE, Handle};
use vm_memory::VolatileSlice;

use crate::parts::Portion;
use crate::{Error, Result};

/// Exported memory of this process, and its handle: what is sent from it or received into it can be mapped by the peer, and
/// handed over without a copy.
///
/// Make it once for each block and keep it: a link remembers which it has told the peer of.
pub struct Memory<'m> {
    handle: Handle,
    /// Differs for each that this process ever made.
    id: u64,
    slice: VolatileSlice<'m>,
}

// SAFETY: memory that several processes may write is no more when several threads do; what is done here is copying.
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

impl<'m> Memory<'m> {
    /// `slice` is the beginning (or all) of what `handle` names, in this process. Another handle makes peers see other
    /// memory, which harms nobody.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the handle's block is smaller.
    pub fn new(handle: &Handle, slice: VolatileSlice<'m>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let size = usize::try_from(handle.length()).unwrap_or(0);
        if slice.len() > size {
            return Err(Error::OutOfBounds { offset: 0, length: slice.len(), size });
        }
        Ok(Self { handle: *handle, id: NEXT.fetch_add(1, Ordering::Relaxed), slice })
    }

    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of it, to send or to receive into.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn part(&self, offset: usize, length: usize) -> Result<Portion<'_>> {
        Portion::new(self, offset, length)
    }

    /// The memory, which other processes may write at any time.
    #[must_use]
    pub fn slice(&self) -> VolatileSlice<'m> {
        self.slice
    }

    /// Its handle.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.slice.ptr_guard_mut().as_ptr()
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
