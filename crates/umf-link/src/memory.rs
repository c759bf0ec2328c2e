//! [`Memory`]: exported memory of a pool, which a peer can map; and parts of it.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::{HostAccess, View};
use umf_ipc::{HANDLE_SIZE, Handle};

use crate::{Error, Result};

/// Exported memory of this process with its handle. A peer can map it, so that messages from it or
/// into it need one copy, and blocks are handed over without a copy.
///
/// Create one value for each block and reuse it, because a link announces each value once.
pub struct Memory<'m> {
    handle: Handle,
    /// Unique in this process.
    id: u64,
    slice: View<'m>,
    /// The ability of its provider that brackets accesses by the CPU.
    host_access: Option<&'m dyn HostAccess>,
}

// SAFETY: other processes may write the memory at any time. It is only copied, so other threads
// change nothing.
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

impl<'m> Memory<'m> {
    /// Combines `slice` with the handle of its block. `slice` is the block or the beginning of it.
    /// With a wrong handle, peers access the memory of that handle.
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

    /// Sets the ability of the provider that brackets accesses by the CPU. A link uses it for each
    /// access to memory that devices use, too (a dma-buf).
    #[must_use]
    pub const fn with_host_access(mut self, ability: Option<&'m dyn HostAccess>) -> Self {
        self.host_access = ability;
        self
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Returns whether the size is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the memory, to send or to receive into.
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

    /// Returns the handle.
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

/// A part of [`Memory`], by [`Memory::part`].
#[derive(Clone, Copy, Debug)]
pub struct MemoryPart<'d> {
    pub(crate) memory: &'d Memory<'d>,
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
}

impl<'d> MemoryPart<'d> {
    fn new(memory: &'d Memory<'d>, offset: usize, length: usize) -> Result<Self> {
        let size = memory.len();
        if offset > size || length > size - offset {
            return Err(Error::OutOfBounds { offset, length, size });
        }
        Ok(Self { memory, base: memory.base().wrapping_add(offset), length })
    }

    /// Returns the memory, which other processes may write at any time.
    #[must_use]
    pub fn slice(&self) -> View<'d> {
        let offset = self.base.addr() - self.memory.base().addr();
        // `new` has checked the bounds.
        self.memory.slice().range(offset..offset + self.length).unwrap_or_else(View::empty)
    }
}
