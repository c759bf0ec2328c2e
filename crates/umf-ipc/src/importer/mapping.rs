//! [`Mapping`]: a block of another process, open in this one.

use core::fmt;
use core::num::NonZeroU16;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;

use umf_core::{Access, Address, CpuAccess, HostAccess, Plain, ReadView, Transfer, View};
use umf_sync::{failpoint, thread};

use super::region::ImportedRegion;
use super::{ImporterInner, producer};
use crate::cache::{MemoValue, Pin};
use crate::handle::Handle;
use crate::lease::Lease;
use crate::{Error, Result, protocol};

/// A flag of [`OpenBlock`]: the CPU can access the memory.
pub(super) const HOST_ACCESSIBLE: u64 = 1;
/// A flag of [`OpenBlock`]: writing is refused.
pub(super) const READ_ONLY: u64 = 2;
/// A flag of [`OpenBlock`]: the kind of memory brackets CPU accesses, or copies for the CPU.
pub(super) const BRACKETS_ACCESS: u64 = 4;
/// A flag of [`OpenBlock`]: this open has claimed the ticket of its handle.
const CLAIMED: u64 = 8;

/// An open block: its address, its lease and the address of its generation. The pinned entry keeps
/// the pointers valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenBlock {
    /// `None` if leases are disabled.
    pub lease: Option<Lease>,
    pub base: Address,
    pub length: usize,
    pub generation: u64,
    /// The slot's generation in the producer's ledger.
    pub word: NonNull<AtomicU64>,
    /// [`HOST_ACCESSIBLE`], [`READ_ONLY`], [`BRACKETS_ACCESS`], [`CLAIMED`]. A whole word, so that
    /// an open copies no padding.
    pub flags: u64,
    /// The region.
    pub region: NonNull<ImportedRegion>,
}

// SAFETY: it points to atomics, and to a region, which any thread may read.
unsafe impl MemoValue for OpenBlock {}

/// A block or region of another process, open in this one. Dropping it closes it. The importer's
/// cache keeps the region mapped until it is evicted.
///
/// The memory stays valid as long as the mapping exists, even if the producer frees the block or
/// ends. [`Mapping::is_current`] returns whether the block was freed. If leases are disabled, the
/// contents may change after that.
///
/// Another process may write the memory at any time, so there is no `&[u8]` of it. Use
/// [`Mapping::read`], [`Mapping::write`] or [`Mapping::view`].
pub struct Mapping<'i> {
    importer: &'i ImporterInner,
    pin: Pin,
    block: OpenBlock,
}

// SAFETY: it points to atomics and to a region, which any thread may read, and which live as long
// as the pin. Any thread may release the pin.
unsafe impl Send for Mapping<'_> {}
// SAFETY: shared references only read the fields, and return volatile views, whose accesses may
// race.
unsafe impl Sync for Mapping<'_> {}

impl<'i> Mapping<'i> {
    /// Creates a mapping. Takes ownership of the pin and of the lease `block.lease`.
    ///
    /// # Safety
    /// The caller owns the pin and the lease. The pinned entry's mapping contains `block.length`
    /// bytes at `block.base`, accessible according to `block.flags`. `block.word` is a generation
    /// in the ledger that the entry keeps mapped. `block.region` is the entry's value.
    #[inline]
    pub(super) const unsafe fn new(importer: &'i ImporterInner, pin: Pin, block: OpenBlock) -> Self {
        Self { importer, pin, block }
    }

    /// Returns the block's address in this process.
    #[must_use]
    pub const fn address(&self) -> Address {
        self.block.base
    }

