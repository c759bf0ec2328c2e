//! [`Mapping`]: a block of another process, open in this one.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use umf_core::{Access, Address, CpuAccess, HostAccess, Plain, ReadView, Transfer, View};
use umf_sync::{failpoint, thread};

use super::ImporterInner;
use super::region::ImportedRegion;
use crate::cache::{MemoValue, Pin};
use crate::lease::Lease;
use crate::{Error, Result, protocol};

/// A flag of [`OpenBlock`]: the CPU may touch the memory.
pub(super) const HOST_ACCESSIBLE: u64 = 1;
/// A flag of [`OpenBlock`]: writing is refused.
pub(super) const READ_ONLY: u64 = 2;

/// An open block: its address, its lease and the address of its generation. Pointers are into what
/// the pinned entry keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenBlock {
    /// `None` where leases are off.
    pub lease: Option<Lease>,
    pub base: Address,
    pub length: usize,
    pub generation: u64,
    /// The generation in the producer's ledger.
    pub word: NonNull<AtomicU64>,
    /// [`HOST_ACCESSIBLE`], [`READ_ONLY`]. One word, so that no padding is copied at each open.
    pub flags: u64,
    /// The region, if its importer brackets CPU accesses or copies for the CPU; otherwise `None`.
    pub access_region: Option<NonNull<ImportedRegion>>,
    /// The producer's, for messages.
    pub pid: u32,
    /// Of the ledger, for messages.
    pub slot: u32,
}

// SAFETY: it points to atomics, and to a region that any thread may look at.
unsafe impl MemoValue for OpenBlock {}

/// A block (or region) of another process, open in this one. Dropping it closes it; the region
/// stays mapped in the importer's cache until it is evicted.
///
/// The memory stays valid as long as the mapping exists, whatever the producer does: if it frees
/// the block, the bytes may change to something else (ask [`Mapping::is_current`]); if it dies,
/// they stay.
///
/// Another process may write the memory at any time, so there is no `&[u8]` of it: use
/// [`Mapping::read`], [`Mapping::write`], or the volatile slice with its copies, atomics and typed
/// access.
pub struct Mapping<'i> {
    importer: &'i ImporterInner,
    pin: Pin,
    block: OpenBlock,
}

// SAFETY: what it points to are atomics, and a region that any thread may look at, which stay as
// long as the pin, which any thread may give back.
unsafe impl Send for Mapping<'_> {}
// SAFETY: as above; a shared mapping yields volatile slices, whose accesses may race.
unsafe impl Sync for Mapping<'_> {}

impl<'i> Mapping<'i> {
    /// Takes over the pin and the lease `block.lease`.
    ///
    /// # Safety
    /// Pin and lease are the caller's; the entry's region has `block.base .. + block.length`,
    /// accessible as the flags say; `block.word` is the address of a generation in the ledger that
    /// the entry keeps mapped; `block.access_region` is the entry's value.
    #[inline]
    pub(super) const unsafe fn new(importer: &'i ImporterInner, pin: Pin, block: OpenBlock) -> Self {
        Self { importer, pin, block }
    }

    /// Where the block is in this process.
    #[must_use]
    pub const fn address(&self) -> Address {
        self.block.base
    }

