//! [`Door`]: the producer's side.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use rustix::fs::SealFlags;
use umf_core::lock::Lock;
use umf_core::metadata::Chunks;
use umf_core::step::{Step, step};

use super::layout::{Entry, Header, MAGIC, MARKS, Shape, State, VERSION};
use super::owner::{Owner, Watch};
use crate::identity::Nonce;
use crate::sys::{self, SharedMapping};
use crate::{Error, Result, protocol};

/// The producer's side of its door.
#[derive(Debug)]
pub(crate) struct Door {
    fd: Arc<OwnedFd>,
    front: SharedMapping,
    shape: Shape,
    /// By row: where it is mapped, once it was looked at.
    rows: Chunks<AtomicPtr<AtomicU64>>,
    mappings: Lock<Vec<SharedMapping>>,
    watches: Lock<Watches>,
}

/// The importers that had something open when it was freed, and whose end is waited for.
#[derive(Debug, Default)]
struct Watches {
    known: HashMap<Owner, Watch>,
    /// How many there may be before those are looked for that have ended.
    enough: usize,
}

/// What the rows of one process say of a slot, all in all.
#[derive(Debug)]
struct Count {
    owner: Owner,
    /// Modulo 2^64: what was opened in one thread may have been closed in another.
    sum: u64,
    /// A row could not be looked at: nothing follows from the others.
    is_unknown: bool,
}

/// How often a row is looked at whose owner changes meanwhile. Only somebody who means harm goes on longer.
const TRIES: u32 = 64;

impl Door {
    /// A door for a ledger with this nonce and so many slots.
    pub(crate) fn new(slots: u32, nonce: Nonce) -> Result<Self> {
        let shape = Shape::within(slots, sys::file_size_limit()).ok_or(Error::System {
            call: "ftruncate of the lease table",
            errno: rustix::io::Errno::FBIG,
            hint: "; raise RLIMIT_FSIZE (ulimit -f)",
        })?;
        Self::with_shape(shape, nonce)
    }

    pub(super) fn with_shape(shape: Shape, nonce: Nonce) -> Result<Self> {
        let fd =
            sys::memfd("umf-door", shape.size()).map_err(|errno| Error::system("memfd_create", errno))?;
        step(Step::DoorFileMade);
        sys::reserve(&fd, 0, shape.marks())
            .map_err(|errno| Error::system("fallocate of the lease table", errno))?;
        let size = usize::try_from(shape.front()).unwrap_or(usize::MAX);
        let mut front = SharedMapping::new(&fd, size, true)
            .map_err(|errno| Error::system("mmap of the lease table", errno))?;
        front
            .keep_from_children()
            .map_err(|errno| Error::system("madvise(MADV_DONTFORK) of the lease table", errno))?;
        step(Step::DoorMapped);
        sys::add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| Error::system("sealing of the lease table", errno))?;
        let door = Self {
            fd: Arc::new(fd),
            front,
            shape,
            rows: Chunks::new(),
            mappings: Lock::new(Vec::new()),
            watches: Lock::default(),
        };
        let header = door.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.rows.store(shape.rows, Ordering::Relaxed);
        header.slots.store(shape.slots, Ordering::Relaxed);
        for (word, half) in header.nonce.iter().zip(nonce.halves()) {
            word.store(half, Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
        step(Step::DoorMade);
        Ok(door)
    }

    fn header(&self) -> &Header {
        // SAFETY: the front of a door begins with a header; fields are atomics.
        unsafe { self.front.base().cast().as_ref() }
    }

    fn entry(&self, row: u32) -> &Entry {
        assert!(row < self.shape.rows, "a row of this door");
        let offset = self.shape.entries() as usize + row as usize * size_of::<Entry>();
        // SAFETY: the front has `rows` entries there; fields are atomics.
        unsafe { self.front.base().add(offset).cast().as_ref() }
    }

    fn marks(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.shape.slots, "a slot of this door");
        let offset = self.shape.marks() as usize + slot as usize * 8;
        // SAFETY: the front has `slots` words there.
        unsafe { self.front.base().add(offset).cast().as_ref() }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) const fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// How many rows there are, which the ledger says.
    pub(crate) const fn rows(&self) -> u32 {
        self.shape.rows
    }

    /// Fds of importers that are watched.
    pub(crate) fn watched(&self) -> u64 {
        self.watches.lock().known.values().filter(|watch| matches!(watch, Watch::Pidfd(_))).count() as u64
    }

    /// Closes the fds of importers that can be found again when they are asked about.
    pub(crate) fn stop_watching(&self) {
        self.watches.lock().known.retain(|owner, _| owner.state.is_announced());
    }

    /// Gives the marks of some slots their memory, before these slots are used.
    pub(crate) fn reserve(&self, first: u32, count: u32) -> Result<()> {
        sys::reserve(&self.fd, self.shape.marks() + u64::from(first) * 8, u64::from(count) * 8)
            .map_err(|errno| Error::system("fallocate of the lease table", errno))?;
        step(Step::DoorGrown);
        Ok(())
    }

