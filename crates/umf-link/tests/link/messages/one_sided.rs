//! Registered ranges, `put` and `get`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use umf_link::{
    Engine, Error, KEY_SIZE, Link, LinkSettings, Memory, Registration, RemoteAccess, RemoteKey, Source, Span,
};

use super::{SECOND, content, forced, memory, pair, pair_with};

fn of(engine: Option<Engine>) -> LinkSettings {
    engine.map_or_else(LinkSettings::default, forced)
}

/// Memory of pools, which stays.
fn register(link: &Link, memory: &'static Memory<'static>, access: RemoteAccess) -> Registration<'static> {
    // SAFETY: the memory stays, and shows itself as volatile memory alone.
    unsafe { link.register(memory, access) }.unwrap()
}

fn leaked(memory: Memory<'static>) -> &'static Memory<'static> {
    Box::leak(Box::new(memory))
}

fn bytes_of(memory: &Memory<'_>) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.slice().copy_to(&mut bytes);
    bytes
}

/// Does the peer's requests until the other thread is done.
fn serving<R: Send>(owner: &mut Link, ask: impl FnOnce() -> R + Send) -> R {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let result = ask();
            is_done.store(true, Ordering::Release);
            result
        });
        while !is_done.load(Ordering::Acquire) && !asking.is_finished() {
            owner.progress().unwrap();
            std::thread::yield_now();
        }
        asking.join().unwrap()
    })
}

#[test]
fn each_engine_carries_put_and_get() {
    const SIZE: usize = 300_000;
    for (engine, is_pool) in [
        (None, true),
        (None, false),
        (Some(Engine::Mapped), true),
        (Some(Engine::Cma), true),
        (Some(Engine::Cma), false),
        (Some(Engine::Bounce), true),
        (Some(Engine::Bounce), false),
    ] {
        let (mut owner, mut other) = pair_with([LinkSettings::default(), of(engine)]);
        if engine == Some(Engine::Cma) && other.engines().cma().is_err() {
            println!("umf-skip: put and get by the kernel: process_vm_readv is refused");
            continue;
        }
        let shared = leaked(memory(SIZE));
        let mut private = vec![0_u8; SIZE];
        let first = content(SIZE, 3);
        shared.slice().copy_from(&first);
        private.copy_from_slice(&first);
        // SAFETY: the registration ends below, before the vector is read or dropped.
        let mut range = unsafe {
            if is_pool {
                owner.register(shared, RemoteAccess::GetPut)
            } else {
                owner.register(&mut private, RemoteAccess::GetPut)
            }
        }
        .unwrap();
        let key = RemoteKey::from_bytes(&range.key().to_bytes()).unwrap();
        let second = content(100_000, 4);
        let used = serving(&mut owner, || {
            let mut all = vec![0; SIZE];
            let used = other.get(&key, 0, &mut all).unwrap();
            assert!(all == first, "{engine:?}");
            // A list on both sides, of which some pieces touch.
            let places: Vec<Span> =
                (0..100).map(|at| Span { offset: 2900 * (99 - at), length: 1000 }).collect();
            assert_eq!(other.put(&key, &places, Source::list(second.chunks(777))).unwrap(), used);
            let mut back = vec![0; 100_000];
            assert_eq!(other.get(&key, &places, &mut back).unwrap(), used);
            assert!(back == second, "{engine:?}");
            assert_eq!(other.put(&key, SIZE, &[]).unwrap(), used, "nothing, at the end");
            used
        });
        range.end(SECOND).unwrap();
        drop(range);
        let now = if is_pool { bytes_of(shared) } else { private };
        let mut expected = first.clone();
        for (number, piece) in second.chunks(1000).enumerate() {
            expected[2900 * (99 - number)..][..1000].copy_from_slice(piece);
        }
        assert!(now == expected, "gaps are as they were: {engine:?}");
        assert!(engine.is_none_or(|engine| engine == used), "{engine:?} {used}");
        let seen = other.statistics();
        assert_eq!((seen.got.messages, seen.put.messages, seen.got.bytes), (2, 2, SIZE as u64 + 100_000));
        assert_eq!(owner.statistics().served.messages > 0, used == Engine::Bounce);
        let gone = other.get(&key, 0, &mut [0; 8]).unwrap_err();
        assert!(matches!(gone, Error::Expired { .. }), "{gone}");
    }
}

