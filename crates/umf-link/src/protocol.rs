//! The lock-free protocols of a link, each in one place and generic over where its words live: in a segment, or in
//! loom's model (`loom_` tests; in full with `tests/run --loom`).
//!
//! | protocol | between | promise |
//! |---|---|---|
//! | [`announce`], [`arrived`] | the sender of a ring and its receiver | a message is seen whole |
//! | [`room`] | the same | a slot is written again when it was consumed, not before |
//! | [`fall_asleep`], [`wakes`] | who waits and who changes what is waited for | no wake-up is lost |
//! | [`settle`] | the sender that withdraws a message and the receiver that has taken it | both agree |
//! | [`claim`] | two that copy one message from its two ends | each chunk is copied once |
//! | [`enter`], [`expire`] | who copies in a registered range and who ends its registration | nobody copies when that has ended |

use core::sync::atomic::{AtomicU64, Ordering};

/// A word that two processes share.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64;
    /// Turns bits; acquires and releases, and is a fence as [`Word::fence`].
    fn turn(&self, bits: u64);
    /// Acquires and releases; the value that was there, if it was another one.
    fn exchange(&self, from: u64, to: u64) -> Result<(), u64>;
    /// Sequentially consistent.
    fn fence();
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    #[inline]
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.fetch_or(bits, order)
    }

    #[inline(always)]
    fn turn(&self, bits: u64) {
        self.fetch_xor(bits, Ordering::SeqCst);
        // An instruction with the `lock` prefix is one already: `umf_sync::fence::full` is nothing else.
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Self::fence();
    }

    #[inline]
    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    #[inline(always)]
    fn fence() {
        umf_sync::fence::full();
    }
}

/// What the header of a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What kind of message; 0 for slots that go on with one.
    pub kind: u8,
    /// Bytes of payload.
    pub length: u16,
}

/// Of slot number `number` of a ring. Never 0 for the first time round, so that fresh memory is no message.
const fn sequence(number: u64) -> u64 {
    number.wrapping_add(1) & 0xffff_ffff
}

const fn pack(number: u64, header: Header) -> u64 {
    sequence(number) | (header.kind as u64) << 32 | (header.length as u64) << 40
}

/// Makes the message in slot `number` visible, and all that was written before.
#[inline(always)]
pub(crate) fn announce<W: Word>(word: &W, number: u64, header: Header) {
    word.store(pack(number, header), Ordering::Release);
}

/// Says that slot `number` goes on with a message that is announced later, so that what is in it cannot be taken for a header.
#[inline]
pub(crate) fn go_on<W: Word>(word: &W, number: u64) {
    word.store(pack(number, Header { kind: 0, length: 0 }), Ordering::Relaxed);
}

/// The header in slot `number`, if that was announced.
#[inline(always)]
pub(crate) fn arrived<W: Word>(word: &W, number: u64) -> Option<Header> {
    let header = word.load(Ordering::Acquire);
    let is_new = header & 0xffff_ffff == sequence(number);
    is_new.then_some(Header { kind: (header >> 32) as u8, length: (header >> 40) as u16 })
}

/// Whether `slots` more fit into a ring of `size`, of which `sent` were used so far. `known` is what its receiver is known to
/// have consumed. `None` if the receiver says what cannot be.
#[inline(always)]
pub(crate) fn room<W: Word>(consumed: &W, known: &mut u64, sent: u64, slots: u64, size: u64) -> Option<bool> {
    if sent.wrapping_sub(*known).wrapping_add(slots) <= size {
        return Some(true);
    }
    // Acquire: what is written into the slots comes after what was read in them.
    let now = consumed.load(Ordering::Acquire);
    if sent.wrapping_sub(now) > size || now.wrapping_sub(*known) > size {
        return None;
    }
    *known = now;
    Some(sent.wrapping_sub(now).wrapping_add(slots) <= size)
}

/// Ways to wait, as the waiting word has them.
pub(crate) const BY_FUTEX: u64 = 1;
pub(crate) const BY_FD: u64 = 2;

/// Says that this side is going to sleep. What it waits for has to be looked at once more afterwards: of this fence and the
/// one in [`wakes`] one comes first.
pub(crate) fn fall_asleep<W: Word>(waiting: &W, way: u64) {
    waiting.fetch_or(way, Ordering::Relaxed);
    W::fence();
}

