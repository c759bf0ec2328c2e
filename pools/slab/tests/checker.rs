//! Threads that use one pool, and a checker that claims every byte of every block, from before
//! another thread can get the block until after no thread can use it.
//!
//! The memory itself holds the claims: each word names the allocation that it belongs to, 0 is
//! none. The thread that gets a block claims all its words, and the thread that frees it clears
//! them; both by atomic exchange, so that of two owners each finds the other. A pool writes nothing
//! into its memory, and a provider gives zeros: so a word with a foreign claim was handed out
//! twice.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umf_core::{Address, Error, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::{MmapProvider, Random};

const WORD: usize = 8;

/// Bytes that only their owner may use: all of a block, as the pool rounded it up.
struct Claim {
    address: Address,
    words: usize,
    owner: u64,
}

fn words(address: Address, words: usize) -> &'static [AtomicU64] {
    // SAFETY: the block is claimed, or about to be: live host memory of that size, aligned to 8,
    // used as atomics alone.
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
            assert_eq!(before, 0, "word {number} of {block:?}, which {owner:#x} got, is another's");
        }
        claim
    }

    fn free(self, pool: &SlabPool) {
        for (number, word) in words(self.address, self.words).iter().enumerate() {
            let before = word.swap(0, Ordering::AcqRel);
            assert_eq!(
                before, self.owner,
                "word {number} of the block of {:#x} at {}",
                self.owner, self.address
            );
        }
        // SAFETY: the block is ours, and no thread uses it any more.
        unsafe { pool.free(self.address) }.unwrap();
    }
}

/// Mostly small; of all magnitudes up to 4 MiB.
fn layout(random: &mut Random) -> Layout {
    let magnitudes = [6, 6, 6, 6, 9, 9, 9, 13, 13, 19][random.below(10)];
    let size = 8_usize << random.below(magnitudes);
    Layout::new(size + random.below(size), 1 << random.below(9)).unwrap()
}

const THREADS: usize = 4;

struct World {
    pool: Arc<SlabPool>,
    /// Blocks on their way to each of the threads, which frees them.
    inboxes: [Mutex<Vec<Claim>>; THREADS],
}

impl World {
    fn inbox(&self, thread: usize) -> MutexGuard<'_, Vec<Claim>> {
        self.inboxes[thread].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread's life: it allocates, frees its own blocks and those that others send, and ends
    /// with some left.
    fn live(&self, thread: usize, generation: u64, steps: usize) {
        let mut random = Random((generation << 8 | thread as u64) + 1);
        let mut own: Vec<Claim> = Vec::new();
        for step in 0..steps {
            let owner = (generation << 40) | ((thread as u64) << 32) | (step as u64 + 1);
            match random.below(16) {
                0..=7 => own.push(Claim::new(&self.pool, layout(&mut random), owner)),
                8..=10 if !own.is_empty() => own.swap_remove(random.below(own.len())).free(&self.pool),
                11..=13 if !own.is_empty() => {
                    let claim = own.swap_remove(random.below(own.len()));
                    self.inbox(random.below(THREADS)).push(claim);
                }
                14 => {
                    let came = core::mem::take(&mut *self.inbox(thread));
                    came.into_iter().for_each(|claim| claim.free(&self.pool));
                }
                _ if !own.is_empty() => {
                    // Inside of one's own block nothing is freed.
                    let claim = &own[random.below(own.len())];
                    let inside = claim.address.checked_add((claim.words * WORD - 1) as u64).unwrap();
                    // SAFETY: no block begins there: an error is expected.
                    let result = unsafe { self.pool.free(inside) };
                    assert_eq!(result, Err(Error::InteriorAddress { address: inside }));
                }
                _ => {}
            }
            while own.len() > 150 {
                own.swap_remove(random.below(own.len())).free(&self.pool);
            }
        }
        // Others free them, when this thread is gone.
        self.inbox((thread + 1) % THREADS).extend(own);
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
                    scope.spawn(move || world.live(thread, generation, steps))
                })
                .collect();
            // All are waited for, so that none goes on when this test has failed.
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

/// `UMF_TESTS_LONG=1` (`tests/run --long`) has them live a hundred times as long.
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
