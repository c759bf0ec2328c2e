//! Cases about blocks in one thread: placement, statistics, and the regions of their memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    AddressOnlyProvider, MakePool, MmapProvider, Random, allocate, allocate_at, at, free, layout,
    trim_if_empty_only,
};
use umf_core::{Address, BlockSpan, Error, Pool};

/// The live blocks of a pool. Panics if two overlap.
#[derive(Default)]
struct LiveBlocks {
    blocks: BTreeMap<u64, BlockSpan>,
}

impl LiveBlocks {
    fn add(&mut self, block: BlockSpan) {
        let start = block.address.to_bits();
        let end = start + block.size as u64;
        let below = self.blocks.range(..end).next_back();
        if let Some((_, other)) = below {
            let other_end = other.address.to_bits() + other.size as u64;
            assert!(other_end <= start, "{block:?} overlaps {other:?}");
        }
        self.blocks.insert(start, block);
    }

    fn remove(&mut self, index: usize) -> Option<BlockSpan> {
        let start = *self.blocks.keys().nth(index)?;
        self.blocks.remove(&start)
    }
}

/// Allocates a block and checks alignment, size, and lookup by each address in it.
fn checked(pool: &dyn Pool, size: usize, align: usize) -> BlockSpan {
    let address = allocate_at(pool, size, align);
    assert!(address.is_aligned_to(align), "{address} is no multiple of {align}");
    let block = pool.block_at(address).expect("a live block is found at its start");
    assert_eq!(block.address, address);
    assert!(block.size >= size, "{block:?} is smaller than {size}");
    for inside in [0, 1, size as u64 / 2, size as u64 - 1, block.size as u64 - 1] {
        let inside = at(address, inside.min(size as u64 - 1));
        assert_eq!(pool.block_at(inside), Ok(block), "at {inside}");
    }
    block
}

/// Blocks of 1 byte to 8 MiB at alignments of 1 byte to 2 MiB are aligned, lie in a region of the
/// provider, do not overlap, and are found by each address in them.
pub fn blocks_are_aligned_contained_and_disjoint(make: MakePool<'_>) {
    for page in [256, 4096, 64 << 10, 2 << 20] {
        let provider = AddressOnlyProvider::new(page);
        let pool = make(provider.clone().into());
        let mut live = LiveBlocks::default();
        let mut check = |size, align| {
            let block = checked(&*pool, size, align);
            assert!(provider.contains(block.address, block.size), "{block:?} is in no region");
            live.add(block);
        };
        for magnitude in 0..=23 {
            for size in [(1_usize << magnitude) - 1, 1 << magnitude, (1 << magnitude) + 1] {
                for align in [1, 8, 64, 4096] {
                    check(size.max(1), align);
                }
            }
        }
        for bits in 0..=21 {
            for size in [1, 100, 5000, 70_000, 3 << 20] {
                check(size, 1 << bits);
            }
        }
        for block in live.blocks.values() {
            assert_eq!(pool.block_at(block.address), Ok(*block), "after all were allocated");
            free(&*pool, block.address);
        }
    }
    let pool = make(AddressOnlyProvider::new(4096).into());
    let mut random = Random(1);
    let mut live = LiveBlocks::default();
    for _ in 0..20_000 {
        if random.below(100) < 52 {
            let (size, align) = (random.size(18), 1 << random.below(13));
            live.add(checked(&*pool, size, align));
        } else if !live.blocks.is_empty() {
            let index = random.below(live.blocks.len().min(64));
            let block = live.remove(index).expect("there is one");
            free(&*pool, block.address);
        }
    }
    for block in live.blocks.values() {
        free(&*pool, block.address);
    }
}

/// The pool works over memory without access rights, where each access is fatal.
pub fn pool_never_accesses_memory(make: MakePool<'_>) {
    let pool = make(MmapProvider::untouchable().into());
    let mut random = Random(2);
    let mut live = Vec::new();
    for _ in 0..20_000 {
        if live.len() < 200 {
            live.push(allocate(&*pool, random.size(21)));
        } else {
            free(&*pool, live.swap_remove(random.below(200)));
        }
    }
    for address in live {
        free(&*pool, address);
    }
    pool.trim(0).expect("the provider frees all regions");
}

/// Freed addresses are allocated again. A pool with `Reuse::WhenEmpty` may wait for a trim.
pub fn freed_addresses_are_reused(make: MakePool<'_>) {
    let pool = make(AddressOnlyProvider::new(4096).into());
    for size in [1, 64, 5000, 100_000, 8 << 20] {
        let mut seen = BTreeSet::new();
        for cycle in 0..5_000_u32 {
            let address = allocate(&*pool, size);
            seen.insert(address);
            free(&*pool, address);
            if cycle.is_multiple_of(50) {
                trim_if_empty_only(&*pool);
            }
        }
        assert!(seen.len() < 500, "{} addresses for one block of {size} bytes", seen.len());
    }
}

/// After a million allocations and frees the pool holds about as much as near the beginning.
pub fn memory_is_bounded_over_a_million_cycles(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let mut random = Random(3);
    let mut run = |cycles: usize| {
        for cycle in 0..cycles / 8 {
            if cycle.is_multiple_of(50) {
                trim_if_empty_only(&*pool);
            }
            let sizes: [usize; 8] = core::array::from_fn(|_| random.size(14));
            let blocks = sizes.map(|size| allocate(&*pool, size));
            for block in blocks {
                free(&*pool, block);
            }
        }
    };
    run(100_000);
    let (before, regions) = (provider.live_bytes(), provider.live_regions());
    run(1_000_000);
    let (after, more) = (provider.live_bytes(), provider.live_regions());
    assert!(
        after <= before + (4 << 20) && more <= regions + 4,
        "{before} in {regions}, then {after} in {more}"
    );
    assert_eq!(pool.statistics().live_blocks, 0);
}

