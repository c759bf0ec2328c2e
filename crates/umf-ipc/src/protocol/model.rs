//! The protocols in loom's model: every interleaving that the memory model allows, of a few threads. Each model counts
//! that it reached what it is about: one that never does proves nothing.

use core::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::thread;

use super::*;

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn leave(&self, value: u64) {
        self.swap(value, Ordering::Release);
    }

    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, order)
    }

    fn fetch_max_and_fence(&self, value: u64) -> u64 {
        let before = self.fetch_max(value, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        before
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Whether a state was reached in any interleaving.
#[derive(Clone, Default)]
struct Reached(std::sync::Arc<core::sync::atomic::AtomicBool>);

impl Reached {
    fn reach(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self) {
        assert!(self.0.load(Ordering::Relaxed), "the model never got there");
    }
}

/// Two threads pin and unpin, a third closes: nobody holds what was closed.
#[test]
fn loom_what_is_pinned_is_not_closed() {
    let (pinned, closed) = (Reached::default(), Reached::default());
    let (pinned_in_model, closed_in_model) = (pinned.clone(), closed.clone());
    loom::model(move || {
        let stamp = Arc::new(AtomicU64::new(7));
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let gone = Arc::new(AtomicBool::new(false));
        let users: Vec<_> = (0..2)
            .map(|me| {
                let (stamp, counts, gone) = (Arc::clone(&stamp), Arc::clone(&counts), Arc::clone(&gone));
                let pinned = pinned_in_model.clone();
                thread::spawn(move || {
                    if pin(&counts[me], &*stamp, 7) {
                        assert!(!gone.load(Ordering::Relaxed), "in use and gone");
                        pinned.reach();
                        unpin(&counts[me]);
                    }
                })
            })
            .collect();
        let sum = || counts.iter().fold(0, |sum: u64, count| sum.wrapping_add(count.load(Ordering::Acquire)));
        if close(&*stamp, 7, sum) {
            gone.store(true, Ordering::Relaxed);
            closed_in_model.reach();
        }
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>(), 0);
    });
    pinned.check();
    closed.check();
}

/// A pin that another thread takes back: the count of each is wrong, their sum is right, and the entry is not
/// closed before.
#[test]
fn loom_a_pin_taken_back_elsewhere_counts() {
    let (closed, refused) = (Reached::default(), Reached::default());
    let (closed_in_model, refused_in_model) = (closed.clone(), refused.clone());
    loom::model(move || {
        let stamp = Arc::new(AtomicU64::new(7));
        let counts = Arc::new([AtomicU64::new(1), AtomicU64::new(0)]);
        let released = Arc::new(AtomicBool::new(false));
        let closer = {
            let (stamp, counts, released) = (Arc::clone(&stamp), Arc::clone(&counts), Arc::clone(&released));
            let (closed, refused) = (closed_in_model.clone(), refused_in_model.clone());
            thread::spawn(move || {
                let sum = || {
                    counts.iter().fold(0, |sum: u64, count| sum.wrapping_add(count.load(Ordering::Acquire)))
                };
                if close(&*stamp, 7, sum) {
                    assert!(released.load(Ordering::Relaxed), "closed while in use");
                    closed.reach();
                } else {
                    refused.reach();
                }
            })
        };
        released.store(true, Ordering::Relaxed);
        unpin(&counts[1]);
        closer.join().unwrap();
    });
    closed.check();
    refused.check();
}

/// A slot that is published, retired and published again: readers see each export whole or not at all.
#[test]
fn loom_an_export_is_seen_whole() {
    let seen = Reached::default();
    let seen_in_model = seen.clone();
    loom::model(move || {
        let slot = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        let writer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                for round in [1, 3] {
                    publish(&slot[0], round, || {
                        slot[1].store(round, Ordering::Relaxed);
                        slot[2].store(round, Ordering::Relaxed);
                    });
                    if round == 1 {
                        retire(&slot[0], round);
                    }
                }
            })
        };
        for expected in [1, 3] {
            let fields = || (slot[1].load(Ordering::Relaxed), slot[2].load(Ordering::Relaxed));
            if let Ok(found) = read(&slot[0], expected, fields) {
                assert_eq!(found, (expected, expected));
                seen_in_model.reach();
            }
        }
        writer.join().unwrap();
    });
    seen.check();
}

/// The order that "never stale" rests on: who retires, and then gives the memory to somebody else, is noticed by who
/// used the memory and looks at the generation afterwards.
#[test]
fn loom_use_after_reuse_is_noticed() {
    let (current, stale) = (Reached::default(), Reached::default());
    let (current_in_model, stale_in_model) = (current.clone(), stale.clone());
    loom::model(move || {
        let generation = Arc::new(AtomicU64::new(1));
        let memory = Arc::new(AtomicU64::new(10));
        let producer = {
            let (generation, memory) = (Arc::clone(&generation), Arc::clone(&memory));
            thread::spawn(move || {
                retire(&*generation, 1);
                // The block is handed out again; its new owner writes.
                fence(Ordering::Release);
                memory.store(20, Ordering::Relaxed);
            })
        };
        let seen = read(&*generation, 1, || memory.load(Ordering::Relaxed));
        assert!(seen.is_err() || seen == Ok(10), "{seen:?}");
        if seen.is_ok() {
            current_in_model.reach()
        } else {
            stale_in_model.reach()
        }
        producer.join().unwrap();
    });
    current.check();
    stale.check();
}

