//! [`Lookaside`]: a cache from addresses to state bytes, for the spans that a thread owns.
//!
//! Without it, three dependent loads lead from an address to its state byte: the two levels of the
//! tracker, and the span. The processor cannot run the next allocation ahead of them, since that
//! may read what this free writes. The lookaside cache of a heap needs one load. It has an entry
//! per granule, for slabs that the thread owns and for large blocks that are biased towards it.
//!
//! When a span leaves its owner, the entries of the span are cleared: by the owner thread inside
//! its section, or by a thread that has revoked it. See `central` and `bias`.

use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU8;

use umf_core::Address;
use umf_runtime::tracker::GRANULE;

use crate::classes::Divisor;
use crate::types::{BinOffset, Kind, LOOKASIDE_ENTRIES, Lookaside, LookasideEntry, Span};

/// Returns the number of the granule that holds `address`.
pub(crate) const fn granule_of(address: Address) -> u64 {
    address.to_bits() / GRANULE as u64
}

impl Lookaside {
    #[inline(always)]
    fn entry(&self, address: Address) -> &LookasideEntry {
        // Computes the byte offset of the entry without the granule's number: two instructions
        // less.
        const SHIFT: u32 = GRANULE.ilog2() - size_of::<LookasideEntry>().ilog2();
        let offset =
            (address.to_bits() >> SHIFT) as usize & ((LOOKASIDE_ENTRIES - 1) * size_of::<LookasideEntry>());
        // SAFETY: it is the offset of an entry.
        unsafe { &*self.0.as_ptr().byte_add(offset) }
    }

    /// Returns the state byte of the block that begins at `address` and the bin of its class, if an
    /// entry has the block.
    #[inline(always)]
    pub(crate) fn find(&self, address: Address) -> Option<(NonNull<AtomicU8>, BinOffset)> {
        let known = self.entry(address);
        let divisor = Divisor { inverse: known.inverse.get(), shift: known.shift.get() };
        let index = divisor.number(address.to_bits().wrapping_sub(known.base.get()));
        if index >= u64::from(known.count.get()) {
            return None;
        }
        // SAFETY: the words are those of one span in use, which has that many blocks.
        let state = unsafe { NonNull::new_unchecked(known.states.get().add(index as usize)) };
        Some((state, known.bin.get()))
    }

    /// Remembers the span of the block at `address`.
    ///
    /// # Safety
    /// The thread of this heap owns the span, as [`Span::owner`] says, and the span is in use.
    #[inline(always)]
    pub(crate) unsafe fn remember(&self, address: Address, span: &Span) {
        // SAFETY: a span does not change as long as its owner has it, says the caller.
        let ((base, divisor, count, states), bin) = unsafe { (span.parts(), span.bin()) };
        let known = self.entry(address);
        known.base.set(base);
        known.inverse.set(divisor.inverse);
        known.shift.set(divisor.shift);
        known.count.set(u32::try_from(count).unwrap_or(0));
        known.states.set(states);
        known.bin.set(bin);
    }

    /// Clears the entries of a span.
    pub(crate) fn forget(&self, span: &Span) {
        // A large block has its entry where it begins.
        let bytes = if span.kind() == Kind::Slab { span.bytes() } else { 0 };
        let last = span.base().to_bits() + bytes.saturating_sub(1);
        let granules = granule_of(span.base())..=granule_of(Address::from_bits(last));
        for granule in granules.take(LOOKASIDE_ENTRIES) {
            let known = self.entry(Address::from_bits(granule * GRANULE as u64));
            if ptr::eq(known.states.get(), span.states()) {
                known.count.set(0);
            }
        }
    }
}
