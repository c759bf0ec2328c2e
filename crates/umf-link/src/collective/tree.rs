//! Collectives over a tree of ranks: each waits for those below it, and then for the one above it.

use core::ops::Range;

use super::Group;
use super::messages::{Coming, Going};
use super::tag::Tag;
use crate::parts::{Destination, Source};
use crate::wait::Limit;
use crate::{Reduction, Result};

/// How many ranks are just below each. With 64 ranks on 2 processors, 16 takes half the time of 4.
const WIDTH: usize = 16;

impl Group {
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
