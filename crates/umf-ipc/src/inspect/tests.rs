use super::*;
use crate::CacheStatistics;
use crate::ledger::{LedgerWriter, PublishedCounters};
use proptest::prelude::*;

fn content(region_id: u64) -> SlotContent {
    SlotContent {
        device: 1,
        inode: 2,
        fd: 9,
        region_slot: 0,
        region_generation: 1,
        region_id,
        region_size: 4096,
        data_offset: 64,
        offset: 128,
        length: 100,
        requested: 100,
    }
}

/// Returns the bytes of a ledger's file.
fn bytes(ledger: &LedgerWriter) -> Vec<u8> {
    let size = usize::try_from(umf_os::file::size(ledger.shared_fd()).unwrap()).unwrap();
    let mut bytes = vec![0; size];
    assert_eq!(umf_os::file::read_at(ledger.shared_fd(), &mut bytes, 0), Ok(true));
    bytes
}

fn of(ledger: &LedgerWriter) -> FoundLedger {
    let found = find().unwrap().by_nonce(ledger.nonce()).cloned();
    found.unwrap_or_else(|| panic!("this process's own ledger is found"))
}

#[test]
fn written_ledger_is_read_back() {
    let ledger = LedgerWriter::new(100, true).unwrap();
    let slot = ledger.allocate_slot(|_, _| Ok(())).unwrap();
    let generation = ledger.publish(slot, &content(5));
    let cache = CacheStatistics { misses: 77, ..CacheStatistics::default() };
    assert!(ledger.publish_statistics(true, || PublishedCounters {
        exporter: Some(cache),
        ..PublishedCounters::default()
    }));
    let found = of(&ledger);
    let pid = std::process::id();
    assert_eq!((found.owner, found.holders.as_slice()), (OwnerStatus::Alive { pid }, [pid].as_slice()));
    let view = found.ledger.clone();
    assert_eq!((view.identity().pid, view.is_served(), view.is_importers()), (pid, true, false));
    assert_eq!((view.capacity(), view.used()), (100, 1));
    let statistics = view.statistics().unwrap();
    assert_eq!(statistics.exporter, Some(cache));
    assert!(statistics.started <= statistics.time && statistics.time <= now());
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(statistics.name, name.trim_end());
    let seen = view.slot(slot).unwrap();
    let what = seen.content.unwrap();
    assert_eq!(seen.generation, 1);
    assert_eq!(what, content(5));
    assert_eq!(seen.ended, None);
    assert!((statistics.started..=now()).contains(&seen.exported.unwrap()));
    assert_eq!(view.slot(1), None);
    ledger.retire_with_reason(slot, generation, RetireReason::BlockFreed);
    let dead = view.slot(slot).unwrap();
    assert_eq!((dead.generation, dead.content, dead.exported), (2, None, None));
    let end = dead.ended.unwrap();
    assert_eq!((end.generation, end.reason), (generation, RetireReason::BlockFreed));
    assert!((seen.exported.unwrap()..=now()).contains(&end.time));
    // It stays until the next export in the slot ends.
    let generation = ledger.publish(slot, &content(6));
    assert_eq!(view.slot(slot).unwrap().ended, Some(end));
    ledger.retire_with_reason(slot, generation, RetireReason::Evicted);
    let next = view.slot(slot).unwrap().ended.unwrap();
    assert_eq!((next.generation, next.reason), (generation, RetireReason::Evicted));
    assert_eq!(view.slots().count(), 1);
    let nonce = ledger.nonce();
    drop(ledger);
    drop(found);
    assert!(find().unwrap().by_nonce(nonce).is_none(), "an inspecting process is not a holder");
    assert_eq!(view.slot(slot).unwrap().ended, Some(next), "and its view stays readable");
}

#[test]
fn importer_ledger_is_small_and_has_no_slots() {
    let ledger = LedgerWriter::for_importer().unwrap();
    let view = of(&ledger).ledger;
    assert!(view.is_importers() && view.capacity() == 0 && view.slot(0).is_none());
    assert!(umf_os::file::size(ledger.shared_fd()).unwrap() < 64 << 10);
    assert!(matches!(ledger.allocate_slot(|_, _| Ok(())), Err(crate::Error::LimitReached { .. })));
}

