//! [`Communicator`]: the ranks of a job on this machine.

mod collectives;
mod meeting;
mod ranks;
mod tag;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::inbox::{Inbox, from};
use crate::parts::{Destination, Source};
use crate::queue::Context;
use crate::receive::{Probed, Received, Receiving, RecvRequest};
use crate::send::SendRequest;
use crate::wait::{FRESH, Limit};
use crate::{Error, Link, LinkBuilder, Reduction, Result, TagMatch, protocol, sys};
use collectives::{Group, given_up, share};
use ranks::{Met, Ranks};

/// Longest try to link a rank.
const TRY: Duration = Duration::from_secs(1);
/// Longest first try where several ranks are missing: a stopped rank does not hide the end of another.
const FIRST_TRY: Duration = Duration::from_millis(30);
/// How long attempts may fail for lack of descriptors or memory, which may come back.
const SHORTAGE: Duration = Duration::from_secs(1);
/// Shortest and longest pause between looks for ranks that have not joined.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// A communicator: the links of a rank with the other ranks of a job, and collectives of all. Ranks are
/// processes of one user on one machine.
///
/// Two ranks are linked when one first sends to the other or receives from it, and all by the first
/// collective. `docs/link.md` says what a rank costs.
///
/// Ranks find each other in a domain with the name of the job (`docs/domain.md`): nothing is left in a file
/// system. The thread `umf-ranks` accepts links while this rank computes. One thread uses a communicator at
/// a time.
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
    me: usize,
    size: usize,
    inbox: Inbox,
    members: Members,
    /// Collectives that were begun.
    number: u64,
    ranks: Ranks,
}

/// Attempts that fail for lack of descriptors or memory.
#[derive(Debug, Default)]
struct Shortage(Option<(Instant, Error)>);

impl Shortage {
    /// Passes on what an attempt returned. A shortage counts as `None` for some time.
    fn check(&mut self, called: Result<Option<Arc<Channel>>>) -> Result<Option<Arc<Channel>>> {
        let error = match called {
            Err(error @ Error::System { .. }) => error,
            called => {
                self.0 = None;
                return called;
            }
        };
        let (since, _) = self.0.get_or_insert((Instant::now(), error.clone()));
        if since.elapsed() < SHORTAGE { Ok(None) } else { Err(error) }
    }

    /// Returns the error if the latest attempt failed so.
    fn error(self) -> Option<Error> {
        self.0.map(|(_, error)| error)
    }
}

/// What is known of the processes that are ranks.
#[derive(Debug)]
struct Members {
    /// The latest process of each rank; 0 if none is known.
    pids: Vec<u32>,
    /// The latest process of each rank whose end was reported by a receive from any rank.
    reported: Vec<Option<i32>>,
    /// Links with processes that replaced others which are not forgotten yet.
    spare: Vec<Met>,
    /// Why there are no collectives any more.
    broken: Option<Error>,
    /// Whether a collective was begun.
    has_begun: bool,
}

impl LinkBuilder {
    /// Joins a job as one of its `size` ranks: [`Communicator`]. Does not wait for other ranks.
    ///
    /// # Errors
    /// [`Error::BadName`]: a job has 1 to 32 letters, digits and `._:/+=@-`; [`Error::BadRank`];
    /// [`Error::RankTaken`]; [`Error::OtherSize`]; [`Error::Meeting`]; [`Error::System`]: no descriptors, no
    /// shared memory or no threads are left.
    pub fn join(&self, job: &str, rank: usize, size: usize) -> Result<Communicator> {
        let (ranks, home) = Ranks::join(self, job, rank, size)?;
        let inbox = Inbox::new(home, size);
        let members = Members {
            pids: vec![0; size],
            reported: vec![None; size],
            spare: Vec::new(),
            broken: None,
            has_begun: false,
        };
        Ok(Communicator { me: rank, size, inbox, members, number: 0, ranks })
    }
}

