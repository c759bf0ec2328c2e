//! Two ends of a link in two threads: what is sent arrives, by each engine, in any form.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod collectives;
mod one_sided;
mod ranks;
mod reducing;
mod requests;
mod table;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use umf_core::{Address, Layout, Pool, View, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_link::{Destination, Engine, Error, Link, LinkBuilder, LinkSettings, Memory, Source, TagMatch};
use umf_pool_proxy::ProxyPool;
use umf_provider_host::{HostBuilder, HostImport, HostProvider};

const SECOND: Option<Duration> = Some(Duration::from_secs(10));

fn importer() -> &'static Importer {
    static IMPORTER: OnceLock<Importer> = OnceLock::new();
    IMPORTER.get_or_init(|| Importer::builder().import(Arc::new(HostImport::new())).build().unwrap())
}

fn exporter() -> &'static Exporter {
    static EXPORTER: OnceLock<Exporter> = OnceLock::new();
    EXPORTER.get_or_init(|| Exporter::new(ExporterSettings::default()).unwrap())
}

/// Exported memory that stays.
fn memory(size: usize) -> Memory<'static> {
    static POOL: OnceLock<Arc<ProxyPool>> = OnceLock::new();
    let build = || ProxyPool::new(shared().build().unwrap()).unwrap();
    allocate(POOL.get_or_init(build), size)
}

/// The same, with a file of its own, which others can write, or not.
fn isolated(size: usize, is_read_only: bool) -> Memory<'static> {
    static POOLS: [OnceLock<Arc<ProxyPool>>; 2] = [const { OnceLock::new() }; 2];
    let build =
        || ProxyPool::new(shared().isolate(true).read_only_export(is_read_only).build().unwrap()).unwrap();
    allocate(POOLS[usize::from(is_read_only)].get_or_init(build), size)
}

fn shared() -> HostBuilder {
    HostProvider::builder().visibility(Visibility::Shared)
}

fn allocate(pool: &Arc<ProxyPool>, size: usize) -> Memory<'static> {
    let exporter = exporter();
    let address: Address = pool.allocate(Layout::new(size, 16).unwrap()).unwrap();
    // SAFETY: the block stays, and nothing refers into it.
    let handle = unsafe { exporter.handle(address) }.unwrap();
    // SAFETY: as above.
    let slice = unsafe { View::new(address.as_ptr().unwrap(), size) }.unwrap();
    Memory::new(&handle, slice).unwrap()
}

fn pair_with(settings: [LinkSettings; 2]) -> (Link, Link) {
    let [mine, theirs] = settings;
    let endpoint = LinkBuilder::new().settings(mine).importer(importer()).bind().unwrap();
    let address = endpoint.address();
    let peer = std::thread::spawn(move || {
        LinkBuilder::new().settings(theirs).importer(importer()).connect(&address, SECOND).unwrap()
    });
    let mut one = endpoint.accept(SECOND).unwrap();
    let mut other = peer.join().unwrap();
    one.set_timeout(SECOND);
    other.set_timeout(SECOND);
    (one, other)
}

fn pair() -> (Link, Link) {
    pair_with([LinkSettings::default(), LinkSettings::default()])
}

fn forced(engine: Engine) -> LinkSettings {
    let mut settings = LinkSettings::default();
    settings.engine = Some(engine);
    settings
}

fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    let (mut one, mut receiver) = pair();
    let sizes = [0, 1, 8, 239, 240, 241, 488, 489, 4096, 4097, 32_768, 65_537, 1 << 20, (3 << 20) + 7];
    let peer = std::thread::spawn(move || {
        for (number, size) in sizes.into_iter().enumerate() {
            let mut into = vec![0; size + 3];
            let received = receiver.recv(number as u64, &mut into).unwrap();
            assert_eq!((received.tag, received.length), (number as u64, size));
            assert_eq!(into[..size], content(size, number as u64), "{size}");
            assert_eq!(into[size..], [0; 3], "nothing behind it is touched");
        }
        receiver
    });
    for (number, size) in sizes.into_iter().enumerate() {
        one.send(number as u64, &content(size, number as u64)).unwrap();
    }
    let receiver = peer.join().unwrap();
    assert_eq!(one.statistics().sent.messages, sizes.len() as u64);
    let mut all = Link::statistics(&one).received();
    all.messages += receiver.statistics().received_by(Engine::Inline).messages;
    assert_eq!(all.messages, sizes.iter().filter(|size| **size <= 4096).count() as u64);
}

