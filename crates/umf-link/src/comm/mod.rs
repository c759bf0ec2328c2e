//! [`Communicator`]: the ranks of a job on this machine.
//!
//! [`membership`] is the table in which ranks find each other, [`ranks`] has their links.
//! [`messages`] and [`collectives`] have the calls; [`exchange`], [`algorithms`] and [`allreduce`]
//! carry collectives out.

mod algorithms;
mod allreduce;
mod collectives;
mod exchange;
mod membership;
mod messages;
mod ranks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::wait::Limit;
use crate::{Error, Link, LinkBuilder, Result, protocol, sys};
use exchange::ended_by;
use ranks::{AcceptedLink, Identity, Ranks};

/// The longest attempt to link a rank.
const MAX_ATTEMPT: Duration = Duration::from_secs(1);
/// The time for which attempts may fail for lack of descriptors or memory before the call fails.
const RESOURCE_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest and longest pause between attempts to link absent ranks.
const BACKOFF: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The links of a rank with the other ranks of a job, and collectives. Ranks are processes of one
/// machine, and of one user unless [`crate::LinkSettings::allow`] permits others.
///
/// The first message between two ranks links them. The first collective links all ranks.
/// `docs/link.md` lists the resources of a rank.
///
/// Ranks find each other in a domain with the name of the job (`docs/domain.md`). The thread
/// `umf-ranks` accepts links while this rank computes. One thread uses a communicator at a time.
///
/// # Examples
/// ```
/// use umf_link::{Communicator, Operation, Reduction};
/// # fn main() -> umf_link::Result<()> {
/// # let job = format!("example-{}", std::process::id());
/// # let ranks: Vec<_> = (0..2).map(|rank| {
/// #     let job = job.clone();
/// #     std::thread::spawn(move || -> umf_link::Result<()> {
/// // In each of the two processes, with its own number as `rank`:
/// let mut comm = Communicator::join(&job, rank, 2)?;
/// let mut values = [1.0_f32, rank as f32];
/// comm.allreduce(&mut values[..], Reduction::of::<f32>(Operation::Sum)?)?;
/// assert_eq!(values, [2.0, 1.0]);
/// #         Ok(())
/// #     })
/// # }).collect();
/// # for rank in ranks { rank.join().expect("it does not panic")?; }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Communicator {
    own_rank: usize,
    size: usize,
    inbox: Inbox,
    states: RankStates,
    /// The number of collectives that were begun.
    number: u64,
    ranks: Ranks,
}

/// Errors of consecutive attempts that failed for lack of descriptors or memory.
#[derive(Debug, Default)]
struct ResourceErrors(Option<(Instant, Error)>);

impl ResourceErrors {
    /// Returns the result of an attempt. A lack of resources counts as `None` for
    /// [`RESOURCE_TIMEOUT`].
    fn check(&mut self, connected: Result<Option<Arc<Channel>>>) -> Result<Option<Arc<Channel>>> {
        let error = match connected {
            Err(error @ Error::System { .. }) => error,
            connected => {
                self.0 = None;
                return connected;
            }
        };
        let (since, _) = self.0.get_or_insert((Instant::now(), error.clone()));
        if since.elapsed() < RESOURCE_TIMEOUT { Ok(None) } else { Err(error) }
    }

    /// Returns the error of the latest attempt, if it failed for lack of resources.
    fn error(self) -> Option<Error> {
        self.0.map(|(_, error)| error)
    }
}

/// The known processes of the ranks, and whether collectives have ended.
#[derive(Debug)]
struct RankStates {
    /// The latest process of each rank; 0 if none is known.
    pids: Vec<u32>,
    /// As `pids`: its identity.
    identities: Vec<Identity>,
    /// The latest process of each rank whose end was reported by a receive from any rank.
    reported: Vec<Option<i32>>,
    /// Links with processes that replaced ranks which are not forgotten yet.
    spare: Vec<AcceptedLink>,
    /// The error that ended collectives.
    broken: Option<Error>,
    /// Whether a collective was begun.
    has_begun: bool,
}

