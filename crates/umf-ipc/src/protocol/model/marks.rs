//! Marks, which say in which rows to look for leases.

use super::super::{clear_marks, give_back, is_current, lease, mark, publish, read, retire};
use super::*;

/// Opens an export in the row with this bit; `false` if it is not current.
fn open(marks: &ModelWord, row: &ModelWord, bit: u64, generation: &ModelWord, expected: u64) -> bool {
    mark(marks, bit);
    lease(row);
    is_current(generation, expected) || {
        give_back(row);
        false
    }
}

/// As a lease table is scanned: rows are looked at only where marks say so.
fn is_leased(marks: &ModelWord, rows: &[ModelWord]) -> bool {
    let marked = marks.load(Ordering::SeqCst);
    let mut rows = rows.iter().enumerate().filter(|(row, _)| marked >> row & 1 != 0);
    let is_leased = rows.any(|(_, row)| row.load(Ordering::SeqCst) != 0);
    if !is_leased {
        clear_marks(marks);
    }
    is_leased
}

/// Two importers open what nobody opened before, while its producer frees it: no mark is lost, and none comes too late.
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
                        give_back(&rows[me]);
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
            memory.take_away();
            in_model.reach("used again");
        }
        for importer in importers {
            importer.join().unwrap();
        }
    });
    reached.check(["held", "opened", "refused", "used again"]);
}

/// An export that was open once, and the next one in its slot: the marks of the first do not pass for marks of the second.
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
                    give_back(row);
                }
                if read(generation, 3, || ()).is_ok() {
                    if open(marks, row, 1, generation, 3) {
                        memory.use_it();
                        give_back(row);
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
                memory.take_away();
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
