use super::*;
use crate::Error;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A value that counts how many of it live.
#[derive(Debug)]
struct Counted(u64, Arc<AtomicUsize>);

impl Counted {
    fn new(value: u64, live: &Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::Relaxed);
        Self(value, Arc::clone(live))
    }
}

impl Cached for Counted {}
impl Cached for () {}
impl Cached for u64 {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

fn stamped(pins: &Pins, number: u32, stamp: u64) -> bool {
    let (_, cell) = pins.cell(number).unwrap();
    // SAFETY: the pins exist, and the cell was made by this thread.
    unsafe { cell.pin_stamped(stamp) }
}

fn limits(entries: u64, bytes: u64, policy: LimitPolicy) -> Limits {
    Limits { entries, bytes, policy, what: "test entries", setting: "NONE" }
}

/// UMF #1003: a cache without a limit. UMF ipc cache: entries in use are replaced.
#[test]
fn idle_entries_go_in_order_of_use_and_used_ones_stay() {
    let live = Arc::default();
    let cache = Cache::new(limits(3, 0, LimitPolicy::Soft), 1);
    let make = |key: u64| cache.get_or_insert_with(&key, 1, || Ok(Counted::new(key, &live)));
    let held = make(1).unwrap();
    for key in 2..=3 {
        drop(make(key).unwrap());
    }
    drop(make(2).unwrap());
    drop(make(4).unwrap());
    assert!(cache.get(&3).is_none(), "3 was used least recently");
    for key in 5..100 {
        drop(make(key).unwrap());
        assert!(live.load(Ordering::Relaxed) <= 3);
    }
    assert_eq!(held.entry().value.0, 1);
    assert_eq!(cache.get(&1).unwrap().entry().value.0, 1, "in use is never evicted");
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.in_use, statistics.evictions), (3, 1, 96));
    drop(held);
    drop(cache);
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

/// Marks of use tell in which order idle entries go, and never that a limit gives way.
#[test]
fn marks_of_use_do_not_keep_idle_entries_past_a_limit() {
    let live = Arc::default();
    for (entries, shards) in [(1, 1), (2, 2), (40, 1), (64, 4)] {
        let cache = Cache::new(limits(entries, 0, LimitPolicy::Soft), shards);
        for key in 0..4 * entries {
            let pinned = cache.get_or_insert_with(&key, 1, || Ok(Counted::new(key, &live))).unwrap();
            let (number, stamp) = (pinned.entry().number(), pinned.entry().stamp());
            assert!(stamped(cache.pins(), number, stamp), "a hit, which leaves its mark");
            cache.pins().unpin(number);
            drop(pinned);
            assert!(cache.statistics().entries <= entries, "{entries} in {shards} shards: {key}");
        }
    }
}

/// A value that is of no use once it is told so.
#[derive(Debug)]
struct Mortal(Arc<AtomicUsize>);