impl LinkBuilder {
    /// Joins a job as one of its `size` ranks: [`Communicator`]. Does not wait for other ranks.
    ///
    /// # Errors
    /// [`Error::BadName`]: a job has 1 to 32 letters, digits and `._:/+=@-`; [`Error::BadRank`];
    /// [`Error::RankTaken`]; [`Error::SizeMismatch`]; [`Error::Membership`]; [`Error::System`]: no
    /// descriptors, no shared memory or no threads are left.
    pub fn join(&self, job: &str, rank: usize, size: usize) -> Result<Communicator> {
        let (ranks, shared) = Ranks::join(self, job, rank, size)?;
        let inbox = Inbox::new(shared, size);
        let states = RankStates {
            pids: vec![0; size],
            identities: vec![0; size],
            reported: vec![None; size],
            spare: Vec::new(),
            broken: None,
            has_begun: false,
        };
        Ok(Communicator { own_rank: rank, size, inbox, states, number: 0, ranks })
    }
}

impl RankStates {
    /// Adds the link with a rank to the inbox.
    fn add_link(&mut self, inbox: &mut Inbox, rank: usize, channel: Arc<Channel>) {
        let identity = channel.peer_nonce;
        let former = core::mem::replace(&mut self.identities[rank], identity);
        let former_pid = core::mem::replace(&mut self.pids[rank], channel.pid.unsigned_abs());
        inbox.insert(rank, channel);
        self.reported[rank] = None;
        if former != 0 && former != identity && self.has_begun && self.broken.is_none() {
            // The new process took no part in earlier collectives.
            self.end_collectives(inbox, Error::PeerGone { pid: former_pid.cast_signed() });
        } else if let (Some(error), Some(channel)) = (&self.broken, inbox.channel(rank)) {
            channel.end_collectives(gone_pid(error));
        }
    }

    /// Adds the links that other ranks have made.
    fn adopt_links(&mut self, inbox: &mut Inbox, ranks: &Ranks) {
        if !ranks.has_news() {
            return;
        }
        for (rank, channel) in ranks.take() {
            if inbox.peers[rank].is_none() {
                self.add_link(inbox, rank, channel);
            } else {
                self.spare.push((rank, channel));
            }
        }
    }

    /// Ends collectives of this communicator, and publishes the end to all ranks. Returns the
    /// reason.
    fn end_collectives(&mut self, inbox: &Inbox, error: Error) -> Error {
        let ended = |rank| ended_by(inbox, rank);
        let error = match error {
            // A rank that closed its link may have published the reason.
            Error::Closed { .. } => (0..self.pids.len()).find_map(ended).unwrap_or(error),
            error => error,
        };
        for peer in inbox.peers.iter().flatten() {
            peer.channel.end_collectives(gone_pid(&error));
        }
        self.broken = Some(error.clone());
        error
    }
}

/// Returns the error for a rank that has ended; `None` for a living one.
fn end_of_rank(inbox: &mut Inbox, ranks: &Ranks, rank: usize) -> Option<Error> {
    match &mut inbox.peers[rank] {
        Some(peer) => peer.check().err(),
        None => ranks.end(rank),
    }
}

/// Returns the pid of the process whose end is the reason of an error.
const fn gone_pid(error: &Error) -> Option<i32> {
    match error {
        Error::PeerGone { pid } => Some(*pid),
        _ => None,
    }
}

impl Communicator {
    /// Joins a job with default settings and without an importer: [`LinkBuilder::join`].
    ///
    /// # Errors
    /// As [`LinkBuilder::join`].
    pub fn join(job: &str, rank: usize, size: usize) -> Result<Self> {
        LinkBuilder::new().join(job, rank, size)
    }

