//! [`FdChannel`]: fetches descriptors of one producer for an importer. It tries the exchange modes
//! in order, and turns each failure into a reason and a remedy.

mod sockets;

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use umf_os::ReceivedFd;
use umf_sync::{failpoint, fork};

use self::sockets::SocketClient;
use super::socket::client::Target;
use super::{Exchange, Mode, diagnosis};
use crate::error::FailedAttempt;
use crate::handle::Handle;
use crate::identity;
use crate::rendezvous::Directory;
use crate::{Error, Result};
use umf_os::socket::Allow;
use umf_os::{CheckedFile, FileIdentity};

/// What an importer's settings say about channels.
#[derive(Clone, Debug)]
pub(crate) struct ChannelSettings {
    pub directory: Option<Directory>,
    pub allow: Allow,
    /// The longest time that a producer may take to answer on a socket.
    pub timeout: Duration,
}

/// A descriptor of the producer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RemoteFd {
    /// The ledger, with its descriptor number.
    Ledger(RawFd),
    /// The lease table, with its descriptor number.
    LeaseTable(RawFd),
    /// The file of an export's memory.
    Data { fd: RawFd, slot: u32, generation: u64, identity: FileIdentity, opens_through_procfs: bool },
}

impl RemoteFd {
    const fn number(self) -> RawFd {
        match self {
            Self::Ledger(fd) | Self::LeaseTable(fd) | Self::Data { fd, .. } => fd,
        }
    }
}

/// A connection to one producer. Where possible it holds a pidfd, which does not refer to another
/// process after the pid is reused.
#[derive(Debug)]
pub(crate) struct FdChannel {
    pid: u32,
    pidfd: core::result::Result<CheckedFile, Errno>,
    is_in_same_pid_namespace: bool,
    /// Whether the pidfd is known to be the producer's, by its inode in pidfs.
    is_verified: bool,
    abstract_socket: Option<SocketClient>,
    /// `None` if the producer has no socket in a directory, or this process no directory.
    socket_in_directory: Option<SocketClient>,
    /// Whether the producer has a socket in a directory.
    is_in_directory: bool,
    /// Bit per [`Mode`] that was refused before one succeeded: it is tried last from then on.
    refused: AtomicU8,
    /// [`fork::generation`] of the process that made this.
    generation: u32,
    timeout: Duration,
}

/// A descriptor that was fetched from a producer.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub fd: ReceivedFd,
    pub mode: Mode,
    /// Whether the producer opened it for this process alone: no other process has its open file
    /// description.
    pub is_exclusive: bool,
}

enum Failure {
    /// This mode does not work; another one may.
    Refused(FailedAttempt),
    /// No mode can work.
    Final(Error),
}

