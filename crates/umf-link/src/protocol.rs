//! The lock-free protocols of a link. They are generic over the memory of their words: a lane, or
//! loom's model (tests `loom_*`, with more interleavings in `tests/run --loom`). One process writes
//! each word, except the bell.
//!
//! | protocol | guarantee |
//! |---|---|
//! | [`announce`], [`arrived`] | the receiver sees a record whole |
//! | [`room`], [`release`] | the sender overwrites a slot only after it was consumed, and learns of room |
//! | [`mark`], [`take_marks`] | a lane that its reader does not poll is read before its reader sleeps |
//! | [`fall_asleep`], [`rings`] | a thread that goes to sleep misses no change |
//! | [`take`], [`withdraw`] | sender and receiver agree whether a message was taken |
//! | [`place`], [`cancel`] | an offer of a backlog gets a slot or is cancelled |
//! | [`claim_front`], [`claim_back`] | each chunk is copied; afterwards the sender copies nothing |
//! | [`enter`], [`expire`] | after the end of a registration, no peer copies in its range |
//!
//! Where two functions have a fence each, one of the two fences is first in the total order of
//! sequentially consistent fences. The process with the later fence sees the store of the other
//! one.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that this process may read.
pub(crate) trait Load {
    fn load(&self, order: Ordering) -> u64;
}

/// A word that this process alone writes.
pub(crate) trait Word: Load {
    fn store(&self, value: u64, order: Ordering);
    /// Stores `new` if the word is `current`. Returns its value otherwise. Acquires and releases.
    /// For words that several threads of this process write.
    fn replace(&self, current: u64, new: u64) -> Result<(), u64>;
    /// Flips bits. Acquires and releases, and is a fence as [`Word::fence`].
    fn turn(&self, bits: u64);
    /// A sequentially consistent fence.
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

    #[inline]
    fn replace(&self, current: u64, new: u64) -> Result<(), u64> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    #[inline(always)]
    fn turn(&self, bits: u64) {
        self.fetch_xor(bits, Ordering::SeqCst);
        // On x86-64 the locked instruction above is a full fence, as `umf_sync::fence::full` is.
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Self::fence();
    }

    #[inline(always)]
    fn fence() {
        umf_sync::fence::full();
    }
}

/// A word that all peers of a process write: the futex on which its threads sleep, or marks of
/// lanes.
pub(crate) trait Futex {
    fn load(&self) -> u32;
    /// Returns the previous value.
    fn set(&self, bits: u32) -> u32;
    /// Returns the previous value.
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

/// The header of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotHeader {
    /// The kind of record; 0 in its further slots.
    pub kind: u8,
    /// Bytes of payload.
    pub length: u16,
    /// The context of a message.
    pub context: u8,
}

/// Returns what the header of slot `number` begins with. It is not 0 in the first round of a ring,
/// so that zeroed memory is no record.
const fn sequence(number: u64) -> u64 {
    number.wrapping_add(1) & 0xffff_ffff
}

const fn pack(number: u64, header: SlotHeader) -> u64 {
    sequence(number)
        | (header.kind as u64) << 32
        | (header.length as u64) << 40
        | (header.context as u64) << 56
}

/// Makes the record in slot `number` visible, with everything that was written before.
#[inline(always)]
pub(crate) fn announce<W: Word>(word: &W, number: u64, header: SlotHeader) {
    word.store(pack(number, header), Ordering::Release);
}

/// Marks slot `number` as a further slot of a record, so that its old contents are not taken for a
/// header.
#[inline]
pub(crate) fn go_on<W: Word>(word: &W, number: u64) {
    word.store(pack(number, SlotHeader { kind: 0, length: 0, context: 0 }), Ordering::Relaxed);
}

/// Returns the header in slot `number`, if the slot was announced.
#[inline(always)]
pub(crate) fn arrived(word: &impl Load, number: u64) -> Option<SlotHeader> {
    let header = word.load(Ordering::Acquire);
    let is_new = header & 0xffff_ffff == sequence(number);
    let (kind, length) = ((header >> 32) as u8, (header >> 40) as u16);
    is_new.then_some(SlotHeader { kind, length, context: (header >> 56) as u8 })
}