/// What is sent and received, by each engine that can.
fn by(engine: Engine, from_memory: bool, into_memory: bool) {
    let (mut one, mut other) = pair_with([forced(engine), forced(engine)]);
    if engine == Engine::Cma
        && let Err(why) = other.engines().cma()
    {
        println!("umf-skip: by {engine}: {why}");
        return;
    }
    for (round, size) in [5000, 70_000, 2_000_003].into_iter().enumerate() {
        let bytes = content(size, round as u64 + 9);
        let (from, into) = (memory(size), memory(size));
        from.slice().copy_from(&bytes);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if from_memory { one.send(3, &from) } else { one.send(3, &bytes) }.unwrap();
            });
            let mut plain = vec![0; size];
            let received =
                if into_memory { other.recv(3, &into) } else { other.recv(TagMatch::ANY, &mut plain) };
            assert_eq!(received.unwrap().length, size);
            if into_memory {
                into.slice().copy_to(&mut plain);
            }
            assert!(plain == bytes, "{engine} {size} {from_memory} {into_memory}");
        });
    }
    let received = other.statistics();
    assert_eq!(received.received_by(engine).messages, 3, "{engine} {received:?}");
    assert_eq!((received.refused_cma, received.refused_mapped), (0, 0));
}

#[test]
fn bounce_carries_messages() {
    by(Engine::Bounce, false, false);
    by(Engine::Bounce, true, true);
}

#[test]
fn cma_carries_messages() {
    by(Engine::Cma, false, false);
    by(Engine::Cma, true, true);
}

#[test]
fn mapped_carries_messages() {
    by(Engine::Mapped, true, false);
    by(Engine::Mapped, true, true);
}

#[test]
fn both_carries_messages() {
    by(Engine::Both, true, true);
}

#[test]
fn impossible_engine_is_refused_and_message_stays() {
    let (mut one, mut other) = pair_with([forced(Engine::Mapped), LinkSettings::default()]);
    let bytes = content(100_000, 1);
    let refused = one.send(1, &bytes).unwrap_err();
    assert!(matches!(&refused, Error::EngineImpossible { engine: Engine::Mapped, .. }), "{refused}");
    let (mut one, mut two) = pair_with([LinkSettings::default(), forced(Engine::Mapped)]);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            one.set_timeout(Some(Duration::from_millis(300)));
            one.send(1, &bytes)
        });
        let mut into = vec![0; 100_000];
        let refused = two.recv(1, &mut into).unwrap_err();
        assert!(matches!(&refused, Error::EngineImpossible { engine: Engine::Mapped, .. }), "{refused}");
        assert!(two.probe(1).unwrap().is_some(), "it stays");
        assert!(matches!(sender.join().unwrap(), Err(Error::TimedOut { .. })));
    });
    assert!(matches!(one.check_alive(), Ok(())));
    other.set_timeout(Some(Duration::from_millis(1)));
    assert!(matches!(other.recv(1, &mut [0; 8]), Err(Error::TimedOut { .. })));
}

#[test]
fn receive_matches_tag_in_sending_order() {
    let (mut one, mut other) = pair();
    for (tag, value) in [(1, 10), (2, 20), (1, 11), (3, 30), (2, 21)] {
        one.send(tag, &[value]).unwrap();
    }
    let mut take = |wanted: TagMatch| {
        let mut byte = [0];
        let tag = other.recv(wanted, &mut byte).unwrap().tag;
        (tag, byte[0])
    };
    assert_eq!(take(TagMatch::tag(3)), (3, 30));
    assert_eq!(take(TagMatch::tag(2)), (2, 20));
    assert_eq!(take(TagMatch::masked(1, 1)), (1, 10));
    assert_eq!(take(TagMatch::ANY), (1, 11));
    assert_eq!(take(TagMatch::ANY), (2, 21));
    assert_eq!(other.probe(TagMatch::ANY).unwrap(), None);
    assert_eq!(other.statistics().unexpected.messages, 3);
}

