//! A limit for a wait that must end. It counts the time that this machine had for the work.

use std::time::{Duration, Instant};

use crate::machine;

/// Limit for a wait, in seconds of an idle machine. While more threads are runnable than there are
/// processors, time counts in proportion: with 8 threads on 2 processors, a second counts as a
/// quarter. In a virtual machine a second counts as a [`GUEST`]th: its processors may be interpreted,
/// and it does not see what else the host runs. A wait for something that never comes ends on any
/// machine.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    counted: Instant,
}

impl Patience {
    /// The share of time is that of the last interval. Longer intervals would miss changes.
    const INTERVAL: Duration = Duration::from_millis(100);

    /// Begins a wait.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { left: limit, counted: Instant::now() }
    }

    /// Returns how long to wait until the next call of this function, or `None` if the limit is
    /// reached.
    pub fn next_wait(&mut self) -> Option<Duration> {
        let passed = self.counted.elapsed();
        if passed >= Self::INTERVAL.min(self.left) {
            self.counted = Instant::now();
            self.left = self.left.saturating_sub(passed.div_f64(competition()));
        }
        (!self.left.is_zero()).then(|| self.left.min(Self::INTERVAL))
    }

    /// Sleeps for at most 10 ms. Returns `false` if the limit is reached.
    pub fn sleep(&mut self) -> bool {
        let wait = self.next_wait();
        wait.inspect(|wait| std::thread::sleep((*wait).min(Duration::from_millis(10)))).is_some()
    }
}

/// How much slower the processors of a guest may be.
const GUEST: f64 = 10.0;

/// Returns the number of runnable threads per processor, and 1 if there are fewer, times [`GUEST`]
/// in a guest.
fn competition() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // The fourth field is `runnable/existing`: proc_loadavg(5).
    let runnable = std::fs::read_to_string("/proc/loadavg").ok().and_then(|text| {
        let (runnable, _) = text.split_ascii_whitespace().nth(3)?.split_once('/')?;
        runnable.parse::<u32>().ok()
    });
    let share = f64::from(runnable.unwrap_or(1)) / f64::from(u32::try_from(processors).unwrap_or(1));
    share.max(1.0) * if machine::is_guest() { GUEST } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_and_not_before_its_limit() {
        let begun = Instant::now();
        let mut patience = Patience::new(Duration::from_millis(250));
        while patience.sleep() {}
        assert!(begun.elapsed() >= Duration::from_millis(250));
        assert!(patience.next_wait().is_none());
    }
}
