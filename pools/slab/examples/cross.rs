//! Nanoseconds per block: of wall time, and of processor time of the threads without the time in
//! which they wait for each other. With `xfree`, one thread allocates the blocks and another one
//! frees them. With `larson`, new threads replace random blocks of earlier threads.
//!
//! `cargo run --release -p umf-pool-slab --example cross -- [xfree|larson] [small|large] [THREADS]
//! [TIMES] [LENGTH]`: starts new threads `TIMES` times. Each handles `LENGTH` batches of blocks, or
//! `LENGTH` blocks with `larson`.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use umf_core::{Address, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::MmapProvider;

/// Blocks that one thread passes to the other at a time.
const BATCH: usize = 25;
/// The capacity of a [`Channel`] in batches.
const BATCHES: usize = 8;
/// Blocks that each thread replaces at random.
const LIVE: usize = 200;
const LARSON: usize = 16 << 10;
const XFREE: usize = 4 << 10;

const THREAD: libc::clockid_t = libc::CLOCK_THREAD_CPUTIME_ID;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

fn allocate(pool: &dyn Pool, random: &mut Random, (least, most): (usize, usize)) -> Address {
    Layout::new(least + random.below(most - least), 8)
        .and_then(|layout| umf_core::pool::allocate(pool, layout))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn free(pool: &dyn Pool, address: Address) {
    // SAFETY: each block is freed once, and no thread uses its memory.
    unsafe { umf_core::pool::free(pool, address) }.unwrap_or_else(|error| panic!("{error}"));
}

/// Processor time of the measured work of all threads, in nanoseconds.
static WORKED: AtomicU64 = AtomicU64::new(0);

/// Returns the nanoseconds of a clock.
fn processor_time(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable above.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `work`, and adds its processor time to [`WORKED`].
fn timed<T>(clock: libc::clockid_t, work: impl FnOnce() -> T) -> T {
    let start = processor_time(clock);
    let result = work();
    WORKED.fetch_add(processor_time(clock) - start, Ordering::Relaxed);
    result
}

/// A bounded channel of batches between two threads.
struct Channel {
    batches: [Mutex<Vec<Address>>; BATCHES],
    filled: AtomicUsize,
    emptied: AtomicUsize,
}

impl Channel {
    fn new() -> Self {
        let batches = std::array::from_fn(|_| Mutex::new(Vec::with_capacity(BATCH)));
        Self { batches, filled: AtomicUsize::new(0), emptied: AtomicUsize::new(0) }
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let mut spins = 0_u32;
        while !condition() {
            spins += 1;
            if spins < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    fn batch(&self, number: usize) -> MutexGuard<'_, Vec<Address>> {
        self.batches[number % BATCHES].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, pool: &dyn Pool, sizes: (usize, usize), length: usize) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for number in 0..length {
            Self::wait_until(|| number < self.emptied.load(Ordering::Acquire) + BATCHES);
            let mut batch = self.batch(number);
            timed(THREAD, || (0..BATCH).for_each(|_| batch.push(allocate(pool, &mut random, sizes))));
            drop(batch);
            self.filled.store(number + 1, Ordering::Release);
        }
    }

    fn empty(&self, pool: &dyn Pool, length: usize) {
        for number in 0..length {
            Self::wait_until(|| number < self.filled.load(Ordering::Acquire));
            let mut batch = self.batch(number);
            timed(THREAD, || batch.drain(..).for_each(|address| free(pool, address)));
            drop(batch);
            self.emptied.store(number + 1, Ordering::Release);
        }
    }
}

/// Returns the wall time per block.
fn xfree(pool: &dyn Pool, sizes: (usize, usize), pairs: usize, length: usize) -> f64 {
    let channels: Vec<Channel> = (0..pairs).map(|_| Channel::new()).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for channel in &channels {
            scope.spawn(|| channel.fill(pool, sizes, length));
            scope.spawn(|| channel.empty(pool, length));
        }
    });
    start.elapsed().as_nanos() as f64 / (length * BATCH * pairs) as f64
}

/// Returns the wall time per block and thread.
fn larson(pool: &dyn Pool, sizes: (usize, usize), sets: &mut [Vec<Address>], length: usize) -> f64 {
    let (start, count) = (Instant::now(), sets.len());
    std::thread::scope(|scope| {
        for (thread, set) in sets.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut random = Random(thread as u64 + 1);
                for _ in 0..length {
                    let place = random.below(set.len());
                    free(pool, set[place]);
                    set[place] = allocate(pool, &mut random, sizes);
                }
            });
        }
    });
    start.elapsed().as_nanos() as f64 / (length * count) as f64
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |place: usize, other: &str| words.get(place).map_or(other, String::as_str).to_owned();
    let number =
        |place: usize, other: usize| words.get(place).and_then(|word| word.parse().ok()).unwrap_or(other);
    let (order, size) = (word(0, "xfree"), word(1, "small"));
    let sizes = if size == "small" { (8, 4 << 10) } else { (64 << 10, 4 << 20) };
    let live = if size == "small" { 5 * LIVE } else { LIVE };
    let (threads, times) = (number(2, 1), number(3, 10));
    let length = number(4, if order == "larson" { LARSON } else { XFREE });
    let settings = SlabSettings::new().max_poolable_size(8 << 20);
    let pool: Arc<SlabPool> =
        SlabPool::new(MmapProvider::private(), settings).unwrap_or_else(|error| panic!("{error}"));
    let pool: &dyn Pool = &*pool;
    let mut random = Random(1);
    let mut set = || (0..live).map(|_| allocate(pool, &mut random, sizes)).collect::<Vec<_>>();
    let mut sets: Vec<_> = if order == "larson" { (0..threads).map(|_| set()).collect() } else { Vec::new() };
    let run = |sets: &mut [Vec<Address>]| match order.as_str() {
        // Includes the ends of the threads.
        "larson" => timed(libc::CLOCK_PROCESS_CPUTIME_ID, || larson(pool, sizes, sets, length)),
        _ => xfree(pool, sizes, threads, length),
    };
    let blocks = threads * length * if order == "larson" { 1 } else { BATCH };
    let mut values: Vec<(f64, f64)> = (0..times)
        .map(|_| (run(&mut sets), WORKED.swap(0, Ordering::Relaxed) as f64 / blocks as f64))
        .collect();
    let mut report = |what: &str, of: fn(&(f64, f64)) -> f64| {
        values.sort_by(|one, other| of(one).total_cmp(&of(other)));
        println!(
            "{order} {size} {threads} {what}: {:.1} ns, least {:.1}",
            of(&values[times / 2]),
            of(&values[0])
        );
    };
    report("wall", |value| value.0);
    report("work", |value| value.1);
    println!("reserved {} MiB", pool.statistics().reserved_bytes >> 20);
}
