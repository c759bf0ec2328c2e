//! Both sides copy one message: the receiver from the front, the sender from the back.

use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::Access;
use umf_ipc::Mapping;
use umf_sync::failpoint;

use super::incoming::Incoming;
use super::pull::{Pulled, is_withdrawn};
use crate::board::Told;
use crate::gaps;
use crate::layout::{self, MOST_RANGES, RECEIVING};
use crate::memory::Memory;
use crate::offer::{self, Offer, PUSH};
use crate::parts::{Cursor, List, Part};
use crate::protocol::{self, Load, MOST_CHUNKS, Word};
use crate::ranges::part_of;
use crate::sender::FAILED;
use crate::shared::Shared;
use crate::sys::Iov;
use crate::wait::{Limit, wait};
use crate::{Engine, Result};

/// Where this side copies from.
#[derive(Clone, Copy, Debug)]
pub(super) enum From<'m> {
    /// A mapping of the sender's memory, and where the message is in it.
    Mapped(&'m Mapping<'static>, &'m [Part]),
    /// The sender.
    Address(&'m [Iov]),
}

impl From<'_> {
    const fn pieces(self) -> usize {
        match self {
            Self::Mapped(_, parts) => parts.len(),
            Self::Address(ranges) => ranges.len(),
        }
    }
}

/// What the sender is shown of the memory that is received into.
struct Shown {
    told: Option<Told>,
    /// Places in told memory, or addresses: as long as the message.
    ranges: Vec<Iov>,
}

/// Lists with pieces of this size take as long as one piece does.
const LARGE_PIECE: usize = 16 << 10;

/// How much is claimed at a time: enough that claiming costs nothing, and so little that both end at about the same time. Of long
/// messages more, so that the word of claims can count them.
fn chunk_size(length: usize) -> usize {
    let least = length.div_ceil(MOST_CHUNKS as usize);
    (length / 32).clamp(16 << 10, 256 << 10).max(least).next_multiple_of(4096)
}

impl Incoming {
    /// Why both sides cannot copy this message; whoever wants to knows before anything was tried.
    pub(super) fn obstacle(
        shared: &Shared,
        offer: &Offer,
        into: &List<'_>,
        blocking: Option<Limit>,
    ) -> Option<&'static str> {
        if shared.settings.enforce {
            // It would be shown where to write, and could write beside it.
            return Some(
                "link.enforce (UMF_LINK_ENFORCE) is set, so that the peer is not shown where to write",
            );
        }
        let Some(limit) = blocking else {
            return Some(
                "a receive that was begun and is not waited for (start_recv, finish, exchange) has its memory written by nobody \
                 else: receive it by a call that waits",
            );
        };
        if into.pieces(offer.length) > MOST_RANGES {
            return Some("the message is received into more than 1024 entries of a list");
        }
        if open_to_writers(into).is_some() {
            return None;
        }
        // Private memory is shown only as long as this call lasts, which is until the sender is done.
        if !limit.is_none() {
            return Some(
                "memory that is no pool's (Memory), or that is exported for reading only, is written by the peer only during \
                 calls without a timeout",
            );
        }
        (!offer.by_address).then_some("the peer's settings keep its memory from being read")
    }

    fn show(&mut self, shared: &Shared, length: usize, into: &List<'_>) -> Result<Option<Shown>> {
        let mut ranges = into.cursor().ranges(length);
        let told = match open_to_writers(into) {
            Some(memory) => {
                let base = memory.base().expose_provenance() as u64;
                ranges.iter_mut().for_each(|range| range.address -= base);
                let Some(told) = self.board.tell(shared, memory)? else { return Ok(None) };
                Some(told)
            }
            None => None,
        };
        Ok(Some(Shown { told, ranges }))
    }

    /// Whether both sides would be faster than one, as far as the pieces are concerned.
    pub(super) fn is_for_both(offer: &Offer, into: &List<'_>, from: From<'_>) -> bool {
        let pieces = from.pieces().max(into.pieces(offer.length));
        pieces == 1 || offer.length / pieces >= LARGE_PIECE
    }

    /// Fetches a message. The inner error is why that cannot be: then nothing was received yet. There is no [`Incoming::obstacle`].
    pub(super) fn by_both(
        &mut self,
        shared: &Shared,
        (id, offer): (u64, &Offer),
        into: &List<'_>,
        from: From<'_>,
        mut limit: Limit,
    ) -> Result<Result<Pulled, &'static str>> {
        let Some(Shown { told, ranges }) = self.show(shared, offer.length, into)? else {
            return Ok(Err("too many blocks of pools are told to the peer just now"));
        };
        let epoch = self.next_epoch();
        let chunk = chunk_size(offer.length);
        let chunks = offer.length.div_ceil(chunk) as u64;
        let (front, back) =
            (shared.mine.word(layout::front(offer.index)), shared.theirs.word(layout::back(offer.index)));
        front.store(protocol::claims(epoch, 0), Ordering::Relaxed);
        let (place, count) = match ranges[..] {
            [one] => (one.address, 0),
            _ => (0, ranges.len() as u64),
        };
        if count > 0 {
            shared.populate(RECEIVING)?;
        }
        // A sender that still looks at the list of a message before this one finds nothing left of that to claim.
        for (index, range) in ranges.iter().enumerate().take(count as usize) {
            let at = layout::into_range(index);
            shared.mine.word(at).store(range.address, Ordering::Relaxed);
            shared.mine.word(at + 8).store(range.length, Ordering::Relaxed);
        }
        let arguments = [told.map_or(0, Told::to_word), place, chunk as u64, count];
        for (number, value) in arguments.into_iter().enumerate() {
            shared.mine.word(layout::argument(offer.index, number)).store(value, Ordering::Relaxed);
        }
        let request = shared.mine.word(layout::request(offer.index));
        request.store(offer::request(offer.number, PUSH, epoch), Ordering::Release);
        failpoint!("link.push_asked");
        shared.notify();
        let mut mine = 0;
        let others = loop {
            match protocol::claim_front(front, &back, epoch, chunks, mine) {
                Ok(number) => {
                    let start = number as usize * chunk;
                    let length = chunk.min(offer.length - start);
                    // Told that it is touched for each: nobody else does anything then.
                    let time = into.touch(Access::ReadWrite);
                    if let Err(error) = time.and_then(|_time| copy(shared, from, into, start, length)) {
                        self.close(shared, offer, epoch, limit);
                        return Err(error);
                    }
                    mine += 1;
                    failpoint!("link.pulled");
                }
                Err(others) if others > chunks => {
                    return Err(shared.misbehaved("it claims more of a message than there is"));
                }
                Err(others) => break others,
            }
        };
        let done = shared.theirs.word(layout::progress(offer.index));
        let waited = if others == 0 {
            Ok(true)
        } else {
            wait(shared, &mut self.pulse, &mut limit, "the peer's part of a message", |_| {
                let done = copied(done.load(Ordering::Acquire), epoch);
                let is_over = done == FAILED || is_withdrawn(shared, offer);
                Ok(if done >= others && done != FAILED { Some(true) } else { is_over.then_some(false) })
            })
        };
        match waited {
            Ok(true) => Ok(Ok(self.end(shared, id, offer, Engine::Both))),
            Ok(false) => {
                self.close(shared, offer, epoch, limit);
                if is_withdrawn(shared, offer) {
                    self.queue.remove(id);
                    self.statistics.withdrawn += 1;
                    return Ok(Ok(Pulled::Late));
                }
                Ok(Err("the peer cannot write to this memory"))
            }
            Err(error) => {
                self.close(shared, offer, epoch, limit);
                Err(error)
            }
        }
    }

    /// Nobody claims anything of this attempt any more, and what the sender has claimed it has copied; but for memory of a
    /// pool in a call with a timeout, which it may write after that.
    fn close(&mut self, shared: &Shared, offer: &Offer, epoch: u16, limit: Limit) {
        shared.mine.word(layout::request(offer.index)).store(0, Ordering::Relaxed);
        shared.mine.word(layout::front(offer.index)).store(protocol::all_claimed(epoch), Ordering::Relaxed);
        <AtomicU64 as Word>::fence();
        let claimed = protocol::claimed(&shared.theirs.word(layout::back(offer.index)), epoch).unwrap_or(0);
        if !limit.is_none() || claimed == 0 {
            return;
        }
        let done = shared.theirs.word(layout::progress(offer.index));
        // If that fails, nobody is there who would copy.
        let _ = wait(shared, &mut self.pulse, &mut Limit::new(None), "the peer's part of a message", |_| {
            Ok((copied(done.load(Ordering::Acquire), epoch) >= claimed).then_some(()))
        });
    }
}

