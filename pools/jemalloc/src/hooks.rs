//! What jemalloc calls: the extent hooks of a pool's arenas.
//!
//! jemalloc calls with locks of its own held, and a thread that is in a hook cannot allocate from it. So hooks never ask the
//! provider for memory: they give what is free in the pool's regions, or note what is lacking ([`Wanted`]), and the pool gets that
//! once jemalloc has returned. Nor do they give regions back. They take one lock, under which nothing is called.

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering;

use umf_core::lock::Lock;
use umf_core::{Address, Result};

use crate::JemallocPool;
use crate::je::{self, HookTable, PAGE};
use crate::room::Room;

/// What jemalloc asked for in vain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) size: usize,
    pub(crate) align: usize,
}

thread_local! {
    /// What the thread's call of jemalloc lacked.
    static WANTED: Cell<Option<Wanted>> = const { Cell::new(None) };
    /// What becomes free now is for use again at once.
    static IS_SWEEPING: Cell<bool> = const { Cell::new(false) };
}

/// What the thread's last call lacked, once.
pub(crate) fn wanted() -> Option<Wanted> {
    WANTED.take()
}

/// Runs what makes jemalloc give extents back that will be used again at once: their pages stay.
pub(crate) fn sweeping<T>(sweep: impl FnOnce() -> T) -> T {
    IS_SWEEPING.set(true);
    let result = sweep();
    IS_SWEEPING.set(false);
    result
}

/// An arena of a pool: jemalloc's number for it, and its regions.
///
/// What an arena gave back no other one gets: jemalloc joins neighbours without asking whose they are.
#[repr(C)]
pub(crate) struct Arena {
    /// First: jemalloc keeps a pointer to it.
    table: UnsafeCell<HookTable>,
    pool: Cell<*const JemallocPool>,
    /// Which of the pool's arenas it is.
    index: u32,
    /// jemalloc's number.
    number: Cell<Option<u32>>,
    /// Taken in hooks: nobody calls anything under it.
    pub(crate) room: Lock<Room>,
}

// SAFETY: jemalloc only reads the table; the cells are set before anybody else sees the arena.
unsafe impl Sync for Arena {}
// SAFETY: as above.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(index: u32) -> Self {
        let table = HookTable {
            alloc: Some(alloc),
            dalloc: Some(dalloc),
            destroy: Some(destroy),
            // All extents are usable memory as they are, and stay that.
            commit: None,
            decommit: None,
            purge_lazy: Some(purge_lazy),
            purge_forced: Some(purge_forced),
            split: Some(split),
            merge: Some(merge),
        };
        Self {
            table: UnsafeCell::new(table),
            pool: Cell::new(core::ptr::null()),
            index,
            number: Cell::new(None),
            room: Lock::new(Room::new()),
        }
    }

    /// Has jemalloc make it, once.
    ///
    /// # Errors
    /// Those of [`je::create_arena`].
    ///
    /// # Safety
    /// Both stay where they are until [`Arena::destroy`]. Nobody else looks at the arena yet.
    pub(crate) unsafe fn create(&self, pool: &JemallocPool) -> Result<()> {
        self.pool.set(pool);
        // SAFETY: the table is the arena's first part.
        self.number.set(Some(unsafe { je::create_arena(NonNull::from(self).cast()) }?));
        Ok(())
    }

    /// jemalloc's number, once it is made.
    #[inline]
    pub(crate) fn number(&self) -> Option<u32> {
        self.number.get()
    }

    pub(crate) const fn index(&self) -> u32 {
        self.index
    }
}

/// # Safety
/// jemalloc gives the table that it was given.
unsafe fn owner<'a>(table: *mut HookTable) -> Option<(&'a JemallocPool, &'a Arena)> {
    // SAFETY: the table is the first part of an `Arena`, which is there as long as jemalloc's, and its pool with it.
    let arena = unsafe { table.cast::<Arena>().as_ref()? };
    // SAFETY: as above.
    Some((unsafe { arena.pool.get().as_ref()? }, arena))
}

unsafe extern "C" fn alloc(
    table: *mut HookTable,
    new_address: *mut c_void,
    size: usize,
    align: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    // SAFETY: what jemalloc gives.
    let (owner, zero, commit) = unsafe { (owner(table), zero.as_mut(), commit.as_mut()) };
    let (Some((pool, arena)), Some(zero), Some(commit)) = (owner, zero, commit) else { return null_mut() };
    // At an address of its choice: there is none. Memory that need not be usable yet is what jemalloc asks for to have some ahead; it
    // would keep that until the arena's end.
    if !new_address.is_null() || !*commit {
        return null_mut();
    }
    match pool.take_extent(arena, size, align) {
        Some(address) => {
            // (Nobody but an environment that has jemalloc clear all blocks; over memory that must not be touched there is no pool
            // then.)
            if *zero {
                // SAFETY: pages of the pool's regions, of host memory at its own addresses, which nobody else has.
                unsafe { address.write_bytes(0, size) };
            }
            address
        }
        None => {
            WANTED.set(Some(Wanted { size, align }));
            null_mut()
        }
    }
}

