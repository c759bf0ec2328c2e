//! Threads use one pool, and claim every byte of each block between its allocation and its free.
//!
//! The claims are in the memory: each word holds the number of the allocation that it belongs to,
//! or
//! 0. The thread that allocates a block claims all its words, and the thread that frees it clears
//!    them, both by atomic exchange. So each of two owners detects the other. A pool writes nothing
//!    into its memory, and the provider returns zeroed memory. So a word with another claim was
//!    allocated twice.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umf_core::{Address, Error, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::{MmapProvider, Random};

const WORD: usize = 8;

/// A claimed block. Includes the bytes by which the pool rounded the size up.
struct Claim {
    address: Address,
    words: usize,
    owner: u64,
}

fn words(address: Address, words: usize) -> &'static [AtomicU64] {
    // SAFETY: the block is live host memory of that size, aligned to 8, and used only as atomics.
    unsafe { core::slice::from_raw_parts(address.as_ptr().unwrap().cast(), words) }
}

impl Claim {
    fn new(pool: &SlabPool, layout: Layout, owner: u64) -> Self {
        let address = pool.allocate(layout).unwrap();
        assert!(address.is_aligned_to(layout.align()) && address.is_aligned_to(WORD));
        let block = pool.block_at(address).unwrap();
        assert!(block.address == address && block.size >= layout.size() && block.size.is_multiple_of(WORD));
        let claim = Self { address, words: block.size / WORD, owner };
        for (number, word) in words(claim.address, claim.words).iter().enumerate() {
            let before = word.swap(owner, Ordering::AcqRel);
            assert_eq!(before, 0, "word {number} of {block:?}, allocated by {owner:#x}, has another owner");
        }
        claim
    }

    fn free(self, pool: &SlabPool) {
        for (number, word) in words(self.address, self.words).iter().enumerate() {
            let before = word.swap(0, Ordering::AcqRel);
            assert_eq!(
                before, self.owner,
                "word {number} of the block of {:#x} at {} has another owner",
                self.owner, self.address
            );
        }
        // SAFETY: the block is this claim's, and no thread uses it any more.
        unsafe { pool.free(self.address) }.unwrap();
    }
}

/// Returns a random layout: mostly small, of all magnitudes up to 4 MiB.
fn layout(random: &mut Random) -> Layout {
    let magnitudes = [6, 6, 6, 6, 9, 9, 9, 13, 13, 19][random.below(10)];
    let size = 8_usize << random.below(magnitudes);
    Layout::new(size + random.below(size), 1 << random.below(9)).unwrap()
}

const THREADS: usize = 4;

struct World {
    pool: Arc<SlabPool>,
    /// Blocks that other threads pass to each thread, which frees them.
    inboxes: [Mutex<Vec<Claim>>; THREADS],
}

impl World {
    fn inbox(&self, thread: usize) -> MutexGuard<'_, Vec<Claim>> {
        self.inboxes[thread].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one thread: it allocates, frees its own blocks and those from its inbox, and passes the
    /// rest on at its end.
    fn run_thread(&self, thread: usize, generation: u64, steps: usize) {
        let mut random = Random((generation << 8 | thread as u64) + 1);
        let mut live: Vec<Claim> = Vec::new();
        for step in 0..steps {
            let owner = (generation << 40) | ((thread as u64) << 32) | (step as u64 + 1);
            match random.below(16) {
                0..=7 => live.push(Claim::new(&self.pool, layout(&mut random), owner)),
                8..=10 if !live.is_empty() => live.swap_remove(random.below(live.len())).free(&self.pool),
                11..=13 if !live.is_empty() => {
                    let claim = live.swap_remove(random.below(live.len()));
                    self.inbox(random.below(THREADS)).push(claim);
                }
                14 => {
                    let received = core::mem::take(&mut *self.inbox(thread));
                    received.into_iter().for_each(|claim| claim.free(&self.pool));
                }
                _ if !live.is_empty() => {
                    // A free of an address inside a block is an error.
                    let claim = &live[random.below(live.len())];
                    let inside = claim.address.checked_add((claim.words * WORD - 1) as u64).unwrap();
                    // SAFETY: no block begins there: an error is expected.
                    let result = unsafe { self.pool.free(inside) };
                    assert_eq!(result, Err(Error::InteriorAddress { address: inside }));
                }
                _ => {}
            }
            while live.len() > 150 {
                live.swap_remove(random.below(live.len())).free(&self.pool);
            }
        }
        // Another thread frees them after this one has ended.
        self.inbox((thread + 1) % THREADS).extend(live);
    }
}

fn run(settings: SlabSettings, generations: u64, steps: usize) {
    let provider = MmapProvider::private();
    let pool = SlabPool::new(provider.clone(), settings).unwrap();
    let world = World { pool, inboxes: [const { Mutex::new(Vec::new()) }; THREADS] };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        let trimming = scope.spawn(|| {
            let mut keep = Random(1);
            while !stop.load(Ordering::Relaxed) {
                world.pool.trim(keep.below(64 << 20)).unwrap();
                std::thread::sleep(core::time::Duration::from_millis(1));
            }
        });
        let failed = (0..generations).any(|generation| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let world = &world;
                    scope.spawn(move || world.run_thread(thread, generation, steps))
                })
                .collect();
            // Joins all threads, so that none runs after the test has failed.
            threads.into_iter().filter_map(|thread| thread.join().err()).count() > 0
        });
        stop.store(true, Ordering::Relaxed);
        trimming.join().unwrap();
        assert!(!failed, "threads failed");
    });
    let World { pool, inboxes } = world;
    for inbox in inboxes {
        inbox.into_inner().unwrap().into_iter().for_each(|claim| claim.free(&pool));
    }
    assert_eq!((pool.statistics().live_blocks, pool.statistics().live_bytes), (0, 0));
    pool.trim(0).unwrap();
    assert_eq!((pool.statistics().reserved_bytes, provider.live_regions()), (0, 0));
}

/// Returns the number of generations: a hundred times as many with `UMF_TESTS_LONG=1` (`tests/run
/// --long`).
fn generations(normally: u64) -> u64 {
    if std::env::var_os("UMF_TESTS_LONG").is_some_and(|value| value == "1") {
        100 * normally
    } else {
        normally
    }
}

#[test]
fn every_byte_has_one_owner() {
    run(SlabSettings::new().max_poolable_size(8 << 20), generations(3), 5_000);
}

#[test]
fn every_byte_has_one_owner_with_small_caches() {
    let settings = SlabSettings::new().capacity(0).thread_cache_size(256 << 10).max_poolable_size(1 << 20);
    run(settings, generations(2), 5_000);
}
