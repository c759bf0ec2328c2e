//! [`Central`]: what all threads share of one class, under the class's lock.
//!
//! (What threads free of each other's goes past it, in the `depot`, as long as somebody takes it there.)
//!
//! Small classes: slabs, with a bit per block. A slab with some blocks free is at *home* with one thread, which alone
//! takes from it, so that the states of neighbouring blocks are written by one processor; or with nobody, where the
//! next thread that needs blocks takes it over. Large classes: a stack of free blocks.

use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::Address;
use umf_runtime::tracker;

use crate::caches::Caches;
use crate::metadata::Metadata;
use crate::reach::thread_word;
use crate::span::{Cold, Entry};

/// The list that a slab is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListName(u32);

impl ListName {
    /// None.
    pub(crate) const NONE: Self = Self(0);
    /// Slabs whose blocks are all free.
    const EMPTY: Self = Self(1);
    /// Slabs with some blocks free that are at home with nobody.
    pub(crate) const UNOWNED: Self = Self(2);

    /// Slabs with some blocks free that are at home with thread number `index`.
    const fn home(index: u32) -> Self {
        Self(index + 3)
    }
}

/// What the methods of [`Central`] work on.
#[derive(Clone, Copy)]
pub(crate) struct Slabs<'a> {
    pub(crate) spans: &'a Metadata,
    pub(crate) caches: &'a Caches,
    pub(crate) class: usize,
}

/// Who takes blocks: the number of the thread, and whether it alone frees them, as far as can be foreseen.
#[derive(Clone, Copy)]
pub(crate) struct Taker {
    pub(crate) index: u32,
    pub(crate) alone: bool,
}

/// Slabs and buffered blocks of one class.
pub(crate) struct Central {
    homeless: u32,
    empty: u32,
    empties: u32,
    buffer: *mut Entry,
    buffered: usize,
    room: usize,
    /// The least that there were of empty slabs, and of buffered blocks, since the last look.
    least_empties: u32,
    least_buffered: usize,
    /// Allocations and frees by threads without a number.
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
}

// SAFETY: the buffer belongs to this value alone.
unsafe impl Send for Central {}

impl<'a> Slabs<'a> {
    fn cold(self, number: u32) -> Option<&'a mut Cold> {
        // SAFETY: the callers are methods of `Central`, which its lock guards; the spans in its lists, and those of
        // the blocks that it is given, are slabs of its class. Each reference is used before the next is made.
        self.spans.span(number).filter(|_| number != 0).map(|span| unsafe { span.cold() })
    }

    /// Whether a list is that of a thread that is not there any more.
    fn is_away(self, list: ListName) -> bool {
        let cache = list.0.checked_sub(3).and_then(|index| self.caches.get(index));
        cache.is_some_and(|cache| cache.away.load(Ordering::Relaxed))
    }

    fn home(self, index: u32) -> Option<&'a AtomicU32> {
        self.caches.get(index).map(|cache| cache.home(self.class))
    }
}

impl Central {
    pub(crate) const fn new() -> Self {
        Self {
            homeless: 0,
            empty: 0,
            empties: 0,
            buffer: ptr::null_mut(),
            buffered: 0,
            room: 0,
            least_empties: 0,
            least_buffered: 0,
            allocations: 0,
            frees: 0,
        }
    }

    fn head(&self, slabs: Slabs<'_>, list: ListName) -> u32 {
        match list {
            ListName::NONE => 0,
            ListName::EMPTY => self.empty,
            ListName::UNOWNED => self.homeless,
            ListName(home) => slabs.home(home - 3).map_or(0, |head| head.load(Ordering::Relaxed)),
        }
    }

    fn set_head(&mut self, slabs: Slabs<'_>, list: ListName, number: u32) {
        match list {
            ListName::NONE => {}
            ListName::EMPTY => self.empty = number,
            ListName::UNOWNED => self.homeless = number,
            ListName(home) => {
                if let Some(head) = slabs.home(home - 3) {
                    head.store(number, Ordering::Relaxed);
                }
            }
        }
    }

