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
use umf_runtime::tracker::GRANULE;

use crate::classes::Divisor;
use crate::span::Span;
use crate::thread_cache::BinPlace;

/// How many granules a thread remembers: those of 512 MiB, if they lie side by side.
pub(crate) const NEARS: usize = 8192;

/// A span whose owner is the thread, at the place of a granule in which blocks of it begin. Granules share places: whether an
/// address is a block of this span, its number in it tells as well. Two of them fill a line.
#[repr(C, align(32))]
pub(crate) struct Near {
    base: Cell<u64>,
    inverse: Cell<u64>,
    states: Cell<*mut AtomicU8>,
    /// 0 if nothing is remembered.
    count: Cell<u32>,
    bin: Cell<BinPlace>,
    shift: Cell<u8>,
}

impl Near {
    /// The number of the granule that holds `address`.
    #[inline(always)]
    pub(crate) const fn granule_of(address: Address) -> u64 {
        address.to_bits() / GRANULE as u64
    }

    /// Bytes from the beginning of all that is remembered to what is of the granule that holds `address`.
    #[inline(always)]
    pub(crate) const fn offset_of(address: Address) -> usize {
        // (Without the number of the granule between, which would be two instructions more.)
        const SHIFT: u32 = GRANULE.ilog2() - size_of::<Near>().ilog2();
        (address.to_bits() >> SHIFT) as usize & ((NEARS - 1) * size_of::<Near>())
    }

    /// The state of the block that begins at `address`, if one does, and where the bin of its class is.
    #[inline(always)]
    pub(crate) fn find(&self, address: Address) -> Option<(NonNull<AtomicU8>, BinPlace)> {
        let divisor = Divisor { inverse: self.inverse.get(), shift: self.shift.get() };
        let index = divisor.number(address.to_bits().wrapping_sub(self.base.get()));
        if index >= u64::from(self.count.get()) {
            return None;
        }
        // SAFETY: the words are those of one span in use, which has that many blocks.
        let state = unsafe { NonNull::new_unchecked(self.states.get().add(index as usize)) };
        Some((state, self.bin.get()))
    }

    /// Remembers the span.
    ///
    /// # Safety
    /// It is the thread's and in use.
    #[inline(always)]
    pub(crate) unsafe fn set(&self, span: &Span) {
        // SAFETY: passed on to the caller.
        let ((base, divisor, count, states), bin) = unsafe { (span.parts(), span.bin()) };
        self.base.set(base);
        self.inverse.set(divisor.inverse);
        self.shift.set(divisor.shift);
        self.count.set(u32::try_from(count).unwrap_or(0));
        self.states.set(states);
        self.bin.set(bin);
    }

    /// Forgets the span, if it is this one. By the thread, or while it is kept out.
    pub(crate) fn forget(&self, span: &Span) {
        if ptr::eq(self.states.get(), span.states()) {
            self.count.set(0);
        }
    }
}
