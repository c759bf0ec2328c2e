//! [`Block`]: an allocation of a pool that frees itself; and bracketed CPU access to blocks and mappings.

use std::fmt;
use std::mem::MaybeUninit;
use std::num::NonZeroU16;
use std::sync::Arc;

use umf_core::pool::missing;
use umf_core::{Access, Address, Completion, CpuAccess, HostAccess, Plain, Transfer, View, Visibility};
use umf_ipc::{Export, Handle, Mapping};

use crate::{Error, Pool, Result, exporter};

/// A block of a [`Pool`]. Dropping a block retires its handles and frees it.
///
/// A block borrows its pool, or owns a share of it: [`Pool::allocate_owned`] returns an
/// [`OwnedBlock`], which can be stored in any struct and sent to any thread. The content of a new
/// block is undefined.
pub struct Block<'p> {
    pool: BlockPool<'p>,
    address: Address,
    size: usize,
}

/// A block that keeps its pool alive.
pub type OwnedBlock = Block<'static>;

const NOT_HOST_ACCESSIBLE: Error = Error::Inaccessible(
    "cannot access this block from the CPU: it is device memory; copy it with the device's functions",
);

/// What copies bytes of a block.
enum Copier<'b> {
    /// The CPU, and how the provider is notified.
    Cpu(View<'b, u8>, Option<&'b dyn HostAccess>),
    /// The device, from or to this address.
    Device(&'b dyn Transfer, Address),
}

/// Runs `copy` between the begin and end notices that the provider requires, if it does.
fn with_cpu_access<R>(
    host_access: Option<&dyn HostAccess>,
    part: View<'_, u8>,
    access: Access,
    copy: impl FnOnce() -> R,
) -> Result<()> {
    let Some(host_access) = host_access else {
        copy();
        return Ok(());
    };
    let base = Address::from_ptr(part.as_mut_ptr());
    // SAFETY: the view's range is host-accessible and live, and `copy` makes no references into it.
    let bracket = unsafe { CpuAccess::begin(Some(host_access), base, part.len(), access) }?;
    copy();
    Ok(bracket.end()?)
}

/// The pool of a block.
enum BlockPool<'p> {
    Borrowed(&'p Pool),
    Owned(Pool),
}

impl<'p> Block<'p> {
    /// Takes ownership of a live allocation of the pool.
    pub(crate) const fn new(pool: &'p Pool, address: Address, size: usize) -> Self {
        Self { pool: BlockPool::Borrowed(pool), address, size }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn address(&self) -> Address {
        self.address
    }

    /// Returns the requested size in bytes, which is never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub const fn len(&self) -> usize {
        self.size
    }

    /// Returns the pool of the block.
    #[must_use]
    #[inline]
    pub const fn pool(&self) -> &Pool {
        match &self.pool {
            BlockPool::Borrowed(pool) => pool,
            BlockPool::Owned(pool) => pool,
        }
    }

    /// Converts to a block that keeps its pool alive.
    #[must_use]
    pub fn into_owned(self) -> OwnedBlock {
        let (pool, size) = (self.pool().clone(), self.size);
        Block { pool: BlockPool::Owned(pool), address: self.into_address(), size }
    }

    fn pointer(&self) -> Result<*mut u8> {
        let provider = self.pool().provider();
        let pointer = self.address.as_ptr().filter(|_| provider.memory_kind().is_host_accessible());
        pointer.ok_or(NOT_HOST_ACCESSIBLE)
    }

