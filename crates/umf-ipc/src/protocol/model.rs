//! Loom models of the protocols: every interleaving of a few threads that the memory model allows.
//! Each model records the outcomes that it reached, and fails if one of them was never reached.
//! This file has the models of publication (slots, records, the stack, the lazy pointer), `leases`
//! those of reclamation, `tickets` those of handles in transit.
//!
//! With `--cfg loom` (`tests/run --loom`) loom explores every interleaving. Otherwise it explores
//! those with few preemptions, which find nearly all faults in a fraction of the time.

mod leases;
mod tickets;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, fence};
use loom::thread;
use umf_sync::model::{ModelWord, Reached, explore};
use umf_sync::sequence::{SequenceLock, stamp_of};
use umf_sync::words::{Number, Word};

use super::lazy::{get_valid, install};
use super::stack::{pop, push};
use super::{publish, read, read_stable, retire};

/// Explores a model, to the depth of this test run.
fn model(run: impl Fn() + Send + Sync + 'static) {
    explore(2, None, run);
}

/// Explores a model with too many interleavings to explore all of them, even with `--cfg loom`.
fn large_model(run: impl Fn() + Send + Sync + 'static) {
    explore(2, Some(4), run);
}

/// Returns words with these initial values.
fn words<const COUNT: usize>(values: [u64; COUNT]) -> Arc<[ModelWord; COUNT]> {
    Arc::new(values.map(ModelWord::new))
}

/// Protected memory that threads create, use or reclaim. Loom reports concurrent use;
/// `is_reclaimed` reports later use.
#[derive(Debug)]
struct Memory {
    accesses: UnsafeCell<()>,
    is_reclaimed: AtomicBool,
}

// SAFETY: the cell is empty, and loom fails if two threads use it at the same time.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        Self { accesses: UnsafeCell::new(()), is_reclaimed: AtomicBool::new(false) }
    }

    fn make(&self) {
        self.accesses.with_mut(|_| ());
    }

    fn access(&self) {
        self.accesses.with(|_| ());
        assert!(!self.is_reclaimed.load(Ordering::Relaxed), "used after it was reclaimed");
    }

    fn reclaim(&self) {
        self.accesses.with_mut(|_| ());
        self.is_reclaimed.store(true, Ordering::Relaxed);
    }
}

// Slots of the ledger: exports that are published and retired.

/// A slot is published, retired and published again. A read is consistent, or fails with a later
/// generation.
#[test]
fn loom_export_read_is_consistent() {
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
                    in_model.reach(if expected == 1 { "first" } else { "second" });
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
    reached.check(["first", "second", "too late"]);
}

/// The order that makes stale handles fail. A producer retires an export, and then allocates the
/// memory again. An importer that read the memory loads the generation afterwards, and sees that it
/// has changed.
#[test]
fn loom_use_after_reuse_is_stale() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        // The generation, the memory, and a word of leases.
        let words = words([1, 10, 0]);
        let producer = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                retire(&words[0], 1);
                if words[2].load(Ordering::SeqCst) == 0 {
                    // The block is allocated again, and its new owner writes.
                    words[1].store(20, Ordering::Relaxed);
                }
            })
        };
        match read(&words[0], 1, || words[1].load(Ordering::Relaxed)) {
            Ok(value) => {
                assert_eq!(value, 10, "the value of another export");
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

/// A block and its region are freed at the same time. One thread retires the export and reuses the
/// slot. The other thread may see the slot's next export, and does not retire it.
#[test]
fn loom_export_is_retired_once() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let generation = Arc::new(ModelWord::new(1));
        let slot = Arc::new(Memory::new());
        let retire_and_reuse = |generation: &ModelWord, slot: &Memory| {
            let has_retired = retire(generation, 1);
            if has_retired {
                // No other process has the export open, so the slot is published again.
                slot.reclaim();
                assert_eq!(publish(generation, || ()), 3);
            }
            has_retired
        };
        let other = {
            let (generation, slot) = (Arc::clone(&generation), Arc::clone(&slot));
            thread::spawn(move || retire_and_reuse(&generation, &slot))
        };
        let by_this = retire_and_reuse(&generation, &slot);
        let by_other = other.join().unwrap();
        assert!(by_this != by_other, "retired {} times", u32::from(by_this) + u32::from(by_other));
        in_model.reach(if by_this { "by this thread" } else { "by the other thread" });
    });
    reached.check(["by the other thread", "by this thread"]);
}

/// A thread that retires an export too late does not retire a later export in the slot.
#[test]
fn late_retire_leaves_the_next_export() {
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

/// Two threads write one record. A reader sees the whole record of one of them, or none. If both
/// write, the stamp and the fields are those of the later ticket.
#[test]
fn loom_record_read_is_consistent() {
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
            in_model.reach("read");
        }
        let written: Vec<bool> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let (stamp, last) = (stamp.load(Ordering::Relaxed), one.load(Ordering::Relaxed));
        assert_eq!(stamp, stamp_of(last - 10), "the fields are those of the stamp");
        assert_eq!(other.load(Ordering::Relaxed), last);
        match *written {
            [true, true] => {
                assert_eq!(last, 12, "the later record stays");
                in_model.reach("replaced");
            }
            [false, true] => in_model.reach("first is lost"),
            [true, false] => in_model.reach("second is lost"),
            _ => panic!("both records are lost"),
        }
    });
    reached.check(["first is lost", "read", "replaced", "second is lost"]);
}

