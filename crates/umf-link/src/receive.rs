//! Receiving: a message is copied out of a ring or the tag queue, or fetched from the sender's
//! memory by the fastest possible engine.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::Access;
use umf_ipc::Mapping;

use crate::both::{self, BothMode, RemoteSource};
use crate::bounce::BounceReceive;
use crate::buffer::{Buffer, Cursor, Destination, Segment};
use crate::channel::{Channel, InboxShared};
use crate::handles::Announced;
use crate::inbox::Inbox;
use crate::kernel_copy::{self, Direction, Iov, subranges};
use crate::layout;
use crate::offer::{Offer, SourceRanges};
use crate::queue::{Body, Matching, Ticket};
use crate::wait::Limit;
use crate::{Engine, Error, Result};

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The rank of its sender; 0 on a link.
    pub from: usize,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes.
    pub length: usize,
    /// The engine that carried it.
    pub engine: Engine,
}

/// A message that can be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probed {
    /// The rank of its sender; 0 on a link.
    pub from: usize,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes.
    pub length: usize,
    /// Whether it was handed over, so that it can be received as a view.
    pub is_viewable: bool,
}

/// A receive that was posted by [`crate::Link::start_recv`]. Its memory is written only during
/// calls to which this request is passed. Dropping the request cancels the receive, and its message
/// is assigned to another one.
#[derive(Debug)]
pub struct RecvRequest<'d> {
    shared: Arc<InboxShared>,
    pub(crate) receiving: Receiving<'d>,
    pub(crate) received: Option<Received>,
}

impl<'d> RecvRequest<'d> {
    pub(crate) fn new(inbox: &mut Inbox, matching: Matching, into: Destination<'d>) -> Self {
        let mut receiving = Receiving::new(matching, into, None);
        // Messages of dropped receives are free again before this one is posted, so that the order
        // of matching is kept.
        inbox.remove_dropped_requests();
        receiving.posted = Some(inbox.queue.post(matching));
        Self { shared: Arc::clone(&inbox.shared), receiving, received: None }
    }

    /// Returns the message, if it was received.
    #[must_use]
    pub const fn received(&self) -> Option<Received> {
        self.received
    }

    pub(crate) fn check(&self, inbox: &Inbox) -> Result<()> {
        if !inbox.shared.is_own_process() {
            return Err(Error::Forked);
        }
        if Arc::ptr_eq(&self.shared, &inbox.shared) { Ok(()) } else { Err(Error::WrongLink) }
    }
}

/// A receive in progress.
#[derive(Debug)]
pub(crate) struct Receiving<'d> {
    pub matching: Matching,
    pub into: Destination<'d>,
    /// The limit of the call, if the caller waits. Without one, the sender may not write into the
    /// memory.
    pub limit: Option<Limit>,
    pub bouncing: Option<BounceReceive>,
    pub posted: Option<Ticket>,
    /// Whether it belongs to a collective, where `engine = both` is a preference.
    pub is_collective: bool,
}

impl<'d> Receiving<'d> {
    #[inline]
    pub(crate) const fn new(matching: Matching, into: Destination<'d>, limit: Option<Limit>) -> Self {
        Self { matching, into, limit, bouncing: None, posted: None, is_collective: false }
    }
}

/// The result of fetching a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchOutcome {
    Received(Received),
    /// Its sender withdrew it before any byte was written.
    Withdrawn,
    /// Its sender withdrew it while it was copied.
    WithdrawnLate,
    /// It has to be fetched by `bounce`.
    Bounce,
}

/// The error of a receive that combined a part of a message that the sender then withdrew.
pub(crate) const WITHDRAWN_WHILE_COMBINED: Error = Error::PartlyCombined { why: "its sender withdrew it" };

pub(crate) fn impossible(engine: Engine, why: impl Into<String>) -> Error {
    Error::EngineImpossible { engine, why: why.into() }
}

