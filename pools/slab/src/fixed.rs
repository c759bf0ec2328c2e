//! Pools that live for ever, made without the global allocator.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::{Provider, ProviderRef, Result};
use umf_sync::chunks::{Chunks, Zeroed};

use crate::{SlabPool, SlabSettings};

struct Place(UnsafeCell<MaybeUninit<SlabPool>>);

// SAFETY: a place is written once, by the thread that took its number, before a reference to it exists.
unsafe impl Sync for Place {}
// SAFETY: anything is a valid `MaybeUninit`.
unsafe impl Zeroed for Place {}

static PLACES: Chunks<Place, 1> = Chunks::new();
static TAKEN: AtomicU32 = AtomicU32::new(0);

impl SlabPool {
    /// A pool that lives for ever, and that may be the global allocator: neither making nor using it touches
    /// that, as long as `provider` does not.
    ///
    /// Settings: [`SlabSettings::trace`] and [`SlabSettings::background`] are ignored (subscribers and threads allocate).
    ///
    /// # Errors
    /// As [`SlabPool::new`], and [`umf_core::Error::OutOfMemory`] if there is no memory for the pool itself.
    pub fn new_static(provider: &'static dyn Provider, settings: SlabSettings) -> Result<&'static Self> {
        let place = PLACES.get_or_grow(TAKEN.fetch_add(1, Ordering::Relaxed))?.0.get();
        let settings = settings.trace(0).background(false);
        let pool = Self::unplaced(ProviderRef::Static(provider), settings)?;
        // SAFETY: the place is this call's own; it is never written again, and never unmapped.
        let pool = unsafe { (*place).write(pool) };
        // SAFETY: the pool stays there for ever.
        match unsafe { pool.settle() }.and_then(|()| pool.begin()) {
            Ok(()) => Ok(pool),
            Err(error) => {
                // SAFETY: nobody has seen the pool; this takes it out of wherever it was entered.
                unsafe { core::ptr::drop_in_place(pool) };
                Err(error)
            }
        }
    }
}
