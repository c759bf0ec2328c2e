//! Openings of other processes' memory, by the address that C got.
//!
//! Each thread records its openings in a table of its own, and is the only one that fills its
//! slots. A thread closes an opening by exchanging the key of its slot. This costs one atomic
//! instruction in the thread that opened it, and works in any other. Openings without a free slot,
//! and those of threads without an index, are in [`OVERFLOW`], under a lock. Other threads access
//! a table under this lock only, and mark a slot as [`TAKEN`] meanwhile. A thread that does not
//! find an opening waits for the lock and searches again.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

use umf_core::Access;
use umf_ipc::{HANDLE_SIZE, Importer, Mapping};
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::{Lock, thread};

use crate::boundary::{Failure, Outcome};

const SETS: usize = 512;
/// Slots that an address can have in a table.
const WAYS: usize = 4;
const SLOTS: usize = SETS * WAYS;

/// Key of an empty slot.
const FREE: usize = 0;
/// Key of a slot that another thread accesses under the lock.
const TAKEN: usize = 1;

/// One opening.
#[repr(C)]
struct Opening {
    mapping: Mapping<'static>,
    /// Id of the pool or provider that it was opened through.
    of: usize,
}

/// The openings of one thread.
#[repr(C, align(64))]
struct Table {
    /// The addresses that C got. The keys of a set share half a cache line.
    keys: [AtomicUsize; SLOTS],
    opens: [UnsafeCell<MaybeUninit<Opening>>; SLOTS],
}

// SAFETY: the thread that changes a key owns the contents of the slot: the table's thread after
// `FREE`, any other after `TAKEN`. A key that is an address says that the contents are complete,
// and that no thread accesses them before it exchanges the key.
unsafe impl Sync for Table {}
// SAFETY: all-zero bytes are empty slots. Contents are never dropped with the table, which is
// static.
unsafe impl Zeroable for Table {}

/// The tables by thread index.
static TABLES: Chunks<Table, 1> = Chunks::new();

/// Openings that are in no table, with their addresses.
static OVERFLOW: Lock<Vec<(usize, Opening)>> = Lock::new(Vec::new());

/// Openings through providers, with their addresses. They are apart: a provider of the program may
/// forward to one of this library, so that a pool and a provider open the same address.
static OF_PROVIDERS: Lock<Vec<(usize, Opening)>> = Lock::new(Vec::new());

