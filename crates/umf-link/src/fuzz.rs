//! Entry points of fuzz targets (`tests/fuzz`, built with `--cfg fuzzing`): decoders that are not
//! public, and a link or mesh whose peer writes any bytes into its files.

use core::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use umf_core::View;
use umf_ipc::Importer;

use crate::channel::{Channel, InboxShared, PeerFiles, PeerProcess};
use crate::endpoint::{Kind, Packet};
use crate::layout::{self, CATALOG, FIRST, FIRST_PAYLOAD, LANE, NEXT, NEXT_PAYLOAD, Ring, slots};
use crate::mesh::{self, Mesh};
use crate::offer::{BLOCK, BlockRecord, GROWN, MAX_LENGTH, NAME, OFFER, Offer, REQUEST};
use crate::protocol::{self, Offered, SlotHeader};
use crate::shared_files::{Bell, OwnCatalog, OwnFile, OwnLane, PeerCatalog, PeerLane};
use crate::{ADDRESS_SIZE, Atomic, Destination, Element, Engine, Link, LinkAddress, LinkBuilder};
use crate::{LinkSettings, Memory, Operation, Reduction, Registration};
use crate::{RemoteAccess, RemoteKey, Result, Source, Span, TagMatch};

/// Decodes packets of the handshake, and records of offers and of blocks that are handed over.
pub fn packets(bytes: &[u8]) {
    for kind in [Kind::Hello, Kind::Welcome, Kind::Refused, Kind::Agreed] {
        if let Some(packet) = Packet::decode(bytes, kind) {
            assert_eq!(packet.encode(kind), bytes);
        }
    }
    let word = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_le_bytes);
    let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
    if let Some(offer) = Offer::decode(&words) {
        assert_eq!(Offer::decode(&offer.encode()), Some(offer));
    }
    if let Some(block) = BlockRecord::decode(&words) {
        assert_eq!(block.encode(), *words);
    }
}

struct Input<'i>(&'i [u8]);

impl Input<'_> {
    fn bytes(&mut self, most: usize) -> &[u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1).first().copied()
    }

    /// Returns a number, small or large.
    fn number(&mut self) -> u64 {
        let count = usize::from(self.byte().unwrap_or(0) % 9);
        self.bytes(count).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

const FROM: usize = 0;
const INTO: usize = 1;
const RANGE: usize = 2;
const AREA: usize = 72_000;
/// Bytes before and after each area that no call may access.
const GUARD: usize = 4096;
static FILLED: [u8; AREA + 2 * GUARD] = [0xA5; AREA + 2 * GUARD];

/// Memory to send from, to receive into, and to register. Each is the address of the guard before
/// it.
static AREAS: LazyLock<[usize; 3]> =
    LazyLock::new(|| [(); 3].map(|()| Box::leak(Box::new(FILLED)).as_mut_ptr().expose_provenance()));

fn slice(area: usize, at: usize, length: usize) -> View<'static> {
    assert!(at + length <= AREA);
    let base = core::ptr::with_exposed_provenance_mut(AREAS[area] + GUARD + at);
    // SAFETY: leaked memory, which is accessed through such views only while a link exists.
    unsafe { View::new(base, length) }.unwrap_or_else(|_| View::empty())
}

/// Returns whether bytes of an area or its guards have their initial value.
fn is_filled(area: usize, bytes: core::ops::Range<usize>) -> bool {
    // SAFETY: leaked memory; no link exists that writes it.
    let all = unsafe {
        core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(AREAS[area]), FILLED.len())
    };
    all[bytes.clone()] == FILLED[bytes]
}

/// Returns memory to receive into, in one of several forms.
fn destination(form: u8, memory: &'static Memory<'static>) -> Result<Destination<'static>> {
    let element = Element::ALL[usize::from(form / 5) % Element::ALL.len()];
    Ok(match form % 5 {
        0 => slice(INTO, 0, AREA).into(),
        1 => Destination::list([slice(INTO, 5, 777), slice(INTO, 5000, 4000), slice(INTO, 20_000, 50_000)]),
        2 => Destination::from(slice(INTO, 0, AREA)).combined(Reduction::new(Operation::Max, element)?)?,
        3 => memory.into(),
        _ => memory.part(100, 5000)?.into(),
    })
}

