//! [`BlockTable`]: ground truth about each exported block, in shared memory that umf does not use.
//!
//! A producer records each block with its handle, and then each change of the block before it makes
//! the change. Importers compare what umf reports for the handle with this record. The record is
//! correct if the producer is killed at any instruction: [`BlockState::Live`] is stored before the
//! block can change, [`BlockState::Freeing`] before it is freed, and [`BlockState::Freed`] after.
//!
//! Each process of the kill matrix has a unique number, its incarnation.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umf::ipc::HANDLE_SIZE;

/// Maximum number of producers with entries in the table.
pub const PRODUCERS: u64 = 8;
/// Entries of one producer.
pub const ENTRIES_PER_PRODUCER: u64 = 48;

// Words of the table: the dead incarnations, the report with its length, the entries.
const DEAD_SLOTS: usize = 1024;
const REPORT_WORDS: usize = 64;
const HANDLE_WORDS: usize = HANDLE_SIZE / 8;
const ENTRY_WORDS: usize = 8 + HANDLE_WORDS;
const DEAD: usize = 0;
const REPORT_LENGTH: usize = DEAD + DEAD_SLOTS;
const REPORT: usize = REPORT_LENGTH + 1;
const FIRST_ENTRY: usize = REPORT + REPORT_WORDS;
const WORDS: usize = FIRST_ENTRY + ENTRY_WORDS * (PRODUCERS * ENTRIES_PER_PRODUCER) as usize;

/// State of a block, as its producer records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block is exported.
    Live,
    /// The producer is freeing the block or retiring its export.
    Freeing,
    /// The block was freed, its export was retired, or its entry now belongs to another block.
    Freed,
}

/// Record of one block.
#[derive(Clone, Debug)]
pub struct BlockRecord {
    /// Unique number of the block; also the seed of its content.
    pub number: u64,
    /// Incarnation of the producer.
    pub incarnation: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Whether the export cache may retire the export at any time.
    pub evictable: bool,
    /// Whether the block can only be opened read-only.
    pub read_only: bool,
    /// Whether the pool releases the pages of a freed block that is still open.
    pub release: bool,
    /// Handle of the block.
    pub handle: [u8; HANDLE_SIZE],
}

/// Table of block records in a shared mapping of atomic words.
#[derive(Debug)]
pub struct BlockTable {
    base: NonNull<AtomicU64>,
    file: Option<OwnedFd>,
}

// SAFETY: the memory is mapped until the end of the process, and consists of atomics.
unsafe impl Send for BlockTable {}
// SAFETY: as above.
unsafe impl Sync for BlockTable {}

impl BlockTable {
    /// Creates a table.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn create() -> Self {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"umf-kill-table".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the fd is new, and owned here alone.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len((WORDS * 8) as u64).unwrap();
        Self { base: map(&file), file: Some(file.into()) }
    }

    /// Opens the table of another process by its [`path`](Self::path).
    ///
    /// # Errors
    /// Those of opening a file.
    pub fn open(path: &str) -> std::io::Result<Self> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { base: map(&file), file: None })
    }

    /// Returns the path by which other processes open the table, for as long as this object lives.
    ///
    /// # Panics
    /// If this object was not made by [`create`](Self::create).
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_ref().unwrap().as_raw_fd())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "word {index} is outside of the table");
        // SAFETY: the mapping has `WORDS` words, which every process accesses as atomics.
        unsafe { self.base.add(index).as_ref() }
    }

    /// Records that an incarnation is dead.
    pub fn set_dead(&self, incarnation: u64) {
        self.word(dead_slot(incarnation)).store(incarnation + 1, Ordering::SeqCst);
    }

    /// Returns whether an incarnation is recorded as dead. Waits up to `timeout` for the record.
    #[must_use]
    pub fn is_dead(&self, incarnation: u64, timeout: Duration) -> bool {
        let slot = self.word(dead_slot(incarnation));
        wait(timeout, || slot.load(Ordering::SeqCst) == incarnation + 1)
    }

    /// Stores the description of a violation, unless the table already holds one.
    pub fn report(&self, text: &str) {
        let length = self.word(REPORT_LENGTH);
        let bytes = &text.as_bytes()[..text.len().min(8 * REPORT_WORDS)];
        if length.compare_exchange(0, u64::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            for (index, chunk) in bytes.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                self.word(REPORT + index).store(u64::from_le_bytes(word), Ordering::SeqCst);
            }
            length.store(bytes.len() as u64, Ordering::SeqCst);
        }
    }

    /// Takes the stored description of a violation.
    #[must_use]
    pub fn take_report(&self) -> Option<String> {
        let length = self.word(REPORT_LENGTH).swap(0, Ordering::SeqCst);
        if length == 0 {
            return None;
        }
        let words = (0..REPORT_WORDS).map(|index| self.word(REPORT + index).load(Ordering::SeqCst));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// Returns an entry by its index over all producers.
    #[must_use]
    pub fn entry(&self, index: u64) -> Entry<'_> {
        Entry { table: self, first: FIRST_ENTRY + index as usize * ENTRY_WORDS }
    }

    /// Returns an entry by its index within a producer.
    #[must_use]
    pub fn entry_of(&self, incarnation: u64, index: u64) -> Entry<'_> {
        self.entry(incarnation % PRODUCERS * ENTRIES_PER_PRODUCER + index)
    }

    /// Clears the entries of an incarnation. The process that starts a producer calls this first,
    /// as a dead producer may have left records there.
    pub fn clear(&self, incarnation: u64) {
        for index in 0..ENTRIES_PER_PRODUCER {
            self.entry_of(incarnation, index).word(NUMBER).store(0, Ordering::SeqCst);
        }
    }
}