impl Members {
    /// Adds the link with a rank to the inbox.
    fn enter(&mut self, inbox: &mut Inbox, rank: usize, channel: Arc<Channel>) {
        let pid = channel.pid.unsigned_abs();
        let before = core::mem::replace(&mut self.pids[rank], pid);
        inbox.insert(rank, channel);
        self.reported[rank] = None;
        if before != 0 && before != pid && self.has_begun && self.broken.is_none() {
            // A process that replaced another one knows nothing of earlier collectives.
            self.end_collectives(inbox, Error::PeerGone { pid: before.cast_signed() });
        } else if let (Some(error), Some(channel)) = (&self.broken, inbox.channel(rank)) {
            channel.give_up(gone(error));
        }
    }

    /// Adds the links that other ranks have made.
    fn take_in(&mut self, inbox: &mut Inbox, ranks: &Ranks) {
        if !ranks.has_news() {
            return;
        }
        for (rank, channel) in ranks.take() {
            if inbox.peers[rank].is_none() {
                self.enter(inbox, rank, channel);
            } else {
                self.spare.push((rank, channel));
            }
        }
    }

    /// Ends collectives for good and tells all ranks. Returns the reason.
    fn end_collectives(&mut self, inbox: &Inbox, error: Error) -> Error {
        let told = |rank| given_up(inbox, rank);
        let error = match error {
            // A rank that closed its link may have said why.
            Error::Closed { .. } => (0..self.pids.len()).find_map(told).unwrap_or(error),
            error => error,
        };
        for peer in inbox.peers.iter().flatten() {
            peer.channel.give_up(gone(&error));
        }
        self.broken = Some(error.clone());
        error
    }
}

/// Returns how a rank has ended, if it has.
fn end(inbox: &mut Inbox, ranks: &Ranks, rank: usize) -> Option<Error> {
    match &mut inbox.peers[rank] {
        Some(peer) => peer.check().err(),
        None => ranks.end(rank),
    }
}

/// Returns the process of a rank that cannot be received from any more.
const fn ended(error: &Error) -> i32 {
    match error {
        Error::PeerGone { pid } | Error::Closed { pid } | Error::Misbehaved { pid, .. } => *pid,
        _ => 0,
    }
}

/// Returns the process whose end is the reason.
const fn gone(error: &Error) -> Option<i32> {
    match error {
        Error::PeerGone { pid } => Some(*pid),
        _ => None,
    }
}

impl Communicator {
    /// Joins a job with default settings and without an importer: [`LinkBuilder::join`].
    ///
    /// # Errors
    /// As there.
    pub fn join(job: &str, rank: usize, size: usize) -> Result<Self> {
        LinkBuilder::new().join(job, rank, size)
    }

