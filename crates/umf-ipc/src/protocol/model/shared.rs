//! What is written by one thread or process and read by others: slots of the ledger, records of a
//! ring, numbers on a stack, what the first user makes.

use core::ptr::NonNull;

use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use umf_sync::sequence::{SequenceLock, stamp_of};

use super::super::lazy::{get_valid, install};
use super::super::stack::{pop, push};
use super::super::{publish, read, read_stable, retire};
use super::*;

// Slots of the ledger: exports that come and go.

/// A slot that is published, retired and published again: readers see each export whole or not at
/// all, and of one that is gone the generation that came after it.
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
                        assert!(retire(generation, round), "no other thread retires it");
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

/// The order that "never stale" rests on. A producer retires an export, and then hands the memory
/// out again. An importer that used the memory loads the generation afterwards, and notices.
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
                assert_eq!(seen, 10, "another export's");
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

/// A block and its region that are freed at the same time: one thread ends the export, and goes on
/// with the slot alone. The other may come when the slot is the next export's, and ends nothing.
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
                // No other process has it: it is published anew at once.
                slot.reclaim();
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

/// A thread that comes too late to end an export leaves later exports in the slot as they are.
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

// Records of a ring.

/// Two writers in one record, of which a reader sees one whole or none. The stamp says whose it is
/// in the end, and that is not the first of two that both got in.
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
        let (before, fields, after) = read_stable(
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
            _ => panic!("no writer got in"),
        }
    });
    reached.check(["replaced", "seen", "the first is lost", "the second is lost"]);
}

// Numbers that are given back and taken.

type ModelLink = ModelWord<AtomicU32>;

fn link() -> ModelLink {
    ModelWord::over(AtomicU32::new(0))
}

/// Two threads give numbers back, a third takes what it finds and gives it back. Each number is
/// there once in the end, and taking one happens after giving it back.
#[test]
fn loom_what_is_given_back_is_taken_once() {
    struct Shared {
        top: ModelLink,
        links: [ModelLink; 2],
        used: [Memory; 2],
    }
    impl Shared {
        fn give_back(&self, number: u32) {
            self.used[number as usize].make();
            push(&self.top, number, &self.links[number as usize]);
        }

        fn take(&self) -> Option<u32> {
            let number = pop(&self.top, |number| self.links.get(number as usize))?;
            self.used[number as usize].make();
            Some(number)
        }
    }
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        let pair = || [link(), link()];
        let used = [Memory::new(), Memory::new()];
        let shared = Arc::new(Shared { top: link(), links: pair(), used });
        let givers: Vec<_> = (0..2)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.give_back(number))
            })
            .collect();
        let taken: Vec<u32> = [shared.take(), shared.take()].into_iter().flatten().collect();
        in_model.reach(["none", "one", "both"][taken.len()]);
        for number in taken {
            shared.give_back(number);
        }
        for giver in givers {
            giver.join().unwrap();
        }
        let mut rest: Vec<u32> = core::iter::from_fn(|| shared.take()).collect();
        rest.sort_unstable();
        assert_eq!(rest, [0, 1]);
    });
    reached.check(["none", "one", "both"]);
}

// What the first user makes.

#[derive(Debug)]
struct Table {
    is_of_this_process: bool,
    memory: Memory,
}

#[derive(Debug)]
struct Shared {
    pointer: ModelWord<AtomicPtr<Table>>,
    /// Tables that were made here, and those of them that are gone.
    made: AtomicUsize,
    gone: AtomicUsize,
}

impl Shared {
    fn new(before: *mut Table) -> Self {
        let pointer = ModelWord::over(AtomicPtr::new(before));
        Self { pointer, made: AtomicUsize::new(0), gone: AtomicUsize::new(0) }
    }

    fn drop_table(&self, table: NonNull<Table>) {
        // SAFETY: it came from a box, and is the caller's.
        drop(unsafe { Box::from_raw(table.as_ptr()) });
        self.gone.fetch_add(1, Ordering::Relaxed);
    }

    /// The table, made if there is none, as `Producer::count_lease` does. Yields how it was come
    /// by, too.
    fn use_it(&self) -> (NonNull<Table>, &'static str) {
        // SAFETY: what lies there stays as long as this.
        let is_of_this_process = |table: NonNull<Table>| unsafe { table.as_ref() }.is_of_this_process;
        let (table, how) = match get_valid(&self.pointer, is_of_this_process) {
            Ok(table) => (table, "found"),
            Err(vacant) => {
                let new = Table { is_of_this_process: true, memory: Memory::new() };
                new.memory.make();
                self.made.fetch_add(1, Ordering::Relaxed);
                let new = NonNull::from(Box::leak(Box::new(new)));
                match install(&self.pointer, vacant, new) {
                    Ok(()) => (new, "made"),
                    Err(first) => {
                        self.drop_table(new);
                        (first.unwrap(), "too late")
                    }
                }
            }
        };
        // SAFETY: as above.
        unsafe { table.as_ref() }.memory.use_it();
        (table, how)
    }

    /// The last user takes it away.
    fn end(&self) {
        self.drop_table(NonNull::new(self.pointer.load(Ordering::Acquire)).unwrap());
        assert_eq!(
            self.made.load(Ordering::Relaxed),
            self.gone.load(Ordering::Relaxed),
            "none is left behind"
        );
    }
}

/// Threads that need a table at the same time all get the same one, and those that were made in
/// vain are gone. A parent's that lies there is of no use, and is not touched.
#[test]
fn loom_what_the_first_user_makes_is_all_there_is() {
    let reached = Reached::default();
    for is_in_child in [false, true] {
        let in_model = reached.clone();
        model(move || {
            let mut parents = Table { is_of_this_process: false, memory: Memory::new() };
            let before = if is_in_child { &raw mut parents } else { core::ptr::null_mut() };
            let shared = Arc::new(Shared::new(before));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (table, how) = shared.use_it();
                        (table.as_ptr().addr(), how)
                    })
                })
                .collect();
            let (own, how) = shared.use_it();
            in_model.reach(how);
            for thread in threads {
                let (table, how) = thread.join().unwrap();
                in_model.reach(how);
                assert_eq!(table, own.as_ptr().addr(), "one table for all");
            }
            shared.end();
        });
    }
    reached.check(["found", "made", "too late"]);
}