    /// Its size in bytes, never 0: what the producer asked its pool for
    /// ([`crate::Handle::requested`]). If the exporter did not know that, what the pool set aside.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub const fn len(&self) -> usize {
        self.block.length
    }

    /// Whether writing is refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.block.flags & READ_ONLY != 0
    }

    /// Whether the CPU may touch the memory.
    #[must_use]
    pub const fn is_host_accessible(&self) -> bool {
        self.block.flags & HOST_ACCESSIBLE != 0
    }

    #[inline]
    pub(super) fn generation_now(&self) -> u64 {
        // SAFETY: by `new`'s contract the word is in a mapped ledger, which the pin keeps.
        let word = unsafe { self.block.word.as_ref() };
        word.load(Ordering::Acquire)
    }

    /// Whether the block has not been freed since the handle was made. One load.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.generation_now() == self.block.generation
    }

    /// [`Mapping::is_current`], ordered after the lease that was just counted.
    #[inline]
    pub(super) fn is_current_since_lease(&self) -> bool {
        // SAFETY: as in `generation_now`.
        protocol::is_current(unsafe { self.block.word.as_ref() }, self.block.generation)
    }

    fn check(&self) -> Result<()> {
        let now = self.generation_now();
        if now == self.block.generation {
            return Ok(());
        }
        let OpenBlock { pid, slot, generation, .. } = self.block;
        Err(Error::Stale { pid, slot, generation, now })
    }

    /// Uses the memory, and says whether the block was the same all the time: that closes the
    /// window between looking whether a mapping is current and using it. What `use_it` yields is
    /// kept from the caller if it was not.
    ///
    /// If the block was freed meanwhile, writes of `use_it` went into freed memory. This is
    /// harmless: the memory is not reused while the mapping is open.
    ///
    /// # Errors
    /// [`Error::Stale`] if the block was freed before or while `use_it` ran; those of
    /// [`Mapping::view`].
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(mapping: &umf_ipc::Mapping<'_>) -> umf_ipc::Result<()> {
    /// let first: Option<u8> = mapping.with(|memory| memory.get(0))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with<R>(&self, use_it: impl FnOnce(View<'_>) -> R) -> Result<R> {
        let memory = self.view()?;
        self.check()?;
        let result = self.with_cpu_access(0, self.len(), Access::ReadWrite, || use_it(memory))?;
        // What was read is older than the generation that is looked at now.
        fence(Ordering::Acquire);
        self.check()?;
        Ok(result)
    }

    /// As [`Mapping::read`], and says whether the block was the same all the time.
    ///
    /// # Errors
    /// [`Error::Stale`] if the block was freed before or meanwhile: then what `into` holds is worth
    /// nothing. Those of [`Mapping::read`].
    pub fn read_current(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check()?;
        self.read(offset, into)?;
        fence(Ordering::Acquire);
        self.check()
    }

    /// Returns a view of the memory as elements of `T`: as many as there are whole ones. Other
    /// processes may read and write the memory at the same time. While devices use it too, hold a
    /// [`Mapping::cpu_access`] meanwhile.
    ///
    /// # Errors
    /// [`Error::NotHostAccessible`]; [`Error::ReadOnly`]: use [`Mapping::read_view`];
    /// [`Error::Memory`] with `BadAlignment` if the block is not aligned for `T`.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(mapping: &umf_ipc::Mapping<'_>) -> umf_ipc::Result<()> {
    /// let samples = mapping.view::<f32>()?;
    /// samples.set(0, 0.5)?;
    /// let sum: f32 = samples.iter().sum();
    /// # Ok(())
    /// # }
    /// ```
    pub fn view<T: Plain>(&self) -> Result<View<'_, T>> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        // SAFETY: by `new`'s contract the range is mapped and may be written as long as the pin
        // lasts, which is as long as `self`.
        let bytes = unsafe { View::<u8>::new(self.pointer()?, self.block.length) }?;
        Ok(bytes.cast()?)
    }

    /// As [`Mapping::view`], to read only; of read-only mappings too.
    ///
    /// # Errors
    /// As [`Mapping::view`], except [`Error::ReadOnly`].
    pub fn read_view<T: Plain>(&self) -> Result<ReadView<'_, T>> {
        // SAFETY: as in `view`, for reading.
        let bytes = unsafe { ReadView::<u8>::new(self.pointer()?, self.block.length) }?;
        Ok(bytes.cast()?)
    }

    fn pointer(&self) -> Result<*mut u8> {
        let pointer = self.block.base.as_ptr().filter(|_| self.is_host_accessible());
        pointer.ok_or(Error::NotHostAccessible)
    }

    /// The end of a range, if it is inside.
    fn end_of(&self, offset: usize, length: usize) -> Result<usize> {
        let out_of_bounds = Error::OutOfBounds { offset, length, size: self.block.length };
        offset.checked_add(length).filter(|&end| end <= self.block.length).ok_or(out_of_bounds)
    }

    /// Begins to touch the memory, for more than one copy or by pointers, while devices may use it
    /// too. (One [`Mapping::read`] or [`Mapping::write`] needs no such thing.) For memory that no
    /// device uses it costs nothing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NotHostAccessible`], [`Error::Memory`] if the driver refuses.
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        if self.is_read_only() && access == Access::ReadWrite {
            return Err(Error::ReadOnly);
        }
        self.pointer()?;
        // SAFETY: the memory is open as long as the mapping is borrowed, may be touched as asked,
        // and shows itself as volatile memory alone.
        Ok(unsafe { CpuAccess::begin(self.host_access(), self.block.base, self.block.length, access) }?)
    }

    fn region(&self) -> Option<&ImportedRegion> {
        // SAFETY: by `new`'s contract it is the value of the entry, which the pin keeps and which
        // does not change.
        self.block.access_region.map(|region| unsafe { region.as_ref() })
    }

    fn host_access(&self) -> Option<&dyn HostAccess> {
        self.region()?.import.host_access()
    }

    /// Returns the copy engine and the address of `length` bytes at `offset`, if the CPU cannot
    /// access the memory.
    fn device_copy(&self, offset: usize, length: usize) -> Result<Option<(&dyn Transfer, Address)>> {
        if self.is_host_accessible() {
            return Ok(None);
        }
        let transfer = self.region().and_then(|region| region.import.transfer());
        let transfer = transfer.ok_or(Error::NotHostAccessible)?;
        self.end_of(offset, length)?;
        Ok(Some((transfer, self.block.base.checked_add(offset as u64).unwrap_or(self.block.base))))
    }

    /// Runs `it` inside of a CPU access, if the kind of memory needs such brackets.
    fn with_cpu_access<R>(
        &self,
        offset: usize,
        length: usize,
        access: Access,
        it: impl FnOnce() -> R,
    ) -> Result<R> {
        let Some(ability) = self.host_access() else { return Ok(it()) };
        let base = self.block.base.checked_add(offset as u64).unwrap_or(self.block.base);
        // SAFETY: a part of the mapping, as the callers have checked, as in `cpu_access`.
        let time = unsafe { CpuAccess::begin(Some(ability), base, length, access) }?;
        let done = it();
        time.end()?;
        Ok(done)
    }

    /// Copies `into.len()` bytes at `offset` out of the block. The device copies if the CPU cannot
    /// access the memory. Otherwise the CPU access is bracketed with [`HostAccess`], if the kind of
    /// memory needs it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]: nothing is copied. [`Error::Memory`] if a driver refuses.
    /// [`Error::NotHostAccessible`] if the CPU cannot access the memory and its importer cannot
    /// copy it.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        if let Some((transfer, from)) = self.device_copy(offset, into.len())? {
            // SAFETY: a part of the mapping, which is open as long as `self`.
            return Ok(unsafe { transfer.read(from, into) }?);
        }
        let end = self.end_of(offset, into.len())?;
        let part = self.read_view()?.range(offset..end).unwrap_or_else(ReadView::empty);
        self.with_cpu_access(offset, into.len(), Access::ReadOnly, || part.copy_to(into))?;
        Ok(())
    }

    /// Copies `from` to `offset` in the block. The device copies if the CPU cannot access the
    /// memory. Otherwise the CPU access is bracketed with [`HostAccess`], if the kind of memory
    /// needs it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], and those of [`Mapping::read`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if let Some((transfer, to)) = self.device_copy(offset, from.len())? {
            // SAFETY: a part of the mapping, which is open as long as `self`; device memory has no
            // references into it.
            return Ok(unsafe { transfer.write(to, from) }?);
        }
        let end = self.end_of(offset, from.len())?;
        let part = self.view()?.range(offset..end).unwrap_or_else(View::empty);
        if from.is_empty() {
            return Ok(());
        }
        self.with_cpu_access(offset, from.len(), Access::ReadWrite, || part.copy_from(from))?;
        Ok(())
    }
}

impl Drop for Mapping<'_> {
    #[inline]
    fn drop(&mut self) {
        failpoint!("lease.closing");
        if let Some(lease) = self.block.lease {
            // SAFETY: by `new`'s contract the lease is this mapping's; the pin keeps the importer's
            // rows.
            unsafe { lease.release() };
        }
        self.importer.pins().give_back(self.pin, thread::current());
        failpoint!("lease.given_back");
    }
}

impl fmt::Debug for Mapping<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("address", &self.block.base)
            .field("length", &self.block.length)
            .field("current", &self.is_current())
            .field("read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}
