//! [`ImporterLeases`]: the rows of one importer in one producer's lease table. [`Lease`]: a count
//! in one of them.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::AsFd;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use umf_os::ReceivedFd;
use umf_sync::{Lock, WipeOnForkWord, failpoint, fork, thread};

use super::Collector;
use super::layout::{HeaderMapping, MAGIC, MAX_ROWS, ROW_HEADER, TableShape, VERSION, row_bit};
use super::tickets::{self, SentTickets, TicketRows};
use crate::handle::Ticket;
use crate::identity::{self, Nonce};
use crate::ledger::MAX_SLOTS;
use crate::{Error, Result, protocol};
use umf_os::{CloseOnFork, FileIdentity, ReopenedFile, SharedMapping};

/// Maximum number of rows that one importer takes in one table. Threads share them; a thread always
/// uses the same row.
const MAX_ROWS_PER_IMPORTER: usize = 8;
/// Number of rows of ended importers that are tried before an unused row is taken.
const DEAD_ROWS_TRIED: u32 = 4;
/// The call that fails in an importer without `/proc`. Callers compare errors with it.
pub(crate) const REOPENING: &str = "opening the lease table anew through /proc/thread-self/fd";
const HINT_WITHOUT_PROC: &str = "; mount /proc here, or set UMF_IPC_EXCHANGE=socket in both processes with /proc in the \
                            producer's, or ipc.leases = \"off\" to open without leases";
/// Granularity in bytes in which a row gets its memory.
const POPULATE_SIZE: usize = 4096;

/// A count of one open in a row. Any thread may release it.
///
/// It must not outlive the [`ImporterLeases`] that it came from, which are dropped when no export
/// is open any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    word: NonNull<AtomicU64>,
    /// 0 in forked children, where `word` and `dead` are not mapped.
    is_owner: NonNull<AtomicU32>,
    /// The table's `dead`.
    dead: NonNull<AtomicU32>,
}

impl Lease {
    /// Returns whether this process took the lease, and not a process that it was forked from.
    pub(crate) fn is_of_this_process(self) -> bool {
        // SAFETY: the `ImporterLeases` exist. A forked child leaks them together with this word.
        unsafe { self.is_owner.as_ref() }.load(Ordering::Relaxed) != 0
    }

    /// Returns the counter that has the lease.
    #[inline]
    pub(crate) const fn word(self) -> NonNull<AtomicU64> {
        self.word
    }

    /// Returns the word that is set when the producer's memory was collected.
    #[inline]
    pub(crate) const fn dead(self) -> NonNull<AtomicU32> {
        self.dead
    }

    /// Releases the lease. Does nothing in a forked child of the process that took it. Returns
    /// whether a collector has set the table's `dead`.
    ///
    /// # Safety
    /// The lease was not released before, and its [`ImporterLeases`] exists.
    #[inline]
    pub(crate) unsafe fn release(self) -> bool {
        if !self.is_of_this_process() {
            return false;
        }
        // SAFETY: this is the process that maps the table, and the caller guarantees that the
        // mappings exist.
        let (word, dead) = unsafe { (self.word.as_ref(), self.dead.as_ref()) };
        protocol::release_lease(word);
        dead.load(Ordering::Relaxed) != 0
    }
}

/// Identity and shape of a producer's lease table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTableId {
    pub pid: u32,
    pub nonce: Nonce,
    /// Taken from the producer's ledger, which importers cannot write.
    pub slots: u32,
    pub rows: u32,
}

/// The rows of one importer in the lease table of one producer. The kernel keeps a row locked as
/// long as its mapping exists.
#[derive(Debug)]
pub(crate) struct ImporterLeases {
    pid: u32,
    /// Used to lock further rows. `None` if the description behind it holds the lock of the first
    /// row.
    fd: Option<CloseOnFork>,
    file: FileIdentity,
    head: HeaderMapping,
    rows: Lock<LockedRows>,
    sent: Lock<SentTickets>,
    ticket_rows: TicketRows,
    /// 1 in the process that made this, 0 in its forked children.
    is_owner: WipeOnForkWord,
    /// Random number that all rows of this importer carry.
    importer_id: u64,
    /// [`fork::generation`] of the process that made this.
    generation: u32,
}

