//! What jemalloc calls: the extent hooks of a pool's arenas.
//!
//! jemalloc calls with locks of its own held, and a thread that is in a hook cannot allocate from it. So hooks never ask the
//! provider for memory: they give what is free in the pool's regions, or note what is lacking ([`Wanted`]), and the pool gets that
//! once jemalloc has returned. Nor do they give regions back or purge pages: that is noted, too. They take one lock, the room's, under
//! which nothing is called; a fork takes it after jemalloc's ([`crate::fork`]).

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering;

use umf_core::{Address, Result};
use umf_sync::{Lock, fork::Leaf};

use crate::JemallocPool;
use crate::je::{self, HookTable, PAGE};
use crate::room::{Room, number_of};

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
    pub(crate) room: Lock<Room, Leaf>,
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
            // Providers may do anything when they purge. What jemalloc gives back is purged when it has returned.
            purge_lazy: None,
            purge_forced: None,
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
    match pool.take_extent(arena, size, align, *zero) {
        Some(address) => {
            // (Nobody but an environment that has jemalloc clear all blocks.)
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
    arena.room.lock().split().is_err()
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
    arena.room.lock().merge();
    false
}

impl JemallocPool {
    /// Pages for jemalloc, by the address that it is to know; null if there are not so many, or they are `to_touch` and must not be.
    fn take_extent(&self, arena: &Arena, size: usize, align: usize, to_touch: bool) -> Option<*mut c_void> {
        if self.is_held_at_bound() {
            return None;
        }
        let mut room = arena.room.lock();
        let place = room.take(size as u64, align.max(PAGE) as u64)?;
        let record = self.regions.get(number_of(place))?;
        if to_touch && (record.is_shadowed() || !self.is_touchable) {
            room.give(place, size as u64);
            return None;
        }
        record.used.fetch_add(size as u64, Ordering::Relaxed);
        let address = record.visible_at(place);
        drop(room);
        Some(core::ptr::with_exposed_provenance_mut(usize::try_from(address).ok()?))
    }

    /// Takes pages back; `false` if they are none of this pool.
    fn give_extent(&self, arena: &Arena, begin: Address, size: usize, is_kept: bool) -> bool {
        let Some(number) = self.region_at(begin) else { return false };
        let Some(record) = self.regions.get(number) else { return false };
        let mut room = arena.room.lock();
        let place = crate::room::place(number, record.visible.load(Ordering::Relaxed), begin.to_bits());
        let is_idle = record.used.fetch_sub(size as u64, Ordering::Relaxed) == size as u64;
        // (If all of the region is free now, it goes as a whole.)
        if is_kept || is_idle {
            room.give(place, size as u64);
        } else {
            room.give_dirty(place, size as u64);
            self.has_work.store(true, Ordering::Relaxed);
        }
        if is_idle {
            self.note_idle();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umf_core::{Layout, Pool, ProviderRef};
    use umf_testkit::pool::{Numbers, Pages};

    /// What jemalloc may ask for, whatever [`je::fills_blocks`] could find out.
    #[test]
    fn what_must_not_be_touched_is_not_cleared() {
        let providers: [(ProviderRef, bool); 3] = [
            (Numbers::new(4096).into(), false),
            (Pages::untouchable().into(), false),
            (Pages::private().into(), true),
        ];
        for (provider, is_memory) in providers {
            let pool =
                JemallocPool::with_settings(provider, crate::JemallocSettings::default().arenas(1)).unwrap();
            // So that there is a region with room for more.
            let block = pool.allocate(Layout::new(100, 1).unwrap()).unwrap();
            let arena = &pool.arenas()[0];
            let free = arena.room.lock().free;
            assert!(free >= 4096);
            let (mut zero, mut commit) = (true, true);
            let table = core::ptr::from_ref(arena).cast_mut().cast();
            // SAFETY: the table of an arena that there is.
            let got = unsafe { alloc(table, null_mut(), 4096, 4096, &raw mut zero, &raw mut commit, 0) };
            assert_eq!(!got.is_null(), is_memory);
            if is_memory {
                // SAFETY: as above, and what it gave.
                assert!(!unsafe { dalloc(table, got, 4096, true, 0) });
            }
            assert_eq!(arena.room.lock().free, free);
            // SAFETY: the test's own.
            unsafe { pool.free(block) }.unwrap();
        }
    }
}
