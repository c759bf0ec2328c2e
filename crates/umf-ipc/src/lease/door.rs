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

use super::front::Front;
use super::layout::{MAGIC, MARKS, Shape, State, VERSION};
use super::owner::{Owner, Watch};
use crate::identity::Nonce;
use crate::sys::{self, SharedMapping};
use crate::{Error, Result, protocol};

/// The producer's side of its door.
#[derive(Debug)]
pub(crate) struct Door {
    fd: Arc<OwnedFd>,
    front: Front,
    /// By row: where it is mapped, once it was looked at.
    rows: Chunks<AtomicPtr<AtomicU64>>,
    mappings: Lock<Vec<SharedMapping>>,
    watches: Lock<Watches>,
}

/// The most fds that are kept of importers. Others are looked for each time.
const MOST_WATCHED: u64 = 1024;
/// How often an entry is read that changes meanwhile.
const TRIES: u32 = 64;

/// The importers that had something open when it was freed, and whose end is waited for.
#[derive(Debug, Default)]
struct Watches {
    known: HashMap<Owner, Watch>,
    /// How many there may be before those are looked for that are not wanted any more.
    enough: usize,
    /// How many more are not kept, after too many were wanted, before that is done again.
    pause: usize,
}

impl Watches {
    /// Keeps a watch, if there are not too many: importers may write whatever they like, and so as many owners.
    /// `owners` are those that have rows.
    fn add(&mut self, owner: Owner, watch: Watch, owners: impl FnOnce() -> HashSet<Owner>) -> bool {
        if self.known.len() >= self.enough {
            if self.pause > 0 {
                self.pause -= 1;
                return false;
            }
            let owners = owners();
            // Who has ended since the caller looked is kept until its rows are taken back.
            self.known.retain(|known, _| owners.contains(known));
            let most = usize::try_from(MOST_WATCHED.min(sys::fd_limit() / 4)).unwrap_or(usize::MAX).max(16);
            self.enough = (self.known.len() * 2).clamp(16, most);
            if self.known.len() >= self.enough {
                self.pause = most;
                return false;
            }
        }
        self.known.insert(owner, watch);
        true
    }
}

/// What the rows of one process say of a slot.
#[derive(Default)]
struct Sum {
    count: u64,
    /// One of them could not be read.
    unread: bool,
}

impl Door {
    /// A door for a ledger with this nonce and so many slots.
    pub(crate) fn new(slots: u32, nonce: Nonce) -> Result<Self> {
        Self::within(slots, nonce, sys::file_size_limit())
    }