/// In what ways the other side waits, after something was changed that it may wait for; it is to be woken in all of them.
#[inline(always)]
pub(crate) fn wakes<W: Word>(waiting: &W) -> u64 {
    W::fence();
    if waiting.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    waiting.swap(0, Ordering::AcqRel)
}

/// As [`wakes`], after bits were turned in a word that the other side may wait for.
#[inline(always)]
pub(crate) fn turn_and_wake<W: Word>(word: &W, bits: u64, waiting: &W) -> u64 {
    word.turn(bits);
    if waiting.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    waiting.swap(0, Ordering::AcqRel)
}

/// What becomes of a message that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is there to be taken.
    Open = 1,
    /// The receiver has it.
    Taken = 2,
    /// The sender takes it back.
    Withdrawn = 3,
}

/// `number` tells messages in one descriptor apart.
pub(crate) const fn outcome(number: u32, outcome: Outcome) -> u64 {
    number as u64 | (outcome as u64) << 32
}

/// Ends an open message; of two that do, one is first, and both learn which. `None` if what is there is neither.
pub(crate) fn settle<W: Word>(word: &W, number: u32, into: Outcome) -> Option<Outcome> {
    match word.exchange(outcome(number, Outcome::Open), outcome(number, into)) {
        Ok(()) => Some(into),
        Err(now) => [Outcome::Taken, Outcome::Withdrawn].into_iter().find(|one| outcome(number, *one) == now),
    }
}

/// Who copies: the receiver from the front, the sender from the back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

const COUNT: u64 = (1 << 24) - 1;

/// The most chunks of a message.
pub(crate) const MOST_CHUNKS: u64 = COUNT;

/// Claims of an attempt, of which this many chunks are taken from each end.
pub(crate) const fn claims(epoch: u16, front: u64, back: u64) -> u64 {
    (epoch as u64) << 48 | (front & COUNT) << 24 | back & COUNT
}

/// What came of [`claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// This chunk.
    Chunk(u64),
    /// All are taken, so many of them from the other end.
    None {
        /// How many.
        others: u64,
    },
    /// It is another attempt, or the other side wrote what cannot be.
    Over,
}

/// Takes the next chunk of `chunks` from one end. `mine` is how many were taken from there, which the word has to say, too.
pub(crate) fn claim<W: Word>(word: &W, epoch: u16, chunks: u64, end: End, mine: u64) -> Claim {
    let mut now = word.load(Ordering::Acquire);
    loop {
        let (front, back) = (now >> 24 & COUNT, now & COUNT);
        let said = if end == End::Front { front } else { back };
        if now >> 48 != u64::from(epoch) || said != mine || front + back > chunks {
            return Claim::Over;
        }
        if front + back == chunks {
            return Claim::None { others: front + back - mine };
        }
        let (next, chunk) = match end {
            End::Front => (claims(epoch, front + 1, back), front),
            End::Back => (claims(epoch, front, back + 1), chunks - 1 - back),
        };
        match word.exchange(now, next) {
            Ok(()) => return Claim::Chunk(chunk),
            Err(other) => now = other,
        }
    }
}

/// Says that this side is in the range of slot `slot`, if that is registered still: until [`leave`] its registration does not
/// end. Of this fence and the one in [`expire`] one comes first.
pub(crate) fn enter<W: Word>(inside: &W, current: &W, slot: usize, generation: u64) -> bool {
    inside.store(slot as u64 + 1, Ordering::Relaxed);
    W::fence();
    // Acquire: what is said about the range comes after its generation.
    let is_current = current.load(Ordering::Acquire) == generation;
    if !is_current {
        leave(inside);
    }
    is_current
}

/// What was copied is done.
pub(crate) fn leave<W: Word>(inside: &W) {
    inside.store(0, Ordering::Release);
}

/// From here on nobody enters a range; who is in it is asked for by [`is_inside`].
pub(crate) fn expire<W: Word>(current: &W) {
    current.store(0, Ordering::Relaxed);
    W::fence();
}

/// Whether the other side is in the range.
pub(crate) fn is_inside<W: Word>(inside: &W, slot: usize) -> bool {
    inside.load(Ordering::Acquire) == slot as u64 + 1
}

#[cfg(test)]
mod model;
