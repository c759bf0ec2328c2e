//! [`Block`]: memory that frees itself.

use std::fmt;
use std::mem::MaybeUninit;

use umf_core::{Address, Visibility};
use umf_ipc::{Export, Handle, VolatileSlice};

use crate::{Error, Pool, Result, exporter};

/// A block of a [`Pool`]. Dropping it frees it, and retires its handles first.
///
/// Fresh blocks hold whatever their memory held before.
pub struct Block<'p> {
    pool: &'p Pool,
    address: Address,
    size: usize,
}

impl<'p> Block<'p> {
    /// Takes over a live block of the pool.
    pub(crate) const fn new(pool: &'p Pool, address: Address, size: usize) -> Self {
        Self { pool, address, size }
    }

    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> Address {
        self.address
    }

    /// The size that was asked for, in bytes; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub const fn len(&self) -> usize {
        self.size
    }

    /// The pool that it came from.
    #[must_use]
    pub const fn pool(&self) -> &'p Pool {
        self.pool
    }

    fn pointer(&self) -> Result<*mut u8> {
        let provider = self.pool.provider();
        self.address.as_ptr().filter(|_| provider.memory_kind().is_host_accessible()).ok_or(
            Error::Inaccessible(
                "this is device memory: the CPU cannot touch it; use the device's copy functions",
            ),
        )
    }

    /// The memory as a volatile slice, which may be used while other processes write it.
    ///
    /// # Errors
    /// [`Error::Inaccessible`] for device memory.
    pub fn memory(&self) -> Result<VolatileSlice<'_>> {
        let pointer = self.pointer()?;
        // SAFETY: the block is live and host-accessible until `self` is dropped, which the result borrows.
        Ok(unsafe { VolatileSlice::new(pointer, self.size) })
    }

    /// Copies `into.len()` bytes at `offset` out of the block.
    ///
    /// # Errors
    /// [`Error::Ipc`] with `OutOfBounds` (nothing is copied then), [`Error::Inaccessible`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.part(offset, into.len())?.copy_to(into);
        Ok(())
    }

    /// Copies `from` to `offset` in the block.
    ///
    /// # Errors
    /// As [`Block::read`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.part(offset, from.len())?.copy_from(from);
        Ok(())
    }

    fn part(&self, offset: usize, length: usize) -> Result<VolatileSlice<'_>> {
        let out_of_bounds = umf_ipc::Error::OutOfBounds { offset, length, size: self.size };
        Ok(self.memory()?.subslice(offset, length).map_err(|_| out_of_bounds)?)
    }

    /// The memory as a plain slice, for memory that no other process can see.
    ///
    /// # Errors
    /// [`Error::Inaccessible`] for device memory, and for shared memory, which others may write at any time: use
    /// [`Block::memory`].
    pub fn as_uninit_mut(&mut self) -> Result<&mut [MaybeUninit<u8>]> {
        if self.pool.provider().visibility() == Visibility::Shared {
            return Err(Error::Inaccessible(
                "this memory is shared with other processes, so there is no plain slice of it; use memory(), read() or \
                 write()",
            ));
        }
        let pointer = self.pointer()?;
        // SAFETY: the block is live, private to this process and borrowed mutably; MaybeUninit needs no content.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), self.size) })
    }

    /// Exports the block until the guard is dropped; the handle's bytes stay valid as long as the block lives and
    /// its export is cached.
    ///
    /// # Errors
    /// [`Error::Ipc`]: memory that cannot be exported, limits.
    pub fn export(&self) -> Result<Export<'static>> {
        // SAFETY: as in `handle`.
        Ok(unsafe { exporter()?.get(self.address) }?)
    }

    /// Exports the block until it is freed, and returns its handle: 256 plain bytes.
    ///
    /// # Errors
    /// As [`Block::export`].
    pub fn handle(&self) -> Result<Handle> {
        // SAFETY: a block whose memory can be exported is shared, and such a block gives out volatile slices and copies, no
        // references.
        Ok(unsafe { exporter()?.handle(self.address) }?)
    }

    /// The block as memory that a [`crate::link::Link`] sends from and receives into without a copy too many, and hands over
    /// without any. Make it once and keep it.
    ///
    /// # Errors
    /// As [`Block::handle`] and [`Block::memory`].
    pub fn linked(&self) -> Result<umf_link::Memory<'_>> {
        Ok(umf_link::Memory::new(&self.handle()?, self.memory()?)?)
    }

    /// Leaves the block allocated and returns its address; the pool's `free` takes it back.
    #[must_use]
    pub fn into_address(self) -> Address {
        let address = self.address;
        std::mem::forget(self);
        address
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // SAFETY: the block is this object's own, and nothing borrowed from it is left.
        if let Err(error) = unsafe { self.pool.as_core().free(self.address) } {
            // Only somebody who freed the address by hand can have brought this about.
            tracing::error!(address = %self.address, %error, "a block could not be freed");
        }
    }
}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block of {} bytes at {}", self.size, self.address)
    }
}
