//! Times, and what to make of many of them.

use std::time::{Duration, Instant};

/// Nanoseconds of one run.
pub(crate) fn nanoseconds<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = run();
    (start.elapsed().as_nanos() as f64, result)
}

/// The median; `None` of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Runs `batch`, which says how often it did what is timed, again and again for `time`, and at least three times.
/// Returns the nanoseconds of each, per time that it was done.
///
/// # Errors
/// The first of a batch.
pub(crate) fn batches<E>(time: Duration, mut batch: impl FnMut() -> Result<u64, E>) -> Result<Vec<f64>, E> {
    // Caches and branches are warm from here on.
    batch()?;
    let end = Instant::now() + time;
    let mut values = Vec::new();
    while values.len() < 3 || Instant::now() < end {
        let (nanoseconds, count) = nanoseconds(&mut batch);
        match count? {
            0 => break,
            count => values.push(nanoseconds / count as f64),
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn nothing_to_do_ends() {
        assert!(batches(Duration::from_secs(60), || Ok::<u64, ()>(0)).unwrap().is_empty());
        assert!(batches(Duration::ZERO, || Ok::<u64, ()>(1)).unwrap().len() >= 3);
    }
}
