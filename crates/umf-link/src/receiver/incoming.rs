//! What a receiver keeps in mind: how far it is in the ring, and what came before it was asked for.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::Access;
use umf_sync::failpoint;

use super::bounce::Bouncing;
use super::pull::Pulled;
use super::{Probed, Received};
use crate::board::{Board, Known};
use crate::layout::{self, FIRST, FIRST_PAYLOAD, LARGE_RING, NEXT, NEXT_PAYLOAD, Ring};
use crate::offer::{self, GROWN, INLINE, LEND, OFFER, ONE_RANGE, Offer};
use crate::parts::{Destination, List};
use crate::protocol::{self, Load};
use crate::queue::{Body, Queue};
use crate::shared::Shared;
use crate::tag::Context;
use crate::wait::{Limit, Pulse};
use crate::{Engine, Error, LinkStatistics, Result, TagMatch};

/// Of a message that was taken back too late.
pub(super) const LATE: Error = Error::Spoilt { why: "its sender took it back" };

/// A receive that is going on.
#[derive(Debug)]
pub(crate) struct Receiving<'d> {
    wanted: TagMatch,
    pub into: Destination<'d>,
    /// Whether its caller waits for it, and for how long: then the sender may copy into its memory, too.
    pub blocking: Option<Limit>,
    pub bouncing: Option<Bouncing>,
    /// Of a collective: there `engine = both` is no more than a wish.
    pub is_group: bool,
}

impl<'d> Receiving<'d> {
    #[inline]
    pub(crate) const fn new(wanted: TagMatch, into: Destination<'d>, blocking: Option<Limit>) -> Self {
        Self { wanted, into, blocking, bouncing: None, is_group: false }
    }
}

/// A message that fits.
#[derive(Debug)]
pub(crate) enum Found {
    /// It was received.
    Whole(Received),
    /// It is in the queue, under this id.
    Queued(u64),
}

