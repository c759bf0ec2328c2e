//! Waiting: poll, spin, yield, then sleep on the bell, with liveness checks of the peers in
//! between.
//!
//! A wake-up takes longer than most waits, and spinning occupies a processor. The spin time is
//! therefore adaptive, as in hypervisors (`Documentation/virt/kvm/halt-polling.rst` of Linux).
//! After a short sleep the next wait spins longer. After a long sleep it spins less.
//!
//! A spinning thread yields its processor if its peer last ran there, or if the processors are
//! oversubscribed: the job has more ranks than processors. If yields return immediately, no other
//! rank needs the processor, and the thread spins between them. If another thread keeps the
//! processor, the waiting thread sleeps, since the scheduler prefers woken threads.

use std::time::{Duration, Instant};

use umf_sync::failpoint;

use crate::inbox::Inbox;
use crate::settings::check_interrupt;
use crate::{Error, LinkSettings, Result, protocol, sys};

/// Polls before the first reading of the clock. Most answers arrive within them.
pub(crate) const EAGER: u32 = 2000;
/// Polls between two readings of the clock.
const BATCH: u32 = 64;
/// The longest sleep without a liveness check.
pub(crate) const SLICE: Duration = Duration::from_millis(25);
/// The age in milliseconds after which a liveness check is repeated.
pub(crate) const FRESH: u64 = 20;

/// The initial and shortest spin time, which is less than a wake-up takes.
const BASE: Duration = Duration::from_micros(50);
/// A yield that takes longer than this means that a busy thread shares the processor.
const BUSY: Duration = Duration::from_micros(50);
/// The same limit if processors are oversubscribed: all other ranks may run in between.
const OVERSUBSCRIBED_BUSY: Duration = Duration::from_micros(500);
/// A yield that returns within this time found no other runnable thread.
const QUIET: Duration = Duration::from_micros(2);
/// Consecutive yields of that kind after which a rank spins again, if processors are
/// oversubscribed.
const QUIET_YIELDS: u8 = 8;
/// The number of waits that do not spin, after spinning did not help.
const BACKOFF: u8 = 32;

/// The time limit of a call. It starts at its first check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    timeout: Option<Duration>,
    end: Option<Instant>,
    /// As [`crate::LinkSettings::interrupt`].
    interrupt: Option<fn() -> bool>,
}

impl Limit {
    pub(crate) const fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, end: None, interrupt: None }
    }

    /// Returns the limit of a call of the application.
    pub(crate) const fn of_call(timeout: Option<Duration>, settings: &LinkSettings) -> Self {
        Self { timeout, end: None, interrupt: settings.interrupt }
    }

    /// Fails if the call is to be interrupted.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        check_interrupt(self.interrupt)
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.timeout.is_none()
    }

    /// Returns the time left; `None` without a limit.
    pub(crate) fn left(&mut self, now: Instant) -> Option<Duration> {
        let timeout = self.timeout?;
        if self.end.is_none() {
            // A time beyond the range of the clock counts as no limit.
            self.end = Some(now.checked_add(timeout)?);
        }
        self.end.map(|end| end.saturating_duration_since(now))
    }

    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        self.left(now).is_some_and(|left| left.is_zero())
    }

    /// Returns the time left, at most `most`.
    pub(crate) fn at_most(&mut self, most: Duration) -> Duration {
        self.left(Instant::now()).map_or(most, |left| left.min(most))
    }

    pub(crate) fn error(&self, what: &'static str) -> Error {
        Error::TimedOut { what, milliseconds: self.milliseconds() }
    }

    /// Returns the whole time; 0 without a limit.
    pub(crate) fn milliseconds(&self) -> u64 {
        self.timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The adaptive spin time of one inbox. It reads no clock and no setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    length: Duration,
    /// Whether a wait ended while it spun for longer than [`BASE`].
    has_paid: bool,
    /// The number of next waits that sleep without spinning.
    sleeps: u8,
    /// Consecutive yields that returned at once: no other thread was runnable.
    quiet: u8,
}

impl Default for Spin {
    fn default() -> Self {
        Self { length: BASE, has_paid: false, sleeps: 0, quiet: 0 }
    }
}

impl Spin {
    /// Returns the spin time of the next wait, at most `most`.
    fn length(&self, most: Duration) -> Duration {
        if self.sleeps > 0 { Duration::ZERO } else { self.length.min(most) }
    }

