//! The producer's end of the socket: one thread that answers with fds.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};
use umf_core::background::{self, Thread};
use umf_core::fork;
use umf_core::lock::Lock;
use umf_core::step::{Step, step};

use super::wire::{self, Reply, Request};
use crate::identity::Nonce;
use crate::sys::{self, Reopened};
use crate::{Error, Result};

/// Where the server gets what it hands out.
pub trait FdSource: Send + Sync {
    /// The ledger, or what stands in its place; `None` if its descriptor is another file's by now.
    fn ledger(&self) -> Option<Arc<OwnedFd>>;
    /// The lease table, opened anew for the asker if that is possible; `None` if there is no table.
    fn lease_table(&self) -> Option<Outgoing>;
    /// The fd behind a current export, or the generation that its slot has now.
    fn data(&self, slot: u32, generation: u64) -> core::result::Result<Arc<OwnedFd>, u64>;
}

/// A descriptor that goes to an asker.
#[derive(Debug)]
pub enum Outgoing {
    /// Opened for the asker, and closed here once it is sent.
    Own(Reopened),
    /// This process's own.
    Shared(Arc<OwnedFd>),
}

impl AsFd for Outgoing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Shared(fd) => fd.as_fd(),
        }
    }
}

/// Connections beyond this number replace the oldest one; its importer connects again when it needs to.
const CONNECTIONS: usize = 256;

/// The listening socket and its thread. Dropping it ends both.
#[derive(Debug)]
pub struct Server {
    wake: Arc<OwnedFd>,
    thread: Mutex<Option<Thread>>,
    /// All fds of the server, for a forked child to close: those of the thread as long as it has them.
    fds: Arc<Lock<Vec<RawFd>>>,
    generation: u32,
}

impl Server {
    /// Binds the socket. Its thread starts with [`Server::serve`].
    pub(crate) fn bind(nonce: Nonce) -> Result<OwnedFd> {
        let system = |call| move |errno| Error::system(call, errno);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(system("socket"))?;
        // A descriptor that a peer sends is closed by this process, and some take long to close.
        sys::refuse_descriptors(listener.as_fd());
        let address = SocketAddrUnix::new_abstract_name(&wire::name(nonce)).map_err(system("socket name"))?;
        rustix::net::bind(&listener, &address).map_err(system("bind of the abstract socket"))?;
        step(Step::ServerBound);
        rustix::net::listen(&listener, 128).map_err(system("listen"))?;
        step(Step::ServerListening);
        Ok(listener)
    }

    /// Answers on `listener` until dropped.
    ///
    /// # Errors
    /// [`Error::System`] if there is no fd or no thread for it.
    pub fn serve(listener: OwnedFd, nonce: Nonce, source: Arc<dyn FdSource>) -> Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::system("eventfd", errno))?;
        let wake = Arc::new(wake);
        // All that there will ever be: nothing is allocated under this lock.
        let mut numbers = Vec::with_capacity(2 + CONNECTIONS + 1);
        numbers.extend([listener.as_raw_fd(), wake.as_raw_fd()]);
        let fds = Arc::new(Lock::new(numbers));
        let serving = Serving {
            listener,
            nonce,
            source,
            wake: Arc::clone(&wake),
            fds: Arc::clone(&fds),
            connections: Vec::new(),
        };
        let thread =
            background::spawn(c"umf-fd-server", 256 << 10, move || serving.run()).map_err(|error| {
                Error::System {
                    call: "starting the socket's thread",
                    errno: error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error),
                    hint: "; raise RLIMIT_NPROC, or set UMF_IPC_EXCHANGE=pidfd,procfs",
                }
            })?;
        step(Step::ServerStarted);
        Ok(Self { wake, thread: Mutex::new(Some(thread)), fds, generation: fork::generation() })
    }

    /// Before a fork: see [`umf_core::fork::ForkAware`].
    pub fn lock_for_fork(&self) {
        self.fds.lock_for_fork();
    }

    /// After it, in both processes.
    ///
    /// # Safety
    /// [`Server::lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
    pub unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.fds.unlock_after_fork() };
    }

    /// Has the thread end; what is returned waits for that when it is dropped. Until then forks are to know the server.
    ///
    /// It must not be dropped with a lock that a fork, or the thread, takes.
    #[must_use]
    pub fn begin_end(&self) -> Option<Ending> {
        if self.generation != fork::generation() {
            return None;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        step(Step::ServerEnding);
        Some(Ending(Some(thread)))
    }

    /// In a forked child: closes all fds of the parent's thread, which is not here. (They stay open where a handler of signals
    /// forked that came while their list was being changed, or amid another fork.)
    ///
    /// # Safety
    /// This process is a forked child of the one that made the server.
    pub unsafe fn close_in_child(&self) {
        let Some(mut fds) = self.fds.try_lock() else { return };
        for fd in fds.drain(..) {
            // SAFETY: the fds belong to the server thread's objects, which do not exist in this process, and to
            // `wake`, which is never closed again, by the share of it that is forgotten below.
            unsafe { sys::close_inherited(fd) };
            step(Step::ServerAbandoned);
        }
        core::mem::forget(Arc::clone(&self.wake));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            drop(self.begin_end());
        } else {
            // Another process's; whoever was at it there is not here.
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(thread.take());
        }
    }
}

