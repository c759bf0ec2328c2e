//! Ownership bias: spans whose live bits one thread clears without an atomic exchange.
//!
//! A slab, or a large block, that one thread took may be biased towards it. As long as only that
//! thread frees blocks of the span, clearing a live bit is a load and a store inside its section,
//! and the lookaside cache finds the block. The first other thread that frees one takes the bias
//! away, [`Heaps::revoke_bias`]: it revokes the section once, and the span stays unbiased until all
//! its blocks are free. That costs a hundred times what a biased free saves. So a thread that was
//! wrong goes without bias for a while: [`SlabBias`] and [`LargeBias`].
//!
//! Everything of the bias is here, besides [`Span::bias`], the fast path in `free`, and the empty
//! slab that becomes biased in `central`.

#[cfg(test)]
mod model;

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::Address;
use umf_sync::thread;

use crate::heap::Heap;
use crate::heaps::Heaps;
use crate::lookaside::granule_of;
use crate::metadata::Metadata;
use crate::section::{BiasedLock, await_exit, restore, revoke};
use crate::span::{Entry, Span, UNBIASED, thread_word};

/// The bias of a span while a thread takes it away.
const REVOKING: u32 = u32::MAX;

/// Takes the bias of a span away from the owner of `lock`. `forget` clears what the owner remembers
/// of it.
fn take_bias<L: BiasedLock>(
    lock: &L,
    set_bias: impl Fn(u32),
    (forbid_fast, forget, allow_fast): (impl FnOnce(), impl FnOnce(), impl FnOnce()),
) {
    // A thread that comes meanwhile sees neither a biased span nor an unbiased one, and waits.
    set_bias(REVOKING);
    revoke(core::iter::once(lock), forbid_fast);
    await_exit(lock);
    forget();
    set_bias(UNBIASED);
    restore(lock);
    allow_fast();
}

impl Heaps {
    /// Takes the bias of a span away, unless it is unbiased or biased towards the calling thread.
    /// From here on the calling thread may clear live bits in the span by atomic exchange. It is
    /// outside of its section.
    pub(crate) fn ensure_exchange(&self, span: &Span) {
        let bias = span.bias.load(Ordering::Acquire);
        if bias != UNBIASED && thread::current().is_none_or(|own| thread_word(own.get()) != bias) {
            self.revoke_bias(span);
        }
    }

    /// Takes the bias of a span away, from the calling thread too. It is outside of its section.
    #[cold]
    pub(crate) fn revoke_bias(&self, span: &Span) {
        if span.bias.load(Ordering::Acquire) == UNBIASED {
            return;
        }
        let _revoker = self.revoker.lock();
        let bias = span.bias.load(Ordering::Relaxed);
        if bias == UNBIASED {
            return;
        }
        let Some(heap) = self.get(bias - 1) else { return };
        if thread::current().is_some_and(|own| thread_word(own.get()) == bias) {
            return heap.unbias(span);
        }
        let forget = || {
            heap.lookaside.forget(span);
            if self.classes.is_large(span.class()) {
                heap.bias.note_revoked();
            } else {
                heap.limits(span.class()).bias.note_revoked();
            }
        };
        let set_bias = |bias| span.bias.store(bias, Ordering::Release);
        let flags = &self.flags;
        take_bias(heap, set_bias, (|| flags.forbid_fast(), forget, || flags.allow_fast()));
    }

    /// Makes a span unbiased. Called by the thread that it is biased towards, or while its section
    /// is revoked.
    pub(crate) fn unbias(&self, span: &Span) {
        let bias = span.bias.load(Ordering::Relaxed);
        match bias.checked_sub(1).and_then(|index| self.get(index)) {
            Some(heap) => heap.unbias(span),
            None => span.bias.store(UNBIASED, Ordering::Release),
        }
    }
}

impl Heap {
    /// Makes a span that is biased towards this heap's thread unbiased. Inside, or while revoked.
    pub(crate) fn unbias(&self, span: &Span) {
        self.lookaside.forget(span);
        span.bias.store(UNBIASED, Ordering::Release);
    }

    /// Makes large blocks that leave this heap unbiased. Inside, or while revoked.
    pub(crate) fn unbias_large(&self, entries: &[Entry]) {
        for &entry in entries {
            // SAFETY: they are large blocks of the pool, as all callers say.
            let span = unsafe { Span::of_own_state(entry) };
            if span.bias.load(Ordering::Relaxed) != UNBIASED {
                self.unbias(span);
            }
        }
    }

