//! Handles that were destroyed: what was behind the latest of them stays as memory, so that whoever uses one again is told.
//!
//! C owns no reference that could be counted. As long as the memory is not anybody else's, its address says that the handle is an old
//! one. Later it is forgotten, and using it is what it always was: not allowed.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::dealloc;

use umf_core::global::Global;

/// Each address has one place.
const PLACES: usize = 1024;

/// Where something was, by place: 0 if nothing.
static ADDRESSES: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];
/// The same, with what it takes to give the memory back.
static GRAVES: Global<[Option<Grave>; PLACES]> = Global::leaf([const { None }; PLACES]);

struct Grave {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory that nobody uses.
unsafe impl Send for Grave {}

/// Objects of so many bytes, IPC handles above all, have few of the places: they come and go, and their memory stays in the cache then.
const LARGE: usize = 256;
const PLACES_OF_LARGE: usize = 16;

const fn place(address: usize, size: usize) -> usize {
    let places = if size >= LARGE { PLACES_OF_LARGE } else { PLACES };
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (usize::BITS - places.ilog2())
}

/// Whether there was an object of so many bytes that is destroyed.
#[inline]
pub(super) fn has(address: usize, size: usize) -> bool {
    ADDRESSES[place(address, size)].load(Ordering::Relaxed) == address && address != 0
}

/// Keeps the memory of an object, in the place of another's.
///
/// # Safety
/// It is a block of the global allocator with that layout, which nobody else gives back, and its content was dropped.
pub(super) unsafe fn bury(memory: NonNull<u8>, layout: Layout) {
    if layout.size() == 0 {
        return;
    }
    let address = memory.addr().get();
    let place = place(address, layout.size());
    let older = {
        let mut graves = GRAVES.lock();
        ADDRESSES[place].store(address, Ordering::Relaxed);
        graves[place].replace(Grave { memory, layout })
    };
    if let Some(older) = older {
        // SAFETY: the caller of `bury` for it said so, and it is nobody's since.
        unsafe { dealloc(older.memory.as_ptr(), older.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_their_memory_is_nobodys() {
        let first = Box::into_raw(Box::new([1_u64; 4])).addr();
        let memory = NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(first)).unwrap();
        assert!(!has(first, 32) && !has(0, 32));
        // SAFETY: of the box above.
        unsafe { bury(memory, Layout::new::<[u64; 4]>()) };
        assert!(has(first, 32));
        let others: Vec<_> = (0..100).map(|_| Box::new([2_u64; 4])).collect();
        assert!(others.iter().all(|other| core::ptr::from_ref(&**other).addr() != first));
        // Far more than there are places: what is in the way is given back.
        for _ in 0..PLACES * 20 {
            let memory = NonNull::from(Box::leak(Box::new([3_u64; 4]))).cast();
            // SAFETY: of the box above.
            unsafe { bury(memory, Layout::new::<[u64; 4]>()) };
        }
    }
}