    /// One that fits into a file of `limit` bytes.
    pub(super) fn within(slots: u32, nonce: Nonce, limit: u64) -> Result<Self> {
        let shape = Shape::within(slots, limit).ok_or(Error::System {
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
        let front = Front::new(&fd, shape)?;
        step(Step::DoorMapped);
        sys::add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| Error::system("sealing of the lease table", errno))?;
        let door = Self {
            fd: Arc::new(fd),
            front,
            rows: Chunks::new(),
            mappings: Lock::new(Vec::new()),
            watches: Lock::default(),
        };
        let header = door.front.header();
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

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) const fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// How many rows there are, which the ledger says.
    pub(crate) const fn rows(&self) -> u32 {
        self.front.shape().rows
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
        sys::reserve(&self.fd, self.front.shape().marks() + u64::from(first) * 8, u64::from(count) * 8)
            .map_err(|errno| Error::system("fallocate of the lease table", errno))?;
        step(Step::DoorGrown);
        Ok(())
    }

    /// Whether a living process has the export in this slot open. To be asked after it was retired: then a no is final.
    #[inline]
    pub(crate) fn is_leased(&self, slot: u32) -> bool {
        let marks = protocol::look(self.front.marks(slot));
        marks != 0 && self.is_leased_by(slot, marks)
    }

    /// As [`Door::is_leased`], by the thread that has just retired it.
    #[inline]
    pub(crate) fn is_leased_at_once(&self, slot: u32) -> bool {
        let marks = protocol::look_at_once(self.front.marks(slot));
        marks != 0 && self.is_leased_by(slot, marks)
    }

    /// The rows that a slot's marks stand for.
    fn marked(&self, mut marks: u64) -> impl Iterator<Item = u32> {
        let used = self.front.used();
        let bits = core::iter::from_fn(move || {
            let bit = (marks != 0).then(|| marks.trailing_zeros());
            marks &= marks.wrapping_sub(1);
            bit
        });
        bits.flat_map(move |first| (first..used).step_by(MARKS as usize))
    }

    fn is_leased_by(&self, slot: u32, marks: u64) -> bool {
        // Mostly all rows say nothing: what is closed is zero. (Whoever has it open has a row that is not, and stays so: one
        // of those that another thread closes is not made zero again.)
        let is_zero = |row| self.word(row, slot).is_some_and(|word| word.load(Ordering::Acquire) == 0);
        if self.marked(marks).all(is_zero) {
            protocol::forget(self.front.marks(slot));
            return false;
        }
        self.is_leased_by_the_living(slot, marks)
    }

    #[cold]
    fn is_leased_by_the_living(&self, slot: u32, marks: u64) -> bool {
        // By owner, what rows say that say something.
        let mut sums: HashMap<Owner, Sum> = HashMap::new();
        for row in self.marked(marks) {
            if let Some((owner, count)) = self.count(row, slot) {
                let sum = sums.entry(owner).or_default();
                match count {
                    Some(count) => sum.count = sum.count.wrapping_add(count),
                    None => sum.unread = true,
                }
            }
        }
        if sums.is_empty() {
            protocol::forget(self.front.marks(slot));
            return false;
        }
        sums.retain(|_, sum| sum.unread || sum.count != 0);
        let mut ended = HashSet::new();
        sums.retain(|owner, _| self.lives(owner) || !ended.insert(*owner));
        self.take_back(&ended);
        !sums.is_empty()
    }

    /// What a row says of a slot, if that is not nothing, and of whom. `None` for the count: it cannot be read now.
    fn count(&self, row: u32, slot: u32) -> Option<(Owner, Option<u64>)> {
        let entry = self.front.entry(row);
        let mut tries = 0;
        loop {
            let owner = Owner::of(entry);
            if !owner.state.is_used() {
                return None;
            }
            let count = self.word(row, slot).map(|word| word.load(Ordering::Acquire));
            core::sync::atomic::fence(Ordering::Acquire);
            tries += 1;
            if entry.state.load(Ordering::Relaxed) == owner.state.0 {
                return (count != Some(0)).then_some((owner, count));
            }
            // It changes hands: rarely more than once, but whoever writes there might never stop.
            if tries == TRIES {
                return Some((owner, None));
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
        let size = usize::try_from(self.front.shape().stride()).ok()?;
        let mapped =
            SharedMapping::at(&self.fd, self.front.shape().row(row), size, false).and_then(|mut mapping| {
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
        if let Some(watch) = watches.known.get(owner) {
            let lives = watch.is_alive();
            if !lives {
                watches.known.remove(owner);
            }
            return lives;
        }
        match owner.find() {
            Some(watch) => {
                if matches!(watch, Watch::Pidfd(_)) {
                    self.watch(&mut watches, *owner, watch);
                }
                true
            }
            None => false,
        }
    }

    /// Those who have rows.
    fn owners(&self) -> HashSet<Owner> {
        let used = self.front.used();
        (0..used).map(|row| Owner::of(self.front.entry(row))).filter(|owner| owner.state.is_used()).collect()
    }

    /// The rows of ended processes go. Whoever claims one empties it first.
    fn take_back(&self, ended: &HashSet<Owner>) {
        if ended.is_empty() {
            return;
        }
        let used = self.front.used();
        for row in 0..used {
            let entry = self.front.entry(row);
            let owner = Owner::of(entry);
            if ended.contains(&owner) {
                // Not if somebody else saw it first.
                let _ = entry.state.compare_exchange(
                    owner.state.0,
                    State::FREE.0,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                step(Step::RowTakenBack);
            }
        }
    }

    /// An importer in another pid namespace has claimed a row and says so on the socket: `pidfd` is its process.
    pub(crate) fn announce(&self, row: u32, number: u32, pidfd: Option<OwnedFd>) -> bool {
        if row >= self.front.shape().rows {
            return false;
        }
        let owner = Owner::of(self.front.entry(row));
        if owner.state != State::announced(number) {
            return false;
        }
        let watch = pidfd.map_or(Watch::Nothing, Watch::Pidfd);
        let mut watches = self.watches.lock();
        // It is not to be turned away for those that have gone.
        watches.pause = 0;
        let is_watched = self.watch(&mut watches, owner, watch);
        step(Step::RowWatched);
        is_watched
    }

    /// Waits for the end of one more process, if there are not too many.
    fn watch(&self, watches: &mut Watches, owner: Owner, watch: Watch) -> bool {
        if watches.known.len() >= watches.enough {
            // Those that ended lose their rows before they are forgotten: of one that had announced itself nobody else would
            // know that it did.
            let ended = watches.known.iter().filter(|(_, watch)| !watch.is_alive());
            let ended: HashSet<Owner> = ended.map(|(owner, _)| *owner).collect();
            self.take_back(&ended);
            watches.known.retain(|owner, _| !ended.contains(owner));
        }
        watches.add(owner, watch, || self.owners())
    }

    /// How many processes have rows.
    pub(crate) fn importers(&self) -> usize {
        self.owners().len()
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
        // SAFETY: passed on to the caller.
        let watches = unsafe { self.watches.get_locked() };
        // (What was interrupted may be changing them, if a handler of signals forked: then these stay open.)
        for watch in watches.iter().flat_map(|watches| watches.known.values()) {
            if let Watch::Pidfd(pidfd) = watch {
                // SAFETY: as above.
                unsafe { sys::close_inherited(pidfd.as_raw_fd()) };
            }
        }
    }
}
