//! [`Block`]: memory that frees itself.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

use umf_core::pool::missing;
use umf_core::{Access, Address, Completion, CpuAccess, HostAccess, Plain, Transfer, View, Visibility};
use umf_ipc::{Export, Handle};

use crate::{Error, Pool, Result, exporter};

/// A block of a [`Pool`]. Dropping it frees it, and retires its handles first.
///
/// It borrows its pool, or owns a share of it: [`Pool::allocate_owned`] returns an [`OwnedBlock`],
/// which can be kept in any struct and sent to any thread. Fresh blocks hold what their memory held
/// before.
pub struct Block<'p> {
    pool: Share<'p>,
    address: Address,
    size: usize,
}

/// A block that keeps its pool alive.
pub type OwnedBlock = Block<'static>;

/// The pool of a block.
enum Share<'p> {
    Borrowed(&'p Pool),
    Owned(Pool),
}

impl<'p> Block<'p> {
    /// Takes over a live block of the pool.
    pub(crate) const fn new(pool: &'p Pool, address: Address, size: usize) -> Self {
        Self { pool: Share::Borrowed(pool), address, size }
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
    #[inline]
    pub const fn pool(&self) -> &Pool {
        match &self.pool {
            Share::Borrowed(pool) => pool,
            Share::Owned(pool) => pool,
        }
    }

    /// The same block, which keeps its pool alive from now on.
    #[must_use]
    pub fn into_owned(self) -> OwnedBlock {
        let (pool, size) = (self.pool().clone(), self.size);
        Block { pool: Share::Owned(pool), address: self.into_address(), size }
    }

    fn pointer(&self) -> Result<*mut u8> {
        let provider = self.pool().provider();
        self.address.as_ptr().filter(|_| provider.memory_kind().is_host_accessible()).ok_or(
            Error::Inaccessible(
                "this is device memory: the CPU cannot touch it; use the device's copy functions",
            ),
        )
    }

    /// Returns a view of the memory as elements of `T`: as many as there are whole ones. Other
    /// processes may read and write shared memory at the same time. While devices use it too, hold a
    /// [`Block::cpu_access`] meanwhile.
    ///
    /// # Errors
    /// [`Error::Inaccessible`] for device memory; [`Error::Memory`] with `BadAlignment` if the block is
    /// not aligned for `T`: see [`Pool::allocate_aligned`].
    ///
    /// # Examples
    /// ```
    /// let pool = umf::Pool::shared()?;
    /// let block = pool.allocate(4096)?;
    /// let samples = block.view::<f32>()?;
    /// samples.fill(0.5);
    /// samples.set(7, 2.0)?;
    /// assert_eq!(samples.iter().sum::<f32>(), 1023.0 * 0.5 + 2.0);
    /// # Ok::<(), umf::Error>(())
    /// ```
    pub fn view<T: Plain>(&self) -> Result<View<'_, T>> {
        let pointer = self.pointer()?;
        // SAFETY: the block is live and host-accessible until `self` is dropped, which the result borrows.
        Ok(unsafe { View::<u8>::new(pointer, self.size) }?.cast()?)
    }

