//! The importer's side of a ledger: maps and checks it, and reads slots.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::SealFlags;
use umf_os::ReceivedFd;
use umf_sync::failpoint;

use super::layout::{
    FLAG_LOCKED, HEADER_SIZE, HeaderError, LIVENESS_BYTE, LedgerHeader, LedgerLayout, MAX_SLOTS,
    ParsedHeader, SlotContent, SlotWords, Survivors,
};
use crate::handle::Handle;
use crate::{Error, Result, protocol};
use umf_os::{CheckedFile, FileIdentity, OfdLocks, SharedMapping};

/// Bytes of a ledger with the most slots.
pub(super) const MAX_SIZE: usize = LedgerLayout::new(MAX_SLOTS).size;

/// A ledger mapped read-only, its header checked.
#[derive(Debug)]
pub(crate) struct LedgerReader {
    mapping: SharedMapping,
    header: ParsedHeader,
    /// Kept open so that `umf ps` finds the ledger under `/proc/<pid>/fd` after its producer was
    /// killed.
    fd: CheckedFile,
}

impl LedgerReader {
    /// Maps a descriptor that should be the ledger of `handle`, and checks that it is.
    ///
    /// The process that sent it may be another one or hostile. So the kernel must confirm that the
    /// file is a sealed tmpfs file before it is mapped: then no read can fault or block.
    pub(crate) fn open(fd: ReceivedFd, handle: &Handle) -> Result<Self> {
        let pid = handle.pid();
        let other = |evidence| Error::ProducerReplaced { pid, evidence };
        let system = |call| move |errno| Error::system(call, errno);
        // First, because a file system (FUSE) cannot delay or forge the answer to this call.
        let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        if !umf_os::memfd::is_sealed(&fd, needed).map_err(system("fcntl(F_GET_SEALS) of the ledger"))? {
            return Err(other("its ledger fd is not sealed as a ledger is"));
        }
        let fd = fd.into_inner();
        if umf_os::file::filesystem(&fd).map_err(system("fstatfs of the ledger"))?
            != umf_os::file::TMPFS_MAGIC
        {
            return Err(other("its ledger fd is no shared memory"));
        }
        let size = umf_os::file::size(&fd).map_err(system("fstat of the ledger"))?;
        let size = usize::try_from(size).unwrap_or(0);
        if size < HEADER_SIZE + size_of::<SlotWords>() {
            return Err(other("its ledger fd is too small for a ledger"));
        }
        if size > MAX_SIZE {
            return Err(other("its ledger fd is too large for a ledger"));
        }
        let mapping = SharedMapping::new(&fd, size, false).map_err(system("mmap of the ledger"))?;
        failpoint!("ledger.opened");
        let mut header = [0; ParsedHeader::SIZE];
        umf_os::file::read_at(&fd, &mut header, 0).map_err(system("pread of the ledger"))?;
        let header = ParsedHeader::parse(&header, size as u64).map_err(|unfit| match unfit {
            HeaderError::Magic => other("its ledger fd is no ledger"),
            HeaderError::Version => {
                Error::Misbehaved { pid, what: "its ledger has another version than its handle" }
            }
            HeaderError::Capacity => {
                Error::Misbehaved { pid, what: "its ledger has fewer slots than it says" }
            }
        })?;
        if header.owner.nonce != handle.nonce() {
            return Err(other("its ledger has another nonce"));
        }
        if header.boot_id.half().contradicts(handle.boot()) {
            return Err(Error::OtherBoot);
        }
        let fd = CheckedFile::take(fd).map_err(system("fstat of the ledger"))?;
        Ok(Self { mapping, header, fd })
    }

    /// Returns the number of slots.
    pub(crate) const fn capacity(&self) -> u32 {
        self.header.capacity
    }

    /// Returns the producer's descriptor number of its lease table, and the table's number of rows;
    /// `None` if there is none.
    pub(crate) const fn lease_table(&self) -> Option<(i32, u32)> {
        self.header.lease_table
    }

    /// Returns whether the producer is known to have ended or called `exec`: it holds a lock as
    /// long as it has the ledger mapped. Returns `false` if its ledger is not locked, or the lock
    /// cannot be queried.
    pub(crate) fn producer_has_ended(&self) -> bool {
        // The lock belongs to an open file description without a descriptor, so it conflicts with
        // any other one.
        let fd = self.fd.get();
        self.header.flags & FLAG_LOCKED != 0
            && fd.is_ok_and(|fd| OfdLocks::of_file(fd).is_write_locked(LIVENESS_BYTE) == Ok(false))
    }

    /// Returns which processes may still use the producer's memory, apart from importers.
    pub(crate) fn survivors(&self) -> Survivors {
        match self.fd.get() {
            Ok(fd) => {
                Survivors::of(OfdLocks::of_file(fd), || self.header_words().flags.load(Ordering::SeqCst))
            }
            Err(_) => Survivors::Unknown,
        }
    }

    fn header_words(&self) -> &LedgerHeader {
        // SAFETY: `open` refuses a file that is shorter than a header, the seals prevent it from
        // shrinking, and all fields are atomics.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// Returns the number of the slot of a word that [`SlotReader::generation_word`] returned.
    pub(crate) fn slot_of(&self, word: NonNull<AtomicU64>) -> u32 {
        let offset = word.addr().get().wrapping_sub(self.mapping.base().addr().get() + HEADER_SIZE);
        (offset / size_of::<SlotWords>()) as u32
    }

    /// Returns whether the producer holds a lock as long as it has the ledger mapped.
    pub(crate) const fn is_locked_while_used(&self) -> bool {
        self.header.flags & FLAG_LOCKED != 0
    }

    /// Returns the device and inode of the ledger's file.
    pub(crate) const fn identity(&self) -> FileIdentity {
        self.fd.identity()
    }

    /// Returns a slot that has been used.
    pub(crate) fn slot(&self, number: u32) -> Option<SlotReader<'_>> {
        // Later slots are holes in the file, and reading one would allocate its page.
        let used = self.header_words().slots_used.load(Ordering::Acquire).min(self.capacity());
        if number >= used {
            return None;
        }
        let offset = HEADER_SIZE + number as usize * size_of::<SlotWords>();
        debug_assert!(offset + size_of::<SlotWords>() <= self.mapping.size());
        // SAFETY: `number < capacity`, `open` has checked that the mapping has so many slots, and
        // all fields are atomics.
        Some(SlotReader { slot: unsafe { self.mapping.base().add(offset).cast().as_ref() } })
    }
}

/// One slot of another process's ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotReader<'a> {
    slot: &'a SlotWords,
}

impl SlotReader<'_> {
    /// Returns the current generation.
    pub(crate) fn generation(self) -> u64 {
        self.slot.generation.load(Ordering::Acquire)
    }

    /// Returns the address of the generation, for checks by one load while the ledger is mapped.
    pub(crate) fn generation_word(self) -> NonNull<AtomicU64> {
        NonNull::from(&self.slot.generation)
    }

    /// Reads the content of the slot's last export. It is consistent if the slot does not change
    /// any more.
    pub(crate) fn last_content(self) -> SlotContent {
        SlotContent::load(self.slot)
    }

    /// Reads the slot's content.
    ///
    /// # Errors
    /// The slot's generation, if it is not this one before and after the read.
    pub(crate) fn read(self, generation: u64) -> core::result::Result<SlotContent, u64> {
        protocol::read(&self.slot.generation, generation, || SlotContent::load(self.slot))
    }
}
