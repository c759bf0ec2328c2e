//! Nanoseconds per block that one thread allocates and another one frees, and of threads that come
//! and go: on the wall, and of the threads' processor time without the time in which they wait for
//! each other.
//!
//! `cargo run --release -p umf-pool-slab --example cross -- [xfree|larson] [small|large] [THREADS]
//! [TIMES] [LENGTH]`: what new threads do each time is `LENGTH` portions of blocks, or for larson
//! so many blocks.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use umf_core::{Address, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::MmapProvider;

/// Blocks that go from one thread to the other at a time, and how many such portions are on the
/// way.
const PORTION: usize = 25;
const PORTIONS: usize = 8;
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

/// Processor time that all threads took for what is measured.
static WORKED: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of processor time, by the clock.
fn processor_time(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable above.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn working<T>(clock: libc::clockid_t, work: impl FnOnce() -> T) -> T {
    let start = processor_time(clock);
    let result = work();
    WORKED.fetch_add(processor_time(clock) - start, Ordering::Relaxed);
    result
}

/// Portions on the way, and how many were filled and emptied.
struct Belt {
    portions: [Mutex<Vec<Address>>; PORTIONS],
    filled: AtomicUsize,
    emptied: AtomicUsize,
}

impl Belt {
    fn new() -> Self {
        let portions = std::array::from_fn(|_| Mutex::new(Vec::with_capacity(PORTION)));
        Self { portions, filled: AtomicUsize::new(0), emptied: AtomicUsize::new(0) }
    }

    fn wait(is_it: impl Fn() -> bool) {
        let mut spins = 0_u32;
        while !is_it() {
            spins += 1;
            if spins < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    fn portion(&self, number: usize) -> MutexGuard<'_, Vec<Address>> {
        self.portions[number % PORTIONS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, pool: &dyn Pool, sizes: (usize, usize), length: usize) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for number in 0..length {
            Self::wait(|| number < self.emptied.load(Ordering::Acquire) + PORTIONS);
            let mut portion = self.portion(number);
            working(THREAD, || (0..PORTION).for_each(|_| portion.push(allocate(pool, &mut random, sizes))));
            drop(portion);
            self.filled.store(number + 1, Ordering::Release);
        }
    }

    fn empty(&self, pool: &dyn Pool, length: usize) {
        for number in 0..length {
            Self::wait(|| number < self.filled.load(Ordering::Acquire));
            let mut portion = self.portion(number);
            working(THREAD, || portion.drain(..).for_each(|address| free(pool, address)));
            drop(portion);
            self.emptied.store(number + 1, Ordering::Release);
        }
    }
}

/// On the wall, per block.
fn xfree(pool: &dyn Pool, sizes: (usize, usize), pairs: usize, length: usize) -> f64 {
    let belts: Vec<Belt> = (0..pairs).map(|_| Belt::new()).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for belt in &belts {
            scope.spawn(|| belt.fill(pool, sizes, length));
            scope.spawn(|| belt.empty(pool, length));
        }
    });
    start.elapsed().as_nanos() as f64 / (length * PORTION * pairs) as f64
}

/// On the wall, per block and thread.
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
        // With the threads' ends.
        "larson" => working(libc::CLOCK_PROCESS_CPUTIME_ID, || larson(pool, sizes, sets, length)),
        _ => xfree(pool, sizes, threads, length),
    };
    let blocks = threads * length * if order == "larson" { 1 } else { PORTION };
    let mut values: Vec<(f64, f64)> = (0..times)
        .map(|_| (run(&mut sets), WORKED.swap(0, Ordering::Relaxed) as f64 / blocks as f64))
        .collect();
    let mut told = |what: &str, of: fn(&(f64, f64)) -> f64| {
        values.sort_by(|one, other| of(one).total_cmp(&of(other)));
        println!(
            "{order} {size} {threads} {what}: {:.1} ns, least {:.1}",
            of(&values[times / 2]),
            of(&values[0])
        );
    };
    told("wall", |value| value.0);
    told("work", |value| value.1);
    println!("reserved {} MiB", pool.statistics().reserved_bytes >> 20);
}
