//! The algorithms of collectives.
//!
//! Messages of collectives have a context of their own. All ranks call the same collectives in the
//! same order, so the number of a collective names it in the tags of its messages.

use core::ops::Range;

use umf_core::Access;

use super::tag::{CollectiveKind, CollectiveTag};
use crate::inbox::{Inbox, from};
use crate::parts::{Destination, List, Source};
use crate::queue::Context;
use crate::receive::{Received, Receiving};
use crate::send::{Lent, SendRequest};
use crate::view::{Shown, View};
use crate::wait::Limit;
use crate::{Error, Reduction, Result};

/// Ranks below each one in a tree where ranks share processors: many, because each rank that waits
/// on the way costs a switch of processes.
const WIDTH: usize = 16;
/// Memory up to this length is sent whole, in the rings.
const SHORT: usize = 4096;
/// Bytes that are combined at a time with several ranks: a block stays in a first-level cache
/// meanwhile.
const BLOCK: usize = 16 << 10;
/// Shares are whole lines, so that no line is written by two ranks and no number lies in two
/// shares.
const LINE: usize = 128;

const OTHER_LENGTH: &str = "its memory has another length";
const OTHER_CALL: &str = "it calls another collective, or another operation";

/// Returns the share of one rank of so many elements: as equal as shares can be.
pub(super) fn share(elements: usize, rank: usize, size: usize) -> Range<usize> {
    let (each, more) = (elements / size.max(1), elements % size.max(1));
    let start = |rank: usize| rank * each + rank.min(more);
    start(rank)..start(rank + 1)
}

/// Returns the share of one rank of so many bytes, in whole lines but for the last one.
fn share_of_bytes(bytes: usize, rank: usize, size: usize) -> Range<usize> {
    let lines = share(bytes.div_ceil(LINE), rank, size);
    (lines.start * LINE).min(bytes)..(lines.end * LINE).min(bytes)
}

/// Returns the steps in which each rank reaches twice as many others: number and distance.
fn doublings(size: usize) -> impl Iterator<Item = (u8, usize)> {
    (0..).map(|step| (step, 1_usize << step)).take_while(move |(_, distance)| *distance < size)
}

/// Returns a part of memory whose length was checked.
fn portion<'d>(list: &List<'d>, part: &Range<usize>) -> Result<List<'d>> {
    let pieces = list.parts().len();
    list.portion(part.start, part.len()).ok_or(Error::NotOnePiece { pieces })
}

/// Returns why a rank takes part in no collective any more, if that is so. What it sent before may
/// have come at the same time.
pub(super) fn ended_by(inbox: &Inbox, rank: usize) -> Option<Error> {
    match inbox.channel(rank)?.ended_collectives()? {
        0 => Some(Error::CollectivesEnded { rank }),
        pid => Some(Error::PeerGone { pid }),
    }
}

/// A message that is to come from a rank.
struct Incoming<'d> {
    from: usize,
    tag: CollectiveTag,
    length: usize,
    receiving: Receiving<'d>,
    has_arrived: bool,
}

impl<'d> Incoming<'d> {
    fn new(from_rank: usize, tag: CollectiveTag, into: Destination<'d>) -> Self {
        let length = into.len();
        let matching = from(Some(from_rank), tag.any_kind(), Context::Collectives);
        let mut receiving = Receiving::new(matching, into, None);
        receiving.is_collective = true;
        Self { from: from_rank, tag, length, receiving, has_arrived: false }
    }

    /// As [`Incoming::new`], where this rank sends nothing meanwhile: it may wait for the sender's
    /// part.
    fn alone(from_rank: usize, tag: CollectiveTag, into: Destination<'d>, limit: Limit) -> Self {
        let mut incoming = Self::new(from_rank, tag, into);
        incoming.receiving.limit = Some(limit);
        incoming
    }

    fn check(&self, received: Received) -> Result<()> {
        let what = match received {
            Received { tag, .. } if tag != self.tag.value() => OTHER_CALL,
            Received { length, .. } if length != self.length => OTHER_LENGTH,
            _ => return Ok(()),
        };
        Err(Error::Mismatch { rank: self.from, what })
    }

    fn attempt(&mut self, inbox: &mut Inbox) -> Result<Option<Received>> {
        inbox.attempt(&mut self.receiving).map_err(|error| match error {
            Error::Truncated { .. } | Error::PartialElement { .. } => {
                Error::Mismatch { rank: self.from, what: OTHER_LENGTH }
            }
            error => error,
        })
    }