impl Cached for Mortal {
    fn is_dead(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[test]
fn without_limits_dead_entries_are_no_more_than_others() {
    let cache: Cache<u64, Mortal> = Cache::new(limits(0, 0, LimitPolicy::Soft), 4);
    let make = |key: u64, bytes: u64| {
        let told = Arc::new(AtomicUsize::new(0));
        let pinned = cache.get_or_insert_with(&key, bytes, || Ok(Mortal(Arc::clone(&told)))).unwrap();
        (told, pinned)
    };
    let alive: Vec<_> = (0..10).map(|key| make(key, 1)).collect();
    // One that is dead and in use stays.
    let (told, held) = make(10, 1);
    told.store(1, Ordering::Relaxed);
    for key in 11..1000 {
        make(key, 1).0.store(1, Ordering::Relaxed);
        assert!(cache.statistics().entries <= 2 * 11 + 16 + 1, "{key}");
    }
    assert_eq!((0..=10).filter(|key| cache.get(key).is_some()).count(), 11);
    // Few, but large.
    for key in 1000..1010 {
        make(key, 1 << 30).0.store(1, Ordering::Relaxed);
        assert!(cache.statistics().bytes <= (1 << 30) + (1 << 28), "{key}");
    }
    drop((alive, held));
}

#[test]
fn soft_gives_way_and_comes_back_and_hard_is_an_error() {
    let live = Arc::default();
    let soft = Cache::new(limits(2, 0, LimitPolicy::Soft), 4);
    let held: Vec<_> = (0..10_u64)
        .map(|key| soft.get_or_insert_with(&key, 1, || Ok(Counted::new(key, &live))).unwrap())
        .collect();
    assert_eq!(soft.statistics().entries, 10);
    drop(held);
    for key in 10..20 {
        drop(soft.get_or_insert_with(&key, 1, || Ok(Counted::new(key, &live))).unwrap());
    }
    assert!(soft.statistics().entries <= 2, "{:?}", soft.statistics());

    let hard = Cache::new(limits(2, 0, LimitPolicy::Hard), 4);
    let first = hard.get_or_insert_with(&1_u64, 1, || Ok(Counted::new(1, &live))).unwrap();
    let second = hard.get_or_insert_with(&2, 1, || Ok(Counted::new(2, &live))).unwrap();
    for _ in 0..3 {
        let refused = hard.get_or_insert_with(&3, 1, || Ok(Counted::new(3, &live))).map(drop);
        assert!(matches!(refused, Err(Error::LimitReached { limit: 2, .. })), "{refused:?}");
    }
    assert_eq!(hard.statistics().entries, 2, "a failed insertion leaves nothing behind");
    drop(first);
    drop(hard.get_or_insert_with(&3, 1, || Ok(Counted::new(3, &live))).unwrap());
    drop(second);
}

/// Each thread opens its next entry before it closes the one that it has, so that together they use
/// fewer entries than a hard limit allows.
#[test]
fn hard_limit_is_reached_only_if_all_entries_are_in_use() {
    const THREADS: u64 = 8;
    let cache = Cache::new(limits(2 * THREADS, 0, LimitPolicy::Hard), 16);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                let mut held = None;
                for round in 0..20_000 {
                    let key = (round * 7 + thread * 5) % (4 * THREADS);
                    held = Some(cache.get_or_insert_with(&key, 1, || Ok(key)).unwrap());
                }
                drop(held);
            });
        }
    });
    assert!(cache.statistics().entries <= 2 * THREADS);
}

/// UMF W7: a failed open leaves an entry behind.
#[test]
fn failing_to_make_leaves_nothing() {
    let cache: Cache<u64, ()> = Cache::new(limits(0, 0, LimitPolicy::Soft), 2);
    for _ in 0..100 {
        assert!(cache.get_or_insert_with(&1, 10, || Err(Error::ReadOnly)).is_err());
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.bytes, statistics.misses), (0, 0, 100));
}

#[test]
fn byte_limits_count_bytes() {
    let cache = Cache::new(limits(0, 1000, LimitPolicy::Soft), 2);
    for key in 0..50_u64 {
        drop(cache.get_or_insert_with(&key, 300, || Ok(())).unwrap());
        assert!(cache.statistics().bytes <= 1000);
    }
    drop(cache.get_or_insert_with(&99, 5000, || Ok(())).unwrap());
    assert_eq!(cache.statistics().entries, 4, "an entry above a soft limit is inserted and evicts no other");
    drop(cache.get_or_insert_with(&100, 300, || Ok(())).unwrap());
    assert!(cache.statistics().bytes <= 1000);
    let hard = Cache::new(limits(0, 1000, LimitPolicy::Hard), 2);
    drop(hard.get_or_insert_with(&1_u64, 900, || Ok(())).unwrap());
    assert!(hard.get_or_insert_with(&2, 5000, || Ok(())).is_err());
    assert_eq!(hard.statistics().entries, 1);
}

#[test]
fn each_key_is_made_once_however_many_ask() {
    let cache = Cache::new(limits(0, 0, LimitPolicy::Soft), 4);
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for key in 0..200_u64 {
                    let pinned = cache
                        .get_or_insert_with(&key, 1, || {
                            made.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                            Ok(key)
                        })
                        .unwrap();
                    assert_eq!(pinned.entry().value, key);
                }
            });
        }
    });
    assert_eq!(made.load(Ordering::Relaxed), 200);
}

