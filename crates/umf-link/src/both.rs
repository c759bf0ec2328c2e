//! The engine `both`: receiver and sender copy one contiguous message at the same time, the
//! receiver from the front ([`FrontCopy`]), the sender from the back ([`BackCopy`]). Each claims a
//! chunk before it copies it: [`protocol::claim_front`], [`protocol::claim_back`].

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::Access;
use umf_ipc::Mapping;
use umf_sync::failpoint;

use crate::buffer::{Buffer, Cursor, Segment};
use crate::channel::Channel;
use crate::handles::{self, Announced};
use crate::inbox::Inbox;
use crate::kernel_copy::{self, Direction, Iov};
use crate::layout;
use crate::memory::Memory;
use crate::offer::{self, COPY_BACK, Offer};
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
    /// If possible. Otherwise one process copies.
    May,
    /// The settings require it. Otherwise the receive fails.
    Must,
}

/// The sender's memory, as the receiver can read it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RemoteSource<'m> {
    /// A mapping of the sender's memory, and the message in it.
    Mapped(&'m Mapping<'static>, Segment),
    /// An address in the sender, for kernel copies.
    Address(Iov),
}

/// Returns the bytes of a chunk: enough that a claim costs little, and few enough that both
/// processes end at about the same time. The number of chunks fits the word of claims.
fn chunk_size(length: usize) -> usize {
    let least = length.div_ceil(MAX_CHUNKS as usize);
    (length / 32).clamp(16 << 10, 256 << 10).max(least).next_multiple_of(LEAST_CHUNK)
}

/// Returns the exported memory that contains the buffer, if other processes may write it.
fn writable_memory<'l>(into: &'l Buffer<'_>) -> Option<&'l Memory<'l>> {
    into.memory().filter(|memory| !memory.handle().is_read_only())
}