#[test]
fn transfer_beyond_key_is_refused() {
    for settings in [LinkSettings::default(), forced(Engine::Bounce)] {
        let (mut owner, mut other) = pair_with([LinkSettings::default(), settings]);
        let range = leaked(memory(10_000));
        let before = content(10_000, 9);
        range.slice().copy_from(&before);
        let reads = register(&owner, range, RemoteAccess::Get);
        let writes = register(&owner, range, RemoteAccess::Put);
        let mut into = [0; 100];
        let refused = serving(&mut owner, || {
            [
                other.put(&reads.key(), 0, b"x").unwrap_err(),
                other.get(&writes.key(), 0, &mut into).unwrap_err(),
                other.get(&reads.key(), 9_901, &mut into).unwrap_err(),
                other.get(&reads.key(), usize::MAX, &mut into).unwrap_err(),
                other.get(&reads.key(), &[Span { offset: 0, length: 99 }], &mut into).unwrap_err(),
            ]
        });
        assert!(
            matches!(refused[0], Error::NotAllowed { what: "put", allowed: RemoteAccess::Get }),
            "{}",
            refused[0]
        );
        assert!(matches!(refused[1], Error::NotAllowed { what: "get", .. }));
        assert!(matches!(refused[2], Error::OutOfBounds { offset: 9_901, length: 100, size: 10_000 }));
        assert!(matches!(refused[3], Error::OutOfBounds { .. }));
        assert!(matches!(refused[4], Error::LengthMismatch { remote: 99, local: 100 }));
        assert!(matches!(owner.get(&reads.key(), 0, &mut into), Err(Error::ForeignKey)), "its own");
        let (mut third, _fourth) = pair();
        assert!(matches!(third.get(&reads.key(), 0, &mut into), Err(Error::ForeignKey)));
        let key = reads.key();
        drop((reads, writes));
        assert!(matches!(other.get(&key, 0, &mut into), Err(Error::Expired { .. })));
        // Another range in the same place.
        let next = register(&owner, range, RemoteAccess::GetPut);
        assert!(matches!(other.get(&key, 0, &mut into), Err(Error::Expired { .. })), "{next:?}");
        assert!(bytes_of(range) == before);
    }
}

/// A key that its holder has changed, so that it grants more.
fn forged(key: RemoteKey, change: impl FnOnce(&mut [u8; KEY_SIZE])) -> RemoteKey {
    let mut bytes = key.to_bytes();
    change(&mut bytes);
    let sum = crc32fast::hash(&bytes[..KEY_SIZE - 4]).to_le_bytes();
    bytes[KEY_SIZE - 4..].copy_from_slice(&sum);
    RemoteKey::from_bytes(&bytes).unwrap()
}

#[test]
fn owner_refuses_forged_keys() {
    let (mut owner, mut other) = pair_with([LinkSettings::default(), forced(Engine::Bounce)]);
    let block = leaked(memory(30_000));
    let before = content(30_000, 5);
    block.slice().copy_from(&before);
    // SAFETY: the memory stays, and shows itself as volatile memory alone.
    let range = unsafe { owner.register(block.part(10_000, 10_000).unwrap(), RemoteAccess::Get) }.unwrap();
    let longer = forged(range.key(), |bytes| bytes[16..24].copy_from_slice(&20_000_u64.to_le_bytes()));
    let writable = forged(range.key(), |bytes| bytes[5] = RemoteAccess::GetPut as u8);
    let other_slot = forged(range.key(), |bytes| bytes[6] += 1);
    let mut into = vec![0; 16_000];
    let refused = serving(&mut owner, || {
        [
            other.get(&longer, 1, &mut into[..10_000]).unwrap_err(),
            other.get(&longer, 4000, &mut into).unwrap_err(),
            other.put(&writable, 0, &[1; 100]).unwrap_err(),
            other.get(&other_slot, 0, &mut into[..8]).unwrap_err(),
        ]
    });
    assert!(matches!(refused[0], Error::OutOfBounds { .. }), "{}", refused[0]);
    assert!(matches!(refused[1], Error::OutOfBounds { .. }), "{}", refused[1]);
    assert!(matches!(refused[2], Error::NotAllowed { .. }), "{}", refused[2]);
    assert!(matches!(refused[3], Error::Expired { .. }), "{}", refused[3]);
    assert!(bytes_of(block) == before);
    let mut into = vec![0; 10_000];
    serving(&mut owner, || other.get(&range.key(), 0, &mut into)).unwrap();
    assert!(into == before[10_000..20_000]);
}

