//! [`Quarantine`]: what is freed waits for a while before anybody gets it again, so that whoever still uses it is found.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use allocator_api2::vec::Vec;
use umf_core::{Address, Result};
use umf_runtime::metadata::Mapped;
use umf_sync::Lock;

use crate::SlabPool;
use crate::span::Place;
use crate::state::{Entry, POISONED, QUARANTINED};

/// First in, first out.
struct Waiting {
    /// Where they are put on.
    back: Vec<(Address, u64), Mapped>,
    /// Where they are taken from, the last first.
    front: Vec<(Address, u64), Mapped>,
    bytes: u64,
}

/// Blocks that wait.
pub(crate) struct Quarantine {
    /// The most bytes; 0: nothing waits.
    most: u64,
    waiting: Lock<Waiting>,
}

impl Waiting {
    fn push(&mut self, address: Address, size: u64) -> bool {
        let has_room = self.back.try_reserve(1).is_ok();
        if has_room {
            self.back.push((address, size));
            self.bytes += size;
        }
        has_room
    }

    fn pop(&mut self) -> Option<Address> {
        if self.front.is_empty() {
            core::mem::swap(&mut self.front, &mut self.back);
            self.front.reverse();
        }
        let (address, size) = self.front.pop()?;
        self.bytes -= size;
        Some(address)
    }
}

impl Quarantine {
    pub(crate) const fn new(most: u64) -> Self {
        let waiting = Waiting { back: Vec::new_in(Mapped), front: Vec::new_in(Mapped), bytes: 0 };
        Self { most, waiting: Lock::new(waiting) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        if self.most == 0 { 0 } else { self.waiting.lock().bytes }
    }

    /// The one that waits longest, if more than `most` bytes wait.
    fn pop_above(&self, most: u64) -> Option<Address> {
        let mut waiting = self.waiting.lock();
        if waiting.bytes > most { waiting.pop() } else { None }
    }
}

impl SlabPool {
    /// What remains of a free that is watched, once the block is known to have been live and is not any more.
    pub(crate) fn put_watched(&self, place: Place<'_>, address: Address) -> Result<()> {
        let (class, size) = (Self::class_of(place), place.span.block());
        let waits = size <= self.watch.quarantine.most;
        let Some(class) = class.map(Some).or(waits.then_some(None)) else { return self.free_direct(place) };
        let poisoned = self.poison(address, size);
        if waits {
            self.forget_held(place.span, class);
            // Before it is there: from then on others may take it out.
            place.state.store(QUARANTINED | poisoned, Ordering::Release);
            if self.watch.quarantine.waiting.lock().push(address, size) {
                match class {
                    Some(class) => self.count_free(class),
                    None => self.direct.remove(size as usize),
                }
                self.end_quarantine(self.watch.quarantine.most);
                return Ok(());
            }
        }
        place.state.store(poisoned, Ordering::Release);
        match class {
            Some(class) => {
                self.put_class(class, Entry::new(address.to_bits(), NonNull::from(place.state)));
                Ok(())
            }
            None => self.free_direct(place),
        }
    }

    /// Lets go of what waits longest until at most `most` bytes do.
    pub(crate) fn end_quarantine(&self, most: u64) {
        while let Some(address) = self.watch.quarantine.pop_above(most) {
            let Some(place) = self.locate(address).filter(|place| place.rest == 0) else { continue };
            let size = place.span.block();
            if place.state.load(Ordering::Acquire) & POISONED != 0
                && self.check_poison(address, size).is_err()
            {
                self.poison(address, size);
            }
            match Self::class_of(place) {
                Some(class) => {
                    place.state.fetch_and(!QUARANTINED, Ordering::AcqRel);
                    self.give(class, &[Entry::new(address.to_bits(), NonNull::from(place.state))]);
                }
                // If the provider refuses it is nobody's, and goes with the pool.
                None => {
                    let _ = self.end_direct(place);
                }
            }
        }
    }
}