    /// Returns the number of this rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.me
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Sets how long calls may wait from now on; `None` waits until a rank that is waited for is gone. A rank
    /// that has not joined is waited for as long as this says ([`Error::RankAbsent`]).
    pub const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.inbox.timeout = timeout;
    }

    /// Returns the link with another rank, which is made if there is none: for all that links can do.
    ///
    /// # Errors
    /// [`Error::BadRank`]; [`Error::PeerGone`] or [`Error::Closed`] if the rank had joined and is gone;
    /// [`Error::RankAbsent`]; [`Error::OtherSize`]; [`Error::Forked`]; [`Error::System`]: no descriptors or
    /// no shared memory are left.
    pub fn link(&mut self, rank: usize) -> Result<Link<&mut Inbox>> {
        self.check(rank)?;
        self.take_in();
        if self.inbox.peers[rank].is_none() {
            self.connect(rank)?;
        }
        Ok(Link { inbox: &mut self.inbox, index: rank })
    }

    #[cold]
    fn connect(&mut self, rank: usize) -> Result<()> {
        let (mut limit, mut pause) = (Limit::new(self.inbox.timeout), PAUSES[0]);
        let mut shortage = Shortage::default();
        loop {
            if let Some(channel) = shortage.check(self.ranks.call(rank, limit.at_most(TRY)))? {
                self.members.enter(&mut self.inbox, rank, channel);
            }
            self.take_in();
            if self.inbox.peers[rank].is_some() {
                return Ok(());
            }
            if limit.is_over(Instant::now()) {
                let absent = || self.ranks.absent(rank, limit.milliseconds());
                return Err(shortage.error().unwrap_or_else(absent));
            }
            self.pause(&mut pause, &mut limit);
        }
    }

    /// Sleeps until a link comes, at most for a pause, which gets longer.
    fn pause(&mut self, pause: &mut Duration, limit: &mut Limit) {
        self.inbox.progress();
        let bell = self.inbox.home.bell.word();
        let seen = protocol::fall_asleep(bell);
        if !self.ranks.has_news() {
            sys::sleep(bell, seen, limit.at_most(*pause));
        }
        *pause = (*pause * 2).min(PAUSES[1]);
    }

    /// Returns the ranks that are linked.
    pub fn linked(&self) -> impl Iterator<Item = usize> {
        self.inbox.peers.iter().enumerate().filter_map(|(rank, peer)| peer.is_some().then_some(rank))
    }

    /// Drops the link with a rank, so that the next call makes one with the process that replaced it. If the
    /// rank had ended, there are no collectives any more.
    ///
    /// # Errors
    /// [`Error::BadRank`], [`Error::Forked`].
    pub fn forget(&mut self, rank: usize) -> Result<()> {
        self.check(rank)?;
        let channel = self.inbox.remove(rank);
        let end = channel.as_ref().and_then(|channel| channel.look().err());
        self.members.reported[rank] = None;
        self.ranks.forget(rank, channel.map(|channel| channel.pid.unsigned_abs()));
        if let Some(end) = end
            && self.members.has_begun
            && self.members.broken.is_none()
        {
            self.members.end_collectives(&self.inbox, end);
        }
        if let Some(place) = self.members.spare.iter().position(|(other, _)| *other == rank) {
            let (_, channel) = self.members.spare.swap_remove(place);
            self.ranks.keep(rank, channel.pid.unsigned_abs());
            self.members.enter(&mut self.inbox, rank, channel);
        }
        Ok(())
    }

    fn check(&self, rank: usize) -> Result<()> {
        self.check_here()?;
        if rank >= self.size || rank == self.me {
            return Err(Error::BadRank { rank, size: self.size });
        }
        Ok(())
    }

    fn check_here(&self) -> Result<()> {
        if self.ranks.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    fn take_in(&mut self) {
        self.members.take_in(&mut self.inbox, &self.ranks);
    }

    /// Sends a message to a rank: [`Link::send`].
    ///
    /// # Errors
    /// As there and as [`Communicator::link`].
    pub fn send<'d>(&mut self, to: usize, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        self.link(to)?.send(tag, source)
    }

    /// Receives a message from a rank: [`Link::recv`].
    ///
    /// # Errors
    /// As there and as [`Communicator::link`].
    pub fn recv<'d>(
        &mut self,
        from: usize,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        self.link(from)?.recv(wanted, into)
    }

    /// Receives a message from any rank. Of several ranks that have sent one, each gets its turn.
    ///
    /// # Errors
    /// As [`Link::recv`]. The end of a rank ([`Error::PeerGone`], [`Error::Closed`]) is reported once, after
    /// all that it sent was received, and also if it was not linked; then the other ranks are waited for,
    /// until all are gone.
    pub fn recv_any<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        let matching = from(None, wanted.into(), Context::Messages);
        let limit = Limit::new(self.inbox.timeout);
        self.receive_any(&mut Receiving::new(matching, into.into(), Some(limit)))
    }

    fn receive_any(&mut self, receiving: &mut Receiving<'_>) -> Result<Received> {
        self.check_here()?;
        let mut limit = Limit::new(self.inbox.timeout);
        let Self { me, inbox, members, ranks, .. } = self;
        let mut looked = 0;
        inbox.wait(None, &mut limit, "receiving", |inbox| {
            members.take_in(inbox, ranks);
            if let Some(received) = inbox.attempt(receiving)? {
                return Ok(Some(received));
            }
            let now = sys::coarse_milliseconds();
            if now.wrapping_sub(looked) <= FRESH {
                return Ok(None);
            }
            looked = now;
            let (mut is_any_left, mut latest) = (false, None);
            for rank in (0..members.pids.len()).filter(|rank| rank != me) {
                let Some(end) = end(inbox, ranks, rank) else {
                    is_any_left = true;
                    continue;
                };
                let process = Some(ended(&end));
                if members.reported[rank] != process {
                    // What it did last may have arrived.
                    members.take_in(inbox, ranks);
                    inbox.drain();
                    if let Some(received) = inbox.attempt(receiving)? {
                        return Ok(Some(received));
                    }
                    members.reported[rank] = process;
                    return Err(end);
                }
                latest = Some(end);
            }
            if is_any_left {
                return Ok(None);
            }
            latest.map_or(Ok(None), Err)
        })
    }

    /// Returns the message that [`Communicator::recv`] (`from` a rank) or [`Communicator::recv_any`] (`None`)
    /// would take next, if it has come. Does not wait.
    ///
    /// # Errors
    /// As [`Link::probe`]; ends of ranks are reported for one rank only.
    pub fn probe(&mut self, from_rank: Option<usize>, wanted: impl Into<TagMatch>) -> Result<Option<Probed>> {
        self.check_here()?;
        from_rank.map_or(Ok(()), |rank| self.check(rank))?;
        self.take_in();
        let matching = from(from_rank, wanted.into(), Context::Messages);
        Ok(self.inbox.probe(matching)?.and_then(|id| self.inbox.probed(id)))
    }

    /// Begins to send a message to a rank: [`Link::start_send`].
    ///
    /// # Errors
    /// As there and as [`Communicator::link`].
    pub fn start_send<'d>(
        &mut self,
        to: usize,
        tag: u64,
        source: impl Into<Source<'d>>,
    ) -> Result<SendRequest<'d>> {
        self.link(to)?.start_send(tag, source)
    }

    /// Posts a receive from a rank, or from any (`None`): [`Link::start_recv`]. Dropping the request cancels
    /// it.
    ///
    /// # Errors
    /// [`Error::BadRank`], [`Error::Forked`].
    pub fn start_recv<'d>(
        &mut self,
        from_rank: Option<usize>,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<RecvRequest<'d>> {
        self.check_here()?;
        from_rank.map_or(Ok(()), |rank| self.check(rank))?;
        let matching = from(from_rank, wanted.into(), Context::Messages);
        Ok(RecvRequest::new(&mut self.inbox, matching, into.into()))
    }

    /// Returns whether a message was sent. Does not wait.
    ///
    /// # Errors
    /// As [`Link::test_send`].
    pub fn test_send(&mut self, request: &mut SendRequest<'_>) -> Result<bool> {
        self.check_here()?;
        self.take_in();
        self.inbox.progress();
        self.inbox.test_send(request)
    }

    /// Returns what was received, if it was. Does not wait.
    ///
    /// # Errors
    /// As [`Link::test_recv`].
    pub fn test_recv(&mut self, request: &mut RecvRequest<'_>) -> Result<Option<Received>> {
        self.check_here()?;
        self.take_in();
        self.inbox.test_recv(request)
    }

    /// Waits until a message was sent.
    ///
    /// # Errors
    /// As [`Link::wait_send`].
    pub fn wait_send(&mut self, request: SendRequest<'_>) -> Result<()> {
        self.finish(&mut [request], &mut [])
    }

    /// Waits for the message of a posted receive.
    ///
    /// # Errors
    /// As [`Link::wait_recv`]; from any rank as [`Communicator::recv_any`]; from a rank that has not joined as
    /// [`Communicator::link`].
    pub fn wait_recv(&mut self, mut request: RecvRequest<'_>) -> Result<Received> {
        request.check(&self.inbox)?;
        match (request.received, request.receiving.matching.peer) {
            (Some(received), _) => Ok(received),
            (None, None) => self.receive_any(&mut request.receiving),
            (None, Some(rank)) => self.link(rank)?.inbox.wait_recv(&mut request),
        }
    }

    /// Waits for all of these at once: [`Link::finish`].
    ///
    /// # Errors
    /// As there, and as [`Communicator::wait_recv`] for ranks that have not joined. If a message is to come
    /// from any rank and all others are gone: the end of one.
    pub fn finish(&mut self, sends: &mut [SendRequest<'_>], receives: &mut [RecvRequest<'_>]) -> Result<()> {
        self.check_here()?;
        for rank in receives.iter().filter_map(|request| request.receiving.matching.peer) {
            self.link(rank)?;
        }
        let Self { me, inbox, members, ranks, .. } = self;
        let mut looked = 0;
        inbox.finish_while(sends, receives, |inbox, is_from_any| {
            members.take_in(inbox, ranks);
            let now = sys::coarse_milliseconds();
            if !is_from_any || now.wrapping_sub(looked) <= FRESH {
                return None;
            }
            looked = now;
            let mut others = (0..members.pids.len()).filter(|rank| rank != me);
            let last = others.next_back()?;
            let end = end(inbox, ranks, last)?;
            others.all(|rank| self::end(inbox, ranks, rank).is_some()).then_some(end)
        })
    }

    /// Returns the share of `elements` elements that is a rank's in [`Communicator::allgather`] and
    /// [`Communicator::reduce_scatter`]: as equal as shares can be, in the order of ranks.
    #[must_use]
    pub fn share(&self, elements: usize, rank: usize) -> core::ops::Range<usize> {
        share(elements, rank, self.size)
    }

    /// Returns the ranks that are not linked.
    fn missing(&self) -> Vec<usize> {
        (0..self.size).filter(|rank| *rank != self.me && self.inbox.peers[*rank].is_none()).collect()
    }

    /// Links all ranks, for collectives.
    fn gather(&mut self, limit: &mut Limit) -> Result<()> {
        let (mut pause, mut patience) = (PAUSES[0], FIRST_TRY);
        let (mut seen, mut shortage) = (None, Shortage::default());
        loop {
            self.take_in();
            let changes = self.ranks.changes();
            let mut missing = self.missing();
            // Each rank connects to the half of the ranks behind it, and is connected to by the other half.
            // After a while, to all.
            if seen != Some(changes) || pause == PAUSES[1] {
                let is_late = pause == PAUSES[1];
                let (me, size) = (self.me, self.size);
                let distance = |rank: usize| (rank + size - me) % size;
                missing.sort_unstable_by_key(|rank| distance(*rank));
                for rank in missing.into_iter().filter(|rank| is_late || distance(*rank) <= size / 2) {
                    if self.inbox.peers[rank].is_some() {
                        continue;
                    }
                    if let Some(channel) = shortage.check(self.ranks.call(rank, limit.at_most(patience)))? {
                        self.members.enter(&mut self.inbox, rank, channel);
                    }
                    self.take_in();
                }
                patience = if is_late { (patience * 2).min(TRY) } else { patience };
            }
            seen = Some(changes);
            let Some(missing) = self.missing().into_iter().next() else { return Ok(()) };
            // Other ranks may know of an end that this one cannot see.
            for rank in 0..self.size {
                if let Some(end) = self.inbox.peers[rank].as_mut().and_then(|peer| peer.check().err()) {
                    return Err(given_up(&self.inbox, rank).unwrap_or(end));
                }
                given_up(&self.inbox, rank).map_or(Ok(()), Err)?;
            }
            if limit.is_over(Instant::now()) {
                let absent = || self.ranks.absent(missing, limit.milliseconds());
                return Err(shortage.error().unwrap_or_else(absent));
            }
            if pause == PAUSES[1]
                && let Some(end) = self.missing().into_iter().find_map(|rank| self.ranks.end(rank))
            {
                return Err(end);
            }
            self.pause(&mut pause, limit);
        }
    }

    /// Runs one collective with all ranks. An error ends collectives for good.
    fn together(&mut self, run: impl FnOnce(Group<'_>) -> Result<()>) -> Result<()> {
        let mut limit = Limit::new(self.inbox.timeout);
        self.check_here()?;
        self.members.broken.clone().map_or(Ok(()), Err)?;
        self.take_in();
        let gathered = if self.missing().is_empty() { Ok(()) } else { self.gather(&mut limit) };
        let done = gathered.and_then(|()| {
            self.number += 1;
            self.members.has_begun = true;
            let Self { me, size, number, inbox, .. } = self;
            run(Group { inbox, me: *me, size: *size, number: *number, limit })
        });
        done.map_err(|error| self.members.end_collectives(&self.inbox, error))
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn barrier(&mut self) -> Result<()> {
        self.together(|group| group.barrier())
    }

    /// Copies the memory of `root` to all ranks. All call it with memory of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn bcast<'d>(&mut self, root: usize, memory: impl Into<Destination<'d>>) -> Result<()> {
        self.check_root(root)?;
        let memory = memory.into().0;
        self.together(|group| group.bcast(root, &memory))
    }

    fn check_root(&self, root: usize) -> Result<()> {
        if root < self.size { Ok(()) } else { Err(Error::BadRank { rank: root, size: self.size }) }
    }

    /// Copies each rank's share of its memory ([`Communicator::share`] of its bytes) to all. All call it with
    /// memory in one piece, of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn allgather<'d>(&mut self, memory: impl Into<Destination<'d>>) -> Result<()> {
        let memory = memory.into().in_one_piece()?;
        self.together(|group| group.allgather(&memory))
    }

    /// Sends block `i` of `outgoing` to rank `i`, and receives block `i` of `incoming` from it. Both are in
    /// one piece, and have the same length, which is a multiple of the number of ranks.
    ///
    /// # Errors
    /// [`Error::NotDivisible`], [`Error::Lengths`]; as [`Communicator::allreduce`].
    pub fn alltoall<'s, 'd>(
        &mut self,
        outgoing: impl Into<Source<'s>>,
        incoming: impl Into<Destination<'d>>,
    ) -> Result<()> {
        let (outgoing, incoming) = (outgoing.into().0, incoming.into().in_one_piece()?);
        let (length, pieces) = (outgoing.len(), outgoing.parts().len());
        if pieces != 1 {
            return Err(Error::NotOnePiece { pieces });
        }
        if incoming.len() != length {
            return Err(Error::Lengths { remote: incoming.len(), local: length });
        }
        if !length.is_multiple_of(self.size) {
            return Err(Error::NotDivisible { length, ranks: self.size });
        }
        self.together(|group| group.alltoall(&outgoing, &incoming))
    }

    /// Combines the memory of all ranks into that of `root`, number by number. The memory of other ranks
    /// stays as it is. All call it with memory in one piece, of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn reduce<'d>(
        &mut self,
        root: usize,
        memory: impl Into<Destination<'d>>,
        reduction: Reduction,
    ) -> Result<()> {
        self.check_root(root)?;
        let memory = memory.into().combined(reduction)?.in_one_piece()?;
        self.together(|group| group.reduce(root, &memory, &reduction))
    }

    /// Combines the memory of all ranks, number by number. Each rank has its share of the result
    /// ([`Communicator::share`] of the numbers) in its memory afterwards; the rest of it stays as it is. All
    /// call it with memory in one piece, of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn reduce_scatter<'d>(
        &mut self,
        memory: impl Into<Destination<'d>>,
        reduction: Reduction,
    ) -> Result<()> {
        let memory = memory.into().combined(reduction)?.in_one_piece()?;
        self.together(|group| group.reduce_scatter(&memory, &reduction))
    }

    /// Combines the memory of all ranks, number by number. All have the same result afterwards, bit for bit.
    /// All call it with memory in one piece, of the same length.
    ///
    /// Memory of a pool ([`crate::Memory`]) that ranks can map is read and written in place, each part by one
    /// rank, without a copy.
    ///
    /// # Errors
    /// [`Error::NotWhole`], [`Error::NotOnePiece`], [`Error::BadRank`]: nothing was done. After all others
    /// there are no collectives of this communicator any more, on all ranks: each gets an error as soon as
    /// it waits for one that has one. The memory then has any content, and ranks that do not know yet may
    /// still write it. [`Error::PeerGone`]: a rank ended; [`Error::Closed`], [`Error::GivenUp`];
    /// [`Error::Mismatch`]: ranks called different things; [`Error::TimedOut`]; as [`Communicator::link`].
    pub fn allreduce<'d>(&mut self, memory: impl Into<Destination<'d>>, reduction: Reduction) -> Result<()> {
        let memory = memory.into().combined(reduction)?.in_one_piece()?;
        self.together(|group| group.allreduce(&memory, &reduction))
    }
}
