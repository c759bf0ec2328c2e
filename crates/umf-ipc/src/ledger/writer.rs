//! [`LedgerWriter`]: the producer's side of its ledger. It allocates slots, publishes and retires
//! exports, and publishes statistics.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use umf_sync::fork::{ForkGuard, Outer};
use umf_sync::{Lock, chunks::Chunks, failpoint, fork};

use super::layout::{
    ExportEnd, FLAG_DROPPED, FLAG_IMPORTER, FLAG_LOCKED, FLAG_MEMORY_LOCKED, FLAG_NOT_ALONE, FLAG_SERVED,
    HEADER_SIZE, LIVENESS_BYTE, LedgerHeader, LedgerLayout, MAGIC, MEMFD_NAME, MEMORY_BYTE, RetireReason,
    SlotContent, SlotWords, VERSION,
};
use super::statistics::{self, PublishedCounters, StatisticsArea};
use crate::identity::{Nonce, ProcessIdentity};
use crate::protocol::{self, stack};
use crate::{Error, Result};
use umf_os::{CheckedFile, ReopenedFile, SharedMapping};

/// Number of slots whose pages are reserved at a time: 128 KiB of file.
const RESERVE: u32 = 1024;

/// A ledger of this process. Retiring an export takes no lock.
#[derive(Debug)]
pub(crate) struct LedgerWriter {
    mapping: SharedMapping,
    /// Holds the lock of [`MEMORY_BYTE`]. Forked children inherit it.
    memory_lock: Option<SharedMapping>,
    fd: CheckedFile,
    /// [`fork::generation`] of the process that made it.
    generation: u32,
    nonce: Nonce,
    identity: ProcessIdentity,
    capacity: u32,
    areas: LedgerLayout,
    /// Slots that were never used. A thread that allocates a slot holds this lock.
    unused: Lock<UnusedSlots>,
    /// The stack of freed slots and its links: see [`stack`].
    free: AtomicU32,
    links: Chunks<AtomicU32>,
    /// Time of the last change to the statistics, so that [`LedgerWriter::publish_statistics`] need
    /// not read a clock.
    changed: AtomicU64,
    /// Time at which statistics were published last.
    published: AtomicU64,
    /// Time before which statistics are not published again; `u64::MAX` while a thread publishes.
    throttled_until: AtomicU64,
}

/// Publishing statistics takes at most 1 / `SHARE_DIVISOR` of a process's time, except for bursts.
const SHARE_DIVISOR: u64 = 50;
/// The backoff that may accumulate in nanoseconds, so that a few changes in a row are all
/// published.
const BURST: u64 = 100_000_000;

#[derive(Debug)]
struct UnusedSlots {
    next: u32,
    reserved: u32,
}

impl LedgerWriter {
    /// Creates a ledger with `slots` slots, or fewer if `RLIMIT_FSIZE` is small. `served`: this
    /// process answers on its socket.
    pub(crate) fn new(slots: u32, served: bool) -> Result<Self> {
        let capacity =
            LedgerLayout::fit(slots, umf_os::process::file_size_limit()).filter(|&slots| slots > 0);
        Self::create(capacity, u32::from(served) * FLAG_SERVED)
    }

    /// Creates the ledger of an importer, which has statistics and no slots.
    pub(crate) fn for_importer() -> Result<Self> {
        Self::create(LedgerLayout::fit(0, umf_os::process::file_size_limit()), FLAG_IMPORTER)
    }

