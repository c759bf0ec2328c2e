//! The algorithms of collectives, but for long memory of [`super::allreduce`].

use core::ops::Range;

use super::exchange::{Collective, CollectiveKind, CollectiveTag, Incoming, subrange};
use crate::buffer::{Buffer, Destination, Source};
use crate::{Error, Reduction, Result};

/// The number of children of a rank in the tree for oversubscribed processors: many, because each
/// level costs a context switch.
const WIDTH: usize = 16;

/// Returns the elements of one rank, if all ranks get equal shares, or shares that differ by one.
pub(super) fn share(elements: usize, rank: usize, size: usize) -> Range<usize> {
    let (each, more) = (elements / size.max(1), elements % size.max(1));
    let start = |rank: usize| rank * each + rank.min(more);
    start(rank)..start(rank + 1)
}

/// Returns number and distance of each step of recursive doubling.
pub(super) fn doublings(size: usize) -> impl Iterator<Item = (u8, usize)> {
    (0..).map(|step| (step, 1_usize << step)).take_while(move |(_, distance)| *distance < size)
}

impl Collective<'_> {
    /// Returns the parent of this rank in the tree, and its children.
    fn tree(&self) -> (Option<usize>, Range<usize>) {
        let parent = self.own_rank.checked_sub(1).map(|before| before / WIDTH);
        let first_child = |rank: usize| (rank * WIDTH + 1).min(self.size);
        (parent, first_child(self.own_rank)..first_child(self.own_rank + 1))
    }

    pub(super) fn barrier(mut self) -> Result<()> {
        let tag = self.tag(CollectiveKind::Barrier, 0);
        if self.inbox.is_oversubscribed {
            // The time depends on the number of context switches, not on that of rounds.
            return self.reduce_on_tree(tag, &mut [], None);
        }
        // Dissemination barrier: in each step, a rank knows of the arrival of twice as many ranks.
        for (number, distance) in doublings(self.size) {
            let (to, source) =
                ((self.own_rank + distance) % self.size, (self.own_rank + self.size - distance) % self.size);
            let outgoing = self.start(to, tag.step(number), Source::from(&[]).0)?;
            let incoming = Incoming::new(source, tag.step(number), Destination::from(&mut []));
            self.finish(&mut [outgoing], &mut [incoming], false)?;
        }
        Ok(())
    }

    /// Combines `values` of all ranks over the tree. All ranks have the result afterwards.
    pub(super) fn reduce_on_tree(
        &mut self,
        tag: CollectiveTag,
        values: &mut [u8],
        reduction: Option<&Reduction>,
    ) -> Result<()> {
        let (parent, children) = self.tree();
        let length = values.len();
        let mut others = vec![0; children.len() * length];
        let mut chunks = others.chunks_exact_mut(length.max(1));
        let mut incoming: Vec<_> = children
            .clone()
            .map(|rank| Incoming::new(rank, tag, Destination::from(chunks.next().unwrap_or_default())))
            .collect();
        self.finish(&mut [], &mut incoming, false)?;
        drop(incoming);
        if let Some(reduction) = reduction {
            for other in others.chunks_exact(length) {
                // SAFETY: two slices of that many bytes that do not overlap.
                unsafe { reduction.combine(values.as_mut_ptr(), other.as_ptr(), length) };
            }
        }
        if let Some(parent) = parent {
            let outgoing = self.start(parent, tag, Source::from(&*values).0)?;
            self.finish(&mut [outgoing], &mut [], false)?;
            let incoming = Incoming::new(parent, tag.step(1), Destination::from(&mut *values));
            self.finish(&mut [], &mut [incoming], false)?;
        }
        let values = &*values;
        let mut outgoing = self.start_all(children, tag.step(1), |_| Ok(Source::from(values).0))?;
        self.finish(&mut outgoing, &mut [], false)
    }

    pub(super) fn bcast(mut self, root: usize, memory: &Buffer<'_>) -> Result<()> {
        let tag = self.tag(CollectiveKind::Broadcast, 0);
        let is_short = memory.len() <= self.inbox.inline_max && self.size > 2;
        if !is_short {
            // All ranks fetch from the root at the same time. With `both`, the root copies a part.
            if self.own_rank == root {
                let mut outgoing = self.start_all(self.others(), tag, |_| Ok(memory.clone()))?;
                return self.finish(&mut outgoing, &mut [], false);
            }
            let incoming = Incoming::alone(root, tag, Destination(memory.clone()), self.limit);
            return self.finish(&mut [], &mut [incoming], false);
        }
        // A binomial tree: the parent of a rank has its lowest set bit cleared.
        let relative = (self.own_rank + self.size - root) % self.size;
        let size = self.size;
        let rank_of = |relative: usize| (relative + root) % size;
        let lowest =
            if relative == 0 { self.size.next_power_of_two() } else { 1 << relative.trailing_zeros() };
        if relative != 0 {
            let incoming = Incoming::new(rank_of(relative - lowest), tag, Destination(memory.clone()));
            self.finish(&mut [], &mut [incoming], false)?;
        }
        let steps = (0..lowest.trailing_zeros()).rev().map(|bit| relative + (1 << bit));
        let to: Vec<usize> = steps.filter(|to| *to < self.size).map(rank_of).collect();
        let mut outgoing = self.start_all(to.into_iter(), tag, |_| Ok(memory.clone()))?;
        self.finish(&mut outgoing, &mut [], false)
    }

    pub(super) fn reduce(mut self, root: usize, memory: &Buffer<'_>, reduction: &Reduction) -> Result<()> {
        let tag = self.tag(CollectiveKind::Reduce, reduction.code());
        let [own] = *memory.segments() else {
            return Err(Error::NotContiguous { pieces: memory.segments().len() });
        };
        let relative = (self.own_rank + self.size - root) % self.size;
        let size = self.size;
        let rank_of = |relative: usize| (relative + root) % size;
        let children: Vec<usize> = (0..usize::BITS)
            .map(|bit| 1_usize << bit)
            .take_while(|bit| relative & bit == 0 && *bit < self.size)
            .filter(|bit| relative + bit < self.size)
            .map(|bit| rank_of(relative + bit))
            .collect();
        // A copy, because the memory of ranks other than the root must not change.
        let mut values = vec![0; if relative == 0 { 0 } else { memory.len() }];
        if relative != 0 && children.is_empty() {
            let outgoing = self.start(rank_of(relative & (relative - 1)), tag, memory.without_reduction())?;
            return self.finish(&mut [outgoing], &mut [], false);
        }
        let into = if relative == 0 {
            memory.clone()
        } else {
            // SAFETY: both have that many bytes; other processes may write the caller's memory.
            unsafe { core::ptr::copy(own.base, values.as_mut_ptr(), values.len()) };
            Destination::from(&mut values[..]).combined(*reduction)?.0
        };
        for child in children {
            let incoming = Incoming::new(child, tag, Destination(into.clone()));
            self.finish(&mut [], &mut [incoming], false)?;
        }
        if relative != 0 {
            let outgoing = self.start(rank_of(relative & (relative - 1)), tag, into.without_reduction())?;
            self.finish(&mut [outgoing], &mut [], false)?;
        }
        Ok(())
    }

    pub(super) fn allgather(mut self, memory: &Buffer<'_>) -> Result<()> {
        let tag = self.tag(CollectiveKind::AllGather, 0);
        let all: Vec<usize> = (0..self.size).collect();
        let (length, size) = (memory.len(), self.size);
        self.distribute(tag, memory, &all, |rank| share(length, rank, size))
    }

    /// Sends block `i` of `outgoing` to rank `i`; block `i` of `incoming` comes from rank `i`.
    pub(super) fn alltoall(mut self, outgoing: &Buffer<'_>, incoming: &Buffer<'_>) -> Result<()> {
        let tag = self.tag(CollectiveKind::AllToAll, 0);
        let block = outgoing.len() / self.size;
        let range = |rank: usize| rank * block..(rank + 1) * block;
        let own_range = range(self.own_rank);
        let (own_source, own_destination) =
            (subrange(outgoing, &own_range)?, subrange(incoming, &own_range)?);
        // Each rank begins with the next one, so that the ranks do not all send to one rank at a
        // time.
        let (own_rank, size) = (self.own_rank, self.size);
        let ranks = (1..size).map(|distance| (own_rank + distance) % size);
        let mut outgoing = self.start_all(ranks.clone(), tag, |to| subrange(outgoing, &range(to)))?;
        let (from, to) = (own_source.segments()[0], own_destination.segments()[0]);
        // SAFETY: both are blocks of the caller's memory, of `block` bytes.
        unsafe { core::ptr::copy(from.base, to.base, block) };
        let incoming = |rank| Ok(Incoming::new(rank, tag, Destination(subrange(incoming, &range(rank))?)));
        let mut incoming = ranks.map(incoming).collect::<Result<Vec<_>>>()?;
        self.finish(&mut outgoing, &mut incoming, false)
    }

    pub(super) fn reduce_scatter(mut self, memory: &Buffer<'_>, reduction: &Reduction) -> Result<()> {
        let tag = self.tag(CollectiveKind::ReduceScatter, reduction.code());
        let all: Vec<usize> = (0..self.size).collect();
        let (width, size) = (reduction.element().size(), self.size);
        let elements = memory.len() / width;
        self.collect(tag, memory, &all, |rank| {
            let range = share(elements, rank, size);
            range.start * width..range.end * width
        })
    }

    /// Each of `ranks` combines its range of the memory of all ranks into its own memory.
    pub(super) fn collect(
        &mut self,
        tag: CollectiveTag,
        memory: &Buffer<'_>,
        ranks: &[usize],
        range: impl Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        let own_rank = self.own_rank;
        let others = ranks.iter().copied().filter(|rank| *rank != own_rank);
        let mut outgoing = self.start_all(others, tag, |to| subrange(memory, &range(to)))?;
        let mut incoming = Vec::with_capacity(self.size);
        if ranks.contains(&own_rank) {
            for rank in self.others() {
                incoming.push(Incoming::new(rank, tag, Destination(subrange(memory, &range(own_rank))?)));
            }
        }
        // In order, so that floats are always rounded in the same way.
        self.finish(&mut outgoing, &mut incoming, true)
    }

    /// Each of `ranks` sends its range of its memory to all other ranks.
    pub(super) fn distribute(
        &mut self,
        tag: CollectiveTag,
        memory: &Buffer<'_>,
        ranks: &[usize],
        range: impl Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        let own_rank = self.own_rank;
        let mut outgoing = Vec::new();
        if ranks.contains(&own_rank) {
            outgoing = self.start_all(self.others(), tag, |_| subrange(memory, &range(own_rank)))?;
        }
        let incoming =
            |rank: &usize| Ok(Incoming::new(*rank, tag, Destination(subrange(memory, &range(*rank))?)));
        let others = ranks.iter().filter(|rank| **rank != own_rank);
        let mut incoming = others.map(incoming).collect::<Result<Vec<_>>>()?;
        self.finish(&mut outgoing, &mut incoming, false)
    }
}