/// Returns whether `slots` more fit into a ring of `size` after `sent` were used. `known` is the
/// latest known value of `consumed`. If they do not fit, `wants` asks the receiver to ring when it
/// consumes more. Returns `None` if the receiver published an impossible value. Pairs with
/// [`release`].
#[inline(always)]
pub(crate) fn room<W: Word>(
    (consumed, wants): (&impl Load, &W),
    known: &mut u64,
    sent: u64,
    slots: u64,
    size: u64,
) -> Option<bool> {
    let fits = |known: u64| sent.wrapping_sub(known).wrapping_add(slots) <= size;
    if fits(*known) {
        return Some(true);
    }
    // Acquire: the receiver's reads of the slots come before the next writes.
    let mut now = consumed.load(Ordering::Acquire);
    let is_asked = wants.load(Ordering::Relaxed) != 0;
    if !fits(now) && !is_asked {
        wants.store(1, Ordering::Relaxed);
        W::fence();
        now = consumed.load(Ordering::Acquire);
    }
    if sent.wrapping_sub(now) > size || now.wrapping_sub(*known) > size {
        return None;
    }
    *known = now;
    if fits(now) && wants.load(Ordering::Relaxed) != 0 {
        wants.store(0, Ordering::Relaxed);
    }
    Some(fits(now))
}

/// Publishes that the slots before `next` were consumed. Returns whether the sender is to be woken.
pub(crate) fn release<W: Word>(consumed: &W, wants: &impl Load, next: u64) -> bool {
    consumed.store(next, Ordering::Release);
    W::fence();
    wants.load(Ordering::Relaxed) != 0
}

/// Marks a lane that has news, for a receiver that reads marked lanes only. The sender calls it
/// after [`announce`] and before [`rings`].
pub(crate) fn mark<F: Futex>(marks: &F, lane: u32) {
    marks.set(1 << lane);
}

/// Takes the marks of 32 lanes. Before a thread sleeps, it takes them after [`fall_asleep`].
pub(crate) fn take_marks<F: Futex>(marks: &F) -> u32 {
    if marks.load() == 0 { 0 } else { marks.clear(u32::MAX) }
}

/// A thread sleeps on the bell, or is about to.
pub(crate) const ASLEEP: u32 = 1;
/// A link is to be woken by its socket. The bit stays set.
pub(crate) const ARMED: u32 = 2;

/// Announces that this thread goes to sleep. The caller polls once more before it sleeps. Returns
/// the value that the bell has until it is rung. Pairs with [`rings`].
pub(crate) fn fall_asleep<F: Futex>(bell: &F) -> u32 {
    let seen = bell.set(ASLEEP) | ASLEEP;
    F::fence();
    seen
}

/// Returns the requests on the peer's bell, after a change for which the peer may wait. With
/// [`ASLEEP`] the caller wakes the peer's threads.
#[inline(always)]
pub(crate) fn rings<F: Futex>(bell: &F) -> u32 {
    F::fence();
    rings_unfenced(bell)
}

/// As [`rings`], after [`Word::turn`].
#[inline(always)]
pub(crate) fn rings_unfenced<F: Futex>(bell: &F) -> u32 {
    let asks = bell.load();
    // Of several processes that ring at once, the one that clears the bit wakes all threads.
    if asks & ASLEEP == 0 { asks } else { bell.clear(ASLEEP) }
}

/// The sender's state of an offered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The receiver may take it.
    Open = 1,
    /// The sender has withdrawn it.
    Withdrawn = 2,
}

/// Returns the sender's word of message `number`.
pub(crate) const fn offered(number: u32, offered: Offered) -> u64 {
    number as u64 | (offered as u64) << 32
}

/// The receiver's state of an offered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The receiver is checking whether it is open.
    Deciding = 1,
    /// The receiver has taken it.
    Taken = 2,
    /// The sender was first to withdraw it.
    Left = 3,
}

pub(crate) const fn taken(number: u32, verdict: Verdict) -> u64 {
    number as u64 | (verdict as u64) << 32
}

/// Takes a message, unless its sender was first to withdraw it. One thread of the receiver calls
/// this at a time. Pairs with [`withdraw`].
pub(crate) fn take<W: Word>(mine: &W, theirs: &impl Load, number: u32) -> bool {
    let open = offered(number, Offered::Open);
    if theirs.load(Ordering::Acquire) != open {
        // The slot may have another message by now, which stays as it is.
        return false;
    }
    mine.store(taken(number, Verdict::Deciding), Ordering::Relaxed);
    W::fence();
    let is_mine = theirs.load(Ordering::Relaxed) == open;
    mine.store(taken(number, if is_mine { Verdict::Taken } else { Verdict::Left }), Ordering::Release);
    is_mine
}

/// Begins to withdraw a message. [`is_withdrawn`] returns the result. Returns `false` if the slot
/// is used for another message by now: then the receiver has taken this one.
pub(crate) fn withdraw<W: Word>(mine: &W, number: u32) -> bool {
    let (open, withdrawn) = (offered(number, Offered::Open), offered(number, Offered::Withdrawn));
    let is_own = mine.replace(open, withdrawn).is_ok();
    W::fence();
    is_own
}

