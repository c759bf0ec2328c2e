//! [`Board`]: what the processes of the kill matrix tell each other, past umf.
//!
//! A producer writes down each block with its handle, and what it is about to do with it; importers read that, and judge
//! what umf says of the handle. Whatever instant a process is killed at, the board says what it had done for certain:
//! [`State::Live`] was set before anything else could happen to the block, [`State::Freeing`] before it was freed,
//! [`State::Freed`] after.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umf::ipc::HANDLE_SIZE;

/// Producers that have a place on the board at one time.
pub const PLACES: u64 = 8;
/// Blocks of one producer that are on the board at one time.
pub const ENTRIES: u64 = 48;

const ENDS: usize = 1024;
const COMPLAINT: usize = 64;
const HANDLE_WORDS: usize = HANDLE_SIZE / 8;
const ENTRY: usize = 8 + HANDLE_WORDS;
const FIRST_ENTRY: usize = 1 + ENDS + 1 + COMPLAINT;
const WORDS: usize = FIRST_ENTRY + ENTRY * (PLACES * ENTRIES) as usize;

/// What becomes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is exported.
    Live,
    /// It is being freed, or its export retired.
    Freeing,
    /// It was freed, or its export retired; or nobody knows any more.
    Freed,
}

/// One block.
#[derive(Clone, Debug)]
pub struct Note {
    /// Its number, which no other block has, and which is the seed of its content.
    pub number: u64,
    /// The incarnation of its producer.
    pub who: u64,
    /// What was asked for, in bytes.
    pub size: u64,
    /// Whether the cache of exports may retire it at any time.
    pub evictable: bool,
    /// Whether it can be opened for reading only.
    pub read_only: bool,
    /// Whether its pages may go when it is freed, be it open or not.
    pub release: bool,
    /// The handle.
    pub handle: [u8; HANDLE_SIZE],
}

/// Shared words, mapped.
#[derive(Debug)]
pub struct Board {
    base: NonNull<AtomicU64>,
    file: Option<OwnedFd>,
}

// SAFETY: the memory is mapped until the end of the process, and has nothing in it but atomics.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// A new one.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn create() -> Self {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"umf-kill-board".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new fd that nobody else owns.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len((WORDS * 8) as u64).unwrap();
        Self { base: map(&file), file: Some(file.into()) }
    }

    /// The one that another process made, by its path.
    ///
    /// # Errors
    /// Those of opening a file.
    pub fn open(path: &str) -> std::io::Result<Self> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { base: map(&file), file: None })
    }

    /// Where other processes find it, as long as this object lives.
    ///
    /// # Panics
    /// If it was opened and not made.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_ref().unwrap().as_raw_fd())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "on the board");
        // SAFETY: the mapping has that many words, which are atomics in every process.
        unsafe { self.base.add(index).as_ref() }
    }

    /// Ends the work of everybody, or lets it begin.
    pub fn set_end(&self, ended: bool) {
        self.word(0).store(u64::from(ended), Ordering::SeqCst);
    }

    /// Whether the work is at its end.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.word(0).load(Ordering::SeqCst) != 0
    }

    /// An incarnation has died, for certain.
    pub fn set_dead(&self, who: u64) {
        self.word(1 + who as usize % ENDS).store(who + 1, Ordering::SeqCst);
    }

    /// Whether an incarnation has died, or is found to have within the time given.
    #[must_use]
    pub fn is_dead(&self, who: u64, patience: Duration) -> bool {
        wait(patience, || self.word(1 + who as usize % ENDS).load(Ordering::SeqCst) == who + 1)
    }

    /// Says what is wrong, if nobody has done so before.
    pub fn complain(&self, text: &str) {
        let length = self.word(1 + ENDS);
        let bytes = &text.as_bytes()[..text.len().min(8 * COMPLAINT)];
        if length.compare_exchange(0, u64::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            for (place, chunk) in bytes.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                self.word(2 + ENDS + place).store(u64::from_le_bytes(word), Ordering::SeqCst);
            }
            length.store(bytes.len() as u64, Ordering::SeqCst);
        }
    }

    /// Takes what somebody said was wrong.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let length = self.word(1 + ENDS).swap(0, Ordering::SeqCst);
        if length == 0 {
            return None;
        }
        let words = (0..COMPLAINT).map(|place| self.word(2 + ENDS + place).load(Ordering::SeqCst));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// An entry, counted over all producers: those of one incarnation follow each other.
    #[must_use]
    pub fn entry(&self, index: u64) -> Entry<'_> {
        Entry { board: self, first: FIRST_ENTRY + index as usize * ENTRY }
    }

    /// An entry of an incarnation.
    #[must_use]
    pub fn entry_of(&self, who: u64, index: u64) -> Entry<'_> {
        self.entry(who % PLACES * ENTRIES + index)
    }

    /// Forgets what an incarnation that had this place wrote: before the place is another's.
    pub fn clear(&self, who: u64) {
        for index in 0..ENTRIES {
            self.entry_of(who, index).word(NUMBER).store(0, Ordering::SeqCst);
        }
    }
}