    fn create(capacity: Option<u32>, flags: u32) -> Result<Self> {
        let capacity = capacity.ok_or(Error::System {
            call: "ftruncate of the ledger",
            errno: rustix::io::Errno::FBIG,
            hint: "; raise RLIMIT_FSIZE (ulimit -f)",
        })?;
        let identity = ProcessIdentity::current();
        let nonce = Nonce::random().map_err(|errno| Error::system("getrandom", errno))?;
        let areas = LedgerLayout::new(capacity);
        // Delays `fork`, so that no child inherits the descriptor.
        let no_fork = ForkGuard::<Outer>::new();
        let fd = umf_os::memfd::create(MEMFD_NAME, areas.size as u64)
            .map_err(|errno| Error::system("memfd_create", errno))?;
        failpoint!("ledger.file_made");
        for (begin, size) in [(0, HEADER_SIZE), (areas.statistics, areas.behind_slots())] {
            umf_os::file::reserve(&fd, begin as u64, size as u64)
                .map_err(|errno| Error::system("fallocate of the ledger", errno))?;
        }
        let (mapping, is_locked) = map_locked(&fd, areas.size)?;
        let is_importers = flags & FLAG_IMPORTER != 0;
        // A child that was forked before does not inherit the lock, and may use the memory.
        let can_tell = is_locked && !is_importers && !fork::has_forked();
        let memory_lock = if can_tell { lock_memory(&fd) } else { None };
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        umf_os::memfd::add_seals(&fd, seals).map_err(|errno| Error::System {
            call: "sealing of the ledger",
            errno,
            hint: "; umf needs Linux 5.1 or later",
        })?;
        failpoint!("ledger.sealed");
        let ledger = Self {
            mapping,
            memory_lock,
            fd: CheckedFile::closed_on_fork(fd)
                .map_err(|errno| Error::system("fstat of the ledger", errno))?,
            generation: fork::generation(),
            nonce,
            identity,
            capacity,
            areas,
            unused: Lock::new(UnusedSlots { next: 0, reserved: 0 }),
            free: AtomicU32::new(0),
            links: Chunks::new(),
            changed: AtomicU64::new(0),
            published: AtomicU64::new(0),
            throttled_until: AtomicU64::new(0),
        };
        drop(no_fork);
        if let Some(statistics) = ledger.statistics() {
            statistics.write_fixed(&process_name(), umf_os::clock::boot());
        }
        let is_memory_locked = ledger.memory_lock.is_some();
        let set = |is_set, flag| if is_set { flag } else { 0 };
        ledger.write_header(flags | set(is_locked, FLAG_LOCKED) | set(is_memory_locked, FLAG_MEMORY_LOCKED));
        failpoint!("ledger.made");
        Ok(ledger)
    }

