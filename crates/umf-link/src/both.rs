//! The engine `both`: receiver and sender copy one contiguous message, the receiver from the front,
//! the sender from the back.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::Access;
use umf_ipc::Mapping;
use umf_sync::failpoint;

use crate::channel::Channel;
use crate::handles::{self, Announced};
use crate::inbox::Inbox;
use crate::kernel_copy::{self, Direction, Iov};
use crate::layout;
use crate::memory::Memory;
use crate::offer::{self, COPY_BACK, Offer};
use crate::parts::{Cursor, List, Part};
use crate::protocol::{self, ChunkClaim, Load, MAX_CHUNKS, Word};
use crate::receive::{FetchOutcome, Receiving, impossible};
use crate::wait::Limit;
use crate::{Engine, LinkStatistics, Result};

/// The progress of a sender that could not copy a chunk that it had claimed.
const FAILED: u64 = (1 << 48) - 1;
/// The smallest chunk size that a receiver requests.
const LEAST_CHUNK: usize = 4096;

/// Whether both processes copy a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BothMode {
    No,
    /// If possible.
    May,
    /// The settings ask for it.
    Must,
}

/// The sender's memory, as the receiver reaches it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RemoteSource<'m> {
    /// A mapping of the sender's memory, and where the message is in it.
    Mapped(&'m Mapping<'static>, Part),
    /// Memory of the sender.
    Address(Iov),
}

/// Returns the bytes of a chunk: large enough that a claim costs little, small enough that both
/// processes end at about the same time. The word of claims can count the chunks of any message.
fn chunk_size(length: usize) -> usize {
    let least = length.div_ceil(MAX_CHUNKS as usize);
    (length / 32).clamp(16 << 10, 256 << 10).max(least).next_multiple_of(LEAST_CHUNK)
}

/// Returns the exported memory that contains the list, if other processes may write it.
fn writable_memory<'l>(into: &'l List<'_>) -> Option<&'l Memory<'l>> {
    into.memory().filter(|memory| !memory.handle().is_read_only())
}

