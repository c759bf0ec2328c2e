//! Tests of [`Cache`], [`Memo`] and [`Pins`].

use super::*;
use crate::Error;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A value that counts its live instances.
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

/// Pins by stamp, as a hit in a memo does.
fn pin_stamped(pins: &Pins, number: u32, stamp: u64) -> bool {
    let (_, cell) = pins.cell(number).unwrap();
    // SAFETY: the pins exist, and the cell was made by this thread.
    unsafe { cell.pin_stamped(stamp) }
}

fn limits(entries: u64, bytes: u64, policy: LimitPolicy) -> Limits {
    Limits { entries, bytes, policy, what: "test entries", setting: "NONE" }
}

/// UMF #1003: a cache without a limit. UMF ipc cache: entries in use are replaced.
#[test]
fn eviction_takes_the_least_recently_used_idle_entry() {
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
    assert_eq!(cache.get(&1).unwrap().entry().value.0, 1, "an entry in use is not evicted");
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.in_use, statistics.evictions), (3, 1, 96));
    drop(held);
    drop(cache);
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

/// Reference bits affect the order of eviction, but do not let the cache exceed its limit.
#[test]
fn reference_bits_do_not_keep_idle_entries_above_the_limit() {
    let live = Arc::default();
    for (entries, shards) in [(1, 1), (2, 2), (40, 1), (64, 4)] {
        let cache = Cache::new(limits(entries, 0, LimitPolicy::Soft), shards);
        for key in 0..4 * entries {
            let pinned = cache.get_or_insert_with(&key, 1, || Ok(Counted::new(key, &live))).unwrap();
            let (number, stamp) = (pinned.entry().number(), pinned.entry().stamp());
            assert!(pin_stamped(cache.pins(), number, stamp), "a hit, which sets the reference bit");
            cache.pins().unpin(number);
            drop(pinned);
            assert!(cache.statistics().entries <= entries, "{entries} in {shards} shards: {key}");
        }
    }
}

/// A value that is dead once its flag is set.
#[derive(Debug)]
struct Mortal(Arc<AtomicUsize>);

