//! Collectives that are messages: from one to all, from each to each, and over a tree of ranks, where each waits for those below it and then for
//! the one above it.

use core::ops::Range;

use super::Group;
use super::messages::{Coming, Going};
use super::part::share;
use super::tag::{Kind, Tag};
use crate::parts::{Destination, List, Source};
use crate::wait::Limit;
use crate::{Error, Reduction, Result};

/// How many ranks are just below each in a tree: many, since each rank that waits on the way costs a change of processes.
const WIDTH: usize = 16;

/// A part of memory that is as long as the caller has made sure.
pub(super) fn portion<'d>(list: &List<'d>, part: &Range<usize>) -> Result<List<'d>> {
    let pieces = list.parts().len();
    list.portion(part.start, part.len()).ok_or(Error::NotOnePiece { pieces })
}

impl Group {
    pub(crate) fn bcast(&mut self, root: usize, memory: &List<'_>, limit: &mut Limit) -> Result<()> {
        let tag = self.begin(Kind::Broadcast, 0);
        if self.me == root {
            let mut going = Vec::with_capacity(self.size);
            for to in self.others() {
                going.push(self.start(to, tag, memory.clone())?);
            }
            return self.finish(&mut going, &mut [], false, limit);
        }
        // The root and this rank copy at the same time, where they can.
        let coming = Coming::alone(root, tag, Destination(memory.clone()), *limit);
        self.finish(&mut [], &mut [coming], false, limit)
    }

    pub(crate) fn allgather(&mut self, memory: &List<'_>, limit: &mut Limit) -> Result<()> {
        let tag = self.begin(Kind::AllGather, 0);
        let all: Vec<usize> = (0..self.size).collect();
        let (length, size) = (memory.len(), self.size);
        self.give(tag, memory, &all, |rank| share(length, rank, size), limit)
    }

    pub(crate) fn reduce_scatter(
        &mut self,
        memory: &List<'_>,
        reduction: &Reduction,
        limit: &mut Limit,
    ) -> Result<()> {
        let tag = self.begin(Kind::ReduceScatter, reduction.code());
        let all: Vec<usize> = (0..self.size).collect();
        let (width, size) = (reduction.element().size(), self.size);
        let elements = memory.len() / width;
        let part = |rank| {
            let part = share(elements, rank, size);
            part.start * width..part.end * width
        };
        self.collect(tag, memory, &all, part, limit)
    }

    /// Each of `ranks` combines its part of everybody's memory into its own. The memory's list says how.
    pub(super) fn collect(
        &mut self,
        tag: Tag,
        memory: &List<'_>,
        ranks: &[usize],
        part: impl Fn(usize) -> Range<usize>,
        limit: &mut Limit,
    ) -> Result<()> {
        let mut going: Vec<Going<'_>> = Vec::with_capacity(self.size);
        let me = self.me;
        for to in ranks.iter().filter(|rank| **rank != me) {
            going.push(self.start(*to, tag, portion(memory, &part(*to))?)?);
        }
        let mut coming = Vec::with_capacity(self.size);
        if ranks.contains(&self.me) {
            let mine = part(self.me);
            for from in self.others() {
                coming.push(Coming::new(from, tag, Destination(portion(memory, &mine)?)));
            }
        }
        // In order, so that what rounding does is always the same.
        self.finish(&mut going, &mut coming, true, limit)
    }

    /// Each of `ranks` gives its part of its memory to all.
    pub(super) fn give(
        &mut self,
        tag: Tag,
        memory: &List<'_>,
        ranks: &[usize],
        part: impl Fn(usize) -> Range<usize>,
        limit: &mut Limit,
    ) -> Result<()> {
        let mut going: Vec<Going<'_>> = Vec::with_capacity(self.size);
        if ranks.contains(&self.me) {
            let mine = part(self.me);
            for to in self.others() {
                going.push(self.start(to, tag, portion(memory, &mine)?)?);
            }
        }
        let mut coming = Vec::with_capacity(self.size);
        for from in ranks.iter().filter(|rank| **rank != self.me) {
            coming.push(Coming::new(*from, tag, Destination(portion(memory, &part(*from))?)));
        }
        self.finish(&mut going, &mut coming, false, limit)
    }

    /// The rank above this one, and those below it.
    fn neighbours(&self) -> (Option<usize>, Range<usize>) {
        let above = self.me.checked_sub(1).map(|before| before / WIDTH);
        let below = |rank: usize| (rank * WIDTH + 1).min(self.size);
        (above, below(self.me)..below(self.me + 1))
    }

    /// Waits until all ranks have called it.
    pub(super) fn barrier_by_tree(&mut self, tag: Tag, limit: &mut Limit) -> Result<()> {
        let (above, below) = self.neighbours();
        let nothing = || Source::from(&[]).0;
        let coming = |rank, tag| Coming::new(rank, tag, Destination::from(&mut []));
        let mut arrived: Vec<_> = below.clone().map(|rank| coming(rank, tag)).collect();
        self.finish(&mut [], &mut arrived, false, limit)?;
        if let Some(above) = above {
            let going = self.start(above, tag, nothing())?;
            self.finish(&mut [going], &mut [coming(above, tag.step(1))], false, limit)?;
        }
        let going = below.map(|rank| self.start(rank, tag.step(1), nothing()));
        let mut going = going.collect::<Result<Vec<Going<'_>>>>()?;
        self.finish(&mut going, &mut [], false, limit)
    }

    /// Combines the memory of all ranks, which is in one piece: `values`, a copy of this one's. All have the same result in `values`
    /// afterwards.
    pub(super) fn allreduce_by_tree(
        &mut self,
        tag: Tag,
        values: &mut [u8],
        reduction: &Reduction,
        limit: &mut Limit,
    ) -> Result<()> {
        let (above, below) = self.neighbours();
        let length = values.len();
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.resize(below.len() * length, 0);
        let places = below.clone().zip(scratch.chunks_exact_mut(length));
        let mut coming: Vec<_> =
            places.map(|(rank, place)| Coming::new(rank, tag, Destination::from(place))).collect();
        self.finish(&mut [], &mut coming, false, limit)?;
        drop(coming);
        for other in scratch.chunks_exact(length) {
            // SAFETY: two slices of that many bytes, which are no part of each other.
            unsafe { reduction.combine(values.as_mut_ptr(), other.as_ptr(), length) };
        }
        self.scratch = scratch;
        if let Some(above) = above {
            let going = self.start(above, tag, Source::from(&*values).0)?;
            self.finish(&mut [going], &mut [], false, limit)?;
            let coming = Coming::new(above, tag.step(1), Destination::from(&mut *values));
            self.finish(&mut [], &mut [coming], false, limit)?;
        }
        let going = below.map(|rank| self.start(rank, tag.step(1), Source::from(&*values).0));
        let mut going = going.collect::<Result<Vec<Going<'_>>>>()?;
        self.finish(&mut going, &mut [], false, limit)
    }
}
