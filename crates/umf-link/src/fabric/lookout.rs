//! [`Lookout`]: when somebody who waits for ranks reads the kernel's table of sockets.
//!
//! The table has all sockets of the machine, so it is read again only when something may have changed: a rank that joins says so,
//! and one that went has let go of its name, which is asked for each time. What neither tells is found by reading it anyway, less and
//! less often: a rank that could not say that it joined, and one that went while a child of it still has its socket.

use super::door::Door;
use super::roster::Sight;
use crate::wait::FRESH;
use crate::{Error, Result};

/// Milliseconds from one time that nothing has changed to the next, at most.
const RARE: u64 = 1000;
/// For how many milliseconds looks may fail.
const BLIND: u64 = 1000;

/// What was seen of a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Of its entry in the roster; 0 is none.
    pub number: u64,
    /// Its name is free. It stays so, since nobody uses it twice.
    pub is_free: bool,
}

/// What one who waits has seen.
#[derive(Debug)]
pub(super) struct Lookout {
    ranks: Vec<Seen>,
    sight: Option<Sight>,
    asked: u64,
    /// When the table is read though nothing has changed, and how long it is to the time after that.
    due: u64,
    pause: u64,
    /// Since when it cannot be read, and why.
    blind: Option<(u64, Error)>,
}

impl Lookout {
    pub(super) fn new(size: usize) -> Self {
        Self { ranks: vec![Seen::default(); size], sight: None, asked: 0, due: 0, pause: FRESH, blind: None }
    }

    /// Whether nobody has looked for a while.
    pub(super) fn is_old(&self, now: u64) -> bool {
        now.wrapping_sub(self.asked) > FRESH
    }

    /// The next look is one at the table.
    pub(super) const fn hurry(&mut self) {
        (self.due, self.pause) = (0, FRESH);
    }

    /// Looks after these ranks. Yields who is there if the table was read: a look that cannot be made (no fds) is none.
    pub(super) fn look(
        &mut self,
        door: &Door,
        ranks: impl Iterator<Item = usize>,
        now: u64,
    ) -> Option<&Sight> {
        let mut socket = None;
        let news =
            ranks.fold(false, |any, rank| door.has_news_of(rank, &mut self.ranks[rank], &mut socket) | any);
        drop(socket);
        if !self.begin(news, now) {
            return None;
        }
        match door.sight() {
            Ok(sight) => {
                self.blind = None;
                Some(self.sight.insert(sight))
            }
            Err(error) => {
                tracing::debug!(%error, "ranks cannot be looked for");
                self.fail(error, now);
                None
            }
        }
    }

    /// Whether the table is to be read.
    fn begin(&mut self, news: bool, now: u64) -> bool {
        self.asked = now;
        if news {
            self.hurry();
        }
        let is_due = now >= self.due;
        if is_due {
            self.due = now + self.pause;
            self.pause = (self.pause * 2).min(RARE);
        }
        is_due
    }

    fn fail(&mut self, error: Error, now: u64) {
        // Whatever was news is news still.
        self.hurry();
        self.due = now + FRESH;
        let since = self.blind.take().map_or(now, |(since, _)| since);
        self.blind = Some((since, error));
    }

    /// What was seen last, for whoever cannot go on without.
    ///
    /// # Errors
    /// Why the table could not be read for some time.
    pub(super) fn sight(&self, now: u64) -> Result<Option<&Sight>> {
        match &self.blind {
            Some((since, error)) if now.saturating_sub(*since) >= BLIND => Err(error.clone()),
            _ => Ok(self.sight.as_ref()),
        }
    }

    /// Why the last look failed, if it did.
    pub(super) fn failure(&self) -> Option<Error> {
        self.blind.as_ref().map(|(_, error)| error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_where_there_is_news_and_else_less_and_less_often() {
        let mut lookout = Lookout::new(2);
        let mut reads = |from: u64, news: &[u64]| -> Vec<u64> {
            let times = (from..from + 5000).step_by(20);
            times.filter(|now| lookout.begin(news.contains(now), *now)).map(|now| now - from).collect()
        };
        let quiet = [0, 20, 60, 140, 300, 620, 1260, 2260, 3260, 4260];
        assert_eq!(reads(100_000, &[]), quiet);
        let busy = reads(200_000, &[201_000, 201_020]);
        assert!(busy.starts_with(&[0, 1000, 1020, 1040, 1080]), "{busy:?}");
    }

    #[test]
    fn looks_that_fail_are_tried_again_and_told_of_after_a_while() {
        let mut lookout = Lookout::new(2);
        let error = || Error::system("a test")(rustix::io::Errno::MFILE);
        let mut tries = 0;
        for now in (5000..6000).step_by(20) {
            if lookout.begin(now == 5000, now) {
                lookout.fail(error(), now);
                tries += 1;
            }
            assert!(lookout.sight(now).unwrap().is_none());
            assert_eq!(lookout.failure(), Some(error()));
        }
        assert_eq!(tries, 50);
        assert_eq!(lookout.sight(6000).unwrap_err(), error());
        lookout.blind = None;
        lookout.sight(6000).unwrap();
    }
}
