//! A warm process shares blocks without the heap, so that it goes on if the heap is exhausted: see
//! "Without heap memory" in `docs/errors.md`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use umf::Pool;

thread_local! {
    /// Whether the heap refuses this thread.
    static IS_EXHAUSTED: Cell<bool> = const { Cell::new(false) };
}

/// The system's heap, which can be exhausted for one thread.
struct Heap;

// SAFETY: forwards to the system's heap, or returns null, which is the contract's failure.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_EXHAUSTED.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

/// Blocks of slabs, of extents, and of a region of their own.
const SIZES: [usize; 5] = [1, 100, 5000, 70_000, 3 << 20];

/// Allocates, exports, opens, closes and frees.
fn share(pool: &Pool) -> umf::Result<()> {
    let mut blocks = [const { None }; SIZES.len()];
    for (block, size) in blocks.iter_mut().zip(SIZES) {
        *block = Some(pool.allocate(size)?);
    }
    for block in blocks.iter().flatten() {
        let handle = block.handle()?;
        let mapping = umf::open(&handle)?;
        assert!(mapping.is_current());
    }
    drop(blocks);
    assert!(pool.drain(Duration::from_secs(1)).is_empty());
    Ok(())
}

#[test]
fn warm_process_shares_blocks_without_heap() {
    let pool = Pool::shared().unwrap();
    for _ in 0..3 {
        share(&pool).unwrap();
    }
    // What is done once in a while is due.
    std::thread::sleep(Duration::from_millis(50));
    IS_EXHAUSTED.set(true);
    let shared = share(&pool);
    IS_EXHAUSTED.set(false);
    shared.unwrap();
}