/// A server's thread that was told to end. Dropping it waits until it has.
#[derive(Debug)]
pub struct Ending(Option<Thread>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            thread.join();
        }
    }
}

struct Serving {
    listener: OwnedFd,
    nonce: Nonce,
    source: Arc<dyn FdSource>,
    wake: Arc<OwnedFd>,
    fds: Arc<Lock<Vec<RawFd>>>,
    /// Of permitted peers, the oldest first.
    connections: Vec<OwnedFd>,
}

impl Serving {
    fn run(mut self) {
        self.serve();
        // As in `close`, all of it.
        let Self { listener, connections, wake, fds, .. } = self;
        let mut fds = fds.lock();
        fds.retain(|&fd| fd == wake.as_raw_fd());
        drop((listener, connections));
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
        let connection = self.connections.remove(index);
        // A fork waits until the fd is off the list and closed: its child closes exactly what is on the list.
        let mut fds = self.fds.lock();
        fds.retain(|&fd| fd != connection.as_raw_fd());
        drop(connection);
        step(Step::ServerClosed);
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // As in `close`; nothing waits while this is held.
        let mut fds = self.fds.lock();
        let accepted = rustix::net::accept_with(&self.listener, flags);
        step(Step::ServerAccepted);
        match accepted {
            Ok(connection) if !is_permitted(connection.as_fd()) => refuse(connection),
            Ok(connection) => {
                fds.push(connection.as_raw_fd());
                drop(fds);
                if self.connections.len() == CONNECTIONS {
                    self.close(0);
                }
                self.connections.push(connection);
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                drop(fds);
                // The pending connection stays pending. Make room, or wait until there is some.
                if self.connections.is_empty() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                } else {
                    self.close(0);
                }
            }
            Err(_) => {}
        }
    }

    /// Answers one request; `false` if the connection is to be closed.
    fn answer(&self, index: usize) -> bool {
        let Some(connection) = self.connections.get(index) else { return false };
        // A client reads an answer before it asks again. Descriptors in unread answers count against
        // a limit that all connections share (`RLIMIT_NOFILE`, `unix(7)`).
        if sys::unread(connection.as_fd()).is_ok_and(|bytes| bytes > 0) {
            return false;
        }
        let mut bytes = [0; wire::REQUEST_SIZE + 1];
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
                // Its description is the asker's alone once this process has closed it, below.
                Some(table @ Outgoing::Own(_)) => (Reply::Ok { is_own: true }, Some(table)),
                Some(table) => (Reply::Ok { is_own: false }, Some(table)),
                None => (Reply::BadRequest, None),
            },
            Some(Request::Data { slot, generation }) => match self.source.data(slot, generation) {
                Ok(fd) => shared(fd),
                Err(now) => (Reply::Stale(now), None),
            },
        };
        step(Step::ServerAnswering);
        // A peer that does not read its answers loses its connection.
        let sent = reply(connection.as_fd(), answer, fd.as_ref().map(AsFd::as_fd));
        sent.is_ok() && answer != Reply::BadRequest
    }
}

/// The answer with a descriptor that this process keeps.
const fn shared(fd: Arc<OwnedFd>) -> (Reply, Option<Outgoing>) {
    (Reply::Ok { is_own: false }, Some(Outgoing::Shared(fd)))
}

fn is_permitted(connection: BorrowedFd<'_>) -> bool {
    sys::peer_of(connection) == Ok(sys::Peer::Trusted)
}

/// Says no before anything was asked, so that a stranger takes no place from others.
fn refuse(connection: OwnedFd) {
    let _ = reply(connection.as_fd(), Reply::NotPermitted, None);
    // To close with a request unread would be a reset, which overtakes the answer: let none come, and take what came.
    let _ = rustix::net::shutdown(&connection, Shutdown::Read);
    let mut byte = [0; 1];
    while rustix::net::recv(&connection, &mut byte, RecvFlags::DONTWAIT).is_ok_and(|(_, count)| count > 0) {}
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
    step(Step::ServerAnswered);
    Ok(())
}