/// The protocol between a thread that pins by stamp and one that evicts: what is pinned is alive.
#[test]
fn stamped_pins_race_with_eviction_and_never_hold_what_is_gone() {
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(0, Ordering::SeqCst);
        }
    }
    impl Cached for Alive {}
    let cache: Cache<u64, Alive> = Cache::new(limits(1, 0, LimitPolicy::Soft), 1);
    // What the memo would hold: number, stamp, and here whether the value lives.
    let known: Mutex<Vec<(u32, u64, Arc<AtomicUsize>)>> = Mutex::new(Vec::new());
    let hits = AtomicUsize::new(0);
    let stop = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    let Some((number, stamp, alive)) = known.lock().unwrap().last().cloned() else {
                        continue;
                    };
                    for _ in 0..50 {
                        if stamped(cache.pins(), number, stamp) {
                            assert_eq!(alive.load(Ordering::SeqCst), 1, "pinned and gone");
                            hits.fetch_add(1, Ordering::Relaxed);
                            cache.pins().unpin(number);
                        }
                    }
                }
            });
        }
        let mut round = 0;
        while round < 30_000 || hits.load(Ordering::Relaxed) < 1000 {
            round += 1;
            let alive = Arc::new(AtomicUsize::new(1));
            let value = Alive(Arc::clone(&alive));
            let pinned = cache.get_or_insert_with(&round, 1, || Ok(value)).unwrap();
            let note = (pinned.entry().number(), pinned.entry().stamp(), alive);
            let mut known = known.lock().unwrap();
            known.push(note);
            if known.len() > 8 {
                known.remove(0);
            }
        }
        stop.store(1, Ordering::Relaxed);
    });
    assert!(hits.load(Ordering::Relaxed) > 0);
}

#[test]
fn pins_are_summed_over_threads() {
    let pins = Pins::new();
    let number = pins.allocate().unwrap();
    pins.stamp(number, 7);
    assert!(stamped(&pins, number, 7) && !stamped(&pins, number, 8));
    std::thread::scope(|scope| {
        scope.spawn(|| pins.pin(number)).join().unwrap();
        assert_eq!(pins.sum(number), 2);
        // Taken back in other threads than they were taken in: each part alone is below zero.
        scope.spawn(|| pins.unpin(number)).join().unwrap();
        scope.spawn(|| pins.unpin(number)).join().unwrap();
    });
    assert_eq!(pins.sum(number), 0);
    pins.pin(number);
    pins.release(number);
    let other = pins.allocate().unwrap();
    assert_ne!(other, number, "a number that is still pinned is not used again");
    pins.unpin(number);
    pins.release(other);
    assert_eq!([pins.allocate().unwrap(), pins.allocate().unwrap()].iter().max(), Some(&number.max(other)));
}

#[derive(Clone, Copy)]
struct Double(u64);

// SAFETY: a number.
unsafe impl MemoValue for Double {}

#[test]
fn memo_finds_what_was_stored_in_the_same_thread_and_nothing_else() {
    let memo: Memo<Double> = Memo::new();
    let pins = Pins::new();
    let number = pins.allocate().unwrap();
    let bytes = |seed: u64| -> [u8; 256] { core::array::from_fn(|index| (seed as usize * 31 + index) as u8) };
    let note =
        |key: u64| MemoEntry { key, pin: pins.cell(number).unwrap().1, stamp: 1, value: Double(key * 2) };
    assert!(memo.current().is_none());
    let mine = memo.current_or_new().unwrap();
    assert!(mine.by_bytes(1, &bytes(1)).is_none() && mine.by_bytes(1, &[0; 256]).is_none());
    for seed in 1..100 {
        mine.store(seed, &bytes(seed), note(seed));
    }
    for seed in 1..100 {
        assert_eq!(mine.by_bytes(seed, &bytes(seed)).unwrap().value.0, seed * 2);
        assert_eq!(mine.by_key(seed, seed).map(|found| *found.0), Some(bytes(seed)));
        for at in [0, 100, 255] {
            let mut other = bytes(seed);
            other[at] ^= 1;
            assert!(mine.by_bytes(seed, &other).is_none());
        }
    }
    // The same key again takes its own place; the fifth of one hash takes the place of one of the
    // four before.
    for seed in 1001..1006 {
        for _ in 0..3 {
            mine.store(500, &bytes(seed), note(seed));
        }
    }
    mine.change(500, 1005, |value| value.0 = 7);
    assert_eq!(mine.by_bytes(500, &bytes(1005)).unwrap().value.0, 7);
    assert_eq!((1001..1006).filter(|&seed| mine.by_key(500, seed).is_some()).count(), 4);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(memo.current().is_none(), "another thread has a table of its own"));
    });
}

