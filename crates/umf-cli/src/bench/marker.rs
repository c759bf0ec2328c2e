//! Rows that say how fast the machine is just now.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Bench;
use super::measure::{self, Measured};
use crate::failure::Failure;
use crate::timing;

const ROUNDS: u64 = 500;
const COPY: usize = 1 << 20;
/// Nanoseconds within which a cache line gets from one processor to any other.
const SEPARATE: f64 = 2000.0;

/// Adds the rows `marker.*`.
pub(super) fn measure(bench: &mut Bench) -> Result<(), Failure> {
    bench.rows.begin("marker");
    let line = cache_line(bench)?;
    bench.rows.add("marker.cache_line", line, None)?;
    let (from, mut to) = (vec![1_u8; COPY], vec![0_u8; COPY]);
    let copy = measure::one(bench.time, || {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        Ok::<u64, Failure>(COPY as u64)
    })?;
    bench.rows.push("marker.memcpy", "GB/s", copy.map(|ns_per_byte| 1.0 / ns_per_byte), None)
}

/// One way of a cache line between two threads.
fn cache_line(bench: &Bench) -> Result<Measured, Failure> {
    #[repr(align(128))]
    struct Line(AtomicU64);
    const STOP: u64 = u64::MAX;
    let ball = Line(AtomicU64::new(0));
    let line = measure::threads(2, |thread| {
        if thread == 1 {
            let mut expected = 1;
            loop {
                match wait_for(&ball.0, |value| value == expected || value == STOP) {
                    STOP => return Ok(Vec::new()),
                    value => ball.0.store(value + 1, Ordering::Release),
                }
                expected += 2;
            }
        }
        let mut next = 1;
        let values = timing::batches(bench.time, || {
            for _ in 0..ROUNDS {
                ball.0.store(next, Ordering::Release);
                wait_for(&ball.0, |value| value == next + 1);
                next += 2;
            }
            Ok::<u64, Failure>(2 * ROUNDS)
        });
        ball.0.store(STOP, Ordering::Release);
        values
    })?;
    if line.median > SEPARATE {
        crate::output::tell(
            "two threads do not run at the same time here: rows of two threads (.2t) say little in this run",
        );
    }
    Ok(line)
}

fn wait_for(word: &AtomicU64, is_it: impl Fn(u64) -> bool) -> u64 {
    let mut spins = 0_u32;
    loop {
        let value = word.load(Ordering::Acquire);
        if is_it(value) {
            return value;
        }
        spins += 1;
        // Where there is one processor only, the other thread has to come to it.
        if spins.is_multiple_of(4096) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}
