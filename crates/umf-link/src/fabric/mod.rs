//! [`Fabric`]: the ranks of a job on this machine, each linked with each.

mod any;
mod door;
mod lookout;
mod many;
mod name;
mod roster;

pub(crate) use many::{Links, wait_many};

use std::sync::Arc;
use std::time::Duration;

use crate::collective::Group;
use crate::lane::Bell;
use crate::parts::{Destination, Source};
use crate::protocol;
use crate::receiver::Received;
use crate::spin::Spin;
use crate::wait::Limit;
use crate::{Error, Link, LinkBuilder, Reduction, Result, TagMatch, sys};
use door::{Door, Met};
use lookout::Lookout;
use name::{Job, MOST_RANKS};

/// How long one try to meet a rank may take, and how often it is tried at most.
const TRY: Duration = Duration::from_secs(1);
/// The same, of the first try where several ranks are missing: one that is stopped does not hide for long that another one has ended.
const FIRST_TRY: Duration = Duration::from_millis(30);
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The ranks of a job: processes of one user on one machine, each with a number. Messages from each to each, and collectives
/// of all of them.
///
/// Two ranks are linked when one of them first sends to the other or waits for it, and all by the first collective. Each link takes
/// 8 KiB of shared memory, 136 KiB where many messages are on their way at once, and an fd on either side.
///
/// Ranks find each other by the name of the job (abstract sockets, so that nothing is left in a file system); processes of other
/// users are passed over. The thread `umf-fabric` lets ranks in while this one computes. One thread at a time uses a fabric;
/// [`Fabric::link`] yields a link for whatever else links can do.
///
/// # Examples
/// ```
/// use umf_link::{Fabric, Operation, Reduction};
/// # fn main() -> umf_link::Result<()> {
/// # let job = format!("example-{}", std::process::id());
/// # let ranks: Vec<_> = (0..2).map(|rank| {
/// #     let job = job.clone();
/// #     std::thread::spawn(move || -> umf_link::Result<()> {
/// // In each of the two processes, with its own number as `rank`:
/// let mut fabric = Fabric::join(&job, rank, 2)?;
/// let mut values = [1.0_f32, rank as f32];
/// fabric.allreduce(&mut values[..], Reduction::of::<f32>(Operation::Sum)?)?;
/// assert_eq!(values, [2.0, 1.0]);
/// #         Ok(())
/// #     })
/// # }).collect();
/// # for rank in ranks { rank.join().expect("it does not panic")?; }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fabric {
    me: usize,
    size: usize,
    /// What receiving from any has learned of waiting, and the most that it spins.
    spin: Spin,
    most: Duration,
    timeout: Option<Duration>,
    points: Vec<Option<Link>>,
    /// The process that was each rank last; 0 if none is known.
    pids: Vec<u32>,
    /// Ranks whose end was told to whoever receives from any.
    told: Vec<bool>,
    /// Who is looked at first by the next receive from any.
    next: usize,
    /// What it sees of ranks that it is not linked with.
    lookout: Lookout,
    group: Group,
    /// Links of processes that came in the place of others, which are not forgotten yet.
    spare: Vec<Met>,
    bell: Arc<Bell>,
    door: Door,
}

impl LinkBuilder {
    /// Joins a job as one of its ranks, of which there are `size`: [`Fabric`]. Waits for nobody.
    ///
    /// # Errors
    /// [`Error::BadName`]: up to 32 letters, digits and `._:/+=@-`; [`Error::BadRank`]; [`Error::RankTaken`] (of two that join as
    /// the same rank at the same moment both may be told); [`Error::System`]: no fds, no threads left, or no `/proc`.
    pub fn join(&self, job: &str, rank: usize, size: usize) -> Result<Fabric> {
        let job = Job::new(job)?;
        if rank >= size || size > MOST_RANKS {
            return Err(Error::BadRank { rank, size });
        }
        let (builder, bell) = self.among(size)?;
        let settings = builder.set();
        let (most, timeout) = (settings.spin, settings.timeout);
        let door = Door::open(&builder, &bell, job, rank, size)?;
        Ok(Fabric {
            me: rank,
            size,
            spin: Spin::new(settings.is_crowded),
            most,
            timeout,
            points: (0..size).map(|_| None).collect(),
            pids: vec![0; size],
            told: vec![false; size],
            next: 0,
            lookout: Lookout::new(size),
            group: Group::new(rank, size, settings, Arc::clone(&bell)),
            bell,
            spare: Vec::new(),
            door,
        })
    }
}

