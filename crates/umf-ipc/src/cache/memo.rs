//! Handles that a thread looked at before, whole.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use umf_sync::chunks::{Chunks, Zeroed};
use umf_sync::thread::{self, ThreadIndex};

use super::pins::PinCell;
use crate::handle::SIZE;
use crate::lease::Lease;

const RECORDS: usize = 1024;
/// Places that a hash has.
const WAYS: usize = 4;

/// What is remembered of a handle: all that a hit needs, found by one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    /// What the user looks for besides the handle's bytes; not 0.
    pub key: u64,
    /// How to pin the handle's region.
    pub pin: PinCell,
    pub stamp: u64,
    /// Where the generation lies that decides, and what it has to be.
    pub word: NonNull<AtomicU64>,
    pub generation: u64,
    /// Where to count an open, for what is imported.
    pub lease: Option<Lease>,
    /// The user's.
    pub base: u64,
    pub length: u64,
    pub flags: u64,
    /// Something in the entry that has the stamp.
    pub object: Option<NonNull<()>>,
}

/// A lossy table of handles for each thread, four places per hash. Nothing depends on a handle being found.
///
/// A thread reads and writes its own table alone, so there is nothing to synchronise: not even with the thread that
/// had its number before, which ended first. What a note says is checked at each use by stamp and generation.
#[derive(Debug)]
pub(crate) struct Memo {
    rows: Chunks<Row>,
}

/// One thread's table.
#[derive(Debug)]
struct Row {
    /// Null, or the first of `RECORDS` records, which are the first chunk of `chunk`.
    first: AtomicPtr<Record>,
    hits: AtomicU64,
    chunk: Chunks<Record, RECORDS>,
}

// SAFETY: null pointers, atomics, and an empty `Chunks`.
unsafe impl Zeroed for Row {}

#[derive(Debug)]
#[repr(C, align(64))]
struct Record {
    /// The last of the bytes, where the checksum is: it tells most handles apart, in the line where the note is.
    tag: UnsafeCell<[u8; TAG]>,
    /// In the first of the places of a hash: which was written over last.
    turn: UnsafeCell<u8>,
    /// `None` while unused: a zeroed `PinCell` has a null pointer.
    note: UnsafeCell<Option<Note>>,
    bytes: UnsafeCell<[u8; SIZE]>,
}

const TAG: usize = 8;

// SAFETY: a record is used by one thread at a time, by `Memo`'s rule, and points to atomics that any thread may use.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}
// SAFETY: `None` of an `Option` with a `NonNull` inside is null there, and is all that is read of an unused note.
unsafe impl Zeroed for Record {}

const _: () = assert!(size_of::<Option<Note>>() == size_of::<Note>(), "None is a null pointer");

/// The calling thread's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadMemo<'m> {
    row: &'m Row,
    first: NonNull<Record>,
    thread: ThreadIndex,
}

impl Memo {
    pub(crate) const fn new() -> Self {
        Self { rows: Chunks::new() }
    }

    /// The calling thread's table, if it has one by now.
    #[inline]
    pub(crate) fn current(&self) -> Option<ThreadMemo<'_>> {
        let thread = thread::current()?;
        let row = self.rows.get(thread.get())?;
        let first = NonNull::new(row.first.load(Ordering::Relaxed))?;
        Some(ThreadMemo { row, first, thread })
    }

    /// The calling thread's table, made if there is none; `None` if there is no memory for it.
    pub(crate) fn current_or_new(&self) -> Option<ThreadMemo<'_>> {
        if let Some(memo) = self.current() {
            return Some(memo);
        }
        let row = self.rows.get_or_grow(thread::current()?.get()).ok()?;
        let first = NonNull::from(row.chunk.get_or_grow(0).ok()?);
        // A forked child forgets: what its notes say of leases is the parent's.
        // SAFETY: the records are a chunk of their own, a private mapping, in whole pages.
        unsafe { umf_os::memfd::wipe_on_fork(first.cast(), RECORDS * size_of::<Record>()) }.ok()?;
        row.first.store(first.as_ptr(), Ordering::Relaxed);
        self.current()
    }

    /// Hits of all threads.
    pub(crate) fn hits(&self) -> u64 {
        let hits = |row| self.rows.get(row).map_or(0, |row| row.hits.load(Ordering::Relaxed));
        (0..thread::end()).map(hits).sum()
    }
}

