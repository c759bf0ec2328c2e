//! Models of reclamation: memory in use is not reclaimed. Exports that are opened while their
//! producer frees them, the bitmaps of opened rows, and pins on cache entries.

use super::super::{
    clear_opened_rows, close, count_lease, is_collected, is_current, mark_collected, pin, publish, read,
    release_lease, retire, set_opened_bit, unpin,
};
use super::*;

// Exports that are opened while their producer frees them: memory that is open is not reused.

/// Loads a bitmap, height or lease as a scan does.
fn scan_load(word: &ModelWord) -> u64 {
    word.load(Ordering::SeqCst)
}

#[test]
fn loom_open_export_is_not_reused() {
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
                    memory.access();
                    reached.reach("opened");
                } else {
                    reached.reach("refused");
                }
                release_lease(word);
            })
        };
        let [word, generation] = &*words;
        assert!(retire(generation, 1));
        let is_leased = scan_load(word) != 0;
        if !is_leased {
            memory.reclaim();
        }
        importer.join().unwrap();
        in_model.reach(if is_leased { "deferred" } else { "reclaimed" });
        assert_eq!(scan_load(word), 0, "a refused or closed open leaves no lease");
        memory.reclaim();
    });
    reached.check(["deferred", "opened", "refused", "reclaimed"]);
}

/// A collector releases what a dead producer left, while importers open it, by a cached open and in
/// a row that was not used before. The generation stays current.
#[test]
fn loom_open_export_is_not_collected() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The height, two leases, the generation, and `dead`.
        let words = words([1, 0, 0, 1, 0]);
        let memory = Arc::new(Memory::new());
        let importers: Vec<_> = (0..2)
            .map(|importer: usize| {
                let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
                thread::spawn(move || {
                    let [height, rows @ .., generation, dead] = &*words;
                    if importer == 1 {
                        height.fetch_max(2, Ordering::SeqCst);
                    }
                    count_lease(&rows[importer]);
                    assert!(is_current(generation, 1));
                    if is_collected(dead) {
                        reached.reach("refused");
                    } else {
                        memory.access();
                        reached.reach("opened");
                    }
                    release_lease(&rows[importer]);
                })
            })
            .collect();
        let [height, rows @ .., _, dead] = &*words;
        mark_collected(dead);
        let height = scan_load(height) as usize;
        if rows[..height].iter().any(|row| scan_load(row) != 0) {
            in_model.reach("kept");
        } else {
            memory.reclaim();
            in_model.reach("released");
        }
        for importer in importers {
            importer.join().unwrap();
        }
    });
    reached.check(["kept", "opened", "refused", "released"]);
}

/// Threads of one importer share a row. None of their leases is lost.
#[test]
fn loom_threads_share_a_lease_word() {
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
                        memory.access();
                        reached.reach("opened");
                    }
                    release_lease(&words[0]);
                })
            })
            .collect();
        assert!(retire(&words[1], 1));
        let count = scan_load(&words[0]);
        if count == 0 {
            memory.reclaim();
        }
        in_model.reach(["reclaimed", "one lease", "two leases"][count as usize]);
        for importer in importers {
            importer.join().unwrap();
        }
        assert_eq!(scan_load(&words[0]), 0);
    });
    reached.check(["one lease", "opened", "reclaimed", "two leases"]);
}

/// A thread has the export open, and opens it again while the producer frees it. Another thread
/// releases the second lease, in the same word. The first lease still counts.
#[test]
fn loom_release_by_another_thread_leaves_other_leases() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = words([1, 1]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                count_lease(&words[0]);
                let releaser = if is_current(&words[1], 1) {
                    reached.reach("released by another thread");
                    let words = Arc::clone(&words);
                    Some(thread::spawn(move || release_lease(&words[0])))
                } else {
                    reached.reach("refused");
                    release_lease(&words[0]);
                    None
                };
                memory.access();
                release_lease(&words[0]);
                if let Some(releaser) = releaser {
                    releaser.join().unwrap();
                }
            })
        };
        assert!(retire(&words[1], 1));
        let is_leased = scan_load(&words[0]) != 0;
        if !is_leased {
            memory.reclaim();
        }
        in_model.reach(if is_leased { "deferred" } else { "reclaimed" });
        importer.join().unwrap();
        assert_eq!(scan_load(&words[0]), 0, "a lease is never released");
    });
    reached.check(["deferred", "reclaimed", "refused", "released by another thread"]);
}

