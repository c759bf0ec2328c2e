//! The protocols in loom's model.
//!
//! With `--cfg loom` (`tests/run --loom`) it is every interleaving; otherwise those with few preemptions.

use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Condvar, Mutex as ModelMutex};
use loom::thread;

use super::*;

/// A word as loom has it. Each load comes with a store into a word that nobody reads: see the models of `umf-ipc`.
#[derive(Debug)]
struct ModelWord {
    value: AtomicU64,
    loads: AtomicU64,
}

impl ModelWord {
    fn new(value: u64) -> Self {
        Self { value: AtomicU64::new(value), loads: AtomicU64::new(0) }
    }
}

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.loads.store(0, Ordering::Relaxed);
        self.value.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.value.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.value.swap(value, order)
    }

    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.value.fetch_or(bits, order)
    }

    fn turn(&self, bits: u64) {
        self.value.fetch_xor(bits, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        self.value.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(if cfg!(loom) { 4 } else { 2 });
    builder.check(run);
}

/// The states that a model reached, in any interleaving.
#[derive(Clone, Debug, Default)]
struct Reached(Arc<Mutex<BTreeSet<&'static str>>>);

impl Reached {
    fn reach(&self, state: &'static str) {
        self.0.lock().unwrap().insert(state);
    }

    #[track_caller]
    fn check<const COUNT: usize>(&self, states: [&'static str; COUNT]) {
        assert_eq!(*self.0.lock().unwrap(), BTreeSet::from(states), "what the model reached");
    }
}

/// As the kernel's: who finds the value changed does not sleep, and a wake-up reaches who sleeps already.
struct Futex {
    bell: ModelMutex<u64>,
    sleepers: Condvar,
}

impl Futex {
    fn new() -> Self {
        Self { bell: ModelMutex::new(0), sleepers: Condvar::new() }
    }

    fn value(&self) -> u64 {
        *self.bell.lock().unwrap()
    }

    fn sleep(&self, seen: u64) {
        let bell = self.bell.lock().unwrap();
        if *bell == seen {
            drop(self.sleepers.wait(bell).unwrap());
        }
    }

    fn ring(&self) {
        *self.bell.lock().unwrap() += 1;
        self.sleepers.notify_all();
    }
}

/// One end of a ring.
struct Party {
    waiting: ModelWord,
    futex: Futex,
}

impl Party {
    fn new() -> Self {
        Self { waiting: ModelWord::new(0), futex: Futex::new() }
    }

    fn wake(&self) {
        if wakes(&self.waiting) != 0 {
            self.futex.ring();
        }
    }

    /// As the crate waits: looks, says that it sleeps, looks again, sleeps.
    fn wait<T>(&self, mut poll: impl FnMut() -> Option<T>, asleep: impl Fn()) -> T {
        if let Some(found) = poll() {
            return found;
        }
        loop {
            let seen = self.futex.value();
            fall_asleep(&self.waiting, BY_FUTEX);
            if let Some(found) = poll() {
                return found;
            }
            asleep();
            self.futex.sleep(seen);
        }
    }
}

/// A ring of so many slots, of a header and a word each.
struct Ring {
    slots: [(ModelWord, ModelWord); 1],
    consumed: ModelWord,
    sender: Party,
    receiver: Party,
}

/// Each message arrives once, whole and in order; nobody sleeps for ever, on either side (loom fails where all sleep).
#[test]
fn loom_messages_arrive_and_nobody_sleeps_through() {
    const MESSAGES: u64 = 2;
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let ring = Arc::new(Ring {
            slots: [(ModelWord::new(0), ModelWord::new(0))],
            consumed: ModelWord::new(0),
            sender: Party::new(),
            receiver: Party::new(),
        });
        let sender = {
            let (ring, reached) = (Arc::clone(&ring), in_model.clone());
            thread::spawn(move || {
                let mut known = 0;
                for number in 0..MESSAGES {
                    let poll = || room(&ring.consumed, &mut known, number, 1, 1).unwrap().then_some(());
                    ring.sender.wait(poll, || reached.reach("the sender sleeps"));
                    let (header, payload) = &ring.slots[0];
                    payload.store(number + 10, Ordering::Relaxed);
                    announce(header, number, Header { kind: 1, length: 8 });
                    ring.receiver.wake();
                }
            })
        };
        for number in 0..MESSAGES {
            let (header, payload) = &ring.slots[0];
            let found =
                ring.receiver.wait(|| arrived(header, number), || in_model.reach("the receiver sleeps"));
            assert_eq!(found, Header { kind: 1, length: 8 });
            assert_eq!(payload.load(Ordering::Relaxed), number + 10, "whole, and not overwritten");
            ring.consumed.store(number + 1, Ordering::Release);
            ring.sender.wake();
        }
        sender.join().unwrap();
    });
    reached.check(["the receiver sleeps", "the sender sleeps"]);
}

/// A message that is taken and withdrawn at the same time is one of both, to both.
#[test]
fn loom_both_agree_what_became_of_a_message() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let word = Arc::new(ModelWord::new(outcome(7, Outcome::Open)));
        let sender = {
            let word = Arc::clone(&word);
            thread::spawn(move || settle(&*word, 7, Outcome::Withdrawn).unwrap())
        };
        let one = settle(&*word, 7, Outcome::Taken).unwrap();
        assert_eq!(one, sender.join().unwrap());
        in_model.reach(if one == Outcome::Taken { "taken" } else { "withdrawn" });
        assert_eq!(settle(&*word, 8, Outcome::Taken), None, "another message");
    });
    reached.check(["taken", "withdrawn"]);
}