    /// Copies `into.len()` bytes at `offset` out of the block: by the device, if the CPU must not touch the memory. Whoever has to
    /// know that the CPU touches it is told.
    ///
    /// # Errors
    /// [`Error::Ipc`] with `OutOfBounds` (nothing is copied then), [`Error::Memory`] if a driver refuses; [`Error::Inaccessible`]
    /// for memory that the CPU must not touch and whose provider does not copy.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        if let Some((transfer, from)) = self.by_device(offset, into.len())? {
            // SAFETY: a part of the block, which is live as long as `self`.
            return Ok(unsafe { transfer.read(from, into) }?);
        }
        let part = self.part(offset, into.len())?;
        self.touching(offset, into.len(), Access::ReadOnly, || part.copy_to(into))
    }

    /// Copies `from` to `offset` in the block.
    ///
    /// # Errors
    /// As [`Block::read`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        if let Some((transfer, to)) = self.by_device(offset, from.len())? {
            // SAFETY: a part of the block, which is live as long as `self`; device memory has no references into it.
            return Ok(unsafe { transfer.write(to, from) }?);
        }
        let part = self.part(offset, from.len())?;
        self.touching(offset, from.len(), Access::ReadWrite, || part.copy_from(from))
    }

    /// Copies within the time that the provider wants to hear of, if it does.
    fn touching<R>(
        &self,
        offset: usize,
        length: usize,
        access: Access,
        copy: impl FnOnce() -> R,
    ) -> Result<()> {
        let Some(ability) = self.host_access() else {
            copy();
            return Ok(());
        };
        let base = self.address.checked_add(offset as u64).unwrap_or(self.address);
        // SAFETY: a part of the block, which is live and accessible, as the caller has checked; no reference into it is made.
        let time = unsafe { CpuAccess::begin(Some(ability), base, length, access) }?;
        copy();
        Ok(time.end()?)
    }

    pub(crate) fn host_access(&self) -> Option<&dyn HostAccess> {
        self.pool().provider().host_access()
    }

    /// Who copies the block, and where `length` bytes at `offset` are, if it is not for the CPU to touch.
    fn by_device(&self, offset: usize, length: usize) -> Result<Option<(&dyn Transfer, Address)>> {
        let provider = self.pool().provider();
        if provider.memory_kind().is_host_accessible() {
            return Ok(None);
        }
        // Says what to do where nobody copies.
        let Some(transfer) = provider.transfer() else { return self.pointer().map(|_| None) };
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.size);
        let start = self.address.checked_add(offset as u64).filter(|_| is_inside);
        let start = start.ok_or(umf_ipc::Error::OutOfBounds { offset, length, size: self.size })?;
        Ok(Some((transfer, start)))
    }

    fn part(&self, offset: usize, length: usize) -> Result<View<'_>> {
        let end = offset.checked_add(length);
        let part = end.and_then(|end| self.view().map(|view| view.range(offset..end)).transpose());
        part.unwrap_or(Err(umf_ipc::Error::OutOfBounds { offset, length, size: self.size }.into()))
    }

    /// The memory as a plain slice, for memory that no other process can see.
    ///
    /// # Errors
    /// [`Error::Inaccessible`] for device memory, and for shared memory, which others may write at any time: use
    /// [`Block::view`].
    pub fn as_uninit_mut(&mut self) -> Result<&mut [MaybeUninit<u8>]> {
        if self.pool().provider().visibility() == Visibility::Shared {
            return Err(Error::Inaccessible(
                "this memory is shared with other processes, so there is no plain slice of it; use view(), read() or \
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
        Ok(unsafe { exporter()?.get_with_len(self.address, self.size) }?)
    }

    /// Exports the block until it is freed, and returns its handle: 256 plain bytes.
    ///
    /// # Errors
    /// As [`Block::export`].
    pub fn handle(&self) -> Result<Handle> {
        // SAFETY: a block whose memory can be exported is shared, and such a block gives out views and copies, no
        // references.
        Ok(unsafe { exporter()?.handle_with_len(self.address, self.size) }?)
    }

    /// Frees the block, which may still be in use until `completion` is ready: by work that was given to a device, for instance. Nobody
    /// waits. Its handles are retired at once; it is not handed out again before the completion is ready. See
    /// [`umf_core::DeferredFree::free_after`].
    ///
    /// # Errors
    /// [`Error::Memory`] with the block, which is as it was, if this kind of pool cannot.
    #[expect(clippy::result_large_err, reason = "the block comes back")]
    pub fn free_after(self, completion: Arc<dyn Completion>) -> Result<(), (Self, Error)> {
        let freed = match self.pool().as_core().deferred_free() {
            // SAFETY: the block is this object's own, nothing borrowed from it is left, and it is not freed again.
            Some(deferred) => unsafe { deferred.free_after(self.address, completion) },
            None => Err(missing("freeing with a completion")),
        };
        match freed {
            Ok(()) => {
                self.into_address();
                Ok(())
            }
            Err(error) => Err((self, error.into())),
        }
    }

    /// The block as memory that a [`crate::link::Link`] sends from and receives into without a copy too many, and hands over
    /// without any. Make it once and keep it.
    ///
    /// # Errors
    /// As [`Block::handle`] and [`Block::view`].
    #[cfg(feature = "link")]
    pub fn link_memory(&self) -> Result<umf_link::Memory<'_>> {
        let memory = umf_link::Memory::new(&self.handle()?, self.view()?)?;
        Ok(memory.with_host_access(self.host_access()))
    }

    /// Leaves the block allocated and returns its address; the pool's `free` takes it back.
    #[expect(clippy::must_use_candidate, reason = "also called to leave a block allocated")]
    pub fn into_address(self) -> Address {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the field is read once, and not dropped with the block.
        drop(unsafe { std::ptr::read(&raw const this.pool) });
        this.address
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // SAFETY: the block is this object's own, and nothing borrowed from it is left.
        if let Err(error) = unsafe { umf_core::pool::free(self.pool().as_core(), self.address) } {
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
