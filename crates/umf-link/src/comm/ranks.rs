//! [`Ranks`]: links with the other ranks of a job. A thread accepts connections, so that a rank can
//! be linked while it computes.
//!
//! If two ranks connect to each other at the same time, the connection of the lower rank counts:
//! the lower rank refuses the other connection while it connects.

use core::sync::atomic::{AtomicBool, Ordering};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use umf_os::background;
use umf_sync::{failpoint, fork};

use super::membership::{Member, Membership};
use crate::channel::{Channel, InboxFds, InboxShared};
use crate::contact;
use crate::endpoint::{self, Endpoint, PendingConnection};
use crate::{Error, LinkAddress, LinkBuilder, Result};

/// Words of a refusal: "connect later", or "the job has another size".
const CONNECT_LATER: [u32; 4] = [1, 0, 0, 0];
const OTHER_SIZE: u32 = 2;

/// The nonce of a process's catalog. Processes of two pid namespaces can have the same pid.
pub(super) type Identity = u128;

/// Returns the part of an identity that stands in the membership table.
const fn short(identity: Identity) -> u64 {
    identity as u64
}

/// The state of the link with one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkState {
    #[default]
    None,
    /// This process is connecting.
    Connecting,
    /// A link with the process of this identity exists, or is being made.
    Linked(Identity),
}

/// A rank, and the link that it has made.
pub(super) type AcceptedLink = (usize, Arc<Channel>);

#[derive(Debug)]
struct RanksState {
    link_states: Vec<LinkState>,
    /// The number of links that were made with each rank.
    links: Vec<u32>,
    accepted: Vec<AcceptedLink>,
}

#[derive(Debug)]
struct RanksShared {
    // Dropped first, so that the rank is marked as left before it stops listening.
    membership: Membership,
    endpoint: Endpoint,
    shared: Arc<InboxShared>,
    fds: InboxFds,
    own_rank: usize,
    size: usize,
    state: Mutex<RanksState>,
    /// Whether `accepted` has links. The thread rings the bell after it set this.
    has_news: AtomicBool,
}

/// The links of this rank, and the thread that accepts connections.
#[derive(Debug)]
pub(super) struct Ranks {
    inner: ManuallyDrop<Arc<RanksShared>>,
    thread: ManuallyDrop<background::Thread>,
    job: String,
    /// The incarnation of each rank that counts as absent: it had ended when this rank joined, or
    /// was forgotten.
    stale: Vec<u64>,
    process: u32,
}

impl Ranks {
    pub(super) fn join(
        builder: &LinkBuilder,
        job: &str,
        own_rank: usize,
        size: usize,
    ) -> Result<(Self, Arc<InboxShared>)> {
        let membership = Membership::join(job, own_rank, size, contact::is_gone, &builder.settings)?;
        let (shared, fds) =
            InboxShared::create(builder.settings.clone(), builder.importer, Some((own_rank, size)))?;
        let endpoint = Endpoint::listen(builder.clone(), LinkAddress::unique(&builder.settings)?)?;
        let address = endpoint.address().to_bytes();
        let (link_states, links) = (vec![LinkState::None; size], vec![0; size]);
        let state = Mutex::new(RanksState { link_states, links, accepted: Vec::new() });
        let (inbox_shared, has_news) = (Arc::clone(&shared), AtomicBool::new(false));
        let inner = Arc::new(RanksShared {
            endpoint,
            shared: inbox_shared,
            fds,
            own_rank,
            size,
            state,
            has_news,
            membership,
        });
        let serving = Arc::clone(&inner);
        let thread = background::spawn(c"umf-ranks", 256 << 10, move || {
            serving.endpoint.serve(|pending| serving.welcome(pending));
        })
        .map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            Error::system("starting the thread of a communicator")(errno)
        })?;
        let ended = |rank| {
            let membership = &inner.membership;
            let has_ended = |member: &Member| member.has_left || membership.is_gone(&member.address);
            let member = membership.member(rank).filter(has_ended);
            member.map_or(0, |member| member.incarnation)
        };
        let stale = (0..size).map(ended).collect();
        let ranks = Self {
            inner: ManuallyDrop::new(inner),
            thread: ManuallyDrop::new(thread),
            job: job.to_owned(),
            stale,
            process: fork::generation(),
        };
        // Published last, when nothing can fail any more.
        ranks.inner.membership.publish(&address, short(shared.catalog.nonce()))?;
        Ok((ranks, shared))
    }

    /// Returns whether this process joined, and not its parent.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == fork::generation()
    }

    pub(super) fn changes(&self) -> u32 {
        self.inner.membership.changes()
    }

    /// Returns whether [`Ranks::take`] would return links.
    pub(super) fn has_news(&self) -> bool {
        self.inner.has_news.load(Ordering::Acquire)
    }

    /// Takes the links that other ranks have made since the last call.
    pub(super) fn take(&self) -> Vec<AcceptedLink> {
        if !self.inner.has_news.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        core::mem::take(&mut self.inner.state().accepted)
    }

    /// Allows a new link with a rank. Its former process counts as absent, if it was linked as
    /// `identity` or has ended.
    pub(super) fn forget(&mut self, rank: usize, identity: Option<Identity>) {
        self.inner.state().link_states[rank] = LinkState::None;
        let Some(member) = self.member(rank) else { return };
        let was_linked = identity.map(short) == Some(member.identity);
        if was_linked || member.has_left || self.inner.membership.is_gone(&member.address) {
            self.stale[rank] = member.incarnation;
        }
    }

    /// Marks a rank as linked with the process of this identity.
    pub(super) fn set_linked(&self, rank: usize, identity: Identity) {
        self.inner.state().link_states[rank] = LinkState::Linked(identity);
    }

    pub(super) fn absent(&self, rank: usize, milliseconds: u64) -> Error {
        Error::RankAbsent { job: self.job.clone(), rank, milliseconds }
    }

    fn member(&self, rank: usize) -> Option<Member> {
        self.inner.membership.member(rank).filter(|member| member.incarnation != self.stale[rank])
    }

    /// Returns how the process of a rank has ended, if it has and no link with it is being made.
    pub(super) fn end(&self, rank: usize) -> Option<Error> {
        let member = self.member(rank)?;
        if !member.has_left && !self.inner.membership.is_gone(&member.address) {
            return None;
        }
        // Read last: a process that has ended begins no link after this.
        let is_coming = matches!(self.inner.state().link_states[rank], LinkState::Linked(_));
        let pid = member.pid;
        let end = if member.has_left { Error::Closed { pid } } else { Error::PeerGone { pid } };
        (!is_coming).then_some(end)
    }

    /// Tries once to connect to a rank, for at most `patience`. Returns `None` if the rank has not
    /// joined or cannot be reached now, or if it makes the link, which [`Ranks::take`] then
    /// returns.
    ///
    /// # Errors
    /// That of [`Ranks::end`]; [`Error::SizeMismatch`]; [`Error::System`].
    pub(super) fn connect_rank(&self, rank: usize, patience: Duration) -> Result<Option<Arc<Channel>>> {
        let inner = &**self.inner;
        let Some(member) = self.member(rank) else { return Ok(None) };
        if member.has_left {
            return self.end(rank).map_or(Ok(None), Err);
        }
        let links = {
            let mut state = inner.state();
            if matches!(state.link_states[rank], LinkState::Linked(_)) {
                return Ok(None);
            }
            state.link_states[rank] = LinkState::Connecting;
            state.links[rank]
        };
        failpoint!("link.rank_calling");
        let connected = inner.connect(&member, patience, links);
        let mut state = inner.state();
        let link_state = &mut state.link_states[rank];
        match &connected {
            Ok(Some(channel)) => {
                *link_state = LinkState::Linked(channel.peer_nonce);
                state.links[rank] += 1;
            }
            // If the rank has connected meanwhile, its link stays.
            _ if *link_state == LinkState::Connecting => *link_state = LinkState::None,
            _ => {}
        }
        drop(state);
        match connected {
            Ok(None) => self.end(rank).map_or(Ok(None), Err),
            connected => connected,
        }
    }
}

