//! Handles that a side has told the other one: from then on they are named by a number.
//!
//! A handle is written into an entry of the board once; messages name the entry and its generation. An entry that an open
//! message names is not written again.

use core::sync::atomic::{Ordering, fence};
use std::collections::HashMap;

use umf_ipc::{HANDLE_SIZE, Handle};
use umf_sync::failpoint;

use crate::Result;
use crate::layout::{self, HALF_OF_HANDLES, HANDLES, OFFERS};
use crate::memory::Memory;
use crate::protocol::Load;
use crate::shared::Shared;

/// An entry of a board, and which handle it is that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    index: u8,
    generation: u64,
}

impl Told {
    /// Never 0.
    pub(crate) const fn to_word(self) -> u64 {
        self.generation << 8 | self.index as u64
    }

    /// None of 0.
    pub(crate) const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self { index: word as u8, generation: word >> 8 }) }
    }
}

/// One half of a side's board, as whoever writes it knows it.
#[derive(Debug)]
pub(crate) struct Board {
    first: usize,
    entries: Vec<Entry>,
    /// Where the memory with this id is told.
    places: HashMap<u64, usize>,
    /// The last one that was asked for.
    last: Option<(u64, usize)>,
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    id: u64,
    generation: u64,
    /// How many open messages name it.
    pins: u32,
}

impl Board {
    /// The half that the sender (or the receiver) of a side writes.
    pub(crate) fn new(is_sender: bool) -> Self {
        let first = if is_sender { 0 } else { HALF_OF_HANDLES };
        let entries = vec![Entry::default(); HALF_OF_HANDLES];
        Self { first, entries, places: HashMap::new(), last: None, next: 0 }
    }

    /// Tells of a memory, unless that was done. `None` if open messages name all entries.
    #[inline]
    pub(crate) fn tell(&mut self, shared: &Shared, memory: &Memory<'_>) -> Result<Option<Told>> {
        let place = match self.last {
            Some((id, place)) if id == memory.id() => place,
            _ => match self.place(shared, memory)? {
                Some(place) => place,
                None => return Ok(None),
            },
        };
        self.last = Some((memory.id(), place));
        Ok(Some(Told { index: (self.first + place) as u8, generation: self.entries[place].generation }))
    }

    fn place(&mut self, shared: &Shared, memory: &Memory<'_>) -> Result<Option<usize>> {
        if let Some(place) = self.places.get(&memory.id()) {
            return Ok(Some(*place));
        }
        let count = self.entries.len();
        let mut places = (0..count).map(|step| (self.next + step) % count);
        let Some(free) = places.find(|place| self.entries[*place].pins == 0) else { return Ok(None) };
        let index = self.first + free;
        shared.populate(OFFERS)?;
        shared.populate((layout::handle(index), HANDLE_SIZE))?;
        self.next = free + 1;
        let entry = &mut self.entries[free];
        self.places.remove(&entry.id);
        self.places.insert(memory.id(), free);
        // Even: a whole handle. 54 bits remain of it in messages, which are enough.
        entry.generation += 2;
        entry.id = memory.id();
        let word = shared.mine.word(layout::generation(index));
        word.store(entry.generation - 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let to = shared.mine.bytes(layout::handle(index), HANDLE_SIZE);
        // SAFETY: `to` has room for a handle, in memory that this half of this side alone writes.
        unsafe { core::ptr::copy_nonoverlapping(memory.bytes().as_ptr(), to.as_ptr(), HANDLE_SIZE) };
        word.store(entry.generation, Ordering::Release);
        failpoint!("link.told");
        Ok(Some(free))
    }

    /// Keeps an entry until it is [`unpin`](Self::unpin)ned.
    #[inline]
    pub(crate) fn pin(&mut self, told: Told) {
        if let Some(entry) = self.entries.get_mut(usize::from(told.index) - self.first) {
            entry.pins += 1;
        }
    }

    #[inline]
    pub(crate) fn unpin(&mut self, told: Told) {
        if let Some(entry) = self.entries.get_mut(usize::from(told.index) - self.first) {
            entry.pins -= 1;
        }
    }
}

/// Reads a handle that the peer has told; `None` if the entry holds another one, or none at all.
pub(crate) fn read(shared: &Shared, told: Told) -> Option<Handle> {
    let index = usize::from(told.index);
    shared.populate_theirs(OFFERS).ok()?;
    shared.populate_theirs((layout::handle(index), HANDLE_SIZE)).ok()?;
    let word = shared.theirs.word(layout::generation(index));
    let before = word.load(Ordering::Acquire);
    if before != told.generation || before & 1 == 1 {
        return None;
    }
    let mut bytes = [0; HANDLE_SIZE];
    let from = shared.theirs.bytes(layout::handle(index), HANDLE_SIZE);
    // SAFETY: both have that many bytes; what comes is checked below.
    unsafe { core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), HANDLE_SIZE) };
    fence(Ordering::Acquire);
    if word.load(Ordering::Relaxed) != before {
        return None;
    }
    Handle::from_bytes(&bytes).ok()
}

/// What the other side has told, as it was read once.
#[derive(Debug)]
pub(crate) struct Known {
    handles: Vec<Option<(u64, Box<Handle>)>>,
}

impl Known {
    pub(crate) fn new() -> Self {
        Self { handles: (0..HANDLES).map(|_| None).collect() }
    }

    /// As [`read`].
    #[inline]
    pub(crate) fn handle(&mut self, shared: &Shared, told: Told) -> Option<&Handle> {
        let index = usize::from(told.index);
        let is_known =
            matches!(&self.handles[index], Some((generation, _)) if *generation == told.generation);
        if !is_known {
            self.handles[index] = Some((told.generation, Box::new(read(shared, told)?)));
        }
        self.handles[index].as_ref().map(|(_, handle)| &**handle)
    }
}