/// Returns whether a message was withdrawn before its receiver took it. Returns `None` while the
/// receiver is deciding.
pub(crate) fn is_withdrawn(theirs: &impl Load, number: u32) -> Option<bool> {
    let now = theirs.load(Ordering::Acquire);
    if now == taken(number, Verdict::Deciding) { None } else { Some(now != taken(number, Verdict::Taken)) }
}

/// An offer of a backlog that was cancelled.
const CANCELLED: u64 = u64::MAX;

/// Gives an offer of a backlog its slot. Returns `false` if it was cancelled.
pub(crate) fn place<W: Word>(placing: &W, index: usize, number: u32) -> bool {
    placing.replace(0, (index as u64) << 32 | u64::from(number)).is_ok()
}

/// Cancels an offer of a backlog. Returns its slot and its number if it was placed before.
pub(crate) fn cancel<W: Word>(placing: &W) -> Option<(usize, u32)> {
    placing.replace(0, CANCELLED).err().and_then(slot_of)
}

/// Returns the slot of an offer of a backlog and its number, if it has a slot.
pub(crate) fn placed(placing: &impl Load) -> Option<(usize, u32)> {
    slot_of(placing.load(Ordering::Acquire))
}

/// Returns whether an offer of a backlog was cancelled.
pub(crate) fn is_cancelled(placing: &impl Load) -> bool {
    placing.load(Ordering::Relaxed) == CANCELLED
}

/// Numbers of messages are never 0.
const fn slot_of(placed: u64) -> Option<(usize, u32)> {
    match placed {
        0 | CANCELLED => None,
        placed => Some(((placed >> 32) as usize, placed as u32)),
    }
}

const COUNT: u64 = (1 << 24) - 1;

/// The most chunks of a message.
pub(crate) const MAX_CHUNKS: u64 = COUNT - 1;

/// Returns the word for `count` chunks that were claimed in an attempt.
pub(crate) const fn claims(epoch: u16, count: u64) -> u64 {
    (epoch as u64) << 48 | count & COUNT
}

/// Returns the receiver's word that ends an attempt: the sender claims no more chunks.
pub(crate) const fn all_claimed(epoch: u16) -> u64 {
    claims(epoch, COUNT)
}

/// Returns the chunks that the other process has claimed; `None` if its word is of another attempt.
pub(crate) fn claimed(word: &impl Load, epoch: u16) -> Option<u64> {
    let now = word.load(Ordering::Acquire);
    (now >> 48 == u64::from(epoch)).then_some(now & COUNT)
}

/// Claims the next of `chunks` for the receiver, which has claimed `mine` from the front. Pairs
/// with [`claim_back`]. The last chunk may be claimed by both, which then copy the same bytes.
///
/// # Errors
/// All chunks are claimed; the value is the number that the sender has claimed, which is final.
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
    W::fence();
    Ok(mine)
}

/// The result of [`claim_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkClaim {
    /// The sender copies this chunk.
    Chunk(u64),
    /// The receiver claimed the same chunk first. It counts as copied, and is the last one.
    Lost,
    /// All chunks are claimed.
    None,
}

/// Claims the next of `chunks` for the sender, which has claimed `mine` from the back.
pub(crate) fn claim_back<W: Word>(
    back: &W,
    front: &impl Load,
    epoch: u16,
    chunks: u64,
    mine: u64,
) -> ChunkClaim {
    let is_free = |count: u64| claimed(front, epoch).is_some_and(|front| front + count <= chunks);
    if !is_free(mine + 1) {
        return ChunkClaim::None;
    }
    back.store(claims(epoch, mine + 1), Ordering::Relaxed);
    W::fence();
    if is_free(mine + 1) { ChunkClaim::Chunk(chunks - 1 - mine) } else { ChunkClaim::Lost }
}

/// Enters the registered range in slot `slot`. Its registration does not end until [`leave`].
/// Returns `false` if the range is not registered any more. Pairs with [`expire`].
pub(crate) fn enter<W: Word>(inside: &W, current: &impl Load, slot: usize, generation: u64) -> bool {
    inside.store(slot as u64 + 1, Ordering::Relaxed);
    W::fence();
    // Acquire: the words of the range are read after its generation.
    let is_current = current.load(Ordering::Acquire) == generation;
    if !is_current {
        leave(inside);
    }
    is_current
}

/// Leaves the range, after all copies in it.
pub(crate) fn leave<W: Word>(inside: &W) {
    inside.store(0, Ordering::Release);
}

/// Expires a range: no peer enters it any more. [`is_inside`] tells whether a peer is still in it.
pub(crate) fn expire<W: Word>(current: &W) {
    current.store(0, Ordering::Relaxed);
    W::fence();
}

/// Returns whether the peer is in the range in slot `slot`.
pub(crate) fn is_inside(inside: &impl Load, slot: usize) -> bool {
    inside.load(Ordering::Acquire) == slot as u64 + 1
}

#[cfg(test)]
mod loom;
