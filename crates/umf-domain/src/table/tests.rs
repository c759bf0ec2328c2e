//! Tests of the table: against a model in plain collections, and with words overwritten.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use std::os::fd::{AsFd, OwnedFd};

use super::*;
use crate::id::ObjectId;

fn table(capacity: u32) -> Table {
    Table::new("test", DomainTag::of(b"test"), capacity).unwrap()
}

fn entry(kind: u32, seed: u64) -> Entry {
    Entry { kind, file: SealedFile { device: 1, inode: seed, size: 4096 * (1 + seed % 7) } }
}

/// The model: the live objects with their registrants.
#[derive(Debug, Default)]
struct Model {
    live: BTreeMap<ObjectId, (Entry, BTreeSet<u16>)>,
    capacity: usize,
}

impl Model {
    fn register(&mut self, participant: u16, id: ObjectId, kind: u32) -> Result<Entry, LookupError> {
        let (entry, registrants) = self.live.get_mut(&id).ok_or(LookupError::NoSuchObject)?;
        if entry.kind != kind {
            return Err(LookupError::WrongKind(entry.kind));
        }
        registrants.insert(participant);
        Ok(*entry)
    }

    fn unregister(&mut self, participant: u16, id: ObjectId) -> Result<(), LookupError> {
        let (_, registrants) = self.live.get_mut(&id).ok_or(LookupError::NoSuchObject)?;
        if !registrants.remove(&participant) {
            return Err(LookupError::NotRegistered);
        }
        if registrants.is_empty() {
            self.live.remove(&id);
        }
        Ok(())
    }

    fn first_of_kind(&self, kind: u32) -> Option<ObjectId> {
        let found = self.live.iter().filter(|(_, (entry, _))| entry.kind == kind).map(|(&id, _)| id);
        found.min_by_key(|id| id.slot())
    }

    fn reclaim(&mut self, participant: u16) {
        self.live.retain(|_, (_, registrants)| {
            registrants.remove(&participant);
            !registrants.is_empty()
        });
    }
}

#[derive(Clone, Debug)]
enum Change {
    Create(u16, u32),
    /// The index selects one of the ids that were ever created.
    Register(u16, prop::sample::Index, u32),
    Unregister(u16, prop::sample::Index),
    Die(u16),
}

fn change() -> impl Strategy<Value = Change> {
    let participant = prop_oneof![0_u16..4, Just(63), Just(64), Just(MAX_PARTICIPANTS - 1)];
    let id = any::<prop::sample::Index>();
    prop_oneof![
        3 => (participant.clone(), 0_u32..2).prop_map(|(participant, kind)| Change::Create(participant, kind)),
        4 => (participant.clone(), id.clone(), 0_u32..2).prop_map(|(participant, at, kind)| Change::Register(participant, at, kind)),
        4 => (participant.clone(), id).prop_map(|(participant, at)| Change::Unregister(participant, at)),
        1 => participant.prop_map(Change::Die),
    ]
}

proptest! {
    #[test]
    fn table_behaves_as_model(changes in prop::collection::vec(change(), 1..200)) {
        let table = table(5);
        let locked = LockedTable::unshared(&table);
        let mut model = Model { capacity: 5, ..Model::default() };
        let mut ids: Vec<ObjectId> = Vec::new();
        for (seed, change) in changes.into_iter().enumerate() {
            let pick = |at: prop::sample::Index| {
                if ids.is_empty() { ObjectId::new(0, table.tag(), Generation::from_bits(9)) } else { *at.get(&ids) }
            };
            match change {
                Change::Create(participant, kind) => {
                    let entry = entry(kind, seed as u64);
                    match locked.create(participant, &entry) {
                        Ok(id) => {
                            // Ids are never reused.
                            prop_assert!(!ids.contains(&id));
                            ids.push(id);
                            model.live.insert(id, (entry, BTreeSet::from([participant])));
                        }
                        Err(error) => {
                            prop_assert_eq!(error, CreateError::Full);
                            prop_assert_eq!(model.live.len(), model.capacity);
                        }
                    }
                }
                Change::Register(participant, at, kind) => {
                    let id = pick(at);
                    prop_assert_eq!(
                        locked.register(participant, id, kind),
                        model.register(participant, id, kind)
                    );
                }
                Change::Unregister(participant, at) => {
                    let id = pick(at);
                    prop_assert_eq!(locked.unregister(participant, id), model.unregister(participant, id));
                }
                Change::Die(participant) => {
                    locked.reclaim(participant);
                    model.reclaim(participant);
                }
            }
            let listed: BTreeMap<_, _> =
                locked.objects().into_iter().map(|object| (object.id, (object.entry, object.registrants))).collect();
            let expected: BTreeMap<_, _> =
                model.live.iter().map(|(id, (entry, registrants))| (*id, (*entry, registrants.len() as u32))).collect();
            prop_assert_eq!(listed, expected);
            for kind in 0..2 {
                prop_assert_eq!(locked.first_of_kind(kind), model.first_of_kind(kind));
            }
            for (id, (entry, registrants)) in &model.live {
                let registrants = registrants.iter().copied().collect::<Vec<_>>();
                prop_assert_eq!(locked.look_up(*id, entry.kind), Ok((*entry, registrants)));
            }
        }
    }

    /// A participant may write any word. No operation panics, loops, or accesses memory outside.
    #[test]
    fn overwritten_words_do_no_harm(
        words in prop::collection::vec((0..(HEADER_SIZE + 4 * SLOT_SIZE) / 8, any::<u64>()), 0..200),
        changes in prop::collection::vec(change(), 1..30),
        bits: u64,
    ) {
        let table = table(4);
        let locked = LockedTable::unshared(&table);
        for (seed, change) in changes.into_iter().enumerate() {
            for (at, value) in words.iter().skip(seed % 3) {
                // SAFETY: `at` is within the mapping, all of which is accessed as atomic words
                // only.
                unsafe { table.mapping.base().cast::<AtomicU64>().add(*at).as_ref() }
                    .store(*value, Ordering::Relaxed);
            }
            let id = ObjectId::new(bits as u16 % 5, table.tag(), Generation::from_bits(bits));
            let _ = match change {
                Change::Create(participant, kind) => {
                    let _ = locked.create(participant, &entry(kind, 1));
                    Ok(())
                }
                Change::Register(participant, _, kind) => locked.register(participant, id, kind).map(drop),
                Change::Unregister(participant, _) => locked.unregister(participant, id),
                Change::Die(participant) => {
                    locked.reclaim(participant);
                    Ok(())
                }
            };
            prop_assert!(locked.objects().len() <= 4);
            prop_assert!(table.active().iter().all(|&participant| participant < MAX_PARTICIPANTS));
            let _ = (locked.look_up(id, 0), locked.first_of_kind(0));
        }
    }
}

