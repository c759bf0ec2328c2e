//! Models of the protocols for loom.
//!
//! With `--cfg loom` (`tests/run --loom`) a model explores interleavings with up to four
//! preemptions, otherwise with up to two.

use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ::loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use ::loom::sync::{Condvar, Mutex as ModelMutex};
use ::loom::thread;

use super::*;

/// A word in loom's model. Each load also stores into a word that no thread reads: see the models
/// of `umf-ipc`.
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

impl Load for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.loads.store(0, Ordering::Relaxed);
        self.value.load(order)
    }
}

impl Word for ModelWord {
    fn store(&self, value: u64, order: Ordering) {
        self.value.store(value, order);
    }

    fn replace(&self, current: u64, new: u64) -> Result<(), u64> {
        self.loads.store(0, Ordering::Relaxed);
        self.value.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn turn(&self, bits: u64) {
        self.value.fetch_xor(bits, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// The bell and the kernel's futex. A thread does not sleep if the value has changed. A wake-up
/// reaches all threads that sleep.
struct Bell {
    value: AtomicU32,
    loads: AtomicU64,
    kernel: ModelMutex<()>,
    sleepers: Condvar,
}

impl Futex for Bell {
    fn load(&self) -> u32 {
        self.loads.store(0, Ordering::Relaxed);
        self.value.load(Ordering::Relaxed)
    }

    fn set(&self, bits: u32) -> u32 {
        self.value.fetch_or(bits, Ordering::AcqRel)
    }

    fn clear(&self, bits: u32) -> u32 {
        self.value.fetch_and(!bits, Ordering::AcqRel)
    }

    fn add(&self, count: u32) {
        self.value.fetch_add(count, Ordering::AcqRel);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(if cfg!(loom) { 4 } else { 2 });
    builder.check(run);
}

/// The states that a model reached in any interleaving.
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

impl Bell {
    fn new() -> Self {
        let (value, loads) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { value, loads, kernel: ModelMutex::new(()), sleepers: Condvar::new() }
    }

    /// `futex(2)`: FUTEX_WAIT.
    fn sleep(&self, seen: u32) {
        let kernel = self.kernel.lock().unwrap();
        if self.value.load(Ordering::Relaxed) == seen {
            drop(self.sleepers.wait(kernel).unwrap());
        }
    }

    fn ring(&self) {
        self.ring_for(take_requests(self));
    }

    fn ring_for(&self, bits: u32) {
        if bits & ASLEEP != 0 {
            let _kernel = self.kernel.lock().unwrap();
            self.sleepers.notify_all();
        }
    }

    /// Waits as the crate does: polls, sets the sleeping bit, polls again, sleeps.
    fn wait<T>(&self, mut poll: impl FnMut() -> Option<T>, asleep: impl Fn()) -> T {
        if let Some(found) = poll() {
            return found;
        }
        loop {
            let seen = fall_asleep(self);
            if let Some(found) = poll() {
                return found;
            }
            asleep();
            self.sleep(seen);
        }
    }
}

/// A ring of one slot, with a header and a word of payload.
struct Ring {
    slots: [(ModelWord, ModelWord); 1],
    consumed: ModelWord,
    wants: ModelWord,
    sender: Bell,
    receiver: Bell,
}

/// Each message arrives once, whole and in order. Loom fails if all threads sleep.
#[test]
fn loom_message_wakes_sleeping_receiver() {
    const MESSAGES: u64 = 2;
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let ring = Arc::new(Ring {
            slots: [(ModelWord::new(0), ModelWord::new(0))],
            consumed: ModelWord::new(0),
            wants: ModelWord::new(0),
            sender: Bell::new(),
            receiver: Bell::new(),
        });
        let sender = {
            let (ring, reached) = (Arc::clone(&ring), in_model.clone());
            thread::spawn(move || {
                let mut known = 0;
                for number in 0..MESSAGES {
                    let words = (&ring.consumed, &ring.wants);
                    let poll = || has_space(words, &mut known, number, 1, 1).unwrap().then_some(());
                    ring.sender.wait(poll, || reached.reach("the sender sleeps"));
                    let (header, payload) = &ring.slots[0];
                    payload.store(number + 10, Ordering::Relaxed);
                    announce(header, number, SlotHeader { kind: 1, length: 8, context: 3 });
                    ring.receiver.ring();
                }
            })
        };
        for number in 0..MESSAGES {
            let (header, payload) = &ring.slots[0];
            let found =
                ring.receiver.wait(|| arrived(header, number), || in_model.reach("the receiver sleeps"));
            assert_eq!(found, SlotHeader { kind: 1, length: 8, context: 3 });
            assert_eq!(payload.load(Ordering::Relaxed), number + 10, "whole, and not overwritten");
            if release(&ring.consumed, &ring.wants, number + 1) {
                ring.sender.ring();
            } else {
                in_model.reach("the sender is not woken");
            }
        }
        sender.join().unwrap();
    });
    reached.check(["the receiver sleeps", "the sender is not woken", "the sender sleeps"]);
}

/// Two threads of a process sleep on its bell: a ring that one of them has seen before it slept
/// does not leave the other asleep.
#[test]
fn loom_two_threads_sleep_on_one_bell() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let inbox = Arc::new(([ModelWord::new(0), ModelWord::new(0)], Bell::new()));
        let sender = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                for lane in &inbox.0 {
                    announce(lane, 0, SlotHeader { kind: 1, length: 8, context: 0 });
                    inbox.1.ring();
                }
            })
        };
        let other = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let (lanes, bell) = &*inbox;
                bell.wait(|| arrived(&lanes[1], 0), || {});
            })
        };
        let (lanes, bell) = &*inbox;
        bell.wait(|| arrived(&lanes[0], 0), || in_model.reach("the receiver sleeps"));
        sender.join().unwrap();
        other.join().unwrap();
    });
    reached.check(["the receiver sleeps"]);
}

