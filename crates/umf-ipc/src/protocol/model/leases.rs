//! What is in use is not taken away: exports that are opened while their producer frees them, marks
//! of rows with leases, pins on entries of a cache.

use super::super::{
    clear_opened_rows, close, count_lease, is_current, pin, publish, read, release_lease, retire,
    set_opened_bit, unpin,
};
use super::*;

// Exports that are opened while their producer frees them: an open export's memory is not used
// again.

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
                count_lease(word);
                if is_current(generation, 1) {
                    memory.use_it();
                    reached.reach("opened");
                } else {
                    reached.reach("refused");
                }
                release_lease(word);
            })
        };
        let [word, generation] = &*words;
        assert!(retire(generation, 1));
        let is_leased = look(word) != 0;
        if !is_leased {
            memory.reclaim();
        }
        importer.join().unwrap();
        in_model.reach(if is_leased { "held" } else { "used again" });
        assert_eq!(look(word), 0, "a refused or closed open leaves nothing");
        memory.reclaim();
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
                    count_lease(&words[0]);
                    if is_current(&words[1], 1) {
                        memory.use_it();
                        reached.reach("opened");
                    }
                    release_lease(&words[0]);
                })
            })
            .collect();
        assert!(retire(&words[1], 1));
        let count = look(&words[0]);
        if count == 0 {
            memory.reclaim();
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
                count_lease(&words[0]);
                let other = if is_current(&words[1], 1) {
                    reached.reach("closed by another thread");
                    let words = Arc::clone(&words);
                    Some(thread::spawn(move || release_lease(&words[0])))
                } else {
                    reached.reach("refused");
                    release_lease(&words[0]);
                    None
                };
                memory.use_it();
                release_lease(&words[0]);
                if let Some(other) = other {
                    other.join().unwrap();
                }
            })
        };
        assert!(retire(&words[1], 1));
        let is_leased = look(&words[0]) != 0;
        if !is_leased {
            memory.reclaim();
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
                set_opened_bit(marks, 1);
                count_lease(word);
                if is_current(generation, 1) {
                    memory.use_it();
                    reached.reach("opened");
                } else {
                    reached.reach("refused");
                }
                release_lease(word);
            })
        };
        let [height, marks, word, generation] = &*words;
        assert!(retire(generation, 1));
        let is_leased = look(marks) != 0 && look(height) != 0 && look(word) != 0;
        if !is_leased {
            memory.reclaim();
        }
        in_model.reach(if is_leased { "held" } else { "used again" });
        importer.join().unwrap();
    });
    reached.check(["held", "opened", "refused", "used again"]);
}

// Marks, which say in which rows to look for leases.

/// Opens an export in the row with this bit; `false` if it is not current.
fn open(marks: &ModelWord, row: &ModelWord, bit: u64, generation: &ModelWord, expected: u64) -> bool {
    set_opened_bit(marks, bit);
    count_lease(row);
    is_current(generation, expected) || {
        release_lease(row);
        false
    }
}

/// As a lease table is scanned: rows are looked at only where marks say so.
fn is_leased(marks: &ModelWord, rows: &[ModelWord]) -> bool {
    let marked = marks.load(Ordering::SeqCst);
    let mut rows = rows.iter().enumerate().filter(|(row, _)| marked >> row & 1 != 0);
    let is_leased = rows.any(|(_, row)| row.load(Ordering::SeqCst) != 0);
    if !is_leased {
        clear_opened_rows(marks);
    }
    is_leased
}

/// Two importers open an export for the first time, while its producer frees it: no mark is lost,
/// and none comes too late.
#[test]
fn loom_a_mark_says_where_to_look() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The generation, the marks, and two rows.
        let words = words([1, 0, 0, 0]);
        let memory = Arc::new(Memory::new());
        let importers: Vec<_> = (0..2)
            .map(|me| {
                let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
                thread::spawn(move || {
                    let [generation, marks, rows @ ..] = &*words;
                    if open(marks, &rows[me], 1 << me, generation, 1) {
                        memory.use_it();
                        release_lease(&rows[me]);
                        reached.reach("opened");
                    } else {
                        reached.reach("refused");
                    }
                })
            })
            .collect();
        let [generation, marks, rows @ ..] = &*words;
        assert!(retire(generation, 1));
        if is_leased(marks, rows) {
            in_model.reach("held");
        } else {
            memory.reclaim();
            in_model.reach("used again");
        }
        for importer in importers {
            importer.join().unwrap();
        }
    });
    reached.check(["held", "opened", "refused", "used again"]);
}

/// An export that was open once, and the next one in its slot: the marks of the first do not pass
/// for marks of the second.
#[test]
fn loom_a_mark_is_of_one_export() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The generation, the marks, and a row with a lease on the first export that is given back.
        let words = words([1, 1, 0]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                let [generation, marks, row] = &*words;
                if open(marks, row, 1, generation, 1) {
                    reached.reach("the first is open");
                    release_lease(row);
                }
                if read(generation, 3, || ()).is_ok() {
                    if open(marks, row, 1, generation, 3) {
                        memory.use_it();
                        release_lease(row);
                        reached.reach("the second is open");
                    } else {
                        reached.reach("the second is refused");
                    }
                }
            })
        };
        let [generation, marks, rows @ ..] = &*words;
        assert!(retire(generation, 1));
        if is_leased(marks, rows) {
            in_model.reach("the first is held");
        } else {
            assert_eq!(publish(generation, || ()), 3);
            assert!(retire(generation, 3));
            if is_leased(marks, rows) {
                in_model.reach("the second is held");
            } else {
                memory.reclaim();
                in_model.reach("the second is used again");
            }
        }
        importer.join().unwrap();
    });
    reached.check([
        "the first is held",
        "the first is open",
        "the second is held",
        "the second is open",
        "the second is refused",
        "the second is used again",
    ]);
}

// Entries of a cache that are used and evicted.

fn sum(counts: &[ModelWord]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.wrapping_add(count.load(Ordering::Acquire)))
}

/// Two threads pin and unpin, a third closes: no thread holds what was closed.
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
            entry.reclaim();
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

/// A pin that another thread takes back: the count of each is wrong, their sum is right, and the
/// entry is not closed before.
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
                    entry.reclaim();
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

/// A thread that pins an entry while it is inserted sees it as it was inserted.
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

/// What an entry keeps mapped (the word of a lease, and that of the generation) is touched only
/// while the entry is there, also by an open that is refused.
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
                let [count, stamp, count_lease, generation] = &*words;
                if !pin(count, stamp, 7) {
                    reached.reach("evicted");
                    return;
                }
                entry.use_it();
                super::super::count_lease(count_lease);
                reached.reach(if is_current(generation, 1) { "opened" } else { "retired" });
                entry.use_it();
                release_lease(count_lease);
                unpin(count);
            })
        };
        let [count, stamp, count_lease, generation] = &*words;
        retire(generation, 1);
        if close(stamp, 7, || sum(core::slice::from_ref(count))) {
            entry.reclaim();
            in_model.reach("closed");
        } else {
            in_model.reach("stays open");
        }
        user.join().unwrap();
        let left = (count.load(Ordering::Relaxed), count_lease.load(Ordering::Relaxed));
        assert_eq!(left, (0, 0), "a refused open leaves nothing");
    });
    reached.check(["closed", "evicted", "opened", "retired", "stays open"]);
}
