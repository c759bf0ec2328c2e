//! [`View`]: a block that a peer has handed over, mapped in this process.

use core::fmt;
use std::sync::Arc;

use umf_core::{Access, CpuAccess, View as CoreView};
use umf_ipc::Mapping;
use umf_sync::failpoint;

use crate::channel::Channel;
use crate::inbox::{Found, Inbox, Wanted};
use crate::offer::BlockRecord;
use crate::queue::{Body, Matching};
use crate::{Error, Result};

/// A block of the peer's pool that was handed over, mapped without a copy. Dropping the view
/// returns the block to the peer.
///
/// A view stays valid after its link was dropped and after the peer has ended.
pub struct View {
    /// `None` once the block was returned.
    mapping: Option<Mapping<'static>>,
    offset: usize,
    tag: u64,
    block: BlockRecord,
    channel: Arc<Channel>,
}

impl View {
    /// Returns the tag of the message.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.block.length
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn mapping(&self) -> Result<&Mapping<'static>> {
        self.mapping.as_ref().ok_or(Error::Forked)
    }

    fn open_error(&self) -> impl Fn(umf_ipc::Error) -> Error + use<> {
        let pid = self.channel.pid;
        move |error| Error::Open { pid, error }
    }

    /// Copies bytes at `offset` into memory of the caller.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; no byte was copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let out_of_bounds = Error::OutOfBounds { offset, length: into.len(), size: self.len() };
        if offset.checked_add(into.len()).is_none_or(|end| end > self.len()) {
            return Err(out_of_bounds);
        }
        self.mapping()?.read(self.offset + offset, into).map_err(|_| out_of_bounds)
    }

    /// Returns the memory. This process may write it, and the peer may do so at the same time.
    /// While devices use the memory, too, hold a [`View::cpu_access`].
    ///
    /// # Errors
    /// [`Error::Open`] if the block was exported for reading only: use [`View::read`].
    pub fn slice(&self) -> Result<CoreView<'_>> {
        let (offset, length) = (self.offset, self.len());
        let out_of_bounds = Error::OutOfBounds { offset, length, size: length };
        let end = offset.checked_add(length).ok_or(out_of_bounds.clone())?;
        self.mapping()?.view().map_err(self.open_error())?.range(offset..end).ok_or(out_of_bounds)
    }

    /// Begins an access by the CPU to memory that devices use, too. The access ends when the result
    /// is dropped. [`View::read`] does this itself. Does nothing for other memory.
    ///
    /// # Errors
    /// [`Error::Open`] if the driver refuses, or if `access` writes and the block was exported for
    /// reading only.
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        self.mapping()?.cpu_access(access).map_err(self.open_error())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // The mapping and its lease end before the peer is notified.
        self.mapping = None;
        if self.channel.own_lane.is_own_process() {
            self.channel.return_block(self.block.index);
            failpoint!("link.given_back");
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("tag", &self.tag).field("length", &self.len()).finish_non_exhaustive()
    }
}

/// A message of a collective in which a rank exposes its memory.
#[derive(Debug)]
pub(crate) enum Exposed {
    View(View),
    /// A block that this process cannot open. It was returned.
    Unopened {
        tag: u64,
        length: usize,
    },
    /// A message that was sent as a copy. It stays in the queue.
    Copy {
        tag: u64,
    },
}

impl Inbox {
    /// Opens the first message that a receive would take, if it has arrived.
    #[inline]
    pub(crate) fn attempt_view(&mut self, matching: &Matching) -> Result<Option<View>> {
        self.remove_dropped_requests();
        if self.queue.is_empty() || self.queue.find(matching).is_none() {
            let wanted = Wanted { matching: *matching, posted: None, into: None };
            if let Some(Found::Block(index, tag, block)) = self.poll(&wanted)? {
                // The record stays until it is open.
                let view = self.view(index, tag, block)?;
                let peer = self.peer(index);
                peer.reader.read(&peer.channel, 8 * BlockRecord::WORDS, |_, _| {});
                peer.statistics.viewed.add(block.length);
                return Ok(Some(view));
            }
        }
        let Some(message) = self.queue.find(matching).and_then(|id| self.queue.get(id)) else {
            return Ok(None);
        };
        let (id, index, tag) = (message.id, message.peer, message.envelope.tag);
        let Body::Block(block) = message.body else {
            return Err(Error::WrongForm { tag, is: "sent as a copy", wanted: "memory that is handed over" });
        };
        let view = self.view(index, tag, block)?;
        self.queue.remove(id);
        self.peer(index).statistics.viewed.add(block.length);
        Ok(Some(view))
    }

    #[inline]
    fn view(&mut self, index: usize, tag: u64, block: BlockRecord) -> Result<View> {
        let (mapping, offset) = self.open(index, Some(block.announced), block.offset)?;
        let channel = Arc::clone(&self.peer(index).channel);
        if offset.checked_add(block.length).is_none_or(|end| end > mapping.len()) {
            return Err(channel.misbehaved("a block that it hands over reaches past its memory"));
        }
        Ok(View { mapping: Some(mapping), offset, tag, block, channel })
    }

    /// Returns the first message of a collective that matches, as a view if it exposes memory.
    pub(crate) fn attempt_exposed(&mut self, matching: &Matching) -> Result<Option<Exposed>> {
        self.progress();
        let Some(message) = self.queue.find(matching).and_then(|id| self.queue.get(id)) else {
            return Ok(None);
        };
        let (id, index, tag) = (message.id, message.peer, message.envelope.tag);
        let exposed = match &message.body {
            Body::Data(_) | Body::Offered(_) => return Ok(Some(Exposed::Copy { tag })),
            &Body::Block(block) => match self.view(index, tag, block) {
                Ok(view) => Exposed::View(view),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "memory of a rank cannot be opened");
                    let peer = self.peer(index);
                    peer.statistics.refused_mapped += 1;
                    peer.channel.return_block(block.index);
                    Exposed::Unopened { tag, length: block.length }
                }
            },
        };
        self.queue.remove(id);
        Ok(Some(exposed))
    }
}
