//! [`Producer`]: an importer's connection to one producer, with its ledger and lease table mapped.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::Arc;

use umf_os::ReceivedFd;
use umf_sync::{Lock, failpoint, fork};

use super::dead::NextCollection;
use crate::handle::{Handle, Ticket};
use crate::identity::Nonce;
use crate::lease::{self, ImporterLeases, Lease, LeasedSlots};
use crate::ledger::{LedgerReader, SlotContent, SlotReader};
use crate::protocol::lazy::{self, Vacant};
use crate::transfer::{ChannelSettings, Exchange, FdChannel, Fetched, Mode, RemoteFd};
use crate::{Error, Result};
use umf_os::FileIdentity;

/// The most files without windows that are remembered. Each open of another such file tries to map
/// a window first.
const FILES_WITHOUT_WINDOWS: usize = 32;

/// The most requests for a lease table while this process forks.
const LEASE_TABLE_REQUESTS: u32 = 16;

fn file_of(handle: &Handle) -> FileIdentity {
    let (device, inode) = handle.data_identity();
    FileIdentity { device, inode }
}

/// A producer with its ledger mapped.
#[derive(Debug)]
pub(super) struct Producer {
    channel: FdChannel,
    ledger: LedgerReader,
    ledger_fd: i32,
    nonce: Nonce,
    /// The latest files that cannot be mapped by windows: they have huge pages or are not sealed,
    /// or address space was short.
    without_windows: Lock<Vec<FileIdentity>>,
    /// Whether `without_windows` has any.
    any_without_windows: AtomicBool,
    /// Null, or a box that the first open creates. A forked child replaces and leaks its parent's
    /// box, because mappings that were open at the fork point to it.
    leases: AtomicPtr<ImporterLeases>,
    /// When a close collects again.
    pub(super) next_collection: NextCollection,
}

impl Producer {
    /// Connects to the producer of a handle and maps its ledger.
    pub(super) fn connect(handle: &Handle, exchange: &Exchange, settings: &ChannelSettings) -> Result<Self> {
        let channel = FdChannel::new(handle, settings)?;
        let fetched = channel.fetch(RemoteFd::Ledger(handle.ledger_fd()), exchange);
        let opened = fetched.and_then(|Fetched { fd, mode, .. }| Ok((LedgerReader::open(fd, handle)?, mode)));
        let (ledger, mode) = opened.map_err(|error| match error {
            // If the producer has ended, that is the cause of any other error. If it is the same
            // process and another file has the descriptor number, its exporter was dropped, or exec
            // closed the ledger.
            error @ Error::ProducerReplaced { .. } if channel.has_ended() || channel.is_verified() => {
                tracing::debug!(%error, "and the handle's exporter is gone");
                Error::ProducerGone { pid: handle.pid() }
            }
            error => error,
        })?;
        tracing::debug!(pid = handle.pid(), nonce = %handle.nonce(), %mode, "producer found");
        Ok(Self {
            channel,
            ledger,
            ledger_fd: handle.ledger_fd(),
            nonce: handle.nonce(),
            without_windows: Lock::new(Vec::new()),
            any_without_windows: AtomicBool::new(false),
            leases: AtomicPtr::new(ptr::null_mut()),
            next_collection: NextCollection::default(),
        })
    }

    pub(super) const fn ledger(&self) -> &LedgerReader {
        &self.ledger
    }

    pub(super) const fn nonce(&self) -> Nonce {
        self.nonce
    }

    pub(super) const fn pid(&self) -> u32 {
        self.channel.pid()
    }

    pub(super) fn has_ended(&self) -> bool {
        if self.ledger.is_locked_while_used() {
            // A producer with many clients closes connections: their end proves nothing.
            return self.ledger.producer_has_ended() || self.channel.has_ended_by_pidfd();
        }
        self.channel.has_ended()
    }