/// Separates errors: an outer one ends the receive, after an inner one another engine is tried.
fn separate_final_errors(outcome: Result<FetchOutcome>) -> Result<Result<FetchOutcome>> {
    match outcome {
        Err(error)
            if error.is_final()
                || matches!(
                    error,
                    Error::TimedOut { .. } | Error::Interrupted | Error::PartlyCombined { .. }
                ) =>
        {
            Err(error)
        }
        Err(error) => {
            tracing::debug!(%error, "memory of a peer cannot be reached");
            Ok(Err(error))
        }
        done => Ok(done),
    }
}

impl Inbox {
    /// Receives a message of the queue. If its sender is gone, a receive from any peer discards the
    /// message and continues with other ones. The end of that peer is reported separately.
    pub(crate) fn take_or_discard(
        &mut self,
        id: u64,
        receiving: &mut Receiving<'_>,
    ) -> Result<Option<FetchOutcome>> {
        match self.take(id, receiving) {
            Err(error) if error.is_final() && receiving.matching.peer.is_none() => {
                self.discard(id, error);
                Ok(Some(FetchOutcome::Withdrawn))
            }
            taken => taken,
        }
    }

    /// Removes a message whose sender is gone or broke the protocol.
    pub(crate) fn discard(&mut self, id: u64, error: Error) {
        let Some(message) = self.queue.remove(id) else { return };
        tracing::debug!(%error, tag = message.envelope.tag, "a message is lost");
        if let (Some(peer), Error::Misbehaved { .. }) = (&mut self.peers[message.peer], &error) {
            peer.set_read_error(error);
        }
    }

    /// Receives a message of the queue. Returns `None` while it is in progress.
    pub(crate) fn take(&mut self, id: u64, receiving: &mut Receiving<'_>) -> Result<Option<FetchOutcome>> {
        let Some(message) = self.queue.get(id) else { return Ok(Some(FetchOutcome::Withdrawn)) };
        let (index, tag, length) = (message.peer, message.envelope.tag, message.body.len());
        let (into, capacity) = (&receiving.into.0, receiving.into.len());
        if length > capacity {
            return Err(Error::Truncated { length, capacity });
        }
        if let Some(reduction) = into.reduction().filter(|_| !into.holds_whole_elements(length)) {
            return Err(Error::PartialElement { length, size: reduction.element().size() });
        }
        let engine = match &message.body {
            Body::Data(bytes) => {
                let guard = into.begin_access(Access::ReadWrite)?;
                // SAFETY: `into` borrows the caller's memory, whose capacity was checked to be
                // `length` or more.
                unsafe { into.cursor().copy_in(bytes.as_ptr(), length) };
                drop(guard);
                Engine::Inline
            }
            &Body::Block(block) => {
                let (mapping, offset) = self.open(index, Some(block.announced), block.offset)?;
                let channel = Arc::clone(&self.peer(index).channel);
                let segment = segment_in(&mapping, offset, length).ok_or(out_of_bounds(&channel))?;
                copy_mapped(&channel, &mapping, &[segment], into)?;
                channel.return_block(block.index);
                Engine::Mapped
            }
            Body::Offered(offer) => {
                let offer = (**offer).clone();
                return match self.fetch(index, id, &offer, receiving)? {
                    FetchOutcome::Bounce if self.peer(index).bouncing.is_some() => Ok(None),
                    FetchOutcome::Bounce => {
                        receiving.bouncing = Some(self.begin_bounce(index, id, offer)?);
                        Ok(Some(FetchOutcome::Bounce))
                    }
                    FetchOutcome::WithdrawnLate if receiving.into.0.reduction().is_some() => {
                        Err(WITHDRAWN_WHILE_COMBINED)
                    }
                    done => Ok(Some(done)),
                };
            }
        };
        self.queue.remove(id);
        // The peer may have ended after its data had arrived.
        if let Some(peer) = &mut self.peers[index] {
            peer.statistics.add_received(engine, length);
        }
        Ok(Some(FetchOutcome::Received(Received { from: index, tag, length, engine })))
    }

