//! Fetching a message that is offered, by the engine that suits it.

use core::sync::atomic::Ordering;

use umf_core::Access;
use umf_ipc::Mapping;

use super::Received;
use super::both::From;
use super::incoming::{Incoming, Receiving};
use crate::board::Told;
use crate::gaps;
use crate::layout::OFFERS;
use crate::offer::{Offer, Ranges};
use crate::parts::{Cursor, List, Part, Parts};
use crate::queue::Body;
use crate::shared::Shared;
use crate::sys::Iov;
use crate::wait::Limit;
use crate::{Engine, Error, Result};

/// What came of fetching a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulled {
    /// It is here.
    Received(Received),
    /// Its sender took it back, before anything was written.
    Withdrawn,
    /// Its sender took it back meanwhile.
    Late,
    /// It goes through bounce buffers.
    Bounce,
}

/// Whether both sides are to copy.
#[derive(Clone, Copy, Debug)]
enum Together {
    /// Only this one.
    No,
    /// Where they can; how long to wait for the sender's part.
    May(Limit),
    /// The settings say so.
    Must(Limit),
}

impl Together {
    const fn is_wanted(self) -> bool {
        !matches!(self, Self::No)
    }
}

fn cannot(engine: Engine, why: &str) -> Error {
    Error::EngineImpossible { engine, why: why.to_owned() }
}

/// Of an engine that did not do: whether another one may, which is the inner error.
fn other_engines(pulled: Result<Pulled>) -> Result<Result<Pulled>> {
    match pulled {
        Err(error) if error.is_final() || matches!(error, Error::TimedOut { .. } | Error::Spoilt { .. }) => {
            Err(error)
        }
        Err(error) => {
            tracing::debug!(%error, "memory of a peer cannot be reached");
            Ok(Err(error))
        }
        done => Ok(done),
    }
}

impl Incoming {
    /// Fetches a message of the queue, which fits the receive's memory.
    pub(super) fn pull(&mut self, shared: &Shared, id: u64, receiving: &Receiving<'_>) -> Result<Pulled> {
        let (into, blocking) = (&receiving.into.0, receiving.blocking);
        let Some(Body::Offered(offer)) = self.queue.get(id).map(|entry| &entry.body) else {
            return Ok(Pulled::Withdrawn);
        };
        let offer = offer.clone();
        shared.populate_theirs(OFFERS)?;
        if is_withdrawn(shared, &offer) {
            self.queue.remove(id);
            self.statistics.withdrawn += 1;
            return Ok(Pulled::Withdrawn);
        }
        shared.populate(OFFERS)?;
        let forced = match (shared.settings.engine, offer.engine) {
            _ if offer.lent => Some(Engine::Mapped),
            (Some(mine), Some(theirs)) if mine != theirs => {
                return Err(cannot(mine, &format!("the peer is set to {theirs}")));
            }
            (mine, theirs) => mine.or(theirs),
        };
        let obstacle = Self::obstacle(shared, &offer, into, blocking);
        let together = match (forced, blocking, obstacle) {
            // One side combines, whatever is set; and collectives have both copy where they can.
            _ if into.reduction().is_some() => Together::No,
            (Some(Engine::Both), _, Some(why)) if !receiving.is_group => {
                return Err(cannot(Engine::Both, why));
            }
            (_, None, _) | (_, _, Some(_)) => Together::No,
            (Some(Engine::Both), Some(limit), None) => Together::Must(limit),
            (None, Some(limit), None) if offer.length >= shared.settings.both_min => Together::May(limit),
            _ => Together::No,
        };
        let may_map = matches!(forced, None | Some(Engine::Mapped | Engine::Both));
        let may_read = matches!(forced, None | Some(Engine::Cma | Engine::Both));
        let mut refusal = None;
        if may_map && offer.told.is_some() {
            match other_engines(self.by_mapping(shared, id, &offer, into, together))? {
                Ok(done) => return Ok(done),
                Err(error) => {
                    self.statistics.refused_mapped += 1;
                    refusal = Some(error);
                }
            }
        }
        let is_faster = shared.engines.prefers_cma(offer.length, offer.ranges.as_slice().len());
        // Who does not wait for its message does not fill bounce buffers either, until it comes by again.
        let reads = may_read
            && offer.by_address
            && (forced.is_some() || is_faster || !offer.attended || together.is_wanted());
        if reads && shared.cma.load(Ordering::Relaxed) && offer.ranges != Ranges::Untold {
            match other_engines(self.by_address(shared, id, &offer, into, together))? {
                Ok(done) => return Ok(done),
                Err(error) => {
                    self.statistics.refused_cma += 1;
                    refusal = Some(error);
                }
            }
        }
        match forced {
            None | Some(Engine::Bounce) => Ok(Pulled::Bounce),
            Some(engine) => Err(impossible(shared, engine, &offer, refusal)),
        }
    }

