//! Entries of a cache that are used and evicted.

use super::super::{close, give_back, is_current, pin, retire, unpin};
use super::*;

fn sum(counts: &[ModelWord]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.wrapping_add(count.load(Ordering::Acquire)))
}

/// Two threads pin and unpin, a third closes: nobody holds what was closed.
#[test]
fn loom_what_is_pinned_is_not_closed() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        let stamp = Arc::new(ModelWord::new(7));
        let counts = words([0, 0]);
        let entry = Arc::new(Memory::new());
        let users: Vec<_> = (0..2)
            .map(|me| {
                let (stamp, counts, entry) = (Arc::clone(&stamp), Arc::clone(&counts), Arc::clone(&entry));
                let reached = in_model.clone();
                thread::spawn(move || {
                    if pin(&counts[me], &*stamp, 7) {
                        entry.use_it();
                        unpin(&counts[me]);
                        reached.reach("pinned");
                    } else {
                        reached.reach("came too late");
                    }
                })
            })
            .collect();
        if close(&*stamp, 7, || sum(&*counts)) {
            entry.take_away();
            in_model.reach("closed");
        } else {
            in_model.reach("stays open");
        }
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(sum(&*counts), 0);
    });
    reached.check(["came too late", "closed", "pinned", "stays open"]);
}

/// A pin that another thread takes back: the count of each is wrong, their sum is right, and the entry is not
/// closed before.
#[test]
fn loom_a_pin_taken_back_elsewhere_counts() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let stamp = Arc::new(ModelWord::new(7));
        let counts = words([1, 0]);
        let entry = Arc::new(Memory::new());
        let closer = {
            let (stamp, counts, entry) = (Arc::clone(&stamp), Arc::clone(&counts), Arc::clone(&entry));
            let reached = in_model.clone();
            thread::spawn(move || {
                if close(&*stamp, 7, || sum(&*counts)) {
                    entry.take_away();
                    reached.reach("closed");
                } else {
                    assert_eq!(stamp.load(Ordering::Relaxed), 7, "it can be used again");
                    reached.reach("stays open");
                }
            })
        };
        entry.use_it();
        unpin(&counts[1]);
        closer.join().unwrap();
    });
    reached.check(["closed", "stays open"]);
}

/// An entry that is just being put into the cache: who pins it sees it as it was put there.
#[test]
fn loom_what_is_pinned_is_seen_whole() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        // A count and the stamp.
        let words = words([0, 0]);
        let entry = Arc::new(Memory::new());
        let maker = {
            let (words, entry) = (Arc::clone(&words), Arc::clone(&entry));
            thread::spawn(move || {
                entry.make();
                words[1].store(7, Ordering::SeqCst);
            })
        };
        if pin(&words[0], &words[1], 7) {
            entry.use_it();
            unpin(&words[0]);
            in_model.reach("pinned");
        } else {
            in_model.reach("came too early");
        }
        maker.join().unwrap();
    });
    reached.check(["came too early", "pinned"]);
}

/// What an entry keeps mapped (the word of a lease, and that of the generation) is touched only while the entry is there, also
/// by an open that is refused.
#[test]
fn loom_lease_is_counted_only_while_the_entry_is_pinned() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        // A pin, the stamp, a lease, the generation.
        let words = words([0, 7, 0, 1]);
        let entry = Arc::new(Memory::new());
        let user = {
            let (words, entry, reached) = (Arc::clone(&words), Arc::clone(&entry), in_model.clone());
            thread::spawn(move || {
                let [count, stamp, lease, generation] = &*words;
                if !pin(count, stamp, 7) {
                    reached.reach("evicted");
                    return;
                }
                entry.use_it();
                super::super::lease(lease);
                reached.reach(if is_current(generation, 1) { "opened" } else { "retired" });
                entry.use_it();
                give_back(lease);
                unpin(count);
            })
        };
        let [count, stamp, lease, generation] = &*words;
        retire(generation, 1);
        if close(stamp, 7, || sum(core::slice::from_ref(count))) {
            entry.take_away();
            in_model.reach("closed");
        } else {
            in_model.reach("stays open");
        }
        user.join().unwrap();
        let left = (count.load(Ordering::Relaxed), lease.load(Ordering::Relaxed));
        assert_eq!(left, (0, 0), "a refused open leaves nothing");
    });
    reached.check(["closed", "evicted", "opened", "retired", "stays open"]);
}
