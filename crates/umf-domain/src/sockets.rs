//! [`Sockets`]: what a process has bound in a domain. A forked child closes all of it: a name lives as long as any fd of
//! its socket, and would say that the parent is alive when it is dead.

use core::ptr::NonNull;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use umf_core::fork::{self, ForkAware};
use umf_core::lock::Lock;
use umf_core::step::{Step, step};
use umf_ipc::fd_socket::{FdSource, Server};

use crate::ask::PROTOCOL;
use crate::{Result, sys};

/// The numbers of the sockets, -1 where there is none. A fork waits until what is being bound or closed is listed right.
/// Nothing waits and nothing is allocated under its lock.
#[derive(Debug)]
struct Bound {
    arbiter: RawFd,
    listener: RawFd,
}

#[derive(Debug)]
struct Inner {
    bound: Lock<Bound>,
    /// Set under the lock of `bound`.
    server: OnceLock<Server>,
}

/// The sockets of one participant, known to forks until dropped.
#[derive(Debug)]
pub(crate) struct Sockets(Arc<Inner>);

impl Sockets {
    pub(crate) fn new() -> Result<Self> {
        let bound = Bound { arbiter: -1, listener: -1 };
        let inner = Arc::new(Inner { bound: Lock::new(bound), server: OnceLock::new() });
        // SAFETY: unregistered when dropped, before the object goes; the locks are leaves, as `Bound` says and as the
        // server says of its own.
        unsafe { fork::register_leaf(pointer(&inner)) }?;
        Ok(Self(inner))
    }

    /// Binds the arbiter's name; `None` if somebody has it.
    pub(crate) fn bind_arbiter(&self, name: &[u8]) -> sys::Result<Option<OwnedFd>> {
        self.bind(name, |bound, number| bound.arbiter = number)
    }

    /// Lets go of the arbiter's name.
    pub(crate) fn close_arbiter(&self, socket: OwnedFd) {
        let mut bound = self.0.bound.lock();
        bound.arbiter = -1;
        drop(socket);
        step(Step::DomainTurnGivenBack);
    }

    /// Binds the name of a place; `None` if somebody has it.
    pub(crate) fn bind_place(&self, name: &[u8]) -> sys::Result<Option<OwnedFd>> {
        self.bind(name, |bound, number| bound.listener = number)
    }

    fn bind(&self, name: &[u8], list: impl Fn(&mut Bound, RawFd)) -> sys::Result<Option<OwnedFd>> {
        let mut bound = self.0.bound.lock();
        let (socket, address) = sys::socket(name)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        step(Step::DomainBound);
        // So that others can ask the kernel whose it is.
        rustix::net::listen(&socket, 128)?;
        step(Step::DomainListening);
        list(&mut bound, socket.as_raw_fd());
        Ok(Some(socket))
    }

    /// Answers on the socket of a place, until dropped.
    pub(crate) fn serve(&self, listener: OwnedFd, source: Arc<dyn FdSource>) -> Result<()> {
        // Not listed between here and the end: a child forked meanwhile keeps it open, and `listener_has_ended` is what
        // tells others then. The other way round the child could close what somebody else opened under the number.
        self.0.bound.lock().listener = -1;
        let server = Server::serve(listener, PROTOCOL, source)?;
        let bound = self.0.bound.lock();
        let set = self.0.server.set(server);
        drop(bound);
        debug_assert!(set.is_ok(), "one server for each participant");
        step(Step::DomainServed);
        Ok(())
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // As long as its thread has fds, forks are to know them.
        drop(self.0.server.get().and_then(Server::begin_end));
        fork::unregister(pointer(&self.0));
    }
}

fn pointer(inner: &Arc<Inner>) -> NonNull<dyn ForkAware> {
    let inner: &(dyn ForkAware + 'static) = &**inner;
    NonNull::from(inner)
}

impl ForkAware for Inner {
    fn prepare(&self) {
        self.bound.lock_for_fork();
        if let Some(server) = self.server.get() {
            server.lock_for_fork();
        }
    }

    fn parent(&self) {
        if let Some(server) = self.server.get() {
            // SAFETY: `prepare` took it: the server was there then, or is not now, as it is set under the lock of
            // `bound`.
            unsafe { server.unlock_after_fork() };
        }
        // SAFETY: `prepare` took it.
        unsafe { self.bound.unlock_after_fork() };
    }

    fn child(&self) {
        self.parent();
        if let Some(server) = self.server.get() {
            // SAFETY: this is a forked child.
            unsafe { server.close_in_child() };
        }
        // (Taken by what was interrupted, if a handler of signals forked: then the sockets stay open.)
        let Some(mut bound) = self.bound.try_lock() else { return };
        let Bound { arbiter, listener } = &mut *bound;
        for number in [arbiter, listener] {
            if *number >= 0 {
                // SAFETY: listed, so open; the thread that owns it is not in this process, as nobody forks between
                // binding and closing.
                unsafe { sys::close_inherited(*number) };
                *number = -1;
            }
        }
        step(Step::DomainAbandoned);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_child_of_a_signal_handler_waits_for_nobody() {
        let sockets = Sockets::new().unwrap();
        // SAFETY: the child only takes umf's locks, and ends within a bounded time.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: sets an alarm for this child, which has one thread.
            unsafe { libc::alarm(20) };
            let held = sockets.0.bound.lock();
            // As a handler of signals that came here, and forks: the child's side.
            sockets.0.prepare();
            sockets.0.child();
            let is_held = sockets.0.bound.try_lock().is_none();
            drop(held);
            let is_free = sockets.0.bound.try_lock().is_some();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_held || !is_free)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}
