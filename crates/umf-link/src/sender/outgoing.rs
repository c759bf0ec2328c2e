//! What a sender keeps in mind: its ring, and the messages that it offers.

use core::sync::atomic::Ordering;

use umf_core::Access;
use umf_sync::failpoint;

use crate::board::{Board, Told};
use crate::layout::{
    self, DESCRIPTORS, FIRST, FIRST_PAYLOAD, LARGE_RING, MOST_RANGES, NEXT, NEXT_PAYLOAD, OFFERS, Ring,
};
use crate::memory::Memory;
use crate::offer::{self, GROWN, INLINE, LEND, OFFER, ONE_RANGE, Offer, Ranges};
use crate::parts::{Cursor, List, Part, Source};
use crate::protocol::{self, Header, Load, Offered, Verdict};
use crate::shared::Shared;
use crate::sys::Iov;
use crate::tag::Context;
use crate::{Engine, Error, LinkStatistics, Result};

use super::push::Attempt;

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Sending<'d> {
    tag: u64,
    context: Context,
    pub source: Source<'d>,
    attended: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Offered(Place, Attempt),
    Done,
}

/// Where a message is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub index: usize,
    pub number: u32,
    /// Of lent memory: how its bit was when it was lent. It is back when that was turned.
    pub lent: Option<bool>,
}

impl Place {
    /// Whether nobody has received it yet, and it was not withdrawn.
    pub(crate) fn is_open(self, shared: &Shared) -> bool {
        if let Some(before) = self.lent {
            // Only what is back leaves its descriptor to the next.
            let is_latest = shared.numbers[self.index].load(Ordering::Relaxed) == self.number;
            let bits = shared.theirs.word(layout::GIVEN_BACK).load(Ordering::Acquire);
            return is_latest && (bits >> self.index & 1 == 1) == before;
        }
        let offered = shared.mine.word(layout::offered(self.index)).load(Ordering::Relaxed);
        let taken = shared.theirs.word(layout::taken(self.index)).load(Ordering::Acquire);
        offered == protocol::offered(self.number, Offered::Open)
            && taken != protocol::taken(self.number, Verdict::Taken)
    }
}

impl<'d> Sending<'d> {
    pub(crate) const fn new(tag: u64, context: Context, source: Source<'d>, attended: bool) -> Self {
        Self { tag, context, source, attended, state: State::New }
    }

    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Takes it back; `false` if it was received, or is on its way.
    pub(crate) fn withdraw(&mut self, shared: &Shared) -> bool {
        let state = core::mem::replace(&mut self.state, State::Done);
        match state {
            State::New => true,
            State::Done => false,
            State::Offered(place, _) => shared.withdraw(place.index, place.number),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    place: Option<Place>,
    told: Option<Told>,
}

/// The sending half's own state: no other process can write it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    ring: Ring,
    /// Slots that were used.
    sent: u64,
    /// Those that are known to be consumed.
    consumed: u64,
    board: Board,
    uses: [Use; DESCRIPTORS],
    next: usize,
    number: u32,
    /// The bits of what was given back, as they were when they were last looked at: their line is the receiver's, and taking it
    /// away costs as much as a message.
    given_back: u64,
    words: Vec<u64>,
    pub statistics: LinkStatistics,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self {
            ring: Ring::Small,
            sent: 0,
            consumed: 0,
            board: Board::new(true),
            uses: [Use::default(); DESCRIPTORS],
            next: 0,
            number: 0,
            given_back: 0,
            words: Vec::new(),
            statistics: LinkStatistics::default(),
        }
    }

    /// Sends a message that fits into the ring; `false` if there is no room just now.
    #[inline]
    pub(crate) fn send_inline(
        &mut self,
        shared: &Shared,
        (tag, context): (u64, Context),
        source: &List<'_>,
    ) -> Result<bool> {
        let length = source.len();
        if !self.has_room(shared, length)? {
            return Ok(false);
        }
        let time = source.touch(Access::ReadOnly)?;
        let mut cursor = Cursor::new(source.parts());
        // SAFETY: the caller's memory, borrowed by `source`; `write` yields room in the lane.
        self.write(shared, offer::kind_in(INLINE, context), tag, length, |to, count| unsafe {
            cursor.copy_out(to, count)
        });
        drop(time);
        self.statistics.sent.add(length);
        Ok(true)
    }

    #[inline]
    fn has_room(&mut self, shared: &Shared, length: usize) -> Result<bool> {
        if self.ring == Ring::Large {
            return self.has_slots(shared, layout::slots(length));
        }
        // A slot stays for the word that it is in the large one from then on.
        let fits = length <= self.ring.longest() && self.has_slots(shared, layout::slots(length) + 1)?;
        if fits { Ok(true) } else { self.grow(shared, length) }
    }