#[derive(Debug, Default)]
struct LockedRows {
    taken: Vec<LockedRow>,
    /// Per thread number, modulo the array's length: index of the thread's row plus one, 0 before
    /// its first open.
    by_thread: [u8; MAX_ROWS_PER_IMPORTER],
    /// No further row is available.
    is_exhausted: bool,
}

/// A locked row.
#[derive(Debug)]
pub(super) struct LockedRow {
    pub(super) number: u32,
    /// Header and counters. Unmapping drops the lock.
    pub(super) mapping: SharedMapping,
    /// One bit per [`POPULATE_SIZE`] bytes of the mapping: set if they have memory.
    populated: Box<[u64]>,
}

impl ImporterLeases {
    /// Maps a producer's lease table, checks it, and takes a row.
    ///
    /// `exclusive_since` is `Some` if no other process has the open file description behind `fd`.
    /// Its value is [`fork::sequence`] before the descriptor was received.
    pub(crate) fn open(fd: ReceivedFd, exclusive_since: Option<u32>, producer: LeaseTableId) -> Result<Self> {
        let pid = producer.pid;
        let misbehaved = |what| Error::Misbehaved { pid, what };
        let system = |call| move |errno| Error::system(call, errno);
        // First, because a file system (FUSE) cannot delay or forge the answer to this call.
        let needed = SealFlags::SHRINK | SealFlags::GROW;
        if !umf_os::memfd::is_sealed(&fd, needed).map_err(system("fcntl(F_GET_SEALS) of the lease table"))? {
            return Err(misbehaved("its lease table lacks the seals of a lease table"));
        }
        let fd = fd.into_inner();
        if umf_os::file::filesystem(&fd).map_err(system("fstatfs of the lease table"))?
            != umf_os::file::TMPFS_MAGIC
        {
            return Err(misbehaved("its lease table is no shared memory"));
        }
        if producer.slots > MAX_SLOTS {
            return Err(misbehaved("its ledger has more slots than one can have"));
        }
        let shape = TableShape { slots: producer.slots, rows: producer.rows.min(MAX_ROWS) };
        let size = umf_os::file::size(&fd).map_err(system("fstat of the lease table"))?;
        if shape.rows == 0 || size != shape.size() {
            return Err(misbehaved("its lease table has another size than its ledger says"));
        }
        let file = umf_os::file::identity(&fd).map_err(system("fstat of the lease table"))?;
        let head = HeaderMapping::new(&fd, shape)?;
        failpoint!("lease.table_opened");
        let header = head.header();
        let nonce = [0, 1].map(|half: usize| header.nonce[half].load(Ordering::Relaxed));
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.version.load(Ordering::Relaxed) != VERSION
            || nonce != producer.nonce.halves()
        {
            return Err(misbehaved(
                "the header of its lease table was overwritten, by it or by a process that opened its memory: try again \
                 after its next export, which writes the header anew",
            ));
        }
        let random = umf_os::process::random().map_err(system("getrandom"))?;
        let mut leases = Self {
            pid,
            file,
            head,
            rows: Lock::default(),
            sent: Lock::default(),
            ticket_rows: TicketRows::default(),
            is_owner: WipeOnForkWord::new(1)?,
            importer_id: u64::from_le_bytes(random[..8].try_into().unwrap_or([1; 8])).max(1),
            generation: fork::generation(),
            fd: Some(CloseOnFork::new(fd).map_err(system("fstat of the lease table"))?),
        };
        // Takes the first row now: an importer without a row cannot open anything.
        let reopened = match (leases.reopen(), exclusive_since) {
            (Ok(reopened), _) => reopened,
            // Without `/proc`, a description that was made for this importer alone can hold the
            // lock of one row.
            (Err(_), Some(forks)) => {
                leases.rows.lock().is_exhausted = true;
                let fd = leases.fd.take().ok_or(misbehaved("it sent no lease table"))?.into_inner();
                ReopenedFile::received(fd, forks).map_err(system(REOPENING))?
            }
            (Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)), None) => {
                return Err(Error::system(REOPENING, errno));
            }
            (Err(errno), None) => {
                return Err(Error::System { call: REOPENING, errno, hint: HINT_WITHOUT_PROC });
            }
        };
        let row = leases.take_row(reopened, true)?;
        leases.rows.lock().taken.push(row);
        Ok(leases)
    }

    fn reopen(&self) -> umf_os::SystemResult<ReopenedFile> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        let reopened = ReopenedFile::of(fd.as_fd(), self.file)?;
        failpoint!("row.opened");
        Ok(reopened)
    }

    /// Returns whether a collector has set the table's `dead`.
    pub(crate) fn is_collected(&self) -> bool {
        protocol::is_collected(&self.head.header().dead.0)
    }

    /// Begins a collection of the producer's memory: see [`Collector::begin`].
    ///
    /// # Errors
    /// As [`Collector::begin`]; `EBADF` in a process without `/proc`, which has no descriptor of
    /// the table.
    pub(crate) fn collector(&self) -> umf_os::SystemResult<Option<Collector<'_>>> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        Collector::begin(fd.as_fd(), self.file, &self.head)
    }

    /// Returns the number of opens that this importer counts. Takes time in proportion to the slots
    /// that it has used.
    pub(crate) fn opens(&self) -> u64 {
        self.rows.lock().taken.iter().map(LockedRow::opens).sum()
    }

    /// Returns whether this process made it, and not a process that this one was forked from.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Returns the number of descriptors that it holds open.
    pub(crate) fn fds(&self) -> u64 {
        u64::from(self.fd.is_some())
    }

    /// Returns the number of rows.
    #[cfg(test)]
    pub(super) fn rows(&self) -> usize {
        self.rows.lock().taken.len()
    }

    /// Writes the table's `events`, as any process can.
    #[cfg(test)]
    pub(super) fn set_events(&self, value: u64) {
        self.head.header().events.0.store(value, Ordering::SeqCst);
    }

    /// Acts as if the process was killed: the kernel drops the row locks, and nothing is cleared.
    #[cfg(test)]
    pub(super) fn simulate_kill(self) {
        drop(core::mem::take(&mut *self.rows.lock()));
        drop(core::mem::take(&mut *self.sent.lock()));
        core::mem::forget(self);
    }

    /// Counts an open of the export in `slot`, which the ledger has. The caller then checks whether
    /// the export is current.
    ///
    /// # Errors
    /// [`Error::System`] if there is no memory for the counter.
    pub(crate) fn acquire(&self, slot: u32) -> Result<Lease> {
        let mut rows = self.rows.lock();
        let index = self.row_of_thread(&mut rows);
        let row = &mut rows.taken[index];
        let word = row.word(slot)?;
        if protocol::set_opened_bit(self.head.opened_rows(slot), row_bit(row.number)) {
            failpoint!("lease.marked");
        }
        // SAFETY: the row is mapped as long as `self`, and `row.word` has populated the page.
        protocol::count_lease(unsafe { word.as_ref() });
        failpoint!("lease.counted");
        let dead = NonNull::from(&self.head.header().dead.0);
        Ok(Lease { word, is_owner: NonNull::from(self.is_owner.word()), dead })
    }

    /// Sends a ticket of the export of `bytes` bytes in `slot`, which the ledger has, to `readers`
    /// openers. The caller has the export open, or owns its memory and checks afterwards that it is
    /// current.
    ///
    /// # Errors
    /// Those of taking a row; [`Error::LimitReached`].
    pub(crate) fn send(&self, slot: u32, bytes: u64, readers: u16) -> Result<Ticket> {
        let take_row = || {
            let reopened = self.reopen().map_err(|errno| Error::System {
                call: REOPENING,
                errno,
                hint: "; sending handles in transit needs /proc: mount /proc here",
            })?;
            let row = self.take_row(reopened, true)?;
            self.head.owner(row.number).is_of_tickets.store(1, Ordering::Relaxed);
            Ok(row)
        };
        let mark = |row| {
            protocol::set_opened_bit(self.head.opened_rows(slot), row_bit(row));
        };
        self.sent.lock().send(slot, bytes, readers, &self.head.header().events.0, take_row, mark)
    }

    /// Claims a ticket. The caller has acquired a lease of the same slot. `fetch_table` fetches
    /// another descriptor of the table, for a process that has none.
    pub(crate) fn claim(
        &self,
        ticket: Ticket,
        fetch_table: impl FnOnce() -> Result<ReceivedFd>,
    ) -> Result<bool> {
        let events = &self.head.header().events.0;
        let claim = |word: &AtomicU64| protocol::ticket::claim(word, events, ticket.number);
        let is_claimed = self.with_ticket(ticket, fetch_table, claim)?;
        failpoint!("ticket.claimed");
        Ok(is_claimed)
    }

    /// Returns whether the sender of a ticket has cancelled it. `fetch_table` as for
    /// [`ImporterLeases::claim`].
    pub(crate) fn is_cancelled(
        &self,
        ticket: Ticket,
        fetch_table: impl FnOnce() -> Result<ReceivedFd>,
    ) -> Result<bool> {
        self.with_ticket(ticket, fetch_table, |word| protocol::ticket::is_cancelled(word, ticket.number))
    }

    /// Calls `f` with the word of a ticket, which it maps first if necessary. Returns `false` if
    /// the table does not have it.
    fn with_ticket(
        &self,
        ticket: Ticket,
        fetch_table: impl FnOnce() -> Result<ReceivedFd>,
        f: impl Fn(&AtomicU64) -> bool,
    ) -> Result<bool> {
        let shape = self.head.shape();
        match self.ticket_rows.with_word(shape, ticket, &f) {
            Some(found) => Ok(found),
            None if !tickets::is_inside(shape, ticket) => Ok(false),
            None => {
                self.map_tickets(ticket.row, fetch_table)?;
                Ok(self.ticket_rows.with_word(shape, ticket, &f).unwrap_or(false))
            }
        }
    }

    /// Maps the ticket words of a row.
    #[cold]
    fn map_tickets(&self, row: u16, fetch_table: impl FnOnce() -> Result<ReceivedFd>) -> Result<()> {
        let shape = self.head.shape();
        // The first row may have taken the descriptor, or the program may have closed it.
        let mapped = match self.fd.as_ref().filter(|fd| umf_os::file::identity(fd) == Ok(self.file)) {
            Some(fd) => self.ticket_rows.map(fd, shape, row),
            None => {
                let fetched = fetch_table()?.into_inner();
                if umf_os::file::identity(&fetched) != Ok(self.file) {
                    let what = "it sent another lease table than before";
                    return Err(Error::Misbehaved { pid: self.pid, what });
                }
                self.ticket_rows.map(fetched, shape, row)
            }
        };
        mapped.map_err(|errno| Error::system("mmap of a row of tickets", errno))
    }

    /// Releases the leases of this process's tickets of `slot` that were claimed.
    pub(crate) fn poll_tickets_of(&self, slot: u32) {
        self.sent.lock().poll_slot(slot);
    }

    /// Releases the leases of this process's tickets that were claimed. Returns the number of the
    /// others.
    pub(crate) fn poll_tickets(&self) -> usize {
        self.sent.lock().poll()
    }

    /// Returns the number of tickets of this process that were not released.
    pub(crate) fn sent_tickets(&self) -> usize {
        self.sent.lock().len()
    }

    /// Returns whether this process has sent a ticket, and readers have still to claim it.
    pub(crate) fn is_in_transit(&self, slot: u32, ticket: Ticket) -> bool {
        self.sent.lock().is_in_transit(slot, ticket.number)
    }

    /// Cancels a ticket of this process. Returns whether a reader could have claimed it.
    pub(crate) fn cancel(&self, slot: u32, ticket: Ticket) -> bool {
        self.sent.lock().cancel(slot, ticket.number)
    }

    /// Returns the index of the calling thread's row. Threads have different rows as far as
    /// possible, so that they seldom write the same cache line when they open the same export. The
    /// first thread has the first row; a single thread takes no other.
    fn row_of_thread(&self, rows: &mut LockedRows) -> usize {
        let thread = thread::current().map_or(0, |thread| thread.get() as usize % MAX_ROWS_PER_IMPORTER);
        if let Some(known) = rows.by_thread[thread].checked_sub(1) {
            return usize::from(known);
        }
        let is_first = rows.by_thread.iter().all(|&row| row == 0);
        if !is_first && !rows.is_exhausted {
            match self.add_row() {
                Ok(row) => rows.taken.push(row),
                Err(error) => {
                    tracing::debug!(%error, pid = self.pid, "threads share lease rows");
                    rows.is_exhausted = true;
                }
            }
        }
        let others = rows.by_thread.iter().filter(|&&row| row != 0).count();
        let index = others % rows.taken.len();
        rows.by_thread[thread] = index as u8 + 1;
        index
    }

    #[cold]
    fn add_row(&self) -> Result<LockedRow> {
        let reopened = self.reopen().map_err(|errno| Error::system("opening the lease table anew", errno))?;
        self.take_row(reopened, false)
    }

    /// Locks a free row through a description that nothing else has, clears it and maps it.
    ///
    /// Further rows of an importer come from the first half of the table alone. So a row is left
    /// for each other importer, however many threads this one has.
    fn take_row(&self, reopened: ReopenedFile, is_first: bool) -> Result<LockedRow> {
        let shape = self.head.shape();
        let system = |call| move |errno| Error::system(call, errno);
        let end = if is_first { shape.rows } else { shape.rows / 2 };
        let number = self.lock_row(&reopened, end).map_err(system("fcntl(F_OFD_SETLK) of a lease row"))?;
        let number = number.ok_or(Error::NoLeaseRow { pid: self.pid, rows: shape.rows })?;
        let owner = self.head.owner(number);
        if owner.importer.load(Ordering::Relaxed) != 0 {
            // Its last owner was killed. `LeaseTable::is_in_device_grace` reads this.
            self.head.header().cleared.0.fetch_add(1, Ordering::SeqCst);
        }
        // Before the first count, and before the height includes the row. Tickets first: their
        // sender's leases are counted until then.
        tickets::clear_words(&reopened, shape, number).map_err(system("clearing a lease row"))?;
        failpoint!("row.tickets_cleared");
        umf_os::file::punch_hole(&reopened, shape.row(number) + ROW_HEADER, shape.words())
            .map_err(system("fallocate of a lease row"))?;
        failpoint!("row.cleared");
        let size = usize::try_from(shape.row_size()).unwrap_or(usize::MAX);
        let mut mapping = SharedMapping::at(&reopened, shape.row(number), size, true)
            .map_err(system("mmap of a lease row"))?;
        mapping.exclude_from_fork().map_err(system("madvise(MADV_DONTFORK) of a lease row"))?;
        mapping.use_small_pages();
        failpoint!("row.mapped");
        // The mapping keeps the description, and with it the lock.
        drop(reopened);
        failpoint!("row.ready");
        owner.importer.store(self.importer_id, Ordering::Relaxed);
        owner.pid.store(umf_os::process::pid(), Ordering::Relaxed);
        owner.uid.store(umf_os::process::effective_uid(), Ordering::Relaxed);
        owner.pid_namespace.store(identity::pid_namespace(), Ordering::Relaxed);
        owner.since.store(umf_os::clock::boot(), Ordering::Relaxed);
        owner.is_of_tickets.store(0, Ordering::Relaxed);
        self.head.header().height.0.fetch_max(number + 1, Ordering::SeqCst);
        failpoint!("row.raised");
        let steps = size.div_ceil(POPULATE_SIZE);
        Ok(LockedRow { number, mapping, populated: vec![0; steps.div_ceil(64)].into() })
    }

    /// Locks a row below `end` and returns its number; `None` if all are locked.
    fn lock_row(&self, reopened: &ReopenedFile, end: u32) -> umf_os::SystemResult<Option<u32>> {
        let shape = self.head.shape();
        let lock = |row: u32| {
            reopened.locks().try_write_lock(shape.row(row)).map(|is_locked| is_locked.then_some(row))
        };
        let used = self.head.height().min(end);
        let is_released = |&row: &u32| self.head.owner(row).importer.load(Ordering::Relaxed) == 0;
        // First released rows: this takes no system call for each row in use.
        let released = (0..used).filter(is_released);
        // Then a few rows of killed importers, at each call other ones.
        let start = self.head.header().search.0.fetch_add(DEAD_ROWS_TRIED, Ordering::Relaxed) % used.max(1);
        let others = (start..used).chain(0..start);
        let dead = others.clone().take(DEAD_ROWS_TRIED as usize);
        // Twice, because a producer that clears a row locks it for a moment.
        for row in released.chain(dead).chain(used..end).chain(others.clone()).chain(others) {
            if let Some(row) = lock(row)? {
                failpoint!("row.locked");
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

impl LockedRow {
    /// Returns the counter of a slot, which the row has. Populates its page, so that writing it
    /// cannot fault.
    pub(super) fn word(&mut self, slot: u32) -> Result<NonNull<AtomicU64>> {
        self.populated_word(ROW_HEADER as usize + slot as usize * 8)
    }

    /// Returns the sum of the counters. Reads no page that has no memory.
    fn opens(&self) -> u64 {
        let has_memory = |step: &usize| self.populated[step / 64] & 1 << (step % 64) != 0;
        let begins = (0..self.mapping.size().div_ceil(POPULATE_SIZE)).filter(has_memory);
        let counters = begins.map(|step| step * POPULATE_SIZE).filter(|&at| at >= ROW_HEADER as usize);
        let words = counters.flat_map(|at| self.mapping.words(at, POPULATE_SIZE / 8));
        words.fold(0, |sum: u64, word| sum.saturating_add(word.load(Ordering::Relaxed)))
    }

    /// Returns a ticket word of the row, as [`LockedRow::word`] does.
    pub(super) fn ticket_word(&mut self, word: u16) -> Result<NonNull<AtomicU64>> {
        self.populated_word(usize::from(word) * 8)
    }

    /// Returns the word at an offset of the mapping, which is a multiple of 8.
    fn populated_word(&mut self, offset: usize) -> Result<NonNull<AtomicU64>> {
        let step = offset / POPULATE_SIZE;
        let (bits, bit) = (step / 64, 1 << (step % 64));
        if self.populated[bits] & bit == 0 {
            // A page has at least `POPULATE_SIZE` bytes. A larger page is populated more than once.
            let page_size = rustix::param::page_size();
            // SAFETY: the mapping has the page, writable: it ends at a multiple of all page sizes.
            unsafe { umf_os::memfd::populate(self.mapping.base().add(offset & !(page_size - 1)), page_size) }
                .map_err(|errno| Error::system("memory for a lease row", errno))?;
            failpoint!("row.populated");
            self.populated[bits] |= bit;
        }
        // SAFETY: the mapping has a word there.
        Ok(unsafe { self.mapping.base().add(offset) }.cast())
    }
}

impl Drop for ImporterLeases {
    fn drop(&mut self) {
        if self.fd.as_ref().is_some_and(|fd| umf_os::file::identity(fd) != Ok(self.file)) {
            // The program closed the descriptor, or opened another file under its number: it must
            // not be closed here.
            core::mem::forget(self.fd.take().map(CloseOnFork::into_inner));
        }
        let mut sent = core::mem::take(&mut *self.sent.lock());
        let rows = core::mem::take(&mut *self.rows.lock());
        if !self.is_of_this_process() {
            // The parent's rows, which are not mapped here.
            core::mem::forget((sent, rows));
            core::mem::take(&mut self.ticket_rows).forget();
            return;
        }
        let ticket_rows = if sent.poll() == 0 {
            sent.into_rows()
        } else {
            // They stay locked until the process ends, so that the tickets can be claimed.
            core::mem::forget(sent);
            Vec::new()
        };
        for row in rows.taken.into_iter().chain(ticket_rows) {
            // No open is counted there any more. This frees the memory.
            row.mapping.punch_hole(ROW_HEADER as usize);
            failpoint!("row.closing");
            self.head.owner(row.number).importer.store(0, Ordering::Relaxed);
            drop(row);
            failpoint!("row.closed");
        }
    }
}
