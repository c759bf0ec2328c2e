//! [`Acceptor`]: the thread of a mesh that accepts connections, so that a process can be linked
//! while it computes, and the connections that this process makes.

use core::sync::atomic::{AtomicBool, Ordering};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use umf_ipc::fd_socket::Deadline;
use umf_os::background;
use umf_sync::{failpoint, fork};

use crate::channel::{Channel, InboxFds, InboxShared};
use crate::endpoint::{self, Connecting, Endpoint, PendingConnection};
use crate::{Error, LinkAddress, LinkBuilder, Result};

use super::events::Events;

/// The words of the hello of a process that connects to a mesh.
const MESH: [u32; 4] = [2, 0, 0, 0];
/// The words of the refusal of any other process.
const NOT_A_MESH: [u32; 4] = [1, 0, 0, 0];
/// The longest time for the thread of another process to accept, which it does at once unless it is
/// stopped.
const CONNECT: Duration = Duration::from_secs(30);
/// The wait of the first call that needs the link. Others do not wait for an answer.
const FIRST_CALL: Duration = Duration::from_millis(10);
/// The wait for space in a full backlog, which only a call that waits can find.
const BACKLOG_WAIT: Duration = Duration::from_millis(1);

/// Links that other processes have made, until the mesh takes them.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    links: Mutex<Vec<Arc<Channel>>>,
    /// Whether there are any. The thread rings the bell after it set this.
    has_news: AtomicBool,
}

impl Accepted {
    fn add(&self, channel: Arc<Channel>) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
        failpoint!("link.mesh_met");
        self.has_news.store(true, Ordering::Release);
    }

    /// Returns whether there may be links to take.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    /// Takes the links.
    pub(crate) fn take(&self) -> Vec<Arc<Channel>> {
        if !self.has_news.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        core::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A link that this process makes with a mesh.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    /// When it began.
    begun: Option<Instant>,
    /// The connection, once there is one.
    connecting: Option<Connecting>,
    /// Why it has failed, until a call reports it.
    pub failure: Option<Error>,
}

#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    shared: Arc<InboxShared>,
    fds: InboxFds,
    accepted: Arc<Accepted>,
    /// What it makes readable afterwards.
    events: OnceLock<Arc<Events>>,
}

/// The endpoint of a mesh with its thread.
#[derive(Debug)]
pub(super) struct Acceptor {
    inner: ManuallyDrop<Arc<Shared>>,
    thread: ManuallyDrop<background::Thread>,
    process: u32,
}

impl Acceptor {
    pub(super) fn start(builder: &LinkBuilder, address: LinkAddress) -> Result<(Self, Arc<InboxShared>)> {
        let (shared, fds) = InboxShared::create(builder.settings.clone(), builder.importer, None)?;
        let endpoint = Endpoint::listen(builder.clone(), address)?;
        let inner = Arc::new(Shared {
            endpoint,
            shared: Arc::clone(&shared),
            fds,
            accepted: Arc::default(),
            events: OnceLock::new(),
        });
        let serving = Arc::clone(&inner);
        let thread = background::spawn(c"umf-mesh", 256 << 10, move || {
            serving.endpoint.serve(|pending| serving.welcome(pending));
        })
        .map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            Error::system("starting the thread of a mesh")(errno)
        })?;
        let (inner, thread) = (ManuallyDrop::new(inner), ManuallyDrop::new(thread));
        Ok((Self { inner, thread, process: fork::generation() }, shared))
    }

    pub(super) fn address(&self) -> LinkAddress {
        self.inner.endpoint.address()
    }

    /// Returns whether this process made the mesh, and not its parent.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// Makes descriptors readable at each link from now on. Called once.
    pub(super) fn announce_links_to(&self, events: &Arc<Events>) {
        let _ = self.inner.events.set(Arc::clone(events));
    }

    /// Returns the links that other processes make.
    pub(super) fn accepted(&self) -> &Arc<Accepted> {
        &self.inner.accepted
    }

    /// Connects to the mesh at an address. After [`Error::NotAccepted`], a call with the same
    /// attempt goes on with it.
    pub(super) fn connect(&self, address: &LinkAddress, attempt: &mut Attempt) -> Result<Arc<Channel>> {
        let pid = address.pid().cast_signed();
        let wait = if attempt.begun.is_none() { FIRST_CALL } else { Duration::ZERO };
        let begun = *attempt.begun.get_or_insert_with(Instant::now);
        let is_resumed = attempt.connecting.is_some();
        let result = match self.advance(address, &mut attempt.connecting, wait) {
            Err(Error::TimedOut { what, .. }) if begun.elapsed() >= CONNECT => {
                Err(Error::TimedOut { what, milliseconds: CONNECT.as_millis() as u64 })
            }
            Err(Error::TimedOut { .. }) => return Err(Error::NotAccepted { pid }),
            // The process closes a connection of which it has heard nothing for some time. If it has
            // ended, the next connection is refused.
            Err(Error::NotListening { .. }) if is_resumed => return Err(Error::NotAccepted { pid }),
            result => result,
        };
        *attempt = Attempt::default();
        result
    }

    /// Continues with a connection, or begins one. [`Error::TimedOut`] leaves it as it is.
    fn advance(
        &self,
        address: &LinkAddress,
        connecting: &mut Option<Connecting>,
        wait: Duration,
    ) -> Result<Arc<Channel>> {
        let Shared { shared, fds, .. } = &**self.inner;
        let mut connection = match connecting.take() {
            Some(connection) => connection,
            None => Connecting::begin(shared, address, Deadline::after(wait.max(BACKLOG_WAIT)), MESH)?,
        };
        let answer = match connection.answer(shared, fds, Deadline::after(wait)) {
            Err(error @ Error::TimedOut { .. }) => {
                *connecting = Some(connection);
                return Err(error);
            }
            answer => answer?,
        };
        let (pid, what) = (address.pid().cast_signed(), "it is no mesh, or is ending");
        connection.finish(shared, answer)?.map_err(|_| Error::Misbehaved { pid, what })
    }
}

impl Shared {
    fn welcome(&self, pending: PendingConnection) -> Result<()> {
        if pending.hello.words != MESH {
            pending.refuse(NOT_A_MESH);
            return Ok(());
        }
        let channel = pending.welcome(&self.shared, &self.fds)?;
        let Some(channel) = channel.filter(|channel| endpoint::has_agreed(channel)) else { return Ok(()) };
        self.accepted.add(channel);
        // It has a fence, so that either the mesh sees the link, or this the descriptor.
        self.shared.bell.ring();
        if let Some(events) = self.events.get() {
            events.announce_link();
        }
        Ok(())
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if !self.is_own_process() {
            // The thread exists in the parent only, and may hold the lock. Both fields are leaked.
            return;
        }
        self.inner.endpoint.close();
        // SAFETY: `self` is being dropped, so neither field is used again.
        let (thread, inner) =
            unsafe { (ManuallyDrop::take(&mut self.thread), ManuallyDrop::take(&mut self.inner)) };
        thread.join();
        drop(inner);
    }
}
