//! [`LeaseTable`]: the importer's side of one producer's door.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use hashbrown::HashMap;
use rustix::fs::SealFlags;
use umf_core::fork;
use umf_core::lock::Lock;
use umf_core::step::{Step, step};
use umf_core::thread::{self, ThreadIndex};

use super::front::Front;
use super::layout::{MAGIC, Shape, State, VERSION, mark};
use super::owner::Owner;
use super::row::{Lease, Ranges, Row, Thread, Words};
use crate::identity::{Nonce, ProcessIdentity};
use crate::ledger::MAX_SLOTS;
use crate::{Error, Result, protocol, sys};

/// How many rows of others are asked about before a row is used that never was.
const ASKED: u32 = 4;
/// How many opens by threads without a row go by before one looks for a row again, after there was none. (Looking asks for
/// every process that has one.)
const OPENS_BETWEEN: u32 = 1024;

/// The leases of this process on the exports of one producer.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    pid: u32,
    fd: OwnedFd,
    front: Front,
    ranges: Arc<Ranges>,
    rows: Lock<HashMap<Thread, Row>>,
    /// Where threads may find the words of their rows without the lock: see [`Words::known`].
    own: [AtomicPtr<AtomicU64>; 64],
    /// Opens until a thread looks for a row again. Written under the lock of `rows`.
    pause: AtomicU32,
    /// What the entries of this process say.
    owner: Owner,
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
}

/// How to find the producer of a door.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Producer {
    pub pid: u32,
    pub nonce: Nonce,
    /// Numbers that the producer's ledger, which only it can write, has.
    pub slots: u32,
    pub rows: u32,
    /// Whether it finds this process by its pid.
    pub same_pid_namespace: bool,
}

impl LeaseTable {
    /// Maps what should be a producer's door, and checks that it is. `identity` is this process's.
    pub(crate) fn open(
        fd: OwnedFd,
        producer: Producer,
        identity: ProcessIdentity,
        ranges: Arc<Ranges>,
    ) -> Result<Self> {
        let pid = producer.pid;
        let misbehaved = |what| Error::Misbehaved { pid, what };
        let system = |call| move |errno| Error::system(call, errno);
        // First of all, because it is the one question that no file system answers.
        match sys::seals(&fd) {
            Ok(seals) if seals.contains(SealFlags::SHRINK | SealFlags::GROW) => {}
            _ => return Err(misbehaved("its door is not sealed as one is")),
        }
        if sys::filesystem(&fd).map_err(system("fstatfs of the lease table"))? != sys::TMPFS_MAGIC {
            return Err(misbehaved("its door is no shared memory"));
        }
        if producer.slots > MAX_SLOTS {
            return Err(misbehaved("its ledger has more slots than one can have"));
        }
        let shape = Shape { slots: producer.slots, rows: producer.rows.min(super::layout::MAX_ROWS) };
        let size = sys::size(&fd).map_err(system("fstat of the lease table"))?;
        if shape.rows == 0 || size != shape.size() {
            return Err(misbehaved("its door has another size than its ledger says"));
        }
        let front = Front::new(&fd, shape)?;
        step(Step::TableMapped);
        if identity.start_time == 0 && identity.pidfs_inode == 0 {
            // Then the producer must not be able to know better (on an old kernel, without `/proc`).
            let own = sys::pidfd_open(identity.pid).map_err(system("pidfd_open of this process"))?;
            if crate::identity::pidfs_inode(&own).is_some() {
                return Err(Error::system("statx of this process's pidfd", rustix::io::Errno::AGAIN));
            }
        }
        let state = if producer.same_pid_namespace {
            State::used(identity.pid)
        } else {
            let random = sys::random().map_err(system("getrandom"))?;
            State::announced(u32::from_le_bytes([random[0], random[1], random[2], random[3]]))
        };
        let table = Self {
            pid,
            fd,
            front,
            ranges,
            rows: Lock::new(HashMap::new()),
            own: [const { AtomicPtr::new(ptr::null_mut()) }; 64],
            pause: AtomicU32::new(0),
            owner: Owner { state, start_time: identity.start_time, pidfs_inode: identity.pidfs_inode },
            generation: fork::generation(),
        };
        let header = table.front.header();
        let nonce = [0, 1].map(|half: usize| header.nonce[half].load(Ordering::Relaxed));
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.version.load(Ordering::Relaxed) != VERSION
            || nonce != producer.nonce.halves()
        {
            return Err(misbehaved("its door is another producer's"));
        }
        // Now, since there may be none left when another thread closes what this one opened.
        table.row(&mut table.rows.lock(), None)?;
        Ok(table)
    }

    /// As if it were another process's.
    #[cfg(test)]
    pub(super) fn pose_as(&mut self, owner: Owner) {
        for row in self.rows.lock().values() {
            let entry = self.front.entry(row.number);
            entry.start_time.store(owner.start_time, Ordering::Relaxed);
            entry.pidfs_inode.store(owner.pidfs_inode, Ordering::Relaxed);
            entry.state.store(owner.state.0, Ordering::Release);
        }
        self.owner = owner;
    }

