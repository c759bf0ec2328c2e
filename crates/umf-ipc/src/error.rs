//! What can go wrong between two processes, each with what to do about it.

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
    /// The handle was made before the machine was booted, or on another machine.
    #[error(
        "the handle comes from another boot or another machine: handles name memory of this boot only; \
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
        "process {pid} is not the producer any more: its number was given to another process ({evidence})"
    )]
    ProducerReplaced {
        /// The process id.
        pid: u32,
        /// How that was found out.
        evidence: &'static str,
    },
    /// The producer's fd number now names another file.
    #[error(
        "fd {fd} of producer {pid} names another object than the handle says ({evidence}): it was closed and reused"
    )]
    OtherObject {
        /// The process id.
        pid: u32,
        /// The fd number in the producer.
        fd: i32,
        /// What differs.
        evidence: &'static str,
    },
    /// The memory was freed (and perhaps handed out again) since the handle was made.
    #[error(
        "stale handle: slot {slot} of producer {pid} has generation {now}, the handle has {generation}: the memory \
         was freed since; get a new handle from the producer"
    )]
    Stale {
        /// The producer's process id.
        pid: u32,
        /// The ledger slot.
        slot: u32,
        /// Of the handle.
        generation: u64,
        /// Of the slot.
        now: u64,
    },
    /// No allowed way leads to the producer's fd.
    #[error("not permitted to get memory of producer {pid}:{}", FailedAttempts(.attempts))]
    NotPermitted {
        /// The process id.
        pid: u32,
        /// What was tried and what it said, in this order.
        attempts: Vec<FailedAttempt>,
    },
    /// This importer has no [`umf_core::Import`] for this kind of memory.
    #[error(
        "no provider of kind \"{kind}\" is registered with this importer; add one with Importer::builder().import(..)"
    )]
    UnknownProvider {
        /// The kind in the handle.
        kind: ProviderKind,
    },
    /// A limit that the settings call hard.
    #[error(
        "{what}: limit {limit} reached and everything in use; close some mappings, raise the limit ({setting}) or \
         make it soft (UMF_IPC_LIMIT=soft)"
    )]
    LimitReached {
        /// Which limit.
        what: &'static str,
        /// Its value.
        limit: u64,
        /// How it is set.
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
        "producer {pid} did not answer on its socket within {milliseconds} ms: it is stopped or overloaded"
    )]
    TimedOut {
        /// The process id.
        pid: u32,
        /// The limit (`UMF_IPC_OPEN_TIMEOUT_MS`).
        milliseconds: u64,
    },
    /// The other side does not keep to the protocol.
    #[error("producer {pid} is not to be trusted: {what}")]
    Misbehaved {
        /// The process id.
        pid: u32,
        /// What it did.
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
    #[error("{length} bytes at offset {offset} reach past the end of the block, which has {size} bytes")]
    OutOfBounds {
        /// Offset in the block.
        offset: usize,
        /// Length of the access.
        length: usize,
        /// Size of the block.
        size: usize,
    },
    /// The CPU may not touch this memory.
    #[error(
        "the memory is on a device: the CPU cannot touch it; use the device's copy functions with its address"
    )]
    NotHostAccessible,
    /// A provider said no.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// A system call failed.
    #[error("{call} failed: {errno} ({}){hint}", errno.raw_os_error())]
    System {
        /// Which.
        call: &'static str,
        /// Its error.
        errno: Errno,
        /// What to do, beginning with "; ", or nothing.
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

    /// Returns whether there was no memory, no address space, or no mapping left in this process.
    pub(crate) const fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Self::Memory(umf_core::Error::OutOfMemory { .. }) | Self::System { errno: Errno::NOMEM, .. }
        )
    }

    /// Whether trying again with the same handle can never work: the memory that it names is gone.
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

/// One way that was tried, and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The way.
    pub mode: Mode,
    /// What happened.
    pub reason: String,
    /// What would make it work.
    pub remedy: &'static str,
}

struct FailedAttempts<'a>(&'a [FailedAttempt]);

impl fmt::Display for FailedAttempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for attempt in self.0 {
            write!(f, " {}: {} (remedy: {});", attempt.mode, attempt.reason, attempt.remedy)?;
        }
        Ok(())
    }
}
