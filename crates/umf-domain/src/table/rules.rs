//! [`Rules`]: how the table changes.

use core::sync::atomic::Ordering;

use umf_sync::failpoint;

use super::layout::{HEADER_SIZE, PLACES, SLOT_SIZE, Slot};
use super::{Table, bits};
use crate::arbiter::Turn;
use crate::number::{Number, Reuse};
use crate::sys::{self, File};

/// Access to the table of somebody who holds the domain's arbiter.
///
/// Every change ends with the one store that makes it so. Whoever dies before that store has changed nothing that anybody
/// looks at, but for a registrant's bit: that is the business of [`Rules::reclaim`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'t> {
    table: &'t Table,
}

/// What the table says about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: u32,
    pub file: File,
}

/// An object with how many are registered for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub number: Number,
    pub entry: Entry,
    pub registrants: u32,
}

/// Why something did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    WrongDomain,
    NoSuchNumber,
    /// The object has this one.
    WrongKind(u32),
    NotRegistered,
}

/// Why there is no further object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// All slots are used.
    Full,
    /// There is no memory for a further slot.
    NoMemory(rustix::io::Errno),
}

/// Slots get their pages so many at a time.
const RESERVE: u32 = 256;

impl<'t> Rules<'t> {
    pub(crate) const fn new(table: &'t Table, _turn: &Turn) -> Self {
        Self { table }
    }

    /// Of a table that nobody else has.
    #[cfg(test)]
    pub(super) const fn alone(table: &'t Table) -> Self {
        Self { table }
    }

    /// Takes a place for a new participant. Nobody has it: who had it before is dead.
    pub(crate) fn enter(&self, place: u16, nonce: [u64; 2]) {
        self.reclaim(place);
        let header = self.table.header();
        let Some(here) = header.places.get(usize::from(place)) else { return };
        here.nonce[0].store(nonce[0], Ordering::Relaxed);
        here.nonce[1].store(nonce[1], Ordering::Relaxed);
        failpoint!("domain.place_named");
        bits::set(&header.occupied, usize::from(place));
        failpoint!("domain.place_taken");
    }

    /// Ends all registrations of a participant that is dead, and objects that nobody is registered for any more. Whoever
    /// dies while doing so leaves the rest to the next one, because the place stays occupied to the end.
    pub(crate) fn reclaim(&self, place: u16) {
        let header = self.table.header();
        for number in bits::members(&header.used) {
            let Some(slot) = self.table.slot(number) else {
                bits::clear(&header.used, number);
                continue;
            };
            bits::clear(&slot.registrants, usize::from(place));
            failpoint!("domain.reclaiming");
            if bits::is_empty(&slot.registrants) {
                bits::clear(&header.used, number);
            }
        }
        bits::clear(&header.occupied, usize::from(place));
        failpoint!("domain.reclaimed");
    }

    /// A new object, whose creator is registered by that.
    pub(crate) fn create(&self, place: u16, entry: &Entry) -> Result<Number, NoRoom> {
        let table = self.table;
        let header = table.header();
        let number = bits::first_missing(&header.used).ok_or(NoRoom::Full)?;
        let slot = table.slot(number).ok_or(NoRoom::Full)?;
        self.reserve(number as u32)?;
        let reuse = match slot.reuse.load(Ordering::Relaxed) {
            0 => Reuse::from_bits(header.incarnation.load(Ordering::Relaxed)),
            before => Reuse::from_bits(before).next(),
        };
        slot.reuse.store(reuse.bits(), Ordering::Relaxed);
        slot.size.store(entry.file.size, Ordering::Relaxed);
        slot.device.store(entry.file.device, Ordering::Relaxed);
        slot.inode.store(entry.file.inode, Ordering::Relaxed);
        slot.kind.store(entry.kind, Ordering::Relaxed);
        for word in &slot.registrants {
            word.store(0, Ordering::Relaxed);
        }
        failpoint!("domain.slot_filled");
        bits::set(&slot.registrants, usize::from(place));
        failpoint!("domain.creator_entered");
        bits::set(&header.used, number);
        failpoint!("domain.created");
        Ok(Number::new(number as u16, table.tag(), reuse))
    }