    /// Whether it was made in this process, and not in one that this is a forked child of.
    #[inline]
    pub(crate) fn belongs_here(&self) -> bool {
        self.generation == fork::generation()
    }

    /// In a forked child, in which the table is leaked.
    ///
    /// # Safety
    /// Nobody else closes the fd: it is called once, and the table is never dropped here.
    pub(crate) unsafe fn close_in_child(&self) {
        // SAFETY: passed on to the caller.
        unsafe { sys::close_inherited(self.fd.as_raw_fd()) };
        step(Step::TableAbandoned);
    }

    /// The producer's.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// The fds that it holds open.
    pub(crate) const fn fds(&self) -> u64 {
        1
    }

    /// If the producer cannot find this process by its pid: which row announces it, and under which number.
    pub(crate) fn announcement(&self) -> Result<Option<(u32, u32)>> {
        if !self.owner.state.is_announced() {
            return Ok(None);
        }
        let row = self.row(&mut self.rows.lock(), None)?.number;
        Ok(Some((row, self.owner.state.0 as u32)))
    }

    /// Counts an open of the export in `slot`, which the ledger has, in the calling thread's row if it has one: `true` with
    /// the lease. If there is no place to count, it does not open.
    ///
    /// Whether the export is current has to be looked at afterwards.
    pub(crate) fn take(&self, slot: u32) -> Result<(Lease, bool)> {
        let thread = thread::current();
        let known = thread.and_then(|thread| self.known(slot, thread));
        if let Some(lease) = known.or_else(|| self.sought(slot, thread?)) {
            // SAFETY: the word lies in a row of this table; only this thread writes it.
            protocol::lease(unsafe { lease.word().as_ref() });
            step(Step::LeaseCounted);
            return Ok((lease, true));
        }
        let lease = self.lease(&mut self.rows.lock(), None, slot)?;
        // SAFETY: the word lies in a row of this table.
        protocol::lease_for_all(unsafe { lease.word().as_ref() });
        step(Step::LeaseCountedForAll);
        Ok((lease, false))
    }

    /// The word of a slot in the calling thread's own row, which it gets if it has none, if it can have one.
    fn sought(&self, slot: u32, thread: ThreadIndex) -> Option<Lease> {
        let number = Some(thread.get());
        let mut rows = self.rows.lock();
        if !self.has_or_seeks_row(&rows, number) {
            return None;
        }
        match self.lease(&mut rows, number, slot) {
            Ok(lease) => {
                if let Some(row) = rows.get(&number) {
                    self.own(thread).store(row.words().pointer().as_ptr(), Ordering::Relaxed);
                }
                Some(lease)
            }
            Err(error) => {
                tracing::debug!(%error, "this thread has no lease row of its own");
                self.pause.store(OPENS_BETWEEN, Ordering::Relaxed);
                None
            }
        }
    }

    /// Where the words of the thread's row may be: threads share the places.
    #[inline]
    fn own(&self, thread: ThreadIndex) -> &AtomicPtr<AtomicU64> {
        &self.own[thread.get() as usize % self.own.len()]
    }

    /// The word of a slot in the calling thread's own row, marked, if it is known by now: without a lock.
    #[inline]
    fn known(&self, slot: u32, thread: ThreadIndex) -> Option<Lease> {
        let words = NonNull::new(self.own(thread).load(Ordering::Relaxed))?;
        // SAFETY: stored by `take`; the table keeps `ranges` alive.
        let words = unsafe { Words::from_pointer(words) };
        let (lease, row) = words.known(slot, thread.get(), self)?;
        self.mark(slot, row);
        Some(lease)
    }

    /// Says in the door that the row may have something of the slot. Before it has.
    fn mark(&self, slot: u32, row: u32) {
        if protocol::mark(self.front.marks(slot), mark(row)) {
            step(Step::LeaseMarked);
        }
    }

    fn has_or_seeks_row(&self, rows: &HashMap<Thread, Row>, thread: Thread) -> bool {
        if rows.contains_key(&thread) {
            return true;
        }
        let pause = self.pause.load(Ordering::Relaxed);
        self.pause.store(pause.saturating_sub(1), Ordering::Relaxed);
        pause == 0
    }

    /// Takes back in another thread what [`LeaseTable::take`] counted.
    #[cold]
    pub(super) fn give_back_elsewhere(&self, slot: u32) {
        match self.lease(&mut self.rows.lock(), None, slot) {
            Ok(lease) => {
                // SAFETY: the row stays as long as the table.
                protocol::give_back_for_all(unsafe { lease.word().as_ref() });
                step(Step::LeaseGivenBackForAll);
            }
            // No row is left for this process, or no memory for the word.
            Err(error) => {
                tracing::error!(%error, slot, "a lease cannot be given back before this process ends")
            }
        }
    }

    fn lease(&self, rows: &mut HashMap<Thread, Row>, thread: Thread, slot: u32) -> Result<Lease> {
        let row = self.row(rows, thread)?;
        let lease = row.lease(slot, self)?;
        self.mark(slot, row.number);
        Ok(lease)
    }

