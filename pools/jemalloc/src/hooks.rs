//! The extent hooks of a pool's arenas: the functions that jemalloc calls for memory.
//!
//! jemalloc calls them while it holds locks of its own, and a thread inside a hook must not call
//! jemalloc. So hooks do not call the provider. A hook allocates from the free extents of the
//! arena. If they do not suffice, it records the [`MissingExtent`], and the pool supplies it after
//! jemalloc has returned. Returning regions and purging pages also wait until then.
//!
//! Hooks take one lock, that of the free extents, and call nothing under it. A fork takes it after
//! the locks of jemalloc: see [`crate::threads`].

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering;

use umf_core::{Address, Result};
use umf_sync::{Lock, fork::Leaf};

use crate::JemallocPool;
use crate::extents::{FreeExtents, region_of};
use crate::je::{self, HookTable, PAGE};

/// An extent that a hook could not allocate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingExtent {
    pub(crate) size: usize,
    pub(crate) align: usize,
}

thread_local! {
    /// The extent that the thread's last call of jemalloc lacked.
    static MISSING: Cell<Option<MissingExtent>> = const { Cell::new(None) };
    /// Whether extents that are freed now are not purged.
    static KEEP_PAGES: Cell<bool> = const { Cell::new(false) };
}

/// Takes the extent that the thread's last call of jemalloc lacked.
pub(crate) fn take_missing() -> Option<MissingExtent> {
    MISSING.take()
}

/// Runs `release`, and does not purge the extents that jemalloc frees meanwhile: they are reused at
/// once, or returned with their regions.
pub(crate) fn keeping_pages<T>(release: impl FnOnce() -> T) -> T {
    KEEP_PAGES.set(true);
    let result = release();
    KEEP_PAGES.set(false);
    result
}

/// An arena of a pool, and its free extents.
///
/// Arenas share no regions: jemalloc merges adjacent extents without regard to their arenas.
#[repr(C)]
pub(crate) struct Arena {
    /// First, since jemalloc passes a pointer to it, which [`owner`] casts.
    table: UnsafeCell<HookTable>,
    pool: Cell<*const JemallocPool>,
    /// The index among the arenas of the pool.
    index: u32,
    /// The number of jemalloc's arena, once that is created.
    number: Cell<Option<u32>>,
    /// Hooks take this lock: threads call nothing while they hold it.
    pub(crate) free_extents: Lock<FreeExtents, Leaf>,
}

// SAFETY: jemalloc only reads the table, and the cells are set before other threads know the arena.
unsafe impl Sync for Arena {}
// SAFETY: as above.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(index: u32) -> Self {
        let table = HookTable {
            alloc: Some(alloc),
            dalloc: Some(dalloc),
            destroy: Some(destroy),
            // All extents are committed at all times.
            commit: None,
            decommit: None,
            // A provider may call jemalloc when it purges. Freed extents are purged after jemalloc
            // has returned.
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
            free_extents: Lock::new(FreeExtents::new()),
        }
    }

    /// Creates the arena in jemalloc, once.
    ///
    /// # Errors
    /// Those of [`je::create_arena`].
    ///
    /// # Safety
    /// Arena and pool are not moved until the arena is retired. No other thread knows the arena
    /// yet.
    pub(crate) unsafe fn create(&self, pool: &JemallocPool) -> Result<()> {
        self.pool.set(pool);
        // SAFETY: the table is the first field of the arena, which stays where it is.
        self.number.set(Some(unsafe { je::create_arena(NonNull::from(self).cast()) }?));
        Ok(())
    }

    /// Returns the number of jemalloc's arena, once that is created.
    #[inline]
    pub(crate) fn number(&self) -> Option<u32> {
        self.number.get()
    }

    pub(crate) const fn index(&self) -> u32 {
        self.index
    }
}

/// Returns the arena of a hook table, and its pool.
///
/// # Safety
/// The table is that of an [`Arena`] that is created and not retired.
unsafe fn owner<'a>(table: *mut HookTable) -> Option<(&'a JemallocPool, &'a Arena)> {
    // SAFETY: the table is the first field of an `Arena`, which lives until jemalloc's arena is
    // retired.
    let arena = unsafe { table.cast::<Arena>().as_ref()? };
    // SAFETY: the pool owns the arena, and lives as long.
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
    // SAFETY: jemalloc passes the table of the arena, and valid pointers.
    let (owner, zero, commit) = unsafe { (owner(table), zero.as_mut(), commit.as_mut()) };
    let (Some((pool, arena)), Some(zero), Some(commit)) = (owner, zero, commit) else { return null_mut() };
    // The pool does not allocate at an address of jemalloc's choice. jemalloc requests uncommitted
    // memory as a reserve, and would keep it until the arena is retired.
    if !new_address.is_null() || !*commit {
        return null_mut();
    }
    match pool.allocate_extent(arena, size, align, *zero) {
        Some(address) => {
            // jemalloc asks for zeroed memory only if the environment has it clear all blocks.
            if *zero {
                // SAFETY: the extent is host memory at its own addresses, and no other code has it
                // yet.
                unsafe { address.write_bytes(0, size) };
            }
            address
        }
        None => {
            MISSING.set(Some(MissingExtent { size, align }));
            null_mut()
        }
    }
}

