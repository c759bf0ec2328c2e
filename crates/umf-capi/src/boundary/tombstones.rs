//! Tombstones: addresses of destroyed objects, which detect a second use of a handle.
//!
//! C holds no counted references. The memory of a destroyed object is kept for a while, so no other
//! object gets its address, and the address identifies a destroyed handle. The memory of the oldest
//! tombstone is freed first.

use core::alloc::Layout;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU16, Ordering};
use std::alloc::dealloc;

use umf_sync::Lock;

/// Tombstones of a list. An object keeps its tombstone while 1,024 more are destroyed.
const COUNT: usize = 1 + 1024;
/// Number of hash buckets. With a full list, one address of 32 shares its hash with a tombstone.
const HASHES: usize = 1 << 15;
/// The objects of this process that were destroyed last. IPC handles have marks instead.
pub(super) static DESTROYED: Tombstones = Tombstones::new();

/// The objects that were destroyed last. Thread-safe.
pub(super) struct Tombstones {
    /// Number of tombstones with each hash. For most addresses it shows without the lock that they
    /// have none.
    hashes: [AtomicU16; HASHES],
    ring: Lock<Ring>,
}

struct Ring {
    /// Address and layout of the memory that each tombstone keeps.
    stones: [Option<(usize, Layout)>; COUNT],
    /// Index of the oldest tombstone, which is replaced next.
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

    /// Keeps the memory of a destroyed object, and frees that of the oldest tombstone.
    ///
    /// # Safety
    /// The memory is a block of the global allocator with this layout. Its contents were dropped,
    /// and no other code frees it.
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
            // SAFETY: the caller of `add` for this memory guaranteed that it is such a block. Its
            // tombstone has just been replaced, so no other code frees it.
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
