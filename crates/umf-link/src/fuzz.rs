//! What fuzz targets drive (`tests/fuzz`, built with `--cfg fuzzing`): decoders that are no part of the interface, and a link whose
//! other side writes what it likes.

use core::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use umf_core::View;

use crate::engines::Engines;
use crate::key::Side;
use crate::lane::{Bell, OwnLane, PeerLane};
use crate::layout::{self, DESCRIPTORS, FIRST, FIRST_PAYLOAD, NEXT, NEXT_PAYLOAD, Ring, SIZE, slots};
use crate::protocol::{self, Header, Offered};
use crate::shared::{Fds, Lanes, Shared};
use crate::wire::{Here, Intro, Kind, Packet, Reply};
use crate::{
    Destination, Element, Engine, Error, Link, LinkSettings, Operation, Reduction, Registration,
    RemoteAccess, RemoteKey, Source, Span, TagMatch, fabric, offer,
};

/// Everything that is decoded when processes meet, and what a ring says of long messages.
pub fn packets(bytes: &[u8]) {
    for kind in [Kind::Hello, Kind::Welcome, Kind::Here, Kind::Agreed] {
        if let Some(packet) = Packet::decode(bytes, kind) {
            assert_eq!(packet.encode(kind), bytes);
            let _ = (Intro::decode(packet.words), Reply::decode(packet.words));
        }
    }
    if let Some(here) = Here::decode(bytes) {
        assert_eq!(here.encode(), bytes);
    }
    fabric::fuzz(bytes);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect();
    if let Some(offered) = offer::decode(&words) {
        let mut again = Vec::new();
        offer::encode(&offered, &mut again);
        assert_eq!(offer::decode(&again), Some(offered));
    }
    if let Some(one) = words.first_chunk() {
        let _ = offer::decode_lent(one);
    }
}

struct Input<'i>(&'i [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Small ones and large ones.
    fn number(&mut self) -> u64 {
        let count = usize::from(self.byte().unwrap_or(0) % 9).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn bytes(&mut self, most: usize) -> &[u8] {
        let count = most.min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }
}

/// Where this side sends from and receives into, with memory behind it that nobody may touch.
struct Room {
    base: usize,
    length: usize,
}

const ROOM: usize = 100_000;
const GUARD: usize = 4096;

static ROOMS: LazyLock<[Room; 2]> = LazyLock::new(|| {
    [0, 1].map(|_| {
        let memory = Box::leak(vec![0xA5_u8; ROOM + GUARD].into_boxed_slice());
        Room { base: memory.as_mut_ptr().expose_provenance(), length: ROOM }
    })
});

impl Room {
    fn slice(&self) -> View<'static> {
        // SAFETY: leaked memory, which is used through such views alone.
        unsafe { View::new(core::ptr::with_exposed_provenance_mut(self.base), self.length) }
            .unwrap_or_else(|_| View::empty())
    }

    fn is_whole(&self) -> bool {
        (self.length..self.length + GUARD).all(|offset| {
            // SAFETY: the end of the leaked memory.
            unsafe { *core::ptr::with_exposed_provenance::<u8>(self.base + offset) == 0xA5 }
        })
    }
}

fn write(theirs: &OwnLane, at: usize, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(SIZE - at)];
    let to = theirs.bytes(at, bytes.len());
    // SAFETY: as many bytes of the lane.
    unsafe { core::ptr::copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
}