/// Returns an address of jemalloc as an [`Address`].
fn je_address(address: *mut c_void) -> Address {
    Address::from_ptr(address)
}

unsafe extern "C" fn dalloc(
    table: *mut HookTable,
    address: *mut c_void,
    size: usize,
    _is_committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: jemalloc passes the table of the arena.
    let Some((pool, arena)) = (unsafe { owner(table) }) else { return true };
    !pool.free_extent(arena, je_address(address), size, KEEP_PAGES.get())
}

unsafe extern "C" fn destroy(
    table: *mut HookTable,
    address: *mut c_void,
    size: usize,
    _is_committed: bool,
    _arena: c_uint,
) {
    // SAFETY: jemalloc passes the table of the arena.
    if let Some((pool, arena)) = unsafe { owner(table) } {
        pool.free_extent(arena, je_address(address), size, true);
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
    // SAFETY: jemalloc passes the table of the arena.
    let Some((_, arena)) = (unsafe { owner(table) }) else { return true };
    arena.free_extents.lock().split().is_err()
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
    // SAFETY: jemalloc passes the table of the arena.
    let Some((pool, arena)) = (unsafe { owner(table) }) else { return true };
    let (low, high) = (pool.region_at(je_address(low)), pool.region_at(je_address(high)));
    // Regions are returned to the provider one by one, so no extent may span two.
    if low.is_none() || low != high {
        return true;
    }
    arena.free_extents.lock().merge();
    false
}

impl JemallocPool {
    /// Allocates an extent for jemalloc. Returns `None` if no free extent fits, or if jemalloc
    /// would write into memory (`to_touch`) that the CPU must not access.
    fn allocate_extent(
        &self,
        arena: &Arena,
        size: usize,
        align: usize,
        to_touch: bool,
    ) -> Option<*mut c_void> {
        if self.is_held_limit_reached() {
            return None;
        }
        let mut extents = arena.free_extents.lock();
        let position = extents.allocate(size as u64, align.max(PAGE) as u64)?;
        let record = self.regions.get(region_of(position))?;
        if to_touch && (record.is_shadowed() || !self.is_touchable) {
            extents.free(position, size as u64);
            return None;
        }
        record.used.fetch_add(size as u64, Ordering::Relaxed);
        let address = record.je_address_at(position);
        drop(extents);
        Some(core::ptr::with_exposed_provenance_mut(usize::try_from(address).ok()?))
    }

    /// Frees an extent of jemalloc; returns `false` if it is not one of this pool. Without
    /// `keeps_pages`, its pages are purged later.
    fn free_extent(&self, arena: &Arena, begin: Address, size: usize, keeps_pages: bool) -> bool {
        let Some(number) = self.region_at(begin) else { return false };
        let Some(record) = self.regions.get(number) else { return false };
        let mut extents = arena.free_extents.lock();
        let position =
            crate::extents::position(number, record.je_base.load(Ordering::Relaxed), begin.to_bits());
        let is_idle = record.used.fetch_sub(size as u64, Ordering::Relaxed) == size as u64;
        // A wholly free region is returned to the provider, so its pages need not be purged.
        if keeps_pages || is_idle {
            extents.free(position, size as u64);
        } else {
            extents.free_dirty(position, size as u64);
            self.has_pending_work.store(true, Ordering::Relaxed);
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
    use umf_testkit::pool::{AddressOnlyProvider, MmapProvider};

    /// jemalloc may request zeroed extents even if [`je::fills_blocks`] did not detect it.
    #[test]
    fn zeroed_extent_of_untouchable_memory_is_refused() {
        let providers: [(ProviderRef, bool); 3] = [
            (AddressOnlyProvider::new(4096).into(), false),
            (MmapProvider::untouchable().into(), false),
            (MmapProvider::private().into(), true),
        ];
        for (provider, is_memory) in providers {
            let pool =
                JemallocPool::with_settings(provider, crate::JemallocSettings::default().arenas(1)).unwrap();
            // Adds a region with free extents.
            let block = pool.allocate(Layout::new(100, 1).unwrap()).unwrap();
            let arena = &pool.arenas()[0];
            let free = arena.free_extents.lock().free_bytes;
            assert!(free >= 4096);
            let (mut zero, mut commit) = (true, true);
            let table = core::ptr::from_ref(arena).cast_mut().cast();
            // SAFETY: the arena is created, and its pool is alive.
            let got = unsafe { alloc(table, null_mut(), 4096, 4096, &raw mut zero, &raw mut commit, 0) };
            assert_eq!(!got.is_null(), is_memory);
            if is_memory {
                // SAFETY: as above, and the hook returned the extent.
                assert!(!unsafe { dalloc(table, got, 4096, true, 0) });
            }
            assert_eq!(arena.free_extents.lock().free_bytes, free);
            // SAFETY: the block is live, and no thread uses it.
            unsafe { pool.free(block) }.unwrap();
        }
    }
}
