//! Allreduce: in place on memory that all ranks map, or by messages.
//!
//! Each rank combines one share of the memory of all ranks, and writes the result to all of them. A
//! rank exposes memory of a pool to all other ranks. A rank that can map the memory of all ranks
//! combines its share in place. For a rank that cannot, all ranks send that share as messages, and
//! it sends the result. Short memory is combined over a tree, or by recursive doubling.

use core::ops::Range;

use umf_core::Access;

use super::algorithms::{doublings, share};
use super::exchange::{
    Collective, CollectiveKind, CollectiveTag, Incoming, OTHER_CALL, OTHER_LENGTH, ended_by, matching_step,
};
use crate::buffer::{Buffer, Destination, Source};
use crate::inbox::Inbox;
use crate::queue::Context;
use crate::send::{Loan, SendRequest};
use crate::view::{Exposed, View};
use crate::{Error, Reduction, Result};

/// Memory up to this length is sent in one message to each rank, in the rings.
const SHORT: usize = 4096;
/// Bytes that are combined with the memory of several ranks at a time. A block stays in the
/// first-level cache.
const BLOCK: usize = 16 << 10;
/// Shares are whole lines, so that no two ranks write one line, and no number lies in two shares.
const LINE: usize = 128;

/// Returns the bytes of one rank: equal shares of whole lines. The last line may be shorter.
fn share_of_bytes(bytes: usize, rank: usize, size: usize) -> Range<usize> {
    let lines = share(bytes.div_ceil(LINE), rank, size);
    (lines.start * LINE).min(bytes)..(lines.end * LINE).min(bytes)
}

