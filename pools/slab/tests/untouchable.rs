//! Pools over memory without CPU access, such as that of a device: an access kills the process.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use umf_core::{Address, DeferredFree, Error, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::LeaseHolder;
use umf_testkit::pool::{MmapProvider, Random};

/// Returns a random layout, of all magnitudes from 8 bytes to 8 MiB.
fn layout(random: &mut Random) -> Layout {
    let size = 8_usize << random.below(20);
    Layout::new(size + random.below(size), 1 << random.below(14)).unwrap()
}

fn free(pool: &SlabPool, address: Address) {
    // SAFETY: the block is the caller's, and no thread can access it.
    unsafe { pool.free(address) }.unwrap();
}

/// Runs all operations of a pool in one thread.
fn use_everything(pool: &SlabPool, seed: u64, others: &Mutex<Vec<Address>>) {
    let mut random = Random(seed);
    let borrower = LeaseHolder::new();
    let mut live: Vec<Address> = Vec::new();
    for step in 0..15_000 {
        match random.below(100) {
            0..=49 => live.push(pool.allocate(layout(&mut random)).unwrap()),
            50..=69 if !live.is_empty() => free(pool, live.swap_remove(random.below(live.len()))),
            // Frees a block that another thread allocated.
            70..=84 if !live.is_empty() => {
                let block = live.swap_remove(random.below(live.len()));
                let mut others = others.lock().unwrap_or_else(PoisonError::into_inner);
                others.push(block);
                let place = random.below(others.len());
                let other = others.swap_remove(place);
                drop(others);
                free(pool, other);
            }
            // Looks up and frees an address inside a block.
            85..=92 if !live.is_empty() => {
                let address = live[random.below(live.len())];
                let block = pool.block_at(address).unwrap();
                let inside = address.checked_add(random.below(block.size) as u64).unwrap();
                assert_eq!(pool.block_at(inside), Ok(block));
                if inside != address {
                    // SAFETY: no block begins there: an error is expected.
                    let result = unsafe { pool.free(inside) };
                    assert_eq!(result, Err(Error::InteriorAddress { address: inside }));
                }
            }
            // Frees a block that another process has open.
            93..=97 if !live.is_empty() => {
                let address = live.swap_remove(random.below(live.len()));
                let size = pool.block_at(address).unwrap().size;
                pool.mark_exported(address).unwrap();
                borrower.open(address, size);
                free(pool, address);
                if step % 3 == 0 {
                    borrower.close(address);
                    umf_runtime::deferred::poll();
                }
            }
            98 => drop(pool.trim(random.below(32 << 20)).unwrap()),
            99 => drop(pool.statistics()),
            _ => {}
        }
        while live.len() > 100 {
            free(pool, live.swap_remove(random.below(live.len())));
        }
    }
    borrower.close_all();
    umf_runtime::deferred::poll();
    live.into_iter().for_each(|address| free(pool, address));
}

/// Returns the mappings of the process by start: end, access rights, and resident kB.
fn mappings() -> BTreeMap<u64, (u64, String, u64)> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut mappings = BTreeMap::new();
    let mut last = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if let Some((from, to)) = first.split_once('-') {
            last = u64::from_str_radix(from, 16).unwrap();
            mappings.insert(last, (u64::from_str_radix(to, 16).unwrap(), second.to_owned(), 0));
        } else if first == "Rss:" {
            mappings.get_mut(&last).unwrap().2 = second.parse().unwrap();
        }
    }
    mappings
}

/// Checks that the block lies in a mapping without access and without memory.
fn check(mappings: &BTreeMap<u64, (u64, String, u64)>, pool: &SlabPool, address: Address) {
    let end = address.to_bits() + pool.block_at(address).unwrap().size as u64;
    let (_, (mapped_to, rights, resident)) = mappings.range(..=address.to_bits()).next_back().unwrap();
    assert!(end <= *mapped_to && rights == "---p" && *resident == 0, "{address}: {rights}, {resident} kB");
}

fn run(settings: SlabSettings) {
    // One run at a time: a poll frees deferred blocks of every pool of the process, so the end of
    // one run would depend on the other.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let provider = MmapProvider::untouchable();
    let pool = SlabPool::new(provider.clone(), settings).unwrap();
    let others = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let begin = |seed| {
            let (pool, others) = (&pool, &others);
            scope.spawn(move || use_everything(pool, seed, others))
        };
        let threads: Vec<_> = (1..=3).map(begin).collect();
        // Joined: a scope does not wait for the thread-exit handlers of its threads.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let mut random = Random(9);
    let blocks: Vec<Address> = (0..300).map(|_| pool.allocate(layout(&mut random)).unwrap()).collect();
    let mappings = mappings();
    blocks.iter().for_each(|&address| check(&mappings, &pool, address));
    blocks.into_iter().for_each(|address| free(&pool, address));
    others.into_inner().unwrap().into_iter().for_each(|address| free(&pool, address));
    assert_eq!(pool.statistics().live_blocks, 0);
    pool.trim(0).unwrap();
    assert_eq!((pool.statistics().reserved_bytes, provider.live_regions()), (0, 0));
    // The pool is dropped with live blocks.
    for _ in 0..100 {
        pool.allocate(layout(&mut random)).unwrap();
    }
    drop(pool);
    assert_eq!((provider.live_regions(), Arc::strong_count(&provider)), (0, 1));
}

#[test]
fn pool_does_not_access_its_memory() {
    run(SlabSettings::new());
}

#[test]
fn pool_with_coarse_slabs_and_no_large_caches_does_not_access_its_memory() {
    run(SlabSettings::new().min_block_size(256).slab_min_size(1 << 20).capacity(0).thread_cache_size(0));
}

#[test]
fn pool_with_most_blocks_from_the_provider_does_not_access_its_memory() {
    run(SlabSettings::new().max_poolable_size(20_000));
}

/// The tests above require this.
#[test]
fn cpu_access_to_untouchable_memory_is_a_segmentation_fault() {
    let pool = SlabPool::new(MmapProvider::untouchable(), SlabSettings::new()).unwrap();
    let block = pool.allocate(Layout::new(64, 8).unwrap()).unwrap();
    let pointer = block.as_ptr().unwrap();
    // SAFETY: the child only writes to the block, which kills it, or exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: unsound on purpose: the write must kill the child.
        unsafe {
            pointer.write_volatile(1);
            libc::_exit(0);
        }
    }
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    free(&pool, block);
}