    /// Fetches a message that fits the memory of a receive.
    fn fetch(
        &mut self,
        index: usize,
        id: u64,
        offer: &Offer,
        receiving: &Receiving<'_>,
    ) -> Result<FetchOutcome> {
        let channel = Arc::clone(&self.peer(index).channel);
        channel.populate_peer(layout::offer_line(offer.index))?;
        if channel.is_withdrawn(offer.index, offer.number) {
            return Ok(self.withdrawn(index, id));
        }
        channel.populate(layout::accept_line(offer.index))?;
        let own_engine = self.shared.settings.engine.filter(|_| offer.length > self.inline_max);
        let forced = match (own_engine, offer.engine) {
            (Some(own), Some(peer)) if own != peer => {
                return Err(impossible(own, format!("the peer is set to {peer}")));
            }
            (own, peer) => own.or(peer),
        };
        let both = self.wants_both(offer, receiving, forced)?;
        let may_map = matches!(forced, None | Some(Engine::Mapped | Engine::Both));
        let may_read = matches!(forced, None | Some(Engine::Cma | Engine::Both));
        let mut last_error = None;
        if may_map && offer.announced.is_some() {
            match separate_final_errors(self.fetch_mapped(index, id, offer, receiving, both))? {
                Ok(done) => return Ok(done),
                Err(error) => {
                    self.peer(index).statistics.refused_mapped += 1;
                    last_error = Some(error);
                }
            }
        }
        let is_faster = channel.engines.prefers_cma(offer.length, offer.ranges.as_slice().len());
        // A sender that does not wait fills bounce buffers only in its next call.
        let is_best = forced.is_some() || is_faster || !offer.awaited || !matches!(both, BothMode::No);
        let is_described = offer.by_address && offer.ranges != SourceRanges::None;
        if may_read && is_best && is_described && channel.kernel_copies.load(Ordering::Relaxed) {
            match separate_final_errors(self.fetch_kernel(index, id, offer, receiving, both))? {
                Ok(done) => return Ok(done),
                Err(error) => {
                    self.peer(index).statistics.refused_cma += 1;
                    last_error = Some(error);
                }
            }
        }
        match forced {
            None | Some(Engine::Bounce) => Ok(FetchOutcome::Bounce),
            Some(engine) => Err(not_possible(&channel, engine, offer, last_error)),
        }
    }

    /// Returns whether receiver and sender copy the message together.
    fn wants_both(
        &self,
        offer: &Offer,
        receiving: &Receiving<'_>,
        forced: Option<Engine>,
    ) -> Result<BothMode> {
        // A sender cannot combine.
        if receiving.into.0.reduction().is_some() {
            return Ok(BothMode::No);
        }
        let is_long = offer.length >= self.shared.settings.both_min;
        match (forced, both::obstacle(offer, &receiving.into.0, receiving.limit)) {
            (Some(Engine::Both), None) if !receiving.is_collective => Ok(BothMode::Must),
            (Some(Engine::Both), None) => Ok(BothMode::May),
            (Some(Engine::Both), Some(why)) if !receiving.is_collective => Err(impossible(Engine::Both, why)),
            (None, None) if is_long => Ok(BothMode::May),
            _ => Ok(BothMode::No),
        }
    }

    /// Opens memory that a peer has announced. Returns the mapping, and `offset` as `usize`.
    #[inline]
    pub(crate) fn open(
        &mut self,
        index: usize,
        announced: Option<Announced>,
        offset: u64,
    ) -> Result<(Mapping<'static>, usize)> {
        let why = |why: &str| impossible(Engine::Mapped, why);
        let known = announced.zip(self.shared.importer);
        let (announced, importer) = known.ok_or_else(|| why("this process's link has no importer"))?;
        let peer = self.peer(index);
        let handle = peer.handles.get(&peer.channel, announced);
        let handle = handle.ok_or_else(|| why("the peer names a handle that it has not announced"))?;
        let access = if handle.is_read_only() { Access::ReadOnly } else { Access::ReadWrite };
        let opened = importer.open_bytes(handle.as_bytes(), access);
        let mapping = opened.map_err(|error| peer.channel.not_opened(error))?;
        if !mapping.is_host_accessible() {
            return Err(why("the memory is on a device"));
        }
        Ok((mapping, usize::try_from(offset).unwrap_or(usize::MAX)))
    }