/// Every change of a burst is published. Of many changes in a row only some are.
#[test]
fn publishing_is_throttled_except_for_bursts() {
    let ledger = LedgerWriter::for_importer().unwrap();
    let view = of(&ledger).ledger;
    let counters = |misses| {
        let cache = CacheStatistics { misses, ..CacheStatistics::default() };
        PublishedCounters { importer: Some(cache), ..PublishedCounters::default() }
    };
    for round in 1..=5 {
        ledger.note_change();
        assert!(ledger.publish_statistics(false, || counters(round)));
        assert!(ledger.publish_statistics(false, || panic!("nothing has changed")));
        assert_eq!(view.statistics().unwrap().importer.unwrap().misses, round);
    }
    let mut published = 0;
    let storm = 200;
    for round in 0..storm {
        ledger.note_change();
        published += u64::from(ledger.publish_statistics(false, || {
            std::thread::sleep(std::time::Duration::from_micros(500));
            counters(round)
        }));
    }
    assert!(published > 0 && published < storm / 2, "{published}");
}

#[test]
fn invalid_header_is_not_read() {
    let before = find().unwrap().unreadable;
    let unsealed = umf_os::memfd::create("umf-ledger", 1 << 20).unwrap();
    let empty = umf_os::memfd::create("umf-ledger", 1 << 20).unwrap();
    let seals =
        rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::FUTURE_WRITE;
    umf_os::memfd::add_seals(&empty, seals).unwrap();
    let other = umf_os::memfd::create("umf-ledger-2", 1 << 20).unwrap();
    // Other tests of this process create such files too.
    assert!(find().unwrap().unreadable >= 2.max(before));
    drop((unsealed, empty, other));
}

#[test]
fn reused_pid_is_not_the_owner() {
    let ledger = LedgerWriter::new(1, false).unwrap();
    let view = of(&ledger).ledger;
    let own = std::process::id();
    let identity = *view.identity();
    let owner = |identity: &OwnerIdentity, holders: &[u32], looked: bool| {
        OwnerStatus::of(identity, holders, |_| looked)
    };
    assert_eq!(owner(&identity, &[own], true), OwnerStatus::Alive { pid: own });
    assert_eq!(owner(&identity, &[], false), OwnerStatus::Alive { pid: own });
    assert_eq!(owner(&identity, &[1], true), OwnerStatus::Detached { pid: own });
    let other = OwnerIdentity {
        pidfs_inode: identity.pidfs_inode + 1,
        start_time: identity.start_time + 1,
        ..identity
    };
    assert_eq!(owner(&other, &[own], true), OwnerStatus::Ended);
    assert_eq!(owner(&OwnerIdentity { pid: u32::MAX, ..identity }, &[own], true), OwnerStatus::Ended);
    let elsewhere = OwnerIdentity { pid_namespace: 1, ..identity };
    assert_eq!(owner(&elsewhere, &[own], true), OwnerStatus::Unknown);
    assert_eq!(OwnerStatus::Unknown.pid(), None);
}

fn read_all(view: &Ledger) {
    let _ = (view.statistics(), view.used(), view.identity(), view.is_served());
    assert!(view.slots().take(5000).all(|slot| view.slot(slot.number).is_some()));
    let _ = view.slot(u32::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Arbitrary words in a ledger cause no panic and no endless loop.
    #[test]
    fn any_bytes_are_a_ledger_or_none(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 1_usize..9), 0..20),
        fields in proptest::collection::vec((0_usize..15, prop_oneof![any::<u64>(), 0_u64..0x8000]), 0..4),
        cut in prop_oneof![Just(None), any::<prop::sample::Index>().prop_map(Some)],
    ) {
        let ledger = LedgerWriter::new(32, false).unwrap();
        for _ in 0..20 {
            let slot = ledger.allocate_slot(|_, _| Ok(())).unwrap();
            ledger.publish(slot, &content(5));
            ledger.publish_statistics(false, PublishedCounters::default);
        }
        let mut bytes = bytes(&ledger);
        read_all(&Ledger::from_bytes(&bytes).unwrap());
        for (at, value, length) in changes {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + length.min(8)].copy_from_slice(&value.to_le_bytes()[..length.min(8)]);
        }
        // The words of the header, which determine the offsets.
        for (word, value) in fields {
            bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Some(view) = Ledger::from_bytes(&bytes) {
            read_all(&view);
        }
    }
}

#[test]
fn short_or_empty_file_is_not_a_ledger() {
    assert!(Ledger::from_bytes(&[]).is_none() && Ledger::from_bytes(&[0; 1 << 16]).is_none());
}