fn wait(patience: Duration, condition: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

fn map(file: &File) -> NonNull<AtomicU64> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, of a file that has that size.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), WORDS * 8, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert!(base != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    NonNull::new(base.cast()).unwrap()
}

const NUMBER: usize = 0;
const STATE: usize = 1;
const WHO: usize = 2;
const BYTES: usize = 3;
const FLAGS: usize = 4;
const HANDLE: usize = 8;

/// A place for one block after the other.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'b> {
    board: &'b Board,
    first: usize,
}

impl Entry<'_> {
    fn word(&self, index: usize) -> &AtomicU64 {
        self.board.word(self.first + index)
    }

    /// Writes a live block down. One thread at a time writes an entry.
    pub fn write(&self, note: &Note) {
        self.word(NUMBER).store(0, Ordering::SeqCst);
        self.set(note.number, State::Live);
        self.word(WHO).store(note.who, Ordering::SeqCst);
        self.word(BYTES).store(note.size, Ordering::SeqCst);
        let flags = [note.evictable, note.read_only, note.release];
        let flags = flags.iter().enumerate().map(|(bit, flag)| u64::from(*flag) << bit).sum();
        self.word(FLAGS).store(flags, Ordering::SeqCst);
        for (place, chunk) in note.handle.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(chunk.try_into().unwrap());
            self.word(HANDLE + place).store(word, Ordering::SeqCst);
        }
        self.word(NUMBER).store(note.number, Ordering::SeqCst);
    }

    /// Says what becomes of the block with this number.
    pub fn set(&self, number: u64, state: State) {
        self.word(STATE).store(number << 2 | state as u64, Ordering::SeqCst);
    }

    /// The block that is written there, and what had become of it, if one is.
    #[must_use]
    pub fn read(&self) -> Option<(Note, State)> {
        let number = self.word(NUMBER).load(Ordering::SeqCst);
        let load = |index| self.word(index).load(Ordering::SeqCst);
        let flags = load(FLAGS);
        let mut note = Note {
            number,
            who: load(WHO),
            size: load(BYTES),
            evictable: flags & 1 != 0,
            read_only: flags & 2 != 0,
            release: flags & 4 != 0,
            handle: [0; HANDLE_SIZE],
        };
        for (place, chunk) in note.handle.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&load(HANDLE + place).to_le_bytes());
        }
        let state = self.state(number);
        (number != 0 && load(NUMBER) == number).then_some((note, state))
    }

    /// What has become of the block with this number.
    #[must_use]
    pub fn state(&self, number: u64) -> State {
        let word = self.word(STATE).load(Ordering::SeqCst);
        match word & 3 {
            0 if word >> 2 == number => State::Live,
            1 if word >> 2 == number => State::Freeing,
            _ => State::Freed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_in_another_mapping() {
        let board = Board::create();
        let other = Board::open(&board.path()).unwrap();
        let note = Note {
            number: 7,
            who: 8,
            size: 9,
            evictable: true,
            read_only: false,
            release: true,
            handle: [3; HANDLE_SIZE],
        };
        assert!(other.entry_of(8, 1).read().is_none());
        board.entry_of(8, 1).write(&note);
        let (read, state) = other.entry(8 % PLACES * ENTRIES + 1).read().unwrap();
        assert_eq!(
            (read.number, read.size, read.evictable, read.read_only, read.release, read.handle[255], state),
            (7, 9, true, false, true, 3, State::Live)
        );
        board.entry_of(8, 1).set(7, State::Freeing);
        assert_eq!(other.entry_of(8, 1).state(7), State::Freeing);
        board.entry_of(8, 1).write(&Note { number: 10, ..note });
        assert_eq!(other.entry_of(8, 1).state(7), State::Freed, "nobody knows any more");
        other.complain("first");
        other.complain("second");
        assert_eq!(board.complaint().as_deref(), Some("first"));
        assert_eq!(board.complaint(), None);
        assert!(!board.is_dead(8, Duration::ZERO));
        other.set_dead(8);
        assert!(board.is_dead(8, Duration::ZERO) && !board.is_dead(8 + ENDS as u64, Duration::ZERO));
        board.clear(8);
        assert!(other.entry_of(8, 1).read().is_none());
    }
}
