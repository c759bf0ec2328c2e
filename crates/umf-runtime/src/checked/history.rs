//! [`History`]: the last events of each thread, in a ring that only it writes.

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

/// The ring of a thread number: of the thread that has it, and of those that had it before.
struct Ring {
    /// Null until something is written.
    slots: AtomicPtr<RingSlot>,
    next: AtomicU64,
}

// SAFETY: zeros are a ring without memory.
unsafe impl Zeroable for Ring {}

/// The latest events.
pub(super) struct History {
    /// Events per thread; 0: none.
    length: u32,
    rings: Chunks<Ring>,
    /// Of threads without a number.
    others: Ring,
}

impl Ring {
    const fn new() -> Self {
        Self { slots: AtomicPtr::new(ptr::null_mut()), next: AtomicU64::new(0) }
    }

    /// Its slots, if it has any.
    fn slots(&self, length: u32) -> &[RingSlot] {
        let slots = self.slots.load(Ordering::Acquire);
        if slots.is_null() {
            return &[];
        }
        // SAFETY: `equip` stored so many slots, zeroed, which go with the history.
        unsafe { core::slice::from_raw_parts(slots, length as usize) }
    }

    /// Its slots, which it gets if it has none.
    fn equip(&self, length: u32) -> Option<&[RingSlot]> {
        if self.slots.load(Ordering::Acquire).is_null() {
            let layout = Layout::array::<RingSlot>(length as usize).ok()?;
            let made = Mapped.allocate_zeroed(layout).ok()?.cast::<RingSlot>();
            let null = ptr::null_mut();
            let set = self.slots.compare_exchange(null, made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
            if set.is_err() {
                // SAFETY: allocated above, and no other thread has seen it.
                unsafe { Mapped.deallocate(made.cast(), layout) };
            }
        }
        Some(self.slots(length))
    }
}

impl History {
    pub(super) const fn new(length: u32) -> Self {
        Self { length, rings: Chunks::new(), others: Ring::new() }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.length > 0
    }

    /// Writes an event. One for which there is no memory is forgotten at once.
    pub(super) fn record(&self, event: &Event) {
        let own = thread::current().and_then(|index| self.rings.get_or_grow(index.get()).ok());
        let ring = own.unwrap_or(&self.others);
        let position = ring.next.fetch_add(1, Ordering::Relaxed);
        if let Some(slots) = ring.equip(self.length)
            && let Some(slot) = slots.get((position % u64::from(self.length)) as usize)
        {
            slot.write(position, event.to_words());
        }
    }

    fn rings(&self) -> impl Iterator<Item = &Ring> {
        (0..thread::end()).filter_map(|index| self.rings.get(index)).chain([&self.others])
    }

    fn events(&self) -> impl Iterator<Item = Event> {
        let slots = self.rings().flat_map(|ring| ring.slots(self.length));
        slots.filter_map(|slot| Event::from_words(slot.read()?.1))
    }

    /// The last free of what began at an address, as far as it is remembered. Allocates nothing.
    pub(super) fn last_free(&self, address: Address, now: Duration) -> Option<PastFree> {
        let of_block = |event: &Event| {
            event.address == address && matches!(event.kind, EventKind::Allocate | EventKind::Free)
        };
        let last = self.events().filter(of_block).max_by_key(|event| event.at)?;
        let past = PastFree { thread: last.thread, ago: now.saturating_sub(last.at) };
        (last.kind == EventKind::Free).then_some(past)
    }

    /// All events; `None` if none are kept.
    pub(super) fn read(&self, pool: &str, now: impl Fn() -> Duration) -> Option<PoolHistory> {
        if !self.is_on() {
            return None;
        }
        // First: what is written meanwhile is not missing among the forgotten.
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
                // SAFETY: `equip` allocated it so, and nothing refers to the history any more.
                unsafe { Mapped.deallocate(slots.cast(), layout) };
            }
        }
    }
}
