//! Messages that go through bounce buffers, chunk by chunk: the sender fills while this side empties.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::Access;
use umf_sync::failpoint;

use super::incoming::{Incoming, LATE, Receiving};
use super::pull::Pulled;
use crate::layout::{self, CHUNK, CHUNKS};
use crate::offer::{self, BOUNCE, Offer};
use crate::protocol::Load;
use crate::queue::Body;
use crate::shared::Shared;
use crate::{Engine, Result};

/// A message on its way through the buffers. Only one is, at a time: a receive that is dropped gives up.
#[derive(Debug)]
pub(crate) struct Bouncing {
    id: u64,
    offer: Offer,
    epoch: u16,
    /// Chunks that were emptied.
    count: u64,
    given_up: Arc<AtomicU64>,
}

impl Drop for Bouncing {
    fn drop(&mut self) {
        self.given_up.store(self.id, Ordering::Relaxed);
    }
}

impl Incoming {
    /// Whether no other receive uses the buffers.
    pub(super) fn may_bounce(&mut self) -> bool {
        if let Some(id) = self.bouncing
            && self.given_up.load(Ordering::Relaxed) == id
        {
            self.queue.set_busy(id, false);
            self.bouncing = None;
        }
        self.bouncing.is_none()
    }

    /// Asks the sender to fill the buffers.
    pub(super) fn begin_bounce(&mut self, shared: &Shared, id: u64) -> Option<Bouncing> {
        let Body::Offered(offer) = &self.queue.get(id)?.body else { return None };
        let (offer, epoch) = (offer.clone(), self.next_epoch());
        shared.mine.word(layout::argument(offer.index, 0)).store(0, Ordering::Relaxed);
        let request = shared.mine.word(layout::request(offer.index));
        request.store(offer::request(offer.number, BOUNCE, epoch), Ordering::Release);
        failpoint!("link.bounce_asked");
        shared.notify();
        self.queue.set_busy(id, true);
        self.bouncing = Some(id);
        // Ids are not used twice, so that this one was not given up yet; but an attempt before it may have been.
        self.given_up.store(0, Ordering::Relaxed);
        Some(Bouncing { id, offer, epoch, count: 0, given_up: Arc::clone(&self.given_up) })
    }

    /// Empties what is filled; `None` if there is more to come.
    pub(super) fn bounce(
        &mut self,
        shared: &Shared,
        receiving: &mut Receiving<'_>,
    ) -> Result<Option<Pulled>> {
        let Some(bouncing) = &mut receiving.bouncing else { return Ok(None) };
        let offer = &bouncing.offer;
        let all = offer.length.div_ceil(CHUNK) as u64;
        let progress = shared.theirs.word(layout::progress(offer.index)).load(Ordering::Acquire);
        let filled = if (progress >> 48) as u16 == bouncing.epoch { progress & ((1 << 48) - 1) } else { 0 };
        if filled > all || filled > bouncing.count + CHUNKS {
            return Err(shared.misbehaved("it says to have filled buffers that were not empty"));
        }
        // Of memory that is not touched nobody is told.
        let time =
            if bouncing.count < filled { receiving.into.0.touch(Access::ReadWrite)? } else { Vec::new() };
        while bouncing.count < filled {
            let start = bouncing.count as usize * CHUNK;
            let length = CHUNK.min(offer.length - start);
            shared.populate_theirs((layout::chunk(bouncing.count), length))?;
            let from = shared.theirs.bytes(layout::chunk(bouncing.count), length);
            let mut to = receiving.into.0.cursor_at(start);
            // SAFETY: a chunk that is filled, and the caller's memory, which has all of the message's length.
            unsafe { to.copy_in(from, length) };
            bouncing.count += 1;
            shared.mine.word(layout::argument(offer.index, 0)).store(bouncing.count, Ordering::Release);
            failpoint!("link.emptied");
            shared.notify();
        }
        drop(time);
        let is_whole = bouncing.count == all;
        if !is_whole && !shared.is_withdrawn(offer.index, offer.number) {
            return Ok(None);
        }
        let Some(bouncing) = receiving.bouncing.take() else { return Ok(None) };
        self.bouncing = None;
        let pulled = if is_whole {
            self.end(shared, bouncing.id, &bouncing.offer, Engine::Bounce)
        } else {
            self.queue.remove(bouncing.id);
            self.statistics.withdrawn += 1;
            if bouncing.count == 0 { Pulled::Withdrawn } else { Pulled::Late }
        };
        match pulled {
            Pulled::Late if receiving.into.0.reduction().is_some() => Err(LATE),
            pulled => Ok(Some(pulled)),
        }
    }
}