/// Returns the reason why one process has to copy a message, if there is a reason.
pub(crate) fn obstacle(offer: &Offer, into: &Buffer<'_>, limit: Option<Limit>) -> Option<&'static str> {
    let Some(limit) = limit else {
        return Some(
            "the memory of a posted receive is written by its own process only: receive the message by a call that waits",
        );
    };
    if into.segments_for(offer.length) > 1 || offer.ranges.as_slice().len() != 1 {
        return Some("lists are copied by one side");
    }
    if writable_memory(into).is_some() {
        return None;
    }
    // The peer may write private memory only during the call, so the call must last until the
    // sender is done.
    if !limit.is_none() {
        return Some(
            "memory that is no pool's (Memory), or that is exported for reading only, is written by the peer only during \
             calls without a timeout",
        );
    }
    (!offer.by_address).then_some("the peer's settings do not offer its memory")
}

/// The memory into which the sender copies: announced memory, or the address of private memory.
#[derive(Clone, Copy, Debug)]
struct SharedDestination {
    announced: Option<Announced>,
    /// An offset in the announced memory, or an address.
    place: u64,
}

impl Inbox {
    /// Fetches a message together with its sender, if `mode` permits. Returns `None` if one process
    /// should copy it.
    pub(crate) fn fetch_both(
        &mut self,
        index: usize,
        (id, offer): (u64, &Offer),
        receiving: &Receiving<'_>,
        source: RemoteSource<'_>,
        mode: BothMode,
    ) -> Result<Option<FetchOutcome>> {
        if matches!(mode, BothMode::No) {
            return Ok(None);
        }
        let decline = |why: &str| match mode {
            BothMode::Must => Err(impossible(Engine::Both, why)),
            BothMode::No | BothMode::May => Ok(None),
        };
        let into = &receiving.into.0;
        let (&[segment], Some(limit)) = (into.segments(), receiving.limit) else {
            return decline("the memory that receives it is in several pieces");
        };
        let Some(destination) = self.share_destination(into, segment)? else {
            return decline("too many blocks are announced to peers at the moment");
        };
        let peer = self.peer(index);
        let (epoch, channel) = (peer.next_epoch(), Arc::clone(&peer.channel));
        let front = FrontCopy::begin(channel, offer, epoch, destination);
        // The handle stays announced while the sender may open it.
        destination.announced.iter().for_each(|announced| self.handles.pin(*announced));
        let copied =
            front.run(source, into).and_then(|claimed| self.await_sender(index, &front, claimed, limit));
        if !matches!(copied, Ok(true)) {
            self.end_attempt(index, &front, limit);
        }
        destination.announced.iter().for_each(|announced| self.handles.unpin(*announced));
        match copied {
            Ok(true) => Ok(Some(self.end(index, id, offer, Engine::Both))),
            Ok(false) if front.is_withdrawn() => {
                self.withdrawn(index, id);
                Ok(Some(FetchOutcome::WithdrawnLate))
            }
            Ok(false) => decline("the peer cannot write to this memory"),
            Err(error) => Err(error),
        }
    }

    /// Announces the memory of a receive to its sender, if the memory is of a pool. Returns `None`
    /// if the handle table is full.
    fn share_destination(
        &mut self,
        into: &Buffer<'_>,
        segment: Segment,
    ) -> Result<Option<SharedDestination>> {
        let address = segment.iov().address;
        let Some(memory) = writable_memory(into) else {
            return Ok(Some(SharedDestination { announced: None, place: address }));
        };
        let Some(announced) = self.handles.announce(&self.shared, memory)? else { return Ok(None) };
        let place = address - memory.base().expose_provenance() as u64;
        Ok(Some(SharedDestination { announced: Some(announced), place }))
    }

    /// Waits until the sender has copied the chunks that it claimed. Returns `false` if the sender
    /// could not copy them, or has withdrawn the message.
    fn await_sender(
        &mut self,
        index: usize,
        front: &FrontCopy<'_>,
        claimed: u64,
        mut limit: Limit,
    ) -> Result<bool> {
        if claimed == 0 {
            return Ok(true);
        }
        if claimed > front.chunks() {
            return Err(front.channel.misbehaved("it claims more of a message than there is"));
        }
        self.wait(Some(index), &mut limit, "the peer's part of a message", |_| {
            Ok(match front.copied_by_sender() {
                FAILED => Some(false),
                copied if copied >= claimed => Some(true),
                _ => front.is_withdrawn().then_some(false),
            })
        })
    }

    /// Ends an attempt: the sender claims no more chunks. In a call without a timeout, also waits
    /// until the sender has copied the chunks that it had claimed. After a call with a timeout, the
    /// sender may still write memory of a pool.
    fn end_attempt(&mut self, index: usize, front: &FrontCopy<'_>, limit: Limit) {
        let FrontCopy { channel, offer, epoch, .. } = front;
        channel.own_lane.word(layout::request(offer.index)).store(0, Ordering::Relaxed);
        let claims = channel.own_lane.word(layout::front(offer.index));
        claims.store(protocol::all_claimed(*epoch), Ordering::Relaxed);
        <AtomicU64 as Word>::fence();
        let claimed =
            protocol::claimed(&channel.peer_lane.word(layout::back(offer.index)), *epoch).unwrap_or(0);
        if !limit.is_none() || claimed == 0 {
            return;
        }
        // An error means that the peer is gone and copies nothing.
        let _ = self.wait(Some(index), &mut Limit::new(None), "the peer's part of a message", |_| {
            Ok((front.copied_by_sender() >= claimed).then_some(()))
        });
    }
}

/// The receiver's part of a message that both processes copy.
struct FrontCopy<'o> {
    channel: Arc<Channel>,
    offer: &'o Offer,
    /// The number of the attempt. Words of the sender with another number are ignored.
    epoch: u16,
    /// Bytes of a chunk.
    chunk: usize,
}

impl<'o> FrontCopy<'o> {
    /// Asks the sender to copy the message from the back.
    fn begin(channel: Arc<Channel>, offer: &'o Offer, epoch: u16, destination: SharedDestination) -> Self {
        let chunk = chunk_size(offer.length);
        let lane = &channel.own_lane;
        lane.word(layout::front(offer.index)).store(protocol::claims(epoch, 0), Ordering::Relaxed);
        let announced = destination.announced.map_or(0, Announced::to_word);
        for (number, value) in [announced, destination.place, chunk as u64].into_iter().enumerate() {
            lane.word(layout::argument(offer.index, number)).store(value, Ordering::Relaxed);
        }
        let request = offer::request(offer.number, COPY_BACK, epoch);
        lane.word(layout::request(offer.index)).store(request, Ordering::Release);
        failpoint!("link.push_asked");
        channel.notify();
        Self { channel, offer, epoch, chunk }
    }

    /// Returns the number of chunks of the message.
    const fn chunks(&self) -> u64 {
        self.offer.length.div_ceil(self.chunk) as u64
    }

    /// Claims and copies chunks from the front until all are claimed. Returns the number of chunks
    /// that the sender has claimed.
    fn run(&self, source: RemoteSource<'_>, into: &Buffer<'_>) -> Result<u64> {
        let Self { channel, offer, epoch, chunk } = self;
        let front = channel.own_lane.word(layout::front(offer.index));
        let back = channel.peer_lane.word(layout::back(offer.index));
        let mut claimed = 0;
        loop {
            match protocol::claim_front(front, &back, *epoch, self.chunks(), claimed) {
                Ok(number) => {
                    let start = number as usize * chunk;
                    // One access for each chunk, so that devices see the bytes of the sender, too.
                    let _guard = into.begin_access(Access::ReadWrite)?;
                    copy_in(channel, source, into, start, (*chunk).min(offer.length - start))?;
                    claimed += 1;
                    failpoint!("link.pulled");
                }
                Err(claimed_by_sender) => return Ok(claimed_by_sender),
            }
        }
    }