// The stack of slot numbers.

type ModelLink = ModelWord<AtomicU32>;

fn link() -> ModelLink {
    ModelWord::over(AtomicU32::new(0))
}

/// Two threads push a number each. A third pops what is there and pushes it again. In the end each
/// number is in the stack once. A pop happens after the push of the number.
#[test]
fn loom_pushed_number_is_popped_once() {
    struct Shared {
        top: ModelLink,
        links: [ModelLink; 2],
        used: [Memory; 2],
    }
    impl Shared {
        fn push(&self, number: u32) {
            self.used[number as usize].make();
            push(&self.top, number, &self.links[number as usize]);
        }

        fn pop(&self) -> Option<u32> {
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
        let pushers: Vec<_> = (0..2)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.push(number))
            })
            .collect();
        let popped: Vec<u32> = [shared.pop(), shared.pop()].into_iter().flatten().collect();
        in_model.reach(["none", "one", "both"][popped.len()]);
        for number in popped {
            shared.push(number);
        }
        for pusher in pushers {
            pusher.join().unwrap();
        }
        let mut rest: Vec<u32> = core::iter::from_fn(|| shared.pop()).collect();
        rest.sort_unstable();
        assert_eq!(rest, [0, 1]);
    });
    reached.check(["none", "one", "both"]);
}

// The pointer that the first user initialises.

#[derive(Debug)]
struct Table {
    is_of_this_process: bool,
    memory: Memory,
}

#[derive(Debug)]
struct LazyTable {
    pointer: ModelWord<AtomicPtr<Table>>,
    /// Tables that were created, and those that were dropped.
    created: AtomicUsize,
    dropped: AtomicUsize,
}

impl LazyTable {
    fn new(before: *mut Table) -> Self {
        let pointer = ModelWord::over(AtomicPtr::new(before));
        Self { pointer, created: AtomicUsize::new(0), dropped: AtomicUsize::new(0) }
    }

    fn drop_table(&self, table: NonNull<Table>) {
        // SAFETY: it came from a box, and the caller owns it.
        drop(unsafe { Box::from_raw(table.as_ptr()) });
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the table, and creates it if there is none, as `Producer::lease` does. Also returns
    /// the outcome.
    fn get_or_create(&self) -> (NonNull<Table>, &'static str) {
        // SAFETY: an installed table lives as long as `self`.
        let is_of_this_process = |table: NonNull<Table>| unsafe { table.as_ref() }.is_of_this_process;
        let (table, outcome) = match get_valid(&self.pointer, is_of_this_process) {
            Ok(table) => (table, "found"),
            Err(vacant) => {
                let new = Table { is_of_this_process: true, memory: Memory::new() };
                new.memory.make();
                self.created.fetch_add(1, Ordering::Relaxed);
                let new = NonNull::from(Box::leak(Box::new(new)));
                match install(&self.pointer, vacant, new) {
                    Ok(()) => (new, "created"),
                    Err(first) => {
                        self.drop_table(new);
                        (first.unwrap(), "too late")
                    }
                }
            }
        };
        // SAFETY: an installed table lives as long as `self`.
        unsafe { table.as_ref() }.memory.access();
        (table, outcome)
    }

    /// Drops the installed table.
    fn end(&self) {
        self.drop_table(NonNull::new(self.pointer.load(Ordering::Acquire)).unwrap());
        assert_eq!(
            self.created.load(Ordering::Relaxed),
            self.dropped.load(Ordering::Relaxed),
            "a table was leaked"
        );
    }
}

/// Threads that need a table at the same time get the same one, and the others are dropped. The
/// table of a parent process is replaced, and not accessed.
#[test]
fn loom_lazy_pointer_is_initialised_once() {
    let reached = Reached::default();
    for is_in_child in [false, true] {
        let in_model = reached.clone();
        model(move || {
            let mut inherited = Table { is_of_this_process: false, memory: Memory::new() };
            let before = if is_in_child { &raw mut inherited } else { core::ptr::null_mut() };
            let shared = Arc::new(LazyTable::new(before));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (table, outcome) = shared.get_or_create();
                        (table.as_ptr().addr(), outcome)
                    })
                })
                .collect();
            let (own, outcome) = shared.get_or_create();
            in_model.reach(outcome);
            for thread in threads {
                let (table, outcome) = thread.join().unwrap();
                in_model.reach(outcome);
                assert_eq!(table, own.as_ptr().addr(), "one table for all");
            }
            shared.end();
        });
    }
    reached.check(["created", "found", "too late"]);
}