/// The address that jemalloc knows.
fn visible(address: *mut c_void) -> Address {
    Address::from_ptr(address)
}

unsafe extern "C" fn dalloc(
    table: *mut HookTable,
    address: *mut c_void,
    size: usize,
    _is_committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: what jemalloc gives.
    let Some((pool, arena)) = (unsafe { owner(table) }) else { return true };
    !pool.give_extent(arena, visible(address), size, IS_SWEEPING.get())
}

unsafe extern "C" fn destroy(
    table: *mut HookTable,
    address: *mut c_void,
    size: usize,
    _is_committed: bool,
    _arena: c_uint,
) {
    // SAFETY: what jemalloc gives.
    if let Some((pool, arena)) = unsafe { owner(table) } {
        pool.give_extent(arena, visible(address), size, true);
    }
}

/// # Safety
/// As for [`owner`]; nobody needs the content of the pages.
unsafe fn purge(
    table: *mut HookTable,
    address: *mut c_void,
    offset: usize,
    size: usize,
    is_forced: bool,
) -> bool {
    // SAFETY: what jemalloc gives.
    let Some((pool, _)) = (unsafe { owner(table) }) else { return true };
    let Some(begin) = visible(address).checked_add(offset as u64) else { return true };
    !pool.purge(begin, size, is_forced)
}

unsafe extern "C" fn purge_lazy(
    table: *mut HookTable,
    address: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    // SAFETY: what jemalloc gives.
    unsafe { purge(table, address, offset, length, false) }
}

unsafe extern "C" fn purge_forced(
    table: *mut HookTable,
    address: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    // SAFETY: what jemalloc gives.
    unsafe { purge(table, address, offset, length, true) }
}

unsafe extern "C" fn split(
    table: *mut HookTable,
    _address: *mut c_void,
    _size: usize,
    _first: usize,
    _second: usize,
    _is_committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: what jemalloc gives.
    let Some((_, arena)) = (unsafe { owner(table) }) else { return true };
    arena.room.lock().ranges.split_taken().is_err()
}

unsafe extern "C" fn merge(
    table: *mut HookTable,
    low: *mut c_void,
    _low_size: usize,
    high: *mut c_void,
    _high_size: usize,
    _is_committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: what jemalloc gives.
    let Some((pool, arena)) = (unsafe { owner(table) }) else { return true };
    let (low, high) = (pool.region_at(visible(low)), pool.region_at(visible(high)));
    // Regions go back to the provider one by one.
    if low.is_none() || low != high {
        return true;
    }
    arena.room.lock().ranges.merge_taken();
    false
}

impl JemallocPool {
    /// Pages for jemalloc, by the address that it is to know; null if there are not so many.
    fn take_extent(&self, arena: &Arena, size: usize, align: usize) -> Option<*mut c_void> {
        if self.is_held_at_bound() {
            return None;
        }
        let mut room = arena.room.lock();
        let place = room.take(size as u64, align.max(PAGE) as u64)?;
        let record = self.regions.get(crate::room::number_of(place))?;
        record.used.fetch_add(size as u64, Ordering::Relaxed);
        let begin = record.visible.load(Ordering::Relaxed);
        let address = begin + crate::room::offset_of(place, begin);
        drop(room);
        Some(core::ptr::with_exposed_provenance_mut(usize::try_from(address).ok()?))
    }

    /// Takes pages back; `false` if they are none of this pool.
    fn give_extent(&self, arena: &Arena, begin: Address, size: usize, is_kept: bool) -> bool {
        let Some(number) = self.region_at(begin) else { return false };
        let Some(record) = self.regions.get(number) else { return false };
        let used = record.used.load(Ordering::Relaxed);
        // (If all of the region is free now, it goes as a whole.)
        if !is_kept && used > size as u64 {
            self.purge(begin, size, true);
        }
        let mut room = arena.room.lock();
        let place = crate::room::place(number, record.visible.load(Ordering::Relaxed), begin.to_bits());
        room.give(place, size as u64);
        if record.used.fetch_sub(size as u64, Ordering::Relaxed) == size as u64 {
            self.has_idle.store(true, Ordering::Relaxed);
        }
        true
    }
}
