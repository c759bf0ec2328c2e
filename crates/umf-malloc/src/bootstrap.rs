//! [`Bootstrap`]: the allocator for requests before the pool exists, and from inside its slow
//! paths.
//!
//! It serves a few pages in the life of a process. It bumps a pointer through chunks, each twice as
//! large as the one before, which are never unmapped. Each block has a header with its size in
//! front of it. Freed blocks of up to 1 MiB go to a free list per power of two. All blocks read as
//! zero.
//!
//! No thread waits for the lock of the free lists. The calling thread itself may hold it, or a
//! thread that a forked child does not have. A thread that finds the lock taken does not use the
//! free lists.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use umf_sync::{Lock, fork::LeafUnindexed};

const FIRST: usize = 256 << 10;
const CHUNKS: usize = 30;
/// The bytes of a header, and the least alignment of a block.
const HEADER: usize = 16;
/// The number of free lists: for blocks of 32 bytes, 64 bytes, and so on up to 1 MiB.
const CLASSES: usize = 16;
const SMALLEST: usize = 32;

struct Chunk {
    base: AtomicPtr<u8>,
    used: AtomicUsize,
}

impl Chunk {
    const fn new() -> Self {
        Self { base: AtomicPtr::new(ptr::null_mut()), used: AtomicUsize::new(0) }
    }
}

/// The header of a block.
struct Header {
    size: usize,
    /// [`LIVE`] plus the class of the block, or plus [`CLASSES`] if the block is too large for a
    /// free list. 0 after the block was freed.
    tag: usize,
}

/// A magic number that marks the header of a live block. An address without it is not a block, or
/// was freed before.
const LIVE: usize = 0x756d_665f_6c69_7665 & !0xff;

/// The heads of the free lists. The first word of a free block is the address of the next one.
struct FreeLists([usize; CLASSES]);

/// The bootstrap allocator.
pub(crate) struct Bootstrap {
    chunks: [Chunk; CHUNKS],
    free_lists: Lock<FreeLists, LeafUnindexed>,
}

/// The bootstrap allocator of the process, which is also the global allocator of this library.
#[cfg_attr(not(test), global_allocator)]
pub(crate) static BOOTSTRAP: Bootstrap = Bootstrap::new();

impl Bootstrap {
    const fn new() -> Self {
        Self { chunks: [const { Chunk::new() }; CHUNKS], free_lists: Lock::new(FreeLists([0; CLASSES])) }
    }

    /// Returns a zeroed block; `None` without memory.
    pub(crate) fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let class = if align <= HEADER { class_of(size) } else { CLASSES };
        if let Some(block) = self.pop_free(class) {
            return Some(block);
        }
        let usable = if class < CLASSES { SMALLEST << class } else { size };
        let align = align.max(HEADER);
        let need =
            usable.checked_next_multiple_of(HEADER)?.checked_add(HEADER)?.checked_add(align - HEADER)?;
        let memory = self.bump(need)?;
        let start = (memory.addr() + HEADER).checked_next_multiple_of(align)?;
        let block = memory.with_addr(start);
        // SAFETY: the header and the block lie in the `need` bytes that `bump` gave to this call
        // alone, and both are aligned.
        unsafe { block.sub(HEADER).cast::<Header>().write(Header { size: usable, tag: LIVE + class }) };
        NonNull::new(block)
    }

    /// Pops a block from the free list of a class, and zeroes it.
    fn pop_free(&self, class: usize) -> Option<NonNull<u8>> {
        let mut free = (class < CLASSES).then(|| self.free_lists.try_lock()).flatten()?;
        let block = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(free.0[class]))?;
        // SAFETY: a block in the list has this size, no other code uses it, and its first word is
        // the address of the next one.
        unsafe {
            free.0[class] = block.cast::<usize>().read();
            drop(free);
            block.write_bytes(0, SMALLEST << class);
            block.sub(HEADER).cast::<Header>().as_mut().tag = LIVE + class;
        }
        Some(block)
    }

    /// Returns `need` bytes of a chunk that were never handed out before.
    fn bump(&self, need: usize) -> Option<*mut u8> {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let size = FIRST << number;
            if need > size {
                continue;
            }
            let base = NonNull::new(chunk.base.load(Ordering::Acquire)).or_else(|| map(chunk, size))?;
            let take = |used: usize| used.checked_add(need).filter(|&end| end <= size);
            if let Ok(offset) = chunk.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
                // SAFETY: the chunk has `size` bytes, and the offset is below.
                return Some(unsafe { base.as_ptr().add(offset) });
            }
        }
        None
    }

    /// Returns whether `address` lies in a chunk.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.header(address).is_some()
    }

    /// Returns the size of the live block at `address`; `None` if there is none.
    pub(crate) fn size_of(&self, address: usize) -> Option<usize> {
        // SAFETY: the header lies in a chunk, which is mapped and readable.
        let header = unsafe { self.header(address)?.read_unaligned() };
        (LIVE..=LIVE + CLASSES).contains(&header.tag).then_some(header.size)
    }

    /// Returns where the header of a block at `address` would lie.
    fn header(&self, address: usize) -> Option<*mut Header> {
        let lies_in = |(number, chunk): (usize, &Chunk)| {
            let base = chunk.base.load(Ordering::Acquire);
            let offset = address.checked_sub(base.addr()).filter(|_| !base.is_null())?;
            (offset >= HEADER && offset < FIRST << number).then_some(base)
        };
        let base = self.chunks.iter().enumerate().find_map(lies_in)?;
        Some(base.with_addr(address - HEADER).cast())
    }

    /// Frees a block.
    ///
    /// # Safety
    /// [`Bootstrap::allocate`] returned the block, and no thread uses it any more.
    pub(crate) unsafe fn free(&self, block: NonNull<u8>) {
        // SAFETY: passed on to the caller.
        let tag = unsafe { &mut block.sub(HEADER).cast::<Header>().as_mut().tag };
        let class = core::mem::replace(tag, 0).wrapping_sub(LIVE);
        if class < CLASSES
            && let Some(mut free) = self.free_lists.try_lock()
        {
            // SAFETY: the block is free and at least `SMALLEST` bytes long.
            unsafe { block.cast::<usize>().write(free.0[class]) };
            free.0[class] = block.as_ptr().expose_provenance();
        }
    }
}