#[test]
fn truncated_message_stays_in_queue() {
    let (mut one, mut other) = pair();
    let bytes = content(300_000, 4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            one.send(1, &bytes[..50]).unwrap();
            one.send(2, &bytes).unwrap();
        });
        let refused = other.recv(1, &mut [0; 49]).unwrap_err();
        assert_eq!(refused, Error::Truncated { length: 50, capacity: 49 });
        assert_eq!(other.recv(1, &mut [0; 50]).unwrap().length, 50);
        let refused = other.recv(2, &mut [0; 49]).unwrap_err();
        assert_eq!(refused, Error::Truncated { length: 300_000, capacity: 49 });
        assert_eq!(other.probe(2).unwrap().unwrap().length, 300_000);
        let mut into = vec![0; 300_000];
        other.recv(2, &mut into).unwrap();
        assert!(into == bytes);
    });
}

/// Beyond the bound, senders keep the data: nothing is lost, and a message behind it can be
/// received.
#[test]
fn unexpected_data_is_bounded_by_max_unexpected() {
    for length in [1000, 0] {
        assert_bounded(length);
    }
}

fn assert_bounded(length: usize) {
    let mut small = LinkSettings::default();
    small.max_unexpected = 10_000;
    let (mut one, mut other) = pair_with([LinkSettings::default(), small]);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (one, is_over) = (&mut one, &is_over);
        scope.spawn(move || {
            let bytes = content(length, 7);
            let mut sends: Vec<_> = (0..1000).map(|_| one.start_send(1, &bytes).unwrap()).collect();
            sends.push(one.start_send(2, b"behind").unwrap());
            while !sends.iter().all(umf_link::SendRequest::is_done) {
                for request in &mut sends {
                    one.test_send(request).unwrap();
                }
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut into = [0; 1000];
        assert_eq!(other.recv(2, &mut into).unwrap().length, 6);
        // What was in the ring when the bound was reached, and what is announced.
        let held = other.statistics().unexpected;
        // The one that is received, too, if it was read while the receiver was about to sleep.
        assert!((1000..=1001).contains(&held.messages), "{held:?}");
        assert!(!is_over.load(std::sync::atomic::Ordering::Relaxed), "the sender has data left");
        for _ in 0..1000 {
            assert_eq!(other.recv(1, &mut into).unwrap().length, length);
            assert!(into[..length] == content(length, 7));
        }
    });
    one.send(1, b"short").unwrap();
    assert_eq!(other.recv(1, &mut [0; 5]).unwrap().engine, Engine::Inline, "data is taken again");
}

#[test]
fn posted_receives_get_messages_in_order() {
    let (mut one, mut other) = pair();
    let (mut a, mut b, mut c, mut d) = ([0], [0], [0], [0]);
    let mut first = other.start_recv(TagMatch::ANY, &mut a);
    let mut second = other.start_recv(5, &mut b);
    let mut third = other.start_recv(TagMatch::ANY, &mut c);
    for (tag, value) in [(5, 1), (9, 2), (5, 3), (5, 4)] {
        one.send(tag, &[value]).unwrap();
    }
    // Whatever the order of the calls.
    assert_eq!(other.test_recv(&mut third).unwrap().unwrap().tag, 9);
    assert_eq!(other.test_recv(&mut second).unwrap().unwrap().tag, 5);
    assert_eq!(other.test_recv(&mut first).unwrap().unwrap().tag, 5);
    drop((first, second, third));
    assert_eq!((a, b, c), ([1], [3], [2]));
    // A receive that waits comes after those that are posted; a dropped one leaves its message.
    let posted = other.start_recv(5, &mut a);
    drop(posted);
    other.recv(5, &mut d).unwrap();
    assert_eq!(d, [4]);
    let posted = other.start_recv(6, &mut a);
    one.send(6, &[7]).unwrap();
    assert_eq!(other.probe(6).unwrap(), None, "it belongs to the posted receive");
    drop(posted);
    assert!(other.probe(6).unwrap().is_some());
    other.recv(6, &mut d).unwrap();
    assert_eq!(d, [7]);
}

#[test]
fn full_ring_blocks_sender() {
    let (mut one, mut other) = pair();
    one.set_timeout(Some(Duration::from_millis(20)));
    let mut count = 0_u64;
    let full = loop {
        match one.send(0, &count.to_le_bytes()) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::TimedOut { .. }), "{full}");
    assert_eq!(count, 255, "all slots of the large ring, but that of the word that it is used");
    for expected in 0..count {
        let mut bytes = [0; 8];
        other.recv(TagMatch::ANY, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), expected);
    }
    one.send(0, &[1]).unwrap();
    assert_eq!(other.recv(0, &mut [0; 1]).unwrap().length, 1);
}

