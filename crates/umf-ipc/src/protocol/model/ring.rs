//! Records of a ring.

use umf_sync::sequence::{SequenceLock, stamp_of};

use super::super::settled;
use super::*;

/// Two writers in one record, of which a reader sees one whole or none. The stamp says whose it is in the end, and that is
/// not the first of two that both got in.
#[test]
fn loom_a_record_is_seen_whole() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let record_words = words([0, 0, 0]);
        let write = |[stamp, fields @ ..]: &[ModelWord; 3], ticket: u64| {
            SequenceLock::of(stamp).record(ticket, || {
                fields.iter().for_each(|field| field.store(ticket + 10, Ordering::Relaxed));
            })
        };
        let writers: Vec<_> = [1, 2]
            .into_iter()
            .map(|ticket| {
                let words = Arc::clone(&record_words);
                thread::spawn(move || write(&words, ticket))
            })
            .collect();
        let [stamp, one, other] = &*record_words;
        let (before, fields, after) = settled(
            || stamp.load(Ordering::Relaxed),
            || (one.load(Ordering::Relaxed), other.load(Ordering::Relaxed)),
            fence,
        );
        if before == after && before & 1 == 0 && before != 0 {
            let ticket = before / 2 - 1;
            assert_eq!(fields, (ticket + 10, ticket + 10), "torn");
            in_model.reach("seen");
        }
        let written: Vec<bool> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let (stamp, last) = (stamp.load(Ordering::Relaxed), one.load(Ordering::Relaxed));
        assert_eq!(stamp, stamp_of(last - 10), "the record is that of its stamp");
        assert_eq!(other.load(Ordering::Relaxed), last);
        match *written {
            [true, true] => {
                assert_eq!(last, 12, "the later one stays");
                in_model.reach("replaced");
            }
            [false, true] => in_model.reach("the first is lost"),
            [true, false] => in_model.reach("the second is lost"),
            _ => panic!("nobody got in"),
        }
    });
    reached.check(["replaced", "seen", "the first is lost", "the second is lost"]);
}
