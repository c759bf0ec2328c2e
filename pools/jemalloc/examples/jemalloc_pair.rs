//! Times a pair of `allocate` and `free`, beside jemalloc called as the Unified Memory Framework's
//! pool calls it: in an arena of its own, without a cache, and with no checks.
//!
//! ```sh
//! cargo run --release -p umf-pool-jemalloc --example jemalloc_pair
//! ```

#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

use std::hint::black_box;

use tikv_jemalloc_sys as je;
use umf_core::{Address, Layout, Pool};
use umf_pool_jemalloc::JemallocPool;
use umf_testkit::pool::{MmapProvider, Random};

const ROUNDS: usize = 200_000;
const TURNS: usize = 9;

/// Returns the processor time of the thread, which other processes do not affect.
fn nanoseconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the nanoseconds of a pair of `allocate` and `free`: of blocks of one size, or of many
/// sizes while `alive` blocks are live.
fn measure<B: Copy>(most: usize, alive: usize, allocate: impl Fn(usize) -> B, free: impl Fn(B)) -> f64 {
    let mut random = Random(1);
    let mut size = || if alive == 0 { most } else { random.below(most) + 1 };
    let mut live: Vec<B> = (0..alive).map(|_| allocate(size())).collect();
    let begin = nanoseconds();
    for round in 0..ROUNDS {
        let block = black_box(allocate(size()));
        match live.get_mut(round.wrapping_mul(7919) % alive.max(1)) {
            Some(place) => free(core::mem::replace(place, block)),
            None => free(block),
        }
    }
    let took = (nanoseconds() - begin) / ROUNDS as f64;
    live.into_iter().for_each(free);
    took
}

fn main() {
    let pool = JemallocPool::new(MmapProvider::private()).unwrap();
    let mut arena = 0_u32;
    let mut size = size_of::<u32>();
    // SAFETY: `arena` has `size` bytes.
    let code = unsafe {
        je::mallctl(
            c"arenas.create".as_ptr(),
            (&raw mut arena).cast(),
            &raw mut size,
            core::ptr::null_mut(),
            0,
        )
    };
    assert_eq!(code, 0);
    let flags = je::MALLOCX_ARENA(arena as usize) | je::MALLOCX_TCACHE_NONE;
    println!("{:<34} {:>8} {:>12} {:>7}", "ns of processor time, least of 9", "ours", "no cache", "ratio");
    for (name, most, alive) in [
        ("64 bytes", 64, 0),
        ("up to 1 KiB, 1000 alive", 1 << 10, 1000),
        ("up to 64 KiB, 1000 alive", 64 << 10, 1000),
    ] {
        let mut least = [f64::MAX; 2];
        for _ in 0..TURNS {
            let ours = measure(
                most,
                alive,
                |size| pool.allocate(Layout::new(size, 1).unwrap()).unwrap(),
                // SAFETY: allocated by the line above, and used by no thread.
                |block: Address| unsafe { pool.free(block) }.unwrap(),
            );
            let peer = measure(
                most,
                alive,
                // SAFETY: the arena exists, and sizes are not 0.
                |size| unsafe { je::mallocx(size, flags) },
                // SAFETY: allocated by the line above, and used by no thread.
                |block| unsafe { je::dallocx(block, je::MALLOCX_TCACHE_NONE) },
            );
            least = [least[0].min(ours), least[1].min(peer)];
        }
        println!("{name:<34} {:>8.1} {:>12.1} {:>7.2}", least[0], least[1], least[0] / least[1]);
    }
}
