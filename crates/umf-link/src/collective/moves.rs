//! Collectives that are messages: from one to all, from each to each.

use super::Group;
use super::messages::{Coming, Going};
use super::part::share;
use super::tag::{Kind, Tag};
use crate::parts::{Destination, List};
use crate::wait::Limit;
use crate::{Error, Reduction, Result};

/// A part of memory that is as long as the caller has made sure.
pub(super) fn portion<'d>(list: &List<'d>, part: &core::ops::Range<usize>) -> Result<List<'d>> {
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
        part: impl Fn(usize) -> core::ops::Range<usize>,
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
        part: impl Fn(usize) -> core::ops::Range<usize>,
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
}
