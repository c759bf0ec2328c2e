//! Receiving a message: it is copied out of a ring or the tag queue, or fetched from the sender's
//! memory by the engine that is possible and fastest.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::Access;
use umf_ipc::Mapping;

use crate::both::{self, BothMode, RemoteSource};
use crate::bounce::BounceReceive;
use crate::channel::{Channel, InboxShared};
use crate::handles::Announced;
use crate::inbox::Inbox;
use crate::kernel_copy::{self, Direction, Iov, part_of};
use crate::layout;
use crate::offer::{Offer, SourceRanges};
use crate::parts::{Cursor, Destination, List, Part};
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
/// calls that get this request. Dropping it cancels the receive. Its message then goes to another
/// receive.
#[derive(Debug)]
pub struct RecvRequest<'d> {
    shared: Arc<InboxShared>,
    pub(crate) receiving: Receiving<'d>,
    pub(crate) received: Option<Received>,
}

impl<'d> RecvRequest<'d> {
    pub(crate) fn new(inbox: &mut Inbox, matching: Matching, into: Destination<'d>) -> Self {
        let mut receiving = Receiving::new(matching, into, None);
        // Messages of dropped receives go back to the queue first, so that they match in order.
        inbox.remove_abandoned();
        receiving.posted = Some(inbox.queue.post(matching));
        Self { shared: Arc::clone(&inbox.shared), receiving, received: None }
    }

    /// Returns what was received, if it was.
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
    /// The limit of the call, if the caller waits. Only then the sender may write into the memory.
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
    /// Its sender withdrew it before anything was written.
    Withdrawn,
    /// Its sender withdrew it while it was copied.
    WithdrawnLate,
    /// It has to be carried by `bounce`.
    Bounce,
}

/// The error of a receive that combined a part of a message that the sender then withdrew.
pub(crate) const WITHDRAWN_WHILE_COMBINED: Error = Error::PartlyCombined { why: "its sender withdrew it" };

pub(crate) fn impossible(engine: Engine, why: impl Into<String>) -> Error {
    Error::EngineImpossible { engine, why: why.into() }
}

