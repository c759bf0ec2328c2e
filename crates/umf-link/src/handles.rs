//! The handle table of a process: IPC handles that it has announced to its peers. A message names
//! an entry and its generation. A handle is therefore written once, and read once by each peer.
//!
//! An open message pins its entry, which is not overwritten meanwhile.

use core::sync::atomic::{Ordering, fence};
use std::collections::HashMap;

use umf_ipc::{HANDLE_SIZE, Handle};
use umf_sync::failpoint;

use crate::Result;
use crate::channel::{Channel, InboxShared};
use crate::layout::{self, HANDLES};
use crate::memory::Memory;
use crate::protocol::Load;

/// An entry of a handle table with its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    index: u8,
    generation: u64,
}

impl Announced {
    /// Returns the form in a message, which is never 0.
    pub(crate) const fn to_word(self) -> u64 {
        self.generation << 8 | self.index as u64
    }

    /// Returns `None` for 0.
    pub(crate) const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self { index: word as u8, generation: word >> 8 }) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The id of the [`Memory`]; 0 for none.
    id: u64,
    generation: u64,
    /// The number of open messages that name it.
    pins: u32,
}

/// The handle table of this process.
#[derive(Debug)]
pub(crate) struct HandleTable {
    entries: Vec<Entry>,
    /// Entries by [`Memory::id`].
    places: HashMap<u64, usize>,
    latest: Option<(u64, usize)>,
    next: usize,
}

impl HandleTable {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), places: HashMap::new(), latest: None, next: 0 }
    }

    /// Announces the handle of a memory, unless it is announced. Returns `None` if all entries are
    /// pinned.
    #[inline]
    pub(crate) fn announce(
        &mut self,
        shared: &InboxShared,
        memory: &Memory<'_>,
    ) -> Result<Option<Announced>> {
        let place = match self.latest {
            Some((id, place)) if id == memory.id() => place,
            _ => match self.place(shared, memory)? {
                Some(place) => place,
                None => return Ok(None),
            },
        };
        self.latest = Some((memory.id(), place));
        Ok(Some(Announced { index: place as u8, generation: self.entries[place].generation }))
    }

    fn place(&mut self, shared: &InboxShared, memory: &Memory<'_>) -> Result<Option<usize>> {
        if let Some(place) = self.places.get(&memory.id()) {
            return Ok(Some(*place));
        }
        self.entries.resize(HANDLES, Entry::default());
        let mut places = (0..HANDLES).map(|step| (self.next + step) % HANDLES);
        let Some(free) = places.find(|place| self.entries[*place].pins == 0) else { return Ok(None) };
        let extent = layout::handle(free);
        shared.populate(extent)?;
        self.next = free + 1;
        let entry = &mut self.entries[free];
        self.places.remove(&entry.id);
        self.places.insert(memory.id(), free);
        // The generation is odd while the handle is being written. Messages have 56 bits of it.
        entry.generation += 2;
        entry.id = memory.id();
        let word = shared.catalog.word(layout::generation(free));
        word.store(entry.generation - 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let to = shared.catalog.bytes(extent.0, extent.1);
        // SAFETY: `to` has the size of a handle, in memory that only this thread writes.
        unsafe { core::ptr::copy_nonoverlapping(memory.bytes().as_ptr(), to.as_ptr(), HANDLE_SIZE) };
        word.store(entry.generation, Ordering::Release);
        failpoint!("link.announced");
        Ok(Some(free))
    }

    /// Pins an entry until [`HandleTable::unpin`].
    #[inline]
    pub(crate) fn pin(&mut self, announced: Announced) {
        self.entries[usize::from(announced.index)].pins += 1;
    }

    #[inline]
    pub(crate) fn unpin(&mut self, announced: Announced) {
        self.entries[usize::from(announced.index)].pins -= 1;
    }
}

/// Reads a handle that the peer has announced; `None` if the entry has another generation.
pub(crate) fn read(channel: &Channel, announced: Announced) -> Option<Handle> {
    let index = usize::from(announced.index);
    let extent = layout::handle(index);
    channel.populate_catalog(extent).ok()?;
    let word = channel.peer_catalog.word(layout::generation(index));
    let before = word.load(Ordering::Acquire);
    if before != announced.generation || before & 1 == 1 {
        return None;
    }
    let mut bytes = [0; HANDLE_SIZE];
    let from = channel.peer_catalog.bytes(extent.0, extent.1);
    // SAFETY: both have that many bytes. What the peer wrote is checked below.
    unsafe { core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), HANDLE_SIZE) };
    fence(Ordering::Acquire);
    if word.load(Ordering::Relaxed) != before {
        return None;
    }
    Handle::from_bytes(&bytes).ok()
}

/// A cache of the handles of a peer, by entry.
#[derive(Debug, Default)]
pub(crate) struct KnownHandles {
    handles: Vec<Option<(u64, Box<Handle>)>>,
}

impl KnownHandles {
    /// Returns a handle from the cache, or [`read`]s it.
    #[inline]
    pub(crate) fn get(&mut self, channel: &Channel, announced: Announced) -> Option<&Handle> {
        let index = usize::from(announced.index);
        if self.handles.len() <= index {
            self.handles.resize_with(index + 1, || None);
        }
        let known = &mut self.handles[index];
        if !matches!(known, Some((generation, _)) if *generation == announced.generation) {
            *known = Some((announced.generation, Box::new(read(channel, announced)?)));
        }
        known.as_ref().map(|(_, handle)| &**handle)
    }
}