    pub(super) fn fds(&self) -> u64 {
        // One more for the ledger.
        self.channel.fds() + 1 + self.leases().map_or(0, ImporterLeases::fds)
    }

    /// Returns this process's leases, if the lease table was opened.
    fn leases(&self) -> core::result::Result<&ImporterLeases, Vacant<ImporterLeases>> {
        // SAFETY: a published box is dropped with `self`, or leaked.
        let found = lazy::get_valid(&self.leases, |leases| unsafe { leases.as_ref() }.is_of_this_process());
        // SAFETY: as for `found`.
        found.map(|leases| unsafe { leases.as_ref() })
    }

    /// Returns whether the producer's memory was collected, so that only what was open then is
    /// there. The caller has counted a lease before.
    pub(super) fn is_collected(&self) -> bool {
        // A process that writes the word while the producer runs is not believed.
        self.leases().is_ok_and(ImporterLeases::is_collected) && self.ledger.producer_has_ended()
    }

    /// Returns the number of opens of this process that have a lease.
    pub(super) fn opens(&self) -> u64 {
        self.leases().map_or(0, ImporterLeases::opens)
    }

    /// Returns the slots that importers have leased, and prevents further leases. The producer has
    /// ended. `None` if this process has no lease table of the producer, another process collects,
    /// or tickets are claimed all the time.
    pub(super) fn leased_slots(&self) -> umf_os::SystemResult<Option<LeasedSlots>> {
        let Ok(leases) = self.leases() else { return Ok(None) };
        match leases.collector()? {
            Some(collector) => collector.leased_slots(),
            None => Ok(None),
        }
    }

    /// Acquires a lease on the export in `slot`. Opens the lease table first if necessary.
    pub(super) fn lease(&self, slot: u32, exchange: &Exchange) -> Result<Lease> {
        match self.leases() {
            Ok(leases) => leases.acquire(slot),
            Err(vacant) => self.open_lease_table(vacant, exchange)?.acquire(slot),
        }
    }

    /// Claims the ticket of a handle for the holder of a lease of its slot. Returns `false` if it
    /// cannot be claimed any more.
    pub(super) fn claim(&self, ticket: Ticket, exchange: &Exchange) -> Result<bool> {
        let Ok(leases) = self.leases() else { return Ok(false) };
        leases.claim(ticket, || self.fetch_lease_table(exchange))
    }

    fn fetch_lease_table(&self, exchange: &Exchange) -> Result<ReceivedFd> {
        let no_table = Error::Misbehaved { pid: self.pid(), what: "its ledger names no lease table" };
        let (number, _) = self.ledger.lease_table().ok_or(no_table)?;
        Ok(self.channel.fetch(RemoteFd::LeaseTable(number), exchange)?.fd)
    }

    fn opened_leases(&self, exchange: &Exchange) -> Result<&ImporterLeases> {
        match self.leases() {
            Ok(leases) => Ok(leases),
            Err(vacant) => self.open_lease_table(vacant, exchange),
        }
    }

    /// Sends a ticket of an export of `bytes` bytes that the caller has open.
    pub(super) fn send(&self, slot: u32, bytes: u64, readers: u16, exchange: &Exchange) -> Result<Ticket> {
        self.opened_leases(exchange)?.send(slot, bytes, readers)
    }

    /// Returns whether the sender of a ticket has cancelled it.
    pub(super) fn is_cancelled(&self, ticket: Ticket, exchange: &Exchange) -> Result<bool> {
        self.opened_leases(exchange)?.is_cancelled(ticket, || self.fetch_lease_table(exchange))
    }

    /// Cancels a ticket that this process has sent.
    pub(super) fn cancel(&self, slot: u32, ticket: Ticket) -> bool {
        self.leases().is_ok_and(|leases| leases.cancel(slot, ticket))
    }

    /// Releases the leases of tickets that were claimed. Returns the number of the others.
    pub(super) fn poll_tickets(&self) -> usize {
        self.leases().map_or(0, ImporterLeases::poll_tickets)
    }