    #[inline]
    fn has_slots(&mut self, shared: &Shared, slots: u64) -> Result<bool> {
        let consumed = shared.theirs.word(layout::CONSUMED);
        protocol::room(&consumed, &mut self.consumed, self.sent, slots, self.ring.slots())
            .ok_or(shared.misbehaved("it says to have consumed what was not sent"))
    }

    /// Goes on in the large ring; `false` if that cannot be just now.
    #[cold]
    fn grow(&mut self, shared: &Shared, length: usize) -> Result<bool> {
        match shared.populate(LARGE_RING) {
            Ok(()) => {}
            // There will be room in the small one.
            Err(error) if length <= Ring::Small.longest() => {
                tracing::debug!(%error, "a ring stays small");
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.write(shared, GROWN, 0, 0, |_, _| {});
        self.ring = Ring::Large;
        failpoint!("link.grown");
        self.has_slots(shared, layout::slots(length))
    }

    /// Writes a message for which there is room; `fill` is asked for its bytes, piece by piece.
    #[inline]
    fn write(
        &mut self,
        shared: &Shared,
        kind: u8,
        tag: u64,
        length: usize,
        mut fill: impl FnMut(*mut u8, usize),
    ) {
        let (lane, ring, first) = (&shared.mine, self.ring, self.sent);
        let at = ring.slot(first);
        lane.word(at + 8).store(tag, Ordering::Relaxed);
        let count = length.min(FIRST_PAYLOAD);
        fill(lane.bytes(at + FIRST, count).as_ptr(), count);
        let mut left = length - count;
        let mut number = first + 1;
        while left > 0 {
            let at = ring.slot(number);
            protocol::go_on(lane.word(at), number);
            let count = left.min(NEXT_PAYLOAD);
            fill(lane.bytes(at + NEXT, count).as_ptr(), count);
            left -= count;
            number += 1;
        }
        protocol::announce(lane.word(at), first, Header { kind, length: length as u16 });
        self.sent = number;
        failpoint!("link.sent");
        shared.notify();
    }

    /// Makes what progress can be made without waiting. `Some` when the message was sent.
    pub(crate) fn poll(&mut self, shared: &Shared, sending: &mut Sending<'_>) -> Result<Option<()>> {
        if matches!(sending.state, State::New) {
            let list = &sending.source.0;
            if list.len() <= shared.settings.inline_max() {
                if !self.send_inline(shared, (sending.tag, sending.context), list)? {
                    return Ok(None);
                }
                sending.state = State::Done;
            } else {
                let Some(place) =
                    self.offer(shared, (sending.tag, sending.context), list, sending.attended)?
                else {
                    return Ok(None);
                };
                sending.state = State::Offered(place, Attempt::default());
            }
        }
        if let State::Offered(place, attempt) = &mut sending.state {
            if place.is_open(shared) {
                attempt.serve(shared, *place, &sending.source.0, &mut self.statistics)?;
                return Ok(None);
            }
            sending.state = State::Done;
        }
        Ok(Some(()))
    }

    /// Takes a message back that could not be sent; `false` if it was received after all.
    pub(crate) fn withdraw(&mut self, shared: &Shared, sending: &mut Sending<'_>) -> bool {
        let is_new = matches!(sending.state, State::New);
        let withdrawn = sending.withdraw(shared);
        self.statistics.withdrawn += u64::from(withdrawn && !is_new);
        withdrawn
    }

    /// Lends memory; `None` if there is no room just now.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        shared: &Shared,
        (tag, context): (u64, Context),
        memory: &Memory<'_>,
        part: Part,
    ) -> Result<Option<Place>> {
        const LENGTH: usize = 8 * ONE_RANGE;
        if !self.has_room(shared, LENGTH)? {
            return Ok(None);
        }
        let Some(index) = self.free_descriptor(shared) else { return Ok(None) };
        let Some(told) = self.board.tell(shared, memory)? else { return Ok(None) };
        self.board.pin(told);
        // What was lent here before is back, so that the bit stays as it is until this is.
        let place = self.place(shared, index, Some(told), Some(self.given_back >> index & 1 == 1));
        let offset = part.base.addr() - memory.base().addr();
        let words = offer::encode_lent(place.number, index, part.length, told.to_word(), offset as u64);
        self.write(shared, offer::kind_in(LEND, context), tag, LENGTH, |to, _| {
            // SAFETY: it all goes in one slot, in which `write` yields room for it.
            unsafe { to.cast::<[u64; ONE_RANGE]>().write_unaligned(words) };
        });
        failpoint!("link.lent");
        self.statistics.sent.add(part.length);
        Ok(Some(place))
    }

    /// Takes a descriptor for the next message.
    #[inline]
    fn place(&mut self, shared: &Shared, index: usize, told: Option<Told>, lent: Option<bool>) -> Place {
        self.number = self.number.wrapping_add(1).max(1);
        let place = Place { index, number: self.number, lent };
        self.uses[index] = Use { place: Some(place), told };
        shared.numbers[index].store(place.number, Ordering::Relaxed);
        place
    }

    /// A descriptor whose message was received or withdrawn, and taken back from the one before.
    fn free_descriptor(&mut self, shared: &Shared) -> Option<usize> {
        for step in 0..DESCRIPTORS {
            let index = (self.next + step) % DESCRIPTORS;
            let Use { place, told } = self.uses[index];
            let is_open = match place {
                None => false,
                Some(Place { lent: Some(before), .. }) => {
                    let is_away = |bits: u64| (bits >> index & 1 == 1) == before;
                    if is_away(self.given_back) {
                        self.given_back = shared.theirs.word(layout::GIVEN_BACK).load(Ordering::Acquire);
                    }
                    is_away(self.given_back)
                }
                Some(place) => place.is_open(shared),
            };
            if is_open {
                continue;
            }
            if let Some(told) = told {
                self.board.unpin(told);
            }
            self.uses[index] = Use::default();
            self.next = index + 1;
            return Some(index);
        }
        None
    }

    fn offer(
        &mut self,
        shared: &Shared,
        (tag, context): (u64, Context),
        list: &List<'_>,
        attended: bool,
    ) -> Result<Option<Place>> {
        let engine = shared.settings.engine;
        let impossible = |engine, why: &str| Err(Error::EngineImpossible { engine, why: why.to_owned() });
        match engine {
            Some(Engine::Inline) => {
                return impossible(Engine::Inline, "a ring takes messages of up to 32 KiB");
            }
            Some(Engine::Mapped) if shared.settings.enforce && !list.is_read_only() => {
                return impossible(
                    Engine::Mapped,
                    "link.enforce (UMF_LINK_ENFORCE) is set, and this is not all of a read-only block with a file of its own",
                );
            }
            Some(Engine::Mapped) if list.memory().is_none() => {
                return impossible(
                    Engine::Mapped,
                    "what is sent is not memory of an exportable pool (Memory)",
                );
            }
            Some(engine @ (Engine::Cma | Engine::Both)) if shared.settings.enforce => {
                return impossible(
                    engine,
                    "link.enforce (UMF_LINK_ENFORCE) is set, so that the peer is told no addresses",
                );
            }
            Some(engine) if engine != Engine::Bounce && list.parts().len() > MOST_RANGES => {
                return impossible(engine, "the list has more than 1024 entries");
            }
            _ => {}
        }
        let enforce = shared.settings.enforce;
        let by_address = !enforce && matches!(engine, None | Some(Engine::Cma | Engine::Both));
        let may_map =
            matches!(engine, None | Some(Engine::Mapped | Engine::Both)) && (!enforce || list.is_read_only());
        let parts = list.parts();
        let is_told = (by_address || may_map) && parts.len() <= MOST_RANGES;
        let ranges = match parts {
            _ if !is_told => Ranges::Untold,
            // Told memory is found by its handle.
            [one] => {
                Ranges::One(Iov { address: if by_address { one.iov().address } else { 0 }, ..one.iov() })
            }
            many => Ranges::Many(many.iter().map(|part| part.iov()).collect()),
        };
        let words = if ranges.as_slice().len() > 1 { 4 + 2 * parts.len() } else { 5 };
        if !self.has_room(shared, 8 * words)? {
            return Ok(None);
        }
        let Some(index) = self.free_descriptor(shared) else { return Ok(None) };
        shared.populate(OFFERS)?;
        shared.populate_theirs(OFFERS)?;
        let memory = list.memory().filter(|_| may_map && is_told);
        let told = memory.map(|memory| self.board.tell(shared, memory)).transpose()?.flatten();
        let offset = match (memory, parts) {
            (Some(memory), [first, ..]) => first.base.addr() - memory.base().addr(),
            _ => 0,
        };
        if let Some(told) = told {
            self.board.pin(told);
        }
        let place = self.place(shared, index, told, None);
        // What was said of messages before this one may look like a word of its attempts.
        for word in [layout::progress(index), layout::back(index)] {
            shared.mine.word(word).store(0, Ordering::Relaxed);
        }
        let offered = protocol::offered(place.number, Offered::Open);
        shared.mine.word(layout::offered(index)).store(offered, Ordering::Relaxed);
        let offer = Offer {
            index,
            number: place.number,
            length: list.len(),
            engine,
            told,
            offset: offset as u64,
            by_address,
            attended,
            lent: false,
            ranges,
        };
        let mut words = core::mem::take(&mut self.words);
        offer::encode(&offer, &mut words);
        let mut from = words.as_ptr().cast::<u8>();
        self.write(shared, offer::kind_in(OFFER, context), tag, 8 * words.len(), |to, count| {
            // SAFETY: `write` asks for all bytes of `words` once, in order, and yields room for them in the lane.
            unsafe { core::ptr::copy_nonoverlapping(from, to, count) };
            from = from.wrapping_add(count);
        });
        self.words = words;
        failpoint!("link.offered");
        self.statistics.sent.add(list.len());
        Ok(Some(place))
    }
}
