//! [`Memo`]: a per-thread table of look-ups, found by bytes or by a key.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::thread::{self, ThreadIndex};

use super::pins::PinCell;
use crate::handle::SIZE;

/// Records per hash.
const WAYS: usize = 4;

/// A note beside a record's bytes: how to pin its cache entry, and a value. The value is valid as
/// long as the entry has the stamp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoEntry<V> {
    /// Unique in the table.
    pub key: u64,
    pub pin: PinCell,
    /// Not 0.
    pub stamp: u64,
    pub value: V,
}

/// A lossy table of look-ups for each thread, with four records per hash. A missing record only
/// costs a slower look-up.
///
/// A thread reads and writes only its own table, without synchronisation. A thread that reuses the
/// number of an ended thread also reuses its table. The stamp of a note is checked at each use.
#[derive(Debug)]
pub(crate) struct Memo<V: MemoValue, const BYTES: usize = SIZE, const RECORDS: usize = 1024> {
    tables: Chunks<ThreadTable<V, BYTES, RECORDS>>,
}

/// One thread's table.
#[derive(Debug)]
struct ThreadTable<V: MemoValue, const BYTES: usize, const RECORDS: usize> {
    /// Null, or the first of `RECORDS` records, which are the first chunk of `chunk`.
    first: AtomicPtr<MemoRecord<V, BYTES>>,
    hits: AtomicU64,
    chunk: Chunks<MemoRecord<V, BYTES>, RECORDS>,
}

// SAFETY: null pointers, atomics, and an empty `Chunks`.
unsafe impl<V: MemoValue, const BYTES: usize, const RECORDS: usize> Zeroable
    for ThreadTable<V, BYTES, RECORDS>
{
}

#[derive(Debug)]
#[repr(C, align(64))]
struct MemoRecord<V: MemoValue, const BYTES: usize>(UnsafeCell<RecordContent<V, BYTES>>);

#[derive(Debug)]
#[repr(C)]
struct RecordContent<V: MemoValue, const BYTES: usize> {
    /// The last of the bytes, with a handle's checksum, in the cache line of the note.
    /// Distinguishes most records without reading the other lines.
    tag: [u8; TAG],
    /// In the first record of a hash: counts replacements.
    turn: u8,
    is_used: bool,
    /// Written if `is_used`.
    note: MaybeUninit<MemoEntry<V>>,
    bytes: [u8; BYTES],
}

const TAG: usize = 8;

// SAFETY: only one thread at a time uses a record, the one whose table it is, and any thread may
// use its values.
unsafe impl<V: MemoValue, const BYTES: usize> Send for MemoRecord<V, BYTES> {}
// SAFETY: only the thread whose table it is reads or writes a record.
unsafe impl<V: MemoValue, const BYTES: usize> Sync for MemoRecord<V, BYTES> {}
// SAFETY: numbers, `false`, and uninitialised memory.
unsafe impl<V: MemoValue, const BYTES: usize> Zeroable for MemoRecord<V, BYTES> {}

/// A value of notes.
///
/// # Safety
/// What it points to may be used by any thread.
pub(crate) unsafe trait MemoValue: Copy {}

impl<V: MemoValue, const BYTES: usize> RecordContent<V, BYTES> {
    #[inline]
    fn note(&self) -> Option<&MemoEntry<V>> {
        // SAFETY: `note` is written if `is_used`.
        self.is_used.then(|| unsafe { self.note.assume_init_ref() })
    }
}

/// The calling thread's table of a [`Memo`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadMemo<'m, V: MemoValue, const BYTES: usize, const RECORDS: usize> {
    table: &'m ThreadTable<V, BYTES, RECORDS>,
    first: NonNull<MemoRecord<V, BYTES>>,
    thread: ThreadIndex,
}

impl<V: MemoValue, const BYTES: usize, const RECORDS: usize> Memo<V, BYTES, RECORDS> {
    const SIZE: usize = RECORDS * size_of::<MemoRecord<V, BYTES>>();

    pub(crate) const fn new() -> Self {
        Self { tables: Chunks::new() }
    }

    /// Returns the calling thread's table, if it has one.
    #[inline]
    pub(crate) fn current(&self) -> Option<ThreadMemo<'_, V, BYTES, RECORDS>> {
        let thread = thread::current()?;
        let table = self.tables.get(thread.get())?;
        let first = NonNull::new(table.first.load(Ordering::Relaxed))?;
        Some(ThreadMemo { table, first, thread })
    }

    /// Returns the calling thread's table. Creates it if there is none. Returns `None` without
    /// memory for it.
    pub(crate) fn current_or_new(&self) -> Option<ThreadMemo<'_, V, BYTES, RECORDS>> {
        if let Some(memo) = self.current() {
            return Some(memo);
        }
        let table = self.tables.get_or_grow(thread::current()?.get()).ok()?;
        let first = NonNull::from(table.chunk.get_or_grow(0).ok()?);
        const { assert!(Self::SIZE.is_multiple_of(4096), "the kernel wipes whole pages") };
        // In a forked child the table is empty, because the leases in its notes are the parent's.
        // SAFETY: the records are one chunk, a private mapping of whole pages.
        unsafe { umf_os::memfd::wipe_on_fork(first.cast(), Self::SIZE) }.ok()?;
        table.first.store(first.as_ptr(), Ordering::Relaxed);
        self.current()
    }

    /// Returns the hits of all threads.
    pub(crate) fn hits(&self) -> u64 {
        let hits = |table| self.tables.get(table).map_or(0, |table| table.hits.load(Ordering::Relaxed));
        (0..thread::end()).map(hits).sum()
    }
}

