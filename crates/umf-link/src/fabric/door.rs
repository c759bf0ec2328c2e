//! [`Door`]: where the other ranks of a job connect. A thread answers them, so that a rank that computes can be met.
//!
//! Two ranks may call on each other at the same time. Then the link is the one that the lower rank makes: the lower one turns the
//! other's down while it is at it, and the higher one takes what comes.

use core::sync::atomic::{AtomicBool, Ordering};
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use umf_os::background;
use umf_sync::fork;

use super::lookout::Seen;
use super::name::Job;
use super::roster::{Member, Roster, Sight};
use crate::endpoint::{Arrival, Guest};
use crate::lane::Bell;
use crate::wait::Limit;
use crate::wire::{DIGITS, Here, Intro, Reply};
use crate::{Endpoint, Error, Link, LinkAddress, LinkBuilder, Result, sys};

/// How long to wait for a place among those that somebody has not let in yet, when nothing is asked of it.
const KNOCK: Duration = Duration::from_millis(1);

/// How a rank is linked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    #[default]
    None,
    /// This rank connects.
    Connecting,
    /// There is a link with this process, or it is on its way.
    Made(u32),
}

/// A link that another rank has made.
pub(super) type Met = (usize, Link);

#[derive(Debug)]
struct State {
    ways: Vec<Way>,
    /// How many links there have been.
    links: Vec<u32>,
    met: Vec<Met>,
    roster: Roster,
    /// Whether the thread is to end.
    is_closed: bool,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    builder: LinkBuilder,
    job: Job,
    me: usize,
    size: usize,
    state: Mutex<State>,
    /// Whether something was put into `met`; then the bell is rung.
    has_news: AtomicBool,
    bell: Arc<Bell>,
}

/// Where other ranks connect, until dropped.
#[derive(Debug)]
pub(super) struct Door {
    inner: ManuallyDrop<Arc<Inner>>,
    thread: ManuallyDrop<background::Thread>,
    process: u32,
}

impl Door {
    pub(super) fn open(
        builder: &LinkBuilder,
        bell: &Arc<Bell>,
        job: Job,
        me: usize,
        size: usize,
    ) -> Result<Self> {
        let digits = Job::digits()?;
        let endpoint = builder.listen(&job.socket(me, digits))?;
        let others = others(builder, &job, me, digits)?;
        let state = State {
            ways: vec![Way::None; size],
            links: vec![0; size],
            met: Vec::new(),
            roster: Roster::new(size),
            is_closed: false,
        };
        let (builder, state) = (builder.clone(), Mutex::new(state));
        let inner = Arc::new(Inner {
            endpoint,
            builder,
            job,
            me,
            size,
            state,
            has_news: AtomicBool::new(false),
            bell: Arc::clone(bell),
        });
        let serving = Arc::clone(&inner);
        let thread =
            background::spawn(c"umf-fabric", 256 << 10, move || serving.serve()).map_err(|error| {
                let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
                Error::system("starting the thread of a fabric")(errno)
            })?;
        let (inner, thread) = (ManuallyDrop::new(inner), ManuallyDrop::new(thread));
        let door = Self { inner, thread, process: fork::generation() };
        // Last: who was told of this rank is told of its end, too.
        door.announce(others, digits);
        Ok(door)
    }

    /// Tells all ranks that listen that this one is there, and keeps in mind who they are.
    fn announce(&self, others: Vec<(usize, LinkAddress)>, digits: [u8; DIGITS]) {
        let inner = &**self.inner;
        let here = Here { rank: inner.me as u32, size: inner.size as u32, digits };
        for (rank, address) in others {
            // Who has no place for that is met, or waited for, as one that never came.
            if let Ok(Some(pid)) = inner.builder.who(&address, KNOCK, Some(here)) {
                let member = Member::new(address, pid);
                let mut state = inner.state();
                // Who has said so meanwhile came later.
                if state.roster.member(rank).is_none() {
                    state.roster.enter(rank, member);
                }
            }
        }
    }

    /// Whether it is this process's, and not its parent's.
    pub(super) fn is_here(&self) -> bool {
        self.process == fork::generation()
    }

    /// Whether there is something to [`Door::take`].
    pub(super) fn has_news(&self) -> bool {
        self.inner.has_news.load(Ordering::Acquire)
    }

    /// The links that other ranks have made since the last time.
    pub(super) fn take(&self) -> Vec<Met> {
        if !self.inner.has_news.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        core::mem::take(&mut self.inner.state().met)
    }

    /// A link with this rank is not used any more: another one may be made.
    pub(super) fn forget(&self, rank: usize) {
        self.inner.state().ways[rank] = Way::None;
    }