/// A receiver that reads marked lanes only misses no message of two senders.
#[test]
fn loom_marked_lane_is_read_before_sleep() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let lanes = [ModelWord::new(0), ModelWord::new(0)];
        let inbox = Arc::new((lanes, Bell::new(), Bell::new()));
        let senders = [0, 1].map(|lane| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let (lanes, marks, bell) = &*inbox;
                announce(&lanes[lane], 0, SlotHeader { kind: 1, length: 8, context: 0 });
                mark(marks, lane as u32);
                bell.ring();
            })
        });
        let (lanes, marks, bell) = &*inbox;
        let mut missing = 0b11;
        let poll = || {
            let marked = take_marks(marks);
            for lane in [0, 1].into_iter().filter(|lane| marked >> lane & 1 == 1) {
                assert!(arrived(&lanes[lane], 0).is_some(), "it was announced before it was marked");
                missing &= !(1 << lane);
            }
            (missing == 0).then_some(())
        };
        bell.wait(poll, || in_model.reach("the receiver sleeps"));
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
    reached.check(["the receiver sleeps"]);
}

/// A message is taken and withdrawn at the same time: both processes see the same result.
#[test]
fn loom_take_and_withdraw_agree() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = Arc::new((ModelWord::new(offered(7, Offered::Open)), ModelWord::new(0)));
        let sender = {
            let (words, reached) = (Arc::clone(&words), in_model.clone());
            thread::spawn(move || {
                assert!(withdraw(&words.0, 7));
                loop {
                    if let Some(is_withdrawn) = is_withdrawn(&words.1, 7) {
                        break is_withdrawn;
                    }
                    reached.reach("waited");
                    thread::yield_now();
                }
            })
        };
        let is_taken = take(&words.1, &words.0, 7);
        assert_eq!(is_taken, !sender.join().unwrap());
        in_model.reach(if is_taken { "taken" } else { "withdrawn" });
        assert!(!take(&words.1, &words.0, 7), "it was withdrawn");
    });
    reached.check(["taken", "waited", "withdrawn"]);
}

/// The slot of a withdrawn message is used again while its receiver tries to take it.
#[test]
fn loom_offer_slot_is_reused_after_take_or_withdraw() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = Arc::new((ModelWord::new(offered(7, Offered::Open)), ModelWord::new(0)));
        let sender = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                assert!(withdraw(&words.0, 7));
                while is_withdrawn(&words.1, 7).is_none() {
                    thread::yield_now();
                }
                words.0.store(offered(8, Offered::Open), Ordering::Release);
            })
        };
        take(&words.1, &words.0, 7);
        if take(&words.1, &words.0, 8) {
            in_model.reach("the next one");
            assert_eq!(words.1.load(Ordering::Acquire), taken(8, Verdict::Taken));
        }
        sender.join().unwrap();
    });
    reached.check(["the next one"]);
}

/// The thread of the inbox places an offer of a backlog while another thread drops its request. The
/// offer is cancelled and gets no slot, or it is withdrawn in its slot.
#[test]
fn loom_backlog_offer_is_placed_or_cancelled() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = Arc::new((ModelWord::new(0), ModelWord::new(0), ModelWord::new(0)));
        let dropping = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let (placing, offer, verdict) = &*words;
                let Some((index, number)) = cancel(placing) else { return false };
                assert_eq!((index, number), (3, 7));
                assert!(withdraw(offer, number), "the offer is open before it has its slot");
                assert_eq!(is_withdrawn(verdict, number), Some(true));
                true
            })
        };
        let (placing, offer, verdict) = &*words;
        offer.store(offered(7, Offered::Open), Ordering::Relaxed);
        let is_placed = place(placing, 3, 7);
        assert_ne!(is_placed, is_cancelled(placing));
        in_model.reach(if is_placed { "placed" } else { "cancelled" });
        assert_eq!(dropping.join().unwrap(), is_placed);
        assert!(!is_placed || !take(verdict, offer, 7));
    });
    reached.check(["cancelled", "placed"]);
}

/// The chunks of a message. Loom fails if a chunk is copied after its owner uses it. Two threads
/// may copy the same chunk at once.
struct Chunks<const COUNT: usize>([::loom::cell::UnsafeCell<()>; COUNT], [AtomicU64; COUNT]);

// SAFETY: the cells hold no value. Loom fails if two threads use a cell at the same time.
unsafe impl<const COUNT: usize> Sync for Chunks<COUNT> {}