    /// Opens the lease table and takes a row. If another thread does so first, returns that
    /// thread's leases.
    #[cold]
    fn open_lease_table(
        &self,
        vacant: Vacant<ImporterLeases>,
        exchange: &Exchange,
    ) -> Result<&ImporterLeases> {
        failpoint!("lease.table_missing");
        let pid = self.pid();
        let no_table = Error::Misbehaved { pid, what: "its ledger names no lease table" };
        let (number, rows) = self.ledger.lease_table().ok_or(no_table)?;
        let producer = lease::LeaseTableId { pid, nonce: self.nonce, slots: self.ledger.capacity(), rows };
        let open = |exchange: &Exchange| {
            let forks = fork::sequence();
            let Fetched { fd, is_exclusive, .. } =
                self.channel.fetch(RemoteFd::LeaseTable(number), exchange)?;
            ImporterLeases::open(fd, is_exclusive.then_some(forks), producer)
        };
        let is_refused = |opened: &Result<ImporterLeases>| {
            matches!(opened, Err(Error::System { call: lease::REOPENING, .. }))
        };
        let mut opened = open(exchange);
        let sockets =
            [Mode::Socket, Mode::Directory].into_iter().filter(|mode| exchange.modes().contains(mode));
        let by_socket: Vec<Mode> = sockets.collect();
        if is_refused(&opened) && !by_socket.is_empty() {
            // The producer's socket sends an open file description that this process need not
            // reopen. A fork of this process meanwhile shares it, and makes it useless.
            let by_socket = Exchange::Order(by_socket);
            for _ in 0..LEASE_TABLE_REQUESTS {
                match open(&by_socket) {
                    Err(Error::NotPermitted { .. }) => break,
                    retried => opened = retried,
                }
                if !is_refused(&opened) {
                    break;
                }
            }
        }
        let leases = opened?;
        failpoint!("lease.table_checked");
        let leases = NonNull::from(Box::leak(Box::new(leases)));
        let installed = match lazy::install(&self.leases, vacant, leases) {
            Ok(()) => leases,
            Err(first) => {
                // SAFETY: it came from the box above, and no other thread has the pointer.
                drop(unsafe { Box::from_raw(leases.as_ptr()) });
                // Only a fork removes one, and the child has no other thread.
                first.ok_or(Error::Misbehaved {
                    pid,
                    what: "its lease table disappeared while it was opened",
                })?
            }
        };
        // SAFETY: a published box is dropped with `self`, or leaked.
        Ok(unsafe { installed.as_ref() })
    }

    /// Returns `false` if a handle's file is known to have no windows.
    pub(super) fn has_windows(&self, handle: &Handle) -> bool {
        if !self.any_without_windows.load(Ordering::Relaxed) {
            return true;
        }
        // In a forked child the lock may be held for ever. Then the importer tries to map a window.
        let files = self.without_windows.try_lock();
        files.is_none_or(|files| !files.contains(&file_of(handle)))
    }

