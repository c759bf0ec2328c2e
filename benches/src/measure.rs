//! Measurements: batches, threads, turns of subjects, and the markers of the machine's speed.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};

use crate::bench::{Bench, Figures, fail};
use crate::{Error, Result};

/// Number of turns of each subject of a row.
pub const ROUNDS: usize = 5;

/// The time of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The median of all batches.
    pub median: f64,
    /// The best batch.
    pub min: f64,
}

impl Measured {
    /// Summarises the values of batches.
    ///
    /// # Errors
    /// There is no value, or one is not a number above 0.
    pub fn of(mut values: Vec<f64>) -> Result<Measured> {
        values.sort_by(f64::total_cmp);
        let wrong = || Error::from(format!("the measured times are missing or invalid: {values:?}"));
        let (min, median) = (values.first(), values.get(values.len() / 2));
        let (Some(&min), Some(&median)) = (min, median) else { return Err(wrong()) };
        if min > 0.0 && median.is_finite() { Ok(Measured { median, min }) } else { Err(wrong()) }
    }

    /// Converts the values to another unit.
    #[must_use]
    pub fn map(self, convert: impl Fn(f64) -> f64) -> Measured {
        Measured { median: convert(self.median), min: convert(self.min) }
    }
}

/// Returns the time of `run` in nanoseconds, and its result.
pub fn nanoseconds<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = run();
    (start.elapsed().as_nanos() as f64, result)
}

/// Repeats `once`, which returns a time, for `time` and at least three times. The first value is
/// discarded.
///
/// # Errors
/// The first error of `once`.
pub fn singly(time: Duration, mut once: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    once()?;
    let end = Instant::now() + time;
    let mut values = Vec::new();
    while values.len() < 3 || Instant::now() < end {
        values.push(once()?);
    }
    Ok(values)
}

/// Repeats `batch`, which does `count` operations. Returns the nanoseconds per operation of each
/// batch.
///
/// # Errors
/// The first error of a batch.
pub fn batches(time: Duration, count: usize, mut batch: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    singly(time, || {
        let (nanoseconds, done) = nanoseconds(&mut batch);
        done.map(|()| nanoseconds / count as f64)
    })
}

/// Runs `run` on `count` threads that start together, each on a processor of its own if there are
/// enough. The first error ends the process.
pub fn threads<T: Send>(count: usize, run: impl Fn(usize) -> Result<T> + Sync) -> Vec<T> {
    let barrier = Barrier::new(count);
    let start = |number| {
        if count > 1 {
            pin_to(number);
        }
        barrier.wait();
        run(number).unwrap_or_else(|error| fail(&error))
    };
    let start = &start;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || start(number))).collect();
        let finished = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        finished.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Measures subjects in turns, so that a change of the machine's speed affects all of them. The
/// first subject is ours. The order rotates.
///
/// # Errors
/// The first error of `measure`.
pub fn in_turns<S: ?Sized>(
    bench: &Bench,
    subjects: &[(&'static str, &S)],
    measure: impl Fn(&S) -> Result<Vec<f64>>,
) -> Result<Figures> {
    let mut values = vec![Vec::new(); subjects.len()];
    for round in 0..if bench.quick { 1 } else { ROUNDS } {
        for turn in 0..subjects.len() {
            let number = (round + turn) % subjects.len();
            values[number].extend(measure(subjects[number].1)?);
        }
    }
    let mut values = values.into_iter().map(Measured::of);
    let ours = values.next().unwrap_or_else(|| Measured::of(Vec::new()))?;
    let names = subjects.iter().skip(1).map(|(name, _)| *name);
    let peers = names.zip(values).map(|(name, value)| Ok((name, value?)));
    Ok(Figures { ours, peers: peers.collect::<Result<_>>()? })
}

/// Pins the calling thread to one of its allowed processors. An error is ignored: the marker shows
/// how threads ran.
pub fn pin_to(number: usize) {
    let Ok(usable) = rustix::thread::sched_getaffinity(None) else { return };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| usable.is_set(*processor)).collect();
    if let Some(processor) = processors.get(number % processors.len().max(1)) {
        let mut one = CpuSet::new();
        one.set(*processor);
        let _ = rustix::thread::sched_setaffinity(None, &one);
    }
}

/// Returns the processor time of the calling thread, in nanoseconds.
#[must_use]
pub fn thread_time() -> f64 {
    clock(ClockId::ThreadCPUTime)
}

/// Returns the processor time of all threads of the process, including exited ones, in nanoseconds.
#[must_use]
pub fn process_time() -> f64 {
    clock(ClockId::ProcessCPUTime)
}

fn clock(id: ClockId) -> f64 {
    let time = clock_gettime(id);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Spins until `is_done` returns true. Yields periodically: the other thread may need this
/// processor.
pub fn spin_until(mut is_done: impl FnMut() -> bool) {
    let mut spins = 0_u32;
    while !is_done() {
        spins += 1;
        if spins.is_multiple_of(4096) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// Measures the transfer of a cache line between two threads, in nanoseconds one way.
pub(crate) fn cache_line(time: Duration) -> Measured {
    const PASSES: u64 = 500;
    const STOP: u64 = u64::MAX;
    /// An upper bound of the transfer between any two processors.
    const SEPARATE: f64 = 2000.0;
    #[repr(align(128))]
    struct Line(AtomicU64);
    let line = &Line(AtomicU64::new(0)).0;
    let values = threads(2, |thread| {
        let mut next = 1;
        if thread == 1 {
            while line.load(Ordering::Acquire) != STOP {
                spin_until(|| [next, STOP].contains(&line.load(Ordering::Acquire)));
                let _ = line.compare_exchange(next, next + 1, Ordering::Release, Ordering::Relaxed);
                next += 2;
            }
            return Ok(Vec::new());
        }
        let values = batches(time, 2 * PASSES as usize, || {
            for _ in 0..PASSES {
                line.store(next, Ordering::Release);
                spin_until(|| line.load(Ordering::Acquire) == next + 1);
                next += 2;
            }
            Ok(())
        });
        line.store(STOP, Ordering::Release);
        values
    });
    let line = Measured::of(values.concat()).unwrap_or_else(|error| fail(&error));
    if line.median > SEPARATE {
        eprintln!("two threads do not run in parallel here: rows of several threads are not meaningful");
    }
    line
}

/// Measures a copy of 1 MiB, in gigabytes per second.
pub(crate) fn memcpy(time: Duration) -> Result<Measured> {
    let (from, mut to) = (vec![1_u8; 1 << 20], vec![0_u8; 1 << 20]);
    let times = batches(time, 1 << 20, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        Ok(())
    });
    Ok(Measured::of(times?)?.map(|nanoseconds| 1.0 / nanoseconds))
}
