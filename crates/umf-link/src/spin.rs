//! [`Spin`]: for how long a wait stays awake before it sleeps, as waits before it have shown that it pays.
//!
//! To be woken costs more than most waits are long: where both sides sleep in turn, each wait is as long as a wake-up, and they go on
//! doing so. To be awake costs a processor. So it is learned, as hypervisors do (`Documentation/virt/kvm/halt-polling.rst` of Linux):
//! what was slept for, and came soon, is waited for awake the next time; after what did not come soon, little is spun.
//!
//! Who spins gives its processor away again and again: there may be more that spin than there are processors, and among them who is
//! waited for has none. If somebody takes it and does not give it back soon, to sleep is the best: who is woken goes first.

use std::time::{Duration, Instant};

/// Spun by whoever has learned nothing: less than a wake-up costs.
const BASE: Duration = Duration::from_micros(50);

/// Who has no processor for so long while it spins has to share it with somebody who works.
const TAKEN: Duration = Duration::from_micros(50);

/// So many times that whoever found its processor taken sleeps at once.
const TIMES: u8 = 32;

/// What one waiter has learned. It knows no clock and no setting: it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    length: Duration,
    /// How many waits are to sleep at once.
    sleeps: u8,
}

impl Default for Spin {
    fn default() -> Self {
        Self { length: BASE, sleeps: 0 }
    }
}

impl Spin {
    /// How long the next wait is to spin, if `most` is the most that any does.
    pub(crate) fn length(&self, most: Duration) -> Duration {
        if self.sleeps > 0 { Duration::ZERO } else { self.length.min(most) }
    }

    /// What was waited for, and slept for, is there after so long.
    pub(crate) fn slept(&mut self, waited: Duration, most: Duration) {
        if self.sleeps > 0 {
            // How long it would have taken awake is not known.
            self.sleeps -= 1;
        } else if waited > most {
            self.length = BASE;
        } else if self.length < most {
            self.length = self.length.saturating_mul(2).min(most);
        }
    }

    /// What was waited for did not come.
    pub(crate) fn in_vain(&mut self) {
        self.length = BASE;
    }

    /// Somebody else needs the processor.
    fn shared(&mut self) {
        self.sleeps = TIMES;
    }
}

/// A wait that is awake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awake {
    start: Instant,
    /// `None`: longer than clocks reach.
    end: Option<Instant>,
    looked: Instant,
}

impl Awake {
    pub(crate) fn new(start: Instant, length: Duration) -> Self {
        Self { start, end: start.checked_add(length), looked: start }
    }

    /// How long it has lasted, asleep and awake.
    pub(crate) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether it is to sleep now.
    pub(crate) fn is_over(&mut self, now: Instant, spin: &mut Spin) -> bool {
        let taken = now.saturating_duration_since(self.looked) > TAKEN;
        self.looked = now;
        if taken {
            spin.shared();
        }
        taken || self.end.is_some_and(|end| now >= end)
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
            for _ in 0..200 {
                spin.slept(us(10), most);
                assert!(spin.length(most) <= most);
            }
            spin.in_vain();
        }
        let now = Instant::now();
        assert!(Awake::new(now, Duration::ZERO).is_over(now, &mut spin));
        assert!(!Awake::new(now, us(40)).is_over(now + us(39), &mut spin));
        assert!(Awake::new(now, us(40)).is_over(now + us(40), &mut spin));
        assert!(!Awake::new(now, Duration::MAX).is_over(now + us(40), &mut spin));
    }

    #[test]
    fn who_works_gets_the_processor() {
        let (mut spin, now) = (Spin::default(), Instant::now());
        spin.slept(us(10), MOST);
        let mut awake = Awake::new(now, MOST);
        assert!(!awake.is_over(now + us(30), &mut spin) && !awake.is_over(now + us(80), &mut spin));
        assert!(awake.is_over(now + us(131), &mut spin));
        for _ in 0..TIMES {
            assert_eq!(spin.length(MOST), Duration::ZERO);
            spin.slept(us(2000), MOST);
        }
        // It goes on with what it knew.
        assert_eq!(spin.length(MOST), 2 * BASE);
    }
}