    fn fetch_mapped(
        &mut self,
        index: usize,
        id: u64,
        offer: &Offer,
        receiving: &Receiving<'_>,
        both: BothMode,
    ) -> Result<FetchOutcome> {
        let into = &receiving.into.0;
        let (mapping, offset) = self.open(index, offer.announced, offer.offset)?;
        let channel = Arc::clone(&self.peer(index).channel);
        let segments = segments_in(&mapping, offset, offer).ok_or(out_of_bounds(&channel))?;
        if let &[segment] = &segments[..]
            && let Some(done) =
                self.fetch_both(index, (id, offer), receiving, RemoteSource::Mapped(&mapping, segment), both)?
        {
            return Ok(done);
        }
        let is_whole = |segment: &Segment| into.holds_whole_elements(segment.length);
        if into.reduction().is_some() && !segments.iter().all(is_whole) {
            // Other engines copy a divided number into contiguous memory first.
            let why = "the list that is sent has numbers that lie in two of its entries";
            return Err(impossible(Engine::Mapped, why));
        }
        copy_mapped(&channel, &mapping, &segments, into)?;
        drop(mapping);
        Ok(self.end(index, id, offer, Engine::Mapped))
    }

    fn fetch_kernel(
        &mut self,
        index: usize,
        id: u64,
        offer: &Offer,
        receiving: &Receiving<'_>,
        both: BothMode,
    ) -> Result<FetchOutcome> {
        let into = &receiving.into.0;
        if let &[range] = offer.ranges.as_slice()
            && let Some(done) =
                self.fetch_both(index, (id, offer), receiving, RemoteSource::Address(range), both)?
        {
            return Ok(done);
        }
        let channel = Arc::clone(&self.peer(index).channel);
        if into.reduction().is_some() {
            self.combine_kernel(&channel, offer, into)?;
            return Ok(self.end(index, id, offer, Engine::Cma));
        }
        let local = Cursor::new(into.segments()).ranges(offer.length);
        let guard = into.begin_access(Access::ReadWrite)?;
        // SAFETY: `local` lies in the caller's memory, which `into` borrows. The kernel checks
        // remote addresses.
        let copied = unsafe { kernel_copy::read_with_gaps(channel.pid, &local, offer.ranges.as_slice()) };
        drop(guard);
        copied.map_err(|errno| channel.refused(errno, "process_vm_readv"))?;
        Ok(self.end(index, id, offer, Engine::Cma))
    }

    /// Reads the sender's numbers into a buffer that stays in the cache, and combines them from it.
    fn combine_kernel(&mut self, channel: &Channel, offer: &Offer, into: &Buffer<'_>) -> Result<()> {
        /// Large enough that calls cost little, and small enough for a second-level cache.
        const STAGE: usize = 128 << 10;
        self.stage.resize(STAGE.min(offer.length.max(self.stage.len())), 0);
        let _guard = into.begin_access(Access::ReadWrite)?;
        let mut to = into.cursor();
        let mut at = 0;
        while at < offer.length {
            let length = self.stage.len().min(offer.length - at);
            let local = [Segment { base: self.stage.as_mut_ptr(), length }.iov()];
            let remote = subranges(offer.ranges.as_slice(), at as u64, length as u64);
            // SAFETY: `local` is in the stage, which has `length` bytes. The kernel checks remote
            // addresses.
            if let Err(errno) = unsafe { kernel_copy::copy(channel.pid, Direction::Read, &local, &remote) } {
                return Err(match channel.refused(errno, "process_vm_readv") {
                    // No number was combined, so another engine can be tried.
                    error if at == 0 || error.is_final() => error,
                    _ => Error::PartlyCombined { why: "the memory of its sender cannot be read any more" },
                });
            }
            // SAFETY: `into` has the length of the whole message or more. The stage has `length`
            // bytes, a multiple of the element size.
            unsafe { to.copy_in(self.stage.as_ptr(), length) };
            at += length;
        }
        Ok(())
    }

