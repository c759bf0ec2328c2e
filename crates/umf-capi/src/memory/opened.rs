//! What is open here of other processes, by the address that C got.
//!
//! Each thread keeps what it opens in a table of its own. Only that thread puts something there;
//! whoever closes takes it out by exchanging its key, so that closing costs one atomic instruction
//! in the thread that opened, and works in any other. What finds no place, and what threads without
//! a number open, lies behind a lock ([`ELSEWHERE`]). Others look into a thread's table under that
//! lock alone, and mark what they look at as [`TAKEN`] meanwhile: a thread that does not find what
//! it closes waits for the lock, and looks again.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

use umf_core::Access;
use umf_ipc::{HANDLE_SIZE, Importer, Mapping};
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::{Lock, thread};

use crate::boundary::{Failure, Outcome};

const SETS: usize = 512;
/// Places that an address has in a table.
const WAYS: usize = 4;
const PLACES: usize = SETS * WAYS;

/// The key of a place where nothing is.
const FREE: usize = 0;
/// The key of a place that another thread is looking at, under the lock.
const TAKEN: usize = 1;

/// One opening.
#[repr(C)]
struct Open {
    mapping: Mapping<'static>,
    /// Whose importer it is from.
    of: usize,
}

/// What one thread opened.
#[repr(C, align(64))]
struct Table {
    /// The addresses that C got: those of a set in half a cache line.
    keys: [AtomicUsize; PLACES],
    opens: [UnsafeCell<MaybeUninit<Open>>; PLACES],
}

// SAFETY: the content of a place belongs to whoever made its key `FREE` (its table's thread) or
// `TAKEN` (another one); a key that is an address says that the content is whole, and nobody's
// until it is exchanged.
unsafe impl Sync for Table {}
// SAFETY: zeros are places where nothing is. What is open at the end is never dropped, as in any
// `static`.
unsafe impl Zeroable for Table {}

/// By the thread's number.
static TABLES: Chunks<Table, 1> = Chunks::new();

/// What is in no table, with its address.
static ELSEWHERE: Lock<Vec<(usize, Open)>> = Lock::new(Vec::new());