#[test]
fn id_of_other_domain_or_incarnation_is_refused() {
    let first = table(4);
    let id = LockedTable::unshared(&first).create(0, &entry(1, 1)).unwrap();
    assert_eq!(id.tag(), first.tag());
    let other = Table::new("other", DomainTag::of(b"other"), 4).unwrap();
    assert_ne!(other.tag(), first.tag());
    assert_eq!(LockedTable::unshared(&other).register(0, id, 1), Err(LookupError::WrongDomain));
    // The same domain, ended and founded again.
    let again = table(4);
    let now = LockedTable::unshared(&again).create(0, &entry(1, 1)).unwrap();
    assert_ne!(now, id);
    assert_eq!(LockedTable::unshared(&again).register(1, id, 1), Err(LookupError::NoSuchObject));
}

/// The states that a participant leaves if it is killed between two stores.
#[test]
fn participant_killed_between_two_stores_leaves_no_object() {
    let table = table(2);
    let locked = LockedTable::unshared(&table);
    locked.enter(3, [1, 2]);
    assert!(
        table.is_participant(3, [1, 2])
            && !table.is_participant(3, [1, 3])
            && !table.is_participant(2, [1, 2])
    );
    let id = locked.create(3, &entry(0, 1)).unwrap();
    // In `unregister`: the slot is used, and has no registrants.
    let slot = table.slot(0).unwrap();
    bitmap::clear(&slot.registrants, 3);
    assert_eq!(locked.register(4, id, 0), Err(LookupError::NoSuchObject), "the object stays dead");
    assert_eq!(locked.objects(), []);
    locked.reclaim(3);
    assert!(!bitmap::has(&table.header().used, 0));
    // In `create`: the slot is filled, and not marked as used.
    let lost = locked.create(3, &entry(0, 2)).unwrap();
    bitmap::clear(&table.header().used, 0);
    assert_eq!(locked.register(4, lost, 0), Err(LookupError::NoSuchObject));
    let next = locked.create(4, &entry(0, 3)).unwrap();
    assert_eq!((next.slot(), next.generation()), (0, lost.generation().next()));
    assert_eq!(locked.look_up(next, 0).unwrap().1, [4], "the bit of the dead registrant is cleared");
}

#[test]
fn only_table_of_own_domain_is_opened() {
    let tag = DomainTag::of(b"test");
    let good = table(3);
    let copy = |table: &Table| ReceivedFd::from(table.file.as_fd().try_clone_to_owned().unwrap());
    let opened = Table::open(copy(&good), tag).unwrap().unwrap();
    let id = LockedTable::unshared(&opened).create(1, &entry(5, 1)).unwrap();
    assert!(LockedTable::unshared(&good).register(2, id, 5).is_ok());
    assert!(Table::open(copy(&good), DomainTag::of(b"other")).unwrap().is_none());
    for size in [0, 8, HEADER_SIZE, HEADER_SIZE + 1, HEADER_SIZE + SLOT_SIZE, 1 << 40] {
        let file = sys::memfd("umf-test", size as u64).unwrap();
        assert!(Table::open(file.into(), tag).unwrap().is_none(), "{size}");
    }
    good.header().capacity.store(4, Ordering::Relaxed);
    assert!(Table::open(copy(&good), tag).unwrap().is_none());
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert!(Table::open(file.into(), tag).unwrap().is_none());
}