/// A link in all of its uses, with a peer that writes into its lane what the input says: where it likes, or so that it is looked at.
/// What comes of each call is a result or an error, and nothing but the memory of the call is touched.
pub fn hostile_peer(data: &[u8]) {
    let mut input = Input(data);
    let Some(choice) = input.byte() else { return };
    let (Ok((mine, _)), Ok((theirs, fd))) = (OwnLane::create(7), OwnLane::create(7)) else { return };
    let Ok(Some(seen)) = PeerLane::adopt(&fd, 7) else { return };
    let (Ok((my_bell, _)), Ok((their_bell, _))) = (Bell::create(), Bell::create()) else { return };
    let lanes = Lanes { mine, theirs: seen, my_bell: Arc::new(my_bell), their_bell };
    let Ok((socket, _other)) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
    else {
        return;
    };
    let Ok(fds) = Fds::new(socket) else { return };
    let mut settings = LinkSettings::default();
    settings.spin = Duration::ZERO;
    settings.timeout = Some(Duration::ZERO);
    settings.max_unexpected = 1 << 16;
    settings.enforce = choice & 1 != 0;
    settings.engine = Engine::ALL.get(usize::from(choice >> 2)).copied();
    let me = if choice & 2 == 0 { Side::Connector } else { Side::Acceptor };
    // The process that it is asked to read is none.
    let engines = Engines::probe(&lanes.mine, (0, 0), &settings, false);
    let mut link = Link::new(Arc::new(Shared::new(lanes, me, fds, 0, (settings, None), engines)));
    let shared = Arc::clone(&link.shared);
    let [from, into] = &*ROOMS;
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    let mut ranges: Vec<Registration<'static>> = Vec::new();
    let (mut ring, mut slot) = (Ring::Small, 0);
    for _ in 0..100 {
        let Some(what) = input.byte() else { break };
        let done: Result<(), Error> = match what % 16 {
            0 | 1 => {
                let at = input.number() as usize % SIZE;
                let count = usize::from(what >> 4) + 1;
                write(&theirs, at, input.bytes(count));
                Ok(())
            }
            // A message in its ring, as long as it says or not.
            2..=4 => {
                let kind = if what < 128 { what >> 4 } else { 2 };
                let (tag, length) = (input.number(), input.number() as u16);
                theirs.word(ring.slot(slot) + 8).store(tag, Ordering::Relaxed);
                write(&theirs, ring.slot(slot) + FIRST, input.bytes(FIRST_PAYLOAD));
                let count = slots(usize::from(length).min(32 << 10));
                for next in 1..count.min(4) {
                    write(&theirs, ring.slot(slot + next) + NEXT, input.bytes(NEXT_PAYLOAD));
                }
                protocol::announce(theirs.word(ring.slot(slot)), slot, Header { kind, length });
                if kind == offer::GROWN {
                    ring = Ring::Large;
                }
                slot += if kind == offer::GROWN { 1 } else { count };
                Ok(())
            }
            // An offer that is one.
            5 => {
                let index = input.number() % DESCRIPTORS as u64;
                let (number, length) = (input.number() as u32, input.number() % (1 << 18));
                let flags = input.number() & 0xff;
                let words =
                    [u64::from(number) | index << 32 | flags << 40 | 1 << 48, length, 0, 0, input.number()];
                for (place, word) in words.into_iter().enumerate() {
                    theirs.word(ring.slot(slot) + FIRST + 8 * place).store(word, Ordering::Relaxed);
                }
                theirs
                    .word(layout::offered(index as usize))
                    .store(protocol::offered(number, Offered::Open), Ordering::Relaxed);
                let header = Header { kind: offer::OFFER, length: 40 };
                protocol::announce(theirs.word(ring.slot(slot)), slot, header);
                slot += 1;
                Ok(())
            }
            // What it asks of a message of this side.
            6 => {
                let index = input.number() as usize;
                let number = shared.numbers[index % DESCRIPTORS].load(Ordering::Relaxed);
                for place in 0..4 {
                    theirs.word(layout::argument(index, place)).store(input.number(), Ordering::Relaxed);
                }
                let asked = offer::request(number, what >> 6, input.number() as u16);
                theirs.word(layout::request(index)).store(asked, Ordering::Release);
                Ok(())
            }
            // A request for a registered range.
            7 => {
                let call = u64::from(what >> 6);
                let range = input.number() as usize;
                let asked = 1 + u64::from(what >> 4 & 1) | (range as u64 & 0xff) << 8 | input.number() << 32;
                let generation = shared.mine.word(layout::range(range)).load(Ordering::Relaxed);
                for (place, value) in [asked, generation].into_iter().enumerate() {
                    theirs.word(layout::asked_word(call, place)).store(value, Ordering::Relaxed);
                }
                for place in 0..3 {
                    for half in [0, 8] {
                        theirs
                            .word(layout::asked_span(call, place) + half)
                            .store(input.number(), Ordering::Relaxed);
                    }
                }
                let next = shared.next_call.load(Ordering::Relaxed);
                theirs
                    .word(layout::asked(next))
                    .store(protocol::offered(next as u32, Offered::Open), Ordering::Release);
                link.progress()
            }
            8 => link.probe(TagMatch::ANY).map(drop),
            9 => link.recv(TagMatch::ANY, into.slice()).map(drop),
            10 => {
                let half = |at: usize, length: usize| into.slice().range(at..at + length);
                let parts = [half(5, 777), half(5000, 4000), half(20_000, 80_000)];
                link.recv(input.number(), Destination::list(parts.into_iter().flatten())).map(drop)
            }
            11 => {
                let numbers = Element::ALL[usize::from(what >> 4) % Element::ALL.len()];
                let sum = Reduction::new(Operation::Max, numbers);
                let room = Destination::from(into.slice());
                sum.and_then(|sum| room.combined(sum))
                    .and_then(|room| link.recv(TagMatch::ANY, room))
                    .map(drop)
            }
            12 => {
                if sends.len() < 8 {
                    let length = [3, 4000, 33_000, ROOM][usize::from(what >> 6)];
                    let part = from.slice().range(..length);
                    part.map_or(Ok(()), |part| {
                        link.start_send(1, Source::from(part)).map(|new| sends.push(new))
                    })
                } else {
                    sends.clear();
                    link.recv_view(TagMatch::ANY).map(drop)
                }
            }
            13 => {
                if receives.len() < 3 {
                    receives.push(link.start_recv(TagMatch::ANY, into.slice()));
                } else if what & 64 == 0 {
                    receives.clear();
                }
                link.finish(&mut sends, &mut receives)
            }
            14 => {
                let key = RemoteKey {
                    access: RemoteAccess::GetPut,
                    owner: me.other(),
                    slot: usize::from(what >> 5),
                    generation: input.number(),
                    length: input.number() % (1 << 20),
                    nonce: 7,
                };
                theirs
                    .word(layout::range(key.slot))
                    .store(if what & 16 == 0 { key.generation } else { 0 }, Ordering::Release);
                let span = Span { offset: input.number() as usize, length: 500 };
                let part = from.slice().range(..500);
                let places = [span];
                part.map_or(Ok(()), |part| match what & 32 {
                    0 => link.get(&key, &places[..], part).map(drop),
                    _ => link.put(&key, &places[..], part).map(drop),
                })
            }
            _ => {
                if ranges.len() > 3 {
                    let ended = ranges.pop().map_or(Ok(()), |mut range| range.end(Some(Duration::ZERO)));
                    ended.and_then(|()| link.progress())
                } else {
                    let part = into.slice().range(100..1100);
                    part.map_or(Ok(()), |part| {
                        // SAFETY: leaked memory, which stays.
                        unsafe { link.register(part, RemoteAccess::GetPut) }.map(|range| ranges.push(range))
                    })
                }
            }
        };
        if let Err(error) = done {
            let _ = error.to_string();
        }
    }
    assert!(from.is_whole() && into.is_whole(), "memory behind that of a call was written");
    let _ = format!("{:?}", link.statistics());
}
