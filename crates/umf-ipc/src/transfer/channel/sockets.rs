//! The sockets of a producer: [`SocketClient`], and the modes [`Mode::Socket`] and
//! [`Mode::Directory`] of a [`FdChannel`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umf_os::ReceivedFd;
use umf_os::socket::Allow;
use umf_sync::Lock;

use super::{Failure, FdChannel, RemoteFd, refused};
use crate::Error;
use crate::identity::Nonce;
use crate::rendezvous::{Directory, DirectoryError, DirectoryResult, NameState};
use crate::transfer::socket::client::{Answer, Client, Target};
use crate::transfer::socket::directory_name;
use crate::transfer::{Mode, diagnosis};

/// How long the lock of a producer that does not listen may be held before the producer counts as
/// running.
const EXIT_PATIENCE: Duration = Duration::from_millis(50);

/// A socket of the producer.
#[derive(Debug)]
pub(super) struct SocketClient {
    /// The connection, locked while a request waits for its answer. Other threads do not wait for
    /// the lock. They make a connection of their own.
    client: Lock<Client>,
    target: Target,
    /// Whether it has answered once, so that this process can reach it.
    answered: AtomicBool,
}

impl SocketClient {
    pub(super) fn new(target: Target) -> Self {
        Self { client: Lock::new(Client::new(target.clone())), target, answered: AtomicBool::new(false) }
    }

    /// Returns whether it is known that the producer has closed the connection.
    pub(super) fn has_hung_up(&self) -> bool {
        self.client.try_lock().is_some_and(|client| client.has_hung_up())
    }

    /// Returns whether it is connected. If another thread holds the lock, it has a connection or is
    /// making one.
    pub(super) fn is_connected(&self) -> bool {
        self.client.try_lock().is_none_or(|client| client.is_connected())
    }
}

impl FdChannel {
    fn ask(&self, socket: &SocketClient, wanted: RemoteFd) -> Result<Answer, Errno> {
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

    pub(super) fn by_socket(&self, wanted: RemoteFd) -> Result<(ReceivedFd, bool), Failure> {
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

    pub(super) fn by_directory(&self, wanted: RemoteFd) -> Result<(ReceivedFd, bool), Failure> {
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
            (Err(errno @ (Errno::CONNREFUSED | Errno::NOENT)), Some(directory)) => {
                Err(self.not_in_directory(socket, directory, errno))
            }
            // Another process has taken the name of a producer that ended.
            (Err(errno), Some(directory))
                if !matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
                    && state_after_exit(directory, socket.target.nonce) == Ok(NameState::Dead) =>
            {
                Err(Failure::Final(Error::ProducerGone { pid: self.pid }))
            }
            (Err(errno), _) => Err(self.failure_of_request(mode, errno)),
        }
    }

    fn fd_of_answer(
        &self,
        mode: Mode,
        answer: Answer,
        wanted: RemoteFd,
    ) -> Result<(ReceivedFd, bool), Failure> {
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
    fn not_in_directory(&self, socket: &SocketClient, directory: &Directory, errno: Errno) -> Failure {
        let gone = Failure::Final(Error::ProducerGone { pid: self.pid });
        if self.has_ended_by_pidfd() || socket.answered.load(Ordering::Relaxed) {
            return gone;
        }
        let path = directory.path().display();
        match state_after_exit(directory, socket.target.nonce) {
            Ok(NameState::Dead) => gone,
            Ok(NameState::Absent) => refused(
                Mode::Directory,
                format!(
                    "the producer has no socket in {path}: it has ended, or this is another directory than the one in which \
                     it answers"
                ),
                diagnosis::MOUNT_DIRECTORY,
            ),
            Ok(NameState::Alive) if errno == Errno::NOENT => refused(
                Mode::Directory,
                format!(
                    "the producer runs, and its socket in {path} is gone: another program has removed or renamed it, or \
                     the producer is ending"
                ),
                "let only umf change files named umf-* there, and start the producer again for a new socket",
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
}

/// Returns the state of a producer's name. A process that is ending closes its socket before its
/// lock is free, so this waits a moment while the lock is held.
fn state_after_exit(directory: &Directory, nonce: Nonce) -> DirectoryResult<NameState> {
    let (name, begun) = (directory_name(nonce), Instant::now());
    loop {
        let state = directory.state(&name)?;
        if state != NameState::Alive || begun.elapsed() >= EXIT_PATIENCE {
            return Ok(state);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the failure of a directory that this process cannot use. Its text has the remedy.
fn directory_refused(error: &DirectoryError) -> Failure {
    refused(Mode::Directory, error.to_string(), "see its reason, which says what to do")
}
