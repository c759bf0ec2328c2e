//! [`FdChannel`]: the importer's way to one producer's fds.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use umf_os::ReceivedFd;
use umf_sync::{Lock, failpoint, fork};

use super::socket::client::{Answer, Client};
use super::{Exchange, Mode, diagnosis};
use crate::error::FailedAttempt;
use crate::handle::Handle;
use crate::identity::{self, Nonce};
use crate::{Error, Result};
use umf_os::{CheckedFile, FileIdentity};

/// Which fd of the producer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RemoteFd {
    /// Its ledger, under this number.
    Ledger(RawFd),
    /// Its lease table, under this number.
    LeaseTable(RawFd),
    /// The memory behind an export.
    Data { fd: RawFd, slot: u32, generation: u64, identity: FileIdentity, opens_through_procfs: bool },
}

impl RemoteFd {
    const fn number(self) -> RawFd {
        match self {
            Self::Ledger(fd) | Self::LeaseTable(fd) | Self::Data { fd, .. } => fd,
        }
    }
}

/// One producer, held by a pidfd where that is possible, so that its pid cannot come to mean
/// another process unnoticed.
#[derive(Debug)]
pub(crate) struct FdChannel {
    pid: u32,
    pidfd: core::result::Result<CheckedFile, Errno>,
    same_pid_namespace: bool,
    /// Whether the pidfd is known to be the producer's, by its inode in pidfs.
    is_verified: bool,
    served: bool,
    /// Whether its socket answered once: it is in this network namespace.
    answered: AtomicBool,
    nonce: Nonce,
    /// The connection, locked while a request waits for its answer. Other threads do not wait for
    /// the lock: they connect anew.
    client: Lock<Client>,
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
    timeout: Duration,
}

/// A descriptor that came from a producer.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub fd: ReceivedFd,
    pub mode: Mode,
    /// The producer opened it for this process, which alone has its description.
    pub is_exclusive: bool,
}

enum Failure {
    /// This way is closed; another may work.
    Refused(FailedAttempt),
    /// No way can work.
    Final(Error),
}

impl FdChannel {
    /// Prepares to talk to the producer of `handle`.
    pub(crate) fn new(handle: &Handle, timeout: Duration) -> Result<Self> {
        let pid = handle.pid();
        let mine = identity::pid_namespace();
        let theirs = handle.pid_namespace();
        let same_pid_namespace = mine == 0 || theirs == 0 || mine == theirs;
        let pidfd = if same_pid_namespace { umf_os::process::pidfd_open(pid) } else { Err(Errno::SRCH) };
        failpoint!("producer.found");
        let mut is_verified = false;
        if same_pid_namespace {
            match &pidfd {
                // Or the number is that of a thread by now: ENOENT, before Linux 6.16 EINVAL.
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
        Ok(Self {
            pid,
            pidfd: pidfd.and_then(CheckedFile::take),
            same_pid_namespace,
            is_verified,
            served: handle.is_served(),
            answered: AtomicBool::new(false),
            nonce: handle.nonce(),
            client: Lock::new(Client::new(handle.nonce(), pid)),
            generation: fork::generation(),
            timeout,
        })
    }

    /// Whether the producer is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        match self.pidfd() {
            Ok(pidfd) => umf_os::process::has_ended(pidfd),
            Err(_) => {
                !self.is_inherited() && self.client.try_lock().is_some_and(|client| client.has_hung_up())
            }
        }
    }

    /// Returns whether the process behind the producer's number is the one that made the handle.
    /// (It may have called exec, or dropped the exporter.)
    pub(crate) const fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// Whether this process is a forked child of the one that made the channel. The lock may then
    /// be held for ever, by a thread of the parent that was waiting for an answer: forks do not
    /// wait for producers.
    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn ask(&self, wanted: RemoteFd) -> core::result::Result<Answer, Errno> {
        let answer = self.request_over_connection(wanted);
        if answer.is_ok() {
            self.answered.store(true, Ordering::Relaxed);
        }
        answer
    }

    fn request_over_connection(&self, wanted: RemoteFd) -> core::result::Result<Answer, Errno> {
        let kept = if self.is_inherited() { None } else { self.client.try_lock() };
        match kept {
            Some(mut client) => client.ask(wanted, self.timeout),
            // Another thread waits for an answer there; its wait is not added to this one's.
            None => Client::new(self.nonce, self.pid).ask(wanted, self.timeout),
        }
    }

