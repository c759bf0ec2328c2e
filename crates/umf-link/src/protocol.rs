//! The lock-free protocols of a link, each in one place and generic over where its words live: in a lane, or in
//! loom's model (`loom_` tests; in full with `tests/run --loom`). Each word has one side that writes it, but for the bell.
//!
//! | protocol | between | promise |
//! |---|---|---|
//! | [`announce`], [`arrived`] | the sender of a ring and its receiver | a message is seen whole |
//! | [`room`] | the same | a slot is written again when it was consumed, not before |
//! | [`fall_asleep`], [`rings`] | who waits and who changes what is waited for | no wake-up is lost |
//! | [`take`], [`withdraw`] | the receiver of a message and its sender | both agree which of the two was done |
//! | [`claim_front`], [`claim_back`] | two that copy one message from its two ends | each chunk is copied, and the sender copies nothing after the receiver has ended |
//! | [`enter`], [`expire`] | who copies in a registered range and who ends its registration | nobody copies when that has ended |

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that may be read.
pub(crate) trait Load {
    fn load(&self, order: Ordering) -> u64;
}

/// A word that this side writes.
pub(crate) trait Word: Load {
    fn store(&self, value: u64, order: Ordering);
    /// Turns bits; acquires and releases, and is a fence as [`Word::fence`].
    fn turn(&self, bits: u64);
    /// Sequentially consistent.
    fn fence();
}

impl Load for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline(always)]
    fn turn(&self, bits: u64) {
        self.fetch_xor(bits, Ordering::SeqCst);
        // An instruction with the `lock` prefix is one already: `umf_sync::fence::full` is nothing else.
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Self::fence();
    }

    #[inline(always)]
    fn fence() {
        umf_sync::fence::full();
    }
}

/// The futex that threads of one process sleep on, which every process that sends to it writes.
pub(crate) trait Futex {
    fn load(&self) -> u32;
    /// What was there before.
    fn set(&self, bits: u32) -> u32;
    /// What was there before.
    fn clear(&self, bits: u32) -> u32;
    /// As [`Word::fence`].
    fn fence();
}

impl Futex for AtomicU32 {
    #[inline(always)]
    fn load(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, bits: u32) -> u32 {
        self.fetch_or(bits, Ordering::AcqRel)
    }