impl Fabric {
    /// Joins a job with default settings, and nobody to open memory of peers: [`LinkBuilder::join`].
    ///
    /// # Errors
    /// As there.
    pub fn join(job: &str, rank: usize, size: usize) -> Result<Self> {
        LinkBuilder::new().join(job, rank, size)
    }

    /// The number of this rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.me
    }

    /// How many ranks the job has.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// How long calls may wait from now on; `None` is until a rank that they wait for is gone. A rank that never comes
    /// ([`Error::RankAbsent`]) is waited for as long as this says.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        self.points.iter_mut().flatten().for_each(|link| link.set_timeout(timeout));
    }

    /// The link with another rank, which is made if there is none yet.
    ///
    /// # Errors
    /// [`Error::BadRank`]; [`Error::PeerGone`] or [`Error::Closed`] if it was there, and is not any more; [`Error::RankAbsent`] if it
    /// does not come; [`Error::OtherSize`]; [`Error::Forked`]; [`Error::System`]: no fds, no shared memory left.
    pub fn link(&mut self, rank: usize) -> Result<&mut Link> {
        self.check(rank)?;
        let mut limit = Limit::new(self.timeout);
        let (mut pause, mut lookout) = (PAUSES[0], Lookout::new(self.size));
        self.take_in();
        self.call_known(rank, limit.at_most(TRY))?;
        while self.points[rank].is_none() {
            self.take_in();
            if self.points[rank].is_some() {
                break;
            }
            let now = sys::coarse_milliseconds();
            lookout.look(&self.door, core::iter::once(rank), now);
            let called = match lookout.sight(now)? {
                Some(sight) => self.door.call(Some(sight), rank, limit.at_most(TRY))?,
                None => None,
            };
            match called {
                Some(link) => self.enter(rank, link),
                None => self.pause(rank, &lookout, &mut pause, &mut limit)?,
            }
        }
        match &mut self.points[rank] {
            Some(link) => Ok(link),
            None => Err(self.door.absent(rank, &limit)),
        }
    }

    /// Ranks that it is linked with.
    pub fn linked(&self) -> impl Iterator<Item = usize> {
        self.points.iter().enumerate().filter_map(|(rank, link)| link.is_some().then_some(rank))
    }

    /// Drops the link with a rank, so that the next call makes a new one: with a process that has taken the place of one that
    /// ended. (Of a rank that has ended, collectives are over then.)
    ///
    /// # Errors
    /// [`Error::BadRank`], [`Error::Forked`].
    pub fn forget(&mut self, rank: usize) -> Result<()> {
        self.check(rank)?;
        let link = self.points[rank].take();
        let end = link.as_ref().and_then(|link| link.look().err());
        self.told[rank] = false;
        self.door.strike(rank, link.map(|link| link.peer_pid()));
        if let Some(end) = end
            && self.group.goes_on()
        {
            // No other process can take its place in them.
            self.over(end);
        }
        match self.spare.iter().position(|(other, _)| *other == rank) {
            Some(place) => {
                let (_, link) = self.spare.swap_remove(place);
                self.enter(rank, link);
            }
            None => self.door.forget(rank),
        }
        Ok(())
    }

    /// Sends a message to a rank: [`crate::Link::send`].
    ///
    /// # Errors
    /// As there, and as [`Fabric::link`].
    pub fn send<'d>(&mut self, to: usize, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        self.link(to)?.send(tag, source)
    }

    /// Receives a message from a rank: [`crate::Link::recv`].
    ///
    /// # Errors
    /// As there, and as [`Fabric::link`].
    pub fn recv<'d>(
        &mut self,
        from: usize,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        self.link(from)?.recv(wanted, into)
    }

    /// Links a rank that has said that it joined, if it is there: the kernel's table need not be read for that.
    fn call_known(&mut self, rank: usize, patience: Duration) -> Result<()> {
        if self.points[rank].is_some() {
            return Ok(());
        }
        match self.door.call(None, rank, patience) {
            Ok(Some(link)) => self.enter(rank, link),
            // It is tried again.
            Ok(None) | Err(Error::System { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn check(&self, rank: usize) -> Result<()> {
        if !self.door.is_here() {
            return Err(Error::Forked);
        }
        if rank >= self.size || rank == self.me {
            return Err(Error::BadRank { rank, size: self.size });
        }
        Ok(())
    }

    fn enter(&mut self, rank: usize, mut link: Link) {
        link.set_timeout(self.timeout);
        self.group.meet(&link);
        let before = core::mem::replace(&mut self.pids[rank], link.peer_pid());
        let is_other = before != 0 && before != link.peer_pid();
        self.points[rank] = Some(link);
        if is_other && self.group.goes_on() {
            // Who takes the place of another one knows nothing of collectives before it.
            self.over(Error::PeerGone { pid: before.cast_signed() });
        }
    }

    /// Takes the links in that others have made.
    fn take_in(&mut self) {
        for (rank, link) in self.door.take() {
            if self.points[rank].is_none() {
                self.enter(rank, link);
            } else {
                self.spare.push((rank, link));
            }
        }
    }

    /// Waits a moment for a rank that is not there yet, longer each time.
    fn pause(&self, rank: usize, lookout: &Lookout, pause: &mut Duration, limit: &mut Limit) -> Result<()> {
        if limit.at_most(*pause).is_zero() {
            return Err(lookout.failure().unwrap_or_else(|| self.door.absent(rank, limit)));
        }
        let seen = protocol::fall_asleep(self.bell.word());
        if !self.door.has_news() {
            sys::sleep(self.bell.word(), seen, limit.at_most(*pause));
        }
        *pause = (*pause * 2).min(PAUSES[1]);
        Ok(())
    }

    /// Ranks that it is not linked with.
    fn missing(&self) -> impl Iterator<Item = usize> + use<> {
        let missing: Vec<usize> =
            (0..self.size).filter(|rank| *rank != self.me && self.points[*rank].is_none()).collect();
        missing.into_iter()
    }

    /// Links all ranks, for collectives.
    fn gather(&mut self, limit: &mut Limit) -> Result<()> {
        let (mut pause, mut patience) = (PAUSES[0], FIRST_TRY);
        let mut lookout = Lookout::new(self.size);
        self.take_in();
        // Each calls the half of them that comes after it, of those that are known, and is called by the other half.
        for distance in 1..=self.size / 2 {
            self.call_known((self.me + distance) % self.size, limit.at_most(patience))?;
            self.take_in();
        }
        while let Some(missing) = self.missing().next() {
            self.pause(missing, &lookout, &mut pause, limit)?;
            self.take_in();
            // Others may have learnt of an end that this rank does not see.
            Group::look(&self.points)?;
            if pause < PAUSES[1] {
                continue;
            }
            let now = sys::coarse_milliseconds();
            lookout.look(&self.door, self.missing(), now);
            if let Some(sight) = lookout.sight(now)? {
                if let Some(end) = self.missing().find_map(|rank| self.door.end(sight, rank)) {
                    return Err(end);
                }
                for rank in self.missing() {
                    if let Some(link) = self.door.call(Some(sight), rank, limit.at_most(patience))? {
                        self.enter(rank, link);
                    }
                }
            }
            patience = (patience * 2).min(TRY);
        }
        Ok(())
    }

    /// Collectives are over, and why.
    fn over(&mut self, error: Error) -> Error {
        core::mem::swap(&mut self.points, self.group.links_mut());
        let error = self.group.give_up(error);
        core::mem::swap(&mut self.points, self.group.links_mut());
        error
    }

    /// One collective: with everybody, or broken for good.
    fn together(&mut self, run: impl FnOnce(&mut Group, &mut Limit) -> Result<()>) -> Result<()> {
        let mut limit = Limit::new(self.timeout);
        if !self.door.is_here() {
            return Err(Error::Forked);
        }
        self.group.usable()?;
        let done = if self.missing().next().is_none() { Ok(()) } else { self.gather(&mut limit) };
        let done = done.and_then(|()| {
            core::mem::swap(&mut self.points, self.group.links_mut());
            let done = run(&mut self.group, &mut limit);
            core::mem::swap(&mut self.points, self.group.links_mut());
            done
        });
        done.map_err(|error| self.over(error))
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// As [`Fabric::allreduce`].
    pub fn barrier(&mut self) -> Result<()> {
        self.together(Group::barrier)
    }

    /// Gives what `root` has in its memory to all. All call it with memory of the same length.
    ///
    /// # Errors
    /// As [`Fabric::allreduce`].
    pub fn bcast<'d>(&mut self, root: usize, memory: impl Into<Destination<'d>>) -> Result<()> {
        if root >= self.size {
            return Err(Error::BadRank { rank: root, size: self.size });
        }
        let memory = memory.into().0;
        self.together(|group, limit| group.bcast(root, &memory, limit))
    }

    /// The part of so many elements that is a rank's in [`Fabric::allgather`] and [`Fabric::reduce_scatter`]: as equal as
    /// parts can be, in the order of ranks.
    #[must_use]
    pub fn share(&self, elements: usize, rank: usize) -> core::ops::Range<usize> {
        crate::collective::share(elements, rank, self.size)
    }

    /// Gives what each rank has in its part of the memory ([`Fabric::share`] of its bytes) to all. All call it with memory in one
    /// piece, of the same length.
    ///
    /// # Errors
    /// As [`Fabric::allreduce`].
    pub fn allgather<'d>(&mut self, memory: impl Into<Destination<'d>>) -> Result<()> {
        let memory = memory.into().in_one_piece()?;
        self.together(|group, limit| group.allgather(&memory, limit))
    }

    /// Combines the memory of all ranks, number by number: each has its part of the result ([`Fabric::share`] of the numbers) in its
    /// memory afterwards. The other parts of its memory are as before. All call it with memory in one piece, of the same length.
    ///
    /// # Errors
    /// As [`Fabric::allreduce`].
    pub fn reduce_scatter<'d>(
        &mut self,
        memory: impl Into<Destination<'d>>,
        reduction: Reduction,
    ) -> Result<()> {
        let memory = memory.into().combined(reduction)?.in_one_piece()?;
        self.together(|group, limit| group.reduce_scatter(&memory, &reduction, limit))
    }

    /// Combines the memory of all ranks, number by number: all have the same result in it afterwards, bit for bit. All call it with
    /// memory in one piece, of the same length.
    ///
    /// Memory of a pool ([`crate::Memory`]) that ranks can map is read and written where it is, each part by one rank: without any
    /// copy in between.
    ///
    /// # Errors
    /// [`Error::NotWhole`], [`Error::NotOnePiece`]: nothing was done. After all others, collectives of this fabric are over on all
    /// ranks, each of which is told why as soon as it waits for one that knows; memory then has anything, and ranks that do not
    /// know yet may write it still. [`Error::PeerGone`]: a rank ended, whichever; [`Error::Closed`], [`Error::GivenUp`];
    /// [`Error::Mismatch`]: not all called the same; [`Error::TimedOut`]; and as [`Fabric::link`].
    pub fn allreduce<'d>(&mut self, memory: impl Into<Destination<'d>>, reduction: Reduction) -> Result<()> {
        let memory = memory.into().combined(reduction)?.in_one_piece()?;
        self.together(|group, limit| group.allreduce(&memory, &reduction, limit))
    }
}

/// What ranks decode when they meet.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    name::fuzz(bytes);
}