fn write<const SIZE: usize>(file: &OwnFile<SIZE>, at: usize, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(SIZE - at)];
    // SAFETY: as many bytes of the file.
    unsafe { core::ptr::copy(bytes.as_ptr(), file.bytes(at, bytes.len()).as_ptr(), bytes.len()) };
}

/// The files of the hostile peer, and its position in its ring.
struct HostilePeer {
    lane: OwnLane,
    catalog: OwnCatalog,
    ring: Ring,
    slot: u64,
}

impl HostilePeer {
    fn record(&mut self, (kind, context): (u8, u8), tag: u64, length: usize, payload: &[u8]) {
        let Self { lane, ring, slot, .. } = self;
        lane.word(ring.slot(*slot) + 8).store(tag, Ordering::Relaxed);
        let (first, rest) = payload.split_at(payload.len().min(FIRST_PAYLOAD));
        write(lane, ring.slot(*slot) + FIRST, first);
        for (next, piece) in (*slot + 1..).zip(rest.chunks(NEXT_PAYLOAD)) {
            write(lane, ring.slot(next) + NEXT, piece);
        }
        let header = SlotHeader { kind, length: length as u16, context };
        protocol::announce(lane.word(ring.slot(*slot)), *slot, header);
        *slot += if kind == GROWN { 1 } else { slots(length.min(32 << 10)) };
        *ring = if kind == GROWN { Ring::Large } else { *ring };
    }

    fn words(&mut self, kind: u8, words: &[u64], more: &[u8]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).chain(more.to_vec()).collect();
        self.record((kind, 0), 1, bytes.len(), &bytes);
    }

    /// Publishes registered range `index` and handle `index`.
    fn announce(&self, memory: &Memory<'_>, index: usize, generation: u64, words: [u64; 4]) {
        write(&self.catalog, layout::handle(index).0, memory.bytes());
        write(&self.catalog, layout::range_handle(index), memory.bytes());
        for (number, word) in words.into_iter().enumerate() {
            self.catalog.word(layout::range_word(index, number)).store(word, Ordering::Relaxed);
        }
        for word in [layout::range(index).0, layout::generation(index)] {
            self.catalog.word(word).store(generation, Ordering::Relaxed);
        }
    }

    /// Carries out a step of the input, if it is one of the peer. Returns `false` for a step of the
    /// link.
    fn step(
        &mut self,
        (step, form): (u8, u8),
        input: &mut Input<'_>,
        peer_memory: &Memory<'_>,
        channel: &Channel,
    ) -> bool {
        match step % 24 {
            0 => {
                let (at, bytes) = (input.number() as usize, input.bytes(form.into()));
                write(&self.lane, at % LANE, bytes);
                write(&self.catalog, at % CATALOG, bytes);
            }
            1 | 2 => {
                let (tag, length) = (input.number(), input.number() as u16);
                let payload = input.bytes(usize::from(length).min(600)).to_vec();
                self.record((form & 7, form >> 7), tag, length.into(), &payload);
            }
            3 | 4 => {
                let (index, number) = (form & 15, input.number() as u32);
                let most = if form & 8 == 0 { 1 << 18 } else { MAX_LENGTH };
                let (length, address) = (input.number() % most, input.number());
                let flags = input.number() & 0xff;
                let first = u64::from(number) | u64::from(index) << 32 | flags << 40;
                let ranges = match form >> 4 & 3 {
                    0 => vec![],
                    1 => vec![address],
                    _ => vec![address, length / 3, input.number(), length - length / 3],
                };
                let count = ranges.len().div_ceil(2) as u64;
                let announced = u64::from(form >> 6 & 1) * 0x200;
                let words = [&[first | count << 48, length, announced, input.number()], &ranges[..]].concat();
                let offered = protocol::offered(number, Offered::Open);
                self.lane.word(layout::offered(index.into())).store(offered, Ordering::Relaxed);
                self.words(OFFER, &words, &[]);
            }
            5 => {
                let words = [u64::from(form & 63), input.number(), 0x200, input.number()];
                self.words(BLOCK, &words, &[]);
            }
            6..=8 => {
                let index = usize::from(form & 3);
                let number =
                    channel.own_lane.word(layout::offered(index)).load(Ordering::Relaxed) & 0xffff_ffff;
                let low = if form & 4 == 0 { number } else { input.number() };
                let value = low | u64::from(form >> 4 & 3) << 32 | u64::from(form >> 6) << 48;
                let place = word(input.byte().unwrap_or(0), index);
                self.lane.word(place).store(value, Ordering::Release);
            }
            9 => {
                let generation =
                    channel.shared.catalog.word(layout::range(form.into()).0).load(Ordering::Relaxed);
                let direction = u64::from(step / 24 % 3) << 32 | input.number();
                let place = input.number();
                let words = [direction, u64::from(form) << 32 | input.number(), generation, place];
                let put = input.bytes(usize::from(form)).to_vec();
                self.words(REQUEST, &words, &put);
            }
            10 => {
                let words = [0, 1, 2, 3].map(|_| input.number());
                self.announce(peer_memory, usize::from(form & 7), input.number(), words);
            }
            _ => return false,
        }
        true
    }
}

