//! [`Held`]: a mapping that is kept while something in it is opened, and how a thread finds the window that it used last.

use core::ptr::NonNull;

use umf_core::Access;
use umf_sync::thread;

use super::Inner;
use super::extent::PinnedRegion;
use super::region::{Extent, ImportedRegion};
use crate::cache::{Note, Pin};
use crate::handle::{Handle, SIZE};
use crate::ledger::MAX_SLOTS;

/// A pin on an entry of the importer's cache.
pub(super) struct Held<'i> {
    importer: &'i Inner,
    /// `None` once somebody else gives it back.
    pin: Option<Pin>,
    pub number: u32,
    pub stamp: u64,
    /// In the entry, which the pin keeps.
    region: NonNull<ImportedRegion>,
    /// Where its mapping begins in the file, if it is a window.
    start: Option<u64>,
}

/// No handle has this bit in the key of its note: that is a slot's number and an entry's, and slots have fewer bits.
const WINDOW: u64 = 1 << 63;
const _: () = assert!((MAX_SLOTS as u64) << 32 < WINDOW);

impl<'i> Held<'i> {
    pub(super) fn new(importer: &'i Inner, pinned: PinnedRegion<'i>) -> Self {
        let entry = pinned.entry();
        let start = match entry.key().extent {
            Extent::Region(_) => None,
            Extent::Window { start, .. } => Some(start),
        };
        let (number, stamp, region) = (entry.number(), entry.stamp(), NonNull::from(&entry.value));
        Self { importer, pin: Some(pinned.into_pin()), number, stamp, region, start }
    }

    pub(super) const fn region(&self) -> &ImportedRegion {
        // SAFETY: the pin keeps the entry, and an entry's value does not change.
        unsafe { self.region.as_ref() }
    }

    /// Where in the mapping a handle's block begins, if its region begins in it.
    pub(super) fn place(&self, handle: &Handle) -> Option<u64> {
        let before = match self.start {
            None => 0,
            Some(start) => handle.data_offset().checked_sub(start)?,
        };
        before.checked_add(handle.offset())
    }

    /// Leaves the pin to whoever gives it back later.
    pub(super) fn into_pin(mut self) -> Pin {
        self.pin.take().unwrap_or_else(|| unreachable!("the pin is taken here alone"))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            self.importer.pins().give_back(pin, thread::current());
        }
    }
}

impl Inner {
    /// The window that this thread opened a handle of the same file in last, if the handle's region lies in it. Found
    /// without a lock.
    pub(super) fn known_window(&self, handle: &Handle, access: Access) -> Option<Held<'_>> {
        if handle.is_isolated() {
            return None;
        }
        let memo = self.memo[access as usize].current()?;
        let name = name(handle);
        let (known, note) = memo.by_key(hash(&name), key(&name))?;
        if known[..NAME] != name {
            return None;
        }
        let inside = handle.data_offset().checked_sub(note.generation)?.checked_add(handle.region_size())?;
        if inside > note.length {
            return None;
        }
        // SAFETY: the note was made in this thread's table for the pins of this importer.
        if !unsafe { note.pin.pin_stamped(note.stamp) } {
            return None;
        }
        Some(Held {
            importer: self,
            pin: Some(Pin::new(memo.thread(), note.pin)),
            number: note.pin.number,
            stamp: note.stamp,
            // The entry with this stamp has the value at the address that was noted.
            region: note.word.cast(),
            start: Some(note.generation),
        })
    }

    pub(super) fn remember_window(&self, handle: &Handle, access: Access, held: &Held<'_>) {
        if let Some(start) = held.start
            && let Some(memo) = self.memo[access as usize].current_or_new()
            && let Some((_, pin)) = self.cache.pins().cell(held.number)
        {
            let name = name(handle);
            let note = Note {
                key: key(&name),
                pin,
                stamp: held.stamp,
                word: held.region.cast(),
                generation: start,
                lease: None,
                base: 0,
                length: held.region().imported.size as u64,
                flags: 0,
                object: None,
            };
            let mut bytes = [0; SIZE];
            bytes[..NAME].copy_from_slice(&name);
            memo.store(hash(&name), &bytes, note);
        }
    }
}

const NAME: usize = 72;

/// What stands for the window among the handles that a thread remembers: the beginning of no handle, for want of the magic bytes.
fn name(handle: &Handle) -> [u8; NAME] {
    let mut name = [0; NAME];
    let (device, inode) = handle.data_identity();
    let producer = handle.producer();
    name[4..8].copy_from_slice(&producer.pid.to_le_bytes());
    name[8..16].copy_from_slice(&producer.pidfs_inode.to_le_bytes());
    name[16..32].copy_from_slice(producer.nonce.as_bytes());
    name[32..40].copy_from_slice(&producer.pid_namespace.to_le_bytes());
    name[40..48].copy_from_slice(&device.to_le_bytes());
    name[48..56].copy_from_slice(&inode.to_le_bytes());
    // Only who imports that kind may open it.
    name[56..72].copy_from_slice(&handle.provider_kind().to_bytes());
    name
}

fn hash(name: &[u8; NAME]) -> u64 {
    let word = |at: usize| name[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    word(16) ^ word(48)
}

fn key(name: &[u8; NAME]) -> u64 {
    WINDOW | hash(name)
}