impl RanksShared {
    fn state(&self) -> MutexGuard<'_, RanksState> {
        // No code panics between two changes that belong together, so a poisoned state is
        // consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, member: &Member, patience: Duration, links: u32) -> Result<Option<Arc<Channel>>> {
        let Ok(address) = LinkAddress::from_bytes(&member.address) else { return Ok(None) };
        let words = [1, self.own_rank as u32, self.size as u32, links];
        match endpoint::connect(&self.shared, &self.fds, &address, Some(patience), words) {
            Ok(Ok(channel)) => Ok(Some(channel)),
            Ok(Err([OTHER_SIZE, other, ..])) => {
                Err(Error::SizeMismatch { other: other as usize, own: self.size })
            }
            Ok(Err(_)) => Ok(None),
            Err(error @ (Error::System { .. } | Error::Interrupted)) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "a rank cannot be linked");
                Ok(None)
            }
        }
    }

    fn welcome(&self, pending: PendingConnection) -> Result<()> {
        let identity = pending.hello.catalog;
        let [is_rank, rank, size, links] = pending.hello.words;
        let (rank, size) = (rank as usize, size as usize);
        if is_rank != 1 || size != self.size || rank >= size || rank == self.own_rank {
            pending.refuse([OTHER_SIZE, self.size as u32, 0, 0]);
            return Ok(());
        }
        let accepts = {
            let mut state = self.state();
            let earlier_links = state.links[rank];
            let link_state = &mut state.link_states[rank];
            let accepts = match *link_state {
                LinkState::None => true,
                LinkState::Connecting => rank < self.own_rank,
                // The rank was replaced, or has dropped a link that this rank still has.
                LinkState::Linked(other) => other != identity || links >= earlier_links,
            };
            if accepts {
                *link_state = LinkState::Linked(identity);
            }
            accepts
        };
        if !accepts {
            pending.refuse(CONNECT_LATER);
            return Ok(());
        }
        let channel = pending.welcome(&self.shared, &self.fds);
        let channel = channel.map(|channel| channel.filter(|channel| endpoint::has_agreed(channel)));
        let mut state = self.state();
        let Ok(Some(channel)) = channel else {
            if state.link_states[rank] == LinkState::Linked(identity) {
                state.link_states[rank] = LinkState::None;
            }
            return channel.map(drop);
        };
        state.links[rank] += 1;
        state.accepted.push((rank, channel));
        drop(state);
        failpoint!("link.rank_met");
        self.has_news.store(true, Ordering::Release);
        self.shared.bell.ring();
        Ok(())
    }
}

impl Drop for Ranks {
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