/// Returns a word of a lane that the peer writes, of offer `index` or of the lane.
fn word(which: u8, index: usize) -> usize {
    let argument = |number| layout::argument(index, number);
    let (taken, front, request) = (layout::taken(index), layout::front(index), layout::request(index));
    let offer =
        [layout::offered(index), layout::progress(index), layout::back(index), layout::emptied(index)];
    let lane = [
        layout::CONSUMED,
        layout::WANTS_SPACE,
        layout::RETURNED,
        layout::INSIDE,
        layout::answer(index as u64),
    ];
    let all = [&offer[..], &[taken, front, request, argument(0), argument(1), argument(2)], &lane].concat();
    all[usize::from(which) % all.len()]
}

/// Calls all functions of a link while its peer writes what the input says: any bytes, or
/// well-formed records. Each call must return, and must not access other memory than that of its
/// arguments. `peer_memory` is memory that the peer announces.
pub fn hostile_peer(
    data: &[u8],
    [own_memory, peer_memory]: [&'static Memory<'static>; 2],
    importer: &'static Importer,
) {
    let mut input = Input(data);
    let Some(choice) = input.byte() else { return };
    // `None` if no descriptors are left.
    let _ = drive(&mut input, choice, [own_memory, peer_memory], importer);
    let is_whole = |area, length| is_filled(area, 0..GUARD) && is_filled(area, GUARD + length..FILLED.len());
    let is_all_whole = is_whole(FROM, 0) && is_whole(INTO, AREA) && is_whole(RANGE, 1000);
    assert!(is_all_whole, "memory that was passed to no call was written");
}

/// As [`hostile_peer`], for all functions of a mesh.
pub fn hostile_mesh_peer(data: &[u8], peer_memory: &'static Memory<'static>, importer: &'static Importer) {
    let mut input = Input(data);
    let Some(choice) = input.byte() else { return };
    let _ = drive_mesh(&mut input, choice, peer_memory, importer);
    let is_whole = |area, length| is_filled(area, 0..GUARD) && is_filled(area, GUARD + length..FILLED.len());
    let is_all_whole = is_whole(FROM, 0) && is_whole(INTO, AREA) && is_whole(RANGE, 1000);
    assert!(is_all_whole, "memory that was passed to no call was written");
}

/// Returns the address and length of a part of an area.
fn piece(area: usize, at: usize, length: usize) -> (*mut u8, usize) {
    let view = slice(area, at, length);
    (view.as_mut_ptr(), view.len())
}