    /// Returns the size in bytes, never 0: the size that the producer requested from its pool
    /// ([`crate::Handle::requested`]), or the block's size if the exporter did not know the
    /// request.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub const fn len(&self) -> usize {
        self.block.length
    }

    /// Passes on the memory: returns a handle for a message, as [`crate::Exporter::send_handle`]
    /// does for memory of this process. `handle` is the one that the mapping was opened with. The
    /// mapping may be closed afterwards, and its producer may have freed the memory before.
    ///
    /// # Errors
    /// [`Error::OtherHandle`]; those of opening a lease table; [`Error::LimitReached`] for more
    /// than 524,288 handles in transit; [`Error::TransitFull`]; [`Error::LeasesOff`] if this
    /// importer opens without leases; [`Error::Stale`] in a forked child of the process that opened
    /// it, if the memory was freed.
    pub fn send_handle(&self, handle: &Handle, readers: NonZeroU16) -> Result<Handle> {
        let OpenBlock { generation, lease, .. } = self.block;
        let producer = &self.region().producer;
        let slot = self.slot();
        if (handle.nonce(), handle.slot(), handle.generation()) != (producer.nonce(), slot, generation) {
            return Err(Error::OtherHandle);
        }
        let lease = lease.ok_or(Error::LeasesOff)?;
        let bytes = self.block.length as u64;
        let ticket = producer.send(slot, bytes, readers.get(), self.importer.exchange())?;
        // A forked child has no lease, so that the ticket's one may have come too late.
        if !lease.is_of_this_process() {
            if !self.is_current_since_lease() {
                producer.cancel(slot, ticket);
                return Err(producer.stale(handle, self.generation_now()));
            }
            if producer.is_collected() {
                producer.cancel(slot, ticket);
                return Err(Error::ProducerGone { pid: producer.pid() });
            }
        }
        producer::keep_sender(Arc::clone(producer));
        Ok(handle.with_ticket(Some(ticket)))
    }

    /// Returns whether this open has claimed the ticket of its handle: the reader is one of those
    /// that the sender has counted. `false` for a plain handle, and for an open too many of a live
    /// block.
    #[must_use]
    pub const fn has_claimed_ticket(&self) -> bool {
        self.block.flags & CLAIMED != 0
    }

    pub(super) const fn with_claimed_ticket(mut self) -> Self {
        self.block.flags |= CLAIMED;
        self
    }

    /// Gives up the lease. The mapping stays, but once the block is freed its memory may be used
    /// again, and the mapping then shows other content.
    #[must_use]
    pub fn without_lease(mut self) -> Self {
        if self.release_lease() {
            self.importer.sweep(true);
        }
        self
    }

    /// Releases the lease, if there is one. Returns whether memory of a dead producer is to be
    /// released after the mapping was closed.
    fn release_lease(&mut self) -> bool {
        let Some(lease) = self.block.lease.take() else { return false };
        // SAFETY: by `new`'s contract the lease is this mapping's; the pin keeps the importer's
        // rows.
        let is_collected = unsafe { lease.release() };
        is_collected && self.region().producer.next_collection.is_due_after_close()
    }

    /// Returns the address of the 24 bytes that tell whether the block is current: the generation
    /// of its slot, then the producer's nonce. They stay mapped as long as this mapping exists, and
    /// the producer may write them at any time.
    #[must_use]
    pub const fn ledger_words(&self) -> NonNull<[AtomicU64; 3]> {
        self.block.word.cast()
    }

    /// Returns whether the memory can be accessed by pointers alone: by the CPU, and without the
    /// notices that some memory needs before and after an access.
    #[must_use]
    pub fn is_plain_memory(&self) -> bool {
        self.is_host_accessible() && self.access_region().is_none()
    }

    /// Returns whether writing is refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.block.flags & READ_ONLY != 0
    }

    /// Returns whether the CPU can access the memory.
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

    /// Returns whether the block has not been freed since the handle was made. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.generation_now() == self.block.generation
    }

    /// As [`Mapping::is_current`], ordered after this thread has counted the lease.
    #[inline]
    pub(super) fn is_current_since_lease(&self) -> bool {
        // SAFETY: by `new`'s contract the word is in a mapped ledger, which the pin keeps.
        protocol::is_current(unsafe { self.block.word.as_ref() }, self.block.generation)
    }

    /// Returns whether the producer's memory was collected before this thread counted the lease.
    pub(super) fn is_collected(&self) -> bool {
        self.block.lease.is_some() && self.region().producer.is_collected()
    }

    fn check(&self) -> Result<()> {
        let now = self.generation_now();
        if now == self.block.generation {
            return Ok(());
        }
        let (pid, slot, generation) = (self.region().producer.pid(), self.slot(), self.block.generation);
        Err(Error::Stale { pid, slot, generation, now })
    }

    /// Returns the number of the slot in the ledger.
    fn slot(&self) -> u32 {
        self.region().producer.ledger().slot_of(self.block.word)
    }

    /// Calls `use_it` with the memory, and checks before and afterwards that the block is current.
    /// If it was freed meanwhile, the result of `use_it` is dropped.
    ///
    /// Writes into a block that was freed meanwhile are harmless: its memory is not reused while
    /// the mapping is open with a lease.
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
        // The reads of `use_it` precede the load of the generation.
        fence(Ordering::Acquire);
        self.check()?;
        Ok(result)
    }

    /// As [`Mapping::read`], and checks before and afterwards that the block is current.
    ///
    /// # Errors
    /// [`Error::Stale`] if the block was freed before or meanwhile. Then the contents of `into` are
    /// unspecified. Those of [`Mapping::read`].
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

    /// As [`Mapping::view`], for reading only. Works for read-only mappings too.
    ///
    /// # Errors
    /// As [`Mapping::view`], except [`Error::ReadOnly`].
    pub fn read_view<T: Plain>(&self) -> Result<ReadView<'_, T>> {
        // SAFETY: by `new`'s contract the range is mapped and readable as long as the pin lasts,
        // which is as long as `self`.
        let bytes = unsafe { ReadView::<u8>::new(self.pointer()?, self.block.length) }?;
        Ok(bytes.cast()?)
    }

    fn pointer(&self) -> Result<*mut u8> {
        let pointer = self.block.base.as_ptr().filter(|_| self.is_host_accessible());
        pointer.ok_or(Error::NotHostAccessible)
    }

    /// Returns the end of a range in the block.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if it exceeds the block.
    fn end_of(&self, offset: usize, length: usize) -> Result<usize> {
        let out_of_bounds = Error::OutOfBounds { offset, length, size: self.block.length };
        offset.checked_add(length).filter(|&end| end <= self.block.length).ok_or(out_of_bounds)
    }

    /// Begins CPU accesses to memory that devices use too, by pointers or for several copies.
    /// [`Mapping::read`] and [`Mapping::write`] do so themselves. Does nothing for memory that no
    /// device uses.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NotHostAccessible`], [`Error::Memory`] if the driver refuses.
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        if self.is_read_only() && access == Access::ReadWrite {
            return Err(Error::ReadOnly);
        }
        self.pointer()?;
        // SAFETY: the memory is open as long as the mapping is borrowed, the access was checked
        // above, and only volatile views of it exist.
        Ok(unsafe { CpuAccess::begin(self.host_access(), self.block.base, self.block.length, access) }?)
    }

    fn region(&self) -> &ImportedRegion {
        // SAFETY: by `new`'s contract it is the value of the entry, which the pin keeps and which
        // does not change.
        unsafe { self.block.region.as_ref() }
    }

    /// Returns the region if its kind of memory brackets CPU accesses or copies for the CPU.
    fn access_region(&self) -> Option<&ImportedRegion> {
        (self.block.flags & BRACKETS_ACCESS != 0).then(|| self.region())
    }

    fn host_access(&self) -> Option<&dyn HostAccess> {
        self.access_region()?.import.host_access()
    }

    /// Returns the copy engine and the address of `length` bytes at `offset`, if the CPU cannot
    /// access the memory.
    fn device_copy(&self, offset: usize, length: usize) -> Result<Option<(&dyn Transfer, Address)>> {
        if self.is_host_accessible() {
            return Ok(None);
        }
        let transfer = self.access_region().and_then(|region| region.import.transfer());
        let transfer = transfer.ok_or(Error::NotHostAccessible)?;
        self.end_of(offset, length)?;
        Ok(Some((transfer, self.block.base.checked_add(offset as u64).unwrap_or(self.block.base))))
    }

    /// Calls `it` within a CPU access, if the kind of memory needs it.
    fn with_cpu_access<R>(
        &self,
        offset: usize,
        length: usize,
        access: Access,
        it: impl FnOnce() -> R,
    ) -> Result<R> {
        let Some(ability) = self.host_access() else { return Ok(it()) };
        let base = self.block.base.checked_add(offset as u64).unwrap_or(self.block.base);
        // SAFETY: the callers have checked that the range is inside of the mapping and the access
        // is allowed. Only volatile views of the memory exist.
        let bracket = unsafe { CpuAccess::begin(Some(ability), base, length, access) }?;
        let result = it();
        bracket.end()?;
        Ok(result)
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
            // SAFETY: the range is inside of the mapping, which is open as long as `self`.
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
            // SAFETY: the range is inside of the mapping, which is open as long as `self`. No
            // reference points into device memory.
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
        let is_due = self.release_lease();
        self.importer.pins().give_back(self.pin, thread::current());
        failpoint!("lease.given_back");
        if is_due {
            // Closes the mapping if this was its last block, and releases the block otherwise.
            self.importer.sweep(true);
        }
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