#[test]
fn timed_out_send_is_withdrawn() {
    let (mut one, mut other) = pair();
    one.set_timeout(Some(Duration::from_millis(20)));
    let bytes = content(1 << 20, 3);
    assert!(matches!(one.send(1, &bytes), Err(Error::TimedOut { .. })));
    drop(one.start_send(1, &bytes).unwrap());
    one.send(1, b"later").unwrap();
    let mut into = vec![0; 1 << 20];
    assert_eq!(other.recv(1, &mut into).unwrap().length, 5);
    assert_eq!(other.statistics().withdrawn, 2);
    assert_eq!(one.statistics().withdrawn, 1, "the request's is its own");
}

#[test]
fn handed_over_block_returns_when_view_is_dropped() {
    let (mut one, mut other) = pair();
    let memory = memory(1 << 20);
    memory.slice().copy_from(&content(1 << 20, 8)[..]);
    for round in 0..200_u64 {
        let lent = one.hand_over(round, memory.part(4096, 8192).unwrap()).unwrap();
        let view = other.recv_view(TagMatch::ANY).unwrap();
        assert_eq!((view.tag(), view.len()), (round, 8192));
        let mut bytes = vec![0; 8192];
        view.read(0, &mut bytes).unwrap();
        assert!(bytes[8..] == content(1 << 20, 8)[4104..12_288]);
        assert!(matches!(view.read(1, &mut bytes), Err(Error::OutOfBounds { .. })));
        view.slice().unwrap().cast().unwrap().set(0, round).unwrap();
        assert!(!lent.is_returned());
        drop(view);
        lent.wait(SECOND).unwrap();
        assert!(lent.is_returned());
        assert_eq!(memory.slice().cast::<u64>().unwrap().get(512).unwrap(), round, "it is the same memory");
    }
    // More than there are descriptors, of which the peer gives none back.
    let mut lent = Vec::new();
    one.set_timeout(Some(Duration::from_millis(5)));
    let full = loop {
        match one.hand_over(1, &memory) {
            Ok(one) => lent.push(one),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::TimedOut { .. }) && lent.len() == 64, "{full} {}", lent.len());
    // As a copy, too.
    let mut into = vec![0; 1 << 20];
    assert_eq!(other.recv(1, &mut into).unwrap().engine, Engine::Mapped);
    assert!(lent[0].is_returned() && !lent[1].is_returned());
    one.send(5, b"inline").unwrap();
    assert!(matches!(other.recv_view(5), Err(Error::WrongForm { tag: 5, .. })));
    assert_eq!(other.recv(5, &mut into).unwrap().length, 6);
}

#[test]
fn handle_table_entries_are_reused() {
    let (mut one, mut other) = pair();
    let blocks: Vec<_> = (0..300).map(|_| memory(4096)).collect();
    for round in 0..3 {
        for (number, block) in blocks.iter().enumerate() {
            let value = (round * 1000 + number) as u64;
            block.slice().cast().unwrap().set(1, value).unwrap();
            let lent = one.hand_over(0, block).unwrap();
            let view = other.recv_view(0).unwrap();
            assert_eq!(view.slice().unwrap().cast::<u64>().unwrap().get(1), Some(value));
            drop(view);
            assert!(lent.is_returned());
        }
    }
}

