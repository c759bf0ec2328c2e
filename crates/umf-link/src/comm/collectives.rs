//! The collective calls of [`Communicator`], and the links with all ranks that they need.

use std::time::{Duration, Instant};

use super::algorithms::{Collective, ended_by, share};
use super::{BACKOFF, Communicator, MAX_ATTEMPT, ResourceErrors};
use crate::parts::{Destination, Source};
use crate::wait::Limit;
use crate::{Error, Reduction, Result};

/// Longest first try where several ranks are missing: a stopped rank does not hide the end of
/// another.
const FIRST_ATTEMPT: Duration = Duration::from_millis(30);

impl Communicator {
    /// Returns the share of `elements` elements that is a rank's in [`Communicator::allgather`] and
    /// [`Communicator::reduce_scatter`]: as equal as shares can be, in the order of ranks.
    #[must_use]
    pub fn share(&self, elements: usize, rank: usize) -> core::ops::Range<usize> {
        share(elements, rank, self.size)
    }

    /// Returns the ranks that are not linked.
    fn missing(&self) -> Vec<usize> {
        (0..self.size).filter(|rank| *rank != self.own_rank && self.inbox.peers[*rank].is_none()).collect()
    }

    /// Links all ranks, for collectives.
    fn link_all(&mut self, limit: &mut Limit) -> Result<()> {
        let (mut pause, mut patience) = (BACKOFF[0], FIRST_ATTEMPT);
        let (mut seen, mut resource_errors) = (None, ResourceErrors::default());
        loop {
            self.adopt_links();
            let changes = self.ranks.changes();
            let mut missing = self.missing();
            // Each rank connects to the half of the ranks behind it, and is connected to by the
            // other half. After a while, to all.
            if seen != Some(changes) || pause == BACKOFF[1] {
                let is_late = pause == BACKOFF[1];
                let (own_rank, size) = (self.own_rank, self.size);
                let distance = |rank: usize| (rank + size - own_rank) % size;
                missing.sort_unstable_by_key(|rank| distance(*rank));
                for rank in missing.into_iter().filter(|rank| is_late || distance(*rank) <= size / 2) {
                    if self.inbox.peers[rank].is_some() {
                        continue;
                    }
                    if let Some(channel) =
                        resource_errors.check(self.ranks.connect_rank(rank, limit.at_most(patience)))?
                    {
                        self.states.add_link(&mut self.inbox, rank, channel);
                    }
                    self.adopt_links();
                }
                patience = if is_late { (patience * 2).min(MAX_ATTEMPT) } else { patience };
            }
            seen = Some(changes);
            let Some(missing) = self.missing().into_iter().next() else { return Ok(()) };
            // Other ranks may know of an end that this one cannot see.
            for rank in 0..self.size {
                if let Some(end) = self.inbox.peers[rank].as_mut().and_then(|peer| peer.check().err()) {
                    return Err(ended_by(&self.inbox, rank).unwrap_or(end));
                }
                ended_by(&self.inbox, rank).map_or(Ok(()), Err)?;
            }
            if limit.is_over(Instant::now()) {
                let absent = || self.ranks.absent(missing, limit.milliseconds());
                return Err(resource_errors.error().unwrap_or_else(absent));
            }
            if pause == BACKOFF[1]
                && let Some(end) = self.missing().into_iter().find_map(|rank| self.ranks.end(rank))
            {
                return Err(end);
            }
            self.pause(&mut pause, limit);
        }
    }

