//! Waiting for something on any of several links: as [`crate::wait::wait`] does for one.

use std::time::{Duration, Instant};

use crate::lane::Bell;
use crate::protocol;
use crate::spin::{Awake, Spin};
use crate::wait::{Limit, SLICE, polls};
use crate::{Link, Result, sys};

/// Links by rank.
pub(crate) type Links = [Option<Link>];

/// Polls until there is something, or the limit is reached; `poll` says if a link has ended. Sleeps on the bell that all links
/// have. `spin`: what this waiter has learned, and the most that it spins.
pub(crate) fn wait_many<T>(
    links: &mut Links,
    bell: &Bell,
    (spin, most): (&mut Spin, Duration),
    limit: &mut Limit,
    what: &'static str,
    mut poll: impl FnMut(&mut Links, bool) -> Result<Option<T>>,
) -> Result<T> {
    let (eager, batch) = polls(spin.is_crowded(), links.len());
    for _ in 0..eager {
        if let Some(found) = poll(links, false)? {
            return Ok(found);
        }
    }
    let mut awake = Awake::new(Instant::now(), spin.length(most));
    loop {
        for _ in 0..batch {
            if let Some(found) = poll(links, false)? {
                spin.spun();
                return Ok(found);
            }
            core::hint::spin_loop();
        }
        let now = Instant::now();
        if limit.is_over(now) {
            spin.in_vain();
            return poll(links, true)?.ok_or_else(|| limit.error(what));
        }
        // All are told where this one runs.
        let is_crowded = spin.is_crowded();
        let gives_way =
            || is_crowded || links.iter().flatten().fold(false, |any, link| link.gives_way() | any);
        if awake.is_over(now, gives_way, spin) {
            break;
        }
    }
    loop {
        let seen = protocol::fall_asleep(bell.word());
        if let Some(found) = poll(links, true)? {
            return Ok(found);
        }
        sys::sleep(bell.word(), seen, limit.left(Instant::now()).unwrap_or(SLICE).min(SLICE));
        if let Some(found) = poll(links, true)? {
            spin.slept(awake.waited(), most);
            return Ok(found);
        }
        if limit.is_over(Instant::now()) {
            spin.in_vain();
            return Err(limit.error(what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, LinkBuilder};

    #[test]
    fn waits_are_learned_from() {
        const HOUR: Duration = Duration::from_secs(3600);
        let [link, _peer] = LinkBuilder::new().pair();
        let (mut links, mut spin) = ([Some(link), None], Spin::default());
        let (bell, _) = Bell::create().unwrap();
        let first = spin.length(HOUR);
        let (mut looks, mut limit) = (0, Limit::new(None));
        wait_many(&mut links, &bell, (&mut spin, HOUR), &mut limit, "a test", |_, asleep| {
            looks += u32::from(asleep);
            Ok((looks == 2).then_some(()))
        })
        .unwrap();
        assert_eq!(spin.length(HOUR), 2 * first);
        let mut limit = Limit::new(Some(Duration::from_millis(1)));
        let over =
            wait_many(&mut links, &bell, (&mut spin, HOUR), &mut limit, "a test", |_, _| Ok(None::<()>));
        assert!(matches!(over, Err(Error::TimedOut { .. })));
        assert_eq!(spin.length(HOUR), first);
    }
}
