//! The page map in loom's model: a lookup against regions that come and go. With `--cfg loom` (`tests/run --loom`) it is every
//! interleaving; otherwise those with few preemptions, in which nearly all mistakes show.
//!
//! An entry of the map is a word here: 0, the number of a record, or [`LIST`] for the list of records. Records and list are
//! read and written as in `record` and `crowd`; the order in which a change does things is that of `insert_locked`,
//! `remove_locked`, `Slot::place` and `Slot::unplace`.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, fence};
use loom::thread;

use crate::model::{Reached, explore};

use super::{Ordering, Settled, Word, read, settled, withdraw, write};

/// A word as loom has it. Of two loads it believes that their order means nothing, and so leaves out interleavings of a thread
/// that loads a word and then stores into it (issues 166 and 392 of tokio-rs/loom); the order of stores means something. So
/// each load comes with a store that nobody reads.
struct ModelWord {
    value: AtomicU32,
    loads: AtomicU32,
}

impl ModelWord {
    fn new(value: u32) -> Self {
        Self { value: AtomicU32::new(value), loads: AtomicU32::new(0) }
    }
}

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u32 {
        self.loads.store(0, Ordering::Relaxed);
        self.value.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.value.store(value, order);
    }

    fn fetch_or(&self, bits: u32, order: Ordering) {
        self.value.fetch_or(bits, order);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    explore(preemptions, Some(preemptions + 2), run);
}

/// A region's record: where it begins, and twice that.
struct Record {
    sequence: ModelWord,
    base: ModelWord,
    twice: ModelWord,
}

impl Record {
    fn new() -> Self {
        Self { sequence: ModelWord::new(1), base: ModelWord::new(0), twice: ModelWord::new(0) }
    }

    fn publish(&self, base: u32) {
        write(&self.sequence, || {
            self.base.store(base, Ordering::Relaxed);
            self.twice.store(2 * base, Ordering::Relaxed);
        });
    }

    fn read(&self) -> Option<u32> {
        let (base, twice) =
            read(&self.sequence, || (self.base.load(Ordering::Relaxed), self.twice.load(Ordering::Relaxed)))?;
        assert_eq!(twice, 2 * base, "torn");
        Some(base)
    }
}

/// The entry that says that there is a list.
const LIST: u32 = 100;
/// Where the regions are that are looked for.
const HERE: u32 = 5;

/// One granule of the map, two records, and a list for both.
struct Map {
    changes: ModelWord,
    entry: ModelWord,
    records: [Record; 2],
    list: ModelWord,
    places: [ModelWord; 2],
}

impl Map {
    /// With the region of record 1 in it.
    fn new() -> Arc<Self> {
        let map = Self {
            changes: ModelWord::new(0),
            entry: ModelWord::new(1),
            records: [Record::new(), Record::new()],
            list: ModelWord::new(0),
            places: [ModelWord::new(0), ModelWord::new(0)],
        };
        map.records[0].publish(HERE);
        Arc::new(map)
    }

    fn record(&self, number: u32) -> Option<u32> {
        self.records.get(number.checked_sub(1)? as usize)?.read()
    }

    /// As `look`.
    fn look(&self) -> Option<u32> {
        let found = match self.entry.load(Ordering::Acquire) {
            LIST => {
                let in_list = || {
                    let here = |place: &ModelWord| {
                        self.record(place.load(Ordering::Relaxed)).filter(|&base| base == HERE)
                    };
                    self.places.iter().find_map(here)
                };
                read(&self.list, in_list)?
            }
            number => self.record(number),
        };
        found.filter(|&base| base == HERE)
    }

    /// As `find`; `None` where that would look again.
    fn find(&self) -> Option<Option<u32>> {
        match self.look() {
            Some(found) => return Some(Some(found)),
            None if self.entry.load(Ordering::Acquire) == 0 => return Some(None),
            None => {}
        }
        match settled(&self.changes, || self.look()) {
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
                withdraw(&record.sequence);
                assert_eq!(record.read(), None, "nobody's");
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
                write(&map.changes, || {
                    // The new one comes.
                    map.records[1].publish(HERE);
                    write(&map.list, || {
                        map.places[0].store(1, Ordering::Relaxed);
                        map.places[1].store(2, Ordering::Relaxed);
                    });
                    map.entry.store(LIST, Ordering::Release);
                    // The old one goes.
                    write(&map.list, || map.places[0].store(0, Ordering::Relaxed));
                    map.entry.store(2, Ordering::Release);
                    write(&map.list, || map.places[1].store(0, Ordering::Relaxed));
                    withdraw(&map.records[0].sequence);
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
                write(&map.changes, || {
                    map.entry.store(0, Ordering::Release);
                    withdraw(&map.records[0].sequence);
                });
                gone.store(1, Ordering::Release);
                write(&map.changes, || map.records[0].publish(HERE + 1));
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