impl<'m> ThreadMemo<'m> {
    #[inline]
    fn places(self, hash: u64) -> [&'m Record; WAYS] {
        let first = hash as usize % RECORDS / WAYS * WAYS;
        // SAFETY: `first` is the beginning of a chunk of RECORDS records that stays mapped as long as the memo.
        core::array::from_fn(|way| unsafe { self.first.add(first + way).as_ref() })
    }

    /// The note beside exactly these bytes.
    #[inline]
    pub(crate) fn by_bytes(self, hash: u64, bytes: &[u8; SIZE]) -> Option<&'m Note> {
        self.places(hash).into_iter().find_map(|record| {
            // SAFETY: the record is this thread's, and nothing writes it while the reference is in use: `store` is
            // called by this thread, after what was found here was copied out.
            let (tag, note) = unsafe { (&*record.tag.get(), (*record.note.get()).as_ref()) };
            if tag[..] != bytes[SIZE - TAG..] {
                return None;
            }
            // SAFETY: as above.
            (unsafe { &*record.bytes.get() } == bytes).then_some(note?)
        })
    }

    /// The bytes and the note that have this key.
    #[inline]
    pub(crate) fn by_key(self, hash: u64, key: u64) -> Option<(&'m [u8; SIZE], &'m Note)> {
        self.places(hash).into_iter().find_map(|record| {
            // SAFETY: as in `by_bytes`.
            let (known, note) = unsafe { (&*record.bytes.get(), (*record.note.get()).as_ref()?) };
            (note.key == key).then_some((known, note))
        })
    }

    /// Remembers a handle, in the place of an older one if there is none free.
    pub(crate) fn store(self, hash: u64, bytes: &[u8; SIZE], note: Note) {
        let places = self.places(hash);
        // SAFETY: the records are this thread's, and no reference into them is in use: see `by_bytes`.
        let key = |record: &Record| unsafe { &*record.note.get() }.as_ref().map(|known| known.key);
        let same = places.iter().find(|record| key(record) == Some(note.key));
        let record = match same.or_else(|| places.iter().find(|record| key(record).is_none())) {
            Some(record) => record,
            None => {
                // SAFETY: as above.
                let turn = unsafe { &mut *places[0].turn.get() };
                *turn = turn.wrapping_add(1);
                places[usize::from(*turn) % WAYS]
            }
        };
        // SAFETY: as above.
        unsafe {
            (*record.tag.get()).copy_from_slice(&bytes[SIZE - TAG..]);
            *record.bytes.get() = *bytes;
            *record.note.get() = Some(note);
        }
    }

    /// Adds flags to the note that has this key, if there is one.
    pub(crate) fn flag(self, hash: u64, key: u64, flags: u64) {
        for record in self.places(hash) {
            // SAFETY: as in `store`.
            if let Some(note) = unsafe { &mut *record.note.get() }
                && note.key == key
            {
                note.flags |= flags;
            }
        }
    }

    /// The thread whose table this is.
    #[inline]
    pub(crate) const fn thread(self) -> ThreadIndex {
        self.thread
    }

    #[inline]
    pub(crate) fn count_hit(self) {
        self.row.hits.store(self.row.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Drop for Memo {
    fn drop(&mut self) {
        // What `Chunks` does not do: rows have mappings of their own.
        for row in (0..thread::end()).filter_map(|thread| self.rows.get(thread)) {
            // SAFETY: nobody else has the memo any more; each row is dropped once, and its memory is not looked at
            // again before it is unmapped.
            unsafe { core::ptr::drop_in_place(core::ptr::from_ref(row).cast_mut()) };
        }
    }
}