/// Splits errors: after an outer one no other engine is tried; after an inner one the next engine
/// is.
fn or_other_engine(outcome: Result<FetchOutcome>) -> Result<Result<FetchOutcome>> {
    match outcome {
        Err(error)
            if error.is_final() || matches!(error, Error::TimedOut { .. } | Error::PartlyCombined { .. }) =>
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
    /// Receives a message of the queue. If its sender is gone, a receive from any peer discards it
    /// and goes on with other messages. The end of that peer is reported separately.
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
        tracing::debug!(%error, tag = message.tag, "a message is lost");
        if let (Some(peer), Error::Misbehaved { .. }) = (&mut self.peers[message.peer], &error) {
            peer.set_read_error(error);
        }
    }

    /// Receives a message of the queue. Returns `None` while it is in progress.
    fn take(&mut self, id: u64, receiving: &mut Receiving<'_>) -> Result<Option<FetchOutcome>> {
        let Some(message) = self.queue.get(id) else { return Ok(Some(FetchOutcome::Withdrawn)) };
        let (index, tag, length) = (message.peer, message.tag, message.body.len());
        let (into, capacity) = (&receiving.into.0, receiving.into.len());
        if length > capacity {
            return Err(Error::Truncated { length, capacity });
        }
        if let Some(reduction) = into.reduction().filter(|_| !into.is_whole(length)) {
            return Err(Error::PartialElement { length, size: reduction.element().size() });
        }
        let engine = match &message.body {
            Body::Data(bytes) => {
                let time = into.touch(Access::ReadWrite)?;
                // SAFETY: `into` borrows the caller's memory, whose capacity was checked to be
                // `length` or more.
                unsafe { into.cursor().copy_in(bytes.as_ptr(), length) };
                drop(time);
                Engine::Inline
            }
            &Body::Lent(lend) => {
                let (mapping, offset) = self.open(index, Some(lend.announced), lend.offset)?;
                let channel = Arc::clone(&self.peer(index).channel);
                let part = part_in(&mapping, offset, length).ok_or(out_of_bounds(&channel))?;
                copy_mapped(&channel, &mapping, &[part], into)?;
                channel.give_back(lend.index);
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
        self.peer(index).statistics.add_received(engine, length);
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
        let mine = self.shared.settings.engine.filter(|_| offer.length > self.inline_max);
        let forced = match (mine, offer.engine) {
            (Some(mine), Some(theirs)) if mine != theirs => {
                return Err(impossible(mine, format!("the peer is set to {theirs}")));
            }
            (mine, theirs) => mine.or(theirs),
        };
        let both = self.wants_both(offer, receiving, forced)?;
        let may_map = matches!(forced, None | Some(Engine::Mapped | Engine::Both));
        let may_read = matches!(forced, None | Some(Engine::Cma | Engine::Both));
        let mut refusal = None;
        if may_map && offer.announced.is_some() {
            match or_other_engine(self.fetch_mapped(index, id, offer, receiving, both))? {
                Ok(done) => return Ok(done),
                Err(error) => {
                    self.peer(index).statistics.refused_mapped += 1;
                    refusal = Some(error);
                }
            }
        }
        let is_faster = channel.engines.prefers_cma(offer.length, offer.ranges.as_slice().len());
        // A sender that does not wait fills bounce buffers only at its next call.
        let is_best = forced.is_some() || is_faster || !offer.awaited || !matches!(both, BothMode::No);
        let is_described = offer.by_address && offer.ranges != SourceRanges::None;
        if may_read && is_best && is_described && channel.kernel_copies.load(Ordering::Relaxed) {
            match or_other_engine(self.fetch_kernel(index, id, offer, receiving, both))? {
                Ok(done) => return Ok(done),
                Err(error) => {
                    self.peer(index).statistics.refused_cma += 1;
                    refusal = Some(error);
                }
            }
        }
        match forced {
            None | Some(Engine::Bounce) => Ok(FetchOutcome::Bounce),
            Some(engine) => Err(not_possible(&channel, engine, offer, refusal)),
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

    /// Opens memory that a peer has announced. Returns the mapping and the offset in it.
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
        let parts = parts_in(&mapping, offset, offer).ok_or(out_of_bounds(&channel))?;
        if let &[part] = &parts[..]
            && let Some(done) =
                self.fetch_both(index, (id, offer), receiving, RemoteSource::Mapped(&mapping, part), both)?
        {
            return Ok(done);
        }
        if into.reduction().is_some() && !parts.iter().all(|part| into.is_whole(part.length)) {
            // Other engines copy the number into one piece first.
            let why = "the list that is sent has numbers that lie in two of its entries";
            return Err(impossible(Engine::Mapped, why));
        }
        copy_mapped(&channel, &mapping, &parts, into)?;
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
        let local = Cursor::new(into.parts()).ranges(offer.length);
        let time = into.touch(Access::ReadWrite)?;
        // SAFETY: `local` lies in the caller's memory, which `into` borrows. The kernel checks
        // remote addresses.
        let copied = unsafe { kernel_copy::read_with_gaps(channel.pid, &local, offer.ranges.as_slice()) };
        drop(time);
        copied.map_err(|errno| channel.refused(errno, "process_vm_readv"))?;
        Ok(self.end(index, id, offer, Engine::Cma))
    }

    /// Reads the sender's numbers into a buffer that stays in the cache, and combines them from
    /// there.
    fn combine_kernel(&mut self, channel: &Channel, offer: &Offer, into: &List<'_>) -> Result<()> {
        /// Large enough that calls cost little, and small enough for a second-level cache.
        const STAGE: usize = 128 << 10;
        self.stage.resize(STAGE.min(offer.length.max(self.stage.len())), 0);
        let _time = into.touch(Access::ReadWrite)?;
        let mut to = into.cursor();
        let mut at = 0;
        while at < offer.length {
            let length = self.stage.len().min(offer.length - at);
            let local = [Part { base: self.stage.as_mut_ptr(), length }.iov()];
            let remote = part_of(offer.ranges.as_slice(), at as u64, length as u64);
            // SAFETY: `local` is in the stage, which has `length` bytes. The kernel checks remote
            // addresses.
            if let Err(errno) = unsafe { kernel_copy::copy(channel.pid, Direction::Read, &local, &remote) } {
                return Err(match channel.refused(errno, "process_vm_readv") {
                    // Nothing was combined: another engine may do it.
                    error if at == 0 || error.is_final() => error,
                    _ => Error::PartlyCombined { why: "the memory of its sender cannot be read any more" },
                });
            }
            // SAFETY: `into` has room for the whole message. The stage has `length` bytes, in whole
            // numbers.
            unsafe { to.copy_in(self.stage.as_ptr(), length) };
            at += length;
        }
        Ok(())
    }

    /// Completes a message that was copied. It counts as received unless the sender withdrew it
    /// first.
    pub(crate) fn end(&mut self, index: usize, id: u64, offer: &Offer, engine: Engine) -> FetchOutcome {
        // Before the rest, because the sender waits for it.
        let is_taken = self.peer(index).channel.take(offer.index, offer.number);
        let tag = self.queue.remove(id).map_or(0, |message| message.tag);
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
        let is_viewable = matches!(message.body, Body::Lent(_));
        let (from, tag, length) = (message.peer, message.tag, message.body.len());
        Some(Probed { from, tag, length, is_viewable })
    }
}

fn out_of_bounds(channel: &Channel) -> Error {
    channel.misbehaved("a message reaches past the end of its memory")
}

/// Copies or combines parts of a mapping of the peer's memory.
fn copy_mapped(channel: &Channel, mapping: &Mapping<'static>, parts: &[Part], into: &List<'_>) -> Result<()> {
    let time = mapping.cpu_access(Access::ReadOnly).map_err(|error| channel.not_opened(error))?;
    let mine = into.touch(Access::ReadWrite)?;
    let mut to = into.cursor();
    for part in parts {
        // SAFETY: `parts` lie in the mapping, and `into` has room for all of them.
        unsafe { to.copy_in(part.base, part.length) };
    }
    drop((time, mine));
    Ok(())
}

fn part_in(mapping: &Mapping<'static>, offset: usize, length: usize) -> Option<Part> {
    let base = mapping.address().as_ptr()?;
    let fits = offset.checked_add(length).is_some_and(|end| end <= mapping.len());
    fits.then(|| Part { base: base.wrapping_add(offset), length })
}

/// Returns where a message is in a mapping; `None` if it reaches outside.
fn parts_in(mapping: &Mapping<'static>, offset: usize, offer: &Offer) -> Option<Vec<Part>> {
    let SourceRanges::Many(many) = &offer.ranges else {
        return part_in(mapping, offset, offer.length).map(|part| vec![part]);
    };
    let first = many.first()?.address;
    let part = |range: &Iov| {
        let at = (offset as u64).wrapping_add(range.address.wrapping_sub(first));
        part_in(mapping, usize::try_from(at).ok()?, usize::try_from(range.length).ok()?)
    };
    many.iter().map(part).collect()
}

#[cold]
fn not_possible(channel: &Channel, engine: Engine, offer: &Offer, refusal: Option<Error>) -> Error {
    let why = match refusal {
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