    /// Adapts to a wait that slept and ended after `waited`.
    fn slept(&mut self, waited: Duration, most: Duration) {
        if self.sleeps > 0 {
            // This wait did not spin, so its length says nothing about spinning.
            self.sleeps -= 1;
        } else if waited > most {
            if self.length > BASE && !self.has_paid {
                self.sleeps = BACKOFF;
                self.failed();
            }
            // Halved, because other waits may still be short.
            self.length = (self.length / 2).max(BASE);
        } else if self.length < most {
            self.length = self.length.saturating_mul(2).min(most);
            self.has_paid = false;
        }
    }

    /// Adapts to a yield.
    fn yielded(&mut self, time: Duration, is_busy: bool) {
        self.quiet = if time < QUIET { self.quiet.saturating_add(1) } else { 0 };
        if is_busy {
            self.sleeps = BACKOFF;
        }
    }

    /// Returns the number of polls between two readings of the clock: fewer if other ranks need the
    /// processor.
    pub(crate) const fn polls(&self, is_oversubscribed: bool, most: u32) -> u32 {
        match (is_oversubscribed, self.quiet >= QUIET_YIELDS) {
            (false, _) => most,
            (true, true) => BATCH,
            (true, false) => 1,
        }
    }

    /// Adapts to a wait that ended while it spun.
    const fn spun(&mut self) {
        self.has_paid = true;
    }

    /// Adapts to a wait whose event did not occur.
    const fn failed(&mut self) {
        self.length = BASE;
        self.has_paid = false;
    }
}

/// A wait that spins.
struct Spinning {
    start: Instant,
    /// `None`: beyond the range of the clock.
    end: Option<Instant>,
    yielded: Option<Instant>,
    /// The longest yield after which the thread continues to spin.
    busy: Duration,
}

impl Spinning {
    fn new(start: Instant, length: Duration, is_oversubscribed: bool) -> Self {
        let busy = if is_oversubscribed { OVERSUBSCRIBED_BUSY } else { BUSY };
        Self { start, end: start.checked_add(length), yielded: None, busy }
    }

    /// Returns whether the wait should sleep now. If not, it yields the processor if `should_yield`
    /// returns `true`.
    fn is_over(&mut self, now: Instant, should_yield: impl FnOnce() -> bool, spin: &mut Spin) -> bool {
        if let Some(yielded) = self.yielded.take() {
            let time = now.saturating_duration_since(yielded);
            let is_busy = time > self.busy;
            spin.yielded(time, is_busy);
            if is_busy {
                return true;
            }
        }
        if self.end.is_some_and(|end| now >= end) {
            return true;
        }
        if should_yield() {
            self.yielded = Some(now);
            std::thread::yield_now();
        }
        false
    }
}

impl Inbox {
    /// Returns the limit of a call of the application.
    pub(crate) fn limit(&self) -> Limit {
        Limit::of_call(self.timeout, &self.shared.settings)
    }

    /// Polls until `poll` returns a value, the watched peer is gone or the limit is reached.
    /// Between polls the inbox makes progress.
    #[inline]
    pub(crate) fn wait<T>(
        &mut self,
        watched: Option<usize>,
        limit: &mut Limit,
        what: &'static str,
        mut poll: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        for _ in 0..self.spin.polls(self.is_oversubscribed, EAGER) {
            if let Some(found) = poll(self)? {
                return Ok(found);
            }
        }
        self.wait_slow(watched, limit, what, &mut poll)
    }

    #[cold]
    #[inline(never)]
    fn wait_slow<T>(
        &mut self,
        watched: Option<usize>,
        limit: &mut Limit,
        what: &'static str,
        poll: &mut impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let most = self.shared.settings.spin;
        let mut spinning = Spinning::new(Instant::now(), self.spin.length(most), self.is_oversubscribed);
        loop {
            for _ in 0..self.spin.polls(self.is_oversubscribed, BATCH) {
                if let Some(found) = poll(self)? {
                    self.spin.spun();
                    return Ok(found);
                }
                core::hint::spin_loop();
            }
            self.progress();
            let now = Instant::now();
            if let Some(end) = self.end_of_wait(watched, limit, now, what) {
                self.spin.failed();
                // The last records of the peer may have arrived.
                self.drain();
                return poll(self)?.ok_or(end);
            }
            let mut spin = self.spin;
            let is_over = spinning.is_over(now, || self.should_yield(watched), &mut spin);
            self.spin = spin;
            if is_over {
                break;
            }
        }
        let shared = std::sync::Arc::clone(&self.shared);
        let bell = shared.bell.word();
        loop {
            let seen = protocol::fall_asleep(bell);
            failpoint!("link.asleep");
            let is_any_left = self.progress();
            if let Some(found) = poll(self)? {
                return Ok(found);
            }
            // No bell rings for records that arrived before.
            if !is_any_left && sys::sleep(bell, seen, limit.at_most(SLICE)) {
                // A killed peer may not have marked its lane.
                self.mark_all_unread();
            }
            if let Some(found) = poll(self)? {
                self.spin.slept(spinning.start.elapsed(), most);
                return Ok(found);
            }
            if let Some(end) = self.end_of_wait(watched, limit, Instant::now(), what) {
                self.spin.failed();
                self.drain();
                return poll(self)?.ok_or(end);
            }
            // Without a last poll: what has arrived is left to the next call.
            limit.check_interrupt()?;
        }
    }

