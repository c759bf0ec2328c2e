//! Tombstones: addresses of destroyed objects, by which a second use of a handle is found.
//!
//! C holds no reference that could be counted. The memory of a destroyed object is kept for a while.
//! As long as it is kept, no other object has its address, and the address says that the handle was
//! destroyed. The object that was destroyed first is the first whose memory is given back.

use core::alloc::Layout;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU16, Ordering};
use std::alloc::dealloc;

use umf_ipc::HANDLE_SIZE;
use umf_sync::Lock;

/// Tombstones of a list: for one object, and for 1,024 that are destroyed after it.
const COUNT: u16 = 1 + 1024;
/// Chains of a list: tombstones by hash of their address.
const CHAINS: usize = 4096;
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
    stones: [Tombstone; COUNT as usize],
    /// The newest tombstone of each chain, by its number; 0 for none.
    chains: [AtomicU16; CHAINS],
    ring: Lock<Ring>,
}

/// Its number is one more than its index.
struct Tombstone {
    memory: AtomicPtr<u8>,
    /// The number of the next older one of the chain; 0 for none.
    older: AtomicU16,
}

/// The order of tombstones.
struct Ring {
    /// What it takes to give the memory back; `None` for tombstones that were never used.
    layouts: [Option<Layout>; COUNT as usize],
    /// The index of the oldest tombstone, which is used next.
    next: u16,
}

impl Tombstones {
    const fn new() -> Self {
        Self {
            stones: [const { Tombstone { memory: AtomicPtr::new(null_mut()), older: AtomicU16::new(0) } };
                COUNT as usize],
            chains: [const { AtomicU16::new(0) }; CHAINS],
            ring: Lock::new(Ring { layouts: [None; COUNT as usize], next: 0 }),
        }
    }

    #[inline]
    fn chain(&self, address: usize) -> &AtomicU16 {
        let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.chains[(hash >> (u64::BITS - CHAINS.ilog2())) as usize]
    }

    /// Returns whether an object at this address was destroyed. Takes no lock.
    #[inline]
    pub(super) fn has(&self, address: usize) -> bool {
        // Acquire: the tombstone and its link were written before.
        let newest = self.chain(address).load(Ordering::Acquire);
        newest != 0 && self.has_from(newest, address)
    }

    #[inline(never)]
    fn has_from(&self, mut number: u16, address: usize) -> bool {
        while let Some(index) = usize::from(number).checked_sub(1) {
            let stone = &self.stones[index];
            if stone.memory.load(Ordering::Relaxed).addr() == address {
                return true;
            }
            number = stone.older.load(Ordering::Relaxed);
        }
        false
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
        let oldest = {
            let mut ring = self.ring.lock();
            let index = usize::from(ring.next);
            let number = ring.next + 1;
            ring.next = number % COUNT;
            let stone = &self.stones[index];
            let oldest = ring.layouts[index].replace(layout);
            let oldest = oldest.map(|layout| (stone.memory.load(Ordering::Relaxed), layout));
            if let Some((oldest, _)) = oldest {
                self.unlink(oldest.addr(), number);
            }
            let chain = self.chain(memory.addr().get());
            stone.memory.store(memory.as_ptr(), Ordering::Relaxed);
            stone.older.store(chain.load(Ordering::Relaxed), Ordering::Relaxed);
            chain.store(number, Ordering::Release);
            oldest
        };
        if let Some((memory, layout)) = oldest {
            // SAFETY: the caller of `add` for this memory promised that it is such a block, and its
            // tombstone, which alone had it, is another object's now.
            unsafe { dealloc(memory, layout) };
        }
    }

    /// Takes the oldest tombstone out of its chain, of which it is the last. Under the lock.
    fn unlink(&self, address: usize, number: u16) {
        let mut link = self.chain(address);
        while link.load(Ordering::Relaxed) != number {
            link = &self.stones[usize::from(link.load(Ordering::Relaxed)) - 1].older;
        }
        link.store(0, Ordering::Relaxed);
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
            if known.len() > usize::from(COUNT) {
                assert!(!LIST.has(known.pop_front().unwrap()));
            }
            assert!(LIST.has(known[0]) && LIST.has(known[known.len() - 1]));
        }
        assert!(known.iter().all(|&address| LIST.has(address)));
        let live = Box::new([2_u64; 4]);
        assert!(!LIST.has(core::ptr::from_ref(&*live).addr()) && !LIST.has(0));
    }
}