#[test]
fn lists_are_sent_and_received() {
    for engine in [None, Some(Engine::Cma), Some(Engine::Bounce), Some(Engine::Mapped)] {
        let settings = || engine.map_or_else(LinkSettings::default, forced);
        let (mut one, mut other) = pair_with([settings(), settings()]);
        if engine == Some(Engine::Cma) && other.engines().cma().is_err() {
            continue;
        }
        let from = memory(1 << 20);
        let bytes = content(1 << 20, 5);
        from.slice().copy_from(&bytes);
        for (stride, length) in [(4096, 1000), (301, 301), (700, 13)] {
            let places: Vec<usize> = (0..(1 << 20) - stride).step_by(stride).collect();
            let expected: Vec<u8> = places.iter().flat_map(|at| &bytes[*at..at + length]).copied().collect();
            // More entries than are told of: these go through bounce buffers, or not at all.
            let is_refused = stride != length
                && places.len() > 1024
                && engine.is_some_and(|engine| engine != Engine::Bounce);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let list = Source::list(places.iter().map(|at| from.part(*at, length).unwrap()));
                    assert_eq!(list.len(), expected.len());
                    let sent = one.send(1, list);
                    assert_eq!(matches!(sent, Err(Error::EngineImpossible { .. })), is_refused, "{sent:?}");
                });
                if is_refused {
                    return;
                }
                let mut into = vec![0; expected.len()];
                let received = other.recv(1, Destination::list(into.chunks_mut(777))).unwrap();
                assert!(into == expected, "{engine:?} {stride}");
                assert!(engine.is_none_or(|engine| received.engine == engine));
            });
        }
    }
}

#[test]
fn concurrent_exchange_completes() {
    for engine in [None, Some(Engine::Bounce)] {
        let settings = || engine.map_or_else(LinkSettings::default, forced);
        let (mut one, mut other) = pair_with([settings(), settings()]);
        let run = |link: &mut Link, mine: u64, theirs: u64| {
            for round in 0..20 {
                let bytes = content(500_000, mine + round);
                let mut into = vec![0; 500_000];
                link.exchange(1, &bytes, 1, &mut into).unwrap();
                assert!(into == content(500_000, theirs + round));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(&mut one, 100, 200));
            run(&mut other, 200, 100);
        });
    }
}

#[test]
fn closed_is_reported_after_last_message() {
    let (mut one, mut other) = pair();
    one.send(1, b"last words").unwrap();
    drop(one);
    assert_eq!(other.recv(1, &mut [0; 10]).unwrap().length, 10);
    assert!(matches!(other.recv(1, &mut [0; 10]), Err(Error::Closed { .. })));
    assert!(matches!(other.send(1, b"x"), Err(Error::Closed { .. })));
    assert!(matches!(other.send(1, &vec![0; 1 << 20]), Err(Error::Closed { .. })));
}

#[test]
fn event_fd_reports_messages_and_closing() {
    let (mut one, mut other) = pair();
    let readable = |link: &Link| {
        use std::os::fd::AsRawFd;
        let mut poll =
            libc::pollfd { fd: link.event_fd().unwrap().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure.
        unsafe { libc::poll(&raw mut poll, 1, 2000) == 1 }
    };
    for _ in 0..3 {
        other.arm().unwrap();
        assert_eq!(other.probe(TagMatch::ANY).unwrap(), None);
        one.send(1, b"ring").unwrap();
        assert!(readable(&other));
        other.recv(1, &mut [0; 4]).unwrap();
    }
    other.arm().unwrap();
    drop(one);
    assert!(readable(&other));
    assert!(matches!(other.check_alive(), Err(Error::Closed { .. })));
}

#[test]
fn named_endpoint_is_found_and_exclusive() {
    let name = format!("test-{}", std::process::id());
    let endpoint = LinkBuilder::new().named(&name).unwrap();
    assert!(matches!(LinkBuilder::new().named(&name), Err(Error::NameTaken { .. })));
    let address = umf_link::LinkAddress::of_name(&name).unwrap();
    assert_eq!(address.socket(), endpoint.address().socket());
    assert!(matches!(endpoint.accept(Some(Duration::ZERO)), Err(Error::TimedOut { .. })));
    let connected = LinkBuilder::new().connect(&address, Some(Duration::from_millis(50)));
    assert!(matches!(connected, Err(Error::TimedOut { .. })), "the endpoint does not accept");
    drop(endpoint);
    let connected = LinkBuilder::new().connect(&address, SECOND);
    assert!(matches!(connected, Err(Error::NotListening { .. })));
    for bad in ["", "a b", &"x".repeat(65)] {
        assert!(matches!(LinkBuilder::new().named(bad), Err(Error::BadName { .. })));
    }
}
