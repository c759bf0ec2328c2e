//! [`FdChannel`]: fetches descriptors of one producer for an importer. It tries the exchange modes
//! in order, and turns each failure into a reason and a remedy.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use umf_os::ReceivedFd;
use umf_sync::{Lock, failpoint, fork};

use super::socket::client::{Answer, Client, Target};
use super::socket::directory_name;
use super::{Exchange, Mode, diagnosis};
use crate::error::FailedAttempt;
use crate::handle::Handle;
use crate::identity;
use crate::rendezvous::{Directory, DirectoryError, NameState};
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

/// A socket of the producer.
#[derive(Debug)]
struct SocketClient {
    /// The connection, locked while a request waits for its answer. Other threads do not wait for
    /// the lock. They make a connection of their own.
    client: Lock<Client>,
    target: Target,
    /// Whether it has answered once, so that this process can reach it.
    answered: AtomicBool,
}

impl SocketClient {
    fn new(target: Target) -> Self {
        Self { client: Lock::new(Client::new(target.clone())), target, answered: AtomicBool::new(false) }
    }
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
            Err(_) => {
                !self.is_inherited()
                    && self
                        .sockets()
                        .any(|socket| socket.client.try_lock().is_some_and(|client| client.has_hung_up()))
            }
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

    fn ask(&self, socket: &SocketClient, wanted: RemoteFd) -> core::result::Result<Answer, Errno> {
        let client = if self.is_inherited() { None } else { socket.client.try_lock() };
        let answer = match client {
            Some(mut client) => client.ask(wanted, self.timeout),
            // Another thread uses the connection, and waits up to `timeout` for its answer.
            None => Client::new(socket.target.clone()).ask(wanted, self.timeout),
        };
        if answer.is_ok() {
            socket.answered.store(true, Ordering::Relaxed);
        }
        answer
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

    fn by_socket(&self, wanted: RemoteFd) -> core::result::Result<(ReceivedFd, bool), Failure> {
        let mode = Mode::Socket;
        let Some(socket) = &self.abstract_socket else {
            // A socket serves the user of its process alone.
            let remedy = if self.is_in_same_pid_namespace && diagnosis::belongs_to_other_user(self.pid) {
                "run both as the same user, or UMF_IPC_ALLOW=handle and a UMF_IPC_DIR in both"
            } else {
                "UMF_IPC_EXCHANGE=socket in the producer"
            };
            let reason =
                "the producer does not answer on an abstract socket; it decided so at its first export";
            return Err(refused(mode, reason, remedy));
        };
        match self.ask(socket, wanted) {
            Ok(answer) => self.fd_of_answer(mode, answer, wanted),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Err(self.not_listening(socket)),
            Err(errno) => Err(self.failure_of_request(mode, errno)),
        }
    }

    fn by_directory(&self, wanted: RemoteFd) -> core::result::Result<(ReceivedFd, bool), Failure> {
        let mode = Mode::Directory;
        let Some(socket) = &self.socket_in_directory else {
            return Err(if self.is_in_directory {
                refused(
                    mode,
                    "the producer answers in a directory, and this process has no directory set",
                    diagnosis::MOUNT_DIRECTORY,
                )
            } else {
                refused(
                    mode,
                    "the producer does not answer in a directory: none was set at its first export",
                    diagnosis::SET_DIRECTORY,
                )
            });
        };
        match (self.ask(socket, wanted), &socket.target.directory) {
            (Ok(Answer::Directory(error)), _) => Err(directory_refused(&error)),
            (Ok(answer), _) => self.fd_of_answer(mode, answer, wanted),
            (Err(Errno::CONNREFUSED | Errno::NOENT), Some(directory)) => {
                Err(self.not_in_directory(socket, directory))
            }
            (Err(errno), _) => Err(self.failure_of_request(mode, errno)),
        }
    }

    fn fd_of_answer(
        &self,
        mode: Mode,
        answer: Answer,
        wanted: RemoteFd,
    ) -> core::result::Result<(ReceivedFd, bool), Failure> {
        let pid = self.pid;
        let uid = umf_os::process::effective_uid();
        Err(match answer {
            Answer::Fd { fd, is_exclusive } => return Ok((fd, is_exclusive)),
            // No slot in use has this generation: the producer lost the descriptor.
            Answer::Stale(0) => self.closed(wanted),
            Answer::Stale(now) => Failure::Final(match wanted {
                RemoteFd::Ledger(_) | RemoteFd::LeaseTable(_) => Error::ProducerGone { pid },
                RemoteFd::Data { slot, generation, .. } => Error::Stale { pid, slot, generation, now },
            }),
            Answer::NotPermitted(rule) => {
                let reason = match rule {
                    Allow::SameUser => {
                        format!("the producer serves its own user only, and this process has uid {uid}")
                    }
                    Allow::Group => format!(
                        "the producer serves its own user and group only, and this process has uid {uid} and not \
                         that group"
                    ),
                    Allow::Handle => "the producer did not accept the key of the handle".to_owned(),
                };
                let remedy = match rule {
                    Allow::Handle => "get the handle again from the producer, and UMF_IPC_ALLOW=handle here",
                    _ => "run both as the same user (runAsUser), or UMF_IPC_ALLOW=handle in both",
                };
                refused(mode, reason, remedy)
            }
            Answer::OtherUser => refused(
                mode,
                format!("the producer's socket belongs to another user than uid {uid}"),
                "run both as the same user (runAsUser), or UMF_IPC_ALLOW=handle in both",
            ),
            Answer::UnmappedUser => refused(
                mode,
                "this user namespace has no number for the user of this process, so that the producer's user \
                 cannot be verified",
                "map the user in /proc/self/uid_map, or run both in one pid namespace, or UMF_IPC_ALLOW=handle in both",
            ),
            Answer::NotProven => refused(
                mode,
                "the process at the producer's socket does not have the key of the handle: another process has \
                 taken its name, or the handle is forged",
                "let only trusted users write to the directory, and get the handle again",
            ),
            Answer::Withheld => refused(
                mode,
                "the kernel took the descriptor out of the producer's message: a security module (SELinux) forbids it",
                "run both with one SELinux label (--security-opt label=level:..., or seLinuxOptions in the pod), or \
                 mount the volume with :z",
            ),
            Answer::Directory(error) => directory_refused(&error),
            Answer::Busy => self.failure_of_request(mode, Errno::TOOMANYREFS),
            Answer::Misbehaved(what) => Failure::Final(Error::Misbehaved { pid, what }),
        })
    }

    /// Returns the failure that an error of the request means. The second attempt, on a new
    /// connection, failed too.
    fn failure_of_request(&self, mode: Mode, errno: Errno) -> Failure {
        match errno {
            Errno::PIPE | Errno::CONNRESET if !self.has_ended_by_pidfd() => refused(
                mode,
                "the producer closed the connection before it answered: it is ending, or serves too many others",
                "try again",
            ),
            Errno::PIPE | Errno::CONNRESET => Failure::Final(Error::ProducerGone { pid: self.pid }),
            Errno::AGAIN | Errno::TIMEDOUT => Failure::Final(Error::TimedOut {
                pid: self.pid,
                milliseconds: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            }),
            Errno::TOOMANYREFS => Failure::Final(Error::System {
                call: "sendmsg in the producer",
                errno,
                hint: "; more descriptors of its user are in unread messages than RLIMIT_NOFILE, on the whole machine: \
                       let other processes of that user read their messages, or raise the limit",
            }),
            Errno::ACCESS | Errno::PERM => refused(
                mode,
                format!(
                    "{errno}: the kernel refuses the connection: a security module (SELinux, AppArmor, Landlock) forbids it"
                ),
                "run both with one SELinux label (--security-opt label=level:..., seLinuxOptions in the pod), or mount one \
                 directory into both and set UMF_IPC_DIR to it in both",
            ),
            errno => Failure::Final(Error::system("asking the producer's socket", errno)),
        }
    }

    /// Returns the failure that a refused connection means: no process listens on the producer's
    /// abstract socket.
    fn not_listening(&self, socket: &SocketClient) -> Failure {
        let gone = Failure::Final(Error::ProducerGone { pid: self.pid });
        let reason = if self.has_ended_by_pidfd() || socket.answered.load(Ordering::Relaxed) {
            return gone;
        } else if !self.is_in_same_pid_namespace {
            // Nothing else shows whether it runs.
            "no process listens on the producer's socket in this network namespace: it is in another one, or has ended"
        } else if diagnosis::shares_network_namespace(self.pid) {
            return gone;
        } else {
            "no process listens on the producer's socket in this network namespace: it is in another one, or has called \
             exec since"
        };
        refused(Mode::Socket, reason, diagnosis::OTHER_NETWORK_NAMESPACE)
    }

    /// Returns the failure of a name in the directory that does not exist, or that no process
    /// answers.
    fn not_in_directory(&self, socket: &SocketClient, directory: &Directory) -> Failure {
        let gone = Failure::Final(Error::ProducerGone { pid: self.pid });
        if self.has_ended_by_pidfd() || socket.answered.load(Ordering::Relaxed) {
            return gone;
        }
        let path = directory.path().display();
        match directory.state(&directory_name(socket.target.nonce)) {
            Ok(NameState::Dead) => gone,
            Ok(NameState::Absent) => refused(
                Mode::Directory,
                format!(
                    "the producer has no socket in {path}: it has ended, or this is another directory than the one in which \
                     it answers"
                ),
                diagnosis::MOUNT_DIRECTORY,
            ),
            Ok(NameState::Alive) => refused(
                Mode::Directory,
                format!(
                    "the producer runs, and does not answer on its socket in {path}: the program closed it"
                ),
                "close only descriptors that the program opened",
            ),
            Ok(NameState::Unknown) => refused(
                Mode::Directory,
                format!(
                    "no process listens on the producer's socket in {path}, as this process sees it: it has ended, or the \
                     directory is seen through an overlay or network file system"
                ),
                "mount the same volume (emptyDir, hostPath, -v) into both containers; get a new handle if the producer ended",
            ),
            Err(error) => directory_refused(&error),
        }
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
        // If another thread holds the lock, it has a connection or is making one.
        let is_connected = |socket: &&SocketClient| {
            !self.is_inherited() && socket.client.try_lock().is_none_or(|client| client.is_connected())
        };
        u64::from(self.pidfd.is_ok()) + self.sockets().filter(is_connected).count() as u64
    }
}

const fn bit(mode: Mode) -> u8 {
    1 << mode as u8
}

fn refused(mode: Mode, reason: impl Into<String>, remedy: &'static str) -> Failure {
    Failure::Refused(FailedAttempt { mode, reason: reason.into(), remedy })
}

/// Returns the failure of a directory that this process cannot use. Its text has the remedy.
fn directory_refused(error: &DirectoryError) -> Failure {
    refused(Mode::Directory, error.to_string(), "see its reason, which says what to do")
}