fn class_of(size: usize) -> usize {
    (0..CLASSES).find(|class| size <= SMALLEST << class).unwrap_or(CLASSES)
}

/// Maps a chunk, unless another thread was first; returns its memory.
fn map(chunk: &Chunk, size: usize) -> Option<NonNull<u8>> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    let none = ptr::null_mut();
    match chunk.base.compare_exchange(none, mapped.cast(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => NonNull::new(mapped.cast()),
        Err(first) => {
            // SAFETY: no other thread knows this mapping.
            unsafe { libc::munmap(mapped, size) };
            NonNull::new(first)
        }
    }
}

// SAFETY: blocks do not overlap, have the requested size and alignment, and stay mapped.
unsafe impl GlobalAlloc for Bootstrap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout.size(), layout.align()).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller; all blocks are zeroed.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        if let Some(block) = NonNull::new(block) {
            // SAFETY: passed on to the caller.
            unsafe { self.free(block) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroed_aligned_disjoint_and_reused() {
        static OWN: Bootstrap = Bootstrap::new();
        let mut ends = Vec::new();
        for size in [0, 1, 31, 32, 33, 4096, 4097, 300 << 10, 5 << 20] {
            for align in [1, 16, 64, 4096, 64 << 10] {
                let block = OWN.allocate(size, align).unwrap();
                assert_eq!(block.addr().get() % align.max(16), 0);
                let has = OWN.size_of(block.addr().get()).unwrap();
                assert!(has >= size);
                // SAFETY: the block has `has` bytes.
                let bytes = unsafe { core::slice::from_raw_parts_mut(block.as_ptr(), has) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(7);
                ends.push((block.addr().get(), block.addr().get() + has));
            }
        }
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        let block = OWN.allocate(100, 8).unwrap();
        // SAFETY: the block has 100 bytes, and is not used below.
        unsafe {
            block.write_bytes(1, 100);
            OWN.free(block);
        }
        assert_eq!(OWN.size_of(block.addr().get()), None);
        let again = OWN.allocate(70, 8).unwrap();
        assert_eq!(again, block);
        // SAFETY: the block has 70 bytes.
        assert!(unsafe { core::slice::from_raw_parts(again.as_ptr(), 70) }.iter().all(|&byte| byte == 0));
        for size in [5000, 100_000, 1 << 20] {
            let large = OWN.allocate(size, 8).unwrap();
            // SAFETY: the block has `size` bytes, and is not used below.
            unsafe {
                large.write_bytes(1, size);
                OWN.free(large);
            }
            assert_eq!(OWN.allocate(size - 100, 8), Some(large), "reused");
            // SAFETY: the block has `size` bytes.
            let bytes = unsafe { core::slice::from_raw_parts(large.as_ptr(), size) };
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
        assert_eq!(OWN.size_of(&raw const ends as usize), None);
        assert!(OWN.allocate(usize::MAX - 40, 8).is_none() && OWN.allocate(1 << 50, 8).is_none());
    }
}
