//! The crate `offset-allocator`: an allocator of numbers for one thread, over one range that it is told.

use std::cell::RefCell;
use std::sync::Mutex;

use offset_allocator::{Allocation, Allocator as Numbers};

use super::allocator::Allocator;

/// Bytes of its range, and the most blocks in it: the live blocks of eight threads.
const RANGE: u32 = u32::MAX;
const BLOCKS: u32 = 1 << 16;

const FULL: &str = "its range is full";

/// One for each thread, which therefore needs no lock.
pub(super) struct Alone;

thread_local! {
    static NUMBERS: RefCell<Numbers> = RefCell::new(Numbers::with_max_allocs(RANGE, BLOCKS));
}

impl Allocator for Alone {
    type Block = Allocation;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> Result<Allocation, &'static str> {
        NUMBERS.with_borrow_mut(|numbers| numbers.allocate(size as u32)).ok_or(FULL)
    }

    #[inline]
    unsafe fn free(&self, block: Allocation, _size: usize) -> Result<(), &'static str> {
        NUMBERS.with_borrow_mut(|numbers| numbers.free(block));
        Ok(())
    }

    fn pointer(&self, _block: Allocation) -> Option<*mut u8> {
        None
    }
}

/// One for all threads, behind a lock.
pub(super) struct Locked(Mutex<Numbers>);

impl Locked {
    pub(super) fn new() -> Locked {
        Locked(Mutex::new(Numbers::with_max_allocs(RANGE, BLOCKS)))
    }
}

impl Allocator for Locked {
    type Block = Allocation;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> Result<Allocation, &'static str> {
        self.0.lock().map_err(|_| "its lock is poisoned")?.allocate(size as u32).ok_or(FULL)
    }

    #[inline]
    unsafe fn free(&self, block: Allocation, _size: usize) -> Result<(), &'static str> {
        self.0.lock().map_err(|_| "its lock is poisoned")?.free(block);
        Ok(())
    }

    fn pointer(&self, _block: Allocation) -> Option<*mut u8> {
        None
    }
}
