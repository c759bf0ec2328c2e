//! Tombstones: addresses of destroyed objects, by which a second use of a handle is found.
//!
//! C holds no reference that could be counted. The memory of a destroyed object is kept for a
//! while. As long as it is kept, no other object has its address, and the address says that the
//! handle was destroyed. The object that was destroyed first is the first whose memory is given
//! back.

use core::alloc::Layout;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU16, Ordering};
use std::alloc::dealloc;

use umf_ipc::HANDLE_SIZE;
use umf_sync::Lock;

/// Tombstones of a list: for one object, and for 1,024 that are destroyed after it.
const COUNT: usize = 1 + 1024;
/// Hashes of addresses. With a full list, one address of 32 shares its hash with a tombstone.
const HASHES: usize = 1 << 15;
/// Bytes of an IPC handle of the C interface.
const IPC_HANDLE: usize = HANDLE_SIZE + 8;

static IPC_HANDLES: Tombstones = Tombstones::new();
static OTHERS: Tombstones = Tombstones::new();

/// Returns the list for objects of a type. Programs put many more IPC handles than they destroy
/// other objects, so IPC handles have a list of their own.
#[inline]
pub(super) fn of<T>() -> &'static Tombstones {
    if size_of::<T>() == IPC_HANDLE { &IPC_HANDLES } else { &OTHERS }
}

/// The objects that were destroyed last. Thread-safe.
pub(super) struct Tombstones {
    /// How many tombstones have each hash: of most addresses it says without a lock that they have
    /// none.
    hashes: [AtomicU16; HASHES],
    ring: Lock<Ring>,
}

struct Ring {
    /// The address and the layout of the memory that each tombstone keeps.
    stones: [Option<(usize, Layout)>; COUNT],
    /// The oldest tombstone, which is used next.
    next: usize,
}

const fn hash(address: usize) -> usize {
    ((address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HASHES.ilog2())) as usize
}

impl Tombstones {
    const fn new() -> Self {
        Self {
            hashes: [const { AtomicU16::new(0) }; HASHES],
            ring: Lock::new(Ring { stones: [None; COUNT], next: 0 }),
        }
    }

    /// Returns whether an object at this address was destroyed.
    #[inline]
    pub(super) fn has(&'static self, address: usize) -> bool {
        self.hashes[hash(address)].load(Ordering::Relaxed) != 0 && self.has_stone(address)
    }

    #[cold]
    fn has_stone(&'static self, address: usize) -> bool {
        self.ring.lock().stones.iter().flatten().any(|&(memory, _)| memory == address)
    }

    /// Keeps the memory of a destroyed object, and gives back that of the oldest one.
    ///
    /// # Safety
    /// The memory is a block of the global allocator with that layout. Its content was dropped, and
    /// nothing else gives it back.
    pub(super) unsafe fn add(&'static self, memory: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 {
            return;
        }
        let address = memory.as_ptr().expose_provenance();
        let oldest = {
            let mut ring = self.ring.lock();
            let index = ring.next;
            ring.next = (index + 1) % COUNT;
            let oldest = ring.stones[index].replace((address, layout));
            self.hashes[hash(address)].fetch_add(1, Ordering::Relaxed);
            if let Some((oldest, _)) = oldest {
                self.hashes[hash(oldest)].fetch_sub(1, Ordering::Relaxed);
            }
            oldest
        };
        if let Some((memory, layout)) = oldest {
            // SAFETY: the caller of `add` for this memory promised that it is such a block, and its
            // tombstone, which alone had it, is another object's now.
            unsafe { dealloc(with_exposed_provenance_mut(memory), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn an_address_is_known_until_1024_others_are_added() {
        static LIST: Tombstones = Tombstones::new();
        let add = || {
            let memory = NonNull::from(Box::leak(Box::new([1_u64; 4]))).cast::<u8>();
            // SAFETY: the memory of a leaked box.
            unsafe { LIST.add(memory, Layout::new::<[u64; 4]>()) };
            memory.addr().get()
        };
        let mut known = VecDeque::new();
        for _ in 0..4 * COUNT {
            known.push_back(add());
            if known.len() > COUNT {
                assert!(!LIST.has(known.pop_front().unwrap()));
            }
            assert!(LIST.has(known[0]) && LIST.has(known[known.len() - 1]));
        }
        assert!(known.iter().all(|&address| LIST.has(address)));
        let live = Box::new([2_u64; 4]);
        assert!(!LIST.has(core::ptr::from_ref(&*live).addr()) && !LIST.has(0));
    }
}