/// How many chunks the sender says to have copied, or [`FAILED`].
const fn copied(progress: u64, epoch: u16) -> u64 {
    if (progress >> 48) as u16 == epoch { progress & FAILED } else { 0 }
}

/// The memory of a pool that all of a list lies in, if others may write it.
fn open_to_writers<'l>(into: &'l List<'_>) -> Option<&'l Memory<'l>> {
    into.memory().filter(|memory| !memory.handle().is_read_only())
}

fn copy(shared: &Shared, from: From<'_>, into: &List<'_>, start: usize, length: usize) -> Result<()> {
    let mut to = into.cursor_at(start);
    match from {
        From::Mapped(mapping, parts) => {
            let _time = mapping.cpu_access(Access::ReadOnly).map_err(|error| shared.not_opened(error))?;
            let mut from = Cursor::at(parts, start);
            let mut left = length;
            while left > 0
                && let Some(piece) = from.piece(left)
            {
                // SAFETY: a part of the mapping, and the caller's memory, which both have all of the message.
                unsafe { to.copy_in(piece.base, piece.length) };
                left -= piece.length;
            }
            Ok(())
        }
        From::Address(ranges) => {
            let (local, remote) = (to.ranges(length), part_of(ranges, start as u64, length as u64));
            // SAFETY: the caller's memory; the pid is that of the peer, which was there a moment ago.
            unsafe { gaps::read(shared.pid, &local, &remote) }
                .map_err(|errno| shared.refused(errno, "process_vm_readv"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_any_message_can_be_counted() {
        for length in [1, 4096, 1 << 20, 1 << 30, (1 << 42) - 1, 1 << 42, (1 << 42) + 1, 1 << 47, usize::MAX]
        {
            let chunk = chunk_size(length);
            assert!(chunk >= 16 << 10 && chunk.is_multiple_of(4096), "{length}");
            assert!(length.div_ceil(chunk) as u64 <= MOST_CHUNKS, "{length}");
        }
        assert_eq!(chunk_size(1 << 41), 256 << 10, "no larger than need be");
    }
}
