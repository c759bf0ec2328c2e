//! The engine `bounce`: the sender copies a message into the bounce area of its lane, chunk by
//! chunk, while the receiver copies chunks out.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::Access;
use umf_sync::failpoint;

use crate::buffer::{Buffer, Cursor};
use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::layout::{self, CHUNK, CHUNKS};
use crate::offer::{self, BOUNCE, Offer};
use crate::protocol::Load;
use crate::queue::{DroppedRequest, DroppedRequests};
use crate::receive::{FetchOutcome, Receiving, WITHDRAWN_WHILE_COMBINED};
use crate::{Engine, LinkStatistics, Result};

/// A message that is being received through the bounce area of its sender's lane, one at a time for
/// each peer. Dropping it makes the message available to other receives.
#[derive(Debug)]
pub(crate) struct BounceReceive {
    peer: usize,
    id: u64,
    offer: Offer,
    epoch: u16,
    /// The number of chunks that were emptied.
    count: u64,
    dropped: Arc<DroppedRequests>,
}

impl Drop for BounceReceive {
    fn drop(&mut self) {
        self.dropped.put(DroppedRequest::Bounce(self.id));
    }
}

impl Inbox {
    /// Asks the sender of a message to fill its bounce area.
    pub(crate) fn begin_bounce(&mut self, index: usize, id: u64, offer: Offer) -> Result<BounceReceive> {
        let dropped = Arc::clone(&self.queue.dropped);
        let peer = self.peer(index);
        let (epoch, channel) = (peer.next_epoch(), Arc::clone(&peer.channel));
        peer.bouncing = Some(id);
        channel.own_lane.word(layout::emptied(offer.index)).store(0, Ordering::Relaxed);
        let request = channel.own_lane.word(layout::request(offer.index));
        request.store(offer::request(offer.number, BOUNCE, epoch), Ordering::Release);
        failpoint!("link.bounce_asked");
        channel.notify();
        self.queue.set_busy(id);
        Ok(BounceReceive { peer: index, id, offer, epoch, count: 0, dropped })
    }

    /// Copies out the chunks that are filled. Returns `None` while chunks are missing.
    pub(crate) fn bounce(&mut self, receiving: &mut Receiving<'_>) -> Result<Option<FetchOutcome>> {
        let Some(bouncing) = &mut receiving.bouncing else { return Ok(None) };
        let (index, offer) = (bouncing.peer, &bouncing.offer);
        let channel = match self.channel(index) {
            Some(channel) if self.queue.get(bouncing.id).is_some() => Arc::clone(channel),
            // The peer was removed meanwhile.
            _ => {
                receiving.bouncing = None;
                return Ok(Some(FetchOutcome::Withdrawn));
            }
        };
        let all = offer.length.div_ceil(CHUNK) as u64;
        let progress = channel.peer_lane.word(layout::progress(offer.index)).load(Ordering::Acquire);
        let filled = if (progress >> 48) as u16 == bouncing.epoch { progress & ((1 << 48) - 1) } else { 0 };
        if filled > all || filled > bouncing.count + CHUNKS {
            return Err(channel.misbehaved("it claims to have filled buffers that were not empty"));
        }
        if bouncing.count < filled {
            let guard = receiving.into.0.begin_access(Access::ReadWrite)?;
            while bouncing.count < filled {
                let start = bouncing.count as usize * CHUNK;
                let length = CHUNK.min(offer.length - start);
                channel.populate_peer((layout::chunk(bouncing.count), length))?;
                let from = channel.peer_lane.bytes(layout::chunk(bouncing.count), length);
                // SAFETY: the chunk is populated and has `length` bytes; `into` has the length of
                // the whole message or more.
                unsafe { receiving.into.0.cursor_at(start).copy_in(from, length) };
                bouncing.count += 1;
                channel.own_lane.word(layout::emptied(offer.index)).store(bouncing.count, Ordering::Release);
                failpoint!("link.emptied");
                channel.notify();
            }
            drop(guard);
        }
        let is_whole = bouncing.count == all;
        let is_withdrawn = !is_whole && channel.is_withdrawn(offer.index, offer.number);
        // If the sender is gone, a receive from any peer continues with other messages.
        let end = match receiving.matching.peer {
            None if !is_whole && !is_withdrawn => self.peer(index).check().err(),
            _ => None,
        };
        if !is_whole && !is_withdrawn && end.is_none() {
            return Ok(None);
        }
        let Some(bouncing) = receiving.bouncing.take() else { return Ok(None) };
        self.peer(index).bouncing = None;
        let outcome = if is_whole {
            self.end(index, bouncing.id, &bouncing.offer, Engine::Bounce)
        } else if let Some(end) = end {
            self.discard(bouncing.id, end);
            if bouncing.count == 0 { FetchOutcome::Withdrawn } else { FetchOutcome::WithdrawnLate }
        } else {
            let withdrawn = self.withdrawn(index, bouncing.id);
            if bouncing.count == 0 { withdrawn } else { FetchOutcome::WithdrawnLate }
        };
        match outcome {
            FetchOutcome::WithdrawnLate if receiving.into.0.reduction().is_some() => {
                Err(WITHDRAWN_WHILE_COMBINED)
            }
            outcome => Ok(Some(outcome)),
        }
    }
}

/// Copies chunks of a message into the free part of the bounce area. `count` chunks of this attempt
/// were filled before.
pub(crate) fn fill(
    channel: &Channel,
    index: usize,
    epoch: u16,
    count: &mut u64,
    buffer: &Buffer<'_>,
    statistics: &mut LinkStatistics,
) -> Result<()> {
    let all = buffer.len().div_ceil(CHUNK) as u64;
    // Acquire: the receiver reads a chunk before it is overwritten.
    let emptied = channel.peer_lane.word(layout::emptied(index)).load(Ordering::Acquire);
    if emptied > *count {
        return Err(channel.misbehaved("it claims to have emptied buffers that were not filled"));
    }
    if *count == all || *count == emptied + CHUNKS {
        return Ok(());
    }
    let guard = buffer.begin_access(Access::ReadOnly)?;
    let done: &AtomicU64 = channel.own_lane.word(layout::progress(index));
    while *count < all && *count < emptied + CHUNKS {
        let start = *count as usize * CHUNK;
        let length = CHUNK.min(buffer.len() - start);
        channel.populate((layout::chunk(*count), length))?;
        let to = channel.own_lane.bytes(layout::chunk(*count), length);
        // SAFETY: `buffer` borrows the caller's memory. The chunk has `length` bytes, and the
        // receiver has emptied it.
        unsafe { Cursor::at(buffer.segments(), start).copy_out(to.as_ptr(), length) };
        *count += 1;
        done.store(offer::progress(epoch, *count), Ordering::Release);
        failpoint!("link.filled");
        statistics.bounced.add(length);
        channel.notify();
    }
    drop(guard);
    Ok(())
}