    /// Nobody is told of the end of who was this rank any more: the process `pid`, or one that is gone.
    pub(super) fn strike(&self, rank: usize, pid: Option<u32>) {
        let inner = &**self.inner;
        let Some(member) = inner.state().roster.member(rank).cloned() else { return };
        if pid == Some(member.pid.unsigned_abs()) || inner.is_gone(&member) {
            inner.state().roster.strike(rank, &member);
        }
    }

    /// Of a rank that did not come.
    pub(super) fn absent(&self, rank: usize, limit: &Limit) -> Error {
        Error::RankAbsent {
            job: self.inner.job.as_str().to_owned(),
            rank,
            milliseconds: limit.milliseconds(),
        }
    }

    /// Who is known to have joined, and who listens.
    pub(super) fn sight(&self) -> Result<Sight> {
        let known = self.inner.state().roster.clone();
        Ok(Sight::new(known, self.inner.job.listening()?))
    }

    /// Whether this rank has joined since it was seen, or the name of who was it has become free. `socket` as of [`sys::is_free`].
    pub(super) fn has_news_of(&self, rank: usize, seen: &mut Seen, socket: &mut Option<OwnedFd>) -> bool {
        let entry = self.inner.state().roster.entry(rank).map(|(number, member)| (number, member.address));
        let Some((number, address)) = entry else {
            *seen = Seen::default();
            return false;
        };
        let has_joined = seen.number != number;
        if has_joined {
            *seen = Seen { number, is_free: false };
        }
        if seen.is_free {
            return false;
        }
        seen.is_free = sys::is_free(socket, address.socket().as_bytes()).unwrap_or(false);
        has_joined || seen.is_free
    }

    /// How who was this rank has gone, if that is so, nobody took its place, and no link of it is on its way.
    pub(super) fn end(&self, sight: &Sight, rank: usize) -> Option<Error> {
        let inner = &**self.inner;
        let member = sight.missed(rank).filter(|member| inner.is_gone(member))?;
        // Looked at last: from here on it begins none.
        let is_coming = matches!(inner.state().ways[rank], Way::Made(_));
        (!is_coming).then(|| member.end())
    }

    /// Whether it is known who any of these ranks was.
    pub(super) fn knows_any(&self, mut ranks: impl Iterator<Item = usize>) -> bool {
        let state = self.inner.state();
        ranks.any(|rank| state.roster.member(rank).is_some())
    }

    /// Tries once to link a rank, for at most `patience`; `None` if that is not there yet, or comes by itself: [`Door::take`]. Without a
    /// `sight`, the one that is known to have joined.
    ///
    /// # Errors
    /// That of [`Door::end`], too.
    pub(super) fn call(
        &self,
        sight: Option<&Sight>,
        rank: usize,
        patience: Duration,
    ) -> Result<Option<Link>> {
        let inner = &**self.inner;
        let links = {
            let mut state = inner.state();
            let links = state.links[rank];
            let way = &mut state.ways[rank];
            if matches!(way, Way::Made(_)) {
                return Ok(None);
            }
            *way = Way::Connecting;
            links
        };
        let intro = Intro { rank: inner.me as u32, size: inner.size as u32, links };
        let called = inner.connect(sight, rank, intro, patience);
        let mut state = inner.state();
        let way = &mut state.ways[rank];
        match &called {
            Ok(Some(link)) => {
                *way = Way::Made(link.peer_pid());
                state.links[rank] += 1;
            }
            // Unless it has called meanwhile.
            _ if *way == Way::Connecting => *way = Way::None,
            _ => {}
        }
        drop(state);
        match called {
            Ok(None) => sight.and_then(|sight| self.end(sight, rank)).map_or(Ok(None), Err),
            called => called,
        }
    }
}