    fn row<'r>(&self, rows: &'r mut HashMap<Thread, Row>, thread: Thread) -> Result<&'r mut Row> {
        use hashbrown::hash_map::Entry as Place;
        match rows.entry(thread) {
            Place::Occupied(known) => Ok(known.into_mut()),
            Place::Vacant(place) => Ok(place.insert(self.claim(thread)?)),
        }
    }

    /// Makes a row of the door this process's own.
    fn claim(&self, thread: Thread) -> Result<Row> {
        step(Step::RowClaiming);
        let number = self.claim_entry(thread)?;
        step(Step::RowClaimed);
        let entry = self.front.entry(number);
        let (offset, stride) = (self.front.shape().row(number), self.front.shape().stride());
        let size = usize::try_from(stride).unwrap_or(usize::MAX);
        let emptied = sys::punch(&self.fd, offset, stride);
        step(Step::RowEmptied);
        let row = emptied
            .map_err(|errno| Error::system("fallocate of a lease row", errno))
            .and_then(|()| Row::show(number, thread, (&self.fd, offset, size), &self.ranges));
        match row {
            Ok(row) => {
                entry.start_time.store(self.owner.start_time, Ordering::Relaxed);
                entry.pidfs_inode.store(self.owner.pidfs_inode, Ordering::Relaxed);
                entry.state.store(self.owner.state.0, Ordering::Release);
                step(Step::RowUsed);
                Ok(row)
            }
            Err(error) => {
                entry.state.store(State::FREE.0, Ordering::Release);
                Err(error)
            }
        }
    }

    /// The number of an entry that is claimed by this process and by nobody else.
    ///
    /// Rows of single threads come from the first half alone: whatever number of threads the first processes have, there is
    /// a row left for each other process, and one to give back in what another thread took.
    fn claim_entry(&self, thread: Thread) -> Result<u32> {
        let end = if thread.is_some() { self.front.shape().rows / 2 } else { self.front.shape().rows };
        // Others ask by pid whether who claims has ended: not one whose pid means nothing to them.
        let claimed = State::claimed(if self.owner.state.is_announced() { 0 } else { sys::pid() });
        let claim = |row: u32, from: State| {
            let state = &self.front.entry(row).state;
            state.compare_exchange(from.0, claimed.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let used = self.front.used().min(end);
        let state = |row: u32| State(self.front.entry(row).state.load(Ordering::Acquire));
        for row in 0..used {
            // Read once: what is claimed is what was seen to be free.
            let found = state(row);
            if found.is_free() && claim(row, found) {
                return Ok(row);
            }
        }
        // Then those of processes that ended without a word. A few at a time, unless there is nothing else (a thread can do
        // without); each time others, so that they do not pile up.
        let start = sys::pid() % used.max(1);
        let asked = if used < end || thread.is_some() { ASKED } else { used };
        for row in (start..used).chain(0..start).take(asked as usize) {
            let found = state(row);
            if self.has_ended(row, found) && claim(row, found) {
                step(Step::RowTakenOver);
                return Ok(row);
            }
        }
        for row in used..end {
            self.front.header().rows_used.fetch_max(row + 1, Ordering::AcqRel);
            step(Step::RowAdded);
            let found = state(row);
            if found.is_free() && claim(row, found) {
                return Ok(row);
            }
        }
        Err(Error::LimitReached {
            what: "importers that one producer can tell apart",
            limit: u64::from(end),
            setting: "open its handles in fewer processes",
        })
    }

    /// Whether a row's process has ended. In another pid namespace nobody but the producer can tell.
    fn has_ended(&self, row: u32, state: State) -> bool {
        if self.owner.state.is_announced() || state.pid().is_none() {
            return false;
        }
        let owner = Owner::of(self.front.entry(row));
        // Not if it is another's meanwhile.
        owner.state == state && owner.find().is_none()
    }

    /// Gives the rows back. Nothing is open any more that is counted there.
    fn close(&mut self) {
        let own = self.owner.state;
        let claimed = State::claimed(own.pid().unwrap_or(0));
        for (_, row) in self.rows.lock().drain() {
            let state = &self.front.entry(row.number).state;
            let change = |from: State, to: State| {
                state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            // Not if the producer took it back, believing this process ended: then it is another's to write.
            let is_own = change(own, claimed);
            if is_own {
                // Whoever claims it next empties it again: this is for the memory's sake.
                let _ = sys::punch(&self.fd, self.front.shape().row(row.number), self.front.shape().stride());
            }
            step(Step::RowClosing);
            row.hide(&self.ranges);
            if is_own {
                change(claimed, State::FREE);
            }
            step(Step::RowClosed);
        }
    }
}

impl Drop for LeaseTable {
    fn drop(&mut self) {
        if self.belongs_here() {
            self.close();
        } else {
            // The parent's rows: not here, and not this process's to give back.
            for (_, row) in self.rows.lock().drain() {
                core::mem::forget(row);
            }
        }
    }
}
