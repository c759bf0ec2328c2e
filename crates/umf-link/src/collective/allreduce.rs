//! `allreduce`: each rank combines one part of everybody's memory, and writes the result to everybody.
//!
//! Memory of a pool is handed over to all: who can open all of it reads and writes its part where it is, and says so when it is
//! done. For who cannot, the others send its part as messages, and it sends the result.

use umf_ipc::Access;

use super::Group;
use super::messages::{Coming, Going, KIND, given_up};
use super::part::share_of_bytes;
use super::tag::{Kind, Tag};
use crate::fabric::wait_many;
use crate::parts::{Destination, List, Source};
use crate::receiver::{Form, View};
use crate::sender::Lent;
use crate::tag::Context;
use crate::wait::Limit;
use crate::{Error, Reduction, Result};

/// Up to so many bytes everybody sends all to all: one step, in the rings.
const SHORT: usize = 4096;

/// Bytes that are combined at a time if there are several: what was written is in a processor's first cache when the next
/// rank's is added to it.
const BLOCK: usize = 16 << 10;

impl Group {
    pub(crate) fn allreduce(
        &mut self,
        memory: &List<'_>,
        reduction: &Reduction,
        limit: &mut Limit,
    ) -> Result<()> {
        if memory.len() <= SHORT {
            return self.allreduce_short(memory, reduction, limit);
        }
        let tag = self.begin(Kind::AllReduce, reduction.code());
        // Kept until all have said that they are done.
        let _lent = self.show(tag, memory, limit)?;
        let views = self.see(tag, memory.len(), limit)?;
        let is_done = views.is_some_and(|views| self.combine(memory, &views, reduction));
        let failed = self.tell_done(tag.step(1), is_done, limit)?;
        if failed.is_empty() {
            return Ok(());
        }
        let (length, size) = (memory.len(), self.size);
        let part = |rank| share_of_bytes(length, rank, size);
        self.collect(tag.step(2), memory, &failed, part, limit)?;
        self.give(tag.step(3), &memory.plain(), &failed, part, limit)
    }

    /// Everybody has everybody's, and combines it in the order of ranks.
    fn allreduce_short(&mut self, memory: &List<'_>, reduction: &Reduction, limit: &mut Limit) -> Result<()> {
        let tag = self.begin(Kind::AllReduceShort, reduction.code());
        let length = memory.len();
        if length == 0 {
            return self.barrier(limit);
        }
        let [own] = *memory.parts() else { return Err(Error::NotOnePiece { pieces: 0 }) };
        if self.spin.is_crowded() {
            let mut values = vec![0; length];
            // SAFETY: both have that many bytes; the caller's memory is nobody else's meanwhile, or volatile.
            unsafe { core::ptr::copy(own.base, values.as_mut_ptr(), length) };
            self.allreduce_by_tree(tag, &mut values, reduction, limit)?;
            // SAFETY: as above.
            unsafe { core::ptr::copy(values.as_ptr(), own.base, length) };
            return Ok(());
        }
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.resize(self.size * length, 0);
        let mut going: Vec<Going<'_>> = Vec::with_capacity(self.size);
        for to in self.others() {
            going.push(self.start(to, tag, memory.clone())?);
        }
        let mut coming = Vec::with_capacity(self.size);
        for (rank, place) in scratch.chunks_exact_mut(length).enumerate() {
            if rank == self.me {
                // SAFETY: both have that many bytes; the caller's memory is nobody else's meanwhile, or volatile.
                unsafe { core::ptr::copy(own.base, place.as_mut_ptr(), length) };
            } else {
                coming.push(Coming::new(rank, tag, Destination::from(place)));
            }
        }
        self.finish(&mut going, &mut coming, false, limit)?;
        drop(coming);
        let (first, others) = scratch.split_at_mut(length);
        for other in others.chunks_exact(length) {
            // SAFETY: two places of the vector, of that many bytes.
            unsafe { reduction.combine(first.as_mut_ptr(), other.as_ptr(), length) };
        }
        // SAFETY: as above; what was sent is sent.
        unsafe { core::ptr::copy(first.as_ptr(), own.base, length) };
        self.scratch = scratch;
        Ok(())
    }

    /// Whether others may map it.
    fn may_be_shown(&self, memory: &List<'_>) -> bool {
        memory.memory().is_some() && (!self.enforce || memory.is_confined())
    }