    /// Opens memory that the peer has told of, as far as the message reaches; also where it begins there.
    #[inline]
    pub(super) fn open(
        &mut self,
        shared: &Shared,
        told: Option<Told>,
        offset: u64,
    ) -> Result<(Mapping<'static>, usize)> {
        let told = told.zip(shared.importer);
        let impossible = |why: &str| cannot(Engine::Mapped, why);
        let (told, importer) = told.ok_or_else(|| impossible("this process's endpoint has no importer"))?;
        let handle = self.known.handle(shared, told);
        let handle = handle.ok_or_else(|| impossible("the peer names a handle that it does not tell"))?;
        let access = if handle.is_read_only() { Access::ReadOnly } else { Access::ReadWrite };
        let opened = importer.open_bytes(handle.as_bytes(), access);
        let mapping = opened.map_err(|error| shared.not_opened(error))?;
        if !mapping.is_host_accessible() {
            return Err(impossible("the memory is on a device"));
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok((mapping, offset))
    }

    /// By both sides, if they are to and can; `None` if this one is to do it.
    fn together(
        &mut self,
        shared: &Shared,
        (id, offer): (u64, &Offer),
        into: &List<'_>,
        from: From<'_>,
        together: Together,
    ) -> Result<Option<Pulled>> {
        let limit = match together {
            Together::Must(limit) => limit,
            Together::May(limit) if Self::is_for_both(offer, into, from) => limit,
            _ => return Ok(None),
        };
        match self.by_both(shared, (id, offer), into, from, limit)? {
            Ok(pulled) => Ok(Some(pulled)),
            Err(why) if matches!(together, Together::Must(_)) => Err(cannot(Engine::Both, why)),
            Err(_) => Ok(None),
        }
    }

    fn by_mapping(
        &mut self,
        shared: &Shared,
        id: u64,
        offer: &Offer,
        into: &List<'_>,
        together: Together,
    ) -> Result<Pulled> {
        let (mapping, offset) = self.open(shared, offer.told, offer.offset)?;
        let from = ranges_in(&mapping, offset, offer)
            .ok_or(shared.misbehaved("what it offers reaches past the end of its memory"))?;
        let from = from.as_slice();
        let both = From::Mapped(&mapping, from);
        if let Some(pulled) = self.together(shared, (id, offer), into, both, together)? {
            return Ok(pulled);
        }
        if into.reduction().is_some() && !from.iter().all(|part| into.is_whole(part.length)) {
            // A number that is in two places: other engines put it together.
            let why = "the list that is sent has numbers that lie in two of its entries";
            return Err(cannot(Engine::Mapped, why));
        }
        let time = mapping.cpu_access(Access::ReadOnly).map_err(|error| shared.not_opened(error))?;
        let mine = into.touch(Access::ReadWrite)?;
        let mut to = into.cursor();
        for part in from {
            // SAFETY: ranges of the mapping, and the caller's memory, of at least the message's length.
            unsafe { to.copy_in(part.base, part.length) };
        }
        drop((time, mine));
        drop(mapping);
        Ok(self.end(shared, id, offer, Engine::Mapped))
    }

    fn by_address(
        &mut self,
        shared: &Shared,
        id: u64,
        offer: &Offer,
        into: &List<'_>,
        together: Together,
    ) -> Result<Pulled> {
        let both = From::Address(offer.ranges.as_slice());
        if let Some(pulled) = self.together(shared, (id, offer), into, both, together)? {
            return Ok(pulled);
        }
        if into.reduction().is_some() {
            return self.combine_by_address(shared, id, offer, into);
        }
        let local = Cursor::new(into.parts()).ranges(offer.length);
        let copied = into.touch(Access::ReadWrite).map(|_time| {
            // SAFETY: the caller's memory; the pid is that of the peer, which was there a moment ago.
            unsafe { gaps::read(shared.pid, &local, offer.ranges.as_slice()) }
        })?;
        match copied {
            Ok(()) => Ok(self.end(shared, id, offer, Engine::Cma)),
            Err(errno) => Err(shared.refused(errno, "process_vm_readv")),
        }
    }
}

pub(super) fn is_withdrawn(shared: &Shared, offer: &Offer) -> bool {
    // What is lent cannot be taken back.
    !offer.lent && shared.is_withdrawn(offer.index, offer.number)
}

/// Where the message is in a mapping; `None` if it is not all in there.
fn ranges_in(mapping: &Mapping<'static>, offset: usize, offer: &Offer) -> Option<Parts> {
    let base = mapping.address().as_ptr()?;
    let part = |offset: usize, length: usize| {
        let fits = offset.checked_add(length).is_some_and(|end| end <= mapping.len());
        fits.then(|| Part { base: base.wrapping_add(offset), length })
    };
    match &offer.ranges {
        Ranges::Many(many) => {
            let first = many.first()?.address;
            let of = |address: u64| {
                usize::try_from((offset as u64).wrapping_add(address.wrapping_sub(first))).ok()
            };
            let part = |range: &Iov| part(of(range.address)?, usize::try_from(range.length).ok()?);
            many.iter().map(part).collect::<Option<_>>().map(Parts::Many)
        }
        _ => part(offset, offer.length).map(Parts::One),
    }
}

#[cold]
fn impossible(shared: &Shared, engine: Engine, offer: &Offer, refusal: Option<Error>) -> Error {
    let why = match refusal {
        Some(Error::EngineImpossible { why, .. }) => why,
        Some(error) => error.to_string(),
        None if engine == Engine::Inline => "the message is longer than a ring takes".to_owned(),
        None if engine == Engine::Mapped => {
            "what is sent is not memory of an exportable pool (Memory)".to_owned()
        }
        None => match shared.engines.cma() {
            Err(why) => why.to_owned(),
            Ok(_) if !offer.by_address => "the peer's settings keep its memory from being read".to_owned(),
            Ok(_) if offer.ranges == Ranges::Untold => "the list has more than 1024 entries".to_owned(),
            Ok(_) => "it was refused before".to_owned(),
        },
    };
    Error::EngineImpossible { engine, why }
}
