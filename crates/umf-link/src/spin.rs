//! [`Spin`]: for how long a wait stays awake before it sleeps, as waits before it have shown that it pays.
//!
//! To be woken costs more than most waits are long: where both sides sleep in turn, each wait is as long as a wake-up, and they go on
//! doing so. To be awake costs a processor. So it is learned, as hypervisors do (`Documentation/virt/kvm/halt-polling.rst` of Linux):
//! what was slept for, and came soon, is waited for awake the next time; after what did not come soon, little is spun.
//!
//! Who spins on the processor that the peer last ran on, or in a job with more ranks than processors, gives it away again and again: who
//! is waited for may have none. If somebody takes it and does not give it back soon, to sleep is the best: who is woken goes first.
//! Otherwise nothing is given away, since whoever else runs there is no part of this.

use std::time::{Duration, Instant};

/// Spun by whoever has learned nothing: less than a wake-up costs.
const BASE: Duration = Duration::from_micros(50);

/// Who gave its processor away, and has it back only after so long, shares it with somebody who works.
const TAKEN: Duration = Duration::from_micros(50);

/// So many waits sleep at once when spinning has shown to be in vain.
const TIMES: u8 = 32;

/// What one waiter has learned. It knows no clock and no setting: it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    length: Duration,
    /// Whether something came while it spun for longer than [`BASE`] as it does now.
    paid: bool,
    /// How many waits are to sleep at once.
    sleeps: u8,
    /// Whether there are more ranks than processors: who is waited for needs this one.
    is_crowded: bool,
}

impl Default for Spin {
    fn default() -> Self {
        Self { length: BASE, paid: false, sleeps: 0, is_crowded: false }
    }
}

impl Spin {
    pub(crate) fn new(is_crowded: bool) -> Self {
        Self { is_crowded, ..Self::default() }
    }

    /// Whether each wait gives its processor away.
    pub(crate) const fn is_crowded(&self) -> bool {
        self.is_crowded
    }

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
            if self.length > BASE && !self.paid {
                self.sleeps = TIMES;
                self.in_vain();
            }
            // Not all at once: others may be short still.
            self.length = (self.length / 2).max(BASE);
        } else if self.length < most {
            self.length = self.length.saturating_mul(2).min(most);
            self.paid = false;
        }
    }

    /// What was waited for came while this spun.
    pub(crate) fn spun(&mut self) {
        self.paid = true;
    }

    /// What was waited for did not come.
    pub(crate) fn in_vain(&mut self) {
        self.length = BASE;
        self.paid = false;
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
    /// When it gave the processor away.
    gave: Option<Instant>,
}

impl Awake {
    pub(crate) fn new(start: Instant, length: Duration) -> Self {
        Self { start, end: start.checked_add(length), gave: None }
    }

    /// How long it has lasted, asleep and awake.
    pub(crate) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether it is to sleep now. If not, it gives the processor away, should `gives_way` say so.
    pub(crate) fn is_over(
        &mut self,
        now: Instant,
        gives_way: impl FnOnce() -> bool,
        spin: &mut Spin,
    ) -> bool {
        if self.gave.take().is_some_and(|gave| now.saturating_duration_since(gave) > TAKEN) {
            spin.shared();
            return true;
        }
        if self.end.is_some_and(|end| now >= end) {
            return true;
        }
        if gives_way() {
            self.gave = Some(now);
            std::thread::yield_now();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkBuilder, LinkSettings, sys};

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
        spin.spun();
        for length in [1000, 500, 250, 125].map(us) {
            assert_eq!(spin.length(MOST), length);
            spin.slept(us(1001), MOST);
        }
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
        let mut is_over = |length, after| Awake::new(now, length).is_over(now + after, || false, &mut spin);
        assert!(is_over(Duration::ZERO, us(0)));
        assert!(!is_over(us(400), us(399)) && is_over(us(400), us(400)));
        assert!(!is_over(Duration::MAX, us(1 << 40)));
    }

    #[test]
    fn who_works_gets_the_processor() {
        let (mut spin, now) = (Spin::default(), Instant::now());
        spin.slept(us(10), MOST);
        let mut awake = Awake::new(now, MOST);
        // Kept, and then given away for 50 us and for 51.
        for (after, gives_way) in [(400, false), (500, true), (550, true)] {
            assert!(!awake.is_over(now + us(after), || gives_way, &mut spin));
        }
        assert!(awake.is_over(now + us(601), || true, &mut spin));
        for _ in 0..TIMES {
            assert_eq!(spin.length(MOST), Duration::ZERO);
            spin.slept(us(2000), MOST);
        }
        // It goes on with what it knew.
        assert_eq!(spin.length(MOST), 2 * BASE);
    }

    #[test]
    fn what_never_pays_is_not_tried_again_soon() {
        for (pays, expected) in [(true, BASE), (false, Duration::ZERO)] {
            let mut spin = Spin::default();
            spin.slept(us(120), MOST);
            if pays {
                spin.spun();
            }
            spin.slept(us(5000), MOST);
            assert_eq!(spin.length(MOST), expected);
        }
        // Who never tried has nothing to regret.
        let mut spin = Spin::default();
        spin.slept(us(5000), MOST);
        assert_eq!(spin.length(MOST), BASE);
    }

    /// In a thread that is bound to one processor.
    fn bound<R: Send>(run: impl FnOnce() -> R + Send) -> R {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let run = || {
            let usable = sched_getaffinity(None).unwrap();
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|processor| usable.is_set(*processor)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            run()
        };
        std::thread::scope(|scope| scope.spawn(run).join()).unwrap()
    }

    #[test]
    fn who_is_bound_to_a_processor_spins_too() {
        let default = LinkSettings::default().spin;
        assert_eq!(default.is_zero(), sys::processors() == 1);
        assert_eq!(bound(|| LinkSettings::default().spin), default);
    }

    #[test]
    fn the_processor_is_given_away_where_the_peer_runs() {
        bound(|| {
            let [one, other] = LinkBuilder::new().pair();
            // The other one has not said where it is.
            assert!(!one.gives_way());
            assert!(other.gives_way() && one.gives_way());
            let [rank, _] = LinkBuilder::new().among(sys::processors()).unwrap().0.pair();
            assert!(!rank.gives_way());
            let [rank, _] = LinkBuilder::new().among(sys::processors() + 1).unwrap().0.pair();
            assert!(rank.gives_way());
        });
    }
}