    /// Touching a page that is a hole is SIGBUS where no memory is left.
    fn reserve(&self, number: u32) -> Result<(), NoRoom> {
        let reserved = self.table.header().reserved_slots.load(Ordering::Relaxed).min(self.table.capacity);
        if number < reserved {
            return Ok(());
        }
        let end = number.saturating_add(RESERVE).min(self.table.capacity);
        let at = |slot: u32| HEADER_SIZE as u64 + u64::from(slot) * SLOT_SIZE as u64;
        sys::reserve(&*self.table.file, at(reserved), at(end) - at(reserved)).map_err(NoRoom::NoMemory)?;
        self.table.header().reserved_slots.store(end, Ordering::Relaxed);
        failpoint!("domain.table_grown");
        Ok(())
    }

    fn find(&self, number: Number) -> Result<&'t Slot, Refused> {
        if number.tag() != self.table.tag() {
            return Err(Refused::WrongDomain);
        }
        let place = usize::from(number.slot());
        let slot = self.table.slot(place).ok_or(Refused::NoSuchNumber)?;
        let current = bits::has(&self.table.header().used, place)
            && slot.reuse.load(Ordering::Relaxed) == number.reuse().bits()
            && !bits::is_empty(&slot.registrants);
        if current { Ok(slot) } else { Err(Refused::NoSuchNumber) }
    }

    fn entry(slot: &Slot) -> Entry {
        Entry {
            kind: slot.kind.load(Ordering::Relaxed),
            file: File {
                device: slot.device.load(Ordering::Relaxed),
                inode: slot.inode.load(Ordering::Relaxed),
                size: slot.size.load(Ordering::Relaxed),
            },
        }
    }

    /// Whether there is an object with this number.
    pub(crate) fn check(&self, number: Number) -> Result<(), Refused> {
        self.find(number).map(drop)
    }

    /// What an object is, and the places of all that are registered for it.
    pub(crate) fn look_up(&self, number: Number, kind: u32) -> Result<(Entry, Vec<u16>), Refused> {
        let slot = self.find(number)?;
        let entry = Self::entry(slot);
        if entry.kind != kind {
            return Err(Refused::WrongKind(entry.kind));
        }
        let places = bits::members(&slot.registrants).map(|place| place as u16).collect();
        Ok((entry, places))
    }

    /// Returns the object of this kind with the lowest slot. Its registrants may be dead.
    pub(crate) fn first_of_kind(&self, kind: u32) -> Option<Number> {
        bits::members(&self.table.header().used).find_map(|number| {
            let slot = self.table.slot(number)?;
            let is_found = slot.kind.load(Ordering::Relaxed) == kind && !bits::is_empty(&slot.registrants);
            let reuse = Reuse::from_bits(slot.reuse.load(Ordering::Relaxed));
            is_found.then(|| Number::new(number as u16, self.table.tag(), reuse))
        })
    }

    /// Registers a participant; if it is registered already, nothing changes.
    pub(crate) fn register(&self, place: u16, number: Number, kind: u32) -> Result<Entry, Refused> {
        let slot = self.find(number)?;
        let entry = Self::entry(slot);
        if entry.kind != kind {
            return Err(Refused::WrongKind(entry.kind));
        }
        bits::set(&slot.registrants, usize::from(place));
        failpoint!("domain.registered");
        Ok(entry)
    }

    /// Ends a registration; the last one out destroys the object.
    pub(crate) fn unregister(&self, place: u16, number: Number) -> Result<(), Refused> {
        let slot = self.find(number)?;
        if !bits::has(&slot.registrants, usize::from(place)) {
            return Err(Refused::NotRegistered);
        }
        bits::clear(&slot.registrants, usize::from(place));
        failpoint!("domain.unregistered");
        if bits::is_empty(&slot.registrants) {
            bits::clear(&self.table.header().used, usize::from(number.slot()));
            failpoint!("domain.destroyed");
        }
        Ok(())
    }

    /// All objects, by slot.
    pub(crate) fn objects(&self) -> Vec<Listed> {
        let listed = |number: usize| {
            let slot = self.table.slot(number)?;
            let reuse = Reuse::from_bits(slot.reuse.load(Ordering::Relaxed));
            let registrants = bits::count(&slot.registrants).min(u32::from(PLACES));
            let number = Number::new(number as u16, self.table.tag(), reuse);
            (registrants > 0).then(|| Listed { number, entry: Self::entry(slot), registrants })
        };
        bits::members(&self.table.header().used).filter_map(listed).collect()
    }
}
