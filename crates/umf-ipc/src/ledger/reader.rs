//! The importer's side of a ledger: maps and checks it, and reads slots.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::SealFlags;
use umf_os::ReceivedFd;
use umf_sync::failpoint;

use super::layout::{
    FLAG_LOCKED, HEADER_SIZE, HeaderError, LIVENESS_BYTE, LedgerHeader, LedgerLayout, MAX_SLOTS,
    ParsedHeader, SlotContent, SlotWords,
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
    /// Kept open so that others find the ledger under `/proc/<pid>/fd` when its producer was
    /// killed.
    fd: CheckedFile,
}

impl LedgerReader {
    /// Maps what should be the ledger that `handle` names, and checks that it is.
    ///
    /// The fd came from a process that may be another one by now, or hostile: nothing is mapped
    /// before the kernel has said that it is a sealed tmpfs file, so that no read can fault or
    /// hang.
    pub(crate) fn open(fd: ReceivedFd, handle: &Handle) -> Result<Self> {
        let pid = handle.pid();
        let other = |evidence| Error::ProducerReplaced { pid, evidence };
        let system = |call| move |errno| Error::system(call, errno);
        // First of all, because it is the one question that no file system answers: a FUSE mount
        // could keep us waiting.
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

    /// How many slots there can be.
    pub(crate) const fn capacity(&self) -> u32 {
        self.header.capacity
    }

    /// The producer's number of its lease table's descriptor, and how many rows the table has;
    /// `None` if there is none.
    pub(crate) const fn lease_table(&self) -> Option<(i32, u32)> {
        self.header.lease_table
    }

    /// Whether the producer is known to have ended, or called `exec`: it holds a lock as long as it
    /// has the ledger mapped. `false` if its ledger is not locked, or the kernel does not say.
    pub(crate) fn producer_has_ended(&self) -> bool {
        // The lock belongs to a description that no descriptor refers to, so any other one may ask.
        let fd = self.fd.get();
        self.header.flags & FLAG_LOCKED != 0
            && fd.is_ok_and(|fd| OfdLocks::of_file(fd).is_write_locked(LIVENESS_BYTE) == Ok(false))
    }

    /// Device and inode of the ledger's file.
    pub(crate) const fn identity(&self) -> FileIdentity {
        self.fd.identity()
    }

    /// A slot, if the ledger has it and it has been used.
    pub(crate) fn slot(&self, number: u32) -> Option<SlotReader<'_>> {
        // SAFETY: `open` maps no file shorter than a header; the seals keep it that long; fields
        // are atomics.
        let header: &LedgerHeader = unsafe { self.mapping.base().cast().as_ref() };
        // Slots beyond that are holes in the file, which reading would fill.
        let used = header.slots_used.load(Ordering::Acquire).min(self.capacity());
        if number >= used {
            return None;
        }
        let offset = HEADER_SIZE + number as usize * size_of::<SlotWords>();
        debug_assert!(offset + size_of::<SlotWords>() <= self.mapping.size());
        // SAFETY: `number < capacity`, which `open` compared with the size of the mapping; fields
        // are atomics.
        Some(SlotReader { slot: unsafe { self.mapping.base().add(offset).cast().as_ref() } })
    }
}

/// One slot of another process's ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotReader<'a> {
    slot: &'a SlotWords,
}

impl SlotReader<'_> {
    /// The generation now.
    pub(crate) fn generation(self) -> u64 {
        self.slot.generation.load(Ordering::Acquire)
    }

    /// Where the generation lies, for one-load checks while the ledger stays mapped.
    pub(crate) fn generation_word(self) -> NonNull<AtomicU64> {
        NonNull::from(&self.slot.generation)
    }

    /// What the slot says, if it has this generation before and after reading.
    pub(crate) fn read(self, generation: u64) -> core::result::Result<SlotContent, u64> {
        protocol::read(&self.slot.generation, generation, || SlotContent::load(self.slot))
    }
}
