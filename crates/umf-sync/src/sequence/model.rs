//! Sequence locks in loom: a look-up in the tracker's page map while regions are added and removed,
//! and the slots of a ring. `tests/run --loom` explores more preemptions.
//!
//! The entry of the map is a word: 0, the number of a record, or [`LIST`] for the overflow list.
//! Records and the list are read and written as in the modules `record` and `overflow` of the
//! tracker. The order of the steps of a change is that of `insert_locked`, `remove_locked`,
//! `MapSlot::insert` and `MapSlot::remove`.

use std::sync::Arc;

use loom::thread;

use crate::model::{ModelWord, Reached, explore};
use crate::words::Word as _;

use super::{Ordering, SequenceLock, Settled};

type ModelLock = SequenceLock<ModelWord>;

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    explore(preemptions, Some(preemptions + 2), run);
}

/// The record of a region: its base, and twice the base, to detect a torn read.
struct Record {
    sequence: ModelLock,
    base: ModelWord,
    twice: ModelWord,
}

impl Record {
    fn new() -> Self {
        Self {
            sequence: ModelLock::over(ModelWord::new(1)),
            base: ModelWord::new(0),
            twice: ModelWord::new(0),
        }
    }

    fn publish(&self, base: u64) {
        self.sequence.write(|| {
            self.base.store(base, Ordering::Relaxed);
            self.twice.store(2 * base, Ordering::Relaxed);
        });
    }

    fn read(&self) -> Option<u64> {
        let (base, twice) =
            self.sequence.read(|| (self.base.load(Ordering::Relaxed), self.twice.load(Ordering::Relaxed)))?;
        assert_eq!(twice, 2 * base, "torn");
        Some(base)
    }
}

/// The entry that refers to the list.
const LIST: u64 = 100;
/// The base of the regions that contain the address.
const BASE: u64 = 5;

/// One granule of the map, two records, and a list for both.
struct Map {
    changes: ModelLock,
    entry: ModelWord,
    records: [Record; 2],
    list: ModelLock,
    list_entries: [ModelWord; 2],
}

impl Map {
    /// Returns a map with the region of record 1.
    fn new() -> Arc<Self> {
        let map = Self {
            changes: ModelLock::over(ModelWord::new(0)),
            entry: ModelWord::new(1),
            records: [Record::new(), Record::new()],
            list: ModelLock::over(ModelWord::new(0)),
            list_entries: [ModelWord::new(0), ModelWord::new(0)],
        };
        map.records[0].publish(BASE);
        Arc::new(map)
    }

    fn record(&self, number: u64) -> Option<u64> {
        self.records.get(number.checked_sub(1)? as usize)?.read()
    }

    /// Models `look` of the tracker.
    fn look(&self) -> Option<u64> {
        let found = match self.entry.load(Ordering::Acquire) {
            LIST => {
                let in_list = || {
                    let matches = |entry: &ModelWord| {
                        self.record(entry.load(Ordering::Relaxed)).filter(|&base| base == BASE)
                    };
                    self.list_entries.iter().find_map(matches)
                };
                self.list.read(in_list)?
            }
            number => self.record(number),
        };
        found.filter(|&base| base == BASE)
    }

    /// Models `find` of the tracker; `None` where that would retry.
    fn find(&self) -> Option<Option<u64>> {
        match self.look() {
            Some(found) => return Some(Some(found)),
            None if self.entry.load(Ordering::Acquire) == 0 => return Some(None),
            None => {}
        }
        match self.changes.settled(|| self.look()) {
            Settled::Found(found) => Some(Some(found)),
            Settled::Nothing => Some(None),
            Settled::Unknown => None,
        }
    }
}

/// A record that another region reuses.
#[test]
fn loom_record_is_read_consistently() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(3, move || {
        let record = Arc::new(Record::new());
        record.publish(1);
        let writer = {
            let record = Arc::clone(&record);
            thread::spawn(move || {
                record.sequence.withdraw();
                assert_eq!(record.read(), None, "the record is withdrawn");
                record.publish(2);
            })
        };
        in_model.reach(match record.read() {
            Some(1) => "first",
            Some(2) => "second",
            Some(_) => "other",
            None => "none",
        });
        writer.join().unwrap();
    });
    reached.check(["none", "first", "second"]);
}

