//! [`LockedTable`]: the changes of a domain's table.

use core::sync::atomic::Ordering;

use umf_sync::failpoint;

use super::{HEADER_SIZE, MAX_PARTICIPANTS, SLOT_SIZE, Slot, Table, bitmap};
use crate::id::{Generation, ObjectId};
use crate::name::ArbiterGuard;
use crate::sys::{self, SealedFile};

/// Access to the table by a process that holds the domain's arbiter.
///
/// The last store of a change makes it take effect. If a process dies before, at most the bit of a
/// registrant is left, which [`LockedTable::reclaim`] clears.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedTable<'t> {
    table: &'t Table,
}

/// The table's description of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: u32,
    pub file: SealedFile,
}

/// An object with the number of its registrants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedObject {
    pub id: ObjectId,
    pub entry: Entry,
    pub registrants: u32,
}

/// The reason why an object was not found, or not (un)registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupError {
    WrongDomain,
    NoSuchObject,
    /// The object has this kind.
    WrongKind(u32),
    NotRegistered,
}

/// The reason why an object was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateError {
    /// All slots are used.
    Full,
    /// No memory for further slots is available.
    NoMemory(rustix::io::Errno),
}

/// The number of slots whose pages are allocated in one step.
const RESERVE_STEP: u32 = 256;

impl<'t> LockedTable<'t> {
    pub(crate) const fn new(table: &'t Table, _arbiter: &ArbiterGuard) -> Self {
        Self { table }
    }

    /// Returns access to a table that no other process has.
    #[cfg(test)]
    pub(super) const fn unshared(table: &'t Table) -> Self {
        Self { table }
    }

    /// Enters a new participant. The caller has bound the id's socket name, so that a process that
    /// had the id before is dead.
    pub(crate) fn enter(&self, participant: u16, nonce: [u64; 2]) {
        self.reclaim(participant);
        let header = self.table.header();
        let Some(entry) = header.participants.get(usize::from(participant)) else { return };
        entry.nonce[0].store(nonce[0], Ordering::Relaxed);
        entry.nonce[1].store(nonce[1], Ordering::Relaxed);
        failpoint!("domain.place_named");
        bitmap::set(&header.active, usize::from(participant));
        failpoint!("domain.place_taken");
    }

    /// Ends all registrations of a dead participant, and destroys objects without registrants.
    ///
    /// The id stays in use until the last store. If this process dies before, the next one reclaims
    /// the id again.
    pub(crate) fn reclaim(&self, participant: u16) {
        let header = self.table.header();
        for index in bitmap::members(&header.used) {
            let Some(slot) = self.table.slot(index) else {
                bitmap::clear(&header.used, index);
                continue;
            };
            bitmap::clear(&slot.registrants, usize::from(participant));
            failpoint!("domain.reclaiming");
            if bitmap::is_empty(&slot.registrants) {
                bitmap::clear(&header.used, index);
            }
        }
        bitmap::clear(&header.active, usize::from(participant));
        failpoint!("domain.reclaimed");
    }

    /// Creates an object, and registers its creator.
    pub(crate) fn create(&self, participant: u16, entry: &Entry) -> Result<ObjectId, CreateError> {
        let table = self.table;
        let header = table.header();
        let index = bitmap::first_missing(&header.used).ok_or(CreateError::Full)?;
        let slot = table.slot(index).ok_or(CreateError::Full)?;
        self.reserve(index as u32)?;
        let generation = match slot.generation.load(Ordering::Relaxed) {
            0 => Generation::from_bits(header.incarnation.load(Ordering::Relaxed)),
            before => Generation::from_bits(before).next(),
        };
        slot.generation.store(generation.bits(), Ordering::Relaxed);
        slot.size.store(entry.file.size, Ordering::Relaxed);
        slot.device.store(entry.file.device, Ordering::Relaxed);
        slot.inode.store(entry.file.inode, Ordering::Relaxed);
        slot.kind.store(entry.kind, Ordering::Relaxed);
        for word in &slot.registrants {
            word.store(0, Ordering::Relaxed);
        }
        failpoint!("domain.slot_filled");
        bitmap::set(&slot.registrants, usize::from(participant));
        failpoint!("domain.creator_entered");
        bitmap::set(&header.used, index);
        failpoint!("domain.created");
        Ok(ObjectId::new(index as u16, table.tag(), generation))
    }