    /// Returns the error that ends the wait: the end of the watched peer, or the timeout.
    fn end_of_wait(
        &mut self,
        watched: Option<usize>,
        limit: &mut Limit,
        now: Instant,
        what: &'static str,
    ) -> Option<Error> {
        let is_over = limit.is_over(now);
        let peer = watched.and_then(|index| self.peers[index].as_mut());
        // The end of the peer takes precedence over the timeout.
        let state = match peer {
            Some(peer) if is_over => peer.channel.check_alive(),
            Some(peer) => peer.check(),
            None => Ok(()),
        };
        state.err().or_else(|| is_over.then(|| limit.error(what)))
    }

    /// Returns whether a spinning thread should yield its processor.
    fn should_yield(&self, watched: Option<usize>) -> bool {
        if self.is_oversubscribed {
            return true;
        }
        let all = self.peers.iter().enumerate();
        let peers = all.filter(|(index, _)| watched.is_none_or(|watched| watched == *index));
        // No short circuit: `should_yield` also publishes the processor to each peer.
        let shared = peers.filter_map(|(_, peer)| peer.as_ref());
        shared.fold(false, |any, peer| peer.channel.should_yield() | any)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::LinkBuilder;

    const MOST: Duration = Duration::from_micros(1000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    #[test]
    fn short_sleeps_lengthen_spinning() {
        let mut spin = Spin::default();
        let mut lengths = vec![spin.length(MOST)];
        for _ in 0..6 {
            spin.slept(us(120), MOST);
            lengths.push(spin.length(MOST));
        }
        assert_eq!(lengths, [50, 100, 200, 400, 800, 1000, 1000].map(us));
    }

    #[test]
    fn long_sleeps_shorten_spinning() {
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
        spin.failed();
        assert_eq!(spin.length(MOST), BASE);
    }

    #[test]
    fn spinning_has_a_maximum() {
        let mut spin = Spin::default();
        for most in [Duration::ZERO, us(20), us(50), us(70), Duration::MAX] {
            assert_eq!(spin.length(most), BASE.min(most));
            for _ in 0..200 {
                spin.slept(us(10), most);
                assert!(spin.length(most) <= most);
            }
            spin.failed();
        }
        let now = Instant::now();
        let mut is_over =
            |length, after| Spinning::new(now, length, false).is_over(now + after, || false, &mut spin);
        assert!(is_over(Duration::ZERO, us(0)));
        assert!(!is_over(us(400), us(399)) && is_over(us(400), us(400)));
        assert!(!is_over(Duration::MAX, us(1 << 40)));
    }

    #[test]
    fn busy_processor_ends_spinning() {
        let (mut spin, now) = (Spin::default(), Instant::now());
        spin.slept(us(10), MOST);
        let mut oversubscribed = Spinning::new(now, MOST, true);
        let mut spinning = Spinning::new(now, MOST, false);
        // No yield, then a yield of 50 us, and one of 51 us.
        for (after, should_yield) in [(400, false), (500, true), (550, true)] {
            assert!(!spinning.is_over(now + us(after), || should_yield, &mut spin));
        }
        assert!(!oversubscribed.is_over(now, || true, &mut spin));
        assert!(!oversubscribed.is_over(now + us(500), || true, &mut spin));
        assert_eq!(spin.sleeps, 0);
        assert!(spinning.is_over(now + us(601), || true, &mut spin));
        for _ in 0..BACKOFF {
            assert_eq!(spin.length(MOST), Duration::ZERO);
            spin.slept(us(2000), MOST);
        }
        // The adapted length is kept.
        assert_eq!(spin.length(MOST), 2 * BASE);
    }

    #[test]
    fn oversubscribed_ranks_spin_while_yields_return_immediately() {
        let mut spin = Spin::default();
        assert_eq!((spin.polls(false, EAGER), spin.polls(true, EAGER)), (EAGER, 1));
        for _ in 0..QUIET_YIELDS {
            assert_eq!(spin.polls(true, EAGER), 1);
            spin.yielded(us(1), false);
        }
        assert_eq!(spin.polls(true, EAGER), BATCH);
        spin.yielded(us(3), false);
        assert_eq!((spin.polls(true, EAGER), spin.sleeps), (1, 0));
    }

    #[test]
    fn useless_spinning_backs_off() {
        for (pays, expected) in [(true, BASE), (false, Duration::ZERO)] {
            let mut spin = Spin::default();
            spin.slept(us(120), MOST);
            if pays {
                spin.spun();
            }
            spin.slept(us(1001), MOST);
            assert_eq!(spin.length(MOST), expected);
        }
    }

    /// With a limit of an hour, the result does not depend on the speed of the machine.
    #[test]
    fn inbox_adapts_spin_time_to_waits() {
        let settings = LinkSettings { spin: HOUR, ..LinkSettings::default() };
        let [mut link, _peer] = LinkBuilder::new().settings(settings).pair();
        let inbox = &mut link.inbox;
        let first = Spin::default().length(HOUR);
        let shared = std::sync::Arc::clone(&inbox.shared);
        let mut has_slept = false;
        let comes_while_asleep = |_: &mut Inbox| {
            let is_asleep = protocol::Futex::load(shared.bell.word()) & protocol::ASLEEP != 0;
            Ok(core::mem::replace(&mut has_slept, is_asleep).then_some(()))
        };
        inbox.wait(Some(0), &mut Limit::new(None), "a test", comes_while_asleep).unwrap();
        assert_eq!(inbox.spin.length(HOUR), 2 * first);
        let mut polls = 0;
        let comes_while_spinning = |_: &mut Inbox| {
            polls += 1;
            Ok((polls > EAGER).then_some(()))
        };
        inbox.wait(Some(0), &mut Limit::new(None), "a test", comes_while_spinning).unwrap();
        assert!(inbox.spin.has_paid);
        let mut limit = Limit::new(Some(Duration::from_millis(1)));
        let over = inbox.wait(Some(0), &mut limit, "a test", |_| Ok(None::<()>));
        assert!(matches!(over, Err(Error::TimedOut { .. })));
        assert_eq!(inbox.spin.length(HOUR), first);
    }

    #[test]
    fn interrupt_ends_wait() {
        static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
        let interrupt: fn() -> bool = || IS_INTERRUPTED.load(Ordering::Relaxed);
        let settings = LinkSettings { interrupt: Some(interrupt), ..LinkSettings::default() };
        let [mut link, mut peer] = LinkBuilder::new().settings(settings).pair();
        IS_INTERRUPTED.store(true, Ordering::Relaxed);
        assert_eq!(link.recv(1, &mut [0; 4]), Err(Error::Interrupted));
        assert_eq!(link.send(1, &[7; 1 << 20]), Err(Error::Interrupted));
        // Neither call has lost a message.
        peer.send(1, b"kept").unwrap();
        link.send(2, b"sent").unwrap();
        let mut into = [0; 4];
        assert_eq!((link.recv(1, &mut into).unwrap().length, &into), (4, b"kept"));
        assert_eq!((peer.recv(2, &mut into).unwrap().length, &into), (4, b"sent"));
    }

    /// Runs a test in a thread that is bound to one processor.
    fn bound<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        let run = || {
            let mut one = rustix::thread::CpuSet::new();
            one.set(sys::processor());
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            run()
        };
        std::thread::scope(|scope| scope.spawn(run).join()).unwrap()
    }

    #[test]
    fn thread_bound_to_one_processor_has_default_spin() {
        let default = LinkSettings::default().spin;
        assert_eq!(default.is_zero(), sys::processors() == 1);
        assert_eq!(bound(|| LinkSettings::default().spin), default);
    }

    #[test]
    fn thread_on_processor_of_peer_yields() {
        bound(|| {
            let [one, other] = LinkBuilder::new().pair();
            // The peer has not published its processor yet.
            assert!(!one.inbox.should_yield(Some(0)));
            assert!(other.inbox.should_yield(Some(0)) && one.inbox.should_yield(None));
        });
    }
}
