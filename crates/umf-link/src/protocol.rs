//! The lock-free protocols of a link. They are generic over the memory of their words: a lane, or
//! loom's model (tests `loom_*`, with more interleavings in `tests/run --loom`). One process writes
//! each word, except the bell and the marks.
//!
//! | protocol | guarantee |
//! |---|---|
//! | [`announce`], [`arrived`] | the receiver sees a record whole |
//! | [`has_space`], [`release`] | the sender overwrites a slot only after it was consumed, and is woken for free slots |
//! | [`mark`], [`take_marks`] | a lane that its reader does not poll is read before its reader sleeps |
//! | [`fall_asleep`], [`take_requests`] | a thread that goes to sleep misses no change |
//! | [`take`], [`withdraw`] | sender and receiver agree whether a message was taken |
//! | [`place`], [`cancel`] | an offer of a backlog gets a slot or is cancelled |
//! | [`claim_front`], [`claim_back`] | each chunk is copied; afterwards the sender copies none |
//! | [`enter`], [`expire`] | after the end of a registration, no peer copies in its range |
//!
//! Two functions that pair have a sequentially consistent fence each, between a store and a load.
//! The process whose fence is later in their total order sees the store of the other process.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that this process may read.
pub(crate) trait Load {
    fn load(&self, order: Ordering) -> u64;
}

