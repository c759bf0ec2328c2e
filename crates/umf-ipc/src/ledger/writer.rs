//! The producer's side of its ledger.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use umf_core::lock::Lock;
use umf_core::step::{Step, step};

use super::layout::{HEADER_SIZE, Header, MAGIC, MAX_SLOTS, Slot, SlotContent, VERSION};
use crate::identity::{Nonce, ProcessIdentity};
use crate::sys::{self, SharedMapping};
use crate::{Error, Result, protocol};

/// How many slots get their pages at a time: 64 KiB of file.
const RESERVE: u32 = 1024;

/// Publishes exports. Publishing and taking slots is done under the exporter's locks; retiring is one store.
#[derive(Debug)]
pub(crate) struct LedgerWriter {
    mapping: SharedMapping,
    fd: Arc<OwnedFd>,
    nonce: Nonce,
    identity: ProcessIdentity,
    capacity: u32,
    slots: Lock<FreeSlots>,
}

#[derive(Debug)]
struct FreeSlots {
    next: u32,
    reserved: u32,
    free: Vec<u32>,
}

impl LedgerWriter {
    /// A ledger with room for `slots` exports (fewer where `RLIMIT_FSIZE` says so). `served` tells importers
    /// that this process answers on its socket.
    pub(crate) fn new(slots: u32, served: bool) -> Result<Self> {
        let identity = ProcessIdentity::current();
        let nonce = Nonce::random().map_err(|errno| Error::system("getrandom", errno))?;
        let room = sys::file_size_limit().saturating_sub(HEADER_SIZE as u64) / size_of::<Slot>() as u64;
        let capacity = slots.min(MAX_SLOTS).min(u32::try_from(room).unwrap_or(u32::MAX));
        if capacity == 0 {
            return Err(Error::System {
                call: "ftruncate of the ledger",
                errno: rustix::io::Errno::FBIG,
                hint: "; raise RLIMIT_FSIZE (ulimit -f)",
            });
        }
        let size = HEADER_SIZE + capacity as usize * size_of::<Slot>();
        let fd =
            sys::memfd("umf-ledger", size as u64).map_err(|errno| Error::system("memfd_create", errno))?;
        step(Step::LedgerFileMade);
        sys::reserve(&fd, 0, HEADER_SIZE as u64)
            .map_err(|errno| Error::system("fallocate of the ledger", errno))?;
        let mapping = SharedMapping::new(&fd, size, true)
            .map_err(|errno| Error::system("mmap of the ledger", errno))?;
        step(Step::LedgerMapped);
        mapping
            .keep_from_children()
            .map_err(|errno| Error::system("madvise(MADV_DONTFORK) of the ledger", errno))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        sys::add_seals(&fd, seals).map_err(|errno| Error::System {
            call: "sealing of the ledger",
            errno,
            hint: "; umf needs Linux 5.1 or later",
        })?;
        step(Step::LedgerSealed);
        let ledger = Self {
            mapping,
            fd: Arc::new(fd),
            nonce,
            identity,
            capacity,
            slots: Lock::new(FreeSlots { next: 0, reserved: 0, free: Vec::new() }),
        };
        ledger.write_header(served);
        step(Step::LedgerMade);
        Ok(ledger)
    }