/// What is copied: loom sees what two do at the same time.
struct Chunks([loom::cell::UnsafeCell<()>; 2]);

// SAFETY: the cells hold nothing; loom fails where one is used by two at the same time.
unsafe impl Sync for Chunks {}

impl Chunks {
    fn copy(&self, chunk: u64) {
        self.0[chunk as usize].with_mut(|_| ());
    }
}

/// Each chunk is copied by one of both, and the receiver knows by whom.
#[test]
fn loom_each_chunk_is_copied_once() {
    const ALL: u64 = 2;
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let shared = Arc::new((ModelWord::new(claims(3, 0, 0)), ModelWord::new(0)));
        let copied = Arc::new(Chunks([(); ALL as usize].map(|()| loom::cell::UnsafeCell::new(()))));
        let sender = {
            let (shared, copied) = (Arc::clone(&shared), Arc::clone(&copied));
            thread::spawn(move || {
                let mut mine = 0;
                while let Claim::Chunk(chunk) = claim(&shared.0, 3, ALL, End::Back, mine) {
                    copied.copy(chunk);
                    mine += 1;
                    shared.1.store(mine, Ordering::Release);
                }
            })
        };
        let mut mine = 0;
        let others = loop {
            match claim(&shared.0, 3, ALL, End::Front, mine) {
                Claim::Chunk(chunk) => {
                    copied.copy(chunk);
                    mine += 1;
                }
                Claim::None { others } => break others,
                Claim::Over => panic!("it is the only attempt"),
            }
        };
        assert_eq!(mine + others, ALL);
        while shared.1.load(Ordering::Acquire) != others {
            thread::yield_now();
        }
        // What the other one copied is there.
        copied.0.iter().for_each(|cell| cell.with(|_| ()));
        in_model.reach(match others {
            0 => "by the receiver",
            ALL => "by the sender",
            _ => "by both",
        });
        sender.join().unwrap();
    });
    reached.check(["by both", "by the receiver", "by the sender"]);
}

/// Who ends a registration and who copies in its range are never in it at the same time.
#[test]
fn loom_nobody_copies_in_a_range_that_has_expired() {
    const SLOT: usize = 1;
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = Arc::new((ModelWord::new(0), ModelWord::new(9)));
        let range = Arc::new(Chunks([(); 2].map(|()| loom::cell::UnsafeCell::new(()))));
        let peer = {
            let (words, range, reached) = (Arc::clone(&words), Arc::clone(&range), in_model.clone());
            thread::spawn(move || {
                let (inside, current) = &*words;
                for _ in 0..2 {
                    if !enter(inside, current, SLOT, 9) {
                        reached.reach("it has expired");
                        break;
                    }
                    range.copy(0);
                    leave(inside);
                    reached.reach("copied");
                }
            })
        };
        let (inside, current) = &*words;
        expire(current);
        while is_inside(inside, SLOT) {
            in_model.reach("waited");
            thread::yield_now();
        }
        range.copy(0);
        peer.join().unwrap();
    });
    reached.check(["copied", "it has expired", "waited"]);
}

/// Who sleeps until memory is back is woken by who gives it back.
#[test]
fn loom_who_waits_for_memory_is_woken() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let shared = Arc::new((ModelWord::new(0b100), Party::new()));
        let receiver = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (bits, lender) = &*shared;
                if turn_and_wake(bits, 0b10, &lender.waiting) != 0 {
                    lender.futex.ring();
                }
            })
        };
        let (bits, lender) = &*shared;
        let now = lender.wait(
            || Some(bits.load(Ordering::Acquire)).filter(|bits| bits & 0b10 != 0),
            || in_model.reach("the lender sleeps"),
        );
        assert_eq!(now, 0b110, "the bits of others stay");
        receiver.join().unwrap();
    });
    reached.check(["the lender sleeps"]);
}