    /// Runs one collective with all ranks. An error ends collectives for good.
    fn run_collective(&mut self, run: impl FnOnce(Collective<'_>) -> Result<()>) -> Result<()> {
        let mut limit = Limit::new(self.inbox.timeout);
        self.check_here()?;
        self.states.broken.clone().map_or(Ok(()), Err)?;
        self.adopt_links();
        let gathered = if self.missing().is_empty() { Ok(()) } else { self.link_all(&mut limit) };
        let done = gathered.and_then(|()| {
            self.number += 1;
            self.states.has_begun = true;
            let Self { own_rank, size, number, inbox, .. } = self;
            run(Collective { inbox, own_rank: *own_rank, size: *size, number: *number, limit })
        });
        done.map_err(|error| self.states.end_collectives(&self.inbox, error))
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn barrier(&mut self) -> Result<()> {
        self.run_collective(|group| group.barrier())
    }

    /// Copies the memory of `root` to all ranks. All call it with memory of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn bcast<'d>(&mut self, root: usize, memory: impl Into<Destination<'d>>) -> Result<()> {
        self.check_root(root)?;
        let memory = memory.into().0;
        self.run_collective(|group| group.bcast(root, &memory))
    }

    fn check_root(&self, root: usize) -> Result<()> {
        if root < self.size { Ok(()) } else { Err(Error::BadRank { rank: root, size: self.size }) }
    }

    /// Copies each rank's share of its memory ([`Communicator::share`] of its bytes) to all. All
    /// call it with memory in one piece, of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn allgather<'d>(&mut self, memory: impl Into<Destination<'d>>) -> Result<()> {
        let memory = memory.into().in_one_piece()?;
        self.run_collective(|group| group.allgather(&memory))
    }

    /// Sends block `i` of `outgoing` to rank `i`, and receives block `i` of `incoming` from it.
    /// Both are in one piece, and have the same length, which is a multiple of the number of ranks.
    ///
    /// # Errors
    /// [`Error::NotDivisible`], [`Error::LengthMismatch`]; as [`Communicator::allreduce`].
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
            return Err(Error::LengthMismatch { remote: incoming.len(), local: length });
        }
        if !length.is_multiple_of(self.size) {
            return Err(Error::NotDivisible { length, ranks: self.size });
        }
        self.run_collective(|group| group.alltoall(&outgoing, &incoming))
    }

    /// Combines the memory of all ranks into that of `root`, number by number. The memory of other
    /// ranks stays as it is. All call it with memory in one piece, of the same length.
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
        self.run_collective(|group| group.reduce(root, &memory, &reduction))
    }

    /// Combines the memory of all ranks, number by number. Each rank has its share of the result
    /// ([`Communicator::share`] of the numbers) in its memory afterwards; the rest of it stays as
    /// it is. All call it with memory in one piece, of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn reduce_scatter<'d>(
        &mut self,
        memory: impl Into<Destination<'d>>,
        reduction: Reduction,
    ) -> Result<()> {
        let memory = memory.into().combined(reduction)?.in_one_piece()?;
        self.run_collective(|group| group.reduce_scatter(&memory, &reduction))
    }

    /// Combines the memory of all ranks, number by number. All have the same result afterwards, bit
    /// for bit. All call it with memory in one piece, of the same length.
    ///
    /// Memory of a pool ([`crate::Memory`]) that ranks can map is read and written in place, each
    /// part by one rank, without a copy.
    ///
    /// # Errors
    /// [`Error::PartialElement`], [`Error::NotOnePiece`], [`Error::BadRank`]: nothing was done.
    /// After all others there are no collectives of this communicator any more, on all ranks: each
    /// gets an error as soon as it waits for one that has one. The memory then has any content, and
    /// ranks that do not know yet may still write it. [`Error::PeerGone`]: a rank ended;
    /// [`Error::Closed`], [`Error::CollectivesEnded`]; [`Error::Mismatch`]: ranks called different
    /// things; [`Error::TimedOut`]; as [`Communicator::link`].
    pub fn allreduce<'d>(&mut self, memory: impl Into<Destination<'d>>, reduction: Reduction) -> Result<()> {
        let memory = memory.into().combined(reduction)?.in_one_piece()?;
        self.run_collective(|group| group.allreduce(&memory, &reduction))
    }
}
