//! [`View`]: memory of the peer, opened here.

use core::fmt;
use std::sync::Arc;

use umf_core::{Access, CpuAccess, View as Memory};
use umf_ipc::Mapping;
use umf_sync::failpoint;

use super::incoming::Incoming;
use super::pull::is_withdrawn;
use crate::TagMatch;
use crate::layout::OFFERS;
use crate::offer::{self, Offer};
use crate::queue::Body;
use crate::shared::Shared;
use crate::{Error, Result};

/// A message that was handed over: memory of the peer's pool, mapped here, and not copied. Dropping it gives the memory back.
///
/// It stays valid when the link is dropped, and when the peer is gone.
pub struct View {
    /// None once it is given back.
    mapping: Option<Mapping<'static>>,
    offset: usize,
    tag: u64,
    length: usize,
    index: usize,
    number: u32,
    /// Whether nobody can take it back.
    lent: bool,
    shared: Arc<Shared>,
}

impl View {
    /// `None` if the message reaches past the end of the memory.
    #[inline]
    fn new(
        shared: &Arc<Shared>,
        mapping: Mapping<'static>,
        offset: usize,
        tag: u64,
        offer: &Offer,
    ) -> Option<Self> {
        let &Offer { index, number, length, lent, .. } = offer;
        let fits = offset.checked_add(length).is_some_and(|end| end <= mapping.len());
        let shared = || Arc::clone(shared);
        fits.then(|| Self {
            mapping: Some(mapping),
            offset,
            tag,
            length,
            index,
            number,
            lent,
            shared: shared(),
        })
    }

    /// Its tag.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Its bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn mapping(&self) -> Result<&Mapping<'static>> {
        self.mapping.as_ref().ok_or(Error::Forked)
    }

    /// Copies bytes at `offset` out of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]: then nothing is copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let out = Error::OutOfBounds { offset, length: into.len(), size: self.length };
        if offset.checked_add(into.len()).is_none_or(|end| end > self.length) {
            return Err(out);
        }
        self.mapping()?.read(self.offset + offset, into).map_err(|_| out)
    }

    /// The memory, which the peer may write meanwhile, and which may be written. While devices use it, too, hold a
    /// [`View::cpu_access`] meanwhile.
    ///
    /// # Errors
    /// [`Error::Open`] if it was exported for reading only: use [`View::read`].
    pub fn slice(&self) -> Result<Memory<'_>> {
        let refused = |error| Error::Open { pid: self.shared.pid, error };
        let out = Error::OutOfBounds { offset: self.offset, length: self.length, size: self.length };
        let end = self.offset.checked_add(self.length).ok_or(out.clone())?;
        self.mapping()?.view().map_err(refused)?.range(self.offset..end).ok_or(out)
    }

    /// Begins to touch the memory, for more than one copy or by pointers, while devices may use it, too. (One [`View::read`] needs no
    /// such thing.) For memory that no device uses it costs nothing.
    ///
    /// # Errors
    /// [`Error::Open`] if a driver refuses, and for writing if it was exported for reading only.
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        let refused = |error| Error::Open { pid: self.shared.pid, error };
        self.mapping()?.cpu_access(access).map_err(refused)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // The lease ends before the peer hears of it.
        self.mapping = None;
        if self.shared.mine.is_here() {
            if self.lent {
                self.shared.give_back(self.index);
            } else {
                self.shared.take(self.index, self.number);
            }
            failpoint!("link.given_back");
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("tag", &self.tag).field("length", &self.length).finish_non_exhaustive()
    }
}

impl Incoming {
    /// Opens memory that is handed over in the message that is next in the ring, if that is all in order; whatever else comes is looked
    /// at by [`Incoming::view`].
    #[inline]
    pub(super) fn view_next(&mut self, shared: &Arc<Shared>, wanted: TagMatch) -> Option<View> {
        let (tag, words) = self.next_lent(shared, wanted)?;
        let offer = offer::decode_lent(&words)?;
        let (mapping, offset) = self.open(shared, offer.told, offer.offset).ok()?;
        let view = View::new(shared, mapping, offset, tag, &offer)?;
        self.pass(shared);
        self.statistics.viewed.add(offer.length);
        Some(view)
    }

    /// Opens a message of the queue; `None` if its sender took it back.
    pub(super) fn view(&mut self, shared: &Arc<Shared>, id: u64) -> Result<Option<View>> {
        let Some(entry) = self.queue.get(id) else { return Ok(None) };
        let tag = entry.tag;
        let wanted = "memory of a pool";
        let Body::Offered(offer) = &entry.body else {
            return Err(Error::OtherForm { tag, is: "sent in the ring", wanted });
        };
        if offer.told.is_none() || offer.ranges.as_slice().len() > 1 {
            return Err(Error::OtherForm { tag, is: "sent from other memory", wanted });
        }
        let offer = offer.clone();
        shared.populate_theirs(OFFERS)?;
        if is_withdrawn(shared, &offer) {
            self.queue.remove(id);
            self.statistics.withdrawn += 1;
            return Ok(None);
        }
        shared.populate(OFFERS)?;
        let (mapping, offset) = match self.open(shared, offer.told, offer.offset) {
            Err(_) if is_withdrawn(shared, &offer) => return Ok(None),
            opened => opened?,
        };
        let view = View::new(shared, mapping, offset, tag, &offer)
            .ok_or(shared.misbehaved("what it hands over reaches past the end of its memory"))?;
        self.queue.remove(id);
        self.statistics.viewed.add(offer.length);
        Ok(Some(view))
    }
}