    /// Completes a message that was copied. It counts as received unless the sender withdrew it
    /// first.
    pub(crate) fn end(&mut self, index: usize, id: u64, offer: &Offer, engine: Engine) -> FetchOutcome {
        // First, because the sender waits for it.
        let is_taken = self.peer(index).channel.take(offer.index, offer.number);
        let tag = self.queue.remove(id).map_or(0, |message| message.envelope.tag);
        let statistics = &mut self.peer(index).statistics;
        if !is_taken {
            statistics.withdrawn += 1;
            return FetchOutcome::WithdrawnLate;
        }
        statistics.add_received(engine, offer.length);
        FetchOutcome::Received(Received { from: index, tag, length: offer.length, engine })
    }

    /// Removes a message that its sender has withdrawn.
    pub(crate) fn withdrawn(&mut self, index: usize, id: u64) -> FetchOutcome {
        self.queue.remove(id);
        self.peer(index).statistics.withdrawn += 1;
        FetchOutcome::Withdrawn
    }

    /// Returns a message of the queue as a probe reports it.
    pub(crate) fn probed(&self, id: u64) -> Option<Probed> {
        let message = self.queue.get(id)?;
        let is_viewable = matches!(message.body, Body::Block(_));
        let (from, tag, length) = (message.peer, message.envelope.tag, message.body.len());
        Some(Probed { from, tag, length, is_viewable })
    }
}

fn out_of_bounds(channel: &Channel) -> Error {
    channel.misbehaved("a message reaches past the end of its memory")
}

/// Copies or combines segments of a mapping of the peer's memory.
fn copy_mapped(
    channel: &Channel,
    mapping: &Mapping<'static>,
    segments: &[Segment],
    into: &Buffer<'_>,
) -> Result<()> {
    let source_guard = mapping.cpu_access(Access::ReadOnly).map_err(|error| channel.not_opened(error))?;
    let destination_guard = into.begin_access(Access::ReadWrite)?;
    let mut to = into.cursor();
    for segment in segments {
        // SAFETY: `segments` lie in the mapping, and `into` has their total length or more.
        unsafe { to.copy_in(segment.base, segment.length) };
    }
    drop((source_guard, destination_guard));
    Ok(())
}

/// Returns a range of a mapping; `None` if it is not in the mapping.
fn segment_in(mapping: &Mapping<'static>, offset: usize, length: usize) -> Option<Segment> {
    let base = mapping.address().as_ptr()?;
    let fits = offset.checked_add(length).is_some_and(|end| end <= mapping.len());
    fits.then(|| Segment { base: base.wrapping_add(offset), length })
}

/// Returns the segments of a message in a mapping; `None` if one is not in the mapping.
fn segments_in(mapping: &Mapping<'static>, offset: usize, offer: &Offer) -> Option<Vec<Segment>> {
    let SourceRanges::Many(many) = &offer.ranges else {
        return segment_in(mapping, offset, offer.length).map(|segment| vec![segment]);
    };
    let first = many.first()?.address;
    let segment = |range: &Iov| {
        let at = (offset as u64).wrapping_add(range.address.wrapping_sub(first));
        segment_in(mapping, usize::try_from(at).ok()?, usize::try_from(range.length).ok()?)
    };
    many.iter().map(segment).collect()
}

#[cold]
fn not_possible(channel: &Channel, engine: Engine, offer: &Offer, last_error: Option<Error>) -> Error {
    let why = match last_error {
        Some(Error::EngineImpossible { why, .. }) => why,
        Some(error) => error.to_string(),
        None if engine == Engine::Inline => "the message is longer than a ring takes".to_owned(),
        None if engine == Engine::Mapped => {
            "it is not sent from memory of an exportable pool (Memory)".to_owned()
        }
        None => match channel.engines.cma() {
            Err(why) => why.to_owned(),
            Ok(_) if !offer.by_address => "the peer's settings do not offer its memory".to_owned(),
            Ok(_) if offer.ranges == SourceRanges::None => "the list has more than 1024 entries".to_owned(),
            Ok(_) => "the kernel has refused it before".to_owned(),
        },
    };
    impossible(engine, why)
}
