//! The driver's copy bandwidth beside `memcpy` in one thread: both in one run, medians of many.
//!
//! `cargo bench -p level-zero-soft`. With `--check` the run fails if a copy of 16 MiB is slower
//! than 0.8 of memcpy.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends")]

#[path = "../tests/driver/mod.rs"]
mod driver;

use std::hint::black_box;
use std::time::Instant;

use driver::User;

/// The smallest accepted ratio at 16 MiB.
const LEAST: f64 = 0.8;
const ROUNDS: usize = 41;

fn median(mut one: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            one();
            begun.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    // `cargo test` runs benches too: they only have to work.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let is_check = std::env::args().any(|argument| argument == "--check");
    let user = User::direct();
    println!("{:<28} {:>10} {:>10} {:>7}", "name", "ours", "memcpy", "ratio");
    let sizes: &[usize] = if is_bench { &[64 << 10, 1 << 20, 16 << 20] } else { &[64 << 10] };
    let mut is_enough = true;
    for &size in sizes {
        let device_memory = user.allocate(size).unwrap();
        let (from, mut to) = (vec![1_u8; size], vec![2_u8; size]);
        user.write(device_memory, &from).unwrap();
        let memcpy = median(|| black_box(&mut to[..]).copy_from_slice(black_box(&from)));
        let upload = median(|| user.write(device_memory, black_box(&from)).unwrap());
        let rate = |time: f64| size as f64 / time / 1e9;
        println!(
            "{:<28} {:>8.2}GB/s {:>6.2}GB/s {:>7.2}",
            format!("copy to device, {} KiB", size >> 10),
            rate(upload),
            rate(memcpy),
            memcpy / upload
        );
        is_enough &= size < 16 << 20 || memcpy / upload >= LEAST;
        user.free(device_memory).unwrap();
    }
    user.finish();
    assert!(is_enough || !is_check, "a copy of 16 MiB is slower than {LEAST} of memcpy");
}