#[test]
fn concurrent_puts_complete() {
    let (mut one, mut other) = pair_with([forced(Engine::Bounce), forced(Engine::Bounce)]);
    let run = |link: &mut Link, mine: u64, theirs: u64| {
        let mut board = vec![0; 150_000];
        link.exposing(&mut board, RemoteAccess::Put, |link, key| {
            let mut bytes = [0; KEY_SIZE];
            link.exchange(1, &key.to_bytes(), 1, &mut bytes).unwrap();
            let key = RemoteKey::from_bytes(&bytes).unwrap();
            assert_eq!(link.put(&key, 50_000, &content(100_000, mine)).unwrap(), Engine::Bounce);
            link.exchange(2, &[1], 2, &mut [0]).unwrap();
        })
        .unwrap();
        assert!(board[..50_000] == [0; 50_000] && board[50_000..] == content(100_000, theirs));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(&mut one, 7, 8));
        run(&mut other, 8, 7);
    });
}

#[test]
fn timed_out_put_may_complete_later() {
    let (mut owner, mut other) = pair_with([LinkSettings::default(), forced(Engine::Bounce)]);
    let range = leaked(memory(100_000));
    range.slice().copy_from(&[0; 100_000][..]);
    let registration = register(&owner, range, RemoteAccess::GetPut);
    let key = registration.key();
    other.set_timeout(Some(Duration::from_millis(20)));
    for value in [1, 2, 3] {
        let late = other.put(&key, 0, &[value; 100_000]).unwrap_err();
        assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    }
    assert!(bytes_of(range) == [0; 100_000], "the owner was in no call");
    owner.progress().unwrap();
    let now = bytes_of(range);
    let written = now.iter().take_while(|byte| **byte == 1).count();
    assert!(written >= 16_384 && written.is_multiple_of(16_384), "{written}");
    assert!(now[written..].iter().all(|byte| *byte == 0));
    other.set_timeout(SECOND);
    serving(&mut owner, || other.put(&key, 99_990, &[2; 10])).unwrap();
    assert_eq!(bytes_of(range)[99_980..], [[0; 10], [2; 10]].concat());
    // Requests that were not read when the range ended write nothing.
    other.set_timeout(Some(Duration::from_millis(20)));
    other.put(&key, 0, &[9; 100_000]).unwrap_err();
    drop(registration);
    owner.progress().unwrap();
    assert!(!bytes_of(range).contains(&9));
}

/// Registrations end while the peer copies. After the end of one, its range is not written.
#[test]
fn ended_registration_is_not_written() {
    for settings in [LinkSettings::default(), forced(Engine::Cma), forced(Engine::Bounce)] {
        let (mut owner, other) = pair_with([LinkSettings::default(), settings.clone()]);
        if settings.engine == Some(Engine::Cma) && other.engines().cma().is_err() {
            continue;
        }
        let mut asking = other;
        let latest = std::sync::Mutex::new(None::<RemoteKey>);
        let (is_over, puts) = (AtomicBool::new(false), AtomicU64::new(0));
        let block = leaked(memory(60_000));
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| {
                let bytes = [7; 60_000];
                while !is_over.load(Ordering::Relaxed) {
                    let Some(key) = *latest.lock().unwrap() else { continue };
                    match asking.put(&key, 0, &bytes) {
                        Ok(_) => puts.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Expired { .. }) => 0,
                        Err(error) => panic!("{error}"),
                    };
                }
            });
            for round in 0..60_u64 {
                let before = puts.load(Ordering::Relaxed);
                let mut range = register(&owner, block, RemoteAccess::Put);
                *latest.lock().unwrap() = Some(range.key());
                // At least one in some rounds, and in the midst of one in others.
                while round.is_multiple_of(4) && puts.load(Ordering::Relaxed) == before {
                    owner.progress().unwrap();
                }
                for _ in 0..round % 50 {
                    owner.progress().unwrap();
                }
                range.end(SECOND).unwrap();
                block.slice().copy_from(&[0; 60_000][..]);
                for _ in 0..20 {
                    owner.progress().unwrap();
                    std::thread::yield_now();
                }
                assert!(bytes_of(block) == [0; 60_000], "{settings:?}");
            }
            is_over.store(true, Ordering::Relaxed);
            asks.join().unwrap();
        });
        assert!(puts.into_inner() >= 15);
    }
}