    /// Returns a view of the memory as elements of `T`: as many as fit completely. Other processes
    /// may read and write shared memory at the same time. If devices use the memory too, hold a
    /// [`Block::cpu_access`] during the use of the view.
    ///
    /// # Errors
    /// [`Error::Inaccessible`] for device memory; [`Error::Memory`] with `BadAlignment` if the
    /// block is not aligned for `T`: see [`Pool::allocate_aligned`].
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
        // SAFETY: the block is live and host-accessible until `self` is dropped, which the result
        // borrows.
        Ok(unsafe { View::<u8>::new(pointer, self.size) }?.cast()?)
    }

    /// Copies `into.len()` bytes at `offset` out of the block. The device copies if the memory is
    /// not host-accessible. A copy by the CPU is bracketed as [`Block::cpu_access`] does.
    ///
    /// # Errors
    /// - [`Error::Ipc`] with `OutOfBounds`: nothing is copied.
    /// - [`Error::Memory`]: the driver's error.
    /// - [`Error::Inaccessible`]: the memory is not host-accessible and its provider cannot copy.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        match self.copier(offset, into.len())? {
            // SAFETY: the range lies in the block, which is live as long as `self`.
            Copier::Device(transfer, from) => Ok(unsafe { transfer.read(from, into) }?),
            Copier::Cpu(part, host_access) => {
                with_cpu_access(host_access, part, Access::ReadOnly, || part.copy_to(into))
            }
        }
    }

    /// Copies `from` to `offset` in the block.
    ///
    /// # Errors
    /// As [`Block::read`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        match self.copier(offset, from.len())? {
            // SAFETY: the range lies in the block, which is live as long as `self`; there are no
            // references into device memory.
            Copier::Device(transfer, to) => Ok(unsafe { transfer.write(to, from) }?),
            Copier::Cpu(part, host_access) => {
                with_cpu_access(host_access, part, Access::ReadWrite, || part.copy_from(from))
            }
        }
    }

    pub(crate) fn host_access(&self) -> Option<&dyn HostAccess> {
        self.pool().provider().host_access()
    }

    /// Returns what copies `length` bytes at `offset`. Asks the provider each question once, because
    /// small copies cost as much as a question.
    fn copier(&self, offset: usize, length: usize) -> Result<Copier<'_>> {
        let is_in_bounds = offset.checked_add(length).is_some_and(|end| end <= self.size);
        let start = self.address.checked_add(offset as u64).filter(|_| is_in_bounds);
        let start = start.ok_or(umf_ipc::Error::OutOfBounds { offset, length, size: self.size })?;
        let provider = self.pool().provider();
        let is_host_accessible = provider.memory_kind().is_host_accessible();
        if let Some(pointer) = start.as_ptr().filter(|_| is_host_accessible) {
            // SAFETY: the range lies in the block, which is live and host-accessible until `self` is
            // dropped, which the result borrows.
            return Ok(Copier::Cpu(unsafe { View::new(pointer, length) }?, provider.host_access()));
        }
        provider.transfer().map(|transfer| Copier::Device(transfer, start)).ok_or(NOT_HOST_ACCESSIBLE)
    }

    /// Returns private memory as a slice.
    ///
    /// # Errors
    /// [`Error::Inaccessible`] for device memory, and for shared memory, which other processes may
    /// write at any time: use [`Block::view`].
    pub fn as_uninit_mut(&mut self) -> Result<&mut [MaybeUninit<u8>]> {
        if self.pool().provider().visibility() == Visibility::Shared {
            return Err(Error::Inaccessible(
                "cannot borrow this block as a slice: its memory is shared, and other processes may write it; use \
                 view(), read() or write()",
            ));
        }
        let pointer = self.pointer()?;
        // SAFETY: the block is live, private to this process and mutably borrowed. `MaybeUninit`
        // allows any content.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), self.size) })
    }

    /// Exports the block until the guard is dropped. The handle stays valid as long as the block is
    /// live and its export is cached.
    ///
    /// # Errors
    /// [`Error::Ipc`]: memory that cannot be exported, limits.
    pub fn export(&self) -> Result<Export<'static>> {
        // SAFETY: only shared memory can be exported. A shared block gives out views and copies, no
        // references.
        Ok(unsafe { exporter()?.get_with_len(self.address, self.size) }?)
    }

    /// Exports the block until it is freed, and returns its handle: 256 plain bytes.
    ///
    /// # Errors
    /// As [`Block::export`].
    pub fn handle(&self) -> Result<Handle> {
        // SAFETY: only shared memory can be exported. A shared block gives out views and copies, no
        // references.
        Ok(unsafe { exporter()?.handle_with_len(self.address, self.size) }?)
    }

    /// Returns a handle for a message that one process opens. The memory is kept until it has, even
    /// if this block is freed before: use it where [`Block::handle`] would be stale. See
    /// [`Block::send_handle_to`].
    ///
    /// # Errors
    /// As [`Block::send_handle_to`].
    ///
    /// # Examples
    /// ```
    /// let pool = umf::Pool::shared()?;
    /// let block = pool.allocate(1 << 20)?;
    /// block.write(0, b"result")?;
    /// let message = block.send_handle()?;
    /// drop(block);
    /// // In any process:
    /// let mapping = umf::open(&message)?;
    /// let mut bytes = [0; 6];
    /// mapping.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"result");
    /// # Ok::<(), umf::Error>(())
    /// ```
    pub fn send_handle(&self) -> Result<Handle> {
        self.send_handle_to(NonZeroU16::MIN)
    }

    /// Returns a handle for a message that `readers` openers read. The memory is kept until all of
    /// them have opened it, this process cancels it ([`cancel_handle`](crate::cancel_handle)) or ends. It counts
    /// as held ([`crate::drain`]) once the block is freed. An opener that is one too many gets
    /// [`umf_ipc::Error::TicketClaimed`] if the block was freed. What was received is passed on by
    /// [`Mapping::send_handle`].
    ///
    /// # Errors
    /// As [`Block::export`]; those of the lease table; [`umf_ipc::Error::TransitFull`]; a limit of
    /// 524,288 handles in transit.
    pub fn send_handle_to(&self, readers: NonZeroU16) -> Result<Handle> {
        let exporter = exporter()?;
        // SAFETY: only shared memory can be exported. A shared block gives out views and copies, no
        // references. The block is borrowed, so that it is not freed meanwhile.
        let send = || unsafe { exporter.send_handle(self.address, self.size, readers) };
        Ok(match send() {
            // What this process has passed on may have been read.
            Err(umf_ipc::Error::TransitFull { .. }) => {
                crate::handles_in_transit()?;
                send()?
            }
            sent => sent?,
        })
    }

    /// Frees the block once `completion` is ready, for example when a device has finished its work.
    /// Does not block. The handles are retired at once; the memory is not reused before the
    /// completion is ready. See [`umf_core::DeferredFree::free_after`].
    ///
    /// # Errors
    /// [`Error::Memory`] with the unchanged block if this kind of pool does not support it.
    #[expect(clippy::result_large_err, reason = "the block comes back")]
    pub fn free_after(self, completion: Arc<dyn Completion>) -> Result<(), (Self, Error)> {
        let freed = match self.pool().as_core().deferred_free() {
            // SAFETY: `self` owns the block, no borrow of it is left, and on success it is not
            // freed again.
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

    /// Returns the block as registered memory of a [`crate::link::Link`]: messages are sent from it
    /// and received into it with one copy, and handed over with none. Make it once and reuse it.
    ///
    /// # Errors
    /// As [`Block::handle`] and [`Block::view`].
    #[cfg(feature = "link")]
    pub fn link_memory(&self) -> Result<umf_link::Memory<'_>> {
        let memory = umf_link::Memory::new(&self.handle()?, self.view()?)?;
        Ok(memory.with_host_access(self.host_access()))
    }

    /// Returns a handle of the block for processes of other machines: see [`crate::remote`].
    ///
    /// # Errors
    /// [`crate::remote::Error::NotServing`] if this process does not serve; as [`Block::handle`].
    #[cfg(feature = "remote")]
    pub fn remote_handle(&self) -> Result<crate::remote::RemoteHandle> {
        crate::remote::remote_handle(&self.handle()?)
    }

    /// Returns the address and leaves the block allocated, until it is freed by the pool's `free`.
    #[expect(clippy::must_use_candidate, reason = "also called to leave a block allocated")]
    pub fn into_address(self) -> Address {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the field is read once, and `ManuallyDrop` keeps it from being dropped a second
        // time.
        drop(unsafe { std::ptr::read(&raw const this.pool) });
        this.address
    }
}

