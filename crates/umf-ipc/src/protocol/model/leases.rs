//! Exports that are opened while their producer frees them: what is open is not used again.

use super::super::{
    give_back_for_all, lease, lease_for_all, look, look_at_once, pin_and_lease, retire, unpin,
};
use super::*;

/// An importer opens and closes, by one of the ways, while the producer frees.
fn what_is_leased_is_not_used_again(open: fn(&ModelWord, &ModelWord) -> bool, close: fn(&ModelWord)) {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([0, 1]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                let [lease, generation] = &*words;
                if open(lease, generation) {
                    memory.use_it();
                    close(lease);
                    reached.reach("opened");
                } else {
                    reached.reach("refused");
                }
            })
        };
        let [lease, generation] = &*words;
        assert!(retire(generation, 1));
        let is_leased = look_at_once(lease) != 0;
        if !is_leased {
            memory.take_away();
        }
        importer.join().unwrap();
        in_model.reach(if is_leased { "held" } else { "used again" });
        // A refused open leaves nothing.
        assert_eq!(look(lease), 0, "held for ever");
        memory.take_away();
    });
    reached.check(["held", "opened", "refused", "used again"]);
}

fn is_current(generation: &ModelWord) -> bool {
    generation.load(Ordering::Acquire) == 1
}

#[test]
fn loom_what_is_opened_anew_is_not_used_again() {
    let open = |word: &ModelWord, generation: &ModelWord| {
        lease(word);
        is_current(generation) || {
            unpin(word);
            false
        }
    };
    what_is_leased_is_not_used_again(open, unpin);
}

#[test]
fn loom_what_is_opened_from_a_note_is_not_used_again() {
    let open = |word: &ModelWord, generation: &ModelWord| {
        // The entry stays.
        let [count, stamp] = [0, 7].map(ModelWord::new);
        pin_and_lease((&count, &stamp, 7), word, || is_current(generation))
    };
    what_is_leased_is_not_used_again(open, unpin);
}

#[test]
fn loom_what_is_opened_without_a_row_is_not_used_again() {
    let open = |word: &ModelWord, generation: &ModelWord| {
        lease_for_all(word);
        is_current(generation) || {
            give_back_for_all(word);
            false
        }
    };
    what_is_leased_is_not_used_again(open, give_back_for_all);
}

/// Threads without a row of their own count in one word, and none of their counts is lost.
#[test]
fn loom_threads_without_a_row_count_together() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([0, 1]);
        let memory = Arc::new(Memory::new());
        let importers: Vec<_> = (0..2)
            .map(|_| {
                let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
                thread::spawn(move || {
                    lease_for_all(&words[0]);
                    if is_current(&words[1]) {
                        memory.use_it();
                        reached.reach("opened");
                    }
                    give_back_for_all(&words[0]);
                })
            })
            .collect();
        assert!(retire(&words[1], 1));
        let count = look_at_once(&words[0]);
        if count == 0 {
            memory.take_away();
        }
        in_model.reach(["used again", "held by one", "held by two"][count as usize]);
        for importer in importers {
            importer.join().unwrap();
        }
        assert_eq!(look(&words[0]), 0);
    });
    reached.check(["held by one", "held by two", "opened", "used again"]);
}

/// Two that are open are counted in one row. One is given back there and one elsewhere, each by a thread that uses the
/// memory until then.
fn what_is_given_back_elsewhere_counts(rows_in_order: [usize; 2]) {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let generation = ModelWord::new(1);
        // The row of one thread, and that of all without one.
        let rows = words([2, 0]);
        let memory = Arc::new(Memory::new());
        let closers: Vec<_> = (0..2)
            .map(|row| {
                let (rows, memory) = (Arc::clone(&rows), Arc::clone(&memory));
                thread::spawn(move || {
                    memory.use_it();
                    if row == 0 { unpin(&rows[row]) } else { give_back_for_all(&rows[row]) }
                })
            })
            .collect();
        assert!(retire(&generation, 1));
        let sum = rows_in_order.into_iter().fold(0, |sum: u64, row| sum.wrapping_add(look(&rows[row])));
        if sum == 0 {
            memory.take_away();
        }
        in_model.reach(["used again", "held by one", "held by two"][sum as usize]);
        for closer in closers {
            closer.join().unwrap();
        }
    });
    reached.check(["held by one", "held by two", "used again"]);
}

/// A lease that another thread gives back, in another row: the producer, who reads the rows one after the other, never
/// misses one that is held still.
#[test]
fn loom_a_lease_given_back_elsewhere_counts() {
    what_is_given_back_elsewhere_counts([0, 1]);
    what_is_given_back_elsewhere_counts([1, 0]);
}

/// A thread has the export open, and opens it again while the producer frees it. The second lease goes to another thread,
/// which gives it back in another row: that is not taken for the first one's.
fn what_stays_open_is_seen_beside_what_is_given_back_elsewhere(rows_in_order: [usize; 2]) {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let generation = Arc::new(ModelWord::new(1));
        let rows = words([1, 0]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (generation, rows, memory) =
                (Arc::clone(&generation), Arc::clone(&rows), Arc::clone(&memory));
            let reached = in_model.clone();
            thread::spawn(move || {
                lease(&rows[0]);
                let other = if is_current(&generation) {
                    reached.reach("given back elsewhere");
                    let rows = Arc::clone(&rows);
                    Some(thread::spawn(move || give_back_for_all(&rows[1])))
                } else {
                    reached.reach("refused");
                    unpin(&rows[0]);
                    None
                };
                memory.use_it();
                unpin(&rows[0]);
                if let Some(other) = other {
                    other.join().unwrap();
                }
            })
        };
        assert!(retire(&*generation, 1));
        let sum = rows_in_order.into_iter().fold(0, |sum: u64, row| sum.wrapping_add(look(&rows[row])));
        if sum == 0 {
            memory.take_away();
        }
        in_model.reach(if sum == 0 { "used again" } else { "held" });
        importer.join().unwrap();
        assert_eq!(look(&rows[0]).wrapping_add(look(&rows[1])), 0, "held for ever");
    });
    reached.check(["given back elsewhere", "held", "refused", "used again"]);
}

#[test]
fn loom_a_lease_given_back_elsewhere_is_not_taken_for_another() {
    what_stays_open_is_seen_beside_what_is_given_back_elsewhere([0, 1]);
    what_stays_open_is_seen_beside_what_is_given_back_elsewhere([1, 0]);
}