proptest! {
    /// Against a plain reference: a list in order of use, of which idle ones at the end go.
    #[test]
    fn behaves_like_a_list(operations in prop::collection::vec((0..12_u64, 0..4_u8), 1..200), limit in 1..6_u64) {
        let live = Arc::default();
        let cache = Cache::new(limits(limit, 0, LimitPolicy::Soft), 1);
        let mut held = BTreeMap::new();
        let mut model: Vec<u64> = Vec::new();
        for (key, operation) in operations {
            match operation {
                0 | 1 => {
                    let pinned = cache.get_or_insert_with(&key, 1, || Ok(Counted::new(key, &live))).unwrap();
                    prop_assert_eq!(pinned.entry().value.0, key);
                    if let Some(place) = model.iter().position(|&known| known == key) {
                        model.remove(place);
                    } else {
                        while model.len() as u64 >= limit {
                            let Some(place) = model.iter().rposition(|known| !held.contains_key(known)) else { break };
                            // Those in use that were passed over count as used: they move to the
                            // front.
                            let passed = model.split_off(place + 1);
                            model.pop();
                            model.splice(0..0, passed);
                        }
                    }
                    model.insert(0, key);
                    if operation == 1 {
                        held.entry(key).or_insert_with(Vec::new).push(pinned);
                    }
                }
                2 => drop(held.remove(&key)),
                _ => {
                    let found = cache.peek(&key, |entry| entry.value.0);
                    prop_assert_eq!(found, model.contains(&key).then_some(key));
                }
            }
            prop_assert_eq!(cache.statistics().entries, model.len() as u64);
            prop_assert_eq!(live.load(Ordering::Relaxed), model.len());
            prop_assert_eq!(cache.statistics().in_use, held.len() as u64);
        }
        held.clear();
        cache.evict_idle(|_| true);
        prop_assert_eq!(live.load(Ordering::Relaxed), 0);
    }
}

/// A value that must not go without being told, as one that others see.
struct Seen<'t> {
    told: &'t AtomicUsize,
    made: &'t AtomicUsize,
}

impl Cached for Seen<'_> {
    fn on_unlink(&self) -> u64 {
        self.told.fetch_add(1, Ordering::Relaxed);
        0
    }
}

#[test]
fn what_was_made_leaves_by_being_unlinked() {
    let (told, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cache: Cache<u64, Seen<'_>> = Cache::new(limits(0, 0, LimitPolicy::Soft), 1);
    let make = || {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(Seen { told: &told, made: &made })
    };
    // A value that cannot be made keeps no number.
    for _ in 0..3 {
        assert!(cache.get_or_insert_with(&1, 1, || Err(Error::ReadOnly)).is_err());
    }
    assert_eq!(cache.pins().allocate().ok(), Some(0));
    drop(cache.get_or_insert_with(&2, 1, make).unwrap());
    cache.pins().exhaust();
    assert!(matches!(cache.get_or_insert_with(&3, 1, make), Err(Error::Memory(_))));
    assert_eq!(cache.statistics().entries, 1);
    assert_eq!(cache.evict_idle(|entry| entry.value.made.load(Ordering::Relaxed) > 0), 1);
    assert_eq!(told.load(Ordering::Relaxed), made.load(Ordering::Relaxed), "each that was made");
}
