//! Waiting: spin, then sleep, and look after the peer meanwhile.

use std::time::{Duration, Instant};

use umf_sync::failpoint;

use crate::protocol;
use crate::shared::Shared;
use crate::spin::{Awake, Spin};
use crate::{Error, Result, sys};

/// Polls that cost nothing but themselves: an answer that is on its way is here before a processor could rest.
const EAGER: u32 = 2000;
/// Polls between two looks at the clock.
const BATCH: u32 = 64;
/// The longest that anybody sleeps without looking after the peer.
pub(crate) const SLICE: Duration = Duration::from_millis(25);
/// How old the news of a peer may be.
pub(crate) const FRESH: u64 = 20;

/// What a half keeps in mind from wait to wait: when it last asked whether the peer is there, and for how long it pays to spin.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    asked: u64,
    spin: Spin,
}

impl Pulse {
    /// Whether the link can be used: asks the kernel, if that is some time ago.
    #[inline]
    pub(crate) fn check(&mut self, shared: &Shared) -> Result<()> {
        shared.known()?;
        if sys::coarse_milliseconds().wrapping_sub(self.asked) > FRESH {
            return self.look(shared);
        }
        Ok(())
    }

    #[cold]
    fn look(&mut self, shared: &Shared) -> Result<()> {
        self.asked = sys::coarse_milliseconds();
        shared.look()
    }
}

/// How long to wait. The time runs from when it is first looked at, which is when there is something to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    timeout: Option<Duration>,
    end: Option<Instant>,
}

impl Limit {
    pub(crate) const fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, end: None }
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.timeout.is_none()
    }

    /// What is left; `None` is for ever.
    pub(crate) fn left(&mut self, now: Instant) -> Option<Duration> {
        let timeout = self.timeout?;
        if self.end.is_none() {
            // Further off than clocks reach: for ever.
            self.end = Some(now.checked_add(timeout)?);
        }
        self.end.map(|end| end.saturating_duration_since(now))
    }

    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        self.left(now).is_some_and(|left| left.is_zero())
    }

    /// What is left, and no more than `most`.
    pub(crate) fn at_most(&mut self, most: Duration) -> Duration {
        self.left(Instant::now()).map_or(most, |left| left.min(most))
    }

    pub(crate) fn error(&self, what: &'static str) -> Error {
        Error::TimedOut { what, milliseconds: self.milliseconds() }
    }

    /// All of it; 0 if it is for ever.
    pub(crate) fn milliseconds(&self) -> u64 {
        self.timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
    }
}

/// How often a wait for so many links polls before it first looks at the clock, and between two looks. With more ranks than processors
/// the rank that is waited for may need this one's.
pub(crate) const fn polls(is_crowded: bool, links: usize) -> (u32, u32) {
    if is_crowded || links == 0 { (1, 1) } else { (EAGER / links as u32, BATCH) }
}

/// Polls until there is something, the peer is gone, or the limit is reached. `poll` is told whether this side is about to
/// sleep, so that it says all that the peer may wait for.
#[inline]
pub(crate) fn wait<T>(
    shared: &Shared,
    pulse: &mut Pulse,
    limit: &mut Limit,
    what: &'static str,
    mut poll: impl FnMut(bool) -> Result<Option<T>>,
) -> Result<T> {
    // Who waits does meanwhile what the peer asks for: it may wait for that.
    let mut poll = |asleep| {
        shared.serve()?;
        poll(asleep)
    };
    for _ in 0..polls(shared.settings.is_crowded, 1).0 {
        if let Some(found) = poll(false)? {
            return Ok(found);
        }
    }
    wait_long(shared, pulse, limit, what, poll)
}

#[cold]
#[inline(never)]
fn wait_long<T>(
    shared: &Shared,
    pulse: &mut Pulse,
    limit: &mut Limit,
    what: &'static str,
    mut poll: impl FnMut(bool) -> Result<Option<T>>,
) -> Result<T> {
    let most = shared.settings.spin;
    let mut awake = Awake::new(Instant::now(), pulse.spin.length(most));
    loop {
        for _ in 0..polls(shared.settings.is_crowded, 1).1 {
            if let Some(found) = poll(false)? {
                pulse.spin.spun();
                return Ok(found);
            }
            core::hint::spin_loop();
        }
        let now = Instant::now();
        let over = limit.is_over(now);
        if let Some(end) = health(shared, pulse, limit, over, what) {
            pulse.spin.in_vain();
            // What it did last may have come.
            return poll(true)?.ok_or(end);
        }
        if awake.is_over(now, || shared.gives_way(), &mut pulse.spin) {
            break;
        }
    }
    let bell = shared.bell().word();
    loop {
        let seen = protocol::fall_asleep(bell);
        failpoint!("link.asleep");
        if let Some(found) = poll(true)? {
            return Ok(found);
        }
        let left = limit.left(Instant::now()).unwrap_or(SLICE);
        sys::sleep(bell, seen, left.min(SLICE));
        if let Some(found) = poll(true)? {
            pulse.spin.slept(awake.waited(), most);
            return Ok(found);
        }
        let over = limit.is_over(Instant::now());
        if let Some(end) = health(shared, pulse, limit, over, what) {
            pulse.spin.in_vain();
            return poll(true)?.ok_or(end);
        }
    }
}

/// Why waiting makes no sense any more.
fn health(
    shared: &Shared,
    pulse: &mut Pulse,
    limit: &Limit,
    is_over: bool,
    what: &'static str,
) -> Option<Error> {
    // A peer that is gone is told as that, whatever the time.
    let there = if is_over { shared.look() } else { pulse.check(shared) };
    match there {
        Err(end) => Some(end),
        Ok(()) => is_over.then(|| limit.error(what)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{LinkBuilder, LinkSettings};

    const HOUR: Duration = Duration::from_secs(3600);

    /// However slow the machine is: nothing takes an hour.
    #[test]
    fn waits_are_learned_from() {
        let settings = LinkSettings { spin: HOUR, ..LinkSettings::default() };
        let [link, _peer] = LinkBuilder::new().settings(settings).pair();
        let shared = Arc::clone(&link.shared);
        let (mut pulse, first) = (Pulse::default(), Spin::default().length(HOUR));
        // As long as it says, then two looks: before it sleeps, and after.
        let mut looks = 0;
        let mut come_while_it_sleeps = |asleep| {
            looks += u32::from(asleep);
            Ok((looks == 2).then_some(()))
        };
        wait(&shared, &mut pulse, &mut Limit::new(None), "a test", &mut come_while_it_sleeps).unwrap();
        assert_eq!(pulse.spin.length(HOUR), 2 * first);

        let mut polls = 0;
        let come_while_it_spins = |_| {
            polls += 1;
            Ok((polls > EAGER).then_some(()))
        };
        wait(&shared, &mut pulse, &mut Limit::new(None), "a test", come_while_it_spins).unwrap();
        // It has paid, so that one long wait is no reason to sleep at once.
        let mut after = pulse.spin;
        after.slept(2 * HOUR, HOUR);
        assert_eq!(after.length(HOUR), first);

        let mut limit = Limit::new(Some(Duration::from_millis(1)));
        let over = wait(&shared, &mut pulse, &mut limit, "a test", |_| Ok(None::<()>));
        assert!(matches!(over, Err(Error::TimedOut { .. })));
        assert_eq!(pulse.spin.length(HOUR), first);
    }
}
