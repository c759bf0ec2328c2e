//! The table's rules against a plain reference, and tables that somebody scribbled over.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use std::os::fd::{AsFd, OwnedFd};

use super::*;
use crate::number::Number;

fn table(capacity: u32) -> Table {
    Table::new("test", Tag::of(b"test"), capacity).unwrap()
}

fn entry(kind: u32, seed: u64) -> Entry {
    Entry { kind, file: File { device: 1, inode: seed, size: 4096 * (1 + seed % 7) } }
}

/// The rules as the seed has them.
#[derive(Debug, Default)]
struct Reference {
    live: BTreeMap<Number, (Entry, BTreeSet<u16>)>,
    capacity: usize,
}

impl Reference {
    fn register(&mut self, place: u16, number: Number, kind: u32) -> Result<Entry, Refused> {
        let (entry, places) = self.live.get_mut(&number).ok_or(Refused::NoSuchNumber)?;
        if entry.kind != kind {
            return Err(Refused::WrongKind(entry.kind));
        }
        places.insert(place);
        Ok(*entry)
    }

    fn unregister(&mut self, place: u16, number: Number) -> Result<(), Refused> {
        let (_, places) = self.live.get_mut(&number).ok_or(Refused::NoSuchNumber)?;
        if !places.remove(&place) {
            return Err(Refused::NotRegistered);
        }
        if places.is_empty() {
            self.live.remove(&number);
        }
        Ok(())
    }

    fn first_of_kind(&self, kind: u32) -> Option<Number> {
        let found = self.live.iter().filter(|(_, (entry, _))| entry.kind == kind).map(|(&number, _)| number);
        found.min_by_key(|number| number.slot())
    }

