//! Ownership bias of large blocks: blocks whose live bits one thread clears without an atomic
//! exchange.
//!
//! A large block that one thread allocated and freed may be biased towards it. As long as only that
//! thread frees it, clearing the live bit is a load and a store inside its section, and the
//! lookaside cache finds the block. The first other thread that frees it revokes the bias,
//! [`Heaps::revoke_bias`], and with it the section, once. That costs a hundred times what a biased
//! free saves. So after a revocation a thread gets no bias for a while: [`LargeBias`].
//!
//! All code of the bias is here, except [`Span::owner`] and the fast path in `free`. Slabs have
//! owners instead: see `remote`.

#[cfg(test)]
mod model;

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::Address;
use umf_sync::thread;

use crate::heap::granule_of;
use crate::heaps::Heaps;
use crate::metadata::Metadata;
use crate::section::{BiasedLock, await_exit, restore, revoke};
use crate::types::{Entry, Heap, Span, UNOWNED, thread_word};

/// The bias of a span while a thread revokes it.
const REVOKING: u32 = u32::MAX;

/// Revokes the bias of a span towards the owner of `lock`. `forget` clears the owner's cached
/// entries of the span.
fn revoke_span_bias<L: BiasedLock>(
    lock: &L,
    set_bias: impl Fn(u32),
    (forbid_fast, forget, allow_fast): (impl FnOnce(), impl FnOnce(), impl FnOnce()),
) {
    // Until the end, other threads see the span as neither biased nor unbiased, and wait.
    set_bias(REVOKING);
    revoke(core::iter::once(lock), forbid_fast);
    await_exit(lock);
    forget();
    set_bias(UNOWNED);
    restore(lock);
    allow_fast();
}

impl Heaps {
    /// Revokes the bias of a span, unless it is unbiased or biased towards the calling thread. Then
    /// the calling thread may clear live bits in the span by atomic exchange. It is outside of its
    /// section.
    pub(crate) fn ensure_exchange(&self, span: &Span) {
        let bias = span.owner.load(Ordering::Acquire);
        if bias != UNOWNED && thread::current().is_none_or(|current| thread_word(current.get()) != bias) {
            self.revoke_bias(span);
        }
    }

    /// Revokes the bias of a span, even towards the calling thread. It is outside of its section.
    #[cold]
    pub(crate) fn revoke_bias(&self, span: &Span) {
        if span.owner.load(Ordering::Acquire) == UNOWNED {
            return;
        }
        let _revoker = self.revoker.lock();
        let bias = span.owner.load(Ordering::Relaxed);
        if bias == UNOWNED {
            return;
        }
        let Some(heap) = self.get(bias - 1) else { return };
        if thread::current().is_some_and(|current| thread_word(current.get()) == bias) {
            return heap.unbias(span);
        }
        let forget = || {
            heap.lookaside.forget(span);
            heap.bias.note_revoked();
        };
        let set_bias = |bias| span.owner.store(bias, Ordering::Release);
        let flags = &self.flags;
        revoke_span_bias(heap, set_bias, (|| flags.forbid_fast(), forget, || flags.allow_fast()));
    }
}

impl Heap {
    /// Makes a span that is biased towards this heap's thread unbiased. Inside the section, or
    /// while it is revoked.
    pub(crate) fn unbias(&self, span: &Span) {
        self.lookaside.forget(span);
        span.owner.store(UNOWNED, Ordering::Release);
    }

    /// Makes large blocks that leave this heap unbiased. Inside the section, or while it is
    /// revoked.
    pub(crate) fn unbias_large(&self, entries: &[Entry]) {
        for &entry in entries {
            // SAFETY: all callers pass large blocks of the pool.
            let span = unsafe { Span::of_own_state(entry) };
            if span.owner.load(Ordering::Relaxed) != UNOWNED {
                self.unbias(span);
            }
        }
    }

    /// Enters the slabs of blocks that a refill brought into the lookaside cache, if thread number
    /// `index`, this heap's, owns them. Inside the section.
    pub(crate) fn remember_owned(&self, index: u32, meta: &Metadata, entries: &[Entry]) {
        let mut last = None;
        for entry in entries {
            let address = Address::from_bits(entry.address);
            let granule = Some(granule_of(address));
            if core::mem::replace(&mut last, granule) == granule {
                continue;
            }
            let span = meta.span_number(address).and_then(|number| meta.span(number));
            if let Some(span) = span.filter(|span| span.owner.load(Ordering::Relaxed) == thread_word(index)) {
                // SAFETY: this thread owns the slab, which is in use.
                unsafe { self.lookaside.remember(address, span) };
            }
        }
    }

    /// Keeps an unbiased large block that thread number `index`, this heap's, has freed. The thread
    /// becomes its owner, and the block may become biased. No other free is under way. Inside the
    /// section.
    #[inline]
    pub(crate) fn keep_large(&self, index: u32, span: &Span) {
        span.last_user.store(thread_word(index), Ordering::Relaxed);
        if self.bias.grants() {
            span.owner.store(thread_word(index), Ordering::Relaxed);
            // SAFETY: the span is biased towards this thread, and in use.
            unsafe { self.lookaside.remember(span.base(), span) };
        }
    }
}

/// After a revocation, a thread frees this many large blocks by atomic exchange before one becomes
/// biased.
const BACKOFF: u32 = 256;
/// The most blocks that it frees by atomic exchange after several revocations.
const MAX_BACKOFF: u32 = 1 << 16;

/// Decides whether a large block that a thread has allocated and freed becomes biased towards it.
#[derive(Default)]
pub(crate) struct LargeBias {
    /// The number of revocations. Written by other threads.
    revoked: AtomicU32,
    /// The number of revocations that `backoff` includes.
    counted: Cell<u32>,
    /// The number of blocks until the next one becomes biased.
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

    /// Returns whether the block that the thread frees becomes biased. Inside the section.
    #[inline]
    fn grants(&self) -> bool {
        let revoked = self.revoked.load(Ordering::Relaxed);
        let new = revoked.wrapping_sub(self.counted.replace(revoked));
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
