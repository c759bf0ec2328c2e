//! Blocks, one thread: where they lie, and where their memory comes from and goes to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Make, Numbers, Pages, Random, allocate, allocate_at, at, free, layout};
use umf_core::{Address, BlockSpan, Error, Pool};

/// Live blocks of a pool, which overlap nowhere.
#[derive(Default)]
struct Live {
    blocks: BTreeMap<u64, BlockSpan>,
}

impl Live {
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

    fn remove(&mut self, place: usize) -> Option<BlockSpan> {
        let start = *self.blocks.keys().nth(place)?;
        self.blocks.remove(&start)
    }
}

/// Checks one allocation from all sides, and yields its block.
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

/// Blocks of 1 byte to 8 MiB at alignments of 1 byte to 2 MiB: aligned, within a region of the provider, apart
/// from each other, and found by each address in them.
pub fn blocks_are_aligned_contained_and_apart(make: Make<'_>) {
    for page in [256, 4096, 64 << 10, 2 << 20] {
        let provider = Numbers::new(page);
        let pool = make(provider.clone().into());
        let mut live = Live::default();
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
    let pool = make(Numbers::new(4096).into());
    let mut random = Random(1);
    let mut live = Live::default();
    for _ in 0..20_000 {
        if random.below(100) < 52 {
            let (size, align) = (random.size(18), 1 << random.below(13));
            live.add(checked(&*pool, size, align));
        } else if !live.blocks.is_empty() {
            let place = random.below(live.blocks.len().min(64));
            let block = live.remove(place).expect("there is one");
            free(&*pool, block.address);
        }
    }
    for block in live.blocks.values() {
        free(&*pool, block.address);
    }
}

/// Over memory without access rights: a pool that touches it is killed.
pub fn memory_is_not_touched(make: Make<'_>) {
    let pool = make(Pages::untouchable().into());
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
    pool.trim(0).expect("the provider takes everything back");
}

/// What is freed is handed out again.
pub fn addresses_are_used_again(make: Make<'_>) {
    let pool = make(Numbers::new(4096).into());
    for size in [1, 64, 5000, 100_000, 8 << 20] {
        let mut seen = BTreeSet::new();
        for _ in 0..5_000 {
            let address = allocate(&*pool, size);
            seen.insert(address);
            free(&*pool, address);
        }
        assert!(seen.len() < 500, "{} addresses for one block of {size} bytes", seen.len());
    }
}

/// A million allocations and frees hold no more at the end than near the beginning.
pub fn nothing_grows_over_a_million_cycles(make: Make<'_>) {
    let provider = Numbers::new(4096);
    let pool = make(provider.clone().into());
    let mut random = Random(3);
    let mut run = |cycles: usize| {
        for _ in 0..cycles / 8 {
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

/// Statistics say what is live, and end at zero.
pub fn statistics_add_up(make: Make<'_>) {
    let provider = Numbers::new(4096);
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

/// A provider that has nothing more: an error, no change, and the pool goes on when there is memory again.
pub fn failure_of_the_provider_leaves_the_pool_usable(make: Make<'_>) {
    for successes in 0..4 {
        let provider = Numbers::new(4096);
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
        pool.trim(0).expect("the provider takes everything back");
        assert_eq!(provider.live_regions(), 0);
    }
}

fn fill(pool: &dyn Pool, random: &mut Random) -> Vec<Address> {
    (0..2_000).map(|_| allocate(pool, random.size(20))).collect()
}

/// When everything is freed and trimmed, the provider has all its regions back; and the pool starts again.
pub fn everything_goes_back_after_trim(make: Make<'_>) {
    let provider = Numbers::new(4096);
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
        let went = pool.trim(0).expect("the provider takes everything back");
        assert_eq!(went as u64, reserved);
        assert_eq!((provider.live_regions(), pool.statistics().reserved_bytes), (0, 0));
        assert_eq!(pool.trim(0), Ok(0));
    }
}

/// Trimming leaves live blocks alone, and does not go on below what is to be kept.
pub fn trim_keeps_what_it_is_told_to(make: Make<'_>) {
    let provider = Numbers::new(4096);
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
    let went = pool.trim(0).expect("the provider takes back what is free");
    assert_eq!(pool.statistics().reserved_bytes, before.reserved_bytes - went as u64);
    assert_eq!(provider.live_bytes() as u64, pool.statistics().reserved_bytes);
    for address in kept {
        assert!(provider.contains(address, 1) && pool.block_at(address).is_ok());
        free(&*pool, address);
    }
}

/// A pool that goes takes nothing with it, whether its blocks were freed or not.
pub fn dropping_gives_everything_back(make: Make<'_>) {
    let provider = Numbers::new(4096);
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
    assert_eq!(Arc::strong_count(&provider), 1, "the provider is let go");
}
