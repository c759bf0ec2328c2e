//! The collective calls of [`Communicator`], and the links with all ranks that they need.

use std::time::{Duration, Instant};

use super::algorithms::share;
use super::exchange::{Collective, ended_by};
use super::{BACKOFF, Communicator, MAX_ATTEMPT, ResourceErrors};
use crate::buffer::{Destination, Source};
use crate::wait::Limit;
use crate::{Error, Reduction, Result};

/// The longest first attempt to connect a missing rank: short, so that a stopped rank does not hide
/// the end of another one.
const FIRST_ATTEMPT: Duration = Duration::from_millis(30);

impl Communicator {
    /// Returns the share of a rank in `elements` elements, in [`Communicator::allgather`] and
    /// [`Communicator::reduce_scatter`]. Shares are in the order of ranks and differ by one at
    /// most.
    #[must_use]
    pub fn share(&self, elements: usize, rank: usize) -> core::ops::Range<usize> {
        share(elements, rank, self.size)
    }

    /// Returns the ranks that are not linked.
    fn missing(&self) -> Vec<usize> {
        (0..self.size).filter(|rank| *rank != self.own_rank && self.inbox.peers[*rank].is_none()).collect()
    }

    /// Links all ranks. Each rank connects to the half of the ranks after it, and the other half
    /// connects to it. After the longest pause it connects to all missing ranks.
    fn link_all(&mut self, limit: &mut Limit) -> Result<()> {
        let (mut pause, mut patience) = (BACKOFF[0], FIRST_ATTEMPT);
        let (mut known_changes, mut resource_errors) = (None, ResourceErrors::default());
        loop {
            self.adopt_links();
            let changes = self.ranks.changes();
            let is_late = pause == BACKOFF[1];
            if known_changes != Some(changes) || is_late {
                self.connect_missing(is_late, limit, patience, &mut resource_errors)?;
                patience = if is_late { (patience * 2).min(MAX_ATTEMPT) } else { patience };
            }
            known_changes = Some(changes);
            let Some(missing) = self.missing().into_iter().next() else { return Ok(()) };
            self.check_linked()?;
            if limit.is_over(Instant::now()) {
                let absent = || self.ranks.absent(missing, limit.milliseconds());
                return Err(resource_errors.error().unwrap_or_else(absent));
            }
            if is_late && let Some(end) = self.missing().into_iter().find_map(|rank| self.ranks.end(rank)) {
                return Err(end);
            }
            self.pause(&mut pause, limit)?;
        }
    }

    /// Makes one attempt to connect each missing rank in the half of the ranks after this one, or
    /// all missing ranks.
    fn connect_missing(
        &mut self,
        connects_all: bool,
        limit: &mut Limit,
        patience: Duration,
        resource_errors: &mut ResourceErrors,
    ) -> Result<()> {
        let (own_rank, size) = (self.own_rank, self.size);
        let distance = |rank: usize| (rank + size - own_rank) % size;
        let mut missing = self.missing();
        missing.sort_unstable_by_key(|rank| distance(*rank));
        for rank in missing.into_iter().filter(|rank| connects_all || distance(*rank) <= size / 2) {
            // The rank may have connected meanwhile.
            if self.inbox.peers[rank].is_some() {
                continue;
            }
            let connected = self.ranks.connect_rank(rank, limit.at_most(patience));
            if let Some(channel) = resource_errors.check(connected)? {
                self.states.add_link(&mut self.inbox, rank, channel);
            }
            self.adopt_links();
        }
        Ok(())
    }

