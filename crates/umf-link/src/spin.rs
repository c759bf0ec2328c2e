//! [`Spin`]: for how long a wait stays awake before it sleeps, as waits before it have shown that it pays.
//!
//! To be woken costs more than most waits are long: where both sides sleep in turn, each wait is as long as a wake-up, and they go on
//! doing so. To be awake costs a processor. So it is learned, as hypervisors do (`Documentation/virt/kvm/halt-polling.rst` of Linux):
//! what was slept for, and came soon, is waited for awake the next time; after what did not come soon, little is spun.

use std::time::{Duration, Instant};

use crate::sys;

/// Spun by whoever has learned nothing, and without giving the processor away: less than a wake-up costs.
const BASE: Duration = Duration::from_micros(50);

/// What one waiter has learned. It knows no clock and no setting: it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin(Duration);

impl Default for Spin {
    fn default() -> Self {
        Self(BASE)
    }
}

impl Spin {
    /// How long the next wait is to spin, if `most` is the most that any does.
    pub(crate) fn length(&self, most: Duration) -> Duration {
        self.0.min(most)
    }

    /// What was waited for, and slept for, is there after so long.
    pub(crate) fn slept(&mut self, waited: Duration, most: Duration) {
        if waited > most {
            self.0 = BASE;
        } else if self.0 < most {
            self.0 = self.0.saturating_mul(2).min(most);
        }
    }

    /// What was waited for did not come.
    pub(crate) fn in_vain(&mut self) {
        self.0 = BASE;
    }
}

/// A wait that is awake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awake {
    start: Instant,
    /// `None`: longer than clocks reach.
    end: Option<Instant>,
    /// For how long it does not give the processor away.
    insists: Duration,
}

impl Awake {
    pub(crate) fn new(start: Instant, length: Duration) -> Self {
        // Who is waited for may have been given the same processor.
        let insists = if sys::has_one_processor() { Duration::ZERO } else { BASE };
        Self { start, end: start.checked_add(length), insists }
    }

    /// How long it has lasted, asleep and awake.
    pub(crate) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether it is to sleep now. If not, and it has spun for some time, whoever else wants the processor gets it: there may be more
    /// that spin than there are processors, and among them who is waited for has none.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        if self.end.is_some_and(|end| now >= end) {
            return true;
        }
        if now.saturating_duration_since(self.start) >= self.insists {
            std::thread::yield_now();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(1000);

    fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    #[test]
    fn what_comes_soon_is_waited_for_awake() {
        let mut spin = Spin::default();
        let mut lengths = vec![spin.length(MOST)];
        for _ in 0..6 {
            spin.slept(us(120), MOST);
            lengths.push(spin.length(MOST));
        }
        assert_eq!(lengths, [50, 100, 200, 400, 800, 1000, 1000].map(us));
    }

    #[test]
    fn what_comes_late_is_slept_for() {
        let mut spin = Spin::default();
        for _ in 0..5 {
            spin.slept(MOST, MOST);
        }
        assert_eq!(spin.length(MOST), MOST);
        spin.slept(us(1001), MOST);
        assert_eq!(spin.length(MOST), BASE);
        spin.slept(us(3), MOST);
        assert_eq!(spin.length(MOST), 2 * BASE);
        spin.in_vain();
        assert_eq!(spin.length(MOST), BASE);
    }

    #[test]
    fn no_more_than_the_most() {
        let mut spin = Spin::default();
        for most in [Duration::ZERO, us(20), us(50), us(70), Duration::MAX] {
            assert_eq!(spin.length(most), BASE.min(most));
            spin.slept(us(10), most);
            spin.slept(us(10), most);
            assert!(spin.length(most) <= most);
            spin.in_vain();
        }
        let now = Instant::now();
        assert!(Awake::new(now, Duration::ZERO).is_over(now));
        assert!(!Awake::new(now, us(51)).is_over(now + us(50)));
        assert!(Awake::new(now, us(51)).is_over(now + us(51)));
        assert!(!Awake::new(now, Duration::MAX).is_over(now + us(1 << 40)));
    }
}