    fn write_header(&self, flags: u32) {
        let header = self.header();
        let [low, high] = self.nonce.halves();
        header.nonce[0].store(low, Ordering::Relaxed);
        header.nonce[1].store(high, Ordering::Relaxed);
        let [low, high] = self.identity.boot_id.halves();
        header.boot_id[0].store(low, Ordering::Relaxed);
        header.boot_id[1].store(high, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.header_size.store(HEADER_SIZE as u32, Ordering::Relaxed);
        header.pid.store(self.identity.pid, Ordering::Relaxed);
        header.uid.store(umf_os::process::effective_uid(), Ordering::Relaxed);
        header.start_time.store(self.identity.start_time, Ordering::Relaxed);
        header.pid_namespace.store(self.identity.pid_namespace, Ordering::Relaxed);
        header.pidfs_inode.store(self.identity.pidfs_inode, Ordering::Relaxed);
        header.slot_size.store(size_of::<SlotWords>() as u32, Ordering::Relaxed);
        header.slot_capacity.store(self.capacity, Ordering::Relaxed);
        header.flags.store(flags, Ordering::Relaxed);
        header.lease_table_fd.store(u32::MAX, Ordering::Relaxed);
        header.statistics_offset.store(self.areas.statistics as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }

    fn header(&self) -> &LedgerHeader {
        // SAFETY: the mapping is page aligned, begins with a header and lives as long as `self`.
        // All fields are atomics.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    fn slot(&self, number: u32) -> &SlotWords {
        assert!(number < self.capacity, "slot numbers come from allocate_slot()");
        let offset = HEADER_SIZE + number as usize * size_of::<SlotWords>();
        // SAFETY: `number < capacity`, and the mapping has the header and `capacity` slots. All
        // fields are atomics.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    pub(crate) const fn nonce(&self) -> Nonce {
        self.nonce
    }

    pub(crate) const fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.unchecked().as_raw_fd()
    }

    #[cfg(test)]
    pub(crate) const fn shared_fd(&self) -> &Arc<OwnedFd> {
        self.fd.unchecked()
    }

    /// Returns the ledger's descriptor. Fails if its number now names another file.
    pub(crate) fn checked_fd(&self) -> umf_os::SystemResult<&Arc<OwnedFd>> {
        self.fd.get()
    }

    /// Returns the number of slots.
    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Notes that another exporter of this process may export the same memory, so that its leases
    /// are not all in one table.
    pub(crate) fn note_other_exporter(&self) {
        self.header().flags.fetch_or(FLAG_NOT_ALONE, Ordering::SeqCst);
    }

    /// Publishes the descriptor number of the lease table. Called before another process can open
    /// the ledger.
    pub(crate) fn publish_lease_table(&self, fd: RawFd, rows: u32) {
        self.header().lease_table_rows.store(rows, Ordering::Relaxed);
        self.header().lease_table_fd.store(fd.cast_unsigned(), Ordering::Release);
    }

    /// Allocates a slot. Calls `reserve` with the range of slots that are about to be used for the
    /// first time.
    pub(crate) fn allocate_slot(&self, reserve: impl FnOnce(u32, u32) -> Result<()>) -> Result<u32> {
        let mut slots = self.unused.lock();
        if let Some(slot) = stack::pop(&self.free, |slot| self.links.get(slot)) {
            return Ok(slot);
        }
        let number = slots.next;
        if number == self.capacity {
            return Err(Error::LimitReached {
                what: "exports of one process",
                limit: u64::from(self.capacity),
                setting: "free exported blocks, or raise RLIMIT_FSIZE if it is set",
            });
        }
        if number == slots.reserved {
            let count = RESERVE.min(self.capacity - number);
            let offset = HEADER_SIZE as u64 + u64::from(number) * size_of::<SlotWords>() as u64;
            let size = u64::from(count) * size_of::<SlotWords>() as u64;
            self.checked_fd()
                .and_then(|fd| umf_os::file::reserve(fd, offset, size))
                .map_err(|errno| Error::system("fallocate of the ledger", errno))?;
            reserve(number, count)?;
            slots.reserved += count;
            failpoint!("ledger.grown");
        }
        // So that freeing the slot needs no memory.
        self.links.get_or_grow(number)?;
        slots.next += 1;
        self.header().slots_used.store(slots.next, Ordering::Release);
        failpoint!("ledger.slot_taken");
        Ok(number)
    }

    /// Frees a slot whose export was retired or never published.
    pub(crate) fn free_slot(&self, number: u32) {
        if let Some(link) = self.links.get(number) {
            stack::push(&self.free, number, link);
        }
        failpoint!("ledger.slot_given_back");
    }

    /// Publishes an export in a slot from [`LedgerWriter::allocate_slot`], and returns its
    /// generation.
    pub(crate) fn publish(&self, number: u32, content: &SlotContent) -> u64 {
        let slot = self.slot(number);
        let generation = protocol::publish(&slot.generation, || {
            for (word, half) in slot.nonce.iter().zip(self.nonce.halves()) {
                word.store(half, Ordering::Relaxed);
            }
            slot.exported.store(self.note_change(), Ordering::Relaxed);
            failpoint!("ledger.half_published");
            for (word, value) in slot.content.iter().zip(content.words()) {
                word.store(value, Ordering::Relaxed);
            }
        });
        failpoint!("ledger.published");
        generation
    }

    /// Returns the generation that [`LedgerWriter::publish`] will give the slot.
    pub(crate) fn next_generation(&self, number: u32) -> u64 {
        self.slot(number).generation.load(Ordering::Relaxed) + 1
    }

    /// Retires an export: every later open of a handle with `generation` fails as stale. Returns
    /// `false` if another thread has retired it. That thread then owns the slot.
    pub(crate) fn retire(&self, number: u32, generation: u64) -> bool {
        failpoint!("ledger.retiring");
        let retired = protocol::retire(&self.slot(number).generation, generation);
        failpoint!("ledger.retired");
        retired
    }

    /// As [`LedgerWriter::retire`], and records the time and the reason in the slot.
    pub(crate) fn retire_with_reason(&self, number: u32, generation: u64, reason: RetireReason) -> bool {
        let retired = self.retire(number, generation);
        if retired {
            // Only this thread writes these words: it frees the slot later.
            let slot = self.slot(number);
            slot.ended.store(ExportEnd::word(self.note_change(), reason), Ordering::Relaxed);
            slot.ended_generation.store(generation, Ordering::Release);
        }
        retired
    }

    /// Returns whether an export has not been retired.
    pub(crate) fn is_current(&self, number: u32, generation: u64) -> bool {
        self.generation_of(number) == Some(generation)
    }

    /// Returns the address of the slot's generation, for checks by one load while the ledger is
    /// mapped.
    pub(crate) fn generation_word(&self, number: u32) -> NonNull<AtomicU64> {
        NonNull::from(&self.slot(number).generation)
    }

    /// Returns the slot's current generation; `None` if the number is out of range.
    pub(crate) fn generation_of(&self, number: u32) -> Option<u64> {
        (number < self.capacity).then(|| self.slot(number).generation.load(Ordering::SeqCst))
    }

    /// Returns the region id of an export.
    ///
    /// # Errors
    /// The slot's generation if it is another one; 0 if the number is out of range.
    pub(crate) fn region_of(&self, number: u32, generation: u64) -> core::result::Result<u64, u64> {
        if number >= self.capacity {
            return Err(0);
        }
        let slot = self.slot(number);
        protocol::read(&slot.generation, generation, || SlotContent::load(slot).region_id)
    }

    fn statistics(&self) -> Option<StatisticsArea<'_>> {
        StatisticsArea::new(self.mapping.words(self.areas.statistics, statistics::SIZE))
    }