    /// A duplicate of a descriptor of the producer, and the way it took.
    ///
    /// Whether it is the right file is for the caller to check: by identity and by what the ledger
    /// says afterwards.
    pub(crate) fn fetch(&self, wanted: RemoteFd, exchange: &Exchange) -> Result<Fetched> {
        let mut attempts = Vec::new();
        if exchange.modes().is_empty() {
            attempts.extend(Mode::ALL.map(|mode| FailedAttempt {
                mode,
                reason: "the importer's exchange order is empty, so that no mode is allowed".to_owned(),
                remedy: "Exchange::Auto, or name a mode",
            }));
        }
        for &mode in exchange.modes() {
            let fetched = match mode {
                Mode::Pidfd => self.by_pidfd(wanted).map(|fd| (fd, false)),
                Mode::Procfs => self.by_procfs(wanted).map(|fd| (fd, false)),
                Mode::Socket => self.by_socket(wanted),
            };
            match fetched {
                Ok((fd, is_exclusive)) => {
                    tracing::debug!(pid = self.pid, %mode, "fetched an fd");
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
            // The kernel refuses access to a process that has ended: its end is the reason.
            return Err(Error::ProducerGone { pid: self.pid });
        }
        Err(Error::NotPermitted { pid: self.pid, attempts })
    }

    fn other_namespace(mode: Mode) -> Failure {
        Failure::Refused(FailedAttempt {
            mode,
            reason: "the producer is in another pid namespace, where its pid means another process"
                .to_owned(),
            remedy: "UMF_IPC_EXCHANGE=socket in the producer, with a network namespace in common",
        })
    }

    fn closed(&self, wanted: RemoteFd) -> Failure {
        if self.has_ended() {
            return Failure::Final(Error::ProducerGone { pid: self.pid });
        }
        Failure::Final(match wanted {
            // A ledger's fd is open as long as the process image that made it lives.
            RemoteFd::Ledger(_) | RemoteFd::LeaseTable(_) => Error::ProducerGone { pid: self.pid },
            RemoteFd::Data { fd, .. } => {
                Error::OtherObject { pid: self.pid, fd, evidence: "no such fd is open there any more" }
            }
        })
    }

    fn by_pidfd(&self, wanted: RemoteFd) -> core::result::Result<ReceivedFd, Failure> {
        if !self.same_pid_namespace {
            return Err(Self::other_namespace(Mode::Pidfd));
        }
        let pidfd = self
            .pidfd()
            .map_err(|errno| Failure::Refused(diagnosis::refused(Mode::Pidfd, self.pid, errno)))?;
        let fetched = umf_os::process::pidfd_getfd(pidfd, wanted.number());
        failpoint!("fetched.by_pidfd");
        fetched.map(ReceivedFd::from).map_err(|errno| match errno {
            // The main thread has exited and others run (`pthread_exit(3)`): EBADF before Linux
            // 6.9.
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
        if !self.same_pid_namespace {
            return Err(Self::other_namespace(Mode::Procfs));
        }
        if let RemoteFd::Data { opens_through_procfs: false, .. } = wanted {
            return Err(Failure::Refused(FailedAttempt {
                mode: Mode::Procfs,
                reason: "this kind of memory (a dma-buf) cannot be opened through /proc".to_owned(),
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
        // The number may lead to any file of any other process. Opening a device or a file of a
        // file server does something, or waits, so it is not opened before it is known to be the
        // file that is wanted.
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
        let judged = self.check_openable(found.as_fd(), wanted);
        // The path went by number. If the process is still there, the number has meant it all the
        // time.
        if self.has_ended_by_pidfd() {
            return Err(Failure::Final(Error::ProducerGone { pid: self.pid }));
        }
        judged?;
        // For writing, also the ledger (its seals prevent writes): `umf ps` tells importers from
        // inspecting processes by that.
        let opened = umf_os::file::reopen(found.as_fd(), true).map(ReceivedFd::from).map_err(failed);
        failpoint!("fetched.by_procfs");
        opened
    }

    /// Whether what was found through `/proc` may be opened.
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

    /// Why `/proc` has nothing about a producer that lives.
    fn hidden_in_proc(&self) -> Option<FailedAttempt> {
        // In this order: what is not there because the process ended meanwhile is no such case.
        let is_hidden = !Path::new(&format!("/proc/{}", self.pid)).exists() && self.is_alive_by_pidfd();
        is_hidden.then(|| FailedAttempt {
            mode: Mode::Procfs,
            reason: format!("/proc/{} is not there, though the producer lives", self.pid),
            remedy: "mount /proc without hidepid, or use pidfd or socket",
        })
    }

    fn by_socket(&self, wanted: RemoteFd) -> core::result::Result<(ReceivedFd, bool), Failure> {
        if !self.served {
            return Err(Failure::Refused(FailedAttempt {
                mode: Mode::Socket,
                reason: "the producer does not answer on a socket; it decided so at its first export"
                    .to_owned(),
                remedy: "UMF_IPC_EXCHANGE=socket in the producer",
            }));
        }
        let gone = || Failure::Final(Error::ProducerGone { pid: self.pid });
        match self.ask(wanted) {
            Ok(Answer::Fd { fd, is_exclusive }) => Ok((fd, is_exclusive)),
            // No slot in use has this generation: the producer lost the descriptor.
            Ok(Answer::Stale(0)) => Err(self.closed(wanted)),
            Ok(Answer::Stale(now)) => {
                let (slot, generation) = match wanted {
                    RemoteFd::Ledger(_) | RemoteFd::LeaseTable(_) => return Err(gone()),
                    RemoteFd::Data { slot, generation, .. } => (slot, generation),
                };
                Err(Failure::Final(Error::Stale { pid: self.pid, slot, generation, now }))
            }
            Ok(Answer::NotPermitted) => Err(Failure::Refused(FailedAttempt {
                mode: Mode::Socket,
                reason: format!("the producer does not serve uid {}", umf_os::process::effective_uid()),
                remedy: "run both as the same user",
            })),
            Ok(Answer::OtherUser) => Err(Failure::Refused(FailedAttempt {
                mode: Mode::Socket,
                reason: format!(
                    "the producer's socket belongs to another user than uid {}",
                    umf_os::process::effective_uid()
                ),
                remedy: "run both as the same user",
            })),
            Ok(Answer::UnmappedUser) => Err(Failure::Refused(FailedAttempt {
                mode: Mode::Socket,
                reason: "this user namespace has no number for the user of this process, so that the producer's user \
                         cannot be told from others"
                    .to_owned(),
                remedy: "map the user in /proc/self/uid_map, or run both in one pid namespace",
            })),
            Ok(Answer::Misbehaved(what)) => Err(Failure::Final(Error::Misbehaved { pid: self.pid, what })),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Err(self.not_listening()),
            // Both attempts failed, the second one on a new connection.
            Err(Errno::PIPE | Errno::CONNRESET) if !self.has_ended_by_pidfd() => Err(Failure::Refused(FailedAttempt {
                mode: Mode::Socket,
                reason:
                    "the producer closed the connection before it answered: it is ending, or has many others \
                         to serve"
                        .to_owned(),
                remedy: "try again",
            })),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(gone()),
            Err(Errno::AGAIN | Errno::TIMEDOUT) => Err(Failure::Final(Error::TimedOut {
                pid: self.pid,
                milliseconds: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            })),
            Err(errno) => Err(Failure::Final(Error::system("asking the producer's socket", errno))),
        }
    }

    /// Returns the meaning of a refused connection: no process listens on the producer's socket.
    fn not_listening(&self) -> Failure {
        let gone = Failure::Final(Error::ProducerGone { pid: self.pid });
        let reason = if self.has_ended_by_pidfd() || self.answered.load(Ordering::Relaxed) {
            return gone;
        } else if !self.same_pid_namespace {
            // Nothing else tells whether it lives.
            "no process listens on the producer's socket in this network namespace: it is in another one, or has ended"
        } else if diagnosis::shares_network_namespace(self.pid) {
            return gone;
        } else {
            "no process listens on the producer's socket in this network namespace: it is in another one, or has called \
             exec since"
        };
        Failure::Refused(FailedAttempt {
            mode: Mode::Socket,
            reason: reason.to_owned(),
            remedy: "run both in one network namespace; get a new handle if the producer ended or called exec",
        })
    }

    fn pidfd(&self) -> core::result::Result<BorrowedFd<'_>, Errno> {
        let pidfd = self.pidfd.as_ref().map_err(|errno| *errno)?;
        pidfd.get().map(AsFd::as_fd)
    }

    fn is_alive_by_pidfd(&self) -> bool {
        self.pidfd().is_ok_and(|pidfd| !umf_os::process::has_ended(pidfd))
    }

    fn has_ended_by_pidfd(&self) -> bool {
        self.pidfd().is_ok_and(umf_os::process::has_ended)
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// The fds that this channel holds open.
    pub(crate) fn fds(&self) -> u64 {
        // If another thread holds the lock, it has a connection or is making it.
        let connected =
            !self.is_inherited() && self.client.try_lock().is_none_or(|client| client.is_connected());
        u64::from(self.pidfd.is_ok()) + u64::from(connected)
    }
}
