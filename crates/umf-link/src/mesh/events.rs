//! [`Events`]: the descriptor that is readable when another process may have sent something to a
//! [`Mesh`], for programs that wait with `poll(2)`.
//!
//! It is an epoll set with the socket of each link, which its process makes readable
//! ([`Channel::request_event`]), and an eventfd, which the thread that accepts links makes
//! readable.

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::channel::Channel;
use crate::protocol::Futex;
use crate::sys::{self, CloseOnFork};
use crate::{Error, Result};

use super::Mesh;

/// The number of the eventfd in the set. The sockets have the numbers of their links.
const ACCEPTED: u64 = u64::MAX;
/// The most descriptors that one call reads. The set stays readable while there are more.
const BATCH: usize = 64;

/// The descriptors of a mesh.
#[derive(Debug)]
pub(super) struct Events {
    set: CloseOnFork,
    accepted: CloseOnFork,
    /// Whether a socket could not be added.
    is_incomplete: AtomicBool,
}

impl Events {
    fn new() -> sys::Result<Self> {
        let set = CloseOnFork::make(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let accepted = CloseOnFork::make(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
        epoll::add(&set, &accepted, epoll::EventData::new_u64(ACCEPTED), epoll::EventFlags::IN)?;
        Ok(Self { set, accepted, is_incomplete: AtomicBool::new(false) })
    }

    /// Makes the set readable: a link was accepted.
    pub(super) fn announce_link(&self) {
        // It can only fail if the eventfd is readable already.
        let _ = rustix::io::write(&self.accepted, &1_u64.to_ne_bytes());
    }

    /// Adds the socket of a link. If that fails, [`Mesh::arm`] lets no thread wait.
    pub(super) fn add(&self, link: usize, channel: &Channel) -> Result<()> {
        let number = epoll::EventData::new_u64(link as u64);
        if let Err(errno) = epoll::add(&self.set, channel.socket(), number, epoll::EventFlags::IN) {
            self.is_incomplete.store(true, Ordering::Relaxed);
            return Err(Error::system("epoll_ctl")(errno));
        }
        channel.request_event();
        Ok(())
    }

    pub(super) fn remove(&self, channel: &Channel) {
        // A socket that could not be added is not in the set.
        let _ = epoll::delete(&self.set, channel.socket());
    }

    /// Returns the links with a readable socket, and whether its process has closed it.
    fn take_readable(&self) -> Vec<(usize, bool)> {
        let mut events = Vec::with_capacity(BATCH);
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.set, spare_capacity(&mut events), Some(&none)).is_err() {
            return Vec::new();
        }
        let mut links = Vec::new();
        for event in events {
            if event.data.u64() == ACCEPTED {
                let _ = rustix::io::read(&self.accepted, &mut [0; 8]);
            } else {
                let has_ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                let flags = event.flags;
                links.push((event.data.u64() as usize, flags.intersects(has_ended)));
            }
        }
        links
    }
}

impl Mesh {
    /// Returns a descriptor that is readable after [`Mesh::arm`] when there may be something to do.
    /// It is the same in each call, and is not to be read.
    ///
    /// # Errors
    /// [`Error::System`]: no descriptors are left. [`Error::Forked`].
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>> {
        Ok(self.open_events()?.set.as_fd())
    }

    fn open_events(&mut self) -> Result<&Arc<Events>> {
        self.check_process()?;
        if self.events.is_none() {
            // Otherwise a link would be added twice.
            self.settle();
            let events = Arc::new(Events::new().map_err(Error::system("epoll_create"))?);
            for (link, peer) in self.inbox.peers.iter().enumerate() {
                if let Some(peer) = peer {
                    events.add(link, &peer.channel)?;
                }
            }
            // A link that was accepted before this is there for the next call of `arm`.
            self.acceptor.announce_links_to(&events);
            self.events = Some(events);
        }
        self.events.as_ref().ok_or(Error::Forked)
    }

    /// Makes progress, and lets the descriptor of [`Mesh::event_fd`] become readable when there may
    /// be something to do afterwards. Returns whether there was anything to do, there is a
    /// completion, or a link is being made: then the caller does not wait yet.
    ///
    /// # Errors
    /// As [`Mesh::event_fd`].
    pub fn arm(&mut self) -> Result<bool> {
        let readable = self.open_events()?.take_readable();
        for (link, has_ended) in readable {
            let Some(channel) = self.inbox.channel(link).cloned() else { continue };
            sys::drain(channel.socket());
            if has_ended && let Err(error) = channel.check_alive() {
                self.end_of_link(link, &error);
            }
        }
        for peer in self.inbox.peers.iter().flatten() {
            peer.channel.request_event();
        }
        // The thread that accepts links has a fence, too, before it looks for the descriptor.
        <core::sync::atomic::AtomicU32 as Futex>::fence();
        let is_any = self.progress_all() || !self.completions.is_empty();
        // The connections of attempts are not in the set.
        let is_any = is_any || !self.attempts.is_empty();
        Ok(is_any || self.open_events()?.is_incomplete.load(Ordering::Relaxed))
    }
}
