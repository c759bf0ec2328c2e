//! One producer, as the importer knows it.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

use umf_os::ReceivedFd;
use umf_sync::{Lock, failpoint, fork};

use crate::handle::Handle;
use crate::identity::Nonce;
use crate::lease::{self, ImporterLeases, Lease};
use crate::ledger::{LedgerReader, SlotContent, SlotReader};
use crate::protocol::lazy::{self, Vacant};
use crate::transfer::{Exchange, FdChannel, Fetched, Mode, RemoteFd};
use crate::{Error, Result};
use umf_os::FileIdentity;

/// How many files without windows are remembered. Others are asked each time that they are mapped.
const FILES_WITHOUT_WINDOWS: usize = 32;

/// How often a lease table is asked for while this process forks.
const OPENINGS: u32 = 16;

fn file_of(handle: &Handle) -> FileIdentity {
    let (device, inode) = handle.data_identity();
    FileIdentity { device, inode }
}

/// A producer that was found, with its ledger mapped.
#[derive(Debug)]
pub(super) struct Producer {
    channel: FdChannel,
    ledger: LedgerReader,
    ledger_fd: i32,
    nonce: Nonce,
    /// Files that turned out to have no windows (of huge pages, or not sealed), or for which there
    /// was no address space, the last few.
    without_windows: Lock<Vec<FileIdentity>>,
    /// Whether there is any.
    any_without_windows: AtomicBool,
    /// Null, or a box that the first open creates. A forked child replaces and leaks that of its
    /// parent: mappings that were open at the fork still point to it.
    leases: AtomicPtr<ImporterLeases>,
}

impl Producer {
    /// Finds the producer of a handle and maps its ledger.
    pub(super) fn connect(handle: &Handle, exchange: &Exchange, timeout: Duration) -> Result<Self> {
        let channel = FdChannel::new(handle, timeout)?;
        let fetched = channel.fetch(RemoteFd::Ledger(handle.ledger_fd()), exchange);
        let opened = fetched.and_then(|Fetched { fd, mode, .. }| Ok((LedgerReader::open(fd, handle)?, mode)));
        let (ledger, mode) = opened.map_err(|error| match error {
            // A process that ended meanwhile explains everything else. If it is the same process
            // and another file has the number, then the exporter was dropped, or exec closed the
            // ledger.
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
        })
    }

    pub(super) const fn ledger(&self) -> &LedgerReader {
        &self.ledger
    }

    pub(super) const fn pid(&self) -> u32 {
        self.channel.pid()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ledger.producer_has_ended() || self.channel.has_ended()
    }

    pub(super) fn fds(&self) -> u64 {
        // And the ledger's.
        self.channel.fds() + 1 + self.leases().map_or(0, ImporterLeases::fds)
    }

    /// This process's leases, if its lease table was opened.
    fn leases(&self) -> core::result::Result<&ImporterLeases, Vacant<ImporterLeases>> {
        // SAFETY: what is published goes when `self` does, or never.
        let found = lazy::get_valid(&self.leases, |leases| unsafe { leases.as_ref() }.is_of_this_process());
        // SAFETY: as above.
        found.map(|leases| unsafe { leases.as_ref() })
    }

    /// Counts an open of the export in `slot`.
    pub(super) fn lease(&self, slot: u32, exchange: &Exchange) -> Result<Lease> {
        match self.leases() {
            Ok(leases) => leases.acquire(slot),
            Err(vacant) => self.open_lease_table(vacant, exchange)?.acquire(slot),
        }
    }