/// The receiving half's own state: no other process can write it.
#[derive(Debug)]
pub(crate) struct Incoming {
    ring: Ring,
    /// The slot that is looked at next.
    next: u64,
    /// What the sender was told to be consumed.
    told: u64,
    pub queue: Queue,
    pub known: Known,
    pub board: Board,
    epoch: u16,
    /// Which message goes through the bounce buffers, and the id of the last one whose receive was given up.
    pub bouncing: Option<u64>,
    pub given_up: Arc<AtomicU64>,
    /// Of waits for the sender's part of a message: that of the caller is just waiting, too.
    pub pulse: Pulse,
    /// Where the kernel copies what is to be combined.
    pub stage: Vec<u8>,
    pub statistics: LinkStatistics,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self {
            ring: Ring::Small,
            next: 0,
            told: 0,
            queue: Queue::default(),
            known: Known::new(),
            board: Board::new(false),
            epoch: 0,
            bouncing: None,
            given_up: Arc::default(),
            pulse: Pulse::default(),
            stage: Vec::new(),
            statistics: LinkStatistics::default(),
        }
    }

    /// Tells attempts apart. Never 0.
    pub(super) fn next_epoch(&mut self) -> u16 {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.epoch
    }

    /// Makes what progress can be made without waiting for a message, or waits as long as [`Receiving::blocking`] says for the
    /// sender to finish what it has begun.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        shared: &Shared,
        receiving: &mut Receiving<'_>,
        asleep: bool,
    ) -> Result<Option<Received>> {
        loop {
            if receiving.bouncing.is_some() {
                match self.bounce(shared, receiving)? {
                    Some(Pulled::Received(received)) => return Ok(Some(received)),
                    Some(_) => continue,
                    None => return Ok(None),
                }
            }
            match self.poll(shared, receiving.wanted, Some(&receiving.into.0), asleep)? {
                Some(Found::Whole(received)) => return Ok(Some(received)),
                None => return Ok(None),
                Some(Found::Queued(id)) => match self.take(shared, id, receiving)? {
                    Some(Pulled::Received(received)) => return Ok(Some(received)),
                    Some(_) => {}
                    None => return Ok(None),
                },
            }
        }
    }

    /// Looks for a message that fits. What comes before it is kept; it is, too, unless it was in the ring and fits `into`.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        shared: &Shared,
        wanted: TagMatch,
        into: Option<&List<'_>>,
        asleep: bool,
    ) -> Result<Option<Found>> {
        if !self.queue.is_empty()
            && let Some(entry) = self.queue.find(wanted)
        {
            return Ok(Some(Found::Queued(entry.id)));
        }
        loop {
            let at = self.ring.slot(self.next);
            let Some(header) = protocol::arrived(&shared.theirs.word(at), self.next) else {
                if asleep && self.told != self.next {
                    self.tell(shared);
                }
                return Ok(None);
            };
            let (length, tag) =
                (usize::from(header.length), shared.theirs.word(at + 8).load(Ordering::Relaxed));
            if length > self.ring.longest() {
                return Err(shared.misbehaved("a message in its ring is longer than any can be"));
            }
            let (kind, context) = offer::kind_of(header.kind);
            if kind == GROWN && self.ring == Ring::Small {
                shared.populate_theirs(LARGE_RING)?;
                self.next += 1;
                self.ring = Ring::Large;
                continue;
            }
            let fits = wanted.takes(tag, context);
            match (kind, into) {
                (INLINE, Some(into)) if fits && into.takes(length) => {
                    let time = into.touch(Access::ReadWrite)?;
                    let mut cursor = into.cursor();
                    // SAFETY: the caller's memory, of at least that length; `read` yields memory of the lane.
                    self.read(shared, length, |from, count| unsafe { cursor.copy_in(from, count) });
                    drop(time);
                    self.statistics.add_received(Engine::Inline, length);
                    return Ok(Some(Found::Whole(Received { tag, length, engine: Engine::Inline })));
                }
                _ => {
                    let id = self.keep(shared, (kind, context), tag, length, fits)?;
                    if fits {
                        return Ok(Some(Found::Queued(id)));
                    }
                }
            }
        }
    }

    /// Tag and words of the message that is next in the ring, if nothing came before it, it fits, and it is memory in one piece that is
    /// handed over. It stays.
    #[inline]
    pub(super) fn next_lent(&self, shared: &Shared, wanted: TagMatch) -> Option<(u64, [u64; ONE_RANGE])> {
        if !self.queue.is_empty() {
            return None;
        }
        let at = self.ring.slot(self.next);
        let header = protocol::arrived(&shared.theirs.word(at), self.next)?;
        let tag = shared.theirs.word(at + 8).load(Ordering::Relaxed);
        let (kind, context) = offer::kind_of(header.kind);
        let is_it = kind == LEND && header.length == 8 * ONE_RANGE as u16 && wanted.takes(tag, context);
        let word = |number| shared.theirs.word(at + FIRST + 8 * number).load(Ordering::Relaxed);
        is_it.then(|| (tag, core::array::from_fn(word)))
    }

    /// Goes on behind that message.
    #[inline]
    pub(super) fn pass(&mut self, shared: &Shared) {
        self.next += 1;
        if self.next - self.told >= self.ring.quarter() {
            self.tell(shared);
        }
    }

    /// Puts the message that is next in the ring into the queue.
    #[cold]
    fn keep(
        &mut self,
        shared: &Shared,
        (kind, context): (u8, Context),
        tag: u64,
        length: usize,
        fits: bool,
    ) -> Result<u64> {
        // What is asked for is looked at, whatever is kept.
        let (held, limit) = (self.queue.weight(), shared.settings.max_unexpected);
        if !fits && held.saturating_add(length as u64) > limit {
            return Err(Error::UnexpectedLimit { held, limit });
        }
        let mut bytes: Vec<u8> = Vec::with_capacity(if kind == INLINE { length } else { 0 });
        // Of most messages the words are few.
        let (mut few, mut many) = ([0_u64; ONE_RANGE], Vec::<u64>::new());
        let is_few = length <= size_of_val(&few);
        let mut to = if kind == INLINE {
            bytes.as_mut_ptr()
        } else if is_few {
            few.as_mut_ptr().cast()
        } else {
            many.reserve(length / 8 + 1);
            many.as_mut_ptr().cast()
        };
        self.read(shared, length, |from, count| {
            // SAFETY: there is room for `length` bytes, and that is what `read` yields together.
            unsafe { core::ptr::copy(from, to, count) };
            to = to.wrapping_add(count);
        });
        let body = match kind {
            INLINE => {
                // SAFETY: written above.
                unsafe { bytes.set_len(length) };
                Body::Kept(bytes.into_boxed_slice())
            }
            OFFER | LEND if length.is_multiple_of(8) => {
                let words = if is_few {
                    &few[..length / 8]
                } else {
                    // SAFETY: written above.
                    unsafe { many.set_len(length / 8) };
                    &many[..]
                };
                let offer =
                    offer::decode(words).ok_or(shared.misbehaved("it offers what there cannot be"))?;
                // It is looked at soon, and its sender has it.
                shared.theirs.fetch_ahead(layout::offered(offer.index));
                Body::Offered(Offer { lent: kind == LEND, ..offer })
            }
            _ => return Err(shared.misbehaved("a message in its ring is of no kind that there is")),
        };
        if !fits {
            self.statistics.unexpected.add(body.len());
        }
        Ok(self.queue.push(tag, context, body))
    }

    /// Copies the message that is next out of the ring, piece by piece, and goes on behind it.
    #[inline]
    fn read(&mut self, shared: &Shared, length: usize, mut copy: impl FnMut(*const u8, usize)) {
        let (lane, ring) = (&shared.theirs, self.ring);
        let count = length.min(FIRST_PAYLOAD);
        copy(lane.bytes(ring.slot(self.next) + FIRST, count), count);
        let mut left = length - count;
        self.next += 1;
        while left > 0 {
            let count = left.min(NEXT_PAYLOAD);
            copy(lane.bytes(ring.slot(self.next) + NEXT, count), count);
            left -= count;
            self.next += 1;
        }
        if self.next - self.told >= self.ring.quarter() {
            self.tell(shared);
        }
    }

    /// Tells the sender what was consumed.
    #[cold]
    fn tell(&mut self, shared: &Shared) {
        shared.mine.word(layout::CONSUMED).store(self.next, Ordering::Release);
        self.told = self.next;
        failpoint!("link.consumed");
        shared.notify();
    }

    /// Receives a message of the queue. `None` if that takes some time.
    fn take(&mut self, shared: &Shared, id: u64, receiving: &mut Receiving<'_>) -> Result<Option<Pulled>> {
        let Some(entry) = self.queue.get(id) else { return Ok(Some(Pulled::Withdrawn)) };
        let (tag, length, capacity) = (entry.tag, entry.body.len(), receiving.into.len());
        if length > capacity {
            return Err(Error::Truncated { length, capacity });
        }
        if let Some(reduction) = receiving.into.0.reduction()
            && !receiving.into.0.is_whole(length)
        {
            return Err(Error::NotWhole { length, size: reduction.element().size() });
        }
        if let Body::Kept(bytes) = &entry.body {
            let time = receiving.into.0.touch(Access::ReadWrite)?;
            let mut cursor = receiving.into.0.cursor();
            // SAFETY: the caller's memory, which has at least that length.
            unsafe { cursor.copy_in(bytes.as_ptr(), length) };
            drop(time);
            self.queue.remove(id);
            self.statistics.add_received(Engine::Inline, length);
            return Ok(Some(Pulled::Received(Received { tag, length, engine: Engine::Inline })));
        }
        match self.pull(shared, id, receiving)? {
            Pulled::Bounce => {
                if !self.may_bounce() {
                    return Ok(None);
                }
                receiving.bouncing = self.begin_bounce(shared, id);
                Ok(Some(Pulled::Bounce))
            }
            Pulled::Late if receiving.into.0.reduction().is_some() => Err(LATE),
            done => Ok(Some(done)),
        }
    }

    /// Ends a message that was copied: it is received, unless its sender took it back meanwhile.
    pub(super) fn end(&mut self, shared: &Shared, id: u64, offer: &Offer, engine: Engine) -> Pulled {
        // First of all: the sender waits for it.
        let is_taken = offer.lent || shared.take(offer.index, offer.number);
        if offer.lent {
            shared.give_back(offer.index);
        }
        let tag = self.queue.remove(id).map_or(0, |entry| entry.tag);
        if !is_taken {
            self.statistics.withdrawn += 1;
            return Pulled::Late;
        }
        self.statistics.add_received(engine, offer.length);
        Pulled::Received(Received { tag, length: offer.length, engine })
    }

    pub(crate) fn probed(&self, id: u64) -> Option<Probed> {
        let entry = self.queue.get(id)?;
        let is_viewable = matches!(&entry.body, Body::Offered(Offer { told: Some(_), .. }));
        Some(Probed { tag: entry.tag, length: entry.body.len(), is_viewable })
    }
}