    /// Allocates the pages of the slot. If no memory is left, a write into a hole raises SIGBUS.
    fn reserve(&self, index: u32) -> Result<(), CreateError> {
        let reserved = self.table.header().reserved_slots.load(Ordering::Relaxed).min(self.table.capacity);
        if index < reserved {
            return Ok(());
        }
        let end = index.saturating_add(RESERVE_STEP).min(self.table.capacity);
        let at = |slot: u32| HEADER_SIZE as u64 + u64::from(slot) * SLOT_SIZE as u64;
        sys::reserve(&*self.table.file, at(reserved), at(end) - at(reserved))
            .map_err(CreateError::NoMemory)?;
        self.table.header().reserved_slots.store(end, Ordering::Relaxed);
        failpoint!("domain.table_grown");
        Ok(())
    }

    fn find(&self, id: ObjectId) -> Result<&'t Slot, LookupError> {
        if id.tag() != self.table.tag() {
            return Err(LookupError::WrongDomain);
        }
        let index = usize::from(id.slot());
        let slot = self.table.slot(index).ok_or(LookupError::NoSuchObject)?;
        let is_current = bitmap::has(&self.table.header().used, index)
            && slot.generation.load(Ordering::Relaxed) == id.generation().bits()
            && !bitmap::is_empty(&slot.registrants);
        if is_current { Ok(slot) } else { Err(LookupError::NoSuchObject) }
    }

    fn entry(slot: &Slot) -> Entry {
        Entry {
            kind: slot.kind.load(Ordering::Relaxed),
            file: SealedFile {
                device: slot.device.load(Ordering::Relaxed),
                inode: slot.inode.load(Ordering::Relaxed),
                size: slot.size.load(Ordering::Relaxed),
            },
        }
    }

    /// Fails if no object has this id.
    pub(crate) fn check(&self, id: ObjectId) -> Result<(), LookupError> {
        self.find(id).map(drop)
    }

    /// Returns the description of an object, and the participant ids of its registrants.
    pub(crate) fn look_up(&self, id: ObjectId, kind: u32) -> Result<(Entry, Vec<u16>), LookupError> {
        let slot = self.find(id)?;
        let entry = Self::entry(slot);
        if entry.kind != kind {
            return Err(LookupError::WrongKind(entry.kind));
        }
        let registrants = bitmap::members(&slot.registrants).map(|id| id as u16).collect();
        Ok((entry, registrants))
    }

    /// Returns the object of this kind with the lowest slot. Its registrants may be dead.
    pub(crate) fn first_of_kind(&self, kind: u32) -> Option<ObjectId> {
        bitmap::members(&self.table.header().used).find_map(|index| {
            let slot = self.table.slot(index)?;
            let is_match = slot.kind.load(Ordering::Relaxed) == kind && !bitmap::is_empty(&slot.registrants);
            let generation = Generation::from_bits(slot.generation.load(Ordering::Relaxed));
            is_match.then(|| ObjectId::new(index as u16, self.table.tag(), generation))
        })
    }

    /// Registers a participant. If it is registered already, nothing changes.
    pub(crate) fn register(&self, participant: u16, id: ObjectId, kind: u32) -> Result<Entry, LookupError> {
        let slot = self.find(id)?;
        let entry = Self::entry(slot);
        if entry.kind != kind {
            return Err(LookupError::WrongKind(entry.kind));
        }
        bitmap::set(&slot.registrants, usize::from(participant));
        failpoint!("domain.registered");
        Ok(entry)
    }

    /// Ends a registration. If it was the last one, the object is destroyed.
    pub(crate) fn unregister(&self, participant: u16, id: ObjectId) -> Result<(), LookupError> {
        let slot = self.find(id)?;
        if !bitmap::has(&slot.registrants, usize::from(participant)) {
            return Err(LookupError::NotRegistered);
        }
        bitmap::clear(&slot.registrants, usize::from(participant));
        failpoint!("domain.unregistered");
        if bitmap::is_empty(&slot.registrants) {
            bitmap::clear(&self.table.header().used, usize::from(id.slot()));
            failpoint!("domain.destroyed");
        }
        Ok(())
    }

    /// Returns all objects with registrants, ordered by slot.
    pub(crate) fn objects(&self) -> Vec<ListedObject> {
        let listed = |index: usize| {
            let slot = self.table.slot(index)?;
            let generation = Generation::from_bits(slot.generation.load(Ordering::Relaxed));
            let registrants = bitmap::count(&slot.registrants).min(u32::from(MAX_PARTICIPANTS));
            let id = ObjectId::new(index as u16, self.table.tag(), generation);
            (registrants > 0).then(|| ListedObject { id, entry: Self::entry(slot), registrants })
        };
        bitmap::members(&self.table.header().used).filter_map(listed).collect()
    }
}