    fn push(&mut self, slabs: Slabs<'_>, list: ListName, number: u32) {
        let next = self.head(slabs, list);
        if let Some(cold) = slabs.cold(number) {
            (cold.prev, cold.next, cold.list) = (0, next, list);
        }
        if let Some(next) = slabs.cold(next) {
            next.prev = number;
        }
        self.set_head(slabs, list, number);
        if list == ListName::EMPTY {
            self.empties += 1;
        }
    }

    fn unlink(&mut self, slabs: Slabs<'_>, number: u32) {
        let Some(cold) = slabs.cold(number) else { return };
        let (next, prev, list) = (cold.next, cold.prev, core::mem::replace(&mut cold.list, ListName::NONE));
        if let Some(next) = slabs.cold(next) {
            next.prev = prev;
        }
        match slabs.cold(prev) {
            Some(prev) => prev.next = next,
            None => self.set_head(slabs, list, next),
        }
        if list == ListName::EMPTY {
            self.empties -= 1;
            self.least_empties = self.least_empties.min(self.empties);
        }
    }

    pub(crate) const fn has_buffer(&self) -> bool {
        self.room != 0
    }

    pub(crate) const fn buffered(&self) -> usize {
        self.buffered
    }

    /// Gives the buffer its memory.
    ///
    /// # Safety
    /// `buffer` has room for `room` entries that nobody else uses as long as the pool lives.
    pub(crate) unsafe fn equip(&mut self, buffer: *mut Entry, room: usize) {
        self.buffer = buffer;
        self.room = room;
    }

    /// Moves up to `want` buffered blocks to `out`, and yields how many.
    ///
    /// # Safety
    /// `out` has room for `want` entries.
    pub(crate) unsafe fn take_buffered(&mut self, out: *mut Entry, want: usize) -> usize {
        let n = want.min(self.buffered);
        if n > 0 {
            self.buffered -= n;
            self.least_buffered = self.least_buffered.min(self.buffered);
            // SAFETY: the buffer holds `n` entries from `buffered` on, and `out` has room for them.
            unsafe { ptr::copy_nonoverlapping(self.buffer.add(self.buffered), out, n) };
        }
        n
    }

    /// How many empty slabs were used since the last look.
    pub(crate) const fn used_empties(&self) -> u32 {
        self.empties - self.least_empties
    }

    /// The time from here on counts.
    pub(crate) const fn look_again(&mut self) {
        self.least_empties = self.empties;
        self.least_buffered = self.buffered;
    }

    /// Moves up to `room` buffered blocks to `out` that were not used since the last look, and yields how many.
    ///
    /// # Safety
    /// `out` has room for `room` entries.
    pub(crate) unsafe fn take_unused(&mut self, out: *mut Entry, room: usize) -> usize {
        let n = room.min(self.least_buffered);
        if n > 0 {
            self.buffered -= n;
            self.least_buffered -= n;
            // SAFETY: the buffer held `n` entries and `buffered` more, and `out` has room for `n`.
            unsafe {
                ptr::copy_nonoverlapping(self.buffer, out, n);
                ptr::copy(self.buffer.add(n), self.buffer, self.buffered);
            }
        }
        n
    }

    /// Buffers as many of the blocks as there is room for, and yields how many.
    pub(crate) fn put_buffered(&mut self, entries: &[Entry]) -> usize {
        let n = entries.len().min(self.room - self.buffered);
        if n > 0 {
            // SAFETY: there is room for `n` entries from `buffered` on.
            unsafe { ptr::copy_nonoverlapping(entries.as_ptr(), self.buffer.add(self.buffered), n) };
            self.buffered += n;
        }
        n
    }

    /// Moves up to `want` blocks from slabs to `out`. Yields how many.
    ///
    /// # Safety
    /// `out` has room for `want` entries.
    pub(crate) unsafe fn take(
        &mut self,
        slabs: Slabs<'_>,
        taker: Option<Taker>,
        out: *mut Entry,
        want: usize,
    ) -> usize {
        let home = taker.map_or(ListName::UNOWNED, |taker| ListName::home(taker.index));
        let mut n = 0;
        while n < want {
            let number = self.pick(slabs, taker, home);
            let Some((span, cold)) = slabs.spans.span(number).zip(slabs.cold(number)) else { break };
            let words = cold.total.div_ceil(64);
            while n < want && cold.free > 0 {
                // SAFETY: the bitmap of a slab has `words` words, and `hint` lies below.
                let word = unsafe { &mut *cold.bitmap.add(cold.hint as usize) };
                if *word == 0 {
                    cold.hint = (cold.hint + 1) % words;
                    continue;
                }
                let index = u64::from(cold.hint * 64 + word.trailing_zeros());
                *word &= *word - 1;
                cold.free -= 1;
                // SAFETY: set bits are blocks of the slab; `out` has room for `want` entries.
                unsafe { out.add(n).write(span.entry(index)) };
                n += 1;
            }
            if cold.free == 0 {
                self.unlink(slabs, number);
            }
        }
        n
    }