    /// Enters the spans of blocks that a refill brought into the lookaside cache, if they are biased
    /// towards thread number `index`, this heap's. Inside.
    pub(crate) fn remember_biased(&self, index: u32, meta: &Metadata, entries: &[Entry]) {
        let mut last = None;
        for entry in entries {
            let address = Address::from_bits(entry.address);
            let granule = Some(granule_of(address));
            if core::mem::replace(&mut last, granule) == granule {
                continue;
            }
            let span = meta.span_number(address).and_then(|number| meta.span(number));
            if let Some(span) = span.filter(|span| span.bias.load(Ordering::Relaxed) == thread_word(index)) {
                // SAFETY: the span is biased towards this thread, and in use.
                unsafe { self.lookaside.remember(address, span) };
            }
        }
    }

    /// Keeps an unbiased large block that thread number `index`, this heap's, has freed. The thread
    /// becomes its owner, and the block may become biased. No other free is under way. Inside.
    #[inline]
    pub(crate) fn keep_large(&self, index: u32, span: &Span) {
        span.owner.store(thread_word(index), Ordering::Relaxed);
        if self.bias.grants() {
            span.bias.store(thread_word(index), Ordering::Relaxed);
            // SAFETY: the span is biased towards this thread, and in use.
            unsafe { self.lookaside.remember(span.base(), span) };
        }
    }
}

/// Whether the next empty slab of a class that a thread takes becomes biased. Each revocation
/// doubles the number of slabs that do not.
#[derive(Default)]
pub(crate) struct SlabBias {
    /// Revocations. Written by other threads.
    revoked: AtomicU32,
    seen: Cell<u32>,
    streak: Cell<u32>,
    skip: Cell<u32>,
}

impl SlabBias {
    fn note_revoked(&self) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }

    /// Decides for the next slab. Inside.
    pub(crate) fn grants(&self) -> bool {
        const MAX_STREAK: u32 = 10;
        let revoked = self.revoked.load(Ordering::Relaxed);
        if revoked != self.seen.replace(revoked) {
            let streak = (self.streak.get() + 1).min(MAX_STREAK);
            self.streak.set(streak);
            self.skip.set(1 << streak);
        }
        match self.skip.get() {
            0 => true,
            skip => {
                self.skip.set(skip - 1);
                if skip == 1 {
                    self.streak.set(self.streak.get().saturating_sub(1));
                }
                false
            }
        }
    }
}

/// For each revocation, a thread frees this many large blocks by atomic exchange before one becomes
/// biased.
const BACKOFF: u32 = 256;
/// The most blocks that it frees so.
const MAX_BACKOFF: u32 = 1 << 16;

/// Whether a large block that a thread has taken and freed becomes biased towards it.
#[derive(Default)]
pub(crate) struct LargeBias {
    /// Revocations. Written by other threads.
    revoked: AtomicU32,
    seen: Cell<u32>,
    backoff: Cell<u32>,
}

impl LargeBias {
    fn note_revoked(&self) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of revocations.
    #[cfg(test)]
    pub(crate) fn revoked(&self) -> u32 {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Decides for a block that the thread frees. Inside.
    #[inline]
    fn grants(&self) -> bool {
        let revoked = self.revoked.load(Ordering::Relaxed);
        let new = revoked.wrapping_sub(self.seen.replace(revoked));
        let backoff = self.backoff.get().saturating_add(new.saturating_mul(BACKOFF)).min(MAX_BACKOFF);
        self.backoff.set(backoff.saturating_sub(1));
        backoff == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Frees blocks of which every `part`th is passed to another thread later, which frees it after
    /// `window` more. Returns how many became biased, and how often that was revoked.
    fn biased_and_revoked(part: usize, window: usize) -> (u32, u32) {
        let bias = LargeBias::default();
        let (mut biased, mut revoked) = (0, 0);
        let mut passed = VecDeque::new();
        for number in 1..=1_000_000_usize {
            let grants = bias.grants();
            biased += u32::from(grants);
            passed.push_back(grants && number.is_multiple_of(part));
            if passed.len() > window && passed.pop_front() == Some(true) {
                bias.note_revoked();
                revoked += 1;
            }
        }
        (biased, revoked)
    }

    #[test]
    fn thread_that_frees_all_its_blocks_keeps_the_bias() {
        assert_eq!(biased_and_revoked(usize::MAX, 1), (1_000_000, 0));
    }

    #[test]
    fn single_revocation_does_not_end_the_bias() {
        let (biased, revoked) = biased_and_revoked(400_000, 100);
        assert!(revoked == 2 && biased > 990_000, "{biased}, {revoked}");
    }

    #[test]
    fn thread_that_passes_blocks_on_gets_little_bias() {
        for part in [1, 2, 10] {
            for window in [1, 100, 1000] {
                let (_, revoked) = biased_and_revoked(part, window);
                assert!(revoked <= 20_000, "{revoked} of every {part}th after {window}");
            }
        }
    }
}