/// The places that an address has.
#[inline(always)]
const fn places(address: usize) -> core::ops::Range<usize> {
    const SHIFT: u32 = 64 - SETS.ilog2();
    let spread = (address as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = (spread >> SHIFT) as usize * WAYS;
    first..first + WAYS
}

impl Table {
    /// A free place for the address. By the table's thread, which alone fills one.
    #[inline(always)]
    fn free_place(&self, address: usize) -> Option<usize> {
        // Acquire: whoever emptied the place has read what was there.
        places(address).find(|&place| self.keys[place].load(Ordering::Acquire) == FREE)
    }

    /// Puts an opening there, if a place is free. By the table's thread.
    fn put(&self, address: usize, open: Open) -> Option<Open> {
        let Some(place) = self.free_place(address) else { return Some(open) };
        // SAFETY: only this thread puts something into a free place.
        unsafe { self.opens[place].get().write(MaybeUninit::new(open)) };
        self.keys[place].store(address, Ordering::Release);
        None
    }

    /// Closes one opening of the address; `false` if there is none. By the table's thread.
    #[inline(always)]
    fn close(&self, address: usize) -> bool {
        let found = places(address).find(|&place| {
            let key = &self.keys[place];
            key.load(Ordering::Relaxed) == address
                && key.compare_exchange(address, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let Some(place) = found else { return false };
        // SAFETY: the key said that the content is whole; the place is free now, and only this
        // thread fills it again. (Where it lies: to move it costs as much as all the rest.)
        unsafe { (*self.opens[place].get()).assume_init_drop() };
        true
    }

    /// Looks at an opening, and takes it out if `is_it`. By any thread, under the lock.
    fn take_if(&self, place: usize, key: usize, is_it: impl FnOnce(&Open) -> bool) -> Option<Open> {
        let word = &self.keys[place];
        word.compare_exchange(key, TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: the key said that the content is whole, and nobody touches it while it is taken.
        let open = unsafe { &*self.opens[place].get() };
        // SAFETY: as above.
        if is_it(unsafe { open.assume_init_ref() }) {
            // SAFETY: as above; it is read out once, since the place is free afterwards.
            let open = unsafe { open.assume_init_read() };
            word.store(FREE, Ordering::Release);
            return Some(open);
        }
        word.store(key, Ordering::Release);
        None
    }

    /// The places in which something is, with their keys.
    fn used(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let keys = self.keys.iter().map(|key| key.load(Ordering::Relaxed)).enumerate();
        keys.filter(|&(_, key)| key != FREE && key != TAKEN)
    }
}

fn tables() -> impl Iterator<Item = &'static Table> {
    (0..thread::end()).filter_map(|thread| TABLES.get(thread))
}

#[inline(always)]
fn own_table() -> Option<&'static Table> {
    TABLES.get(thread::current()?.get())
}

/// Opens what this thread opened before, and remembers it under the address that C gets: that of
/// the block and `offset` more. Returns the address, or `None` if that does not go, and nothing is
/// open.
///
/// # Safety
/// As [`keep`].
#[inline(always)]
pub(super) unsafe fn open_again(
    importer: &Importer,
    bytes: &[u8; HANDLE_SIZE],
    offset: u64,
    of: usize,
) -> Option<usize> {
    let table = own_table()?;
    let (mut address, mut place) = (0, 0);
    let is_open = importer.open_cached(bytes, Access::ReadWrite, |base, length| {
        address = usize::try_from(base.value()).ok()?.checked_add(usize::try_from(offset).ok()?)?;
        if offset >= length as u64 || address <= TAKEN {
            return None;
        }
        place = table.free_place(address)?;
        // SAFETY: only this thread puts something into a free place; a mapping is what such a place
        // begins with. Only the lifetime is another, which is what the caller promises.
        Some(unsafe { &mut *table.opens[place].get().cast::<MaybeUninit<Mapping<'_>>>() })
    });
    if !is_open {
        return None;
    }
    let open = table.opens[place].get().cast::<Open>();
    // SAFETY: as above.
    unsafe { (&raw mut (*open).of).write(of) };
    table.keys[place].store(address, Ordering::Release);
    Some(address)
}

/// Remembers a mapping under the address that C gets for it.
///
/// # Safety
/// The mapping's importer stays until [`close_all`] of `of`, or for ever.
pub(super) unsafe fn keep(address: usize, mapping: Mapping<'_>, of: usize) {
    // SAFETY: only the lifetime changes, to what the caller promises.
    let mapping = unsafe { core::mem::transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
    let open = Open { mapping, of };
    let own = thread::current().filter(|_| address > TAKEN);
    let left = match own.and_then(|thread| TABLES.get_or_grow(thread.get()).ok()) {
        Some(table) => table.put(address, open),
        None => Some(open),
    };
    if let Some(open) = left {
        ELSEWHERE.lock().push((address, open));
    }
}

/// Closes one opening of that address by this thread; `false` if there is none, and [`close`] has
/// to look further.
#[inline(always)]
pub(super) fn close_own(address: usize) -> bool {
    address > TAKEN && own_table().is_some_and(|table| table.close(address))
}

/// Closes one opening of that address, or of a block that holds it.
pub(super) fn close(address: usize) -> Outcome<()> {
    if close_own(address) {
        return Ok(());
    }
    let open = {
        let mut elsewhere = ELSEWHERE.lock();
        take(&mut elsewhere, address).or_else(|| {
            let inside = find(&elsewhere, address)?.0;
            take(&mut elsewhere, inside)
        })
    };
    // Without the lock: closing may unmap.
    drop(open.ok_or(Failure::argument(
        "nothing is open at that address: it was closed before, or never opened",
    ))?);
    Ok(())
}

/// Takes one opening of the address out of wherever it is.
fn take(elsewhere: &mut Vec<(usize, Open)>, address: usize) -> Option<Open> {
    let in_tables = || {
        tables().find_map(|table| places(address).find_map(|place| table.take_if(place, address, |_| true)))
    };
    let known = elsewhere.iter().rposition(|&(known, _)| known == address);
    // (What is no address of a block says of a place that nothing is in it.)
    known.map(|place| elsewhere.swap_remove(place).1).or_else(|| (address > TAKEN).then(in_tables).flatten())
}

/// The opening around an address, as [`around`] says.
fn find(elsewhere: &[(usize, Open)], address: usize) -> Option<(usize, usize, usize)> {
    let holds = |got: usize, open: &Open| {
        let base = usize::try_from(open.mapping.address().value()).ok()?;
        (base..base + open.mapping.len()).contains(&address).then_some((got, base, open.mapping.len()))
    };
    let in_table = |table: &Table| {
        table.used().find_map(|(place, key)| {
            let mut found = None;
            table.take_if(place, key, |open| {
                found = holds(key, open);
                false
            });
            found
        })
    };
    elsewhere.iter().find_map(|(got, open)| holds(*got, open)).or_else(|| tables().find_map(in_table))
}

/// What is known of an opening around an address: the address that C got, where its block begins,
/// and its size.
pub(super) fn around(address: usize) -> Option<(usize, usize, usize)> {
    find(&ELSEWHERE.lock(), address)
}

/// Closes everything that was opened through the importer of `of`.
pub(crate) fn close_all(of: usize) {
    let gone: Vec<Open> = {
        let mut elsewhere = ELSEWHERE.lock();
        let mut gone: Vec<Open> =
            elsewhere.extract_if(.., |(_, open)| open.of == of).map(|(_, open)| open).collect();
        for table in tables() {
            gone.extend(
                table.used().filter_map(|(place, key)| table.take_if(place, key, |open| open.of == of)),
            );
        }
        gone
    };
    // Without the lock: closing may unmap.
    drop(gone);
}

#[cfg(test)]
mod tests;