    /// Opens the lease table, or comes too late and yields what another thread made.
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
        if is_refused(&opened) && exchange.modes().contains(&Mode::Socket) {
            // Over its socket a producer sends a description that need not be opened anew. Each
            // fork of this process meanwhile makes it worthless.
            let by_socket = Exchange::Order(vec![Mode::Socket]);
            for _ in 0..OPENINGS {
                match open(&by_socket) {
                    Err(Error::NotPermitted { .. }) => break,
                    again => opened = again,
                }
                if !is_refused(&opened) {
                    break;
                }
            }
        }
        let leases = opened?;
        failpoint!("lease.table_checked");
        let leases = NonNull::from(Box::leak(Box::new(leases)));
        let there = match lazy::install(&self.leases, vacant, leases) {
            Ok(()) => leases,
            Err(first) => {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(leases.as_ptr()) });
                // (Only a fork takes one out, which leaves no other thread in the child.)
                first.ok_or(Error::Misbehaved { pid, what: "its lease table went while it was opened" })?
            }
        };
        // SAFETY: it goes when `self` does, or never.
        Ok(unsafe { there.as_ref() })
    }

    /// Whether a handle's file may be mapped by windows, as far as is known.
    pub(super) fn has_windows(&self, handle: &Handle) -> bool {
        if !self.any_without_windows.load(Ordering::Relaxed) {
            return true;
        }
        // A fork may have left it taken for ever; then the file is asked again.
        let files = self.without_windows.try_lock();
        files.is_none_or(|files| !files.contains(&file_of(handle)))
    }

    /// A handle's file has no windows.
    pub(super) fn note_no_windows(&self, handle: &Handle) {
        if let Some(mut files) = self.without_windows.try_lock() {
            if files.len() == FILES_WITHOUT_WINDOWS {
                files.remove(0);
            }
            files.push(file_of(handle));
            self.any_without_windows.store(true, Ordering::Relaxed);
        }
    }

    /// The slot that a handle names, if the handle is current.
    pub(super) fn slot(&self, handle: &Handle) -> Result<SlotReader<'_>> {
        let slot = self.ledger.slot(handle.slot()).ok_or_else(|| self.stale(handle, 0))?;
        let now = slot.generation();
        if now == handle.generation() { Ok(slot) } else { Err(self.stale(handle, now)) }
    }

    /// What the ledger says of a handle's export, if the handle is current and says the same.
    pub(super) fn content(&self, handle: &Handle) -> Result<SlotContent> {
        let slot = self.slot(handle)?;
        let content = slot.read(handle.generation()).map_err(|now| self.stale(handle, now))?;
        let same = content.fd == handle.data_fd().unwrap_or(-1)
            && (content.device, content.inode) == handle.data_identity()
            && content.region_id == handle.region_id()
            && content.region_size == handle.region_size()
            && content.data_offset == handle.data_offset()
            && (content.offset, content.length, content.requested)
                == (handle.offset(), handle.length(), handle.requested());
        if same {
            return Ok(content);
        }
        let what = "the handle and its ledger disagree about the memory (one of them was forged)";
        Err(Error::Misbehaved { pid: self.pid(), what })
    }

    pub(super) fn stale(&self, handle: &Handle, now: u64) -> Error {
        Error::Stale { pid: self.pid(), slot: handle.slot(), generation: handle.generation(), now }
    }

    /// A duplicate of the fd behind the handle's region, and certainty that it is that.
    ///
    /// The file's identity must be what the ledger says, and the ledger must still say it *after*
    /// the fetch: then the producer had that file under that number when it was fetched. (Identity
    /// alone does not do: two eventfds have the same inode.)
    pub(super) fn fetch(&self, handle: &Handle, exchange: &Exchange) -> Result<Option<ReceivedFd>> {
        let Some(number) = handle.data_fd() else {
            // Of a descriptor, fetching it would tell.
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
        // Whatever came of it: a handle that has gone stale is that in the first place.
        self.slot(handle)?;
        let fd = match fetched {
            Ok(fetched) => fetched.fd,
            Err(error @ Error::OtherObject { .. }) => return Err(self.gone_if_replaced(error, exchange)),
            Err(error) => return Err(error),
        };
        let identity =
            umf_os::file::identity(&fd).map_err(|errno| Error::system("statx of the fetched fd", errno))?;
        if identity != expected {
            let evidence = "its device and inode differ";
            return Err(
                self.gone_if_replaced(Error::OtherObject { pid: self.pid(), fd: number, evidence }, exchange)
            );
        }
        Ok(Some(fd))
    }

    /// Whether another object behind the fd means another program in the process: `exec` closes the
    /// ledger too.
    fn gone_if_replaced(&self, error: Error, exchange: &Exchange) -> Error {
        if self.has_ledger(exchange) { error } else { Error::ProducerGone { pid: self.pid() } }
    }

    /// Whether the process still has its ledger open.
    fn has_ledger(&self, exchange: &Exchange) -> bool {
        let ledger = self.channel.fetch(RemoteFd::Ledger(self.ledger_fd), exchange);
        ledger.is_ok_and(|fetched| {
            umf_os::file::identity(fetched.fd).is_ok_and(|found| found == self.ledger.identity())
        })
    }

    /// That what a driver has brought over by itself, if it had to, was the producer's: drivers
    /// know a process by its number alone, which another may have by now, or another program in it.
    /// Asked when the driver is done: then it was the producer's when the driver looked.
    pub(super) fn check_driver_import(&self, handle: &Handle, exchange: &Exchange) -> Result<()> {
        if handle.data_fd().is_some() || (!self.has_ended() && self.has_ledger(exchange)) {
            return Ok(());
        }
        Err(Error::ProducerGone { pid: self.pid() })
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let Some(table) = NonNull::new(*self.leases.get_mut()) else { return };
        // SAFETY: a published table goes here.
        if unsafe { table.as_ref() }.is_of_this_process() {
            // SAFETY: it came from a box. No lease is left in it: the cache entry of a lease keeps
            // `self` alive.
            drop(unsafe { Box::from_raw(table.as_ptr()) });
        }
    }
}
