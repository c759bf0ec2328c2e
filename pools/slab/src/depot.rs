//! [`Depot`]: blocks on their way from threads that free them to threads that allocate.
//!
//! A block that a thread frees, and that is at home with another one, goes into a *parcel*, together with such blocks of all
//! classes. A full parcel goes to the depot, as a whole, under a lock that is held for the time of a few stores; and whoever
//! finds his bin empty takes one, as a whole, and puts what is in it into his bins. No slab and no list of units is
//! looked at on the way. What a thread frees is so with those who need it after a few blocks, however many
//! classes there are; and a thread that frees only keeps nothing but the parcel that it is filling. The large blocks that a
//! thread keeps when it ends go the same way.
//!
//! What is in a parcel is free, counted as such by the one who freed it, and its life is nobody's: such a block is freed by atomic
//! exchange (see `reach`), so that nobody has to be kept out when it changes hands.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use umf_sync::Lock;

use crate::span::Entry;

/// The most blocks in a parcel.
const ROOM: usize = 64;
/// The most parcels that wait: so many, and one more for so many bytes that the pool has.
const LEAST: u64 = 16;
const PER_PARCEL: u64 = 8 << 20;
/// No more than so many.
const MOST: u64 = 1024;

/// Where a parcel's blocks lie: a run of the pool's arena.
#[repr(C, align(64))]
struct Content {
    next: Option<Parcel>,
    /// Bytes of small and of large blocks.
    bytes: [usize; 2],
    len: usize,
    classes: [u8; ROOM],
    entries: [MaybeUninit<Entry>; ROOM],
}

/// Free blocks of several classes, which whoever has this has alone.
pub(crate) struct Parcel(NonNull<Content>);

// SAFETY: the content is this value's alone, and belongs to the pool's metadata, which goes along.
unsafe impl Send for Parcel {}

impl Parcel {
    /// Bytes of memory that one takes.
    pub(crate) const BYTES: usize = size_of::<Content>();

    /// An empty one.
    ///
    /// # Safety
    /// At `place`, which is aligned to a cache line, are [`Parcel::BYTES`] that nobody else uses as long as the pool lives.
    pub(crate) unsafe fn new(place: NonNull<u8>) -> Self {
        let place = place.cast::<Content>();
        // SAFETY: passed on to the caller. The classes and entries past `len` are not read.
        unsafe {
            (&raw mut (*place.as_ptr()).next).write(None);
            (&raw mut (*place.as_ptr()).bytes).write([0; 2]);
            (&raw mut (*place.as_ptr()).len).write(0);
            (&raw mut (*place.as_ptr()).classes).write([0; ROOM]);
        }
        Self(place)
    }

    fn content(&self) -> &Content {
        // SAFETY: see `new`; nobody else has it.
        unsafe { self.0.as_ref() }
    }

    fn content_mut(&mut self) -> &mut Content {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.content().len == 0
    }

    /// Bytes of its blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.content().bytes.iter().sum::<usize>() as u64
    }

    /// Whether there is room for one more, which makes it no more than `most` bytes of its kind.
    pub(crate) fn fits(&self, size: usize, is_large: bool, most: usize) -> bool {
        let content = self.content();
        content.len < ROOM && content.bytes[usize::from(is_large)] + size <= most
    }

    /// Puts a block in, if it [`Parcel::fits`].
    pub(crate) fn push(&mut self, class: usize, entry: Entry, size: usize, is_large: bool) {
        let content = self.content_mut();
        let place = content.len;
        if let Some((known, slot)) = content.classes.get_mut(place).zip(content.entries.get_mut(place)) {
            *known = class as u8;
            slot.write(entry);
            content.len += 1;
            content.bytes[usize::from(is_large)] += size;
        }
    }

    /// Takes everything out: runs of blocks of one class.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(usize, &[Entry])) {
        let content = self.content_mut();
        let len = core::mem::take(&mut content.len);
        content.bytes = [0; 2];
        // SAFETY: the first `len` entries were written.
        let entries = unsafe { core::slice::from_raw_parts(content.entries.as_ptr().cast::<Entry>(), len) };
        let mut from = 0;
        for run in content.classes[..len].chunk_by(|one, other| one == other) {
            each(usize::from(run[0]), &entries[from..from + run.len()]);
            from += run.len();
        }
    }

    /// Takes those blocks out that `take` takes.
    pub(crate) fn offer(&mut self, mut take: impl FnMut(usize, Entry) -> Option<(usize, bool)>) {
        let content = self.content_mut();
        let mut left = 0;
        for place in 0..content.len {
            // SAFETY: the first `len` entries were written.
            let entry = unsafe { content.entries[place].assume_init() };
            match take(usize::from(content.classes[place]), entry) {
                Some((size, is_large)) => content.bytes[usize::from(is_large)] -= size,
                None => {
                    content.classes[left] = content.classes[place];
                    content.entries[left].write(entry);
                    left += 1;
                }
            }
        }
        content.len = left;
    }
}

