//! [`Registration`]: ranges of this process that the peer may reach.

use core::marker::PhantomData;
use core::mem;
use core::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use umf_ipc::HANDLE_SIZE;
use umf_sync::failpoint;

use crate::key::{RemoteAccess, RemoteKey};
use crate::layout::{self, ASKING, INSIDE, OFFERS, RANGES, REGISTERED};
use crate::parts::List;
use crate::protocol;
use crate::shared::Shared;
use crate::wait::{Limit, Pulse, wait};
use crate::{Error, Result};

/// What is said about a range besides where it is: its access, and whether its handle is told, and names read-only memory.
pub(super) const HAS_HANDLE: u64 = 1 << 8;
pub(super) const READ_ONLY: u64 = 1 << 9;

/// The ranges of this side: what the peer's requests are held against. No other process can write it.
#[derive(Debug)]
pub(crate) struct Registry {
    ranges: [Option<Registered>; RANGES],
    generation: u64,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    pub generation: u64,
    pub access: RemoteAccess,
    /// In one piece. Borrowed longer than it is: as [`Registration::new`] says.
    pub list: List<'static>,
}

// SAFETY: memory that another process may write and read at any time is no more when another thread of this one does; what is
// done with it is copying.
unsafe impl Send for Registered {}

impl Registry {
    pub(crate) const fn new() -> Self {
        Self { ranges: [const { None }; RANGES], generation: 0 }
    }

    pub(super) fn find(&self, slot: usize, generation: u64) -> Option<&Registered> {
        self.ranges.get(slot)?.as_ref().filter(|range| range.generation == generation)
    }
}

impl Shared {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range that the peer may reach with [`Registration::key`]. Dropping it ends that: keys of it are refused from then on as
/// [`Error::Expired`], and nobody copies in the range any more.
///
/// If the peer copies just then, dropping waits for it, as long as the link's settings let calls wait; a peer that was stopped in the
/// midst of it may finish that copy when it goes on. The link is open as long as a registration on it lives.
#[derive(Debug)]
#[must_use = "a registration ends when it is dropped"]
pub struct Registration<'d> {
    shared: Arc<Shared>,
    key: RemoteKey,
    /// Whether the peer was told where it is, so that it may be in it by itself.
    is_told: bool,
    has_ended: bool,
    memory: PhantomData<&'d mut [u8]>,
}

impl<'d> Registration<'d> {
    /// # Safety
    /// The registration is dropped or ended before `list`'s memory is used otherwise than as memory that another process reads and,
    /// if it may `put`, writes; so it is not forgotten.
    pub(crate) unsafe fn new(shared: &Arc<Shared>, list: List<'d>, access: RemoteAccess) -> Result<Self> {
        shared.known()?;
        let [part] = *list.parts() else { return Err(Error::NotOnePiece { pieces: list.parts().len() }) };
        if list.reduction().is_some() {
            return Err(Error::NotCombined);
        }
        let enforce = shared.settings.enforce;
        shared.populate(REGISTERED)?;
        shared.populate_theirs(OFFERS)?;
        shared.populate_theirs(ASKING)?;
        let mut registry = shared.registry();
        let free = (0..RANGES).find(|slot| {
            registry.ranges[*slot].is_none() && !protocol::is_inside(&shared.theirs.word(INSIDE), *slot)
        });
        let slot = free.ok_or(Error::TooManyRanges { most: RANGES })?;
        registry.generation += 1;
        let generation = registry.generation;
        let mut flags = access as u64;
        let memory = list.memory().filter(|memory| !enforce || memory.is_confined(&list, access));
        let mut offset = 0;
        if let Some(memory) = memory {
            flags |= HAS_HANDLE | if memory.handle().is_read_only() { READ_ONLY } else { 0 };
            offset = part.base.addr() - memory.base().addr();
            let to = shared.mine.bytes(layout::range_handle(slot), HANDLE_SIZE);
            // SAFETY: `to` has room for a handle, in memory that this side alone writes, under the lock.
            unsafe { core::ptr::copy_nonoverlapping(memory.bytes().as_ptr(), to.as_ptr(), HANDLE_SIZE) };
        }
        let address = if enforce { 0 } else { part.iov().address };
        let words = [address, part.length as u64, flags, offset as u64];
        for (number, value) in words.into_iter().enumerate() {
            shared.mine.word(layout::range_word(slot, number)).store(value, Ordering::Relaxed);
        }
        // SAFETY: the lifetime alone differs; by this function's contract the memory is there until the range is taken out of the
        // registry, which dropping does.
        let list = unsafe { mem::transmute::<List<'d>, List<'static>>(list) };
        registry.ranges[slot] = Some(Registered { generation, access, list });
        shared.has_ranges.store(true, Ordering::Relaxed);
        shared.mine.word(layout::range(slot)).store(generation, Ordering::Release);
        drop(registry);
        failpoint!("link.registered");
        let key = RemoteKey {
            access,
            owner: shared.me,
            slot,
            generation,
            length: part.length as u64,
            nonce: shared.mine.nonce(),
        };
        let is_told = address != 0 || flags & HAS_HANDLE != 0;
        Ok(Self { shared: Arc::clone(shared), key, is_told, has_ended: false, memory: PhantomData })
    }

    /// What the peer needs.
    #[must_use]
    pub const fn key(&self) -> RemoteKey {
        self.key
    }

    /// Ends it, and waits until the peer does not copy in the range any more. May be called again after an error.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the peer has not finished a copy that it had begun; no other one begins.
    pub fn end(&mut self, timeout: Option<Duration>) -> Result<()> {
        if self.has_ended || !self.shared.mine.is_here() {
            return Ok(());
        }
        let (shared, slot) = (&*self.shared, self.key.slot);
        // With the lock, so that nobody is serving a request for it.
        let mut registry = shared.registry();
        // In a second call it may be another one's.
        if registry.find(slot, self.key.generation).is_some() {
            registry.ranges[slot] = None;
            protocol::expire(shared.mine.word(layout::range(slot)));
            failpoint!("link.expired");
        }
        drop(registry);
        let inside = shared.theirs.word(INSIDE);
        let is_out = || !self.is_told || !protocol::is_inside(&inside, slot);
        if !is_out() {
            let (mut pulse, mut limit) = (Pulse::default(), Limit::new(timeout));
            let waited =
                wait(shared, &mut pulse, &mut limit, "the peer's last copy", |_| Ok(is_out().then_some(())));
            match waited {
                // Who is gone copies nothing.
                Err(Error::PeerGone { .. }) | Ok(()) => {}
                // Nobody who closed the link is in a call on it.
                Err(Error::Closed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.has_ended = true;
        Ok(())
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let timeout = self.shared.settings.timeout;
        if let Err(error) = self.end(timeout) {
            tracing::warn!(%error, key = ?self.key, "a registered range is not left by the peer");
        }
    }
}