/// Returns the slots that an address can have.
#[inline(always)]
const fn slots(address: usize) -> core::ops::Range<usize> {
    const SHIFT: u32 = 64 - SETS.ilog2();
    let spread = (address as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = (spread >> SHIFT) as usize * WAYS;
    first..first + WAYS
}

impl Table {
    /// Finds a free slot for the address. Called by the table's thread, which alone fills slots.
    #[inline(always)]
    fn free_slot(&self, address: usize) -> Option<usize> {
        // Acquire: the thread that emptied the slot has read its contents.
        slots(address).find(|&slot| self.keys[slot].load(Ordering::Acquire) == FREE)
    }

    /// Inserts an opening. Returns it if no slot is free. Called by the table's thread.
    fn put(&self, address: usize, open: Opening) -> Option<Opening> {
        let Some(slot) = self.free_slot(address) else { return Some(open) };
        // SAFETY: the slot is free, and only this thread fills slots.
        unsafe { self.opens[slot].get().write(MaybeUninit::new(open)) };
        self.keys[slot].store(address, Ordering::Release);
        None
    }

    /// Closes one opening of the address; returns `false` if there is none. Called by the table's
    /// thread.
    #[inline(always)]
    fn close(&self, address: usize) -> bool {
        let found = slots(address).find(|&slot| {
            let key = &self.keys[slot];
            key.load(Ordering::Relaxed) == address
                && key.compare_exchange(address, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let Some(slot) = found else { return false };
        // SAFETY: the key was an address, so the contents are complete. Only this thread fills the
        // free slot again. Dropped in place, because moving it costs as much as all the rest.
        unsafe { (*self.opens[slot].get()).assume_init_drop() };
        true
    }

    /// Removes an opening if `is_it` holds. Called by any thread, under the lock.
    fn take_if(&self, slot: usize, key: usize, is_it: impl FnOnce(&Opening) -> bool) -> Option<Opening> {
        let word = &self.keys[slot];
        word.compare_exchange(key, TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: the key was an address, so the contents are complete; no thread accesses a taken
        // slot.
        let open = unsafe { &*self.opens[slot].get() };
        // SAFETY: complete, as the key was an address.
        if is_it(unsafe { open.assume_init_ref() }) {
            // SAFETY: complete, and read out once, because the slot is free afterwards.
            let open = unsafe { open.assume_init_read() };
            word.store(FREE, Ordering::Release);
            return Some(open);
        }
        word.store(key, Ordering::Release);
        None
    }

    /// Returns the slots in use, with their keys.
    fn used(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let keys = self.keys.iter().map(|key| key.load(Ordering::Relaxed)).enumerate();
        keys.filter(|&(_, key)| key != FREE && key != TAKEN)
    }
}

fn tables() -> impl Iterator<Item = &'static Table> {
    (0..thread::end()).filter_map(|thread| TABLES.get(thread))
}

#[inline(always)]
fn thread_table() -> Option<&'static Table> {
    TABLES.get(thread::current()?.get())
}

/// Opens a handle that this thread opened before, and records it under the address that C gets,
/// which is the block's plus `offset`. Returns the address; or `None`, with nothing opened, if the
/// slow path has to.
///
/// # Safety
/// As [`insert`].
#[inline(always)]
pub(super) unsafe fn open_again(
    importer: &Importer,
    bytes: &[u8; HANDLE_SIZE],
    offset: u64,
    of: usize,
) -> Option<usize> {
    let table = thread_table()?;
    let (mut address, mut slot) = (0, 0);
    let is_open = importer.open_cached(bytes, Access::ReadWrite, |base, length| {
        address = usize::try_from(base.value()).ok()?.checked_add(usize::try_from(offset).ok()?)?;
        if offset >= length as u64 || address <= TAKEN {
            return None;
        }
        slot = table.free_slot(address)?;
        // SAFETY: only this thread fills a free slot, and an opening begins with its mapping. The
        // caller guarantees the longer lifetime.
        Some(unsafe { &mut *table.opens[slot].get().cast::<MaybeUninit<Mapping<'_>>>() })
    });
    if !is_open {
        return None;
    }
    let open = table.opens[slot].get().cast::<Opening>();
    // SAFETY: the slot is free, and only this thread fills slots.
    unsafe { (&raw mut (*open).of).write(of) };
    table.keys[slot].store(address, Ordering::Release);
    Some(address)
}

/// Records a mapping under the address that C gets for it.
///
/// # Safety
/// The mapping's importer outlives [`close_all`] of `of`, or is never dropped.
pub(super) unsafe fn insert(address: usize, mapping: Mapping<'_>, of: usize) {
    // SAFETY: extends the lifetime only, which the caller guarantees.
    let mapping = unsafe { core::mem::transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
    let open = Opening { mapping, of };
    let own = thread::current().filter(|_| address > TAKEN);
    let left = match own.and_then(|thread| TABLES.get_or_grow(thread.get()).ok()) {
        Some(table) => table.put(address, open),
        None => Some(open),
    };
    if let Some(open) = left {
        OVERFLOW.lock().push((address, open));
    }
}

/// Records a mapping that was opened through a provider, under the address that C gets for it.
/// Returns `false`, and closes the mapping, if it is open at this address already and may not be
/// twice.
///
/// # Safety
/// As [`insert`].
pub(super) unsafe fn insert_of_provider(
    address: usize,
    mapping: Mapping<'_>,
    of: usize,
    may_repeat: bool,
) -> bool {
    let mut all = OF_PROVIDERS.lock();
    if !may_repeat && all.iter().any(|(known, open)| *known == address && open.of == of) {
        drop(all);
        return false;
    }
    // SAFETY: extends the lifetime only, which the caller guarantees.
    let mapping = unsafe { core::mem::transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
    all.push((address, Opening { mapping, of }));
    true
}

/// Closes one opening of this address through the provider `of`.
pub(super) fn close_of_provider(address: usize, of: usize) -> Outcome<()> {
    let open = {
        let mut all = OF_PROVIDERS.lock();
        let place = all.iter().rposition(|(known, open)| *known == address && open.of == of);
        place.map(|place| all.swap_remove(place).1)
    };
    // Dropped without the lock: closing may unmap.
    drop(open.ok_or(NOT_OPEN)?);
    Ok(())
}

const NOT_OPEN: Failure =
    Failure::argument("nothing is open at that address: it was closed before, or never opened");

/// Closes one opening of this address by this thread. Returns `false` if there is none.
#[inline(always)]
pub(super) fn close_fast(address: usize) -> bool {
    address > TAKEN && thread_table().is_some_and(|table| table.close(address))
}

/// Closes one opening of this address, or of a block that contains it.
pub(super) fn close(address: usize) -> Outcome<()> {
    if close_fast(address) {
        return Ok(());
    }
    let open = {
        let mut elsewhere = OVERFLOW.lock();
        take(&mut elsewhere, address).or_else(|| {
            let inside = find(&elsewhere, address)?.0;
            take(&mut elsewhere, inside)
        })
    };
    // Dropped without the lock: closing may unmap.
    drop(open.ok_or(NOT_OPEN)?);
    Ok(())
}

/// Removes one opening of the address, in any table or elsewhere.
fn take(elsewhere: &mut Vec<(usize, Opening)>, address: usize) -> Option<Opening> {
    let in_tables =
        || tables().find_map(|table| slots(address).find_map(|slot| table.take_if(slot, address, |_| true)));
    let known = elsewhere.iter().rposition(|&(known, _)| known == address);
    // `FREE` and `TAKEN` are no addresses.
    known.map(|slot| elsewhere.swap_remove(slot).1).or_else(|| (address > TAKEN).then(in_tables).flatten())
}

/// Finds the opening that contains an address, as [`find_containing`] does.
fn find(elsewhere: &[(usize, Opening)], address: usize) -> Option<(usize, usize, usize)> {
    let holds = |got: usize, open: &Opening| {
        let base = usize::try_from(open.mapping.address().value()).ok()?;
        (base..base + open.mapping.len()).contains(&address).then_some((got, base, open.mapping.len()))
    };
    let in_table = |table: &Table| {
        table.used().find_map(|(slot, key)| {
            let mut found = None;
            table.take_if(slot, key, |open| {
                found = holds(key, open);
                false
            });
            found
        })
    };
    elsewhere.iter().find_map(|(got, open)| holds(*got, open)).or_else(|| tables().find_map(in_table))
}

/// Finds the opening that contains an address. Returns the address that C got, and base and size of
/// its block.
pub(super) fn find_containing(address: usize) -> Option<(usize, usize, usize)> {
    let holds = |(got, open): &(usize, Opening)| {
        let (base, size) = (usize::try_from(open.mapping.address().value()).ok()?, open.mapping.len());
        (base..base + size).contains(&address).then_some((*got, base, size))
    };
    find(&OVERFLOW.lock(), address).or_else(|| OF_PROVIDERS.lock().iter().find_map(holds))
}

/// Closes all openings through the pool or provider `of`.
pub(crate) fn close_all(of: usize) {
    let gone: Vec<Opening> = {
        let mut elsewhere = OVERFLOW.lock();
        let mut gone: Vec<Opening> =
            elsewhere.extract_if(.., |(_, open)| open.of == of).map(|(_, open)| open).collect();
        gone.extend(OF_PROVIDERS.lock().extract_if(.., |(_, open)| open.of == of).map(|(_, open)| open));
        for table in tables() {
            gone.extend(
                table.used().filter_map(|(slot, key)| table.take_if(slot, key, |open| open.of == of)),
            );
        }
        gone
    };
    // Dropped without the lock: closing may unmap.
    drop(gone);
}

#[cfg(test)]
mod tests;
