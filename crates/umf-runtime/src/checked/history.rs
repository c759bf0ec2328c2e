//! [`History`]: the latest events of each thread, in a ring that only this thread writes.

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;

use allocator_api2::alloc::Allocator;
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::thread;

use crate::metadata::{Mapped, RingSlot};
use umf_core::history::{Event, EventKind, PoolHistory};
use umf_core::{Address, PastFree};

/// The ring of a thread index: events of the thread that has the index, and of earlier ones.
struct Ring {
    /// Null before the first event.
    slots: AtomicPtr<RingSlot>,
    next: AtomicU64,
}

// SAFETY: zeros are a null pointer and a position, which is a ring without slots.
unsafe impl Zeroable for Ring {}

/// The latest events of a pool.
pub(super) struct History {
    /// Events per thread; 0 if the history is off.
    length: u32,
    rings: Chunks<Ring>,
    /// The ring that threads without an index share.
    shared: Ring,
}

impl Ring {
    const fn new() -> Self {
        Self { slots: AtomicPtr::new(ptr::null_mut()), next: AtomicU64::new(0) }
    }

    /// Returns the slots; empty before the first event.
    fn slots(&self, length: u32) -> &[RingSlot] {
        let slots = self.slots.load(Ordering::Acquire);
        if slots.is_null() {
            return &[];
        }
        // SAFETY: `slots_or_allocate` stored a pointer to `length` zeroed slots, which are freed
        // when the history is dropped.
        unsafe { core::slice::from_raw_parts(slots, length as usize) }
    }

    /// Returns the slots, and allocates them if there are none. `None` without memory.
    fn slots_or_allocate(&self, length: u32) -> Option<&[RingSlot]> {
        if self.slots.load(Ordering::Acquire).is_null() {
            let layout = Layout::array::<RingSlot>(length as usize).ok()?;
            let made = Mapped.allocate_zeroed(layout).ok()?.cast::<RingSlot>();
            let null = ptr::null_mut();
            let set = self.slots.compare_exchange(null, made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
            if set.is_err() {
                // SAFETY: the slots were allocated above and never published.
                unsafe { Mapped.deallocate(made.cast(), layout) };
            }
        }
        Some(self.slots(length))
    }
}

impl History {
    pub(super) const fn new(length: u32) -> Self {
        Self { length, rings: Chunks::new(), shared: Ring::new() }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.length > 0
    }

    /// Records an event. Without memory for the ring the event is lost.
    pub(super) fn record(&self, event: &Event) {
        let indexed = thread::current().and_then(|index| self.rings.get_or_grow(index.get()).ok());
        let ring = indexed.unwrap_or(&self.shared);
        let position = ring.next.fetch_add(1, Ordering::Relaxed);
        if let Some(slots) = ring.slots_or_allocate(self.length)
            && let Some(slot) = slots.get((position % u64::from(self.length)) as usize)
        {
            slot.write(position, event.to_words());
        }
    }

    fn rings(&self) -> impl Iterator<Item = &Ring> {
        (0..thread::end()).filter_map(|index| self.rings.get(index)).chain([&self.shared])
    }

    fn events(&self) -> impl Iterator<Item = Event> {
        let slots = self.rings().flat_map(|ring| ring.slots(self.length));
        slots.filter_map(|slot| Event::from_words(slot.read()?.1))
    }

    /// Returns the last free of the block at `address`, if a ring still has it and the block was
    /// not allocated again. Allocates nothing.
    pub(super) fn last_free(&self, address: Address, now: Duration) -> Option<PastFree> {
        let of_block = |event: &Event| {
            event.address == address && matches!(event.kind, EventKind::Allocate | EventKind::Free)
        };
        let last = self.events().filter(of_block).max_by_key(|event| event.at)?;
        let past = PastFree { thread: last.thread, ago: now.saturating_sub(last.at) };
        (last.kind == EventKind::Free).then_some(past)
    }

    /// Returns all events, the earliest first; `None` if the history is off.
    pub(super) fn read(&self, pool: &str, now: impl Fn() -> Duration) -> Option<PoolHistory> {
        if !self.is_on() {
            return None;
        }
        // Read before the events: an event that is recorded meanwhile must not count as forgotten.
        let written: u64 = self.rings().map(|ring| ring.next.load(Ordering::Relaxed)).sum();
        let mut events: Vec<Event> = self.events().collect();
        events.sort_by_key(|event| event.at);
        let forgotten = written.saturating_sub(events.len() as u64);
        Some(PoolHistory { pool: pool.to_owned(), read_at: now(), forgotten, events })
    }
}

impl Drop for History {
    fn drop(&mut self) {
        let Ok(layout) = Layout::array::<RingSlot>(self.length as usize) else { return };
        for ring in self.rings() {
            if let Some(slots) = NonNull::new(ring.slots.swap(ptr::null_mut(), Ordering::AcqRel)) {
                // SAFETY: `slots_or_allocate` allocated the slots with this layout, and no
                // reference to the history is left.
                unsafe { Mapped.deallocate(slots.cast(), layout) };
            }
        }
    }
}
