//! The server of the producer's sockets: one thread that answers requests with descriptors.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};
use umf_os::background::{self, Thread};
use umf_sync::{failpoint, fork};

use super::proof::{Key, ProofStep, ServerProof};
use super::{REQUEST_SIZE, Reply, Request};
use crate::identity::Nonce;
use crate::rendezvous::{self, Directory, NamedSocket};
use crate::{Error, Result};
use umf_os::socket::{Allow, PeerTrust, peer_trust_by};
use umf_os::{CloseOnFork, ReopenedFile};

/// A descriptor that stays open in this process after it was sent.
pub type SharedFd = Arc<dyn AsFd + Send + Sync>;

/// Source of the descriptors that a server sends.
pub trait FdSource: Send + Sync {
    /// Returns the ledger, or the file that is served in its place; `None` if its descriptor number
    /// now names another file.
    fn ledger(&self) -> Option<SharedFd>;
    /// Returns the lease table, reopened for the client if that is possible; `None` if there is no
    /// table.
    fn lease_table(&self) -> Option<OutgoingFd>;
    /// Returns the file of an export's memory, or the slot's generation if the export is not
    /// current.
    fn data(&self, slot: u32, generation: u64) -> core::result::Result<Arc<OwnedFd>, u64>;
}

/// A descriptor to send to a client.
#[allow(missing_debug_implementations, reason = "a descriptor of any type")]
pub enum OutgoingFd {
    /// Opened for the client, and closed here after it was sent.
    Exclusive(ReopenedFile),
    /// A descriptor that this process keeps.
    Shared(SharedFd),
}

impl AsFd for OutgoingFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Exclusive(fd) => fd.as_fd(),
            Self::Shared(fd) => fd.as_fd(),
        }
    }
}

/// The most connections of permitted clients. A further one replaces the oldest one, whose client
/// connects again for its next request.
const CONNECTIONS: usize = 256;
/// The most connections of clients that have yet to prove the key. A further one replaces the
/// oldest.
const UNPROVEN: usize = 32;
/// Connections that wait for the server.
const BACKLOG: i32 = 128;

/// Which clients a server answers.
#[derive(Clone, Debug)]
pub struct ServerRule {
    /// The nonce that requests name.
    pub nonce: Nonce,
    /// Which clients are permitted.
    pub allow: Allow,
    /// The key that clients and the server prove to each other; `None`: the server cannot prove
    /// one.
    pub key: Option<Key>,
}

/// The listening sockets of a server.
#[derive(Debug, Default)]
pub struct Listeners {
    abstract_one: Option<CloseOnFork>,
    named: Option<NamedSocket>,
}

impl Listeners {
    /// Binds the abstract socket of a producer.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn bind_abstract(&mut self, nonce: Nonce) -> Result<()> {
        let system = |call| move |errno| Error::system(call, errno);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let listener = CloseOnFork::make(make).map_err(system("socket"))?;
        let name = super::abstract_name(nonce);
        let address = SocketAddrUnix::new_abstract_name(&name).map_err(system("socket name"))?;
        rustix::net::bind(&listener, &address).map_err(system("bind of the abstract socket"))?;
        failpoint!("server.bound");
        rustix::net::listen(&listener, BACKLOG).map_err(system("listen"))?;
        failpoint!("server.listening");
        self.abstract_one = Some(listener);
        Ok(())
    }

    /// Binds the socket of a producer in a directory. Removes what ended processes have left there
    /// first.
    ///
    /// # Errors
    /// [`Error::Directory`].
    pub(crate) fn bind_in(&mut self, directory: &Directory, nonce: Nonce, allow: Allow) -> Result<()> {
        rendezvous::remove_leftovers_before_bind(directory);
        let name = super::directory_name(nonce);
        let named = directory.bind(&name, allow.socket_mode(), BACKLOG)?;
        self.named = Some(named.ok_or(Error::Misbehaved {
            pid: umf_os::process::pid(),
            what: "a process has bound the random name of this process's socket",
        })?);
        Ok(())
    }

    /// Adds a socket that listens.
    #[must_use]
    pub fn with_abstract(mut self, listener: CloseOnFork) -> Self {
        self.abstract_one = Some(listener);
        self
    }

    /// Adds a socket in a directory.
    #[must_use]
    pub fn with_named(mut self, socket: NamedSocket) -> Self {
        self.named = Some(socket);
        self
    }
}

/// The listening sockets and their thread. Dropping the server ends both.
#[derive(Debug)]
pub struct Server {
    wake: Arc<CloseOnFork>,
    thread: Mutex<Option<Thread>>,
    /// Removed from its directory after the thread has ended.
    _named: Option<NamedSocket>,
    generation: u32,
}