/// A word that only this process writes.
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
    fn add(&self, count: u32);
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

    #[inline]
    fn add(&self, count: u32) {
        self.fetch_add(count, Ordering::AcqRel);
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

/// Returns the sequence number in the header of slot `number`. In the first round of a ring it is
/// not 0, so that zeroed memory is no record.
const fn sequence(number: u64) -> u64 {
    number.wrapping_add(1) & 0xffff_ffff
}

const fn pack(number: u64, header: SlotHeader) -> u64 {
    sequence(number)
        | (header.kind as u64) << 32
        | (header.length as u64) << 40
        | (header.context as u64) << 56
}

/// Publishes the record in slot `number`, with everything that was written before.
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

/// Returns whether `slots` more slots of a ring of `size` are free after `sent` were used. `known`
/// caches `consumed`. If too few are free, sets `wants`, so that the receiver rings when it has
/// consumed more. Returns `None` if the receiver published an impossible value. Pairs with
/// [`release`].
#[inline(always)]
pub(crate) fn has_space<W: Word>(
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

/// Publishes that the slots before `next` were consumed. Returns whether to wake the sender.
pub(crate) fn release<W: Word>(consumed: &W, wants: &impl Load, next: u64) -> bool {
    consumed.store(next, Ordering::Release);
    W::fence();
    wants.load(Ordering::Relaxed) != 0
}

/// Marks a lane with new records, for a receiver that reads marked lanes only. The sender calls it
/// after [`announce`] and before [`take_requests`].
pub(crate) fn mark<F: Futex>(marks: &F, lane: u32) {
    marks.set(1 << lane);
}

/// Returns and clears the marks of 32 lanes. A thread that sleeps calls it after [`fall_asleep`].
pub(crate) fn take_marks<F: Futex>(marks: &F) -> u32 {
    if marks.load() == 0 { 0 } else { marks.clear(u32::MAX) }
}

/// A thread sleeps on the bell, or is about to. A thread that stops sleeping leaves it set, so that
/// the next ring may wake no thread.
pub(crate) const ASLEEP: u32 = 1;
/// A link has to be woken through its socket. The bit stays set.
pub(crate) const ARMED: u32 = 2;

/// The bits that a peer acts on.
const REQUESTS: u32 = ASLEEP | ARMED;
/// The other bits count how often sleeping threads were woken. A thread that polled before a ring
/// does not sleep after it, even if another thread has set [`ASLEEP`] again meanwhile.
const WOKEN: u32 = 4;

/// Announces that this thread goes to sleep. Returns the value of the bell until it is rung. The
/// caller polls once more before it sleeps. Pairs with [`take_requests`].
pub(crate) fn fall_asleep<F: Futex>(bell: &F) -> u32 {
    let seen = bell.set(ASLEEP) | ASLEEP;
    F::fence();
    seen
}

/// Returns the requests of the peer's bell, after a change for which the peer may wait. If
/// [`ASLEEP`] is set, the caller wakes the peer's threads.
#[inline(always)]
pub(crate) fn take_requests<F: Futex>(bell: &F) -> u32 {
    F::fence();
    take_requests_unfenced(bell)
}

/// As [`take_requests`], after [`Word::turn`].
#[inline(always)]
pub(crate) fn take_requests_unfenced<F: Futex>(bell: &F) -> u32 {
    let requests = bell.load() & REQUESTS;
    if requests & ASLEEP == 0 {
        return requests;
    }
    // If several processes ring at once, the one that clears the bit wakes all threads.
    let requests = bell.clear(ASLEEP) & REQUESTS;
    if requests & ASLEEP != 0 {
        // After the bit is cleared, and before the caller wakes: the value that a thread has seen
        // does not come back when another thread sets the bit again.
        bell.add(WOKEN);
    }
    requests
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

/// Returns the receiver's word of message `number`.
pub(crate) const fn taken(number: u32, verdict: Verdict) -> u64 {
    number as u64 | (verdict as u64) << 32
}

/// Takes a message, unless its sender was first to withdraw it. One thread of the receiver calls
/// this at a time. Pairs with [`withdraw`].
pub(crate) fn take<W: Word>(verdict: &W, offer: &impl Load, number: u32) -> bool {
    let open = offered(number, Offered::Open);
    if offer.load(Ordering::Acquire) != open {
        // The slot may have another message by now, which stays open.
        return false;
    }
    verdict.store(taken(number, Verdict::Deciding), Ordering::Relaxed);
    W::fence();
    let is_open = offer.load(Ordering::Relaxed) == open;
    verdict.store(taken(number, if is_open { Verdict::Taken } else { Verdict::Left }), Ordering::Release);
    is_open
}

/// Begins to withdraw a message. [`is_withdrawn`] returns the result. Returns `false` if the slot
/// is used for another message by now: then the receiver has taken this one.
pub(crate) fn withdraw<W: Word>(offer: &W, number: u32) -> bool {
    let (open, withdrawn) = (offered(number, Offered::Open), offered(number, Offered::Withdrawn));
    let was_open = offer.replace(open, withdrawn).is_ok();
    W::fence();
    was_open
}

/// Returns whether a message was withdrawn before its receiver took it. Returns `None` while the
/// receiver is deciding.
pub(crate) fn is_withdrawn(verdict: &impl Load, number: u32) -> Option<bool> {
    let value = verdict.load(Ordering::Acquire);
    if value == taken(number, Verdict::Deciding) {
        None
    } else {
        Some(value != taken(number, Verdict::Taken))
    }
}

/// The placing word of a cancelled offer of a backlog.
const CANCELLED: u64 = u64::MAX;

/// Assigns a slot to an offer of a backlog. Returns `false` if the offer was cancelled.
pub(crate) fn place<W: Word>(placing: &W, index: usize, number: u32) -> bool {
    placing.replace(0, (index as u64) << 32 | u64::from(number)).is_ok()
}

/// Cancels an offer of a backlog. If the offer has a slot, returns the slot and the number instead.
pub(crate) fn cancel<W: Word>(placing: &W) -> Option<(usize, u32)> {
    placing.replace(0, CANCELLED).err().and_then(slot_of)
}

/// Returns the slot and the number of an offer of a backlog, if it has a slot.
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

/// Claims the next chunk for the receiver, which has claimed `count` of `chunks` from the front.
/// Pairs with [`claim_back`]. Both may claim the last chunk, and then copy the same bytes.
///
/// # Errors
/// All chunks are claimed. The value is the final number of chunks that the sender has claimed.
pub(crate) fn claim_front<W: Word>(
    front: &W,
    back: &impl Load,
    epoch: u16,
    chunks: u64,
    count: u64,
) -> Result<u64, u64> {
    let by_sender = claimed(back, epoch).unwrap_or(0);
    if by_sender.saturating_add(count) >= chunks {
        return Err(by_sender);
    }
    front.store(claims(epoch, count + 1), Ordering::Release);
    W::fence();
    Ok(count)
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

/// Claims the next chunk for the sender, which has claimed `count` of `chunks` from the back.
pub(crate) fn claim_back<W: Word>(
    back: &W,
    front: &impl Load,
    epoch: u16,
    chunks: u64,
    count: u64,
) -> ChunkClaim {
    let is_free = || claimed(front, epoch).is_some_and(|front| front + count < chunks);
    if !is_free() {
        return ChunkClaim::None;
    }
    back.store(claims(epoch, count + 1), Ordering::Relaxed);
    W::fence();
    if is_free() { ChunkClaim::Chunk(chunks - 1 - count) } else { ChunkClaim::Lost }
}

/// Enters the registered range in slot `slot`. The end of the registration waits until [`leave`].
/// Returns `false` if the registration has ended. Pairs with [`expire`].
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

/// Ends a registration: no peer enters the range any more. [`is_inside`] returns whether a peer has
/// not left it yet.
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