fn drive_mesh(
    input: &mut Input<'_>,
    choice: u8,
    peer_memory: &'static Memory<'static>,
    importer: &'static Importer,
) -> Option<()> {
    let mut settings = LinkSettings::default();
    (settings.spin, settings.handshake) = (Duration::ZERO, Duration::ZERO);
    (settings.timeout, settings.max_unexpected) = (Some(Duration::ZERO), 1 << 16);
    let mut builder = LinkBuilder::new().settings(settings);
    builder.importer = (choice & 1 == 0).then_some(importer);
    let mut mesh = Mesh::new(&builder).ok()?;
    let (files, lane, catalog) = hostile_files()?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (socket, _other) = pair.ok()?;
    let peer = PeerProcess::new(socket, 0).ok()?;
    let channel = Channel::new(mesh.shared(), OwnLane::create(7).ok()?.0, files, (peer, 0)).ok()?;
    let mut peer = HostilePeer { lane, catalog, ring: Ring::Small, slot: 0 };
    peer.announce(peer_memory, 0, 2, [0; 4]);
    // An address at which no process listens.
    let address = LinkAddress::of_name("umf-fuzz-absent").ok()?;
    let process = mesh.insert(&address).ok()?;
    // Half of the peers are known, the others have to name themselves.
    mesh.adopt(Arc::clone(&channel), (choice & 2 == 0).then_some(process));
    if choice & 4 == 0 {
        peer.record((NAME, 0), 0, ADDRESS_SIZE, &address.to_bytes());
    }
    let any = |from| mesh::Wanted { from, tag: Some(TagMatch::ANY) };
    for token in 0..100 {
        let Some(step) = input.byte() else { break };
        let form = input.byte().unwrap_or(0);
        if peer.step((step, form), input, peer_memory, &channel) {
            continue;
        }
        let length = [3, 4000, 33_000, AREA][usize::from(form & 3)];
        let (tag, immediate) = ((form & 4 == 0).then_some(1), (form & 8 == 0).then_some(2));
        let label = mesh::Label { tag, immediate };
        let from = (form & 16 == 0).then_some(process);
        // SAFETY: leaked memory, which calls alone access.
        let (source, into) = unsafe {
            let into = match form >> 5 {
                0 => vec![piece(INTO, 5, 777), piece(INTO, 5000, 4000)],
                1 => vec![piece(INTO, 0, 100)],
                _ => vec![piece(INTO, 0, AREA)],
            };
            (Source::from_raw(&[piece(FROM, 0, length)]), Destination::from_raw(&into))
        };
        // SAFETY: as above.
        let done: Result<()> = unsafe {
            match step % 24 {
                11 | 12 => mesh.send(process, label, source, form & 32 == 0, token).map(drop),
                13 => mesh.inject(process, label, &FILLED[..300]),
                14 | 15 => mesh.receive(any(from), into, None, token),
                16 => mesh.receive(mesh::Wanted { from, tag: None }, into, Some(100), token),
                17 => {
                    mesh.cancel(input.number());
                    Ok(())
                }
                18 => {
                    let _ = mesh.peek(&any(from), (form & 32 == 0).then_some(token));
                    Ok(())
                }
                19 if form & 1 == 0 => {
                    mesh.receive_claimed(input.number(), into, token);
                    Ok(())
                }
                19 => {
                    mesh.discard_claimed(input.number());
                    Ok(())
                }
                20 => {
                    let key = mesh::RegionKey::from_number(input.number());
                    let local = match form & 16 {
                        0 => mesh::Transferring::Get(into),
                        _ => mesh::Transferring::Put(source),
                    };
                    mesh.transfer(process, key, input.number(), &local)
                }
                21 => {
                    let place = (mesh::RegionKey::from_number(input.number()), input.number());
                    let atomic = Atomic::from_code(input.number()).filter(|atomic| !atomic.compares());
                    let mut previous = [0; 16];
                    atomic.map_or(Ok(()), |atomic| {
                        mesh.change(process, place, atomic, (&FILLED[..16], &[]), &mut previous)
                    })
                }
                22 => mesh.tell_written(process, 5, 6),
                _ => {
                    mesh.progress();
                    Ok(())
                }
            }
        };
        let _ = done.map_err(|error| error.to_string());
        while let Some(completion) = mesh.next_completion() {
            let _ = format!("{completion:?}");
        }
    }
    Some(())
}

/// Returns the files of a hostile peer, as this process and as the peer has them.
fn hostile_files() -> Option<(PeerFiles, OwnLane, OwnCatalog)> {
    let ((lane, lane_fd), (catalog, catalog_fd)) = (OwnLane::create(7).ok()?, OwnCatalog::create(7).ok()?);
    let (peer_lane, peer_catalog) =
        (PeerLane::adopt(&lane_fd, 7).ok()??, PeerCatalog::adopt(&catalog_fd, 7).ok()??);
    let bell = Bell::create(false).ok()?.0;
    Some((PeerFiles { lane: peer_lane, catalog: peer_catalog, bell, nonce: 7 }, lane, catalog))
}