impl Block<'_> {
    /// Begins an access of the CPU to memory that devices may use too, and returns its guard. For
    /// use around several copies, or around accesses through a view. [`Block::read`] and
    /// [`Block::write`] bracket themselves. Costs nothing for memory that no device uses.
    ///
    /// # Errors
    /// [`Error::Memory`]: the driver's error. [`Error::Inaccessible`] for device memory.
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        self.view::<u8>()?;
        // SAFETY: the block is live while borrowed, and `view` has checked that it is
        // host-accessible. References into it need a mutable borrow of the block.
        Ok(unsafe { CpuAccess::begin(self.host_access(), self.address(), self.len(), access) }?)
    }
}

/// Begins an access of the CPU to an opened handle, as [`Block::cpu_access`] does for a block.
///
/// # Errors
/// As [`Block::cpu_access`]; for [`Access::ReadWrite`] also if the mapping is read-only.
pub fn cpu_access<'a>(mapping: &'a Mapping<'_>, access: Access) -> Result<CpuAccess<'a>> {
    Ok(mapping.cpu_access(access)?)
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // SAFETY: `self` owns the block, and no borrow of it is left.
        if let Err(error) = unsafe { umf_core::pool::free(self.pool().as_core(), self.address) } {
            // The program has freed the address itself, or the provider failed.
            tracing::error!(address = %self.address, %error, "cannot free a block");
        }
    }
}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block of {} bytes at {}", self.size, self.address)
    }
}
