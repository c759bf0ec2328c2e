//! Exports that are opened while their producer frees them: an open export's memory is not used
//! again.

use super::super::{give_back, is_current, lease, mark, retire};
use super::*;

/// What a scan loads, of marks, height and words.
fn look(word: &ModelWord) -> u64 {
    word.load(Ordering::SeqCst)
}

#[test]
fn loom_open_export_is_not_used_again() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([0, 1]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                let [word, generation] = &*words;
                lease(word);
                if is_current(generation, 1) {
                    memory.use_it();
                    reached.reach("opened");
                } else {
                    reached.reach("refused");
                }
                give_back(word);
            })
        };
        let [word, generation] = &*words;
        assert!(retire(generation, 1));
        let is_leased = look(word) != 0;
        if !is_leased {
            memory.take_away();
        }
        importer.join().unwrap();
        in_model.reach(if is_leased { "held" } else { "used again" });
        assert_eq!(look(word), 0, "a refused or closed open leaves nothing");
        memory.take_away();
    });
    reached.check(["held", "opened", "refused", "used again"]);
}

/// Threads of one importer share a row, and none of their counts is lost.
#[test]
fn loom_threads_count_in_one_word() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([0, 1]);
        let memory = Arc::new(Memory::new());
        let importers: Vec<_> = (0..2)
            .map(|_| {
                let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
                thread::spawn(move || {
                    lease(&words[0]);
                    if is_current(&words[1], 1) {
                        memory.use_it();
                        reached.reach("opened");
                    }
                    give_back(&words[0]);
                })
            })
            .collect();
        assert!(retire(&words[1], 1));
        let count = look(&words[0]);
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

/// A thread has the export open, and opens it again while the producer frees it. The second lease
/// goes to another thread, which takes it back in the same word: the first one still counts.
#[test]
fn loom_lease_closed_by_another_thread_leaves_the_others() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([1, 1]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                lease(&words[0]);
                let other = if is_current(&words[1], 1) {
                    reached.reach("closed by another thread");
                    let words = Arc::clone(&words);
                    Some(thread::spawn(move || give_back(&words[0])))
                } else {
                    reached.reach("refused");
                    give_back(&words[0]);
                    None
                };
                memory.use_it();
                give_back(&words[0]);
                if let Some(other) = other {
                    other.join().unwrap();
                }
            })
        };
        assert!(retire(&words[1], 1));
        let is_leased = look(&words[0]) != 0;
        if !is_leased {
            memory.take_away();
        }
        in_model.reach(if is_leased { "held" } else { "used again" });
        importer.join().unwrap();
        assert_eq!(look(&words[0]), 0, "held for ever");
    });
    reached.check(["closed by another thread", "held", "refused", "used again"]);
}

/// An importer raises the height before it counts: the producer looks at its row, or the importer
/// at the new generation.
#[test]
fn loom_first_open_in_a_new_row_is_seen() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The height, the marks, a word, the generation.
        let words = words([0, 0, 0, 1]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                let [height, marks, word, generation] = &*words;
                height.fetch_max(1, Ordering::SeqCst);
                mark(marks, 1);
                lease(word);
                if is_current(generation, 1) {
                    memory.use_it();
                    reached.reach("opened");
                } else {
                    reached.reach("refused");
                }
                give_back(word);
            })
        };
        let [height, marks, word, generation] = &*words;
        assert!(retire(generation, 1));
        let is_leased = look(marks) != 0 && look(height) != 0 && look(word) != 0;
        if !is_leased {
            memory.take_away();
        }
        in_model.reach(if is_leased { "held" } else { "used again" });
        importer.join().unwrap();
    });
    reached.check(["held", "opened", "refused", "used again"]);
}