/// Where the other ranks listen.
///
/// # Errors
/// [`Error::RankTaken`] if somebody is this one.
fn others(
    builder: &LinkBuilder,
    job: &Job,
    me: usize,
    digits: [u8; DIGITS],
) -> Result<Vec<(usize, LinkAddress)>> {
    let own = job.socket(me, digits);
    let mut others = job.listening()?;
    others.retain(|(_, address)| address.socket() != own);
    for (_, address) in others.iter().filter(|(rank, _)| *rank == me) {
        if let Some(pid) = builder.who(address, builder.set().handshake, None)? {
            return Err(Error::RankTaken { job: job.as_str().to_owned(), rank: me, pid });
        }
    }
    others.retain(|(rank, _)| *rank != me);
    Ok(others)
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held that could leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody listens there any more.
    fn is_gone(&self, member: &Member) -> bool {
        matches!(self.builder.who(&member.address, KNOCK, None), Ok(None))
    }

    fn connect(
        &self,
        sight: Option<&Sight>,
        rank: usize,
        intro: Intro,
        patience: Duration,
    ) -> Result<Option<Link>> {
        let Some(sight) = sight else {
            let known = self.state().roster.member(rank).map(|member| member.address);
            return known.map_or(Ok(None), |address| self.connect_to(&address, intro, patience));
        };
        // The kernel's table may leave out who listens, as others come and go.
        let left_out = sight.missed(rank).map(|member| &member.address);
        for address in sight.of(rank).iter().chain(left_out) {
            if let Some(link) = self.connect_to(address, intro, patience)? {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    fn connect_to(&self, address: &LinkAddress, intro: Intro, patience: Duration) -> Result<Option<Link>> {
        match self.builder.connect_as(address, Some(patience), Some(intro)) {
            Ok(Ok(link)) => Ok(Some(link)),
            Ok(Err(Reply::Size(theirs))) => {
                Err(Error::OtherSize { theirs: theirs as usize, mine: self.size })
            }
            Ok(Err(_)) => Ok(None),
            Err(error @ Error::System { .. }) => Err(error),
            Err(error) => {
                // A name that a stranger has taken, too.
                tracing::debug!(%error, "a rank could not be met");
                Ok(None)
            }
        }
    }

    fn serve(&self) {
        loop {
            let accepted = self.endpoint.arrival();
            if self.state().is_closed {
                return;
            }
            match accepted {
                Ok(Arrival::Link(link)) => {
                    tracing::warn!(pid = link.peer_pid(), "a process connected, and was no rank of the job");
                }
                Ok(Arrival::Rank(guest, intro)) => self.welcome(*guest, intro),
                Ok(Arrival::Here(pid, here)) => self.note(pid, here),
                Err(error) => {
                    tracing::warn!(%error, "a rank could not be let in");
                    // No fds, no memory: that may pass.
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// Keeps in mind who has joined.
    fn note(&self, pid: i32, Here { rank, size, digits }: Here) {
        let (rank, size) = (rank as usize, size as usize);
        if size == self.size && rank < size && rank != self.me {
            let member = Member::new(self.job.address(rank, digits), pid);
            self.state().roster.enter(rank, member);
            self.bell.ring();
        } else {
            tracing::warn!(pid, rank, size, "a process joined the job as a rank that there is not");
        }
    }

    fn welcome(&self, guest: Guest, intro: Intro) {
        let pid = guest.pid.unsigned_abs();
        let (rank, size) = (intro.rank as usize, intro.size as usize);
        if size != self.size || rank >= size || rank == self.me {
            return self.endpoint.refuse(guest, Reply::Size(self.size as u32));
        }
        let is_mine = {
            let mut state = self.state();
            let had = state.links[rank];
            let way = &mut state.ways[rank];
            let is_mine = match *way {
                Way::None => true,
                Way::Connecting => rank < self.me,
                // Another process in its place; or it has dropped the link, and not called before it knew of it.
                Way::Made(other) => other != pid || intro.links >= had,
            };
            if is_mine {
                *way = Way::Made(pid);
            }
            is_mine
        };
        if !is_mine {
            return self.endpoint.refuse(guest, Reply::No);
        }
        let link = match self.endpoint.welcome(guest) {
            Ok(link) => link.filter(|link| self.endpoint.has_agreed(link)),
            Err(error) => {
                tracing::warn!(%error, rank, "a rank could not be let in");
                None
            }
        };
        let mut state = self.state();
        let Some(link) = link else {
            if state.ways[rank] == Way::Made(pid) {
                state.ways[rank] = Way::None;
            }
            return;
        };
        state.links[rank] += 1;
        state.met.push((rank, link));
        drop(state);
        self.has_news.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if !self.is_here() {
            // The thread is in the parent, and may have had the lock: nothing of it is touched.
            return;
        }
        self.inner.state().is_closed = true;
        self.inner.endpoint.turn_away();
        // SAFETY: neither is used afterwards.
        let (thread, inner) =
            unsafe { (ManuallyDrop::take(&mut self.thread), ManuallyDrop::take(&mut self.inner)) };
        thread.join();
        drop(inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_join_and_go_are_news_once() {
        let job = Job::new(&format!("news-{}", std::process::id())).unwrap();
        let (bell, _) = Bell::create().unwrap();
        let bell = Arc::new(bell);
        let open = |rank| Door::open(&LinkBuilder::new(), &bell, job.clone(), rank, 2).unwrap();
        let first = open(0);
        let (mut seen, mut socket) = (Seen::default(), None);
        let mut has_news = || first.has_news_of(1, &mut seen, &mut socket);
        assert!(!has_news(), "nobody is known");
        for _ in 0..2 {
            let second = open(1);
            let mut waits = (0..10_000).map(|_| std::thread::sleep(Duration::from_millis(1)));
            assert!(waits.any(|()| has_news()), "it joined");
            assert!(!has_news() && !has_news(), "it is there still");
            drop(second);
            assert!(has_news(), "it went");
            assert!(!has_news() && !has_news());
        }
        first.strike(1, None);
        assert!(!has_news());
    }
}
