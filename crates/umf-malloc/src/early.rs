//! [`Early`]: memory for what comes before the pool, and for what the pool's own slow paths bring about.
//!
//! A few pages in the life of a process. Chunks are mappings that stay; each is twice as large as the one before. A block has its size in
//! front of it, and is used again, but for huge ones. All of it reads as zero when it is handed out. No lock is waited for: a thread that
//! finds it taken (by itself, or by one that a forked child does not have) goes without used blocks.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use umf_sync::{Lock, fork::LeafUnindexed};

const FIRST: usize = 256 << 10;
const CHUNKS: usize = 30;
/// In front of each block, and what it is aligned to at least.
const HEADER: usize = 16;
/// Blocks of 32, 64, and so on up to 1 MiB are used again.
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

/// What lies in front of a block.
struct Header {
    size: usize,
    /// [`LIVE`], plus the class whose list it goes to: [`CLASSES`] if to none.
    tag: usize,
}

/// What else does not lie in front of an address: a wrong one is told from a block by it, and a second free from the first.
const LIVE: usize = 0x756d_665f_6c69_7665 & !0xff;

/// The head of each list of free blocks, whose first word is the next one.
struct Free([usize; CLASSES]);

/// The allocator.
pub(crate) struct Early {
    chunks: [Chunk; CHUNKS],
    free: Lock<Free, LeafUnindexed>,
}

/// The one that there is. Rust's own collections in this library are from it, too.
#[cfg_attr(not(test), global_allocator)]
pub(crate) static EARLY: Early = Early::new();

impl Early {
    const fn new() -> Self {
        Self { chunks: [const { Chunk::new() }; CHUNKS], free: Lock::new(Free([0; CLASSES])) }
    }

    /// A zeroed block; `None` where there is no memory.
    pub(crate) fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let class = if align <= HEADER { class_of(size) } else { CLASSES };
        if let Some(block) = self.take_used(class) {
            return Some(block);
        }
        let room = if class < CLASSES { SMALLEST << class } else { size };
        let align = align.max(HEADER);
        let need = room.checked_next_multiple_of(HEADER)?.checked_add(HEADER)?.checked_add(align - HEADER)?;
        let place = self.carve(need)?;
        let start = (place.addr() + HEADER).checked_next_multiple_of(align)?;
        let block = place.with_addr(start);
        // SAFETY: `carve` gave `need` bytes to this call alone, of which the header and the block are part; both are aligned.
        unsafe { block.sub(HEADER).cast::<Header>().write(Header { size: room, tag: LIVE + class }) };
        NonNull::new(block)
    }

    fn take_used(&self, class: usize) -> Option<NonNull<u8>> {
        let mut free = (class < CLASSES).then(|| self.free.try_lock()).flatten()?;
        let block = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(free.0[class]))?;
        // SAFETY: what is in a list is a block of this size that nobody uses, and its first word is the next one.
        unsafe {
            free.0[class] = block.cast::<usize>().read();
            drop(free);
            block.write_bytes(0, SMALLEST << class);
            block.sub(HEADER).cast::<Header>().as_mut().tag = LIVE + class;
        }
        Some(block)
    }

    /// So many bytes of a chunk, never handed out before.
    fn carve(&self, need: usize) -> Option<*mut u8> {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let size = FIRST << number;
            if need > size {
                continue;
            }
            let base = NonNull::new(chunk.base.load(Ordering::Acquire)).or_else(|| map(chunk, size))?;
            let take = |used: usize| used.checked_add(need).filter(|&end| end <= size);
            if let Ok(offset) = chunk.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
                // SAFETY: the chunk has `size` bytes.
                return Some(unsafe { base.as_ptr().add(offset) });
            }
        }
        None
    }

    /// Whether `address` lies in a chunk.
    pub(crate) fn has(&self, address: usize) -> bool {
        self.header(address).is_some()
    }

    /// How many bytes the live block at `address` has; `None` if there is none.
    pub(crate) fn size_of(&self, address: usize) -> Option<usize> {
        // SAFETY: it lies in a chunk, all of which can be read.
        let header = unsafe { self.header(address)?.read_unaligned() };
        (LIVE..=LIVE + CLASSES).contains(&header.tag).then_some(header.size)
    }

    /// What would be the header of a block there.
    fn header(&self, address: usize) -> Option<*mut Header> {
        let lies_in = |(number, chunk): (usize, &Chunk)| {
            let base = chunk.base.load(Ordering::Acquire);
            let offset = address.checked_sub(base.addr()).filter(|_| !base.is_null())?;
            (offset >= HEADER && offset < FIRST << number).then_some(base)
        };
        let base = self.chunks.iter().enumerate().find_map(lies_in)?;
        Some(base.with_addr(address - HEADER).cast())
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// It is one of [`Early::allocate`], and nobody uses it.
    pub(crate) unsafe fn free(&self, block: NonNull<u8>) {
        // SAFETY: passed on to the caller.
        let tag = unsafe { &mut block.sub(HEADER).cast::<Header>().as_mut().tag };
        let class = core::mem::replace(tag, 0).wrapping_sub(LIVE);
        if class < CLASSES
            && let Some(mut free) = self.free.try_lock()
        {
            // SAFETY: the block is nobody's, and has room for a word.
            unsafe { block.cast::<usize>().write(free.0[class]) };
            free.0[class] = block.as_ptr().expose_provenance();
        }
    }
}

fn class_of(size: usize) -> usize {
    (0..CLASSES).find(|class| size <= SMALLEST << class).unwrap_or(CLASSES)
}

/// Maps a chunk, if nobody else was first.
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
            // SAFETY: nobody has seen this mapping.
            unsafe { libc::munmap(mapped, size) };
            NonNull::new(first)
        }
    }
}

// SAFETY: blocks do not overlap, have the size and alignment that is asked for, and stay.
unsafe impl GlobalAlloc for Early {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout.size(), layout.align()).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller; all of it is zeroed.
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
    fn blocks_are_zeroed_aligned_apart_and_used_again() {
        static OWN: Early = Early::new();
        let mut ends = Vec::new();
        for size in [0, 1, 31, 32, 33, 4096, 4097, 300 << 10, 5 << 20] {
            for align in [1, 16, 64, 4096, 64 << 10] {
                let block = OWN.allocate(size, align).unwrap();
                assert_eq!(block.addr().get() % align.max(16), 0);
                let has = OWN.size_of(block.addr().get()).unwrap();
                assert!(has >= size);
                // SAFETY: the block has so many bytes.
                let bytes = unsafe { core::slice::from_raw_parts_mut(block.as_ptr(), has) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(7);
                ends.push((block.addr().get(), block.addr().get() + has));
            }
        }
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        let block = OWN.allocate(100, 8).unwrap();
        // SAFETY: it is of 100 bytes, and not used below.
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
            // SAFETY: it is of so many bytes, and not used below.
            unsafe {
                large.write_bytes(1, size);
                OWN.free(large);
            }
            assert_eq!(OWN.allocate(size - 100, 8), Some(large), "used again");
            // SAFETY: the block has so many bytes.
            let bytes = unsafe { core::slice::from_raw_parts(large.as_ptr(), size) };
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
        assert_eq!(OWN.size_of(&raw const ends as usize), None);
        assert!(OWN.allocate(usize::MAX - 40, 8).is_none() && OWN.allocate(1 << 50, 8).is_none());
    }
}
