//! The server of the producer's socket: one thread that answers requests with descriptors.

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

use super::{REQUEST_SIZE, Reply, Request};
use crate::identity::Nonce;
use crate::{Error, Result};
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

/// The most connections. A further one replaces the oldest one, whose client connects again for its
/// next request.
const CONNECTIONS: usize = 256;

/// The listening socket and its thread. Dropping the server ends both.
#[derive(Debug)]
pub struct Server {
    wake: Arc<CloseOnFork>,
    thread: Mutex<Option<Thread>>,
    generation: u32,
}

impl Server {
    /// Binds the socket. Its thread starts with [`Server::serve`].
    pub(crate) fn bind(nonce: Nonce) -> Result<CloseOnFork> {
        let system = |call| move |errno| Error::system(call, errno);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let listener = CloseOnFork::make(make).map_err(system("socket"))?;
        // The receiver closes surplus descriptors, and some take long to close.
        umf_os::socket::refuse_descriptors(listener.as_fd());
        let address =
            SocketAddrUnix::new_abstract_name(&super::name(nonce)).map_err(system("socket name"))?;
        rustix::net::bind(&listener, &address).map_err(system("bind of the abstract socket"))?;
        failpoint!("server.bound");
        rustix::net::listen(&listener, 128).map_err(system("listen"))?;
        failpoint!("server.listening");
        Ok(listener)
    }

    /// Starts the thread that answers on `listener` until the server is dropped.
    ///
    /// # Errors
    /// [`Error::System`] without a free descriptor, or if no thread can be started.
    pub fn serve(listener: CloseOnFork, nonce: Nonce, source: Arc<dyn FdSource>) -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = CloseOnFork::make(|| rustix::event::eventfd(0, flags));
        let wake = Arc::new(wake.map_err(|errno| Error::system("eventfd", errno))?);
        let serving =
            ServerThread { listener, nonce, source, wake: Arc::clone(&wake), connections: Vec::new() };
        let thread =
            background::spawn(c"umf-fd-server", 256 << 10, move || serving.run()).map_err(|error| {
                Error::System {
                    call: "starting the socket's thread",
                    errno: error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error),
                    hint: "; raise RLIMIT_NPROC, or set UMF_IPC_EXCHANGE=pidfd,procfs",
                }
            })?;
        failpoint!("server.started");
        Ok(Self { wake, thread: Mutex::new(Some(thread)), generation: fork::generation() })
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

struct ServerThread {
    listener: CloseOnFork,
    nonce: Nonce,
    source: Arc<dyn FdSource>,
    wake: Arc<CloseOnFork>,
    /// Connections of permitted clients, the oldest first.
    connections: Vec<CloseOnFork>,
}

impl ServerThread {
    fn run(mut self) {
        self.serve();
    }

    fn serve(&mut self) {
        loop {
            let (stop, new, mut ready) = {
                let mut fds =
                    vec![PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
                fds.extend(self.connections.iter().map(|connection| PollFd::new(connection, PollFlags::IN)));
                match poll(&mut fds, None) {
                    Ok(_) => {}
                    Err(Errno::INTR) => continue,
                    Err(errno) => {
                        tracing::error!(%errno, "the fd server cannot wait and ends");
                        return;
                    }
                }
                // The program closed a descriptor that it did not open.
                if fds[..2].iter().any(|fd| fd.revents().contains(PollFlags::NVAL)) {
                    tracing::error!("the fd server ends: a descriptor of it was closed");
                    return;
                }
                let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
                (happened(&fds[0]), happened(&fds[1]), fds[2..].iter().map(happened).collect::<Vec<_>>())
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
            if new {
                self.accept();
            }
        }
    }

    fn close(&mut self, index: usize) {
        drop(self.connections.remove(index));
        failpoint!("server.closed");
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = CloseOnFork::make(|| rustix::net::accept_with(&self.listener, flags));
        failpoint!("server.accepted");
        match accepted {
            Ok(connection) if !is_permitted(connection.as_fd()) => refuse(connection.as_fd()),
            Ok(connection) => {
                if self.connections.len() == CONNECTIONS {
                    self.close(0);
                }
                self.connections.push(connection);
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
    fn answer(&self, index: usize) -> bool {
        let Some(connection) = self.connections.get(index) else { return false };
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
        let (answer, fd) = match Request::decode(&bytes[..received.min(bytes.len())], self.nonce) {
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
        let sent = reply(connection.as_fd(), answer, fd.as_ref().map(AsFd::as_fd));
        sent.is_ok() && answer != Reply::BadRequest
    }
}

/// Returns the answer with a descriptor that this process keeps.
const fn shared(fd: SharedFd) -> (Reply, Option<OutgoingFd>) {
    (Reply::Ok { is_exclusive: false }, Some(OutgoingFd::Shared(fd)))
}

fn is_permitted(connection: BorrowedFd<'_>) -> bool {
    umf_os::socket::peer_trust(connection) == Ok(umf_os::socket::PeerTrust::Trusted)
}

/// Refuses a connection before it sends a request, so that it takes no place from permitted
/// clients.
fn refuse(connection: BorrowedFd<'_>) {
    let _ = reply(connection, Reply::NotPermitted, None);
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