    /// Returns the number of chunks that the sender has copied in this attempt, or [`FAILED`].
    fn copied_by_sender(&self) -> u64 {
        let word = self.channel.peer_lane.word(layout::progress(self.offer.index));
        let progress = word.load(Ordering::Acquire);
        if (progress >> 48) as u16 == self.epoch { progress & FAILED } else { 0 }
    }

    fn is_withdrawn(&self) -> bool {
        self.channel.is_withdrawn(self.offer.index, self.offer.number)
    }
}

fn copy_in(
    channel: &Channel,
    source: RemoteSource<'_>,
    into: &Buffer<'_>,
    start: usize,
    length: usize,
) -> Result<()> {
    let mut to = into.cursor_at(start);
    match source {
        RemoteSource::Mapped(mapping, segment) => {
            let _guard = mapping.cpu_access(Access::ReadOnly).map_err(|error| channel.not_opened(error))?;
            // SAFETY: `segment` lies in the mapping and `into` in the caller's memory. Both have
            // the whole message, of which `start` and `length` are a chunk.
            unsafe { to.copy_in(segment.base.wrapping_add(start), length) };
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

/// The sender's part of a message that both processes copy.
#[derive(Debug)]
pub(crate) struct BackCopy {
    chunk: usize,
    /// `None` if the sender cannot write the memory, so that the receiver copies all chunks.
    to: Option<WriteTarget>,
}

/// The receiver's memory, as the sender can write it.
#[derive(Debug)]
enum WriteTarget {
    /// An offset in a mapping of the receiver's memory.
    Mapped(Mapping<'static>, usize),
    /// An address in the receiver, for kernel copies.
    Address(Iov),
}

impl BackCopy {
    /// Reads and checks the description of the destination that the receiver of offer `index`
    /// wrote.
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
                .then_some(WriteTarget::Address(Iov { address: place, length: length as u64 })),
        };
        Self { chunk, to }
    }

    /// Claims and copies chunks from the back. `count` chunks of this attempt were copied before.
    pub(crate) fn run(
        &self,
        channel: &Channel,
        index: usize,
        epoch: u16,
        count: &mut u64,
        buffer: &Buffer<'_>,
        statistics: &mut LinkStatistics,
    ) {
        let (Some(to), &[segment]) = (&self.to, buffer.segments()) else { return };
        let back = channel.own_lane.word(layout::back(index));
        let front = channel.peer_lane.word(layout::front(index));
        let done = channel.own_lane.word(layout::progress(index));
        let chunks = segment.length.div_ceil(self.chunk) as u64;
        let before = *count;
        loop {
            match protocol::claim_back(back, &front, epoch, chunks, *count) {
                ChunkClaim::Chunk(chunk) => {
                    let start = chunk as usize * self.chunk;
                    let length = self.chunk.min(segment.length - start);
                    let guard = buffer.begin_access(Access::ReadOnly);
                    if guard.is_err() || !copy_out(channel, buffer, to, start, length) {
                        // A claim cannot be undone. The receiver copies the whole message again.
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

fn open_target(channel: &Channel, announced: Announced, offset: usize, length: usize) -> Option<WriteTarget> {
    let handle = handles::read(channel, announced)?;
    let mapping = channel.shared.importer?.open_bytes(handle.as_bytes(), Access::ReadWrite).ok()?;
    let fits = offset + length <= mapping.len();
    (fits && mapping.is_host_accessible()).then_some(WriteTarget::Mapped(mapping, offset))
}

/// Copies into the receiver's memory. Returns whether that worked.
fn copy_out(channel: &Channel, buffer: &Buffer<'_>, to: &WriteTarget, start: usize, length: usize) -> bool {
    let mut from = Cursor::at(buffer.segments(), start);
    match to {
        WriteTarget::Mapped(mapping, offset) => {
            let (Some(base), Ok(guard)) = (mapping.address().as_ptr(), mapping.cpu_access(Access::ReadWrite))
            else {
                return false;
            };
            // SAFETY: `open_target` has checked that the whole message fits; the mapping is
            // writable and alive. `from` is the caller's memory.
            unsafe { from.copy_out(base.wrapping_add(offset + start), length) };
            guard.end().is_ok()
        }
        WriteTarget::Address(range) => {
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
