//! [`Registration`]: ranges of this process that its peers may read or write by `get` and `put`.

use core::marker::PhantomData;
use core::mem;
use core::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use umf_ipc::HANDLE_SIZE;
use umf_sync::failpoint;

use crate::buffer::Buffer;
use crate::channel::InboxShared;
use crate::key::{RemoteAccess, RemoteKey};
use crate::layout::{self, RANGES};
use crate::wait::{Limit, SLICE};
use crate::{Error, Result, protocol, sys};

/// A flag of a range, above its access: the range lies in exported memory, whose handle is given.
pub(crate) const HAS_HANDLE: u64 = 1 << 8;
/// The handle is of read-only memory.
pub(crate) const READ_ONLY: u64 = 1 << 9;

/// The registered ranges of this process. Requests of peers are checked against it; no other
/// process can write it.
#[derive(Debug)]
pub(crate) struct Registry {
    ranges: Vec<Option<Registered>>,
    generation: u64,
}

/// A registered range.
#[derive(Debug)]
pub(crate) struct Registered {
    generation: u64,
    pub access: RemoteAccess,
    /// Contiguous. The real lifetime is that of the registration: see [`Registration::new`].
    pub buffer: Buffer<'static>,
}

// SAFETY: other processes may read and write the memory at any time. It is only copied, so another
// thread of this process changes nothing.
unsafe impl Send for Registered {}

impl Registry {
    pub(crate) const fn new() -> Self {
        Self { ranges: Vec::new(), generation: 0 }
    }

    pub(crate) fn find(&self, slot: usize, generation: u64) -> Option<&Registered> {
        self.ranges.get(slot)?.as_ref().filter(|range| range.generation == generation)
    }
}

/// A guard of a registered range, which peers reach with [`Registration::key`]. Dropping it ends
/// the registration: the key is then [`Error::Expired`], and no peer copies in the range.
///
/// If a peer is copying, dropping waits for it, up to the `timeout` of the settings. A peer that
/// was stopped in a copy may finish it when it continues.
#[derive(Debug)]
#[must_use = "a registration ends when it is dropped"]
pub struct Registration<'d> {
    shared: Arc<InboxShared>,
    key: RemoteKey,
    has_ended: bool,
    memory: PhantomData<&'d mut [u8]>,
}

impl<'d> Registration<'d> {
    /// Registers the memory of `buffer`.
    ///
    /// # Safety
    /// Until the registration has ended, the memory stays valid and is used as memory that another
    /// process reads and, if `access` allows to put, writes. A leaked registration never ends.
    pub(crate) unsafe fn new(
        shared: &Arc<InboxShared>,
        buffer: Buffer<'d>,
        access: RemoteAccess,
    ) -> Result<Self> {
        let accessors = shared.accessors();
        let mut registry = shared.registry();
        let is_free = |slot: &usize| {
            registry.ranges.get(*slot).is_none_or(Option::is_none)
                && !accessors.iter().any(|peer| peer.is_inside(*slot))
        };
        let slot = (0..RANGES).find(is_free).ok_or(Error::TooManyRanges { most: RANGES })?;
        registry.generation += 1;
        let generation = registry.generation;
        // SAFETY: by this function's contract.
        unsafe { Self::at(shared, registry, (slot, generation), buffer, access) }
    }

    /// Registers the memory of `buffer` in a slot that is free, under a generation that the slot
    /// has not had.
    ///
    /// # Safety
    /// As [`Registration::new`].
    pub(crate) unsafe fn at(
        shared: &Arc<InboxShared>,
        mut registry: MutexGuard<'_, Registry>,
        (slot, generation): (usize, u64),
        buffer: Buffer<'d>,
        access: RemoteAccess,
    ) -> Result<Self> {
        if !shared.is_own_process() {
            return Err(Error::Forked);
        }
        let [segment] = *buffer.segments() else {
            return Err(Error::NotContiguous { pieces: buffer.segments().len() });
        };
        if buffer.reduction().is_some() {
            return Err(Error::NotCombined);
        }
        shared.populate(layout::range(slot))?;
        let (mut flags, mut offset) = (access as u64, 0);
        if let Some(memory) = buffer.memory() {
            flags |= HAS_HANDLE | if memory.handle().is_read_only() { READ_ONLY } else { 0 };
            offset = segment.base.addr() - memory.base().addr();
            let to = shared.catalog.bytes(layout::range_handle(slot), HANDLE_SIZE);
            // SAFETY: `to` has the size of a handle; the lock is held, and no other process writes
            // it.
            unsafe { core::ptr::copy_nonoverlapping(memory.bytes().as_ptr(), to.as_ptr(), HANDLE_SIZE) };
        }
        let length = segment.length as u64;
        let words = [segment.iov().address, length, flags, offset as u64];
        for (number, value) in words.into_iter().enumerate() {
            shared.catalog.word(layout::range_word(slot, number)).store(value, Ordering::Relaxed);
        }
        // SAFETY: only the lifetime differs. By this function's contract the memory is valid until
        // the range is removed from the registry.
        let buffer = unsafe { mem::transmute::<Buffer<'d>, Buffer<'static>>(buffer) };
        if registry.ranges.len() <= slot {
            registry.ranges.resize_with(slot + 1, || None);
        }
        registry.ranges[slot] = Some(Registered { generation, access, buffer });
        shared.catalog.word(layout::range(slot).0).store(generation, Ordering::Release);
        drop(registry);
        failpoint!("link.registered");
        let key = RemoteKey { access, slot, generation, length, nonce: shared.catalog.nonce() };
        Ok(Self { shared: Arc::clone(shared), key, has_ended: false, memory: PhantomData })
    }

    pub(crate) fn is_of(&self, shared: &Arc<InboxShared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Returns the key that peers need.
    #[must_use]
    pub const fn key(&self) -> RemoteKey {
        self.key
    }

    /// Ends the registration, and waits until no peer copies in the range. May be called again
    /// after an error.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: a peer has not finished a copy. No further copy begins.
    pub fn end(&mut self, timeout: Option<Duration>) -> Result<()> {
        if self.has_ended || !self.shared.is_own_process() {
            return Ok(());
        }
        let (slot, word) = (self.key.slot, self.shared.catalog.word(layout::range(self.key.slot).0));
        // Under the lock, so that no request for the range is being executed.
        let mut registry = self.shared.registry();
        // After an error the slot may have another registration.
        if registry.find(slot, self.key.generation).is_some() {
            registry.ranges[slot] = None;
            protocol::expire(word);
            failpoint!("link.expired");
        }
        drop(registry);
        let mut limit = Limit::new(timeout);
        for peer in self.shared.accessors() {
            while peer.is_inside(slot) && peer.is_alive() {
                let seen = protocol::fall_asleep(self.shared.bell.word());
                if limit.is_over(Instant::now()) {
                    return Err(limit.error("the peer's last copy"));
                }
                if peer.is_inside(slot) {
                    sys::sleep(self.shared.bell.word(), seen, limit.at_most(SLICE));
                }
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
            tracing::warn!(%error, key = ?self.key, "a peer still copies in a range that was registered");
        }
    }
}
