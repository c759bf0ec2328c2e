//! What a thread looked up before, found by its bytes or by a number.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::thread::{self, ThreadIndex};

use super::pins::PinCell;
use crate::handle::SIZE;

/// Places that a hash has.
const WAYS: usize = 4;

/// What is remembered beside a record's bytes: how to pin the entry that it is about, and a value,
/// which is right as long as the entry has that stamp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoEntry<V> {
    /// Two records of a table do not have the same.
    pub key: u64,
    pub pin: PinCell,
    /// Not 0.
    pub stamp: u64,
    pub value: V,
}

/// A lossy table for each thread of what it looked up, four places per hash. Nothing depends on
/// anything being found.
///
/// A thread reads and writes its own table alone, so there is nothing to synchronise: not even with
/// the thread that had its number before, which ended first. What a note says is checked at each
/// use by its stamp.
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
    /// The last of the bytes, where a handle's checksum is: it tells most apart, in the line where
    /// the note is.
    tag: [u8; TAG],
    /// In the first of the places of a hash: which was written over last.
    turn: u8,
    is_used: bool,
    /// Written if `is_used`.
    note: MaybeUninit<MemoEntry<V>>,
    bytes: [u8; BYTES],
}

const TAG: usize = 8;

// SAFETY: a record is used by one thread at a time, by `Memo`'s rule, and its values may be used by
// any thread.
unsafe impl<V: MemoValue, const BYTES: usize> Send for MemoRecord<V, BYTES> {}
// SAFETY: as above.
unsafe impl<V: MemoValue, const BYTES: usize> Sync for MemoRecord<V, BYTES> {}
// SAFETY: numbers, `false`, and memory that need not be anything.
unsafe impl<V: MemoValue, const BYTES: usize> Zeroable for MemoRecord<V, BYTES> {}

/// A value of notes.
///
/// # Safety
/// What it points to may be used by any thread.
pub(crate) unsafe trait MemoValue: Copy {}

impl<V: MemoValue, const BYTES: usize> RecordContent<V, BYTES> {
    #[inline]
    fn note(&self) -> Option<&MemoEntry<V>> {
        // SAFETY: by the field's rule.
        self.is_used.then(|| unsafe { self.note.assume_init_ref() })
    }
}

/// The calling thread's table.
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

    /// The calling thread's table, if it has one by now.
    #[inline]
    pub(crate) fn current(&self) -> Option<ThreadMemo<'_, V, BYTES, RECORDS>> {
        let thread = thread::current()?;
        let table = self.tables.get(thread.get())?;
        let first = NonNull::new(table.first.load(Ordering::Relaxed))?;
        Some(ThreadMemo { table, first, thread })
    }

    /// The calling thread's table, made if there is none; `None` if there is no memory for it.
    pub(crate) fn current_or_new(&self) -> Option<ThreadMemo<'_, V, BYTES, RECORDS>> {
        if let Some(memo) = self.current() {
            return Some(memo);
        }
        let table = self.tables.get_or_grow(thread::current()?.get()).ok()?;
        let first = NonNull::from(table.chunk.get_or_grow(0).ok()?);
        const { assert!(Self::SIZE.is_multiple_of(4096), "the kernel wipes whole pages") };
        // A forked child forgets: what its notes say of leases is the parent's.
        // SAFETY: the records are a chunk of their own, a private mapping, in whole pages.
        unsafe { umf_os::memfd::wipe_on_fork(first.cast(), Self::SIZE) }.ok()?;
        table.first.store(first.as_ptr(), Ordering::Relaxed);
        self.current()
    }

    /// Hits of all threads.
    pub(crate) fn hits(&self) -> u64 {
        let hits = |table| self.tables.get(table).map_or(0, |table| table.hits.load(Ordering::Relaxed));
        (0..thread::end()).map(hits).sum()
    }
}

impl<'m, V: MemoValue, const BYTES: usize, const RECORDS: usize> ThreadMemo<'m, V, BYTES, RECORDS> {
    #[inline]
    fn set(self, hash: u64) -> [&'m MemoRecord<V, BYTES>; WAYS] {
        let first = hash as usize % RECORDS / WAYS * WAYS;
        // SAFETY: `first` is the beginning of a chunk of RECORDS records that stays mapped as long
        // as the memo.
        core::array::from_fn(|way| unsafe { self.first.add(first + way).as_ref() })
    }

    #[inline]
    fn contents(self, hash: u64) -> [&'m RecordContent<V, BYTES>; WAYS] {
        // SAFETY: the record is this thread's, and nothing writes it while the reference is in use:
        // `store` and `change` are called by this thread, after what was found here was copied out.
        self.set(hash).map(|record| unsafe { &*record.0.get() })
    }

    /// The note beside exactly these bytes.
    #[inline]
    pub(crate) fn by_bytes(self, hash: u64, bytes: &[u8; BYTES]) -> Option<&'m MemoEntry<V>> {
        let found = self
            .contents(hash)
            .into_iter()
            .find(|known| known.tag[..] == bytes[BYTES - TAG..] && known.bytes == *bytes && known.is_used);
        found?.note()
    }

    /// The bytes and the note that have this key.
    #[inline]
    pub(crate) fn by_key(self, hash: u64, key: u64) -> Option<(&'m [u8; BYTES], &'m MemoEntry<V>)> {
        self.contents(hash).into_iter().find_map(|known| {
            let note = known.note()?;
            (note.key == key).then_some((&known.bytes, note))
        })
    }

    /// Remembers bytes and a note, in the place of an older one if there is none free.
    pub(crate) fn store(self, hash: u64, bytes: &[u8; BYTES], note: MemoEntry<V>) {
        let set = self.contents(hash);
        let key = |place: &&RecordContent<V, BYTES>| place.note().map(|known| known.key);
        let same = set.iter().position(|place| key(place) == Some(note.key));
        let way = match same.or_else(|| set.iter().position(|place| !place.is_used)) {
            Some(way) => way,
            None => {
                // SAFETY: the records are this thread's, and no reference into them is in use from
                // here on.
                let turn = unsafe { &mut (*self.set(hash)[0].0.get()).turn };
                *turn = turn.wrapping_add(1);
                usize::from(*turn) % WAYS
            }
        };
        // SAFETY: as above.
        let content = unsafe { &mut *self.set(hash)[way].0.get() };
        content.tag.copy_from_slice(&bytes[BYTES - TAG..]);
        content.bytes = *bytes;
        content.note.write(note);
        content.is_used = true;
    }

    /// Changes the value of the note that has this key, if there is one.
    pub(crate) fn change(self, hash: u64, key: u64, change: impl FnOnce(&mut V)) {
        let place = self.contents(hash).iter().position(|known| known.note().is_some_and(|it| it.key == key));
        if let Some(way) = place {
            // SAFETY: as in `store`; a record with a note is used.
            change(unsafe { &mut (*self.set(hash)[way].0.get()).note.assume_init_mut().value });
        }
    }

    /// The thread whose table this is.
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
        // What `Chunks` does not do: rows have mappings of their own.
        for table in (0..thread::end()).filter_map(|thread| self.tables.get(thread)) {
            // SAFETY: `&mut self` excludes other users. Each row is dropped once, and its memory is
            // not read again before it is unmapped.
            unsafe { core::ptr::drop_in_place(core::ptr::from_ref(table).cast_mut()) };
        }
    }
}