    /// Whether a living process has the export in this slot open. To be asked after it was retired: then a no is final.
    #[inline]
    pub(crate) fn is_leased(&self, slot: u32) -> bool {
        let marks = protocol::look(self.marks(slot));
        marks != 0 && self.is_leased_by(slot, marks)
    }

    /// Whether somebody has ever opened the slot's export, as far as can be seen just now.
    #[inline]
    pub(crate) fn is_marked(&self, slot: u32) -> bool {
        self.marks(slot).load(Ordering::Relaxed) != 0
    }

    /// Forgets who had the slot open, when it is not leased any more and before it is used again. An importer that puts its
    /// mark there meanwhile does so for a handle that it will find stale.
    fn forget(&self, slot: u32) {
        self.marks(slot).store(0, Ordering::Relaxed);
    }

    #[cold]
    fn is_leased_by(&self, slot: u32, marks: u64) -> bool {
        // Rows that say something, with their owners. Mostly none: what is closed is zero.
        let mut counts: Vec<Count> = Vec::new();
        let used = self.header().rows_used.load(Ordering::Acquire).min(self.shape.rows);
        for first in (0..MARKS).filter(|bit| marks >> bit & 1 != 0) {
            for row in (first..used).step_by(MARKS as usize) {
                if let Some(found) = self.count(row, slot) {
                    match counts.iter_mut().find(|known| known.owner == found.owner) {
                        Some(known) => {
                            known.sum = known.sum.wrapping_add(found.sum);
                            known.is_unknown |= found.is_unknown;
                        }
                        None => counts.push(found),
                    }
                }
            }
        }
        if counts.is_empty() {
            self.forget(slot);
            return false;
        }
        counts.retain(|count| count.sum != 0 || count.is_unknown);
        let mut ended = HashSet::new();
        counts.retain(|count| self.lives(&count.owner) || !ended.insert(count.owner));
        self.take_back(&ended);
        !counts.is_empty()
    }

    /// What a row says of a slot, if that is not nothing.
    fn count(&self, row: u32, slot: u32) -> Option<Count> {
        let entry = self.entry(row);
        let mut tries = 0;
        loop {
            let state = State(entry.state.load(Ordering::Acquire));
            if !state.is_used() {
                return None;
            }
            tries += 1;
            let word = self.word(row, slot).map(|word| word.load(Ordering::Acquire));
            let owner = Owner {
                state,
                start_time: entry.start_time.load(Ordering::Relaxed),
                pidfs_inode: entry.pidfs_inode.load(Ordering::Relaxed),
            };
            core::sync::atomic::fence(Ordering::Acquire);
            let is_unsteady = entry.state.load(Ordering::Relaxed) != state.0;
            if is_unsteady && tries == TRIES {
                return Some(Count { owner, sum: 0, is_unknown: true });
            }
            if !is_unsteady {
                let (sum, is_unknown) = (word.unwrap_or(0), word.is_none());
                return (word != Some(0)).then_some(Count { owner, sum, is_unknown });
            }
        }
    }

    fn word(&self, row: u32, slot: u32) -> Option<&AtomicU64> {
        let place = self.rows.get_or_grow(row).ok()?;
        let mut base = place.load(Ordering::Acquire);
        if base.is_null() {
            base = self.map_row(row, place)?.as_ptr();
        }
        // SAFETY: `base` is a row's mapping, which has a word for each slot and stays as long as the door.
        Some(unsafe { &*base.add(slot as usize) })
    }

    #[cold]
    fn map_row(&self, row: u32, place: &AtomicPtr<AtomicU64>) -> Option<NonNull<AtomicU64>> {
        let mut mappings = self.mappings.lock();
        if let Some(known) = NonNull::new(place.load(Ordering::Acquire)) {
            return Some(known);
        }
        let size = usize::try_from(self.shape.stride()).ok()?;
        let mapped = SharedMapping::at(&self.fd, self.shape.row(row), size, false).and_then(|mut mapping| {
            mapping.keep_from_children()?;
            Ok(mapping)
        });
        match mapped {
            Ok(mapping) => {
                let base = mapping.base().cast();
                mappings.push(mapping);
                place.store(base.as_ptr(), Ordering::Release);
                step(Step::DoorRowMapped);
                Some(base)
            }
            Err(errno) => {
                tracing::warn!(%errno, row, "an importer's leases cannot be read: what it may have open is held");
                None
            }
        }
    }

    /// Whether the owner of a row lives.
    fn lives(&self, owner: &Owner) -> bool {
        let mut watches = self.watches.lock();
        match watches.known.get(owner) {
            Some(watch @ Watch::Pidfd(_)) => {
                let lives = watch.is_alive();
                if !lives {
                    watches.known.remove(owner);
                }
                lives
            }
            Some(Watch::Nothing) if owner.state.is_announced() => true,
            _ => match owner.find() {
                Some(watch) => {
                    self.watch(&mut watches, *owner, watch);
                    true
                }
                None => {
                    watches.known.remove(owner);
                    false
                }
            },
        }
    }