impl Cached for Mortal {
    fn is_dead(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[test]
fn unlimited_cache_sweeps_dead_entries() {
    let cache: Cache<u64, Mortal> = Cache::new(limits(0, 0, LimitPolicy::Soft), 4);
    let make = |key: u64, bytes: u64| {
        let is_dead = Arc::new(AtomicUsize::new(0));
        let pinned = cache.get_or_insert_with(&key, bytes, || Ok(Mortal(Arc::clone(&is_dead)))).unwrap();
        (is_dead, pinned)
    };
    let alive: Vec<_> = (0..10).map(|key| make(key, 1)).collect();
    // A dead entry in use stays.
    let (is_dead, held) = make(10, 1);
    is_dead.store(1, Ordering::Relaxed);
    for key in 11..1000 {
        make(key, 1).0.store(1, Ordering::Relaxed);
        assert!(cache.statistics().entries <= 2 * 11 + 16 + 1, "{key}");
    }
    assert_eq!((0..=10).filter(|key| cache.get(key).is_some()).count(), 11);
    // Few entries, but large ones.
    for key in 1000..1010 {
        make(key, 1 << 30).0.store(1, Ordering::Relaxed);
        assert!(cache.statistics().bytes <= (1 << 30) + (1 << 28), "{key}");
    }
    drop((alive, held));
}

#[test]
fn soft_limit_is_exceeded_while_entries_are_in_use_and_hard_limit_fails() {
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

/// Each thread opens its next entry before it closes its previous one. Together they use no more
/// entries than the hard limit.
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
fn failed_creation_leaves_no_entry() {
    let cache: Cache<u64, ()> = Cache::new(limits(0, 0, LimitPolicy::Soft), 2);
    for _ in 0..100 {
        assert!(cache.get_or_insert_with(&1, 10, || Err(Error::ReadOnly)).is_err());
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.bytes, statistics.misses), (0, 0, 100));
}

#[test]
fn byte_limit_evicts_by_bytes() {
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
fn concurrent_threads_create_each_key_once() {
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

/// Threads that pin by stamp race with eviction: a pinned value is alive.
#[test]
fn stamped_pin_never_holds_an_evicted_entry() {
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(0, Ordering::SeqCst);
        }
    }
    impl Cached for Alive {}
    let cache: Cache<u64, Alive> = Cache::new(limits(1, 0, LimitPolicy::Soft), 1);
    // The note of a memo (number and stamp), and whether the value is alive.
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
                        if pin_stamped(cache.pins(), number, stamp) {
                            assert_eq!(alive.load(Ordering::SeqCst), 1, "pinned after it was dropped");
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
    assert!(pin_stamped(&pins, number, 7) && !pin_stamped(&pins, number, 8));
    std::thread::scope(|scope| {
        scope.spawn(|| pins.pin(number)).join().unwrap();
        assert_eq!(pins.sum(number), 2);
        // Unpinned by other threads than those that pinned: the part of each is negative.
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
fn memo_finds_only_records_of_the_same_thread() {
    let memo: Memo<Double> = Memo::new();
    let pins = Pins::new();
    let number = pins.allocate().unwrap();
    let bytes = |seed: u64| -> [u8; 256] { core::array::from_fn(|index| (seed as usize * 31 + index) as u8) };
    let note =
        |key: u64| MemoEntry { key, pin: pins.cell(number).unwrap().1, stamp: 1, value: Double(key * 2) };
    assert!(memo.current().is_none());
    let table = memo.current_or_new().unwrap();
    assert!(table.by_bytes(1, &bytes(1)).is_none() && table.by_bytes(1, &[0; 256]).is_none());
    for seed in 1..100 {
        table.store(seed, &bytes(seed), note(seed));
    }
    for seed in 1..100 {
        assert_eq!(table.by_bytes(seed, &bytes(seed)).unwrap().value.0, seed * 2);
        assert_eq!(table.by_key(seed, seed).map(|found| *found.0), Some(bytes(seed)));
        for at in [0, 100, 255] {
            let mut other = bytes(seed);
            other[at] ^= 1;
            assert!(table.by_bytes(seed, &other).is_none());
        }
    }
    // The same key again replaces its own record. The fifth key of a hash replaces one of the four
    // before.
    for seed in 1001..1006 {
        for _ in 0..3 {
            table.store(500, &bytes(seed), note(seed));
        }
    }
    table.change(500, 1005, |value| value.0 = 7);
    assert_eq!(table.by_bytes(500, &bytes(1005)).unwrap().value.0, 7);
    assert_eq!((1001..1006).filter(|&seed| table.by_key(500, seed).is_some()).count(), 4);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(memo.current().is_none(), "another thread has a table of its own"));
    });
}

proptest! {
    /// Compares the cache with a list in order of use, from which idle entries at the end are
    /// evicted.
    #[test]
    fn cache_evicts_like_an_lru_list(operations in prop::collection::vec((0..12_u64, 0..4_u8), 1..200), limit in 1..6_u64) {
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
                            // Entries in use behind it were skipped: they move to the front.
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

/// A value that counts its creations and its removals.
struct Unlinked<'t> {
    unlinked: &'t AtomicUsize,
    made: &'t AtomicUsize,
}

impl Cached for Unlinked<'_> {
    fn on_unlink(&self) -> u64 {
        self.unlinked.fetch_add(1, Ordering::Relaxed);
        0
    }
}

#[test]
fn every_value_leaves_by_unlink() {
    let (unlinked, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cache: Cache<u64, Unlinked<'_>> = Cache::new(limits(0, 0, LimitPolicy::Soft), 1);
    let make = || {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(Unlinked { unlinked: &unlinked, made: &made })
    };
    // A failed creation releases its number.
    for _ in 0..3 {
        assert!(cache.get_or_insert_with(&1, 1, || Err(Error::ReadOnly)).is_err());
    }
    assert_eq!(cache.pins().allocate().ok(), Some(0));
    drop(cache.get_or_insert_with(&2, 1, make).unwrap());
    cache.pins().exhaust();
    assert!(matches!(cache.get_or_insert_with(&3, 1, make), Err(Error::Memory(_))));
    assert_eq!(cache.statistics().entries, 1);
    assert_eq!(cache.evict_idle(|entry| entry.value.made.load(Ordering::Relaxed) > 0), 1);
    assert_eq!(unlinked.load(Ordering::Relaxed), made.load(Ordering::Relaxed));
}

#[test]
fn key_that_its_own_creation_asks_for_is_an_error() {
    let cache: Cache<u64, ()> = Cache::new(limits(0, 0, LimitPolicy::Soft), 1);
    let nested = |key: u64| cache.get_or_insert_with(&key, 1, || Ok(())).map(drop);
    assert!(matches!(
        cache.get_or_insert_with(&1, 1, || nested(1)),
        Err(Error::Memory(umf_core::Error::InvalidArgument { .. }))
    ));
    // Another key is no recursion, and the first one is not locked any more.
    drop(cache.get_or_insert_with(&1, 1, || nested(2)).unwrap());
    assert_eq!(cache.statistics().entries, 2);
}