    /// A slab with blocks free, in the taker's list; 0 if there is none.
    fn pick(&mut self, slabs: Slabs<'_>, taker: Option<Taker>, home: ListName) -> u32 {
        for list in [home, ListName::UNOWNED, ListName::EMPTY] {
            let number = self.head(slabs, list);
            if number == 0 {
                continue;
            }
            if list != home {
                self.unlink(slabs, number);
                self.push(slabs, home, number);
                if let Some((span, cold)) = slabs.spans.span(number).zip(slabs.cold(number)) {
                    cold.owner_list = home;
                    span.owner.store(taker.map_or(0, |taker| thread_word(taker.index)), Ordering::Relaxed);
                }
            }
            if list == ListName::EMPTY
                && let Some((span, taker)) = slabs.spans.span(number).zip(taker)
                && taker.alone
            {
                // No block of it is live, so no free is under way that would have to be waited for.
                span.bias.store(thread_word(taker.index), Ordering::Relaxed);
            }
            return number;
        }
        0
    }

    /// Adds a new slab, whose blocks are all free.
    pub(crate) fn add_slab(&mut self, slabs: Slabs<'_>, number: u32) {
        self.push(slabs, ListName::EMPTY, number);
    }

    /// Puts blocks back into their slabs.
    pub(crate) fn put(&mut self, slabs: Slabs<'_>, entries: &[Entry]) {
        for entry in entries {
            let address = Address::from_bits(entry.address);
            let Some((_, number)) = tracker::span(address) else { continue };
            let Some(span) = slabs.spans.span(number) else { continue };
            let Some(place) = span.locate_start(number, address) else { continue };
            let Some(cold) = slabs.cold(number) else { continue };
            // SAFETY: the index is that of a block of the slab, whose bitmap has a bit for each.
            unsafe { *cold.bitmap.add((place.index / 64) as usize) |= 1 << (place.index % 64) };
            cold.free += 1;
            if slabs.is_away(cold.owner_list) {
                cold.owner_list = ListName::UNOWNED;
            }
            let (free, total, home) = (cold.free, cold.total, cold.owner_list);
            if free == total {
                // A thread whose frees alone met this slab is not inside now: the last of its blocks came from there,
                // by itself or while it was kept out.
                slabs.caches.disown(span);
                self.unlink(slabs, number);
                self.push(slabs, ListName::EMPTY, number);
            } else if free == 1 {
                cold.hint = (place.index / 64) as u32;
                self.push(slabs, home, number);
            }
        }
    }

    /// Takes the slabs of a thread from it, for others to use.
    pub(crate) fn leave_home(&mut self, slabs: Slabs<'_>, index: u32) {
        loop {
            let number = self.head(slabs, ListName::home(index));
            if number == 0 {
                return;
            }
            self.unlink(slabs, number);
            self.push(slabs, ListName::UNOWNED, number);
            if let Some((span, cold)) = slabs.spans.span(number).zip(slabs.cold(number)) {
                cold.owner_list = ListName::UNOWNED;
                span.owner.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Takes the empty slabs beyond `capacity` out, and yields the first of their chain (linked by `next`).
    pub(crate) fn trim(&mut self, slabs: Slabs<'_>, capacity: u32) -> u32 {
        let mut doomed = 0;
        while self.empties > capacity && self.empty != 0 {
            let number = self.empty;
            self.unlink(slabs, number);
            if let Some(cold) = slabs.cold(number) {
                cold.next = core::mem::replace(&mut doomed, number);
            }
        }
        doomed
    }
}