    /// Fails if a linked rank is gone or has ended its collectives. A linked rank may have seen the
    /// end of a rank that is not linked with this one.
    fn check_linked(&mut self) -> Result<()> {
        for rank in 0..self.size {
            if let Some(end) = self.inbox.peers[rank].as_mut().and_then(|peer| peer.check().err()) {
                return Err(ended_by(&self.inbox, rank).unwrap_or(end));
            }
            ended_by(&self.inbox, rank).map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Runs one collective with all ranks. An error ends collectives of this communicator.
    fn run_collective(&mut self, run: impl FnOnce(Collective<'_>) -> Result<()>) -> Result<()> {
        let mut limit = self.inbox.limit();
        self.check_here()?;
        self.states.broken.clone().map_or(Ok(()), Err)?;
        self.adopt_links();
        let linked = if self.missing().is_empty() { Ok(()) } else { self.link_all(&mut limit) };
        let done = linked.and_then(|()| {
            self.number += 1;
            self.states.has_begun = true;
            let Self { own_rank, size, number, inbox, .. } = self;
            run(Collective { inbox, own_rank: *own_rank, size: *size, number: *number, limit })
        });
        done.map_err(|error| self.states.end_collectives(&self.inbox, error))
    }

    /// Waits until all ranks have called this function.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn barrier(&mut self) -> Result<()> {
        self.run_collective(|collective| collective.barrier())
    }

    /// Copies the memory of `root` to all ranks. All ranks pass memory of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn bcast<'d>(&mut self, root: usize, memory: impl Into<Destination<'d>>) -> Result<()> {
        self.check_root(root)?;
        let memory = memory.into().0;
        self.run_collective(|collective| collective.bcast(root, &memory))
    }

    fn check_root(&self, root: usize) -> Result<()> {
        if root < self.size { Ok(()) } else { Err(Error::BadRank { rank: root, size: self.size }) }
    }

    /// Copies each rank's share of its memory ([`Communicator::share`] of the bytes) to all ranks.
    /// All ranks pass contiguous memory of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn allgather<'d>(&mut self, memory: impl Into<Destination<'d>>) -> Result<()> {
        let memory = memory.into().contiguous()?;
        self.run_collective(|collective| collective.allgather(&memory))
    }

    /// Sends block `i` of `outgoing` to rank `i`, and receives block `i` of `incoming` from it.
    /// Both are contiguous and have the same length, which is a multiple of the number of ranks.
    ///
    /// # Errors
    /// [`Error::NotDivisible`], [`Error::LengthMismatch`]; as [`Communicator::allreduce`].
    pub fn alltoall<'s, 'd>(
        &mut self,
        outgoing: impl Into<Source<'s>>,
        incoming: impl Into<Destination<'d>>,
    ) -> Result<()> {
        let (outgoing, incoming) = (outgoing.into().0, incoming.into().contiguous()?);
        let (length, pieces) = (outgoing.len(), outgoing.segments().len());
        if pieces != 1 {
            return Err(Error::NotContiguous { pieces });
        }
        if incoming.len() != length {
            return Err(Error::LengthMismatch { remote: incoming.len(), local: length });
        }
        if !length.is_multiple_of(self.size) {
            return Err(Error::NotDivisible { length, ranks: self.size });
        }
        self.run_collective(|collective| collective.alltoall(&outgoing, &incoming))
    }

    /// Combines the memory of all ranks into that of `root`, number by number. Does not change the
    /// memory of other ranks. All ranks pass contiguous memory of the same length.
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
        let memory = memory.into().combined(reduction)?.contiguous()?;
        self.run_collective(|collective| collective.reduce(root, &memory, &reduction))
    }

    /// Combines the memory of all ranks, number by number. Writes to the memory of each rank its
    /// share of the result ([`Communicator::share`] of the numbers), and does not change the rest.
    /// All ranks pass contiguous memory of the same length.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    pub fn reduce_scatter<'d>(
        &mut self,
        memory: impl Into<Destination<'d>>,
        reduction: Reduction,
    ) -> Result<()> {
        let memory = memory.into().combined(reduction)?.contiguous()?;
        self.run_collective(|collective| collective.reduce_scatter(&memory, &reduction))
    }

    /// Combines the memory of all ranks, number by number. All ranks get the same result, bit for
    /// bit. All ranks pass contiguous memory of the same length.
    ///
    /// Memory of a pool ([`crate::Memory`]) that ranks can map is combined in place, without a
    /// copy: each rank combines one share.
    ///
    /// # Errors
    /// [`Error::PartialElement`], [`Error::NotContiguous`], [`Error::BadRank`]: no memory was
    /// changed, and collectives continue.
    ///
    /// Any other error ends collectives of this communicator on all ranks. Each rank gets an error
    /// once it waits for a rank that has one. The contents of the memory are then undefined, and
    /// ranks without an error may still write it. [`Error::PeerGone`]: a rank ended;
    /// [`Error::Closed`]; [`Error::CollectivesEnded`]; [`Error::Mismatch`]: ranks called different
    /// collectives; [`Error::TimedOut`]; as [`Communicator::link`].
    pub fn allreduce<'d>(&mut self, memory: impl Into<Destination<'d>>, reduction: Reduction) -> Result<()> {
        let memory = memory.into().combined(reduction)?.contiguous()?;
        self.run_collective(|collective| collective.allreduce(&memory, &reduction))
    }
}