    #[inline]
    fn clear(&self, bits: u32) -> u32 {
        self.fetch_and(!bits, Ordering::AcqRel)
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
pub(crate) fn arrived(word: &impl Load, number: u64) -> Option<Header> {
    let header = word.load(Ordering::Acquire);
    let is_new = header & 0xffff_ffff == sequence(number);
    is_new.then_some(Header { kind: (header >> 32) as u8, length: (header >> 40) as u16 })
}

/// Whether `slots` more fit into a ring of `size`, of which `sent` were used so far. `known` is what its receiver is known to
/// have consumed. `None` if the receiver says what cannot be.
#[inline(always)]
pub(crate) fn room(consumed: &impl Load, known: &mut u64, sent: u64, slots: u64, size: u64) -> Option<bool> {
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

/// A thread sleeps on the bell, or is about to.
pub(crate) const ASLEEP: u32 = 1;
/// Some link is to be told by its socket. It stays once it is set.
pub(crate) const ARMED: u32 = 2;

/// Says that this thread is going to sleep. What it waits for has to be looked at once more afterwards: of this fence and the
/// one in [`rings`] one comes first. Returns what the bell says until it is rung.
pub(crate) fn fall_asleep<F: Futex>(bell: &F) -> u32 {
    let seen = bell.set(ASLEEP) | ASLEEP;
    F::fence();
    seen
}

/// What the bell of the other side asks for, after something was changed that it may wait for: with [`ASLEEP`], who sleeps there is to
/// be woken.
#[inline(always)]
pub(crate) fn rings<F: Futex>(bell: &F) -> u32 {
    F::fence();
    rings_unfenced(bell)
}

/// As [`rings`], after [`Word::turn`].
#[inline(always)]
pub(crate) fn rings_unfenced<F: Futex>(bell: &F) -> u32 {
    let asks = bell.load();
    // Of several that ring, one wakes all.
    if asks & ASLEEP == 0 { asks } else { bell.clear(ASLEEP) }
}

/// What its sender says of a message that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It is there to be taken.
    Open = 1,
    /// The sender takes it back.
    Withdrawn = 2,
}

/// `number` tells messages in one descriptor apart.
pub(crate) const fn offered(number: u32, offered: Offered) -> u64 {
    number as u64 | (offered as u64) << 32
}

/// What its receiver says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is about to be decided.
    Deciding = 1,
    /// The receiver has it.
    Taken = 2,
    /// It was withdrawn.
    Left = 3,
}

pub(crate) const fn taken(number: u32, verdict: Verdict) -> u64 {
    number as u64 | (verdict as u64) << 32
}

/// Takes a message, unless its sender was first to take it back. One thread of the receiver does this at a time. Of this fence and the one
/// in [`withdraw`] one comes first.
pub(crate) fn take<W: Word>(mine: &W, theirs: &impl Load, number: u32) -> bool {
    let open = offered(number, Offered::Open);
    if theirs.load(Ordering::Acquire) != open {
        // By now another message may be in the descriptor, of which this says nothing.
        return false;
    }
    mine.store(taken(number, Verdict::Deciding), Ordering::Relaxed);
    W::fence();
    let is_mine = theirs.load(Ordering::Relaxed) == open;
    mine.store(taken(number, if is_mine { Verdict::Taken } else { Verdict::Left }), Ordering::Release);
    is_mine
}

/// Takes a message back. Whether that was done says [`is_withdrawn`].
pub(crate) fn withdraw<W: Word>(mine: &W, number: u32) {
    mine.store(offered(number, Offered::Withdrawn), Ordering::Relaxed);
    W::fence();
}

/// Whether a message that was taken back is the sender's; if not, its receiver has it. `None` as long as that decides.
pub(crate) fn is_withdrawn(theirs: &impl Load, number: u32) -> Option<bool> {
    let now = theirs.load(Ordering::Acquire);
    if now == taken(number, Verdict::Deciding) { None } else { Some(now != taken(number, Verdict::Taken)) }
}

const COUNT: u64 = (1 << 24) - 1;

/// The most chunks of a message.
pub(crate) const MOST_CHUNKS: u64 = COUNT - 1;

/// How many chunks one side has claimed in an attempt.
pub(crate) const fn claims(epoch: u16, count: u64) -> u64 {
    (epoch as u64) << 48 | count & COUNT
}

/// Claims of an attempt that has ended: of the receiver, from where on the sender claims nothing.
pub(crate) const fn all_claimed(epoch: u16) -> u64 {
    claims(epoch, COUNT)
}

/// What the other side has claimed; nothing, if that is in another attempt.
pub(crate) fn claimed(word: &impl Load, epoch: u16) -> Option<u64> {
    let now = word.load(Ordering::Acquire);
    (now >> 48 == u64::from(epoch)).then_some(now & COUNT)
}

/// Claims the next of `chunks` for the receiver, which has claimed `mine` from the beginning. `Err` once all are claimed: how many of them
/// by the sender, which claims no other one. The last one may be the sender's, too: both copy the same bytes.
pub(crate) fn claim_front<W: Word>(
    front: &W,
    back: &impl Load,
    epoch: u16,
    chunks: u64,
    mine: u64,
) -> Result<u64, u64> {
    let others = claimed(back, epoch).unwrap_or(0);
    if others.saturating_add(mine) >= chunks {
        return Err(others);
    }
    front.store(claims(epoch, mine + 1), Ordering::Release);
    // Of this fence and the one in `claim_back` one comes first.
    W::fence();
    Ok(mine)
}

/// What came of [`claim_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// This chunk.
    Chunk(u64),
    /// The receiver claimed the same one first: it counts as copied, and was the last.
    Theirs,
    /// All are claimed.
    None,
}

/// Claims the next of `chunks` for the sender, which has claimed `mine` from the end.
pub(crate) fn claim_back<W: Word>(back: &W, front: &impl Load, epoch: u16, chunks: u64, mine: u64) -> Claim {
    let is_free = |count: u64| claimed(front, epoch).is_some_and(|front| front + count <= chunks);
    if !is_free(mine + 1) {
        return Claim::None;
    }
    back.store(claims(epoch, mine + 1), Ordering::Relaxed);
    W::fence();
    if is_free(mine + 1) { Claim::Chunk(chunks - 1 - mine) } else { Claim::Theirs }
}

/// Says that this side is in the range of slot `slot`, if that is registered still: until [`leave`] its registration does not
/// end. Of this fence and the one in [`expire`] one comes first.
pub(crate) fn enter<W: Word>(inside: &W, current: &impl Load, slot: usize, generation: u64) -> bool {
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
pub(crate) fn is_inside(inside: &impl Load, slot: usize) -> bool {
    inside.load(Ordering::Acquire) == slot as u64 + 1
}

#[cfg(test)]
mod model;