/// A merge of regions replaces an old region by a new one: at each moment one of them is found.
#[test]
fn loom_region_that_is_replaced_is_always_found() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(2, move || {
        let map = Map::new();
        let writer = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                map.changes.write(|| {
                    // Adds the new region.
                    map.records[1].publish(BASE);
                    map.list.write(|| {
                        map.list_entries[0].store(1, Ordering::Relaxed);
                        map.list_entries[1].store(2, Ordering::Relaxed);
                    });
                    map.entry.store(LIST, Ordering::Release);
                    // Removes the old region.
                    map.list.write(|| map.list_entries[0].store(0, Ordering::Relaxed));
                    map.entry.store(2, Ordering::Release);
                    map.list.write(|| map.list_entries[1].store(0, Ordering::Relaxed));
                    map.records[0].sequence.withdraw();
                });
            })
        };
        match map.find() {
            Some(Some(_)) => in_model.reach("found"),
            Some(None) => panic!("the region is not found"),
            None => in_model.reach("retry"),
        }
        writer.join().unwrap();
        assert_eq!(map.find(), Some(Some(BASE)));
    });
    reached.check(["found", "retry"]);
}

/// A region is removed, and another one at a different address reuses its record at once.
#[test]
fn loom_removed_region_is_not_found() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(3, move || {
        let map = Map::new();
        let removed = Arc::new(ModelWord::new(0));
        let writer = {
            let (map, removed) = (Arc::clone(&map), Arc::clone(&removed));
            thread::spawn(move || {
                map.changes.write(|| {
                    map.entry.store(0, Ordering::Release);
                    map.records[0].sequence.withdraw();
                });
                removed.store(1, Ordering::Release);
                map.changes.write(|| map.records[0].publish(BASE + 1));
            })
        };
        let was_removed = removed.load(Ordering::Acquire) == 1;
        match map.find() {
            Some(Some(base)) => {
                assert!(base == BASE && !was_removed, "found {base} after its removal");
                in_model.reach("found");
            }
            Some(None) => in_model.reach("not found"),
            None => in_model.reach("retry"),
        }
        writer.join().unwrap();
        assert_eq!(map.find(), Some(None));
    });
    reached.check(["found", "not found", "retry"]);
}

/// Two writers of a ring slot, and a reader that reads it twice.
#[test]
fn loom_ring_slot_is_read_consistently_and_never_goes_back() {
    let reached = Reached::default();
    let in_model = reached.clone();
    // With five preemptions it takes minutes.
    explore(3, Some(4), move || {
        let slot = Arc::new((ModelLock::over(ModelWord::new(0)), [ModelWord::new(0), ModelWord::new(0)]));
        let read = |(lock, words): &(ModelLock, [ModelWord; 2])| {
            lock.read_record(|| words.each_ref().map(|word| word.load(Ordering::Relaxed)))
        };
        let writers: Vec<_> = [1_u64, 2]
            .into_iter()
            .map(|ticket| {
                let (slot, reached) = (Arc::clone(&slot), in_model.clone());
                thread::spawn(move || {
                    let wrote = slot.0.record(ticket, || {
                        slot.1[0].store(ticket, Ordering::Relaxed);
                        slot.1[1].store(ticket * 10, Ordering::Relaxed);
                    });
                    reached.reach(if wrote { "written" } else { "dropped" });
                })
            })
            .collect();
        let mut last = 0;
        for _ in 0..2 {
            match read(&slot) {
                Some((ticket, words)) => {
                    assert_eq!(words, [ticket, ticket * 10], "the words of two writers");
                    assert!(ticket >= last, "an older record");
                    last = ticket;
                    in_model.reach(if ticket == 1 { "first" } else { "second" });
                }
                None => in_model.reach("nothing"),
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let (ticket, _) = read(&slot).unwrap();
        assert!(ticket == 1 || ticket == 2);
    });
    reached.check(["written", "dropped", "first", "second", "nothing"]);
}