impl Collective<'_> {
    pub(super) fn allreduce(mut self, memory: &Buffer<'_>, reduction: &Reduction) -> Result<()> {
        if memory.len() <= SHORT {
            return self.allreduce_short(memory, reduction);
        }
        let tag = self.tag(CollectiveKind::AllReduce, reduction.code());
        let word = (memory.len() as u64).to_le_bytes();
        // Dropped when all ranks have combined their shares.
        let (_loans, mut outgoing) = self.expose(tag, memory, &word)?;
        let views = self.map_exposed(tag, memory.len(), &mut outgoing)?;
        self.finish(&mut outgoing, &mut [], false)?;
        let is_done = views.is_some_and(|views| self.combine(memory, &views, reduction));
        let failed = self.exchange_failures(tag.step(1), is_done)?;
        if failed.is_empty() {
            return Ok(());
        }
        let (length, size) = (memory.len(), self.size);
        let range = |rank| share_of_bytes(length, rank, size);
        self.collect(tag.step(2), memory, &failed, range)?;
        self.distribute(tag.step(3), &memory.without_reduction(), &failed, range)
    }

    /// Combines over the tree, or by recursive doubling. All ranks combine in the same order.
    fn allreduce_short(&mut self, memory: &Buffer<'_>, reduction: &Reduction) -> Result<()> {
        let tag = self.tag(CollectiveKind::AllReduceShort, reduction.code());
        let length = memory.len();
        let [own] = *memory.segments() else {
            return Err(Error::NotContiguous { pieces: memory.segments().len() });
        };
        let mut values = vec![0; length];
        // SAFETY: both have that many bytes; other processes may write the caller's memory.
        unsafe { core::ptr::copy(own.base, values.as_mut_ptr(), length) };
        if self.inbox.is_oversubscribed || !self.size.is_power_of_two() {
            self.reduce_on_tree(tag, &mut values, Some(reduction))?;
        } else {
            self.reduce_by_doubling(tag, &mut values, reduction)?;
        }
        // SAFETY: as above.
        unsafe { core::ptr::copy(values.as_ptr(), own.base, length) };
        Ok(())
    }

    /// Combines `values` of a power of two of ranks: in each step, those of twice as many ranks.
    fn reduce_by_doubling(
        &mut self,
        tag: CollectiveTag,
        values: &mut Vec<u8>,
        reduction: &Reduction,
    ) -> Result<()> {
        let length = values.len();
        let mut other = vec![0; length];
        for (number, distance) in doublings(self.size) {
            let (peer, step) = (self.own_rank ^ distance, tag.step(number));
            let outgoing = self.start(peer, step, Source::from(&values[..]).0)?;
            let incoming = Incoming::new(peer, step, Destination::from(&mut other[..]));
            self.finish(&mut [outgoing], &mut [incoming], false)?;
            if peer < self.own_rank {
                core::mem::swap(values, &mut other);
            }
            // SAFETY: two slices of that many bytes that do not overlap.
            unsafe { reduction.combine(values.as_mut_ptr(), other.as_ptr(), length) };
        }
        Ok(())
    }

    /// Hands the memory over to all other ranks. If it is not of a pool, begins to send its length.
    fn expose<'d>(
        &mut self,
        tag: CollectiveTag,
        memory: &Buffer<'d>,
        length: &'d [u8; 8],
    ) -> Result<(Vec<Loan<'d>>, Vec<SendRequest<'d>>)> {
        if memory.memory().is_none() {
            let outgoing = self.start_all(self.others(), tag, |_| Ok(Source::from(length).0))?;
            return Ok((Vec::new(), outgoing));
        }
        let tag = (tag.value(), Context::Collectives);
        let loans = self.others().map(|to| self.inbox.hand_over(to, tag, Source(memory.clone())));
        Ok((loans.collect::<Result<_>>()?, Vec::new()))
    }

    /// Maps the exposed memory of the other ranks, in the order of ranks; `None` if any of it
    /// cannot be mapped. `outgoing` makes progress meanwhile, since other ranks may wait for it.
    fn map_exposed(
        &mut self,
        tag: CollectiveTag,
        length: usize,
        outgoing: &mut [SendRequest<'_>],
    ) -> Result<Option<Vec<View>>> {
        let mut views = Vec::with_capacity(self.size);
        let mut is_whole = true;
        let others = self.others();
        let Collective { inbox, limit, .. } = self;
        for rank in others {
            let mut serve = |inbox: &mut Inbox| {
                outgoing.iter_mut().try_for_each(|request| inbox.test_send(request).map(drop))
            };
            let matching = matching_step(rank, tag);
            let exposed = inbox.wait(Some(rank), limit, "a collective", |inbox| {
                serve(inbox)?;
                match (inbox.attempt_exposed(&matching)?, ended_by(inbox, rank)) {
                    (None, Some(error)) => {
                        inbox.drain();
                        inbox.attempt_exposed(&matching)?.map(Some).ok_or(error)
                    }
                    (exposed, _) => Ok(exposed),
                }
            })?;
            let (received_tag, received_length) = match &exposed {
                Exposed::View(view) => (view.tag(), view.len() as u64),
                Exposed::Unopened { tag, length } => (*tag, *length as u64),
                Exposed::Copy { tag: copy } if *copy == tag.value() => {
                    let mut word = [0; 8];
                    let mut incoming = Incoming::new(rank, tag, Destination::from(&mut word));
                    inbox.wait(Some(rank), limit, "a collective", |inbox| {
                        serve(inbox)?;
                        Ok(incoming.poll(inbox)?.then_some(()))
                    })?;
                    (*copy, u64::from_le_bytes(word))
                }
                Exposed::Copy { tag } => (*tag, 0),
            };
            if received_tag != tag.value() {
                return Err(Error::Mismatch { rank, what: OTHER_CALL });
            }
            if received_length != length as u64 {
                return Err(Error::Mismatch { rank, what: OTHER_LENGTH });
            }
            match exposed {
                Exposed::View(view) => views.push(view),
                _ => is_whole = false,
            }
        }
        Ok(is_whole.then_some(views))
    }

    /// Combines this rank's share of the memory of all ranks, and writes the result to all of them.
    /// Returns `false` if it cannot access all memory: no byte was written.
    fn combine(&self, memory: &Buffer<'_>, views: &[View], reduction: &Reduction) -> bool {
        let [own] = *memory.segments() else { return false };
        let range = share_of_bytes(memory.len(), self.own_rank, self.size);
        // The accesses end with this function.
        let Ok(_own_access) = memory.begin_access(Access::ReadWrite) else { return false };
        let accesses: Result<Vec<_>> = views.iter().map(|view| view.cpu_access(Access::ReadWrite)).collect();
        let slices: Result<Vec<_>> = views.iter().map(View::slice).collect();
        let (Ok(_accesses), Ok(slices)) = (accesses, slices) else { return false };
        let bases: Vec<*mut u8> = slices.iter().map(|slice| slice.as_mut_ptr()).collect();
        let Some((last, others)) = bases.split_last() else { return true };
        let block = if others.is_empty() { range.len().max(1) } else { BLOCK };
        for start in range.clone().step_by(block) {
            let length = block.min(range.end - start);
            let at = |base: &*mut u8| base.wrapping_add(start);
            let own = at(&own.base);
            // SAFETY: the memory of each rank has `memory.len()` bytes, as `map_exposed` has
            // checked. The views are open. Only this rank accesses this share of any memory.
            unsafe {
                others.iter().for_each(|other| reduction.combine(own, at(other), length));
                reduction.combine_both(own, at(last), length);
                others.iter().for_each(|other| core::ptr::copy(own, at(other), length));
            }
        }
        true
    }

    /// Exchanges whether each rank has combined its share. Returns the ranks that have not.
    fn exchange_failures(&mut self, tag: CollectiveTag, is_done: bool) -> Result<Vec<usize>> {
        let own_flag = [u8::from(is_done)];
        let mut flags = vec![0_u8; self.size];
        flags[self.own_rank] = own_flag[0];
        let mut outgoing = self.start_all(self.others(), tag, |_| Ok(Source::from(&own_flag).0))?;
        let own_rank = self.own_rank;
        let others = flags.chunks_mut(1).enumerate().filter(|(rank, _)| *rank != own_rank);
        let mut incoming: Vec<_> =
            others.map(|(rank, flag)| Incoming::new(rank, tag, Destination::from(flag))).collect();
        self.finish(&mut outgoing, &mut incoming, false)?;
        drop(incoming);
        Ok((0..self.size).filter(|rank| flags[*rank] == 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_cover_all_without_overlap(bytes in 0..100_000_usize, size in 1..40_usize) {
            for share in [share, share_of_bytes] {
                let mut end = 0;
                for rank in 0..size {
                    let range = share(bytes, rank, size);
                    prop_assert!(range.start == end && range.end >= end);
                    prop_assert!(range.len() <= bytes / size + 2 * LINE);
                    end = range.end;
                }
                prop_assert_eq!(end, bytes);
            }
        }
    }
}
