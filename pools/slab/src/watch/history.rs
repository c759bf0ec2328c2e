//! [`History`]: the last events of each thread, in a ring that only it writes.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;

use umf_core::history::{Event, EventKind, PoolHistory};
use umf_core::metadata::Slot;
use umf_core::{Address, PastFree};
use umf_sync::chunks::{Chunks, Zeroed};
use umf_sync::thread;

use crate::SlabPool;
use crate::arena::Arena;

/// The ring of a thread number: of the thread that has it, and of those that had it before.
struct Ring {
    /// Null until something is written.
    slots: AtomicPtr<Slot>,
    next: AtomicU64,
}

// SAFETY: zeros are a ring without memory.
unsafe impl Zeroed for Ring {}

/// What happened.
pub(crate) struct History {
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
    fn slots(&self, length: u32) -> &[Slot] {
        let slots = self.slots.load(Ordering::Acquire);
        if slots.is_null() {
            return &[];
        }
        // SAFETY: `equip` stored a run of that many slots, zeroed before, which stays the ring's while the pool lives.
        unsafe { core::slice::from_raw_parts(slots, length as usize) }
    }

    /// Its slots, which it gets if it has none.
    fn equip(&self, arena: &Arena, length: u32) -> Option<&[Slot]> {
        if self.slots.load(Ordering::Acquire).is_null() {
            let bytes = length as usize * size_of::<Slot>();
            let (run, place) = arena.allocate(bytes).ok()?;
            // SAFETY: the run is ours, and at least that long.
            unsafe { place.as_ptr().write_bytes(0, bytes) };
            let place = place.as_ptr().cast();
            if self
                .slots
                .compare_exchange(ptr::null_mut(), place, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
            {
                arena.release(run);
            }
        }
        Some(self.slots(length))
    }
}

impl History {
    pub(crate) const fn new(length: u32) -> Self {
        Self { length, rings: Chunks::new(), others: Ring::new() }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.length > 0
    }

    /// Writes an event. One for which there is no memory is forgotten at once.
    pub(crate) fn record(&self, arena: &Arena, event: &Event) {
        let own = thread::current().and_then(|index| self.rings.get_or_grow(index.get()).ok());
        let ring = own.unwrap_or(&self.others);
        let position = ring.next.fetch_add(1, Ordering::Relaxed);
        if let Some(slots) = ring.equip(arena, self.length)
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
    pub(crate) fn last_free(&self, address: Address, now: Duration) -> Option<PastFree> {
        let of_block = |event: &Event| {
            event.address == address && matches!(event.kind, EventKind::Allocate | EventKind::Free)
        };
        let last = self.events().filter(of_block).max_by_key(|event| event.at)?;
        let past = PastFree { thread: last.thread, ago: now.saturating_sub(last.at) };
        (last.kind == EventKind::Free).then_some(past)
    }
}

impl SlabPool {
    pub(crate) fn read_history(&self) -> Option<PoolHistory> {
        let history = &self.watch.history;
        if !history.is_on() {
            return None;
        }
        // First: what is written meanwhile is not missing among the forgotten.
        let written: u64 = history.rings().map(|ring| ring.next.load(Ordering::Relaxed)).sum();
        let mut events: Vec<Event> = history.events().collect();
        events.sort_by_key(|event| event.at);
        Some(PoolHistory {
            pool: self.settings.name.as_str().to_owned(),
            read_at: self.watch.now(),
            forgotten: written.saturating_sub(events.len() as u64),
            events,
        })
    }
}