impl FdChannel {
    /// Finds the producer of `handle`. Does not connect to its socket yet.
    ///
    /// # Errors
    /// [`Error::ProducerGone`], [`Error::ProducerReplaced`], and [`Error::System`] without a free
    /// descriptor.
    pub(crate) fn new(handle: &Handle, settings: &ChannelSettings) -> Result<Self> {
        let pid = handle.pid();
        let (own, producer) = (identity::pid_namespace(), handle.pid_namespace());
        let is_in_same_pid_namespace = own == 0 || producer == 0 || own == producer;
        let pidfd =
            if is_in_same_pid_namespace { umf_os::process::pidfd_open(pid) } else { Err(Errno::SRCH) };
        failpoint!("producer.found");
        let mut is_verified = false;
        if is_in_same_pid_namespace {
            match &pidfd {
                // A pid that was reused for a thread gives ENOENT, or EINVAL before Linux 6.16.
                Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Err(Error::ProducerGone { pid }),
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                    return Err(Error::system("pidfd_open", *errno));
                }
                Ok(pidfd) => {
                    let inode = identity::pidfs_inode(pidfd).unwrap_or(0);
                    if inode != 0 && handle.pidfs_inode() != 0 && inode != handle.pidfs_inode() {
                        return Err(Error::ProducerReplaced { pid, evidence: "its pidfs inode differs" });
                    }
                    is_verified = inode != 0 && handle.pidfs_inode() != 0;
                    if umf_os::process::has_ended(pidfd.as_fd()) {
                        return Err(Error::ProducerGone { pid });
                    }
                }
                Err(_) => {}
            }
        }
        let target =
            Target { nonce: handle.nonce(), pid, key: handle.key(), allow: settings.allow, directory: None };
        let in_directory = settings.directory.clone().filter(|_| handle.is_in_directory());
        Ok(Self {
            pid,
            pidfd: pidfd.and_then(CheckedFile::take),
            is_in_same_pid_namespace,
            is_verified,
            abstract_socket: handle.is_served().then(|| SocketClient::new(target.clone())),
            socket_in_directory: in_directory
                .map(|directory| SocketClient::new(Target { directory: Some(directory), ..target })),
            is_in_directory: handle.is_in_directory(),
            refused: AtomicU8::new(0),
            generation: fork::generation(),
            timeout: settings.timeout,
        })
    }

    /// Returns whether the producer is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        match self.pidfd() {
            Ok(pidfd) => umf_os::process::has_ended(pidfd),
            Err(_) => !self.is_inherited() && self.sockets().any(SocketClient::has_hung_up),
        }
    }

    fn sockets(&self) -> impl Iterator<Item = &SocketClient> {
        self.abstract_socket.iter().chain(&self.socket_in_directory)
    }

    /// Returns whether the process with the producer's pid is the one that made the handle. It may
    /// have called exec, or dropped the exporter.
    pub(crate) const fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// Returns whether this process is a forked child of the one that made the channel. Then the
    /// lock of `client` may be held for ever: a fork does not wait for a thread that waits for an
    /// answer.
    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Returns the modes of an order: those that this producer has refused are the last ones.
    fn order<'e>(&self, exchange: &'e Exchange) -> impl Iterator<Item = Mode> + use<'e> {
        let refused = self.refused.load(Ordering::Relaxed);
        let modes = move |is_refused| {
            let all = exchange.modes().iter().copied();
            all.filter(move |&mode| (refused & bit(mode) != 0) == is_refused)
        };
        modes(false).chain(modes(true))
    }

    /// Fetches a duplicate of a descriptor of the producer by the first mode that works.
    ///
    /// The caller checks that it is the right file, by the file's identity and by the ledger's
    /// content after the fetch.
    pub(crate) fn fetch(&self, wanted: RemoteFd, exchange: &Exchange) -> Result<Fetched> {
        let mut attempts = Vec::new();
        if exchange.modes().is_empty() {
            attempts.extend(Mode::ALL.map(|mode| FailedAttempt {
                mode,
                reason: "the importer's exchange order is empty, so that no mode is allowed".to_owned(),
                remedy: "Exchange::Auto, or name a mode",
            }));
        }
        for mode in self.order(exchange) {
            let fetched = match mode {
                Mode::Pidfd => self.by_pidfd(wanted).map(|fd| (fd, false)),
                Mode::Procfs => self.by_procfs(wanted).map(|fd| (fd, false)),
                Mode::Socket => self.by_socket(wanted),
                Mode::Directory => self.by_directory(wanted),
            };
            match fetched {
                Ok((fd, is_exclusive)) => {
                    tracing::debug!(pid = self.pid, %mode, "fetched an fd");
                    // Data may be refused where the ledger is not, and by that mode alone.
                    if matches!(wanted, RemoteFd::Ledger(_)) {
                        let refused =
                            attempts.iter().fold(0, |all, attempt: &FailedAttempt| all | bit(attempt.mode));
                        self.refused.store(refused, Ordering::Relaxed);
                    }
                    return Ok(Fetched { fd, mode, is_exclusive });
                }
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Refused(attempt)) => {
                    tracing::debug!(pid = self.pid, %mode, reason = attempt.reason, "exchange mode refused");
                    attempts.push(attempt);
                }
            }
        }
        if self.has_ended_by_pidfd() {
            // The kernel refuses access to a process that has ended, and the attempts report
            // another reason.
            return Err(Error::ProducerGone { pid: self.pid });
        }
        Err(Error::NotPermitted { pid: self.pid, attempts })
    }

    fn in_other_namespace(mode: Mode) -> Failure {
        Failure::Refused(FailedAttempt {
            mode,
            reason: "the producer is in another pid namespace, where its pid means another process"
                .to_owned(),
            remedy: diagnosis::OTHER_PID_NAMESPACE,
        })
    }

    /// Returns the failure that a closed descriptor number in the producer means.
    fn closed(&self, wanted: RemoteFd) -> Failure {
        if self.has_ended() {
            return Failure::Final(Error::ProducerGone { pid: self.pid });
        }
        Failure::Final(match wanted {
            // The exporter keeps both open until it is dropped or its process calls exec.
            RemoteFd::Ledger(_) | RemoteFd::LeaseTable(_) => Error::ProducerGone { pid: self.pid },
            RemoteFd::Data { fd, .. } => {
                Error::OtherObject { pid: self.pid, fd, evidence: "no such fd is open there any more" }
            }
        })
    }

    fn by_pidfd(&self, wanted: RemoteFd) -> core::result::Result<ReceivedFd, Failure> {
        if !self.is_in_same_pid_namespace {
            return Err(Self::in_other_namespace(Mode::Pidfd));
        }
        let pidfd = self
            .pidfd()
            .map_err(|errno| Failure::Refused(diagnosis::refused(Mode::Pidfd, self.pid, errno)))?;
        let fetched = umf_os::process::pidfd_getfd(pidfd, wanted.number());
        failpoint!("fetched.by_pidfd");
        fetched.map(ReceivedFd::from).map_err(|errno| match errno {
            // The main thread has exited and other threads run (`pthread_exit(3)`). EBADF: before
            // Linux 6.9.
            Errno::SRCH | Errno::BADF
                if !self.has_ended_by_pidfd() && umf_os::process::fds_of_other_thread(self.pid).is_some() =>
            {
                Failure::Refused(FailedAttempt {
                    mode: Mode::Pidfd,
                    reason: "the producer's main thread has exited, and pidfd_getfd asks that thread"
                        .to_owned(),
                    remedy: "use procfs or socket, or keep the main thread",
                })
            }
            Errno::SRCH => Failure::Final(Error::ProducerGone { pid: self.pid }),
            Errno::BADF => self.closed(wanted),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Failure::Final(Error::system("pidfd_getfd", errno)),
            errno => Failure::Refused(diagnosis::refused(Mode::Pidfd, self.pid, errno)),
        })
    }

    fn by_procfs(&self, wanted: RemoteFd) -> core::result::Result<ReceivedFd, Failure> {
        if !self.is_in_same_pid_namespace {
            return Err(Self::in_other_namespace(Mode::Procfs));
        }
        if let RemoteFd::Data { opens_through_procfs: false, .. } = wanted {
            return Err(Failure::Refused(FailedAttempt {
                mode: Mode::Procfs,
                reason: "memory of a device (a dma-buf, CUDA memory) cannot be opened through /proc"
                    .to_owned(),
                remedy: "use pidfd or socket",
            }));
        }
        if !umf_os::process::sees_itself_in_proc() {
            return Err(Failure::Refused(FailedAttempt {
                mode: Mode::Procfs,
                reason: "no /proc of this pid namespace is mounted at /proc".to_owned(),
                remedy: "mount -t proc proc /proc, or use pidfd or socket",
            }));
        }
        let mut path = format!("/proc/{}/fd/{}", self.pid, wanted.number());
        // The number may name any file of any process. Opening a device or a file of a file server
        // can have effects or block. So the file is checked before it is opened.
        let mut found = umf_os::file::open_path(&path);
        if matches!(found, Err(Errno::NOENT | Errno::ACCESS))
            && let Some(folder) = umf_os::process::fds_of_other_thread(self.pid)
        {
            path = format!("{folder}/{}", wanted.number());
            found = umf_os::file::open_path(&path);
        }
        let failed = |errno| match errno {
            Errno::NOENT => self.hidden_in_proc().map_or_else(|| self.closed(wanted), Failure::Refused),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                Failure::Final(Error::system("open in /proc", errno))
            }
            Errno::ACCESS | Errno::PERM => {
                Failure::Refused(diagnosis::refused(Mode::Procfs, self.pid, errno))
            }
            errno => Failure::Refused(FailedAttempt {
                mode: Mode::Procfs,
                reason: format!("opening {path}: {errno}"),
                remedy: "use pidfd or socket",
            }),
        };
        let found = found.map_err(failed)?;
        failpoint!("found.in_procfs");
        let checked = self.check_openable(found.as_fd(), wanted);
        // The path contains the pid. If the producer still runs, the pid was not reused meanwhile.
        if self.has_ended_by_pidfd() {
            return Err(Failure::Final(Error::ProducerGone { pid: self.pid }));
        }
        checked?;
        // The ledger is opened for writing too, although its seals prevent writes: `umf ps`
        // distinguishes importers from inspecting processes by the open mode.
        let opened = umf_os::file::reopen(found.as_fd(), true).map(ReceivedFd::from).map_err(failed);
        failpoint!("fetched.by_procfs");
        opened
    }

    /// Checks that a file that was found through `/proc` is the wanted one and may be opened.
    fn check_openable(&self, found: BorrowedFd<'_>, wanted: RemoteFd) -> core::result::Result<(), Failure> {
        let system = |errno| Failure::Final(Error::system("statx of a file in /proc", errno));
        let identity = umf_os::file::identity(found).map_err(system)?;
        let is_regular = umf_os::file::is_regular(found).map_err(system)?;
        match wanted {
            RemoteFd::Ledger(_) | RemoteFd::LeaseTable(_) => {
                let memfds = umf_os::memfd::device()
                    .map_err(|errno| Failure::Final(Error::system("memfd_create", errno)))?;
                if !is_regular || memfds.is_some_and(|device| device != identity.device) {
                    let evidence = "its ledger or lease table is no shared memory";
                    return Err(Failure::Final(Error::ProducerReplaced { pid: self.pid, evidence }));
                }
            }
            RemoteFd::Data { fd, identity: expected, .. } => {
                if identity != expected {
                    let evidence = "its device and inode differ";
                    return Err(Failure::Final(Error::OtherObject { pid: self.pid, fd, evidence }));
                }
                if !is_regular {
                    return Err(Failure::Refused(FailedAttempt {
                        mode: Mode::Procfs,
                        reason: "the memory is behind a device, which opening through /proc would open again"
                            .to_owned(),
                        remedy: "use pidfd or socket",
                    }));
                }
            }
        }
        Ok(())
    }

    /// Returns a reason if `/proc` hides a producer that runs.
    fn hidden_in_proc(&self) -> Option<FailedAttempt> {
        // In this order: if the process ends in between, `/proc` does not hide it.
        let is_hidden = !Path::new(&format!("/proc/{}", self.pid)).exists() && self.is_alive_by_pidfd();
        is_hidden.then(|| FailedAttempt {
            mode: Mode::Procfs,
            reason: format!("/proc/{} is hidden, though the producer runs", self.pid),
            remedy: "mount /proc without hidepid, or use pidfd or socket",
        })
    }

    fn pidfd(&self) -> core::result::Result<BorrowedFd<'_>, Errno> {
        let pidfd = self.pidfd.as_ref().map_err(|errno| *errno)?;
        pidfd.get().map(AsFd::as_fd)
    }

    fn is_alive_by_pidfd(&self) -> bool {
        self.pidfd().is_ok_and(|pidfd| !umf_os::process::has_ended(pidfd))
    }

    /// Returns whether the producer is known to have ended by its pidfd.
    pub(crate) fn has_ended_by_pidfd(&self) -> bool {
        self.pidfd().is_ok_and(umf_os::process::has_ended)
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the number of descriptors that this channel holds.
    pub(crate) fn fds(&self) -> u64 {
        let is_connected = |socket: &&SocketClient| !self.is_inherited() && socket.is_connected();
        u64::from(self.pidfd.is_ok()) + self.sockets().filter(is_connected).count() as u64
    }
}

const fn bit(mode: Mode) -> u8 {
    1 << mode as u8
}

fn refused(mode: Mode, reason: impl Into<String>, remedy: &'static str) -> Failure {
    Failure::Refused(FailedAttempt { mode, reason: reason.into(), remedy })
}