/// An importer raises the height before it counts a lease. So the producer scans its row, or the
/// importer sees the new generation.
#[test]
fn loom_first_lease_in_a_new_row_is_scanned() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The height, the bitmap of opened rows, a lease, the generation.
        let words = words([0, 0, 0, 1]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                let [height, opened_rows, word, generation] = &*words;
                height.fetch_max(1, Ordering::SeqCst);
                set_opened_bit(opened_rows, 1);
                count_lease(word);
                if is_current(generation, 1) {
                    memory.access();
                    reached.reach("opened");
                } else {
                    reached.reach("refused");
                }
                release_lease(word);
            })
        };
        let [height, opened_rows, word, generation] = &*words;
        assert!(retire(generation, 1));
        let is_leased = scan_load(opened_rows) != 0 && scan_load(height) != 0 && scan_load(word) != 0;
        if !is_leased {
            memory.reclaim();
        }
        in_model.reach(if is_leased { "deferred" } else { "reclaimed" });
        importer.join().unwrap();
    });
    reached.check(["deferred", "opened", "refused", "reclaimed"]);
}

// The bitmap of opened rows, which selects the rows that a scan loads.

/// Opens an export in the row with this bit. Returns `false` if it is not current.
fn open(opened_rows: &ModelWord, row: &ModelWord, bit: u64, generation: &ModelWord, expected: u64) -> bool {
    set_opened_bit(opened_rows, bit);
    count_lease(row);
    is_current(generation, expected) || {
        release_lease(row);
        false
    }
}

/// Scans a lease table: loads the leases of opened rows.
fn is_leased(opened_rows: &ModelWord, rows: &[ModelWord]) -> bool {
    let bits = opened_rows.load(Ordering::SeqCst);
    let mut rows = rows.iter().enumerate().filter(|(row, _)| bits >> row & 1 != 0);
    let is_leased = rows.any(|(_, row)| row.load(Ordering::SeqCst) != 0);
    if !is_leased {
        clear_opened_rows(opened_rows);
    }
    is_leased
}

/// Two importers open an export for the first time while its producer frees it. No bit is lost or
/// set too late.
#[test]
fn loom_opened_bit_is_set_before_the_scan() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The generation, the bitmap of opened rows, and two rows.
        let words = words([1, 0, 0, 0]);
        let memory = Arc::new(Memory::new());
        let importers: Vec<_> = (0..2)
            .map(|importer: usize| {
                let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
                thread::spawn(move || {
                    let [generation, opened_rows, rows @ ..] = &*words;
                    if open(opened_rows, &rows[importer], 1 << importer, generation, 1) {
                        memory.access();
                        release_lease(&rows[importer]);
                        reached.reach("opened");
                    } else {
                        reached.reach("refused");
                    }
                })
            })
            .collect();
        let [generation, opened_rows, rows @ ..] = &*words;
        assert!(retire(generation, 1));
        if is_leased(opened_rows, rows) {
            in_model.reach("deferred");
        } else {
            memory.reclaim();
            in_model.reach("reclaimed");
        }
        for importer in importers {
            importer.join().unwrap();
        }
    });
    reached.check(["deferred", "opened", "refused", "reclaimed"]);
}

