//! Slots of the ledger: exports that come and go.

use super::super::{publish, read, retire};
use super::*;

/// A slot that is published, retired and published again: readers see each export whole or not at all, and of one that is
/// gone the generation that came after it.
#[test]
fn loom_an_export_is_seen_whole() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let slot = words([0, 0, 0]);
        let writer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                for round in [1, 3] {
                    let [generation, fields @ ..] = &*slot;
                    let write = || fields.iter().for_each(|field| field.store(round, Ordering::Relaxed));
                    assert_eq!(publish(generation, write), round);
                    if round == 1 {
                        assert!(retire(generation, round), "nobody else does");
                    }
                }
            })
        };
        for expected in [1, 3] {
            let fields = || (slot[1].load(Ordering::Relaxed), slot[2].load(Ordering::Relaxed));
            match read(&slot[0], expected, fields) {
                Ok(found) => {
                    assert_eq!(found, (expected, expected), "torn");
                    in_model.reach(if expected == 1 { "the first" } else { "the second" });
                }
                Err(now) => {
                    assert!(now != expected && now <= 3, "{now}");
                    if now > expected {
                        in_model.reach("too late");
                    }
                }
            }
        }
        writer.join().unwrap();
    });
    reached.check(["the first", "the second", "too late"]);
}

/// The order that "never stale" rests on: who retires, and then gives the memory to somebody else, is noticed by who
/// used the memory and looks at the generation afterwards.
#[test]
fn loom_use_after_reuse_is_noticed() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        // The generation, the memory, and what importers say.
        let words = words([1, 10, 0]);
        let producer = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                retire(&words[0], 1);
                if words[2].load(Ordering::SeqCst) == 0 {
                    // The block is handed out again; its new owner writes.
                    words[1].store(20, Ordering::Relaxed);
                }
            })
        };
        match read(&words[0], 1, || words[1].load(Ordering::Relaxed)) {
            Ok(seen) => {
                assert_eq!(seen, 10, "somebody else's");
                in_model.reach("current");
            }
            Err(now) => {
                assert_eq!(now, 2);
                in_model.reach("stale");
            }
        }
        producer.join().unwrap();
    });
    reached.check(["current", "stale"]);
}

/// A block and its region that are freed at the same time: one thread ends the export, and goes on with the slot alone. The
/// other may come when the slot is the next export's, and ends nothing.
#[test]
fn loom_an_export_ends_once() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let generation = Arc::new(ModelWord::new(1));
        let slot = Arc::new(Memory::new());
        let end = |generation: &ModelWord, slot: &Memory| {
            let is_mine = retire(generation, 1);
            if is_mine {
                // Nobody else has it: it is published anew at once.
                slot.take_away();
                assert_eq!(publish(generation, || ()), 3);
            }
            is_mine
        };
        let other = {
            let (generation, slot) = (Arc::clone(&generation), Arc::clone(&slot));
            thread::spawn(move || end(&generation, &slot))
        };
        let mine = end(&generation, &slot);
        let others = other.join().unwrap();
        assert!(mine != others, "ended {} times", u32::from(mine) + u32::from(others));
        in_model.reach(if mine { "by one" } else { "by the other" });
    });
    reached.check(["by one", "by the other"]);
}

/// Whoever comes too late to end an export leaves those that came after it as they are.
#[test]
fn a_later_export_is_not_ended_for_an_earlier_one() {
    let generation = core::sync::atomic::AtomicU64::new(0);
    for expected in [1, 3, 5] {
        assert_eq!(publish(&generation, || ()), expected);
        for earlier in (1..expected).step_by(2) {
            assert!(!retire(&generation, earlier));
            assert_eq!(read(&generation, expected, || ()), Ok(()));
        }
        assert!(retire(&generation, expected) && !retire(&generation, expected));
        assert_eq!(read(&generation, expected, || ()), Err(expected + 1));
    }
}