    /// Notes that a counter has changed. Returns the time.
    pub(crate) fn note_change(&self) -> u64 {
        let time = umf_os::clock::boot();
        self.changed.store(time, Ordering::Relaxed);
        time
    }

    /// Publishes statistics if a counter has changed, with a bounded frequency. Called after
    /// [`LedgerWriter::note_change`]. Costs three loads if there is nothing to publish. `counters`
    /// is called only if they are published. `pools` also publishes those of the process's pools;
    /// the caller must not hold a lock of a pool, as observers do. Returns whether all changes are
    /// published.
    pub(crate) fn publish_statistics(
        &self,
        pools: bool,
        counters: impl FnOnce() -> PublishedCounters,
    ) -> bool {
        let time = self.changed.load(Ordering::Relaxed);
        let throttled_until = self.throttled_until.load(Ordering::Relaxed);
        if time <= self.published.load(Ordering::Relaxed) {
            return true;
        }
        if throttled_until > time.saturating_add(BURST) {
            return false;
        }
        // One thread publishes; others skip it meanwhile.
        if self
            .throttled_until
            .compare_exchange(throttled_until, u64::MAX, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        let begun = umf_os::clock::boot();
        self.published.store(begun, Ordering::Relaxed);
        if let Some(area) = self.statistics() {
            area.write_caches(begun, &counters());
            if pools {
                area.write_pools(begun);
            }
        }
        let backoff = umf_os::clock::boot().saturating_sub(begun).saturating_mul(SHARE_DIVISOR).min(BURST);
        self.throttled_until.store(throttled_until.max(begun).saturating_add(backoff), Ordering::Release);
        true
    }
}

impl Drop for LedgerWriter {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // Before the locks end: importers would take the process for dead, and its memory for
            // memory that no process needs.
            self.header().flags.fetch_or(FLAG_DROPPED, Ordering::SeqCst);
            failpoint!("ledger.dropped");
        } else {
            // The memory of the parent, which this child has inherited, is still mapped.
            core::mem::forget(self.memory_lock.take());
        }
    }
}

/// Takes the lock of [`MEMORY_BYTE`], by a mapping that forked children inherit. Returns `None` if
/// that fails: then no other process releases the memory when this one has ended.
fn lock_memory(fd: &OwnedFd) -> Option<SharedMapping> {
    let identity = umf_os::file::identity(fd).ok()?;
    let reopened = ReopenedFile::of(fd.as_fd(), identity).ok()?;
    let mapping = SharedMapping::new(&reopened, rustix::param::page_size(), false).ok()?;
    let is_locked = reopened.locks().try_write_lock(MEMORY_BYTE) == Ok(true);
    failpoint!("ledger.memory_locked");
    is_locked.then_some(mapping)
}

/// Maps a new ledger and takes its liveness lock. The lock belongs to the mapping: it lasts until
/// the process ends or calls `exec`, even if descriptors are closed. Returns whether the lock was
/// taken, which needs `/proc`.
fn map_locked(fd: &OwnedFd, size: usize) -> Result<(SharedMapping, bool)> {
    let system = |call| move |errno| Error::system(call, errno);
    let map = |fd: &dyn AsFd| -> Result<SharedMapping> {
        let mut mapping = SharedMapping::new(fd.as_fd(), size, true).map_err(system("mmap of the ledger"))?;
        failpoint!("ledger.mapped");
        mapping.exclude_from_fork().map_err(system("madvise(MADV_DONTFORK) of the ledger"))?;
        Ok(mapping)
    };
    let identity = umf_os::file::identity(fd).map_err(system("fstat of the ledger"))?;
    match ReopenedFile::of(fd.as_fd(), identity) {
        Ok(reopened) => {
            let mapping = map(&reopened)?;
            // A sandbox may refuse the lock. Then the ledger is not locked.
            let is_locked = reopened.locks().try_write_lock(LIVENESS_BYTE) == Ok(true);
            failpoint!("ledger.locked");
            Ok((mapping, is_locked))
        }
        Err(errno) => {
            tracing::debug!(%errno, "the ledger is not locked: importers identify this process by its pid alone");
            Ok((map(fd)?, false))
        }
    }
}

/// Returns the name of this process (`proc_pid_comm(5)`).
fn process_name() -> String {
    std::fs::read("/proc/self/comm").map_or_else(
        |_| String::new(),
        |name| String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(),
    )
}