/// The parcel that a thread fills. Touched by whoever is inside alone.
#[derive(Default)]
pub(crate) struct Outbox(Cell<Option<Parcel>>);

impl Outbox {
    pub(crate) fn take(&self) -> Option<Parcel> {
        self.0.take()
    }

    /// Sets the parcel, and yields the one that was there.
    pub(crate) fn replace(&self, parcel: Option<Parcel>) -> Option<Parcel> {
        self.0.replace(parcel)
    }
}

/// Stacks of parcels that wait, and of empty ones.
struct Stacks {
    waiting: Option<Parcel>,
    empty: Option<Parcel>,
    /// The least that waited since the last look.
    least: u32,
}

/// Parcels that wait for somebody who allocates.
#[repr(align(64))]
pub(crate) struct Depot {
    stacks: Lock<Stacks>,
    /// How many wait, and their bytes. Written under the lock.
    count: AtomicU32,
    bytes: AtomicU64,
}

impl Depot {
    pub(crate) const fn new() -> Self {
        Self {
            stacks: Lock::new(Stacks { waiting: None, empty: None, least: 0 }),
            count: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Lets a parcel wait, unless more than so many bytes would, or as many parcels do as may in a pool of `reserved` bytes; yields an
    /// empty one for it, if there is one.
    pub(crate) fn put(&self, parcel: Parcel, most: u64, reserved: u64) -> Result<Option<Parcel>, Parcel> {
        let bytes = parcel.bytes();
        let parcels = (LEAST + reserved / PER_PARCEL).min(MOST);
        let mut stacks = self.stacks.lock();
        if u64::from(self.count()) >= parcels || self.bytes() + bytes > most {
            return Err(parcel);
        }
        self.count.store(self.count() + 1, Ordering::Relaxed);
        self.bytes.store(self.bytes() + bytes, Ordering::Relaxed);
        push(&mut stacks.waiting, parcel);
        Ok(pop(&mut stacks.empty))
    }

    /// The parcel that came last.
    pub(crate) fn take(&self) -> Option<Parcel> {
        if self.count() == 0 {
            return None;
        }
        let mut stacks = self.stacks.lock();
        let parcel = pop(&mut stacks.waiting)?;
        self.count.store(self.count() - 1, Ordering::Relaxed);
        self.bytes.store(self.bytes() - parcel.bytes(), Ordering::Relaxed);
        stacks.least = stacks.least.min(self.count());
        Some(parcel)
    }

    /// As many parcels as nobody took since this was asked last.
    pub(crate) fn unused(&self) -> u32 {
        let mut stacks = self.stacks.lock();
        core::mem::replace(&mut stacks.least, self.count())
    }

    pub(crate) fn take_empty(&self) -> Option<Parcel> {
        pop(&mut self.stacks.lock().empty)
    }

    pub(crate) fn put_empty(&self, parcel: Parcel) {
        push(&mut self.stacks.lock().empty, parcel);
    }
}

fn push(stack: &mut Option<Parcel>, mut parcel: Parcel) {
    parcel.content_mut().next = stack.take();
    *stack = Some(parcel);
}

fn pop(stack: &mut Option<Parcel>) -> Option<Parcel> {
    let mut parcel = stack.take()?;
    *stack = parcel.content_mut().next.take();
    Some(parcel)
}

#[cfg(test)]
mod tests;
