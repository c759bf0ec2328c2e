//! [`Error`]: the errors of exporting and opening, each with its cause and its remedy.

use core::fmt;

use rustix::io::Errno;
use umf_core::ProviderKind;

use crate::handle::DecodeError;
use crate::transfer::Mode;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an export or an open failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a handle.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The directory of sockets (`ipc.directory`) is unsuitable, or an operation in it failed.
    #[error(transparent)]
    Directory(#[from] crate::rendezvous::DirectoryError),
    /// The exchange order names `directory`, and no directory is set.
    #[error(
        "cannot export: the exchange order names \"directory\", and no directory is set; set UMF_IPC_DIR (ipc.directory) to a \
         directory that importers have too, or leave it out of UMF_IPC_EXCHANGE"
    )]
    NoDirectory,
    /// The handle was made before the machine was booted, or on another machine.
    #[error(
        "cannot open the handle: it comes from another boot or another machine, and names memory of that boot only; \
         make a new one, or send the data over the network"
    )]
    OtherBoot,
    /// The producer has ended, replaced itself by `exec`, or dropped the exporter of the handle.
    #[error(
        "producer {pid} is gone: it ended, called exec or dropped its exporter; existing mappings stay valid, ask for a \
         new handle"
    )]
    ProducerGone {
        /// Its process id.
        pid: u32,
    },
    /// The process id now belongs to another process.
    #[error(
        "cannot open memory of process {pid}: the producer ended, and its pid now belongs to another process ({evidence}); \
         get a new handle"
    )]
    ProducerReplaced {
        /// The process id.
        pid: u32,
        /// What differs.
        evidence: &'static str,
    },
    /// The producer's fd number now names another file.
    #[error(
        "cannot open memory of producer {pid}: its fd {fd} is not the file in the handle ({evidence}), because the \
         producer closed it; get a new handle, and close only descriptors that the program opened"
    )]
    OtherObject {
        /// The process id.
        pid: u32,
        /// The fd number in the producer.
        fd: i32,
        /// What differs.
        evidence: &'static str,
    },
    /// The memory was freed (and perhaps allocated again) since the handle was made, or its export
    /// was evicted from the producer's cache.
    #[error(
        "stale handle: slot {slot} of producer {pid} has generation {now}, the handle has {generation}: the memory \
         was freed since, or its export was evicted; get a new handle from the producer"
    )]
    Stale {
        /// The producer's process id.
        pid: u32,
        /// The ledger slot.
        slot: u32,
        /// The generation in the handle.
        generation: u64,
        /// The generation of the slot.
        now: u64,
    },
    /// The handle was sent for as many openers as have claimed it, or its sender ended, and its
    /// memory was freed since.
    #[error(
        "cannot open the handle of slot {slot} of producer {pid}: its memory was freed, and it was opened as often as its \
         sender said, or its sender ended; let the sender send it again, for more readers if more are to open it"
    )]
    TicketClaimed {
        /// The producer's process id.
        pid: u32,
        /// The ledger slot.
        slot: u32,
    },
    /// The sender of the handle has cancelled it, or has given it up because too much was in
    /// transit for too long ([`crate::transit::TransitLimits`]), and its memory was freed since.
    #[error(
        "cannot open the handle of slot {slot} of producer {pid}: its sender cancelled the message, or gave it up after \
         ipc.expire_after_ms, and its memory was freed since; let the sender send it again, and read messages sooner"
    )]
    TicketExpired {
        /// The producer's process id.
        pid: u32,
        /// The ledger slot.
        slot: u32,
    },
    /// Too much memory of this process has handles in transit ([`crate::transit`]).
    #[error(
        "cannot send a handle: {bytes} bytes of this process are in transit, and the limit is {limit} (ipc.max_in_transit); \
         let readers open what was sent, cancel what none will read, or raise the limit"
    )]
    TransitFull {
        /// Bytes in transit.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A handle is passed on that is not the one that its mapping was opened with.
    #[error(
        "cannot pass on the handle: it names other memory than the mapping; pass the handle that the mapping was opened \
         with"
    )]
    OtherHandle,
    /// An importer without leases passes on a handle, or opens a handle in transit whose memory was
    /// freed.
    #[error(
        "cannot pass on the handle, or open it after its memory was freed: this process opens without leases \
         (ipc.leases = \"off\"), so that nothing keeps the memory; set ipc.leases = \"on\""
    )]
    LeasesOff,
    /// No allowed exchange mode can fetch the producer's fd.
    #[error("not permitted to get memory of producer {pid}:{}", FailedAttempts(.attempts))]
    NotPermitted {
        /// The process id.
        pid: u32,
        /// The exchange modes that were tried, in this order.
        attempts: Vec<FailedAttempt>,
    },
    /// This importer has no [`umf_core::Import`] for this kind of memory.
    #[error(
        "cannot open memory of kind \"{kind}\": this process has no importer for that kind; register one with \
         umf::registry::register_import (kinds of other crates), enable the kind's feature of umf-rs (kinds of umf), or \
         add one with Importer::builder().import(..)"
    )]
    UnknownProvider {
        /// The kind in the handle.
        kind: ProviderKind,
    },
    /// A hard limit is reached.
    #[error(
        "cannot add to the {what}: their limit of {limit} is reached and all are in use; close some, raise the limit \
         ({setting}) or make it soft (UMF_IPC_LIMIT=soft)"
    )]
    LimitReached {
        /// Which limit.
        what: &'static str,
        /// Its value.
        limit: u64,
        /// The variables that set it.
        setting: &'static str,
    },
    /// Every row of the producer's lease table belongs to another importer, so that an open could
    /// not be counted.
    #[error(
        "no lease row is free at producer {pid}: all {rows} belong to other importers, or a process holds their locks; \
         close importers of its memory, or raise RLIMIT_FSIZE in the producer if it made the table small"
    )]
    NoLeaseRow {
        /// The process id.
        pid: u32,
        /// How many rows its table has.
        rows: u32,
    },
    /// The producer did not answer in time.
    #[error(
        "producer {pid} did not answer on its socket within {milliseconds} ms: it is stopped or overloaded; continue it, or \
         raise UMF_IPC_OPEN_TIMEOUT_MS"
    )]
    TimedOut {
        /// The process id.
        pid: u32,
        /// The limit (`UMF_IPC_OPEN_TIMEOUT_MS`).
        milliseconds: u64,
    },
    /// The other process breaks the protocol.
    #[error(
        "cannot open memory of producer {pid}: it breaks the protocol: {what}; use one release of umf in both processes, and \
         open only handles of processes that you trust"
    )]
    Misbehaved {
        /// The process id.
        pid: u32,
        /// The violation.
        what: &'static str,
    },
    /// The address given is not in memory that umf manages.
    #[error(
        "address {address} lies in no region of umf: allocate it from a pool, or get its region through an Upstream"
    )]
    NotTracked {
        /// The address.
        address: umf_core::Address,
    },
    /// The provider's memory cannot be made visible to other processes.
    #[error("memory of the {kind} provider {name:?} cannot be exported: {why}")]
    NotExportable {
        /// The kind of provider.
        kind: ProviderKind,
        /// Its name.
        name: String,
        /// Why, and what to use instead.
        why: &'static str,
    },
    /// Writing to memory that was opened read-only.
    #[error(
        "the mapping is read-only: open it with Access::ReadWrite, or let the producer export it writable"
    )]
    ReadOnly,
    /// An offset outside of the mapping.
    #[error(
        "{length} bytes at offset {offset} reach past the end of the block, which has {size} bytes; use a range inside of it"
    )]
    OutOfBounds {
        /// Offset in the block.
        offset: usize,
        /// Length of the access.
        length: usize,
        /// Size of the block.
        size: usize,
    },
    /// The CPU cannot access this memory.
    #[error(
        "the memory is on a device, so that the CPU cannot access it; use the device's copy functions with its address"
    )]
    NotHostAccessible,
    /// An error of a provider or pool.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// A system call failed.
    #[error("{call} failed: {errno} ({}){hint}", errno.raw_os_error())]
    System {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
        /// The remedy, beginning with "; ", or empty.
        hint: &'static str,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str, errno: Errno) -> Self {
        let hint = match errno {
            Errno::MFILE => "; this process has no fds left: raise RLIMIT_NOFILE (ulimit -n) or close some",
            Errno::NFILE => "; the system has no fds left: raise fs.file-max",
            Errno::NOMEM => "; no memory, or vm.max_map_count mappings reached",
            Errno::NOSPC => "; no shared memory left",
            Errno::STALE => {
                "; the program closed a descriptor of umf, or opened another file under its number: let it close only \
                 descriptors that it opened"
            }
            Errno::PERM | Errno::NOSYS => {
                "; a sandbox, a seccomp filter or a security module refuses it, or this kernel lacks it: allow it there"
            }
            _ => "",
        };
        Self::System { call, errno, hint }
    }

    /// Returns whether this process had no memory, address space or mapping left.
    pub(crate) const fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Self::Memory(umf_core::Error::OutOfMemory { .. }) | Self::System { errno: Errno::NOMEM, .. }
        )
    }

    /// Returns whether the memory that the handle names is gone: opening it again always fails.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Decode(_)
                | Self::OtherBoot
                | Self::ProducerGone { .. }
                | Self::ProducerReplaced { .. }
                | Self::OtherObject { .. }
                | Self::Stale { .. }
        )
    }
}

/// One exchange mode that was tried, and why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The mode.
    pub mode: Mode,
    /// Why it failed.
    pub reason: String,
    /// What makes it work.
    pub remedy: &'static str,
}

struct FailedAttempts<'a>(&'a [FailedAttempt]);

impl fmt::Display for FailedAttempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, attempt) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { ";" };
            write!(f, "{separator} {}: {} (remedy: {})", attempt.mode, attempt.reason, attempt.remedy)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_separated_and_the_list_ends_without_a_separator() {
        let attempt = |mode| FailedAttempt { mode, reason: "no".to_owned(), remedy: "yes" };
        let attempts = vec![attempt(Mode::Pidfd), attempt(Mode::Socket)];
        let text = Error::NotPermitted { pid: 7, attempts }.to_string();
        assert_eq!(
            text,
            "not permitted to get memory of producer 7: pidfd: no (remedy: yes); socket: no (remedy: yes)"
        );
    }
}
