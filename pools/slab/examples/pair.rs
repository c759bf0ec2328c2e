//! Nanoseconds per allocation and free, of the processor time of the thread.
//!
//! `cargo run --release -p umf-pool-slab --example pair`

use std::hint::black_box;
use std::sync::Arc;

use umf_core::{Address, Layout, Pool, ProviderRef};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::{AddressOnlyProvider, MmapProvider};

const CYCLES: u32 = 4_000_000;

fn thread_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the nanoseconds per cycle of the best of five runs.
fn measure(cycles: u32, mut run: impl FnMut(u32)) -> f64 {
    run(cycles / 10);
    let time = |run: &mut dyn FnMut(u32)| {
        let start = thread_time();
        run(cycles);
        (thread_time() - start) / f64::from(cycles)
    };
    (0..5).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min)
}

fn free(pool: &SlabPool, address: Address) {
    // SAFETY: the caller has just allocated the block, and no thread uses it.
    if let Err(error) = unsafe { pool.free(black_box(address)) } {
        panic!("{error}");
    }
}

fn allocate(pool: &SlabPool, layout: Layout) -> Address {
    match pool.allocate(black_box(layout)) {
        Ok(address) => address,
        Err(error) => panic!("{error}"),
    }
}

fn pairs(pool: &SlabPool, layout: Layout) -> f64 {
    measure(CYCLES, |cycles| {
        for _ in 0..cycles {
            let address = allocate(pool, layout);
            free(pool, address);
        }
    })
}

/// Replaces random blocks of 1,000 live ones by blocks of random sizes.
fn churn(pool: &SlabPool, sizes: (usize, usize)) -> f64 {
    let mut seed = 1_u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let size = |random: u64| sizes.0 + (random as usize >> 20) % (sizes.1 - sizes.0);
    let layout = |random| Layout::new(size(random), 8).unwrap_or_else(|error| panic!("{error}"));
    let mut live: Vec<Address> = (0..1_000).map(|_| allocate(pool, layout(next()))).collect();
    let best = measure(CYCLES / 4, |cycles| {
        for _ in 0..cycles {
            let random = next();
            let place = &mut live[(random % 1_000) as usize];
            free(pool, *place);
            *place = allocate(pool, layout(random));
        }
    });
    live.into_iter().for_each(|address| free(pool, address));
    best
}

fn on_threads(threads: usize, run: impl Fn() -> f64 + Sync) -> f64 {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(&run)).collect();
        all.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).fold(0.0, f64::max)
    })
}

fn main() {
    let providers: [(&str, ProviderRef); 3] = [
        ("numbers", AddressOnlyProvider::new(4096).into()),
        ("private", MmapProvider::private().into()),
        ("shared", MmapProvider::shared().into()),
    ];
    for (name, provider) in providers {
        let pool: Arc<SlabPool> =
            match SlabPool::new(provider, SlabSettings::new().max_poolable_size(8 << 20)) {
                Ok(pool) => pool,
                Err(error) => panic!("{error}"),
            };
        let pool = &*pool;
        for threads in [1, 2] {
            for size in [64, 4000, 256 << 10] {
                let Ok(layout) = Layout::new(size, 8) else { continue };
                println!(
                    "{name} pair {size} {threads}t: {:.1} ns",
                    on_threads(threads, || pairs(pool, layout))
                );
            }
            let small = on_threads(threads, || churn(pool, (8, 4096)));
            println!("{name} churn 8-4K {threads}t: {small:.1} ns");
            let large = on_threads(threads, || churn(pool, (64 << 10, 4 << 20)));
            println!("{name} churn 64K-4M {threads}t: {large:.1} ns");
        }
    }
}
