//! [`Near`]: what a thread remembers of the slabs and large blocks that are its own.
//!
//! From an address to the state of its block lead three loads, each of which waits for the one before: the tracker's two levels,
//! and the span. What the next allocation reads may be what this free is about to write, as far as the processor can tell
//! before it knows where that is: so it waits for all three. A thread that remembers what it met in its own spans has one load
//! instead.
//!
//! Whoever takes a span from its owner clears what that remembers of it, while it is kept out: see `reach`.

use core::cell::Cell;
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU8;

use umf_core::Address;
use umf_core::tracker::GRANULE;

use crate::span::{Divisor, Span};
use crate::thread_cache::Bin;

/// How many granules a thread remembers: those of 128 MiB, if they lie side by side.
pub(crate) const NEARS: usize = 2048;

/// A granule in which blocks of a span begin whose owner is the thread.
#[repr(C, align(64))]
pub(crate) struct Near {
    /// The number of the granule; 0 if there is none, and the rest is then 0 too, or what it was.
    granule: Cell<u64>,
    base: Cell<u64>,
    divisor: Cell<Divisor>,
    count: Cell<u64>,
    states: Cell<*mut AtomicU8>,
    bin: Cell<*const Bin>,
}

impl Near {
    /// The number of the granule that holds `address`.
    #[inline(always)]
    pub(crate) const fn granule_of(address: Address) -> u64 {
        address.to_bits() / GRANULE as u64
    }

    #[inline(always)]
    pub(crate) fn is(&self, granule: u64) -> bool {
        self.granule.get() == granule
    }

    /// The state of the block that begins at `address`, if one does, and the bin of its class.
    #[inline(always)]
    pub(crate) fn find(&self, address: Address) -> Option<(NonNull<AtomicU8>, &Bin)> {
        let index = self.divisor.get().number(address.to_bits().wrapping_sub(self.base.get()));
        if index >= self.count.get() {
            return None;
        }
        // SAFETY: the words are those of one span in use, which has that many blocks; the bin is one of the same cache.
        unsafe { Some((NonNull::new_unchecked(self.states.get().add(index as usize)), &*self.bin.get())) }
    }

    /// Remembers the span.
    ///
    /// # Safety
    /// It is the thread's and in use, and has blocks in the granule; `bin` is that of its class.
    #[inline(always)]
    pub(crate) unsafe fn set(&self, granule: u64, span: &Span, bin: &Bin) {
        // SAFETY: passed on to the caller.
        let (base, divisor, count, states) = unsafe { span.parts() };
        self.granule.set(granule);
        self.base.set(base);
        self.divisor.set(divisor);
        self.count.set(count);
        self.states.set(states);
        self.bin.set(ptr::from_ref(bin));
    }

    /// Forgets the granule, if it is this one.
    pub(crate) fn forget(&self, granule: u64) {
        if self.is(granule) {
            self.granule.set(0);
            self.count.set(0);
        }
    }
}