impl<'m, V: MemoValue, const BYTES: usize, const RECORDS: usize> ThreadMemo<'m, V, BYTES, RECORDS> {
    #[inline]
    fn set(self, hash: u64) -> [&'m MemoRecord<V, BYTES>; WAYS] {
        let first = hash as usize % RECORDS / WAYS * WAYS;
        // SAFETY: `first` is the start of a chunk of RECORDS records, which stays mapped as long as
        // the memo.
        core::array::from_fn(|way| unsafe { self.first.add(first + way).as_ref() })
    }

    #[inline]
    fn contents(self, hash: u64) -> [&'m RecordContent<V, BYTES>; WAYS] {
        // SAFETY: only this thread uses the record. It does not call `store` or `change` while it
        // uses the reference.
        self.set(hash).map(|record| unsafe { &*record.0.get() })
    }

    /// Returns the note of the record with exactly these bytes.
    #[inline]
    pub(crate) fn by_bytes(self, hash: u64, bytes: &[u8; BYTES]) -> Option<&'m MemoEntry<V>> {
        let found = self
            .contents(hash)
            .into_iter()
            .find(|known| known.tag[..] == bytes[BYTES - TAG..] && known.bytes == *bytes && known.is_used);
        found?.note()
    }

    /// Returns the bytes and the note of the record with this key.
    #[inline]
    pub(crate) fn by_key(self, hash: u64, key: u64) -> Option<(&'m [u8; BYTES], &'m MemoEntry<V>)> {
        self.contents(hash).into_iter().find_map(|known| {
            let note = known.note()?;
            (note.key == key).then_some((&known.bytes, note))
        })
    }

    /// Stores bytes and a note. Replaces the record with the same key, or else takes an unused one,
    /// or else replaces another one.
    pub(crate) fn store(self, hash: u64, bytes: &[u8; BYTES], note: MemoEntry<V>) {
        let set = self.contents(hash);
        let key = |record: &&RecordContent<V, BYTES>| record.note().map(|known| known.key);
        let same = set.iter().position(|record| key(record) == Some(note.key));
        let way = match same.or_else(|| set.iter().position(|record| !record.is_used)) {
            Some(way) => way,
            None => {
                // SAFETY: only this thread uses the records, and it does not use `set` from here
                // on.
                let turn = unsafe { &mut (*self.set(hash)[0].0.get()).turn };
                *turn = turn.wrapping_add(1);
                usize::from(*turn) % WAYS
            }
        };
        // SAFETY: only this thread uses the records, and it does not use `set` any more.
        let content = unsafe { &mut *self.set(hash)[way].0.get() };
        content.tag.copy_from_slice(&bytes[BYTES - TAG..]);
        content.bytes = *bytes;
        content.note.write(note);
        content.is_used = true;
    }

    /// Changes the value of the note with this key, if there is one.
    pub(crate) fn change(self, hash: u64, key: u64, change: impl FnOnce(&mut V)) {
        let way = self.contents(hash).iter().position(|known| known.note().is_some_and(|it| it.key == key));
        if let Some(way) = way {
            // SAFETY: only this thread uses the records. A record with a note is used, so that its
            // note is written.
            change(unsafe { &mut (*self.set(hash)[way].0.get()).note.assume_init_mut().value });
        }
    }

    /// Returns the thread whose table this is.
    #[inline]
    pub(crate) const fn thread(self) -> ThreadIndex {
        self.thread
    }

    #[inline]
    pub(crate) fn count_hit(self) {
        self.table.hits.store(self.table.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl<V: MemoValue, const BYTES: usize, const RECORDS: usize> Drop for Memo<V, BYTES, RECORDS> {
    fn drop(&mut self) {
        // `Chunks` does not drop its elements, and the tables own mappings.
        for table in (0..thread::end()).filter_map(|thread| self.tables.get(thread)) {
            // SAFETY: `&mut self` excludes other users. Each table is dropped once, and its memory
            // is not read again before it is unmapped.
            unsafe { core::ptr::drop_in_place(core::ptr::from_ref(table).cast_mut()) };
        }
    }
}