/// Two writers in one record, of which a reader sees one whole or none. Tickets are given and not drawn: see
/// [`publish`] for why. The stamp says whose it is in the end, and that is not the first of two that both got in.
#[test]
fn loom_a_record_is_seen_whole() {
    let (seen, lost, replaced) = (Reached::default(), Reached::default(), Reached::default());
    let (seen_in_model, lost_in_model, replaced_in_model) = (seen.clone(), lost.clone(), replaced.clone());
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(move || {
        let ring = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        let write = |ring: &[AtomicU64; 3], ticket: u64| {
            record(&ring[0], ticket, || {
                ring[1].store(ticket + 10, Ordering::Relaxed);
                ring[2].store(ticket + 10, Ordering::Relaxed);
            })
        };
        let writers: Vec<_> = [1, 2]
            .into_iter()
            .map(|ticket| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || write(&ring, ticket))
            })
            .collect();
        let (before, (one, other), after) = settled(
            || ring[0].load(Ordering::Relaxed),
            || (ring[1].load(Ordering::Relaxed), ring[2].load(Ordering::Relaxed)),
            fence,
        );
        if before == after && before & 1 == 0 && before != 0 {
            assert_eq!((one, other), (before / 2 - 1 + 10, before / 2 - 1 + 10), "torn");
            seen_in_model.reach();
        }
        let written: Vec<bool> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!(written.contains(&true), "nobody got in");
        if written.contains(&false) {
            lost_in_model.reach();
        }
        let (stamp, last) = (ring[0].load(Ordering::Relaxed), ring[1].load(Ordering::Relaxed));
        assert_eq!(stamp, stamp_of(last - 10), "the record is that of its stamp");
        assert_eq!(ring[2].load(Ordering::Relaxed), last);
        if written == [true, true] {
            assert_eq!(last, 12, "the later one stays");
            replaced_in_model.reach();
        }
    });
    seen.check();
    lost.check();
    replaced.check();
}

/// An importer opens, by either way, while the producer frees: what is open is not used again.
fn what_is_leased_is_not_used_again(open: fn(&AtomicU64, &AtomicU64) -> bool) {
    let (opened, refused) = (Reached::default(), Reached::default());
    let (held, reused) = (Reached::default(), Reached::default());
    let (opened_in_model, refused_in_model) = (opened.clone(), refused.clone());
    let (held_in_model, reused_in_model) = (held.clone(), reused.clone());
    loom::model(move || {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(1)]);
        let used_again = Arc::new(AtomicBool::new(false));
        let importer = {
            let (words, used_again) = (Arc::clone(&words), Arc::clone(&used_again));
            let (opened, refused) = (opened_in_model.clone(), refused_in_model.clone());
            thread::spawn(move || {
                let [lease, generation] = &*words;
                if open(lease, generation) {
                    assert!(!used_again.load(Ordering::Relaxed), "open, and somebody else's");
                    opened.reach();
                    unpin(lease);
                } else {
                    refused.reach();
                }
            })
        };
        let [lease, generation] = &*words;
        retire(generation, 1);
        if look(lease) == 0 {
            used_again.store(true, Ordering::Relaxed);
            reused_in_model.reach();
        } else {
            held_in_model.reach();
        }
        importer.join().unwrap();
        assert_eq!(lease.load(Ordering::Relaxed), 0, "a refused open leaves nothing");
    });
    opened.check();
    refused.check();
    held.check();
    reused.check();
}

#[test]
fn loom_what_is_opened_anew_is_not_used_again() {
    what_is_leased_is_not_used_again(|word, generation| {
        lease(word);
        let current = generation.load(Ordering::Acquire) == 1;
        if !current {
            unpin(word);
        }
        current
    });
}

#[test]
fn loom_what_is_opened_from_a_note_is_not_used_again() {
    what_is_leased_is_not_used_again(|word, generation| {
        let (count, stamp) = (AtomicU64::new(0), AtomicU64::new(7));
        pin_and_lease((&count, &stamp, 7), word, || generation.load(Ordering::Acquire) == 1)
    });
}

/// A lease that another thread gives back, in another row: the producer, who reads the rows one after the other, never
/// misses one that is held still.
#[test]
fn loom_a_lease_given_back_elsewhere_counts() {
    let (held, reused) = (Reached::default(), Reached::default());
    let (held_in_model, reused_in_model) = (held.clone(), reused.clone());
    loom::model(move || {
        let generation = AtomicU64::new(1);
        // Two are open, counted in the first row.
        let rows = Arc::new([AtomicU64::new(2), AtomicU64::new(0)]);
        let closed = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let closers: Vec<_> = (0..2)
            .map(|me| {
                let (rows, closed) = (Arc::clone(&rows), Arc::clone(&closed));
                thread::spawn(move || {
                    closed[me].store(true, Ordering::Relaxed);
                    // One where it was opened, one elsewhere.
                    unpin(&rows[me]);
                })
            })
            .collect();
        retire(&generation, 1);
        if look(&rows[0]).wrapping_add(look(&rows[1])) == 0 {
            assert!(closed.iter().all(|closed| closed.load(Ordering::Relaxed)), "open, and somebody else's");
            reused_in_model.reach();
        } else {
            held_in_model.reach();
        }
        for closer in closers {
            closer.join().unwrap();
        }
    });
    held.check();
    reused.check();
}
