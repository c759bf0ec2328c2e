//! Models of tickets: memory in transit is not reclaimed, and is claimed as often as its sender
//! said.

use super::super::{count_lease, release_lease, ticket};
use super::*;

/// An opener claims a ticket while its sender polls and the producer scans. The scan passes the
/// opener's row first.
#[test]
fn loom_claimed_memory_is_not_reused() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The opener's lease, the sender's lease, the events, the ticket.
        let words = words([0, 0, 0, 0]);
        let memory = Arc::new(Memory::new());
        count_lease(&words[1]);
        let number = ticket::send(&words[3], &words[2], 1, |_| true);
        let opener = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                let [lease, _, events, word] = &*words;
                count_lease(lease);
                assert!(ticket::claim(word, events, number), "its sender lives");
                memory.access();
                reached.reach("claimed");
                release_lease(lease);
            })
        };
        let sender = {
            let (words, reached) = (Arc::clone(&words), in_model.clone());
            thread::spawn(move || {
                let [_, hold, _, word] = &*words;
                if ticket::is_open(word, number) {
                    reached.reach("in transit");
                    return false;
                }
                release_lease(hold);
                true
            })
        };
        // The generation was retired before: the ticket does not depend on it.
        let [lease, hold, events, _] = &*words;
        let load = |word: &ModelWord| word.load(Ordering::SeqCst);
        let before = load(events);
        let is_leased = load(lease) != 0 || load(hold) != 0 || load(events) != before;
        if !is_leased {
            memory.reclaim();
        }
        in_model.reach(if is_leased { "deferred" } else { "reclaimed" });
        opener.join().unwrap();
        if !sender.join().unwrap() {
            release_lease(hold);
        }
        assert_eq!((load(lease), load(hold)), (0, 0));
    });
    reached.check(["claimed", "deferred", "in transit", "reclaimed"]);
}

/// Two openers race for a ticket of one reader while its sender cancels it: at most one of the three
/// succeeds, and one does.
#[test]
fn loom_ticket_is_claimed_or_cancelled_once() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([0, 0]);
        let number = ticket::send(&words[1], &words[0], 1, |_| true);
        let openers: Vec<_> = (0..2)
            .map(|_| {
                let words = Arc::clone(&words);
                thread::spawn(move || ticket::claim(&words[1], &words[0], number))
            })
            .collect();
        let is_cancelled = ticket::cancel(&words[1], number);
        let claims: usize = openers.into_iter().map(|opener| usize::from(opener.join().unwrap())).sum();
        assert_eq!(claims + usize::from(is_cancelled), 1);
        assert!(!ticket::is_open(&words[1], number));
        in_model.reach(if is_cancelled { "cancelled" } else { "claimed" });
    });
    reached.check(["cancelled", "claimed"]);
}

/// A word that is used again has another number: an opener of the first ticket does not claim the
/// second one.
#[test]
fn loom_old_ticket_does_not_claim_a_new_one() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([0, 0]);
        let first = ticket::send(&words[1], &words[0], 2, |_| true);
        let opener = {
            let words = Arc::clone(&words);
            thread::spawn(move || ticket::claim(&words[1], &words[0], first))
        };
        assert!(ticket::cancel(&words[1], first), "one reader is missing");
        let second = ticket::send(&words[1], &words[0], 1, |_| true);
        assert!(ticket::is_open(&words[1], second));
        in_model.reach(if opener.join().unwrap() { "claimed" } else { "too late" });
        assert!(ticket::claim(&words[1], &words[0], second));
    });
    reached.check(["claimed", "too late"]);
}