    /// Hands the memory over to everybody, or says how much there is if it is not of a pool.
    fn show<'d>(&mut self, tag: Tag, memory: &List<'d>, limit: &mut Limit) -> Result<Vec<Lent<'d>>> {
        let mut lent = Vec::with_capacity(self.size);
        let length = (memory.len() as u64).to_le_bytes();
        let mut going: Vec<Going<'_>> = Vec::new();
        for to in self.others() {
            if !self.may_be_shown(memory) {
                going.push(self.start(to, tag, Source::from(&length).0)?);
                continue;
            }
            let Some(link) = &mut self.links[to] else { return Err(Error::GivenUp { rank: to }) };
            lent.push(link.hand_over_in((tag.value(), Context::Collectives), Source(memory.clone()))?);
        }
        self.finish(&mut going, &mut [], false, limit)?;
        Ok(lent)
    }

    /// What everybody else shows, in the order of ranks; `None` if some of it cannot be opened.
    fn see(&mut self, tag: Tag, length: usize, limit: &mut Limit) -> Result<Option<Vec<View>>> {
        let mut views = Vec::with_capacity(self.size);
        let mut is_whole = true;
        for rank in self.others() {
            let (links, bell, spin) = self.links();
            let form = wait_many(links, bell, spin, limit, "a collective", |links, asleep| {
                let Some(link) = &mut links[rank] else { return Err(Error::GivenUp { rank }) };
                match (link.form(tag.any_kind(), asleep)?, given_up(rank, link)) {
                    (None, Some(error)) => link.form(tag.any_kind(), asleep)?.map(Some).ok_or(error),
                    (form, _) => Ok(form),
                }
            })?;
            let (is, theirs) = match &form {
                Form::View(view) => (view.tag(), Some(view.len() as u64)),
                Form::Unopened { tag, length } => (*tag, Some(*length as u64)),
                Form::Word { tag, word } => (*tag, *word),
                Form::Other { tag } => (*tag, None),
            };
            if is != tag.value() {
                return Err(Error::Mismatch { rank, what: KIND });
            }
            if theirs != Some(length as u64) {
                return Err(Error::Mismatch { rank, what: "its memory has another length" });
            }
            match form {
                Form::View(view) => views.push(view),
                _ => is_whole = false,
            }
        }
        Ok(is_whole.then_some(views))
    }

    /// Combines this rank's part of all, and writes it to all; `false` if that cannot be: then nothing was written.
    fn combine(&self, memory: &List<'_>, views: &[View], reduction: &Reduction) -> bool {
        let [own] = *memory.parts() else { return false };
        let part = share_of_bytes(memory.len(), self.me, self.size);
        let mut theirs = Vec::with_capacity(views.len());
        // For as long as this lasts, should devices use the memory, too.
        let mut times = Vec::new();
        match memory.touch(Access::ReadWrite) {
            Ok(time) => times.push(time),
            Err(_) => return false,
        }
        for view in views {
            // Memory that is for reading only cannot be opened so.
            match (view.slice(), view.cpu_access(Access::ReadWrite)) {
                (Ok(slice), Ok(time)) => {
                    theirs.push(slice.as_mut_ptr());
                    times.push(vec![time]);
                }
                _ => return false,
            }
        }
        let Some((last, others)) = theirs.split_last() else { return true };
        let block = if others.is_empty() { part.len().max(1) } else { BLOCK };
        for start in part.clone().step_by(block) {
            let length = block.min(part.end - start);
            let at = |base: &*mut u8| base.wrapping_add(start);
            let mine = at(&own.base);
            // SAFETY: all have `memory.len()` bytes, as `see` has checked; the views are open, and nobody but this rank is at
            // this part of any of them.
            unsafe {
                others.iter().for_each(|other| reduction.combine(mine, at(other), length));
                reduction.combine_both(mine, at(last), length);
                others.iter().for_each(|other| core::ptr::copy(mine, at(other), length));
            }
        }
        true
    }

    /// Tells everybody whether this rank has done its part, and hears the same; who has not.
    fn tell_done(&mut self, tag: Tag, is_done: bool, limit: &mut Limit) -> Result<Vec<usize>> {
        let mine = [u8::from(is_done)];
        let mut said = vec![0_u8; self.size];
        said[self.me] = mine[0];
        let mut going: Vec<Going<'_>> = Vec::with_capacity(self.size);
        for to in self.others() {
            going.push(self.start(to, tag, Source::from(&mine).0)?);
        }
        let mut coming = Vec::with_capacity(self.size);
        for (from, place) in said.chunks_mut(1).enumerate().filter(|(from, _)| *from != self.me) {
            coming.push(Coming::new(from, tag, Destination::from(place)));
        }
        self.finish(&mut going, &mut coming, false, limit)?;
        drop(coming);
        Ok((0..self.size).filter(|rank| said[*rank] == 0).collect())
    }
}