    fn write_header(&self, served: bool) {
        let halves = |bytes: &[u8; 16]| {
            let (low, high) = bytes.split_at(8);
            [low, high].map(|half| u64::from_le_bytes(half.try_into().unwrap_or_default()))
        };
        let header = self.header();
        let [low, high] = halves(self.nonce.as_bytes());
        header.nonce[0].store(low, Ordering::Relaxed);
        header.nonce[1].store(high, Ordering::Relaxed);
        let [low, high] = halves(self.identity.boot_id.as_bytes());
        header.boot_id[0].store(low, Ordering::Relaxed);
        header.boot_id[1].store(high, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.header_size.store(HEADER_SIZE as u32, Ordering::Relaxed);
        header.pid.store(self.identity.pid, Ordering::Relaxed);
        header.uid.store(sys::effective_uid(), Ordering::Relaxed);
        header.start_time.store(self.identity.start_time, Ordering::Relaxed);
        header.pid_namespace.store(self.identity.pid_namespace, Ordering::Relaxed);
        header.pidfs_inode.store(self.identity.pidfs_inode, Ordering::Relaxed);
        header.slot_size.store(size_of::<Slot>() as u32, Ordering::Relaxed);
        header.slot_capacity.store(self.capacity, Ordering::Relaxed);
        header.flags.store(u32::from(served), Ordering::Relaxed);
        header.door_fd.store(u32::MAX, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a header long, page aligned, lives as long as `self`, and the fields are
        // atomics, so that others reading them at the same time is fine.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    fn slot(&self, number: u32) -> &Slot {
        assert!(number < self.capacity, "slot numbers come from take()");
        let offset = HEADER_SIZE + number as usize * size_of::<Slot>();
        // SAFETY: `number < capacity`, and the mapping has the header and `capacity` slots; fields are atomics.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    pub(crate) const fn nonce(&self) -> Nonce {
        self.nonce
    }

    pub(crate) const fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) const fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// A slot that nothing uses.
    pub(crate) fn take(&self) -> Result<u32> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.free.pop() {
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
            let offset = HEADER_SIZE as u64 + u64::from(number) * size_of::<Slot>() as u64;
            sys::reserve(&self.fd, offset, u64::from(count) * size_of::<Slot>() as u64)
                .map_err(|errno| Error::system("fallocate of the ledger", errno))?;
            slots.reserved += count;
            step(Step::LedgerGrown);
        }
        slots.next += 1;
        self.header().slots_used.store(slots.next, Ordering::Release);
        step(Step::LedgerSlotTaken);
        Ok(number)
    }

    /// Gives back a slot whose export was retired (or that was never published).
    pub(crate) fn give_back(&self, number: u32) {
        self.slots.lock().free.push(number);
        step(Step::LedgerSlotGivenBack);
    }

    /// Makes an export visible in a slot that [`LedgerWriter::take`] gave, and returns its generation.
    pub(crate) fn publish(&self, number: u32, content: &SlotContent) -> u64 {
        let slot = self.slot(number);
        let generation = self.next_generation(number);
        protocol::publish(&slot.generation, generation, || {
            slot.device.store(content.device, Ordering::Relaxed);
            slot.inode.store(content.inode, Ordering::Relaxed);
            slot.fd.store(content.fd.cast_unsigned(), Ordering::Relaxed);
            step(Step::LedgerHalfPublished);
            slot.region_slot.store(content.region_slot, Ordering::Relaxed);
            slot.region_generation.store(content.region_generation, Ordering::Relaxed);
            slot.region_id.store(content.region_id, Ordering::Relaxed);
            slot.region_size.store(content.region_size, Ordering::Relaxed);
            slot.offset.store(content.offset, Ordering::Relaxed);
        });
        step(Step::LedgerPublished);
        generation
    }

    /// The generation that [`LedgerWriter::publish`] will give the slot.
    pub(crate) fn next_generation(&self, number: u32) -> u64 {
        self.slot(number).generation.load(Ordering::Relaxed) + 1
    }

    /// Ends an export: from now on every open of a handle with `generation` fails as stale.
    pub(crate) fn retire(&self, number: u32, generation: u64) {
        step(Step::LedgerRetiring);
        protocol::retire(&self.slot(number).generation, generation);
        step(Step::LedgerRetired);
    }

    /// Where the slot's generation lies, for one-load checks while the ledger stays mapped.
    pub(crate) fn generation_word(&self, number: u32) -> NonNull<AtomicU64> {
        NonNull::from(&self.slot(number).generation)
    }

    /// The slot's generation now, or `None` if there is no such slot.
    pub(crate) fn generation_of(&self, number: u32) -> Option<u64> {
        (number < self.capacity).then(|| self.slot(number).generation.load(Ordering::SeqCst))
    }

    pub(crate) fn lock_for_fork(&self) {
        self.slots.lock_for_fork();
    }

    /// # Safety
    /// [`LedgerWriter::lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.slots.unlock_after_fork() };
    }
}