impl Server {
    /// Starts the thread that answers on `listeners` until the server is dropped.
    ///
    /// # Errors
    /// [`Error::System`] without a free descriptor, or if no thread can be started.
    pub fn serve(mut listeners: Listeners, rule: ServerRule, source: Arc<dyn FdSource>) -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = CloseOnFork::make(|| rustix::event::eventfd(0, flags));
        let wake = Arc::new(wake.map_err(|errno| Error::system("eventfd", errno))?);
        let named = listeners.named.as_mut().and_then(|named| {
            Some(Listener { name: named.name().to_owned(), socket: named.take_listener()? })
        });
        let abstract_one = listeners
            .abstract_one
            .take()
            .map(|socket| Listener { name: super::abstract_socket(rule.nonce, socket.as_fd()), socket });
        let all: Vec<Listener> = abstract_one.into_iter().chain(named).collect();
        // The receiver closes surplus descriptors, and some take long to close.
        all.iter().for_each(|listener| umf_os::socket::refuse_descriptors(listener.socket.as_fd()));
        let serving =
            ServerThread { listeners: all, rule, source, wake: Arc::clone(&wake), connections: Vec::new() };
        let thread =
            background::spawn(c"umf-fd-server", 256 << 10, move || serving.run()).map_err(|error| {
                Error::System {
                    call: "starting the socket's thread",
                    errno: error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error),
                    hint: "; raise RLIMIT_NPROC, or set UMF_IPC_EXCHANGE=pidfd,procfs",
                }
            })?;
        failpoint!("server.started");
        Ok(Self {
            wake,
            thread: Mutex::new(Some(thread)),
            _named: listeners.named,
            generation: fork::generation(),
        })
    }
}

impl Drop for Server {
    /// Stops the thread and joins it. The caller must not hold a lock that the thread takes.
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.generation != fork::generation() {
            // The parent's server: its thread does not run in this process.
            core::mem::forget(thread);
            return;
        }
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        failpoint!("server.ending");
        if let Some(thread) = thread {
            thread.join();
        }
    }
}

/// A listening socket, with its name for proofs.
struct Listener {
    socket: CloseOnFork,
    name: String,
}

/// A connection of a client.
struct Connection {
    socket: CloseOnFork,
    /// The client's user or group suffices, or the client has proven the key.
    is_permitted: bool,
    proof: Option<ServerProof>,
}

struct ServerThread {
    listeners: Vec<Listener>,
    rule: ServerRule,
    source: Arc<dyn FdSource>,
    wake: Arc<CloseOnFork>,
    /// The oldest first.
    connections: Vec<Connection>,
}

impl ServerThread {
    fn run(mut self) {
        self.serve();
    }

