//! What this side does for the peer: requests for ranges that are registered here. Whatever is asked for is held against the registry,
//! so that nothing outside of a range is read or written, whatever the peer does.

use core::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

use umf_core::Access;
use umf_sync::failpoint;

use super::calls::{DONE, EXPIRED, FAILED, NOT_ALLOWED, OUTSIDE, WITHDRAWN, answer, number};
use super::registry::Registry;
use super::{Span, Way};
use crate::Result;
use crate::layout::{self, ANSWERING, CALL_BYTES, CALL_SPANS, CALLS};
use crate::parts::Cursor;
use crate::protocol::{self, Load, Offered};
use crate::shared::Shared;

impl Shared {
    /// Does what the peer asks for of registered ranges. Costs a look at a word of this process where nothing is registered.
    #[inline(always)]
    pub(crate) fn serve(&self) -> Result<()> {
        if self.has_ranges.load(Ordering::Relaxed) { self.serve_calls() } else { Ok(()) }
    }

    /// What is said of the next request, if it is there.
    fn asked(&self, call: u64) -> Option<Offered> {
        let now = self.theirs.word(layout::asked(call)).load(Ordering::Acquire);
        [Offered::Open, Offered::Withdrawn]
            .into_iter()
            .find(|said| protocol::offered(number(call), *said) == now)
    }

    fn serve_calls(&self) -> Result<()> {
        // No more than there can be at a time: who asks without end keeps nobody from what it was about.
        for _ in 0..CALLS {
            if self.asked(self.next_call.load(Ordering::Relaxed)).is_none() {
                break;
            }
            let registry = match self.registry.try_lock() {
                Ok(registry) => registry,
                Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
                // Another thread does it, or will be asked to.
                Err(TryLockError::WouldBlock) => return Ok(()),
            };
            // It may be another one by now.
            let call = self.next_call.load(Ordering::Relaxed);
            let Some(asked) = self.asked(call) else { return Ok(()) };
            self.populate(ANSWERING)?;
            let status = match asked {
                Offered::Open => self.carry_out(&registry, call),
                Offered::Withdrawn => WITHDRAWN,
            };
            self.mine.word(layout::answer(call)).store(answer(call, status), Ordering::Release);
            self.next_call.store(call + 1, Ordering::Relaxed);
            drop(registry);
            failpoint!("link.served");
            self.notify();
        }
        Ok(())
    }

    fn carry_out(&self, registry: &Registry, call: u64) -> u64 {
        let word = |at| self.theirs.word(at).load(Ordering::Relaxed);
        let [asked, generation] = [0, 1].map(|number| word(layout::asked_word(call, number)));
        let (slot, count) = ((asked >> 8 & 0xffff) as usize, (asked >> 32) as usize);
        let way = match asked & 0xff {
            1 => Way::Get,
            2 => Way::Put,
            _ => return NOT_ALLOWED,
        };
        let Some(range) = registry.find(slot, generation) else { return EXPIRED };
        let is_allowed = if way == Way::Get { range.access.allows_get() } else { range.access.allows_put() };
        if !is_allowed {
            return NOT_ALLOWED;
        }
        // Read once, and then checked: the peer may write them meanwhile.
        let mut spans = [Span { offset: 0, length: 0 }; CALL_SPANS];
        let Some(spans) = spans.get_mut(..count) else { return OUTSIDE };
        let mut length = 0_usize;
        for (index, span) in spans.iter_mut().enumerate() {
            let at = layout::asked_span(call, index);
            let [offset, bytes] =
                [word(at), word(at + 8)].map(|value| usize::try_from(value).unwrap_or(usize::MAX));
            *span = Span { offset, length: bytes };
            length = length.saturating_add(bytes);
            let fits = offset.checked_add(bytes).is_some_and(|end| end <= range.list.len());
            if !fits || length > CALL_BYTES {
                return OUTSIDE;
            }
        }
        let access = if way == Way::Get { Access::ReadOnly } else { Access::ReadWrite };
        let Ok(time) = range.list.touch(access) else { return FAILED };
        let mut from = self.theirs.bytes(layout::asked_bytes(call), CALL_BYTES);
        let mut to = self.mine.bytes(layout::answer_bytes(call), CALL_BYTES).as_ptr();
        for span in &*spans {
            let mut here = Cursor::at(range.list.parts(), span.offset);
            match way {
                // SAFETY: inside of the range, as was just checked, which is there as long as it is in the registry, whose lock is held;
                // and the bytes of the answer in this side's lane, of which all spans together have no more.
                Way::Get => unsafe { here.copy_out(to, span.length) },
                // SAFETY: as above.
                Way::Put => unsafe { here.copy_in(from, span.length) },
            }
            from = from.wrapping_add(span.length);
            to = to.wrapping_add(span.length);
        }
        drop(time);
        self.served[0].fetch_add(1, Ordering::Relaxed);
        self.served[1].fetch_add(length as u64, Ordering::Relaxed);
        DONE
    }
}
