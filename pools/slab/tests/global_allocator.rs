//! A slab pool as the global allocator of this test program.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::sync::OnceLock;

use umf_core::{Address, Error, MemoryKind, Pool, Provider, ProviderKind, Region, Result, Visibility};
use umf_pool_slab::{SlabPool, SlabSettings};

/// A provider of anonymous memory that does not use the heap.
struct Anonymous;

// SAFETY: each region is a mapping of its own.
unsafe impl Provider for Anonymous {
    fn kind(&self) -> ProviderKind {
        ProviderKind::HOST
    }
    fn name(&self) -> &str {
        "anonymous"
    }
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
    fn visibility(&self) -> Visibility {
        Visibility::Private
    }
    fn page_size(&self) -> usize {
        4096
    }
    fn allocate(&self, layout: umf_core::Layout) -> Result<Region> {
        if layout.align() > 4096 {
            return Err(Error::BadAlignment { align: layout.align() });
        }
        let size = layout.pad_to(4096)?.size();
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing
        // memory.
        let mapped = unsafe { libc::mmap(core::ptr::null_mut(), size, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Error::OutOfMemory { size, owner: "mmap", native: 0 });
        }
        mapped.expose_provenance();
        Ok(Region::new(Address::from_ptr(mapped), size))
    }
    unsafe fn free(&self, region: Region) -> Result<()> {
        if let Some(base) = region.base().as_ptr() {
            // SAFETY: `allocate` created the mapping.
            unsafe { libc::munmap(base.cast(), region.size()) };
        }
        Ok(())
    }
}

struct Global;

fn pool() -> Option<&'static SlabPool> {
    static POOL: OnceLock<Option<&'static SlabPool>> = OnceLock::new();
    *POOL.get_or_init(|| SlabPool::new_static(&Anonymous, SlabSettings::new().name("global")).ok())
}

// SAFETY: blocks of the pool have the size and alignment that `GlobalAlloc` requires, and are host
// memory.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = pool().zip(layout.try_into().ok()).and_then(|(pool, layout)| pool.allocate(layout).ok());
        block.and_then(Address::as_ptr).unwrap_or(core::ptr::null_mut())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        if let Some(pool) = pool() {
            // SAFETY: passed on to the caller.
            let freed = unsafe { pool.free(Address::from_ptr(pointer)) };
            if freed.is_err() {
                std::process::abort();
            }
        }
    }
}

#[global_allocator]
static GLOBAL: Global = Global;

#[test]
fn program_runs_on_a_slab_pool() {
    let threads: Vec<_> = (0..8_u64)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut map: HashMap<String, Vec<u64>> = HashMap::new();
                for n in 0..20_000 {
                    map.entry(format!("{}", n % 500)).or_default().push(n * thread);
                    if n % 1_000 == 0 {
                        map.remove(&format!("{}", n / 1_000));
                    }
                }
                map.values().map(Vec::len).sum::<usize>()
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap() > 15_000);
    }
    let big = vec![1_u8; 32 << 20];
    let pool = pool().unwrap();
    let statistics = pool.statistics();
    assert!(statistics.allocations > 100_000 && statistics.live_bytes >= 32 << 20);
    assert!(pool.block_at(Address::from_ptr(big.as_ptr())).is_ok());
    drop(big);
    assert!(pool.trim(0).is_ok());
    // Live objects survive a trim.
    assert!(pool.statistics().live_blocks > 0);
}