    fn serve(&mut self) {
        loop {
            let first = 1 + self.listeners.len();
            let (stop, new, mut ready) = {
                let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
                fds.extend(
                    self.listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN)),
                );
                let sockets = self.connections.iter().map(|connection| &connection.socket);
                fds.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
                match poll(&mut fds, None) {
                    Ok(_) => {}
                    Err(Errno::INTR) => continue,
                    Err(errno) => {
                        tracing::error!(%errno, "the fd server cannot wait and ends");
                        return;
                    }
                }
                // The program closed a descriptor that it did not open.
                if fds[..first].iter().any(|fd| fd.revents().contains(PollFlags::NVAL)) {
                    tracing::error!("the fd server ends: a descriptor of it was closed");
                    return;
                }
                let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
                let all = |fds: &[PollFd<'_>]| fds.iter().map(happened).collect::<Vec<_>>();
                (happened(&fds[0]), all(&fds[1..first]), all(&fds[first..]))
            };
            if stop {
                return;
            }
            ready.resize(self.connections.len(), false);
            let mut index = 0;
            for ready in ready {
                if ready && !self.answer(index) {
                    self.close(index);
                } else {
                    index += 1;
                }
            }
            for (index, _) in new.into_iter().enumerate().filter(|(_, is_new)| *is_new) {
                self.accept(index);
            }
        }
    }

    fn close(&mut self, index: usize) {
        drop(self.connections.remove(index));
        failpoint!("server.closed");
    }

    fn accept(&mut self, listener: usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Listener { socket, name } = &self.listeners[listener];
        let accepted = CloseOnFork::make(|| rustix::net::accept_with(socket, flags));
        failpoint!("server.accepted");
        match accepted {
            Ok(socket) => {
                let is_permitted = peer_trust_by(self.rule.allow, socket.as_fd()) == Ok(PeerTrust::Trusted);
                let proof = self.rule.key.map(|key| ServerProof::new(key, self.rule.nonce, name));
                if !is_permitted && (proof.is_none() || self.rule.allow != Allow::Handle) {
                    return refuse(socket.as_fd(), self.rule.allow);
                }
                let most = if is_permitted { CONNECTIONS } else { UNPROVEN };
                let mut alike = self.connections.iter().map(|other| other.is_permitted == is_permitted);
                if alike.clone().filter(|is_alike| *is_alike).count() >= most
                    && let Some(oldest) = alike.position(|is_alike| is_alike)
                {
                    self.close(oldest);
                }
                self.connections.push(Connection { socket, is_permitted, proof });
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                // The connection stays in the backlog. Close one to free a descriptor, or wait for
                // one.
                if self.connections.is_empty() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                } else {
                    self.close(0);
                }
            }
            Err(_) => {}
        }
    }

    /// Answers one request. Returns `false` if the connection must be closed.
    fn answer(&mut self, index: usize) -> bool {
        let Some(client) = self.connections.get_mut(index) else { return false };
        let connection = &client.socket;
        // A client reads an answer before its next request. Descriptors in unread answers count
        // against a limit that all connections share (`RLIMIT_NOFILE`, `unix(7)`).
        if umf_os::socket::unread_bytes(connection.as_fd()).is_ok_and(|bytes| bytes > 0) {
            return false;
        }
        let mut bytes = [0; REQUEST_SIZE + 1];
        let received = match rustix::net::recv(connection, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        let bytes = &bytes[..received.min(bytes.len())];
        if let Some(proof) = &mut client.proof {
            match proof.receive(bytes) {
                ProofStep::Other => {}
                ProofStep::Answer(answer) => {
                    return rustix::net::send(connection, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
                        .is_ok();
                }
                ProofStep::Proven => {
                    client.is_permitted = true;
                    failpoint!("server.proven");
                    // This one was accepted last, or was the oldest of those without a proof.
                    let permitted = self.connections.iter().filter(|other| other.is_permitted).count();
                    return permitted <= CONNECTIONS;
                }
                ProofStep::Wrong => {
                    refuse(connection.as_fd(), Allow::Handle);
                    return false;
                }
            }
        }
        if !client.is_permitted {
            refuse(connection.as_fd(), self.rule.allow);
            return false;
        }
        let (answer, fd) = match Request::decode(bytes, self.rule.nonce) {
            None => (Reply::BadRequest, None),
            Some(Request::Ledger) => match self.source.ledger() {
                Some(ledger) => shared(ledger),
                None => (Reply::BadRequest, None),
            },
            Some(Request::LeaseTable) => match self.source.lease_table() {
                // Only the client has its open file description, after this process has closed it
                // below.
                Some(table @ OutgoingFd::Exclusive(_)) => (Reply::Ok { is_exclusive: true }, Some(table)),
                Some(table) => (Reply::Ok { is_exclusive: false }, Some(table)),
                None => (Reply::BadRequest, None),
            },
            Some(Request::Data { slot, generation }) => match self.source.data(slot, generation) {
                Ok(fd) => shared(fd),
                Err(now) => (Reply::Stale(now), None),
            },
        };
        failpoint!("server.answering");
        // The connection of a client that does not read its answers is closed.
        let sent = match reply(connection.as_fd(), answer, fd.as_ref().map(AsFd::as_fd)) {
            // The descriptors in flight are limited per user, on the whole machine.
            Err(Errno::TOOMANYREFS) => reply(connection.as_fd(), Reply::Busy, None),
            sent => sent,
        };
        sent.is_ok() && answer != Reply::BadRequest
    }
}

/// Returns the answer with a descriptor that this process keeps.
const fn shared(fd: SharedFd) -> (Reply, Option<OutgoingFd>) {
    (Reply::Ok { is_exclusive: false }, Some(OutgoingFd::Shared(fd)))
}

/// Refuses a client by this rule.
fn refuse(connection: BorrowedFd<'_>, rule: Allow) {
    let _ = reply(connection, Reply::NotPermitted(rule), None);
    // Closing with an unread request would send a reset, and the client would lose the answer. So
    // this shuts down reading and drains the request.
    let _ = rustix::net::shutdown(connection, Shutdown::Read);
    let mut byte = [0; 1];
    while rustix::net::recv(connection, &mut byte, RecvFlags::DONTWAIT).is_ok_and(|(_, count)| count > 0) {}
}

fn reply(
    connection: BorrowedFd<'_>,
    reply: Reply,
    fd: Option<BorrowedFd<'_>>,
) -> core::result::Result<(), Errno> {
    let bytes = reply.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(connection, &[IoSlice::new(&bytes)], &mut control, flags)
    })?;
    failpoint!("server.answered");
    Ok(())
}