#[test]
fn range_slots_are_bounded_and_reused() {
    let (owner, mut other) = pair();
    let block = leaked(memory(4096));
    let all: Vec<_> = (0..1024).map(|_| register(&owner, block, RemoteAccess::Get)).collect();
    // SAFETY: as in `register`.
    let refused = unsafe { owner.register(block, RemoteAccess::Get) }.unwrap_err();
    assert!(matches!(refused, Error::TooManyRanges { most: 1024 }), "{refused}");
    assert!(all.iter().all(|range| other.get(&range.key(), 0, &mut [0; 4096]).is_ok()));
    drop(all);
    let again = register(&owner, block, RemoteAccess::Get);
    assert!(other.get(&again.key(), 0, &mut [0; 4096]).is_ok());
    let mut sums = [1.0_f32; 8];
    let sum = umf_link::Reduction::of::<f32>(umf_link::Operation::Sum).unwrap();
    let combined = umf_link::Destination::from(&mut sums[..]).combined(sum).unwrap();
    assert!(matches!(other.get(&again.key(), 0, combined), Err(Error::NotCombined)));
    let mut bytes = [1; 10];
    let mut list = [0; 10];
    // SAFETY: it is refused.
    let refused = unsafe {
        owner.register(umf_link::Destination::list([&mut bytes[..4], &mut list[5..]]), RemoteAccess::Get)
    };
    assert!(matches!(refused, Err(Error::NotContiguous { pieces: 2 })));
    // The end of a registration does not wait for a peer that is gone.
    drop(other);
    drop(again);
}

/// Counts the times in which a process touches memory.
#[derive(Default)]
struct Counting {
    begun: [AtomicU64; 2],
    now: AtomicU64,
}

impl umf_core::HostAccess for Counting {
    fn begin(&self, _: umf_core::Address, size: usize, access: umf_core::Access) -> umf_core::Result<()> {
        assert!(size > 0);
        self.begun[access as usize].fetch_add(1, Ordering::Relaxed);
        self.now.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn end(&self, _: umf_core::Address, _: usize, _: umf_core::Access) -> umf_core::Result<()> {
        self.now.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Counting {
    /// Times for reading and for writing, since it was last asked; all are over.
    fn take(&self) -> [bool; 2] {
        assert_eq!(self.now.load(Ordering::Relaxed), 0);
        [umf_core::Access::ReadOnly, umf_core::Access::ReadWrite]
            .map(|access| self.begun[access as usize].swap(0, Ordering::Relaxed) > 0)
    }
}

/// Memory that devices use too: each CPU access is bracketed by `HostAccess::begin` and `end`, and
/// nothing else is.
#[test]
fn copies_of_device_memory_are_bracketed_by_cpu_access() {
    let counting: &'static Counting = Box::leak(Box::default());
    let device = leaked(memory(100_000).with_host_access(Some(counting)));
    let bytes = content(100_000, 3);
    for engine in [Engine::Inline, Engine::Bounce, Engine::Mapped, Engine::Both] {
        let (mut one, mut other) = pair_with([forced(engine), forced(engine)]);
        // The peer copies into private memory during calls without a timeout.
        other.set_timeout(if engine == Engine::Both { None } else { SECOND });
        let size = if engine == Engine::Inline { 3000 } else { 100_000 };
        let part = || device.part(0, size).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| one.send(1, part()).unwrap());
            other.recv(1, &mut vec![0; size]).unwrap();
        });
        // (If both copy, one of them may have been faster and done it all.)
        let [reads, writes] = counting.take();
        assert!(
            reads == matches!(engine, Engine::Inline | Engine::Bounce) || engine == Engine::Both,
            "{engine}"
        );
        assert!(!writes, "{engine}");
        let plain = memory(size);
        plain.slice().copy_from(&bytes[..size]);
        std::thread::scope(|scope| {
            scope.spawn(|| one.send(1, &plain).unwrap());
            other.recv(1, part()).unwrap();
        });
        let [reads, writes] = counting.take();
        assert!(!reads && (writes || engine == Engine::Both), "{engine}");
        assert!(bytes_of(device)[..size] == bytes[..size]);
    }
    for engine in [None, Some(Engine::Bounce)] {
        let (mut owner, mut other) = pair_with([LinkSettings::default(), of(engine)]);
        let range = register(&owner, device, RemoteAccess::GetPut);
        serving(&mut owner, || other.get(&range.key(), 0, &mut [0; 1000])).unwrap();
        assert_eq!(
            counting.take(),
            [engine.is_some(), false],
            "by its owner, or not by this process's mapping of it"
        );
        serving(&mut owner, || other.put(&range.key(), 0, &[0; 1000])).unwrap();
        assert_eq!(counting.take(), [false, engine.is_some()]);
    }
}
