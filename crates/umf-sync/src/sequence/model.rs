//! The tracker's page map in loom's model: a lookup against regions that come and go. With
//! `--cfg loom` (`tests/run --loom`) it is every interleaving; otherwise those with few
//! preemptions, in which nearly all mistakes show. And slots of a ring.
//!
//! An entry of the map is a word here: 0, the number of a record, or [`LIST`] for the list of
//! records. Records and list are read and written as in `record` and `crowd`; the order in which a
//! change does things is that of `insert_locked`, `remove_locked`, `Slot::place` and
//! `Slot::unplace`.

use std::sync::Arc;

use loom::thread;

use crate::model::{ModelWord, Reached, explore};
use crate::words::Word as _;

use super::{Ordering, SequenceLock, Settled};

type ModelLock = SequenceLock<ModelWord>;

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    explore(preemptions, Some(preemptions + 2), run);
}

/// A region's record: where it begins, and twice that.
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

/// The entry that says that there is a list.
const LIST: u64 = 100;
/// Where the regions are that are looked for.
const HERE: u64 = 5;

/// One granule of the map, two records, and a list for both.
struct Map {
    changes: ModelLock,
    entry: ModelWord,
    records: [Record; 2],
    list: ModelLock,
    places: [ModelWord; 2],
}

impl Map {
    /// With the region of record 1 in it.
    fn new() -> Arc<Self> {
        let map = Self {
            changes: ModelLock::over(ModelWord::new(0)),
            entry: ModelWord::new(1),
            records: [Record::new(), Record::new()],
            list: ModelLock::over(ModelWord::new(0)),
            places: [ModelWord::new(0), ModelWord::new(0)],
        };
        map.records[0].publish(HERE);
        Arc::new(map)
    }

    fn record(&self, number: u64) -> Option<u64> {
        self.records.get(number.checked_sub(1)? as usize)?.read()
    }

    /// As `look`.
    fn look(&self) -> Option<u64> {
        let found = match self.entry.load(Ordering::Acquire) {
            LIST => {
                let in_list = || {
                    let here = |place: &ModelWord| {
                        self.record(place.load(Ordering::Relaxed)).filter(|&base| base == HERE)
                    };
                    self.places.iter().find_map(here)
                };
                self.list.read(in_list)?
            }
            number => self.record(number),
        };
        found.filter(|&base| base == HERE)
    }

    /// As `find`; `None` where that would look again.
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

/// A record that is given to one region after the other.
#[test]
fn loom_a_record_is_seen_whole() {
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
            Some(1) => "the first",
            Some(2) => "the second",
            Some(_) => "another",
            None => "none",
        });
        writer.join().unwrap();
    });
    reached.check(["none", "the first", "the second"]);
}

/// Merging regions puts a new one in the place of an old one: at each moment one of them is found.
#[test]
fn loom_what_is_there_all_the_time_is_found() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(2, move || {
        let map = Map::new();
        let writer = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                map.changes.write(|| {
                    // The new one comes.
                    map.records[1].publish(HERE);
                    map.list.write(|| {
                        map.places[0].store(1, Ordering::Relaxed);
                        map.places[1].store(2, Ordering::Relaxed);
                    });
                    map.entry.store(LIST, Ordering::Release);
                    // The old one goes.
                    map.list.write(|| map.places[0].store(0, Ordering::Relaxed));
                    map.entry.store(2, Ordering::Release);
                    map.list.write(|| map.places[1].store(0, Ordering::Relaxed));
                    map.records[0].sequence.withdraw();
                });
            })
        };
        match map.find() {
            Some(Some(_)) => in_model.reach("found"),
            Some(None) => panic!("a region that is there is not found"),
            None => in_model.reach("look again"),
        }
        writer.join().unwrap();
        assert_eq!(map.find(), Some(Some(HERE)));
    });
    reached.check(["found", "look again"]);
}

/// A region goes, and its number is used again at once, for one that lies elsewhere.
#[test]
fn loom_what_is_gone_is_not_found() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(3, move || {
        let map = Map::new();
        let gone = Arc::new(ModelWord::new(0));
        let writer = {
            let (map, gone) = (Arc::clone(&map), Arc::clone(&gone));
            thread::spawn(move || {
                map.changes.write(|| {
                    map.entry.store(0, Ordering::Release);
                    map.records[0].sequence.withdraw();
                });
                gone.store(1, Ordering::Release);
                map.changes.write(|| map.records[0].publish(HERE + 1));
            })
        };
        let was_gone = gone.load(Ordering::Acquire) == 1;
        match map.find() {
            Some(Some(base)) => {
                assert!(base == HERE && !was_gone, "{base} is found, and gone");
                in_model.reach("found");
            }
            Some(None) => in_model.reach("not found"),
            None => in_model.reach("look again"),
        }
        writer.join().unwrap();
        assert_eq!(map.find(), Some(None));
    });
    reached.check(["found", "not found", "look again"]);
}

/// Two writers of one slot of a ring, and a reader that comes twice.
#[test]
fn loom_a_slot_is_read_whole_and_never_goes_back() {
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
                    reached.reach(if wrote { "written" } else { "given up" });
                })
            })
            .collect();
        let mut last = 0;
        for _ in 0..2 {
            match read(&slot) {
                Some((ticket, words)) => {
                    assert_eq!(words, [ticket, ticket * 10], "of two writers");
                    assert!(ticket >= last, "it went back");
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
    reached.check(["written", "given up", "first", "second", "nothing"]);
}