/// An export was opened, and another one is published in its slot. The bits of the first do not
/// count for the second.
#[test]
fn loom_opened_bit_counts_for_one_export() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        // The generation, the bitmap of opened rows, and a row, with a lease on the first export
        // that was released.
        let words = words([1, 1, 0]);
        let memory = Arc::new(Memory::new());
        let importer = {
            let (words, memory, reached) = (Arc::clone(&words), Arc::clone(&memory), in_model.clone());
            thread::spawn(move || {
                let [generation, opened_rows, row] = &*words;
                if open(opened_rows, row, 1, generation, 1) {
                    reached.reach("first is open");
                    release_lease(row);
                }
                if read(generation, 3, || ()).is_ok() {
                    if open(opened_rows, row, 1, generation, 3) {
                        memory.access();
                        release_lease(row);
                        reached.reach("second is open");
                    } else {
                        reached.reach("second is refused");
                    }
                }
            })
        };
        let [generation, opened_rows, rows @ ..] = &*words;
        assert!(retire(generation, 1));
        if is_leased(opened_rows, rows) {
            in_model.reach("first is deferred");
        } else {
            assert_eq!(publish(generation, || ()), 3);
            assert!(retire(generation, 3));
            if is_leased(opened_rows, rows) {
                in_model.reach("second is deferred");
            } else {
                memory.reclaim();
                in_model.reach("second is reclaimed");
            }
        }
        importer.join().unwrap();
    });
    reached.check([
        "first is deferred",
        "first is open",
        "second is deferred",
        "second is open",
        "second is refused",
        "second is reclaimed",
    ]);
}

// Entries of a cache that are used and evicted.

fn sum(counts: &[ModelWord]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.wrapping_add(count.load(Ordering::Acquire)))
}

/// Two threads pin and unpin an entry, a third closes it. No thread has a pin on a closed entry.
#[test]
fn loom_pinned_entry_is_not_closed() {
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        let stamp = Arc::new(ModelWord::new(7));
        let counts = words([0, 0]);
        let entry = Arc::new(Memory::new());
        let users: Vec<_> = (0..2)
            .map(|user: usize| {
                let (stamp, counts, entry) = (Arc::clone(&stamp), Arc::clone(&counts), Arc::clone(&entry));
                let reached = in_model.clone();
                thread::spawn(move || {
                    if pin(&counts[user], &*stamp, 7) {
                        entry.access();
                        unpin(&counts[user]);
                        reached.reach("pinned");
                    } else {
                        reached.reach("too late");
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
    reached.check(["too late", "closed", "pinned", "stays open"]);
}

/// Another thread removes a pin. Each count alone is wrong, their sum is right, and the entry is
/// not closed before.
#[test]
fn loom_unpin_by_another_thread_counts() {
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
                    assert_eq!(stamp.load(Ordering::Relaxed), 7, "it can be pinned again");
                    reached.reach("stays open");
                }
            })
        };
        entry.access();
        unpin(&counts[1]);
        closer.join().unwrap();
    });
    reached.check(["closed", "stays open"]);
}

/// A thread that pins an entry while another one inserts it sees the complete entry.
#[test]
fn loom_pinned_entry_is_complete() {
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
            entry.access();
            unpin(&words[0]);
            in_model.reach("pinned");
        } else {
            in_model.reach("too early");
        }
        maker.join().unwrap();
    });
    reached.check(["too early", "pinned"]);
}

/// An entry keeps the words of the lease and of the generation mapped. An open, also one that is
/// refused, accesses them only while it has a pin.
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
                entry.access();
                count_lease(lease);
                reached.reach(if is_current(generation, 1) { "opened" } else { "retired" });
                entry.access();
                release_lease(lease);
                unpin(count);
            })
        };
        let [count, stamp, lease, generation] = &*words;
        retire(generation, 1);
        if close(stamp, 7, || sum(core::slice::from_ref(count))) {
            entry.reclaim();
            in_model.reach("closed");
        } else {
            in_model.reach("stays open");
        }
        user.join().unwrap();
        let counts = (count.load(Ordering::Relaxed), lease.load(Ordering::Relaxed));
        assert_eq!(counts, (0, 0), "a refused open leaves no pin and no lease");
    });
    reached.check(["closed", "evicted", "opened", "retired", "stays open"]);
}