impl<const COUNT: usize> Chunks<COUNT> {
    fn new() -> Self {
        Self([(); COUNT].map(|()| ::loom::cell::UnsafeCell::new(())), [(); COUNT].map(|()| AtomicU64::new(0)))
    }

    fn copy(&self, chunk: u64) {
        self.0[chunk as usize].with(|_| ());
        self.1[chunk as usize].store(1, Ordering::Relaxed);
    }

    /// Uses all chunks as their owner.
    fn own(&self) {
        self.0.iter().for_each(|cell| cell.with_mut(|_| ()));
    }
}

/// The sender's part. The words are the receiver's claims, the sender's claims, and the sender's
/// progress.
fn copy_from_the_back<const COUNT: usize>(
    [front, back, progress]: &[ModelWord; 3],
    copied: &Chunks<COUNT>,
    reached: &Reached,
) {
    let mut count = 0;
    loop {
        match claim_back(back, front, 3, COUNT as u64, count) {
            ChunkClaim::Chunk(chunk) => copied.copy(chunk),
            ChunkClaim::Lost => reached.reach("both claimed it"),
            ChunkClaim::None => break,
        }
        count += 1;
        progress.store(count, Ordering::Release);
    }
}

/// Each chunk is copied, the receiver sees when, and the sender copies no chunk afterwards.
#[test]
fn loom_each_chunk_is_claimed() {
    const ALL: u64 = 3;
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let shared = Arc::new([ModelWord::new(claims(3, 0)), ModelWord::new(0), ModelWord::new(0)]);
        let copied = Arc::new(Chunks::<{ ALL as usize }>::new());
        let sender = {
            let (shared, copied, reached) = (Arc::clone(&shared), Arc::clone(&copied), in_model.clone());
            thread::spawn(move || copy_from_the_back(&shared, &copied, &reached))
        };
        let [front, back, progress] = &*shared;
        let mut count = 0;
        let by_sender = loop {
            match claim_front(front, back, 3, ALL, count) {
                Ok(chunk) => {
                    copied.copy(chunk);
                    count += 1;
                }
                Err(by_sender) => break by_sender,
            }
        };
        assert!(count + by_sender >= ALL);
        while progress.load(Ordering::Acquire) < by_sender {
            thread::yield_now();
        }
        copied.own();
        assert!(copied.1.iter().all(|chunk| chunk.load(Ordering::Relaxed) == 1), "all of it");
        in_model.reach(match (count, by_sender) {
            (ALL, 0) => "by the receiver",
            (0, ALL) => "by the sender",
            _ => "by both",
        });
        sender.join().unwrap();
    });
    reached.check(["both claimed it", "by both", "by the receiver", "by the sender"]);
}

/// A receiver that ends an attempt waits for the chunks that the sender has claimed. The sender
/// copies no chunk afterwards.
#[test]
fn loom_sender_claims_no_chunk_after_attempt_ends() {
    const ALL: u64 = 2;
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let shared = Arc::new([ModelWord::new(claims(3, 0)), ModelWord::new(0), ModelWord::new(0)]);
        let copied = Arc::new(Chunks::<{ ALL as usize }>::new());
        let sender = {
            let (shared, copied, reached) = (Arc::clone(&shared), Arc::clone(&copied), Reached::default());
            thread::spawn(move || copy_from_the_back(&shared, &copied, &reached))
        };
        let [front, back, progress] = &*shared;
        front.store(all_claimed(3), Ordering::Relaxed);
        ModelWord::fence();
        let by_sender = claimed(back, 3).unwrap_or(0);
        while progress.load(Ordering::Acquire) < by_sender {
            thread::yield_now();
        }
        copied.own();
        in_model.reach(if by_sender == 0 { "before the sender" } else { "after the sender" });
        sender.join().unwrap();
    });
    reached.check(["after the sender", "before the sender"]);
}

/// After the end of a registration, no peer copies in its range.
#[test]
fn loom_expired_range_is_not_entered() {
    const SLOT: usize = 1;
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let words = Arc::new((ModelWord::new(0), ModelWord::new(9)));
        let range = Arc::new(Chunks::<1>::new());
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
        range.own();
        peer.join().unwrap();
    });
    reached.check(["copied", "it has expired", "waited"]);
}

/// The owner of a block, which sleeps until the peer returns it, is woken.
#[test]
fn loom_block_return_wakes_sleeping_owner() {
    let reached = Reached::default();
    let in_model = reached.clone();
    model(move || {
        let shared = Arc::new((ModelWord::new(0b100), Bell::new()));
        let receiver = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (bits, owner) = &*shared;
                bits.turn(0b10);
                owner.ring_for(take_requests_unfenced(owner));
            })
        };
        let (bits, owner) = &*shared;
        let now = owner.wait(
            || Some(bits.load(Ordering::Acquire)).filter(|bits| bits & 0b10 != 0),
            || in_model.reach("the owner sleeps"),
        );
        assert_eq!(now, 0b110, "other bits stay");
        receiver.join().unwrap();
    });
    reached.check(["the owner sleeps"]);
}
