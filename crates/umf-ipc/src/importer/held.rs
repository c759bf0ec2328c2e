//! [`Held`]: a mapping that is kept while something in it is opened, and how a thread finds the window that it used last.

use core::ptr::NonNull;

use umf_core::Access;
use umf_sync::thread;

use super::Inner;
use super::extent::PinnedRegion;
use super::region::{Extent, ImportedRegion};
use crate::cache::{Known, Note, Pin};
use crate::handle::Handle;

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

/// A window that a thread used last for a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownWindow {
    /// In the entry that has the note's stamp.
    region: NonNull<ImportedRegion>,
    /// Where it begins in the file.
    start: u64,
    size: u64,
}

// SAFETY: it points to a region that any thread may look at.
unsafe impl Known for KnownWindow {}

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
        let memo = self.windows[access as usize].current()?;
        let name = name(handle);
        let note = memo.by_bytes(hash(&name), &name)?;
        let KnownWindow { region, start, size } = note.value;
        let inside = handle.data_offset().checked_sub(start)?.checked_add(handle.region_size())?;
        if inside > size {
            return None;
        }
        // SAFETY: the note was made in this thread's table for the pins of this importer.
        if !unsafe { note.pin.pin_stamped(note.stamp) } {
            return None;
        }
        let pin = Some(Pin::new(memo.thread(), note.pin));
        let (number, stamp) = (note.pin.number, note.stamp);
        Some(Held { importer: self, pin, number, stamp, region, start: Some(start) })
    }

    pub(super) fn remember_window(&self, handle: &Handle, access: Access, held: &Held<'_>) {
        if let Some(start) = held.start
            && let Some(memo) = self.windows[access as usize].current_or_new()
            && let Some((_, pin)) = self.cache.pins().cell(held.number)
        {
            let name = name(handle);
            let size = held.region().imported.size as u64;
            let value = KnownWindow { region: held.region, start, size };
            let note = Note { key: hash(&name), pin, stamp: held.stamp, value };
            memo.store(hash(&name), &name, note);
        }
    }
}

/// Bytes of a window's name.
pub(super) const NAME: usize = 72;

/// What is the same in all handles whose regions may lie in one window.
fn name(handle: &Handle) -> [u8; NAME] {
    let mut name = [0; NAME];
    let (device, inode) = handle.data_identity();
    let producer = handle.producer();
    name[0..8].copy_from_slice(&u64::from(producer.pid).to_le_bytes());
    name[8..16].copy_from_slice(&producer.pidfs_inode.to_le_bytes());
    name[16..32].copy_from_slice(producer.nonce.as_bytes());
    name[32..40].copy_from_slice(&producer.pid_namespace.to_le_bytes());
    // Only an importer of that kind may open it.
    name[40..56].copy_from_slice(&handle.provider_kind().to_bytes());
    name[56..64].copy_from_slice(&device.to_le_bytes());
    name[64..72].copy_from_slice(&inode.to_le_bytes());
    name
}

fn hash(name: &[u8; NAME]) -> u64 {
    let word = |at: usize| name[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    word(16) ^ word(64)
}