/// Returns the reason why both processes cannot copy a message, if there is one.
pub(crate) fn obstacle(offer: &Offer, into: &List<'_>, limit: Option<Limit>) -> Option<&'static str> {
    let Some(limit) = limit else {
        return Some(
            "a receive that was posted and is not waited for has its memory written by its own process alone: receive it \
             by a call that waits",
        );
    };
    if into.pieces(offer.length) > 1 || offer.ranges.as_slice().len() != 1 {
        return Some("lists are copied by one side");
    }
    if writable_memory(into).is_some() {
        return None;
    }
    // The peer sees private memory for as long as the call lasts, which is until the sender is
    // done.
    if !limit.is_none() {
        return Some(
            "memory that is no pool's (Memory), or that is exported for reading only, is written by the peer only during \
             calls without a timeout",
        );
    }
    (!offer.by_address).then_some("the peer's settings do not offer its memory")
}

impl Inbox {
    /// Fetches a message together with its sender, if `both` asks for it. Returns `None` if one
    /// process is to copy it.
    pub(crate) fn fetch_both(
        &mut self,
        index: usize,
        (id, offer): (u64, &Offer),
        receiving: &Receiving<'_>,
        from: RemoteSource<'_>,
        both: BothMode,
    ) -> Result<Option<FetchOutcome>> {
        let into = &receiving.into.0;
        let must = match both {
            BothMode::No => return Ok(None),
            BothMode::May => false,
            BothMode::Must => true,
        };
        let refused = |why: &str| if must { Err(impossible(Engine::Both, why)) } else { Ok(None) };
        let (&[part], Some(limit)) = (into.parts(), receiving.limit) else {
            return refused("the memory that receives it is in several pieces");
        };
        let mut place = part.iov().address;
        let mut announced = None;
        if let Some(memory) = writable_memory(into) {
            let Some(entry) = self.handles.announce(&self.shared, memory)? else {
                return refused("too many blocks are announced to peers at the moment");
            };
            place -= memory.base().expose_provenance() as u64;
            announced = Some(entry);
        }
        let peer = self.peer(index);
        let (epoch, channel) = (peer.next_epoch(), Arc::clone(&peer.channel));
        let chunk = chunk_size(offer.length);
        let chunks = offer.length.div_ceil(chunk) as u64;
        let front = channel.own_lane.word(layout::front(offer.index));
        let back = channel.peer_lane.word(layout::back(offer.index));
        front.store(protocol::claims(epoch, 0), Ordering::Relaxed);
        let arguments = [announced.map_or(0, Announced::to_word), place, chunk as u64];
        for (number, value) in arguments.into_iter().enumerate() {
            channel.own_lane.word(layout::argument(offer.index, number)).store(value, Ordering::Relaxed);
        }
        let request = channel.own_lane.word(layout::request(offer.index));
        request.store(offer::request(offer.number, COPY_BACK, epoch), Ordering::Release);
        failpoint!("link.push_asked");
        channel.notify();
        // The entry stays while the sender may open it.
        announced.iter().for_each(|entry| self.handles.pin(*entry));
        let copied = claim_and_copy(&channel, from, into, (epoch, chunk, offer.length), front, &back);
        let done = channel.peer_lane.word(layout::progress(offer.index));
        let waited = copied.and_then(|others| match others {
            0 => Ok(true),
            _ if others > chunks => Err(channel.misbehaved("it claims more of a message than there is")),
            others => self.wait(Some(index), &mut { limit }, "the peer's part of a message", |_| {
                let done = copied_by_peer(done.load(Ordering::Acquire), epoch);
                let is_over = done == FAILED || channel.is_withdrawn(offer.index, offer.number);
                Ok(if done >= others && done != FAILED { Some(true) } else { is_over.then_some(false) })
            }),
        });
        if !matches!(waited, Ok(true)) {
            self.close_attempt(index, &channel, offer, epoch, limit);
        }
        announced.iter().for_each(|entry| self.handles.unpin(*entry));
        match waited {
            Ok(true) => Ok(Some(self.end(index, id, offer, Engine::Both))),
            Ok(false) if channel.is_withdrawn(offer.index, offer.number) => {
                self.withdrawn(index, id);
                Ok(Some(FetchOutcome::WithdrawnLate))
            }
            Ok(false) => refused("the peer cannot write to this memory"),
            Err(error) => Err(error),
        }
    }

    /// Ends an attempt. The sender claims no more chunks, and has copied those that it had claimed.
    /// After a call with a timeout it may still write memory of a pool.
    fn close_attempt(&mut self, index: usize, channel: &Channel, offer: &Offer, epoch: u16, limit: Limit) {
        channel.own_lane.word(layout::request(offer.index)).store(0, Ordering::Relaxed);
        let front = channel.own_lane.word(layout::front(offer.index));
        front.store(protocol::all_claimed(epoch), Ordering::Relaxed);
        <AtomicU64 as Word>::fence();
        let claimed =
            protocol::claimed(&channel.peer_lane.word(layout::back(offer.index)), epoch).unwrap_or(0);
        if !limit.is_none() || claimed == 0 {
            return;
        }
        let done = channel.peer_lane.word(layout::progress(offer.index));
        // An error means that the peer is gone and copies nothing.
        let _ = self.wait(Some(index), &mut Limit::new(None), "the peer's part of a message", |_| {
            Ok((copied_by_peer(done.load(Ordering::Acquire), epoch) >= claimed).then_some(()))
        });
    }
}

/// Claims and copies chunks from the front until all are claimed. Returns the number that the
/// sender has claimed.
fn claim_and_copy(
    channel: &Channel,
    from: RemoteSource<'_>,
    into: &List<'_>,
    (epoch, chunk, length): (u16, usize, usize),
    front: &AtomicU64,
    back: &impl Load,
) -> Result<u64> {
    let chunks = length.div_ceil(chunk) as u64;
    let mut mine = 0;
    loop {
        match protocol::claim_front(front, back, epoch, chunks, mine) {
            Ok(number) => {
                let start = number as usize * chunk;
                // Bracketed for each chunk: the devices see what the CPU has written.
                let _time = into.touch(Access::ReadWrite)?;
                copy_in(channel, from, into, start, chunk.min(length - start))?;
                mine += 1;
                failpoint!("link.pulled");
            }
            Err(others) => return Ok(others),
        }
    }
}

/// Returns how many chunks the sender claims to have copied, or [`FAILED`].
const fn copied_by_peer(progress: u64, epoch: u16) -> u64 {
    if (progress >> 48) as u16 == epoch { progress & FAILED } else { 0 }
}

fn copy_in(
    channel: &Channel,
    from: RemoteSource<'_>,
    into: &List<'_>,
    start: usize,
    length: usize,
) -> Result<()> {
    let mut to = into.cursor_at(start);
    match from {
        RemoteSource::Mapped(mapping, part) => {
            let _time = mapping.cpu_access(Access::ReadOnly).map_err(|error| channel.not_opened(error))?;
            // SAFETY: `part` lies in the mapping and `into` in the caller's memory. Both have the
            // whole message, of which `start` and `length` are a chunk.
            unsafe { to.copy_in(part.base.wrapping_add(start), length) };
            Ok(())
        }
        RemoteSource::Address(range) => {
            let remote = [Iov { address: range.address + start as u64, length: length as u64 }];
            // SAFETY: the caller's memory; the pid is that of the peer, whose socket is open.
            unsafe { kernel_copy::copy(channel.pid, Direction::Read, &to.ranges(length), &remote) }
                .map_err(|errno| channel.refused(errno, "process_vm_readv"))
        }
    }
}

/// The sender's part of a message that both copy.
#[derive(Debug)]
pub(crate) struct BackCopy {
    chunk: usize,
    /// `None` if the receiver is to copy all of it.
    to: Option<Target>,
}

#[derive(Debug)]
enum Target {
    /// An offset in a mapping of the receiver's memory.
    Mapped(Mapping<'static>, usize),
    /// Memory of the receiver.
    Address(Iov),
}

impl BackCopy {
    /// Reads and checks the description of its memory that the receiver of offer `index` wrote.
    pub(crate) fn new(
        channel: &Channel,
        index: usize,
        length: usize,
        statistics: &mut LinkStatistics,
    ) -> Self {
        let argument =
            |number| channel.peer_lane.word(layout::argument(index, number)).load(Ordering::Relaxed);
        let (announced, place) = (Announced::from_word(argument(0)), argument(1));
        let chunk = usize::try_from(argument(2)).unwrap_or(0).max(LEAST_CHUNK);
        let is_possible = length.div_ceil(chunk) as u64 <= MAX_CHUNKS
            && place.checked_add(length as u64).is_some_and(|end| usize::try_from(end).is_ok());
        let to = match announced {
            _ if !is_possible => None,
            Some(announced) => {
                let to = open_target(channel, announced, place as usize, length);
                statistics.refused_mapped += u64::from(to.is_none());
                to
            }
            None => channel
                .kernel_copies
                .load(Ordering::Relaxed)
                .then_some(Target::Address(Iov { address: place, length: length as u64 })),
        };
        Self { chunk, to }
    }

    /// Claims and copies chunks from the back. `count` were copied before in this attempt.
    pub(crate) fn run(
        &self,
        channel: &Channel,
        index: usize,
        epoch: u16,
        count: &mut u64,
        list: &List<'_>,
        statistics: &mut LinkStatistics,
    ) {
        let (Some(to), &[part]) = (&self.to, list.parts()) else { return };
        let back = channel.own_lane.word(layout::back(index));
        let front = channel.peer_lane.word(layout::front(index));
        let done = channel.own_lane.word(layout::progress(index));
        let chunks = part.length.div_ceil(self.chunk) as u64;
        let before = *count;
        loop {
            match protocol::claim_back(back, &front, epoch, chunks, *count) {
                ChunkClaim::Chunk(chunk) => {
                    let start = chunk as usize * self.chunk;
                    let length = self.chunk.min(part.length - start);
                    // Bracketed for each chunk, as the receiver does.
                    let time = list.touch(Access::ReadOnly);
                    if time.is_err() || !copy_out(channel, list, to, start, length) {
                        // A claim cannot be undone. The receiver copies the message again by
                        // itself.
                        done.store(offer::progress(epoch, FAILED), Ordering::Release);
                        channel.kernel_copies.store(false, Ordering::Relaxed);
                        statistics.refused_cma += 1;
                        channel.notify();
                        return;
                    }
                    statistics.pushed.add(length);
                }
                ChunkClaim::Lost => {}
                ChunkClaim::None => break,
            }
            *count += 1;
            done.store(offer::progress(epoch, *count), Ordering::Release);
            failpoint!("link.pushed");
        }
        if *count != before {
            channel.notify();
        }
    }
}

fn open_target(channel: &Channel, announced: Announced, offset: usize, length: usize) -> Option<Target> {
    let handle = handles::read(channel, announced)?;
    let mapping = channel.shared.importer?.open_bytes(handle.as_bytes(), Access::ReadWrite).ok()?;
    let fits = offset + length <= mapping.len();
    (fits && mapping.is_host_accessible()).then_some(Target::Mapped(mapping, offset))
}

/// Copies into the receiver's memory. Returns whether that worked.
fn copy_out(channel: &Channel, list: &List<'_>, to: &Target, start: usize, length: usize) -> bool {
    let mut from = Cursor::at(list.parts(), start);
    match to {
        Target::Mapped(mapping, offset) => {
            let (Some(base), Ok(time)) = (mapping.address().as_ptr(), mapping.cpu_access(Access::ReadWrite))
            else {
                return false;
            };
            // SAFETY: `open_target` has checked that the whole message fits; the mapping can be
            // written and lives. `from` is the caller's memory.
            unsafe { from.copy_out(base.wrapping_add(offset + start), length) };
            time.end().is_ok()
        }
        Target::Address(range) => {
            let remote = [Iov { address: range.address + start as u64, length: length as u64 }];
            // SAFETY: `from` is the caller's memory; the pid is that of the peer, whose socket is
            // open.
            unsafe { kernel_copy::copy(channel.pid, Direction::Write, &from.ranges(length), &remote) }.is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_count_of_any_message_fits() {
        for length in [1, 4096, 1 << 20, 1 << 30, (1 << 42) - 1, 1 << 42, (1 << 42) + 1, 1 << 47, usize::MAX]
        {
            let chunk = chunk_size(length);
            assert!(chunk >= 16 << 10 && chunk.is_multiple_of(4096), "{length}");
            assert!(length.div_ceil(chunk) as u64 <= MAX_CHUNKS, "{length}");
        }
        assert_eq!(chunk_size(1 << 41), 256 << 10, "no larger than needed");
    }
}