    /// Notes that a handle's file cannot be mapped by windows.
    pub(super) fn note_no_windows(&self, handle: &Handle) {
        if let Some(mut files) = self.without_windows.try_lock() {
            if files.len() == FILES_WITHOUT_WINDOWS {
                files.remove(0);
            }
            files.push(file_of(handle));
            self.any_without_windows.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the slot that a handle names.
    ///
    /// # Errors
    /// [`Error::Stale`] if the handle is not current, and was not sent with a ticket before it was
    /// retired.
    pub(super) fn slot(&self, handle: &Handle) -> Result<SlotReader<'_>> {
        let slot = self.ledger.slot(handle.slot()).ok_or_else(|| self.stale(handle, 0))?;
        let now = slot.generation();
        if handle.fits(now) { Ok(slot) } else { Err(self.stale(handle, now)) }
    }

    /// Returns the error of a handle that was retired after it was sent with a ticket. What it
    /// names may have been replaced, unless the ticket is open.
    fn retired(&self, handle: &Handle) -> Option<Error> {
        let now = self.ledger.slot(handle.slot()).map_or(0, SlotReader::generation);
        (now != handle.generation()).then(|| self.stale(handle, now))
    }

    /// Returns the ledger's description of a handle's export.
    ///
    /// # Errors
    /// [`Error::Stale`] if the handle is not current, [`Error::Misbehaved`] if it contradicts the
    /// ledger.
    pub(super) fn content(&self, handle: &Handle) -> Result<SlotContent> {
        let slot = self.slot(handle)?;
        let content = slot.read(handle.generation()).or_else(|now| {
            // The export may be retired during the first read.
            if handle.fits(now) { slot.read(now) } else { Err(now) }
        });
        let content = content.map_err(|now| self.stale(handle, now))?;
        let is_same = content.fd == handle.data_fd().unwrap_or(-1)
            && (content.device, content.inode) == handle.data_identity()
            && content.region_id == handle.region_id()
            && content.region_size == handle.region_size()
            && content.data_offset == handle.data_offset()
            && (content.offset, content.length, content.requested)
                == (handle.offset(), handle.length(), handle.requested());
        if is_same {
            return Ok(content);
        }
        // The slot of a retired export may be written for the next one.
        let what = "the handle and the ledger contradict each other, so that one of them is forged";
        Err(self.retired(handle).unwrap_or(Error::Misbehaved { pid: self.pid(), what }))
    }

    pub(super) fn stale(&self, handle: &Handle, now: u64) -> Error {
        Error::Stale { pid: self.pid(), slot: handle.slot(), generation: handle.generation(), now }
    }

    /// Fetches a duplicate of the descriptor of the handle's memory, and checks that it is the
    /// right file. `None` if the memory has no descriptor.
    ///
    /// The file must have the identity in the ledger, and the handle must still be current *after*
    /// the fetch. Then the producer had that file under that number during the fetch. The identity
    /// alone does not suffice: two eventfds have the same inode.
    pub(super) fn fetch(&self, handle: &Handle, exchange: &Exchange) -> Result<Option<ReceivedFd>> {
        let Some(number) = handle.data_fd() else {
            // Without a descriptor to fetch, this checks that the producer still runs.
            return if self.has_ended() { Err(Error::ProducerGone { pid: self.pid() }) } else { Ok(None) };
        };
        let (device, inode) = handle.data_identity();
        let expected = FileIdentity { device, inode };
        let wanted = RemoteFd::Data {
            fd: number,
            slot: handle.slot(),
            generation: handle.generation(),
            identity: expected,
            opens_through_procfs: handle.has(crate::handle::FLAG_PROCFS),
        };
        let fetched = self.channel.fetch(wanted, exchange);
        // Before any error of the fetch: if the handle is stale, that is the cause.
        self.slot(handle)?;
        let fd = match fetched {
            Ok(fetched) => fetched.fd,
            Err(error @ Error::OtherObject { .. }) => {
                return Err(self.retired(handle).unwrap_or_else(|| self.gone_if_replaced(error, exchange)));
            }
            Err(error) => return Err(error),
        };
        let identity =
            umf_os::file::identity(&fd).map_err(|errno| Error::system("statx of the fetched fd", errno))?;
        if identity != expected {
            let evidence = "its device and inode differ";
            let error = Error::OtherObject { pid: self.pid(), fd: number, evidence };
            return Err(self.retired(handle).unwrap_or_else(|| self.gone_if_replaced(error, exchange)));
        }
        Ok(Some(fd))
    }

    /// Returns `error`, or [`Error::ProducerGone`] if the process has called `exec`, which closes
    /// the ledger too.
    fn gone_if_replaced(&self, error: Error, exchange: &Exchange) -> Error {
        if self.has_ledger(exchange) { error } else { Error::ProducerGone { pid: self.pid() } }
    }

    /// Returns whether the process still has its ledger open.
    fn has_ledger(&self, exchange: &Exchange) -> bool {
        let ledger = self.channel.fetch(RemoteFd::Ledger(self.ledger_fd), exchange);
        ledger.is_ok_and(|fetched| {
            umf_os::file::identity(fetched.fd).is_ok_and(|found| found == self.ledger.identity())
        })
    }

    /// Checks that memory which a driver imported by pid came from the producer. A driver
    /// identifies a process by its pid alone, which may have been reused, and the process may have
    /// called `exec`. Called after the import: if the producer still runs then, the driver has used
    /// its memory.
    ///
    /// # Errors
    /// [`Error::ProducerGone`].
    pub(super) fn check_driver_import(&self, handle: &Handle, exchange: &Exchange) -> Result<()> {
        if handle.data_fd().is_some() || (!self.has_ended() && self.has_ledger(exchange)) {
            return Ok(());
        }
        Err(Error::ProducerGone { pid: self.pid() })
    }
}

/// Producers of memory that this process has passed on, whose tickets were not all released yet.
static SENDERS: Lock<Vec<Arc<Producer>>> = Lock::new(Vec::new());

/// Keeps a producer's lease table, in which this process has sent a ticket.
pub(super) fn keep_sender(producer: Arc<Producer>) {
    let mut senders = SENDERS.lock();
    if !senders.iter().any(|known| Arc::ptr_eq(known, &producer)) {
        senders.push(producer);
        drop(senders);
        umf_runtime::deferred::after_poll(crate::after_poll);
    }
}

/// Returns the number of handles that this process has passed on, and whose claims it has not
/// noticed yet.
pub(super) fn passed_on() -> u64 {
    let senders = SENDERS.lock();
    let sent = |producer: &Arc<Producer>| producer.leases().map_or(0, ImporterLeases::sent_tickets);
    senders.iter().map(|producer| sent(producer) as u64).sum()
}

/// Cancels a handle of [`super::Mapping::send_handle`]: it becomes a plain handle. Returns `false`
/// if all readers have claimed it, or if no importer of this process has sent it.
pub fn cancel_passed_on(handle: &Handle) -> bool {
    let Some(ticket) = handle.ticket() else { return false };
    let senders = SENDERS.lock();
    let mut of_handle = senders.iter().filter(|producer| producer.nonce == handle.nonce());
    of_handle.any(|producer| producer.cancel(handle.slot(), ticket))
}

/// Returns whether readers have still to claim a handle of [`super::Mapping::send_handle`].
#[must_use]
pub fn is_passed_on(handle: &Handle) -> bool {
    let Some(ticket) = handle.ticket() else { return false };
    let senders = SENDERS.lock();
    let mut of_handle = senders.iter().filter(|producer| producer.nonce == handle.nonce());
    of_handle.any(|producer| producer.leases().is_ok_and(|own| own.is_in_transit(handle.slot(), ticket)))
}

/// Releases the memory of handles of [`super::Mapping::send_handle`] that were claimed. Returns the
/// number of the others. `umf_runtime::deferred::poll` calls it.
pub fn poll_passed_on() -> usize {
    let mut in_transit = 0;
    // Dropped without the lock: it may disconnect.
    let mut released = Vec::new();
    SENDERS.lock().retain(|producer| {
        let left = producer.poll_tickets();
        if left == 0 {
            released.push(Arc::clone(producer));
        }
        in_transit += left;
        left != 0
    });
    in_transit
}

impl Drop for Producer {
    fn drop(&mut self) {
        let Some(table) = NonNull::new(*self.leases.get_mut()) else { return };
        // SAFETY: a published box is dropped here only.
        if unsafe { table.as_ref() }.is_of_this_process() {
            // SAFETY: it came from a box. It has no leases: the cache entry of a lease keeps `self`
            // alive.
            drop(unsafe { Box::from_raw(table.as_ptr()) });
        }
    }
}
