//! How a row is measured: batches, on one thread or several.

use std::sync::Barrier;
use std::time::Duration;

use crate::failure::Failure;
use crate::sys::processors;
use crate::timing;

/// What one operation took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub median: f64,
    pub min: f64,
}

impl Measured {
    /// Of the values of many batches.
    pub(super) fn of(values: Vec<f64>) -> Result<Measured, Failure> {
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let nothing = || Failure::Told("nothing was measured".to_owned());
        Ok(Measured { median: timing::median(values).ok_or_else(nothing)?, min })
    }

    /// The same in another unit.
    pub(super) fn map(self, convert: impl Fn(f64) -> f64) -> Measured {
        Measured { median: convert(self.median), min: convert(self.min) }
    }
}

/// Nanoseconds per operation; `batch` says how many it did.
pub(super) fn one<E: std::fmt::Display>(
    time: Duration,
    batch: impl FnMut() -> Result<u64, E>,
) -> Result<Measured, Failure> {
    Measured::of(timing::batches(time, batch).map_err(told)?)
}

/// Nanoseconds per operation where `once` times one operation at a time, with what has to be done before and after
/// left out.
pub(super) fn singly<E: std::fmt::Display>(
    time: Duration,
    mut once: impl FnMut() -> Result<f64, E>,
) -> Result<Measured, Failure> {
    let end = std::time::Instant::now() + time;
    let mut values = Vec::new();
    once().map_err(told)?;
    while values.len() < 3 || std::time::Instant::now() < end {
        values.push(once().map_err(told)?);
    }
    Measured::of(values)
}

/// As [`one`], on `count` threads; `measure` is what thread `number` does, and says its values.
pub(super) fn threads<E: std::fmt::Display + Send>(
    count: usize,
    measure: impl Fn(usize) -> Result<Vec<f64>, E> + Sync,
) -> Result<Measured, Failure> {
    Measured::of(gather(count, measure)?.concat())
}

/// What `run` yields on each of `count` threads that begin together, each on a processor of its own as far as there are.
pub(super) fn gather<T: Send, E: std::fmt::Display + Send>(
    count: usize,
    run: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, Failure> {
    let barrier = Barrier::new(count);
    let begin = |number| {
        if count > 1 {
            // Where it is refused, the marker tells how the threads ran.
            let _ = processors::stay_on(number);
        }
        barrier.wait();
        run(number)
    };
    let begin = &begin;
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || begin(number))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let finished = |result: std::thread::Result<Result<T, E>>| {
        let value = result.map_err(|_| Failure::Told("a measuring thread panicked".to_owned()))?;
        value.map_err(told)
    };
    results.into_iter().map(finished).collect()
}

/// An error of what is measured.
pub(super) fn told(error: impl std::fmt::Display) -> Failure {
    Failure::Told(error.to_string())
}