    /// The rows of ended processes go. Whoever claims one empties it first.
    fn take_back(&self, ended: &HashSet<Owner>) {
        if ended.is_empty() {
            return;
        }
        let used = self.header().rows_used.load(Ordering::Acquire).min(self.shape.rows);
        for row in 0..used {
            let owner = self.owner(row);
            if ended.contains(&owner) {
                // Not if somebody else saw it first.
                let _ = self.entry(row).state.compare_exchange(
                    owner.state.0,
                    State::LEFT.0,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                step(Step::RowTakenBack);
            }
        }
    }

    /// An importer in another pid namespace has claimed a row and says so on the socket: `pidfd` is its process.
    pub(crate) fn announce(&self, row: u32, number: u32, pidfd: Option<OwnedFd>) -> bool {
        if row >= self.shape.rows {
            return false;
        }
        let owner = self.owner(row);
        if owner.state != State::announced(number) {
            return false;
        }
        self.watch(&mut self.watches.lock(), owner, pidfd.map_or(Watch::Nothing, Watch::Pidfd));
        step(Step::RowWatched);
        true
    }

    /// Waits for the end of one more process. Of those that ended, or have no row any more (they closed everything, or never
    /// were), some are forgotten when there are many: so there are never more than twice as many as rows.
    fn watch(&self, watches: &mut Watches, owner: Owner, watch: Watch) {
        if watches.known.len() >= watches.enough {
            // Those that ended lose their rows first: of one that had announced itself nobody else would know that it did.
            let ended = watches.known.iter().filter(|(_, watch)| !watch.is_alive());
            let ended: HashSet<Owner> = ended.map(|(owner, _)| *owner).collect();
            self.take_back(&ended);
            let used = self.header().rows_used.load(Ordering::Acquire).min(self.shape.rows);
            let owners: HashSet<Owner> = (0..used).map(|row| self.owner(row)).collect();
            watches.known.retain(|owner, _| owners.contains(owner) && !ended.contains(owner));
            watches.enough = (watches.known.len() * 2).max(16);
        }
        watches.known.insert(owner, watch);
    }

    /// Whose a row is said to be.
    fn owner(&self, row: u32) -> Owner {
        let entry = self.entry(row);
        Owner {
            state: State(entry.state.load(Ordering::Acquire)),
            start_time: entry.start_time.load(Ordering::Relaxed),
            pidfs_inode: entry.pidfs_inode.load(Ordering::Relaxed),
        }
    }

    /// How many processes have rows.
    pub(crate) fn importers(&self) -> usize {
        let used = self.header().rows_used.load(Ordering::Acquire).min(self.shape.rows);
        let mut states: Vec<u64> = (0..used)
            .map(|row| self.entry(row).state.load(Ordering::Relaxed))
            .filter(|&state| State(state).is_used())
            .collect();
        states.sort_unstable();
        states.dedup();
        states.len()
    }

    pub(crate) fn lock_for_fork(&self) {
        self.mappings.lock_for_fork();
        self.watches.lock_for_fork();
    }

    /// # Safety
    /// [`Door::lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.watches.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.mappings.unlock_after_fork() };
    }

    /// In a forked child, which will not touch the door any more: closes its fds.
    ///
    /// # Safety
    /// As [`Door::unlock_after_fork`], and the door is leaked in this process.
    pub(crate) unsafe fn abandon_in_child(&self) {
        // SAFETY: nobody else closes it, as the door is leaked.
        unsafe { sys::close_inherited(self.fd.as_raw_fd()) };
        step(Step::DoorAbandoned);
        // SAFETY: the lock was taken before the fork.
        for watch in unsafe { self.watches.get_locked() }.known.values() {
            if let Watch::Pidfd(pidfd) = watch {
                // SAFETY: as above.
                unsafe { sys::close_inherited(pidfd.as_raw_fd()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LeaseTable, Producer};
    use super::*;

    /// One row says that the slot is open once, another cannot be mapped: what it says may be anything but that nobody has
    /// the slot open.
    #[test]
    fn a_row_that_cannot_be_looked_at_takes_nothing_away_from_others() {
        let nonce = Nonce::from_bytes([1; 16]);
        let mut door = Door::with_shape(Shape { slots: 64, rows: 8 }, nonce).unwrap();
        let producer = Producer { pid: 1, nonce, slots: 64, rows: 8, same_pid_namespace: true };
        let table =
            LeaseTable::open(door.shared_fd().try_clone().unwrap(), producer, Arc::default()).unwrap();
        let lease = table.take(5).unwrap();
        assert!(door.is_leased(5));
        // Another thread's row, which the producer has not mapped yet, and no way to map it.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = table.take(5).unwrap();
                // SAFETY: taken above, once.
                unsafe { other.0.give_back(umf_core::thread::current()) };
            });
        });
        let file =
            core::mem::replace(&mut door.fd, Arc::new(std::fs::File::open("/dev/null").unwrap().into()));
        assert!(door.is_leased(5));
        door.fd = file;
        assert!(door.is_leased(5));
        // SAFETY: taken above, once.
        unsafe { lease.0.give_back(umf_core::thread::current()) };
        assert!(!door.is_leased(5));
    }
}