    fn reclaim(&mut self, place: u16) {
        self.live.retain(|_, (_, places)| {
            places.remove(&place);
            !places.is_empty()
        });
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(u16, u32),
    /// The number is one of those that ever were.
    Register(u16, prop::sample::Index, u32),
    Unregister(u16, prop::sample::Index),
    Die(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let place = prop_oneof![0_u16..4, Just(63), Just(64), Just(PLACES - 1)];
    let number = any::<prop::sample::Index>();
    prop_oneof![
        3 => (place.clone(), 0_u32..2).prop_map(|(place, kind)| Step::Create(place, kind)),
        4 => (place.clone(), number.clone(), 0_u32..2).prop_map(|(place, at, kind)| Step::Register(place, at, kind)),
        4 => (place.clone(), number).prop_map(|(place, at)| Step::Unregister(place, at)),
        1 => place.prop_map(Step::Die),
    ]
}

proptest! {
    #[test]
    fn the_rules_are_those_of_the_reference(steps in prop::collection::vec(step(), 1..200)) {
        let table = table(5);
        let rules = Rules::alone(&table);
        let mut reference = Reference { capacity: 5, ..Reference::default() };
        let mut numbers: Vec<Number> = Vec::new();
        for (seed, step) in steps.into_iter().enumerate() {
            let pick = |at: prop::sample::Index| {
                if numbers.is_empty() { Number::new(0, table.tag(), Reuse::from_bits(9)) } else { *at.get(&numbers) }
            };
            match step {
                Step::Create(place, kind) => {
                    let entry = entry(kind, seed as u64);
                    match rules.create(place, &entry) {
                        Ok(number) => {
                            // No number ever comes twice.
                            prop_assert!(!numbers.contains(&number));
                            numbers.push(number);
                            reference.live.insert(number, (entry, BTreeSet::from([place])));
                        }
                        Err(no_room) => {
                            prop_assert_eq!(no_room, NoRoom::Full);
                            prop_assert_eq!(reference.live.len(), reference.capacity);
                        }
                    }
                }
                Step::Register(place, at, kind) => {
                    let number = pick(at);
                    prop_assert_eq!(
                        rules.register(place, number, kind),
                        reference.register(place, number, kind)
                    );
                }
                Step::Unregister(place, at) => {
                    let number = pick(at);
                    prop_assert_eq!(rules.unregister(place, number), reference.unregister(place, number));
                }
                Step::Die(place) => {
                    rules.reclaim(place);
                    reference.reclaim(place);
                }
            }
            let listed: BTreeMap<_, _> =
                rules.objects().into_iter().map(|object| (object.number, (object.entry, object.registrants))).collect();
            let expected: BTreeMap<_, _> =
                reference.live.iter().map(|(number, (entry, places))| (*number, (*entry, places.len() as u32))).collect();
            prop_assert_eq!(listed, expected);
            for kind in 0..2 {
                prop_assert_eq!(rules.first_of_kind(kind), reference.first_of_kind(kind));
            }
            for (number, (entry, places)) in &reference.live {
                let places = places.iter().copied().collect::<Vec<_>>();
                prop_assert_eq!(rules.look_up(*number, entry.kind), Ok((*entry, places)));
            }
        }
    }

    /// Whatever a participant writes into it, nothing panics, and nothing loops or reads outside.
    #[test]
    fn scribbling_is_survived(
        words in prop::collection::vec((0..(HEADER_SIZE + 4 * SLOT_SIZE) / 8, any::<u64>()), 0..200),
        steps in prop::collection::vec(step(), 1..30),
        bits: u64,
    ) {
        let table = table(4);
        let rules = Rules::alone(&table);
        for (seed, step) in steps.into_iter().enumerate() {
            for (at, value) in words.iter().skip(seed % 3) {
                // SAFETY: within the mapping, as the range of `at` says; everything in it is atomic words.
                unsafe { table.mapping.base().cast::<core::sync::atomic::AtomicU64>().add(*at).as_ref() }
                    .store(*value, Ordering::Relaxed);
            }
            let number = Number::new(bits as u16 % 5, table.tag(), Reuse::from_bits(bits));
            let _ = match step {
                Step::Create(place, kind) => {
                    let _ = rules.create(place, &entry(kind, 1));
                    Ok(())
                }
                Step::Register(place, _, kind) => rules.register(place, number, kind).map(drop),
                Step::Unregister(place, _) => rules.unregister(place, number),
                Step::Die(place) => {
                    rules.reclaim(place);
                    Ok(())
                }
            };
            prop_assert!(rules.objects().len() <= 4);
            prop_assert!(table.occupied().iter().all(|&place| place < PLACES));
            let _ = (rules.look_up(number, 0), rules.first_of_kind(0));
        }
    }
}

#[test]
fn a_number_is_of_its_domain_and_its_incarnation() {
    let first = table(4);
    let number = Rules::alone(&first).create(0, &entry(1, 1)).unwrap();
    assert_eq!(number.tag(), first.tag());
    let other = Table::new("other", Tag::of(b"other"), 4).unwrap();
    assert_ne!(other.tag(), first.tag());
    assert_eq!(Rules::alone(&other).register(0, number, 1), Err(Refused::WrongDomain));
    // The same domain, after it died out.
    let again = table(4);
    let now = Rules::alone(&again).create(0, &entry(1, 1)).unwrap();
    assert_ne!(now, number);
    assert_eq!(Rules::alone(&again).register(1, number, 1), Err(Refused::NoSuchNumber));
}

/// What a participant leaves that is killed between two stores.
#[test]
fn deaths_between_two_stores() {
    let table = table(2);
    let rules = Rules::alone(&table);
    rules.enter(3, [1, 2]);
    assert!(table.is_in_place(3, [1, 2]) && !table.is_in_place(3, [1, 3]) && !table.is_in_place(2, [1, 2]));
    let number = rules.create(3, &entry(0, 1)).unwrap();
    // In `unregister`: nobody is registered, but the slot is used.
    let slot = table.slot(0).unwrap();
    bits::clear(&slot.registrants, 3);
    assert_eq!(rules.register(4, number, 0), Err(Refused::NoSuchNumber), "nobody resurrects it");
    assert_eq!(rules.objects(), []);
    rules.reclaim(3);
    assert!(!bits::has(&table.header().used, 0));
    // In `create`: the number was given, but the slot is not used.
    let lost = rules.create(3, &entry(0, 2)).unwrap();
    bits::clear(&table.header().used, 0);
    assert_eq!(rules.register(4, lost, 0), Err(Refused::NoSuchNumber));
    let next = rules.create(4, &entry(0, 3)).unwrap();
    assert_eq!((next.slot(), next.reuse()), (0, lost.reuse().next()));
    assert_eq!(rules.look_up(next, 0).unwrap().1, [4], "the dead one's bit is not inherited");
}

#[test]
fn only_a_table_of_the_domain_is_opened() {
    let tag = Tag::of(b"test");
    let good = table(3);
    let copy = |table: &Table| ReceivedFd::from(table.file.as_fd().try_clone_to_owned().unwrap());
    let opened = Table::open(copy(&good), tag).unwrap().unwrap();
    let number = Rules::alone(&opened).create(1, &entry(5, 1)).unwrap();
    assert!(Rules::alone(&good).register(2, number, 5).is_ok());
    assert!(Table::open(copy(&good), Tag::of(b"other")).unwrap().is_none());
    for size in [0, 8, HEADER_SIZE, HEADER_SIZE + 1, HEADER_SIZE + SLOT_SIZE, 1 << 40] {
        let file = sys::memfd("umf-test", size as u64).unwrap();
        assert!(Table::open(file.into(), tag).unwrap().is_none(), "{size}");
    }
    good.header().capacity.store(4, Ordering::Relaxed);
    assert!(Table::open(copy(&good), tag).unwrap().is_none());
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert!(Table::open(file.into(), tag).unwrap().is_none());
}
