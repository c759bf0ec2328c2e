//! [`View`]: a block that a peer has handed over, mapped in this process.

use core::fmt;
use std::sync::Arc;

use umf_core::{Access, CpuAccess, View as Memory};
use umf_ipc::Mapping;
use umf_sync::failpoint;

use crate::channel::Channel;
use crate::inbox::{Found, Inbox, Wanted};
use crate::offer::BlockRecord;
use crate::queue::{Body, Matching};
use crate::{Error, Result};

/// A block of the peer's pool that was handed over, mapped without a copy. Dropping it gives the
/// block back.
///
/// It stays valid after the link was dropped and after the peer has ended.
pub struct View {
    /// `None` when it is given back.
    mapping: Option<Mapping<'static>>,
    offset: usize,
    tag: u64,
    lend: BlockRecord,
    channel: Arc<Channel>,
}

impl View {
    /// Returns its tag.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.lend.length
    }

    /// Returns whether it has no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn mapping(&self) -> Result<&Mapping<'static>> {
        self.mapping.as_ref().ok_or(Error::Forked)
    }

    fn refused(&self) -> impl Fn(umf_ipc::Error) -> Error + use<> {
        let pid = self.channel.pid;
        move |error| Error::Open { pid, error }
    }

    /// Copies bytes at `offset` out of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]: then nothing is copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let out = Error::OutOfBounds { offset, length: into.len(), size: self.len() };
        if offset.checked_add(into.len()).is_none_or(|end| end > self.len()) {
            return Err(out);
        }
        self.mapping()?.read(self.offset + offset, into).map_err(|_| out)
    }

    /// Returns the memory. The peer may write it at the same time, and it may be written here.
    /// While devices use it, too, hold a [`View::cpu_access`].
    ///
    /// # Errors
    /// [`Error::Open`] if it was exported for reading only: use [`View::read`].
    pub fn slice(&self) -> Result<Memory<'_>> {
        let out = Error::OutOfBounds { offset: self.offset, length: self.len(), size: self.len() };
        let end = self.offset.checked_add(self.len()).ok_or(out.clone())?;
        self.mapping()?.view().map_err(self.refused())?.range(self.offset..end).ok_or(out)
    }

    /// Brackets accesses to memory that devices use, too, beyond one [`View::read`]. Costs nothing
    /// for other memory.
    ///
    /// # Errors
    /// [`Error::Open`] if a driver refuses, and for writing if it was exported for reading only.
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        self.mapping()?.cpu_access(access).map_err(self.refused())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // The mapping, and so its lease, ends before the peer is notified.
        self.mapping = None;
        if self.channel.own_lane.is_own_process() {
            self.channel.give_back(self.lend.index);
            failpoint!("link.given_back");
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("tag", &self.tag).field("length", &self.len()).finish_non_exhaustive()
    }
}

/// A message of a collective that shows memory.
#[derive(Debug)]
pub(crate) enum Shown {
    View(View),
    /// A block that cannot be opened here; it was given back.
    Unopened {
        tag: u64,
        length: usize,
    },
    /// Something that was sent as a copy, which stays.
    Copy {
        tag: u64,
    },
}

impl Inbox {
    /// Opens the first message that a receive would take, if it has come.
    #[inline]
    pub(crate) fn attempt_view(&mut self, matching: &Matching) -> Result<Option<View>> {
        self.remove_abandoned();
        if self.queue.is_empty() || self.queue.find(matching).is_none() {
            let wanted = Wanted { matching: *matching, posted: None, into: None };
            if let Some(Found::Next(index, tag, lend)) = self.poll(&wanted)? {
                // The record stays until it is open.
                let view = self.view(index, tag, lend)?;
                let peer = self.peer(index);
                peer.reader.read(&peer.channel, 8 * BlockRecord::WORDS, |_, _| {});
                peer.statistics.viewed.add(lend.length);
                return Ok(Some(view));
            }
        }
        let Some(message) = self.queue.find(matching).and_then(|id| self.queue.get(id)) else {
            return Ok(None);
        };
        let (id, index, tag) = (message.id, message.peer, message.tag);
        let Body::Lent(lend) = message.body else {
            return Err(Error::WrongForm { tag, is: "sent as a copy", wanted: "memory that is handed over" });
        };
        let view = self.view(index, tag, lend)?;
        self.queue.remove(id);
        self.peer(index).statistics.viewed.add(lend.length);
        Ok(Some(view))
    }

    #[inline]
    fn view(&mut self, index: usize, tag: u64, lend: BlockRecord) -> Result<View> {
        let (mapping, offset) = self.open(index, Some(lend.announced), lend.offset)?;
        let channel = Arc::clone(&self.peer(index).channel);
        if offset.checked_add(lend.length).is_none_or(|end| end > mapping.len()) {
            return Err(channel.misbehaved("a block that it hands over reaches past its memory"));
        }
        Ok(View { mapping: Some(mapping), offset, tag, lend, channel })
    }

    /// Takes the first message that shows memory in a collective, or finds one that was sent as a
    /// copy.
    pub(crate) fn attempt_shown(&mut self, matching: &Matching) -> Result<Option<Shown>> {
        self.progress();
        let Some(message) = self.queue.find(matching).and_then(|id| self.queue.get(id)) else {
            return Ok(None);
        };
        let (id, index, tag) = (message.id, message.peer, message.tag);
        let shown = match &message.body {
            Body::Data(_) | Body::Offered(_) => return Ok(Some(Shown::Copy { tag })),
            &Body::Lent(lend) => match self.view(index, tag, lend) {
                Ok(view) => Shown::View(view),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "memory of a rank cannot be opened");
                    let peer = self.peer(index);
                    peer.statistics.refused_mapped += 1;
                    peer.channel.give_back(lend.index);
                    Shown::Unopened { tag, length: lend.length }
                }
            },
        };
        self.queue.remove(id);
        Ok(Some(shown))
    }
}