const fn dead_slot(incarnation: u64) -> usize {
    DEAD + incarnation as usize % DEAD_SLOTS
}

fn wait(timeout: Duration, condition: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

fn map(file: &File) -> NonNull<AtomicU64> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses, of a file of that size.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), WORDS * 8, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert!(base != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    NonNull::new(base.cast()).unwrap()
}

// Words of an entry.
const NUMBER: usize = 0;
const STATE: usize = 1;
const INCARNATION: usize = 2;
const BYTES: usize = 3;
const FLAGS: usize = 4;
const HANDLE: usize = 8;

/// Entry of the table, which holds one block at a time.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'t> {
    table: &'t BlockTable,
    first: usize,
}

impl Entry<'_> {
    fn word(&self, index: usize) -> &AtomicU64 {
        self.table.word(self.first + index)
    }

    /// Records a live block. One thread at a time may write an entry.
    pub fn write(&self, record: &BlockRecord) {
        // Readers skip an entry without a number.
        self.word(NUMBER).store(0, Ordering::SeqCst);
        self.set_state(record.number, BlockState::Live);
        self.word(INCARNATION).store(record.incarnation, Ordering::SeqCst);
        self.word(BYTES).store(record.size, Ordering::SeqCst);
        let flags = [record.evictable, record.read_only, record.release];
        let flags = flags.iter().enumerate().map(|(bit, flag)| u64::from(*flag) << bit).sum();
        self.word(FLAGS).store(flags, Ordering::SeqCst);
        for (index, chunk) in record.handle.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(chunk.try_into().unwrap());
            self.word(HANDLE + index).store(word, Ordering::SeqCst);
        }
        self.word(NUMBER).store(record.number, Ordering::SeqCst);
    }

    /// Records the state of block `number`.
    pub fn set_state(&self, number: u64, state: BlockState) {
        self.word(STATE).store(number << 2 | state as u64, Ordering::SeqCst);
    }

    /// Returns the recorded block and its state. Returns `None` if the entry is empty or changes
    /// while it is read.
    #[must_use]
    pub fn read(&self) -> Option<(BlockRecord, BlockState)> {
        let number = self.word(NUMBER).load(Ordering::SeqCst);
        let load = |index| self.word(index).load(Ordering::SeqCst);
        let flags = load(FLAGS);
        let mut record = BlockRecord {
            number,
            incarnation: load(INCARNATION),
            size: load(BYTES),
            evictable: flags & 1 != 0,
            read_only: flags & 2 != 0,
            release: flags & 4 != 0,
            handle: [0; HANDLE_SIZE],
        };
        for (index, chunk) in record.handle.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&load(HANDLE + index).to_le_bytes());
        }
        let state = self.state(number);
        (number != 0 && load(NUMBER) == number).then_some((record, state))
    }

    /// Returns the recorded state of block `number`.
    #[must_use]
    pub fn state(&self, number: u64) -> BlockState {
        let word = self.word(STATE).load(Ordering::SeqCst);
        match word & 3 {
            0 if word >> 2 == number => BlockState::Live,
            1 if word >> 2 == number => BlockState::Freeing,
            _ => BlockState::Freed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_mapping_reads_records_of_first() {
        let table = BlockTable::create();
        let other = BlockTable::open(&table.path()).unwrap();
        let record = BlockRecord {
            number: 7,
            incarnation: 8,
            size: 9,
            evictable: true,
            read_only: false,
            release: true,
            handle: [3; HANDLE_SIZE],
        };
        assert!(other.entry_of(8, 1).read().is_none());
        table.entry_of(8, 1).write(&record);
        let (read, state) = other.entry(8 % PRODUCERS * ENTRIES_PER_PRODUCER + 1).read().unwrap();
        assert_eq!(
            (read.number, read.size, read.evictable, read.read_only, read.release, read.handle[255], state),
            (7, 9, true, false, true, 3, BlockState::Live)
        );
        table.entry_of(8, 1).set_state(7, BlockState::Freeing);
        assert_eq!(other.entry_of(8, 1).state(7), BlockState::Freeing);
        table.entry_of(8, 1).write(&BlockRecord { number: 10, ..record });
        assert_eq!(other.entry_of(8, 1).state(7), BlockState::Freed, "the entry holds another block");
        other.report("first");
        other.report("second");
        assert_eq!(table.take_report().as_deref(), Some("first"));
        assert_eq!(table.take_report(), None);
        assert!(!table.is_dead(8, Duration::ZERO));
        other.set_dead(8);
        assert!(table.is_dead(8, Duration::ZERO) && !table.is_dead(8 + DEAD_SLOTS as u64, Duration::ZERO));
        table.clear(8);
        assert!(other.entry_of(8, 1).read().is_none());
    }
}