/// Statistics match the live blocks, and return to zero.
pub fn statistics_add_up(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let start = pool.statistics();
    assert_eq!((start.live_blocks, start.live_bytes), (0, 0));
    let sizes = [1, 8, 100, 4000, 40_000, 300_000, 3 << 20, 20 << 20];
    let mut bytes = 0;
    let mut blocks = Vec::new();
    for size in sizes {
        let address = allocate(&*pool, size);
        bytes += pool.block_at(address).expect("live").size as u64;
        blocks.push(address);
    }
    let full = pool.statistics();
    assert_eq!(full.live_blocks, sizes.len() as u64);
    assert_eq!(full.live_bytes, bytes);
    assert_eq!(full.allocations - start.allocations, sizes.len() as u64);
    assert_eq!(full.reserved_bytes, provider.live_bytes() as u64);
    assert_eq!(full.regions, provider.live_regions() as u64);
    assert!(full.reserved_bytes >= full.live_bytes && full.peak_reserved_bytes >= full.reserved_bytes);
    for address in blocks {
        free(&*pool, address);
    }
    let end = pool.statistics();
    assert_eq!((end.live_blocks, end.live_bytes), (0, 0));
    assert_eq!(end.frees - start.frees, sizes.len() as u64);
    assert_eq!(end.reserved_bytes, provider.live_bytes() as u64);
    assert!(end.cached_bytes <= end.reserved_bytes);
}

/// An allocation that the provider refuses is an error without effect. The pool works again when
/// the provider does.
pub fn provider_failure_leaves_pool_usable(make: MakePool<'_>) {
    for successes in 0..4 {
        let provider = AddressOnlyProvider::new(4096);
        let pool = make(provider.clone().into());
        provider.fail_after(Some(successes));
        let mut live = Vec::new();
        let error = loop {
            match pool.allocate(layout(600_000, 64)) {
                Ok(address) => live.push(address),
                Err(error) => break error,
            }
            assert!(live.len() < 10_000, "the provider failed, the pool did not");
        };
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
        assert_eq!(pool.statistics().live_blocks, live.len() as u64);
        assert_eq!(pool.statistics().reserved_bytes, provider.live_bytes() as u64);
        for &address in &live {
            assert!(pool.block_at(address).is_ok());
        }
        assert!(pool.allocate(layout(64 << 20, 64)).is_err());
        provider.fail_after(None);
        live.push(allocate(&*pool, 600_000));
        live.push(allocate(&*pool, 64 << 20));
        for address in live {
            free(&*pool, address);
        }
        pool.trim(0).expect("the provider frees all regions");
        assert_eq!(provider.live_regions(), 0);
    }
}

fn fill(pool: &dyn Pool, random: &mut Random) -> Vec<Address> {
    (0..2_000).map(|_| allocate(pool, random.size(20))).collect()
}

/// After all blocks are freed and the pool is trimmed, the provider has all regions back. The pool
/// stays usable.
pub fn trim_returns_all_free_regions(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let mut random = Random(4);
    for _ in 0..3 {
        let blocks = fill(&*pool, &mut random);
        let live = pool.statistics().live_bytes;
        for address in blocks {
            free(&*pool, address);
        }
        assert!(live > 0 && pool.statistics().live_bytes == 0);
        let reserved = pool.statistics().reserved_bytes;
        let freed = pool.trim(0).expect("the provider frees all regions");
        assert_eq!(freed as u64, reserved);
        assert_eq!((provider.live_regions(), pool.statistics().reserved_bytes), (0, 0));
        assert_eq!(pool.trim(0), Ok(0));
    }
}

/// Trim leaves live blocks alone, and stops at the number of bytes to keep.
pub fn trim_keeps_live_blocks_and_requested_bytes(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let mut random = Random(5);
    let mut blocks = fill(&*pool, &mut random);
    let kept = blocks.split_off(1_900);
    for address in blocks {
        free(&*pool, address);
    }
    let before = pool.statistics();
    assert_eq!(pool.trim(usize::MAX), Ok(0));
    assert_eq!(pool.statistics().reserved_bytes, before.reserved_bytes);
    let freed = pool.trim(0).expect("the provider frees them");
    assert_eq!(pool.statistics().reserved_bytes, before.reserved_bytes - freed as u64);
    assert_eq!(provider.live_bytes() as u64, pool.statistics().reserved_bytes);
    for address in kept {
        assert!(provider.contains(address, 1) && pool.block_at(address).is_ok());
        free(&*pool, address);
    }
}

/// Dropping a pool returns all regions, whether its blocks were freed or not.
pub fn drop_returns_all_regions(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    for freed in [0, 1_000, 2_000] {
        let pool = make(provider.clone().into());
        let blocks = fill(&*pool, &mut Random(6));
        for &address in &blocks[..freed] {
            free(&*pool, address);
        }
        assert_eq!(Arc::strong_count(&pool), 1, "a pool keeps no reference to itself");
        drop(pool);
        assert_eq!(provider.live_regions(), 0);
        assert_eq!(umf_runtime::tracker::find(blocks[0]), None);
    }
    assert_eq!(Arc::strong_count(&provider), 1, "the pool drops its reference to the provider");
}
