//! One-sided transfers of a [`Mesh`]: registered memory, and reading and writing that of other
//! processes.
//!
//! A transfer is complete when the call returns. It copies by a mapping or by the kernel; where
//! neither is possible, the other process copies at its next [`Mesh::progress`], for which the call
//! waits, while it serves this process's own links.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use crate::buffer::{Buffer, Destination, Source};
use crate::channel::InboxShared;
use crate::key::{RemoteAccess, RemoteKey};
use crate::layout::{self, RANGES};
use crate::protocol::Load;
use crate::registry::Registration;
use crate::remote::Direct;
use crate::{Atomic, Error, Result};

use super::{Completed, Completion, Mesh, NO_COMPLETION, Process};

/// The key of registered memory: a number that other processes name. It grants one access to one
/// range of one process, for as long as it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(u64);

impl RegionKey {
    const SLOTS: u64 = RANGES as u64;
    /// The most ranges that are registered at a time.
    pub const MOST: usize = RANGES;

    /// Returns the key of a range. A slot (less than [`RegionKey::MOST`]) has one range at a time,
    /// and each range has a generation that no earlier one had; the first is 1.
    #[must_use]
    pub const fn new(slot: usize, generation: u64) -> Self {
        Self(generation * Self::SLOTS + slot as u64)
    }

    /// Returns the key that has this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    const fn slot(self) -> usize {
        (self.0 % Self::SLOTS) as usize
    }

    const fn generation(self) -> u64 {
        self.0 / Self::SLOTS
    }
}

/// Registers memory for the other processes of a [`Mesh`], from any thread.
#[derive(Clone, Debug)]
pub struct Registrar(Arc<InboxShared>);

impl Registrar {
    /// Returns whether both are of the same mesh.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether a registration was made by this.
    #[must_use]
    pub fn has_registered(&self, registration: &Registration<'_>) -> bool {
        registration.is_of(&self.0)
    }

    /// Registers memory under a key, which several meshes of a process may have in common.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::System`]: no memory is left.
    ///
    /// # Safety
    /// Until the registration has ended, the memory stays valid and is used as memory that other
    /// processes read and, if `access` allows to put, write. No range is registered in the slot of
    /// the key.
    pub unsafe fn register(
        &self,
        key: RegionKey,
        memory: Destination<'static>,
        access: RemoteAccess,
    ) -> Result<Registration<'static>> {
        let place = (key.slot(), key.generation());
        // SAFETY: by this function's contract.
        unsafe { Registration::at(&self.0, self.0.registry(), place, memory.0, access) }
    }
}

/// The local memory of a transfer, and its direction.
#[derive(Debug)]
pub enum Transferring {
    /// Reads memory of the other process.
    Get(Destination<'static>),
    /// Writes it.
    Put(Source<'static>),
}

impl Transferring {
    const fn parts(&self) -> (Direct, &Buffer<'static>) {
        match self {
            Self::Get(into) => (Direct::Get, &into.0),
            Self::Put(source) => (Direct::Put, &source.0),
        }
    }
}

impl Mesh {
    /// Returns what registers memory for the processes of this mesh.
    #[must_use]
    pub fn registrar(&self) -> Registrar {
        Registrar(Arc::clone(&self.inbox.shared))
    }

    /// Copies between local memory and registered memory of a process, which begins there at
    /// `address`, an address of that process.
    ///
    /// # Errors
    /// As [`Mesh::send`]; [`Error::Expired`], [`Error::NotAllowed`], [`Error::OutOfBounds`],
    /// [`Error::RemoteFailed`].
    ///
    /// # Safety
    /// During the call, the local memory can be read or written, and is not used otherwise.
    pub unsafe fn transfer(
        &mut self,
        process: Process,
        key: RegionKey,
        address: u64,
        local: &Transferring,
    ) -> Result<()> {
        let link = self.link_to(process)?;
        let (direction, local) = local.parts();
        let (key, base) = self.find_range(link, key)?;
        let offset = address.checked_sub(base).and_then(|offset| usize::try_from(offset).ok());
        let size = usize::try_from(key.length).unwrap_or(usize::MAX);
        let outside = || Error::OutOfBounds { offset: address as usize, length: local.len(), size };
        let offset = offset.filter(|offset| *offset <= size).ok_or_else(outside)?;
        self.inbox.transfer(link, direction, &key, offset.into(), local).map(drop)
    }

    /// Changes numbers in registered memory of a process, from `address` on, and returns when they
    /// are changed. `operands` has a number for each; `compared` as many if the operation compares.
    /// `previous` gets the numbers before the change.
    ///
    /// The other process changes them at its next [`Mesh::progress`]. The numbers of one call do not
    /// change at once.
    ///
    /// # Errors
    /// As [`Mesh::transfer`]; [`Error::LengthMismatch`]; [`Error::RemoteFailed`] if the numbers are
    /// not aligned.
    pub fn change(
        &mut self,
        process: Process,
        (key, address): (RegionKey, u64),
        atomic: Atomic,
        (operands, compared): (&[u8], &[u8]),
        previous: &mut [u8],
    ) -> Result<()> {
        let length = previous.len();
        let other = if atomic.compares() { length } else { 0 };
        if operands.len() != length || compared.len() != other || length > Atomic::MOST_BYTES {
            return Err(Error::LengthMismatch { remote: length, local: operands.len() });
        }
        let link = self.link_to(process)?;
        self.inbox.peer(link).check_open()?;
        let (key, base) = self.find_range(link, key)?;
        let offset = usize::try_from(address.wrapping_sub(base)).unwrap_or(usize::MAX);
        let bytes = [operands, compared].concat();
        self.inbox.request_atomic(link, &key, offset, atomic, (&bytes, previous))
    }

    /// Reads what a process publishes of a range. Returns its key and its address there.
    fn find_range(&mut self, link: usize, key: RegionKey) -> Result<(RemoteKey, u64)> {
        let peer = self.inbox.peer(link);
        let (channel, slot, generation) = (Arc::clone(&peer.channel), key.slot(), key.generation());
        channel.populate_catalog(layout::range(slot))?;
        let word =
            |number| channel.peer_catalog.word(layout::range_word(slot, number)).load(Ordering::Relaxed);
        let [base, length, flags] = [0, 1, 2].map(word);
        let expired = Error::Expired { slot, generation };
        let access = RemoteAccess::from_bits(flags & 0xff).filter(|_| generation != 0).ok_or(expired)?;
        Ok((RemoteKey { access, slot, generation, length, nonce: channel.peer_nonce }, base))
    }

    /// Reports a message of the queue that tells of a transfer.
    pub(super) fn report_transfer(&mut self, id: u64) {
        let Some(message) = self.consume(id) else { return };
        let envelope = message.envelope;
        self.completions.push_back(Completion {
            token: NO_COMPLETION,
            result: Ok(Completed::Written {
                by: Process(envelope.source),
                immediate: envelope.immediate.unwrap_or(0),
                length: envelope.tag,
            }),
            message: None,
        });
    }
}