fn drive(
    input: &mut Input<'_>,
    choice: u8,
    [own_memory, peer_memory]: [&'static Memory<'static>; 2],
    importer: &'static Importer,
) -> Option<()> {
    let (files, lane, catalog) = hostile_files()?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (socket, _other) = pair.ok()?;
    let mut settings = LinkSettings::default();
    (settings.spin, settings.handshake) = (Duration::ZERO, Duration::ZERO);
    (settings.timeout, settings.max_unexpected) = (Some(Duration::ZERO), 1 << 16);
    settings.engine = Engine::ALL.get(usize::from(choice >> 1)).copied();
    let (shared, _fds) = InboxShared::create(settings, (choice & 1 == 0).then_some(importer), None).ok()?;
    let peer = PeerProcess::new(socket, 0).ok()?;
    let channel = Channel::new(&shared, OwnLane::create(7).ok()?.0, files, (peer, 0)).ok()?;
    let mut link = Link::new(Arc::clone(&channel));
    // One poll before a timeout, instead of thousands.
    link.inbox.is_oversubscribed = true;
    let mut peer = HostilePeer { lane, catalog, ring: Ring::Small, slot: 0 };
    peer.announce(peer_memory, 0, 2, [0; 4]);
    let (mut sends, mut receives, mut views, mut loans) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut ranges: Vec<Registration<'static>> = Vec::new();
    for _ in 0..100 {
        let Some(step) = input.byte() else { break };
        let form = input.byte().unwrap_or(0);
        if peer.step((step, form), input, peer_memory, &channel) {
            continue;
        }
        let done: Result<()> = match step % 24 {
            11 if form & 1 == 0 => link.probe(TagMatch::ANY).map(drop),
            11 => link.progress(),
            12 | 13 => destination(form, own_memory).and_then(|to| link.recv(TagMatch::ANY, to)).map(drop),
            14 => link.recv_view(TagMatch::ANY).map(|view| {
                let mut bytes = [0; 64];
                let _ = (view.read(0, &mut bytes), view.slice().map(|slice| slice.copy_to(&mut bytes)));
                views.push(view);
            }),
            15 => Ok((views.truncate(usize::from(form & 3)), loans.truncate(usize::from(form >> 2))).0),
            16 => link.send(1, slice(FROM, 0, [3, 4000, 33_000, AREA][usize::from(form & 3)])),
            17 => {
                let length = [3, 4000, 33_000, AREA][usize::from(form & 3)];
                let source = match form >> 2 & 3 {
                    0 => Source::list([slice(FROM, 0, length / 2), slice(FROM, length / 2 + 1, 1000)]),
                    1 => own_memory.into(),
                    _ => slice(FROM, 0, length).into(),
                };
                link.start_send(1, source).map(|send| sends.push(send))
            }
            18 => destination(form, own_memory).map(|to| receives.push(link.start_recv(TagMatch::ANY, to))),
            19 if form & 1 == 0 && !sends.is_empty() => {
                drop(sends.swap_remove(usize::from(form >> 1) % sends.len()));
                Ok(())
            }
            19 if form & 2 == 0 && !receives.is_empty() => {
                drop(receives.swap_remove(usize::from(form >> 2) % receives.len()));
                Ok(())
            }
            19 | 20 => link.finish(&mut sends, &mut receives),
            21 => own_memory.part(10, 100).and_then(|part| link.hand_over(2, part)).map(|loan| {
                let _ = loan.wait(Some(Duration::ZERO));
                loans.push(loan);
            }),
            22 => {
                let (slot, length) = (usize::from(form & 7), input.number() % (1 << 20));
                let (generation, offset) = (input.number() | 1, input.number());
                let key = RemoteKey { access: RemoteAccess::GetPut, slot, generation, length, nonce: 7 };
                if form & 8 == 0 {
                    let flags = 3 | input.number() & 0x300;
                    peer.announce(peer_memory, slot, generation, [input.number(), length, flags, offset]);
                }
                let places = [Span { offset: input.number() as usize, length: 20_500 }];
                match form & 16 {
                    0 => link.get(&key, &places, slice(INTO, 0, 20_500)).map(drop),
                    _ => link.put(&key, &places, slice(FROM, 0, 20_500)).map(drop),
                }
            }
            _ if ranges.len() < 4 => {
                // SAFETY: leaked memory, which stays.
                let registration = unsafe { link.register(slice(RANGE, 0, 1000), RemoteAccess::GetPut) };
                registration.map(|registration| ranges.push(registration))
            }
            _ => ranges.pop().map_or(Ok(()), |mut range| range.end(Some(Duration::ZERO))),
        };
        let _ = done.map_err(|error| error.to_string());
    }
    let _ = format!("{:?}", link.statistics());
    Some(())
}
