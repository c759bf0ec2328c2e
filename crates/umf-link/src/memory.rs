//! [`Memory`]: memory of a pool that a peer may map.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::{HostAccess, View};
use umf_ipc::{HANDLE_SIZE, Handle};

use crate::key::RemoteAccess;
use crate::parts::{List, Portion};
use crate::{Error, Result};

/// Exported memory of this process, and its handle: what is sent from it or received into it can be mapped by the peer, and
/// handed over without a copy.
///
/// Make it once for each block and keep it: a link remembers which it has told the peer of.
pub struct Memory<'m> {
    handle: Handle,
    /// Differs for each that this process ever made.
    id: u64,
    slice: View<'m>,
    /// Who is told when the CPU touches it.
    host_access: Option<&'m dyn HostAccess>,
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
    pub fn new(handle: &Handle, slice: View<'m>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let size = usize::try_from(handle.length()).unwrap_or(0);
        if slice.len() > size {
            return Err(Error::OutOfBounds { offset: 0, length: slice.len(), size });
        }
        Ok(Self { handle: *handle, id: NEXT.fetch_add(1, Ordering::Relaxed), slice, host_access: None })
    }

    /// Who is told each time that a link touches it in this process: its provider's ability, for memory that devices use, too (a
    /// dma-buf).
    #[must_use]
    pub const fn with_host_access(mut self, ability: Option<&'m dyn HostAccess>) -> Self {
        self.host_access = ability;
        self
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
    pub fn slice(&self) -> View<'m> {
        self.slice
    }

    /// Its handle.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) const fn host_access(&self) -> Option<&'m dyn HostAccess> {
        self.host_access
    }

    /// Whether who opens its handle can do just this with just the bytes of `list`: it has a file of its own, which holds nothing
    /// else, and the kernel refuses what is not allowed.
    pub(crate) fn is_confined(&self, list: &List<'_>, access: RemoteAccess) -> bool {
        let handle = &self.handle;
        let is_all_of_its_file =
            handle.is_isolated() && handle.offset() == 0 && handle.length() == handle.region_size();
        let is_all_of_it = list.parts().len() == 1 && list.len() == self.len();
        let is_as_allowed = match access {
            RemoteAccess::Get => handle.is_read_only(),
            // Whoever maps memory for writing can read it.
            RemoteAccess::Put => false,
            RemoteAccess::GetPut => !handle.is_read_only(),
        };
        is_all_of_its_file && is_all_of_it && is_as_allowed
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
