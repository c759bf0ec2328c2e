//! [`Central`]: what all threads share of one class, under the class's lock.
//!
//! In front lies a buffer of free blocks, so that a batch that one thread gives back and another takes is two
//! copies. Behind it are the slabs, with a bit per block.

use core::ptr;

use umf_core::metadata::Table;
use umf_core::{Address, tracker};

use crate::span::Span;
use crate::state::Entry;

/// A doubly linked list of spans.
#[derive(Default)]
struct List {
    head: u32,
}

/// Slabs and buffered blocks of one class.
pub(crate) struct Central {
    /// Slabs with some blocks free; with all blocks free.
    partial: List,
    empty: List,
    empties: u32,
    buffer: *mut Entry,
    buffered: usize,
    room: usize,
    /// Allocations and frees by threads without a number.
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
}

// SAFETY: the buffer belongs to this value alone.
unsafe impl Send for Central {}

#[expect(clippy::mut_from_ref, reason = "the class's lock, not the borrow, makes it exclusive")]
fn cold(spans: &Table<Span>, number: u32) -> Option<&mut crate::span::Cold> {
    // SAFETY: the callers are methods of `Central`, which its lock guards; the spans in its lists, and those of
    // the blocks that it is given, are slabs of its class. Each reference is used before the next is made.
    spans.get(number).map(|span| unsafe { span.cold() })
}

impl List {
    fn push(&mut self, spans: &Table<Span>, number: u32) {
        let next = self.head;
        if let Some(cold) = cold(spans, number) {
            cold.prev = 0;
            cold.next = next;
        }
        if let Some(next) = cold(spans, next).filter(|_| next != 0) {
            next.prev = number;
        }
        self.head = number;
    }

    fn unlink(&mut self, spans: &Table<Span>, number: u32) {
        let Some((next, prev)) = cold(spans, number).map(|cold| (cold.next, cold.prev)) else { return };
        if next != 0
            && let Some(next) = cold(spans, next)
        {
            next.prev = prev;
        }
        if prev == 0 {
            self.head = next;
        } else if let Some(prev) = cold(spans, prev) {
            prev.next = next;
        }
    }
}

impl Central {
    pub(crate) const fn new() -> Self {
        Self {
            partial: List { head: 0 },
            empty: List { head: 0 },
            empties: 0,
            buffer: ptr::null_mut(),
            buffered: 0,
            room: 0,
            allocations: 0,
            frees: 0,
        }
    }

    pub(crate) const fn has_buffer(&self) -> bool {
        self.room != 0
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
            // SAFETY: the buffer holds `n` entries from `buffered` on, and `out` has room for them.
            unsafe { ptr::copy_nonoverlapping(self.buffer.add(self.buffered), out, n) };
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

    /// Moves up to `want` blocks to `out`: buffered ones, then from slabs. Yields how many.
    ///
    /// # Safety
    /// `out` has room for `want` entries.
    pub(crate) unsafe fn take(&mut self, spans: &Table<Span>, out: *mut Entry, want: usize) -> usize {
        // SAFETY: passed on to the caller.
        let mut n = unsafe { self.take_buffered(out, want) };
        while n < want {
            let number = match self.partial.head {
                0 if self.empty.head != 0 => {
                    let number = self.empty.head;
                    self.empty.unlink(spans, number);
                    self.empties -= 1;
                    self.partial.push(spans, number);
                    number
                }
                number => number,
            };
            let Some((span, cold)) = spans.get(number).filter(|_| number != 0).zip(cold(spans, number))
            else {
                break;
            };
            while n < want && cold.free > 0 {
                let words = cold.total.div_ceil(64);
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
                self.partial.unlink(spans, number);
            }
        }
        n
    }

    /// Adds a new slab, whose blocks are all free.
    pub(crate) fn add_slab(&mut self, spans: &Table<Span>, number: u32) {
        self.empty.push(spans, number);
        self.empties += 1;
    }

    /// Puts blocks back into their slabs. Slabs beyond `capacity` that become empty are taken out, and chained
    /// to the list of numbers that `doomed` begins (linked by `next`).
    pub(crate) fn put(&mut self, spans: &Table<Span>, entries: &[Entry], capacity: u32, doomed: &mut u32) {
        for entry in entries {
            let address = Address::from_bits(entry.address);
            let Some((_, number)) = tracker::span(address) else { continue };
            let Some(place) = spans.get(number).and_then(|span| span.locate(number, address)) else {
                continue;
            };
            let Some(cold) = cold(spans, number) else { continue };
            // SAFETY: the index is that of a block of the slab, whose bitmap has a bit for each.
            unsafe { *cold.bitmap.add((place.index / 64) as usize) |= 1 << (place.index % 64) };
            cold.free += 1;
            let (free, total) = (cold.free, cold.total);
            if free == 1 && total > 1 {
                cold.hint = (place.index / 64) as u32;
                self.partial.push(spans, number);
            }
            if free == total {
                if total > 1 {
                    self.partial.unlink(spans, number);
                }
                self.add_slab(spans, number);
                if self.empties > capacity {
                    self.doom(spans, doomed);
                }
            }
        }
    }

    /// Puts the buffered blocks back, and takes out the empty slabs beyond `capacity`, as [`Central::put`] does.
    pub(crate) fn trim(&mut self, spans: &Table<Span>, capacity: u32, doomed: &mut u32) {
        let buffered = core::mem::take(&mut self.buffered);
        if buffered > 0 {
            // SAFETY: the buffer holds that many entries, and `put` does not touch it.
            let entries = unsafe { core::slice::from_raw_parts(self.buffer, buffered) };
            self.put(spans, entries, capacity, doomed);
        }
        while self.empties > capacity && self.empty.head != 0 {
            self.doom(spans, doomed);
        }
    }

    fn doom(&mut self, spans: &Table<Span>, doomed: &mut u32) {
        let number = self.empty.head;
        self.empty.unlink(spans, number);
        self.empties -= 1;
        if let Some(cold) = cold(spans, number) {
            cold.next = *doomed;
            *doomed = number;
        }
    }
}