    /// Returns the number of this rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.own_rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Sets the timeout of later calls. `None` waits until the rank is gone. If a rank does not
    /// join within the timeout, calls return [`Error::RankAbsent`].
    pub const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.inbox.timeout = timeout;
    }

    /// Returns the link with another rank. Connects if the ranks are not linked.
    ///
    /// # Errors
    /// [`Error::BadRank`]; [`Error::PeerGone`] or [`Error::Closed`] if the rank joined and has
    /// ended; [`Error::RankAbsent`]; [`Error::SizeMismatch`]; [`Error::Forked`]; [`Error::System`]:
    /// no descriptors or no shared memory are left.
    pub fn link(&mut self, rank: usize) -> Result<Link<&mut Inbox>> {
        self.check(rank)?;
        self.adopt_links();
        if self.inbox.peers[rank].is_none() {
            self.connect(rank)?;
        }
        Ok(Link { inbox: &mut self.inbox, index: rank })
    }

    #[cold]
    fn connect(&mut self, rank: usize) -> Result<()> {
        let (mut limit, mut pause) = (self.inbox.limit(), BACKOFF[0]);
        let mut resource_errors = ResourceErrors::default();
        loop {
            let connected = self.ranks.connect_rank(rank, limit.at_most(MAX_ATTEMPT));
            if let Some(channel) = resource_errors.check(connected)? {
                self.states.add_link(&mut self.inbox, rank, channel);
            }
            self.adopt_links();
            if self.inbox.peers[rank].is_some() {
                return Ok(());
            }
            if limit.is_over(Instant::now()) {
                let absent = || self.ranks.absent(rank, limit.milliseconds());
                return Err(resource_errors.error().unwrap_or_else(absent));
            }
            self.pause(&mut pause, &mut limit)?;
        }
    }

    /// Sleeps until a link arrives, at most for `pause`, which is then doubled.
    fn pause(&mut self, pause: &mut Duration, limit: &mut Limit) -> Result<()> {
        self.inbox.progress();
        let bell = self.inbox.shared.bell.word();
        let seen = protocol::fall_asleep(bell);
        if !self.ranks.has_news() {
            sys::sleep(bell, seen, limit.at_most(*pause));
        }
        *pause = (*pause * 2).min(BACKOFF[1]);
        limit.check_interrupt()
    }

    /// Returns the linked ranks.
    pub fn linked(&self) -> impl Iterator<Item = usize> {
        self.inbox.peers.iter().enumerate().filter_map(|(rank, peer)| peer.is_some().then_some(rank))
    }

    /// Drops the link with a rank, so that the next call links the process that replaced the rank.
    /// If the rank had ended, collectives of this communicator have ended.
    ///
    /// # Errors
    /// [`Error::BadRank`], [`Error::Forked`].
    pub fn forget(&mut self, rank: usize) -> Result<()> {
        self.check(rank)?;
        let channel = self.inbox.remove(rank);
        let end = channel.as_ref().and_then(|channel| channel.check_alive().err());
        self.states.reported[rank] = None;
        self.ranks.forget(rank, channel.map(|channel| channel.peer_nonce));
        if let Some(end) = end
            && self.states.has_begun
            && self.states.broken.is_none()
        {
            self.states.end_collectives(&self.inbox, end);
        }
        if let Some(place) = self.states.spare.iter().position(|(other, _)| *other == rank) {
            let (_, channel) = self.states.spare.swap_remove(place);
            self.ranks.set_linked(rank, channel.peer_nonce);
            self.states.add_link(&mut self.inbox, rank, channel);
        }
        Ok(())
    }

    fn check(&self, rank: usize) -> Result<()> {
        self.check_here()?;
        if rank >= self.size || rank == self.own_rank {
            return Err(Error::BadRank { rank, size: self.size });
        }
        Ok(())
    }

    fn check_here(&self) -> Result<()> {
        if self.ranks.is_own_process() { Ok(()) } else { Err(Error::Forked) }
    }

    fn adopt_links(&mut self) {
        self.states.adopt_links(&mut self.inbox, &self.ranks);
    }
}