    /// Returns whether the message was received.
    fn poll(&mut self, inbox: &mut Inbox) -> Result<bool> {
        if self.has_arrived {
            return Ok(true);
        }
        let mut received = self.attempt(inbox)?;
        if received.is_none()
            && let Some(end) = end(inbox, self.from)
        {
            // What the rank did last may have arrived.
            inbox.drain();
            received = Some(self.attempt(inbox)?.ok_or(end)?);
        }
        if let Some(received) = received {
            self.check(received)?;
            self.has_arrived = true;
        }
        Ok(self.has_arrived)
    }
}

/// Returns why a rank takes no part any more: it is gone, or its collectives failed.
fn end(inbox: &mut Inbox, rank: usize) -> Option<Error> {
    let gone = inbox.peers[rank].as_mut().map_or(Some(Error::WrongLink), |peer| peer.check().err());
    gone.or_else(|| ended_by(inbox, rank))
}

/// The ranks during one collective.
pub(super) struct Collective<'c> {
    pub inbox: &'c mut Inbox,
    pub own_rank: usize,
    pub size: usize,
    /// Number of the collective.
    pub number: u64,
    pub limit: Limit,
}

impl Collective<'_> {
    const fn tag(&self, kind: CollectiveKind, code: u8) -> CollectiveTag {
        CollectiveTag::new(kind, code, self.number)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own_rank = self.own_rank;
        (0..self.size).filter(move |rank| *rank != own_rank)
    }

    fn start<'d>(&mut self, to: usize, tag: CollectiveTag, list: List<'d>) -> Result<SendRequest<'d>> {
        self.inbox.start_send(to, (tag.value(), Context::Collectives), Source(list))
    }

    fn start_all<'d>(
        &mut self,
        ranks: impl Iterator<Item = usize>,
        tag: CollectiveTag,
        list: impl Fn(usize) -> Result<List<'d>>,
    ) -> Result<Vec<SendRequest<'d>>> {
        ranks.map(|to| self.start(to, tag, list(to)?)).collect()
    }

    /// Waits for all of these. `in_order`: messages are taken in the order of the list.
    fn finish(
        &mut self,
        outgoing: &mut [SendRequest<'_>],
        incoming: &mut [Incoming<'_>],
        in_order: bool,
    ) -> Result<()> {
        self.inbox.wait(None, &mut self.limit, "a collective", |inbox| {
            let mut is_done = true;
            for request in &mut *outgoing {
                let mut is_sent = inbox.test_send(request)?;
                if !is_sent && let Some(error) = ended_by(inbox, request.peer) {
                    is_sent = inbox.test_send(request)?;
                    if !is_sent {
                        return Err(error);
                    }
                }
                is_done &= is_sent;
            }
            for message in &mut *incoming {
                let has_arrived = message.poll(inbox)?;
                is_done &= has_arrived;
                if in_order && !has_arrived {
                    break;
                }
            }
            Ok(is_done.then_some(()))
        })
    }

    /// Returns the rank above this one in the tree, and those below it.
    fn tree(&self) -> (Option<usize>, Range<usize>) {
        let above = self.own_rank.checked_sub(1).map(|before| before / WIDTH);
        let below = |rank: usize| (rank * WIDTH + 1).min(self.size);
        (above, below(self.own_rank)..below(self.own_rank + 1))
    }

    pub(super) fn barrier(mut self) -> Result<()> {
        let tag = self.tag(CollectiveKind::Barrier, 0);
        if self.inbox.is_crowded {
            // With shared processors the number of sleeps counts, not that of rounds.
            return self.reduce_on_tree(tag, &mut [], None);
        }
        // Dissemination: in each step, twice as many ranks know of each other.
        for (number, distance) in doublings(self.size) {
            let (to, source) =
                ((self.own_rank + distance) % self.size, (self.own_rank + self.size - distance) % self.size);
            let outgoing = self.start(to, tag.step(number), Source::from(&[]).0)?;
            let incoming = Incoming::new(source, tag.step(number), Destination::from(&mut []));
            self.finish(&mut [outgoing], &mut [incoming], false)?;
        }
        Ok(())
    }

    /// Combines `values` of all ranks over the tree. All have the result afterwards.
    fn reduce_on_tree(
        &mut self,
        tag: CollectiveTag,
        values: &mut [u8],
        reduction: Option<&Reduction>,
    ) -> Result<()> {
        let (above, below) = self.tree();
        let length = values.len();
        let mut others = vec![0; below.len() * length];
        let mut chunks = others.chunks_exact_mut(length.max(1));
        let mut incoming: Vec<_> = below
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
        if let Some(above) = above {
            let outgoing = self.start(above, tag, Source::from(&*values).0)?;
            self.finish(&mut [outgoing], &mut [], false)?;
            let incoming = Incoming::new(above, tag.step(1), Destination::from(&mut *values));
            self.finish(&mut [], &mut [incoming], false)?;
        }
        let values = &*values;
        let mut outgoing = self.start_all(below, tag.step(1), |_| Ok(Source::from(values).0))?;
        self.finish(&mut outgoing, &mut [], false)
    }

    pub(super) fn bcast(mut self, root: usize, memory: &List<'_>) -> Result<()> {
        let tag = self.tag(CollectiveKind::Broadcast, 0);
        let is_short = memory.len() <= self.inbox.inline_max && self.size > 2;
        if !is_short {
            // All ranks fetch from the root at once, which copies a part of each where `both` is
            // possible.
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
        let real = |relative: usize| (relative + root) % size;
        let lowest =
            if relative == 0 { self.size.next_power_of_two() } else { 1 << relative.trailing_zeros() };
        if relative != 0 {
            let incoming = Incoming::new(real(relative - lowest), tag, Destination(memory.clone()));
            self.finish(&mut [], &mut [incoming], false)?;
        }
        let steps = (0..lowest.trailing_zeros()).rev().map(|bit| relative + (1 << bit));
        let to: Vec<usize> = steps.filter(|to| *to < self.size).map(real).collect();
        let mut outgoing = self.start_all(to.into_iter(), tag, |_| Ok(memory.clone()))?;
        self.finish(&mut outgoing, &mut [], false)
    }

    pub(super) fn reduce(mut self, root: usize, memory: &List<'_>, reduction: &Reduction) -> Result<()> {
        let tag = self.tag(CollectiveKind::Reduce, reduction.code());
        let [own] = *memory.parts() else { return Err(Error::NotOnePiece { pieces: memory.parts().len() }) };
        let relative = (self.own_rank + self.size - root) % self.size;
        let size = self.size;
        let real = |relative: usize| (relative + root) % size;
        let children: Vec<usize> = (0..usize::BITS)
            .map(|bit| 1_usize << bit)
            .take_while(|bit| relative & bit == 0 && *bit < self.size)
            .filter(|bit| relative + bit < self.size)
            .map(|bit| real(relative + bit))
            .collect();
        // The memory of other ranks than the root stays as it is.
        let mut values = vec![0; if relative == 0 { 0 } else { memory.len() }];
        if relative != 0 && children.is_empty() {
            let outgoing = self.start(real(relative & (relative - 1)), tag, memory.plain())?;
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
            let outgoing = self.start(real(relative & (relative - 1)), tag, into.plain())?;
            self.finish(&mut [outgoing], &mut [], false)?;
        }
        Ok(())
    }

    pub(super) fn allgather(mut self, memory: &List<'_>) -> Result<()> {
        let tag = self.tag(CollectiveKind::AllGather, 0);
        let all: Vec<usize> = (0..self.size).collect();
        let (length, size) = (memory.len(), self.size);
        self.give(tag, memory, &all, |rank| share(length, rank, size))
    }

    /// Sends block `i` of `outgoing` to rank `i`; block `i` of `incoming` comes from rank `i`.
    pub(super) fn alltoall(mut self, outgoing: &List<'_>, incoming: &List<'_>) -> Result<()> {
        let tag = self.tag(CollectiveKind::AllToAll, 0);
        let block = outgoing.len() / self.size;
        let part = |rank: usize| rank * block..(rank + 1) * block;
        let (from_own, to_own) =
            (portion(outgoing, &part(self.own_rank))?, portion(incoming, &part(self.own_rank))?);
        // Each rank begins with the next one, so that no rank is served by all at once.
        let (own_rank, size) = (self.own_rank, self.size);
        let ranks = (1..size).map(|distance| (own_rank + distance) % size);
        let mut outgoing = self.start_all(ranks.clone(), tag, |to| portion(outgoing, &part(to)))?;
        let (mine, theirs) = (from_own.parts()[0], to_own.parts()[0]);
        // SAFETY: blocks of the caller's memory, of the same length.
        unsafe { core::ptr::copy(mine.base, theirs.base, block) };
        let incoming = |rank| Ok(Incoming::new(rank, tag, Destination(portion(incoming, &part(rank))?)));
        let mut incoming = ranks.map(incoming).collect::<Result<Vec<_>>>()?;
        self.finish(&mut outgoing, &mut incoming, false)
    }

    pub(super) fn reduce_scatter(mut self, memory: &List<'_>, reduction: &Reduction) -> Result<()> {
        let tag = self.tag(CollectiveKind::ReduceScatter, reduction.code());
        let all: Vec<usize> = (0..self.size).collect();
        let (width, size) = (reduction.element().size(), self.size);
        let elements = memory.len() / width;
        self.collect(tag, memory, &all, |rank| {
            let part = share(elements, rank, size);
            part.start * width..part.end * width
        })
    }

    /// Each of `ranks` combines its part of the memory of all ranks into its own.
    fn collect(
        &mut self,
        tag: CollectiveTag,
        memory: &List<'_>,
        ranks: &[usize],
        part: impl Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        let own_rank = self.own_rank;
        let others = ranks.iter().copied().filter(|rank| *rank != own_rank);
        let mut outgoing = self.start_all(others, tag, |to| portion(memory, &part(to)))?;
        let mut incoming = Vec::with_capacity(self.size);
        if ranks.contains(&own_rank) {
            for rank in self.others() {
                incoming.push(Incoming::new(rank, tag, Destination(portion(memory, &part(own_rank))?)));
            }
        }
        // In order, so that rounding is always the same.
        self.finish(&mut outgoing, &mut incoming, true)
    }

    /// Each of `ranks` gives its part of its memory to all.
    fn give(
        &mut self,
        tag: CollectiveTag,
        memory: &List<'_>,
        ranks: &[usize],
        part: impl Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        let own_rank = self.own_rank;
        let mut outgoing = Vec::new();
        if ranks.contains(&own_rank) {
            outgoing = self.start_all(self.others(), tag, |_| portion(memory, &part(own_rank)))?;
        }
        let incoming =
            |rank: &usize| Ok(Incoming::new(*rank, tag, Destination(portion(memory, &part(*rank))?)));
        let others = ranks.iter().filter(|rank| **rank != own_rank);
        let mut incoming = others.map(incoming).collect::<Result<Vec<_>>>()?;
        self.finish(&mut outgoing, &mut incoming, false)
    }

    /// Each rank combines one part of the memory of all and writes the result to all. Memory of a
    /// pool is shown to all ranks: a rank that can map all of it reads and writes its part in
    /// place. For another one, the ranks send its part as messages, and it sends the result.
    pub(super) fn allreduce(mut self, memory: &List<'_>, reduction: &Reduction) -> Result<()> {
        if memory.len() <= SHORT {
            return self.allreduce_short(memory, reduction);
        }
        let tag = self.tag(CollectiveKind::AllReduce, reduction.code());
        // Kept until all ranks have combined their parts.
        let word = (memory.len() as u64).to_le_bytes();
        let (_lent, mut outgoing) = self.show(tag, memory, &word)?;
        let views = self.see(tag, memory.len(), &mut outgoing)?;
        self.finish(&mut outgoing, &mut [], false)?;
        let is_done = views.is_some_and(|views| self.combine(memory, &views, reduction));
        let failed = self.agree(tag.step(1), is_done)?;
        if failed.is_empty() {
            return Ok(());
        }
        let (length, size) = (memory.len(), self.size);
        let part = |rank| share_of_bytes(length, rank, size);
        self.collect(tag.step(2), memory, &failed, part)?;
        self.give(tag.step(3), &memory.plain(), &failed, part)
    }

    /// Combines over the tree, or by recursive doubling. The order of combining is the same
    /// everywhere.
    fn allreduce_short(&mut self, memory: &List<'_>, reduction: &Reduction) -> Result<()> {
        let tag = self.tag(CollectiveKind::AllReduceShort, reduction.code());
        let length = memory.len();
        let [own] = *memory.parts() else { return Err(Error::NotOnePiece { pieces: memory.parts().len() }) };
        let mut values = vec![0; length];
        // SAFETY: both have that many bytes; other processes may write the caller's memory.
        unsafe { core::ptr::copy(own.base, values.as_mut_ptr(), length) };
        if self.inbox.is_crowded || !self.size.is_power_of_two() {
            self.reduce_on_tree(tag, &mut values, Some(reduction))?;
        } else {
            self.reduce_by_doubling(tag, &mut values, reduction)?;
        }
        // SAFETY: as above.
        unsafe { core::ptr::copy(values.as_ptr(), own.base, length) };
        Ok(())
    }

    /// Combines `values` of a power of two of ranks: in each step, of twice as many.
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

    /// Hands the memory over to all ranks, or begins to send its length if it is not of a pool.
    fn show<'d>(
        &mut self,
        tag: CollectiveTag,
        memory: &List<'d>,
        length: &'d [u8; 8],
    ) -> Result<(Vec<Lent<'d>>, Vec<SendRequest<'d>>)> {
        if memory.memory().is_none() {
            let outgoing = self.start_all(self.others(), tag, |_| Ok(Source::from(length).0))?;
            return Ok((Vec::new(), outgoing));
        }
        let tag = (tag.value(), Context::Collectives);
        let lent = self.others().map(|to| self.inbox.hand_over(to, tag, Source(memory.clone())));
        Ok((lent.collect::<Result<_>>()?, Vec::new()))
    }

    /// Maps what the other ranks show, in the order of ranks; `None` if some of it cannot be
    /// mapped. `outgoing` makes progress meanwhile, since other ranks may wait for it.
    fn see(
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
            let matching = from(Some(rank), tag.any_kind(), Context::Collectives);
            let shown = inbox.wait(Some(rank), limit, "a collective", |inbox| {
                serve(inbox)?;
                match (inbox.attempt_shown(&matching)?, ended_by(inbox, rank)) {
                    (None, Some(error)) => {
                        inbox.drain();
                        inbox.attempt_shown(&matching)?.map(Some).ok_or(error)
                    }
                    (shown, _) => Ok(shown),
                }
            })?;
            let (is, theirs) = match &shown {
                Shown::View(view) => (view.tag(), view.len() as u64),
                Shown::Unopened { tag, length } => (*tag, *length as u64),
                Shown::Copy { tag: is } if *is == tag.value() => {
                    let mut word = [0; 8];
                    let mut incoming = Incoming::new(rank, tag, Destination::from(&mut word));
                    inbox.wait(Some(rank), limit, "a collective", |inbox| {
                        serve(inbox)?;
                        Ok(incoming.poll(inbox)?.then_some(()))
                    })?;
                    (*is, u64::from_le_bytes(word))
                }
                Shown::Copy { tag } => (*tag, 0),
            };
            if is != tag.value() {
                return Err(Error::Mismatch { rank, what: OTHER_CALL });
            }
            if theirs != length as u64 {
                return Err(Error::Mismatch { rank, what: OTHER_LENGTH });
            }
            match shown {
                Shown::View(view) => views.push(view),
                _ => is_whole = false,
            }
        }
        Ok(is_whole.then_some(views))
    }

    /// Combines this rank's part of the memory of all and writes it to all. Returns `false` if that
    /// cannot be: then nothing was written.
    fn combine(&self, memory: &List<'_>, views: &[View], reduction: &Reduction) -> bool {
        let [own] = *memory.parts() else { return false };
        let part = share_of_bytes(memory.len(), self.own_rank, self.size);
        // The brackets last as long as this function.
        let Ok(_mine) = memory.touch(Access::ReadWrite) else { return false };
        let brackets: Result<Vec<_>> = views.iter().map(|view| view.cpu_access(Access::ReadWrite)).collect();
        let slices: Result<Vec<_>> = views.iter().map(View::slice).collect();
        let (Ok(_brackets), Ok(slices)) = (brackets, slices) else { return false };
        let theirs: Vec<*mut u8> = slices.iter().map(|slice| slice.as_mut_ptr()).collect();
        let Some((last, others)) = theirs.split_last() else { return true };
        let block = if others.is_empty() { part.len().max(1) } else { BLOCK };
        for start in part.clone().step_by(block) {
            let length = block.min(part.end - start);
            let at = |base: &*mut u8| base.wrapping_add(start);
            let mine = at(&own.base);
            // SAFETY: all have `memory.len()` bytes, as `see` has checked; the views are open; only
            // this rank uses this part of any of them.
            unsafe {
                others.iter().for_each(|other| reduction.combine(mine, at(other), length));
                reduction.combine_both(mine, at(last), length);
                others.iter().for_each(|other| core::ptr::copy(mine, at(other), length));
            }
        }
        true
    }

    /// Exchanges whether each rank has combined its part. Returns the ranks that have not.
    fn agree(&mut self, tag: CollectiveTag, is_done: bool) -> Result<Vec<usize>> {
        let mine = [u8::from(is_done)];
        let mut flags = vec![0_u8; self.size];
        flags[self.own_rank] = mine[0];
        let mut outgoing = self.start_all(self.others(), tag, |_| Ok(Source::from(&mine).0))?;
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
            for part in [share, share_of_bytes] {
                let mut end = 0;
                for rank in 0..size {
                    let range = part(bytes, rank, size);
                    prop_assert!(range.start == end && range.end >= end);
                    prop_assert!(range.len() <= bytes / size + 2 * LINE);
                    end = range.end;
                }
                prop_assert_eq!(end, bytes);
            }
        }
    }
}
