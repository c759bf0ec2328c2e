//! What is mapped of a producer: a region by itself, or the window of its file that many regions
//! lie in. The importer's cache keeps these; each open holds a pin on one ([`PinnedMapping`]).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::cell::Cell;
use std::sync::Arc;

use umf_core::{Access, Import, ImportRequest, Imported};
use umf_os::ReceivedFd;
use umf_sync::{failpoint, thread};

use super::ImporterInner;
use super::producer::Producer;
use crate::cache::{Cached, MemoEntry, MemoValue, Pin, Pinned};
use crate::handle::Handle;
use crate::identity::ProducerId;
use crate::{Error, Result};
use umf_os::FileIdentity;

/// What is mapped: of which producer, which part of its memory, with which access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub producer: ProducerId,
    pub extent: Extent,
    pub access: Access,
}

/// A part of a producer's memory that is mapped at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extent {
    /// The region with this id.
    Region(u64),
    /// A window of a file that many regions lie in, from this offset on.
    ///
    /// The window's mapping keeps the file, so that no other file has its device and inode
    /// meanwhile.
    Window { file: FileIdentity, start: u64 },
}

/// How many regions of a window are remembered.
const RECENT_REGIONS: usize = 16;

/// The regions that were opened in a mapping most recently. A word has the region's own slot in the
/// ledger (high half) and the low half of its generation there. 0 stands for none.
#[derive(Debug, Default)]
struct RecentRegions([AtomicU64; RECENT_REGIONS]);

impl RecentRegions {
    fn add(&self, slot: u32, generation: u64) {
        let word = &self.0[slot as usize % RECENT_REGIONS];
        let region = u64::from(slot) << 32 | u64::from(generation as u32);
        // Most opens find their region here, and write nothing that threads share.
        if word.load(Ordering::Relaxed) != region {
            word.store(region, Ordering::Relaxed);
        }
    }

    fn any(&self, is_current: impl Fn(u32, u32) -> bool) -> bool {
        let regions = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        regions.filter(|&region| region != 0).any(|region| is_current((region >> 32) as u32, region as u32))
    }
}

/// A region of another process, or a window of many, open in this one. Dropping it closes it.
pub(super) struct ImportedRegion {
    /// Keeps the ledger mapped that says whether blocks of this region are current.
    pub producer: Arc<Producer>,
    pub imported: Imported,
    pub import: Arc<dyn Import>,
    recent: RecentRegions,
}

impl ImportedRegion {
    pub(super) fn new(producer: &Arc<Producer>, imported: Imported, import: Arc<dyn Import>) -> Self {
        Self { producer: Arc::clone(producer), imported, import, recent: RecentRegions::default() }
    }

    /// Notes that something of a region is opened here: by its own slot in the ledger, and its
    /// generation there.
    pub(super) fn note(&self, slot: u32, generation: u64) {
        self.recent.add(slot, generation);
    }

    /// Returns whether the producer has ended, or all of the regions that were opened here most
    /// recently were freed. A window may have another current region. It is mapped again when that
    /// one is opened.
    pub(super) fn is_gone(&self) -> bool {
        let is_current = |slot, generation| {
            let slot = self.producer.ledger().slot(slot);
            slot.is_some_and(|slot| slot.generation() as u32 == generation)
        };
        self.producer.has_ended() || !self.recent.any(is_current)
    }
}

impl Cached for ImportedRegion {
    fn is_dead(&self) -> bool {
        self.is_gone()
    }
}

impl core::fmt::Debug for ImportedRegion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ImportedRegion")
            .field("producer", &self.producer)
            .field("imported", &self.imported)
            .finish_non_exhaustive()
    }
}

impl Drop for ImportedRegion {
    fn drop(&mut self) {
        // SAFETY: `imported` came from this importer's `import`, is released here alone, and the
        // cache drops an entry only when it has no pins.
        if let Err(error) = unsafe { self.import.release(self.imported) } {
            tracing::warn!(imported = ?self.imported, %error, "a mapping could not be closed");
        }
        failpoint!("import.released");
    }
}

/// A part of a limit on mapped bytes that a window may be.
const WINDOWS_IN_LIMIT: u64 = 16;

/// A window: where it begins in the file, and how large it is where the file does not end before.
#[derive(Clone, Copy)]
pub(super) struct Window {
    start: u64,
    size: u64,
}

impl Window {
    /// The window in which a handle's region lies as a whole, if there is one.
    pub(super) fn of(handle: &Handle, size: u64) -> Option<Self> {
        debug_assert!(size.is_power_of_two());
        let offset = handle.data_offset();
        let start = offset & !(size - 1);
        let fits = (offset - start).checked_add(handle.region_size()).is_some_and(|end| end <= size);
        (fits && handle.data_fd().is_some() && !handle.is_isolated()).then_some(Self { start, size })
    }

    pub(super) fn extent(self, handle: &Handle) -> Extent {
        let (device, inode) = handle.data_identity();
        Extent::Window { file: FileIdentity { device, inode }, start: self.start }
    }
}

pub(super) type PinnedRegion<'i> = Pinned<'i, Key, ImportedRegion>;

impl ImporterInner {
    /// How large the windows are in which memory of a handle's kind is mapped, if it is. Not, if
    /// there is a limit on mapped bytes of which they would take much.
    pub(super) fn window_size(&self, handle: &Handle) -> Result<Option<u64>> {
        let kind = handle.provider_kind();
        let imports = self.imports.lock();
        let import = imports.get(&kind).ok_or(Error::UnknownProvider { kind })?;
        let limit = self.settings.max_opened_bytes;
        Ok(import.window().filter(|&size| limit == 0 || limit / WINDOWS_IN_LIMIT >= size))
    }

    fn import_for(&self, handle: &Handle) -> Result<Arc<dyn Import>> {
        let kind = handle.provider_kind();
        self.imports.lock().get(&kind).cloned().ok_or(Error::UnknownProvider { kind })
    }

    /// Runs `open`, and if there was no memory or address space, once more after all idle mappings
    /// are closed.
    pub(super) fn retry_after_eviction<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(error) if error.is_out_of_memory() && self.cache.evict_idle(|_| true) > 0 => open(),
            other => other,
        }
    }

    /// The region by itself.
    pub(super) fn open_region(
        &self,
        producer: &Arc<Producer>,
        handle: &Handle,
        access: Access,
    ) -> Result<PinnedRegion<'_>> {
        let key = Key { producer: handle.producer(), extent: Extent::Region(handle.region_id()), access };
        self.cache.get_or_insert_with(&key, handle.region_size(), || {
            let import = self.import_for(handle)?;
            let fd = producer.fetch(handle, &self.settings.exchange)?;
            let size = usize::try_from(handle.region_size()).unwrap_or(usize::MAX);
            let mut request =
                ImportRequest::new(fd.map(ReceivedFd::into_inner), handle.data_offset(), size, access);
            let native = handle.native();
            request.native[..native.len()].copy_from_slice(native);
            request.native_len = native.len();
            request.allocation_id = handle.allocation_id();
            failpoint!("import.fetched");
            let imported = match import.import(request) {
                Ok(imported) => imported,
                Err(error) => {
                    producer.check_driver_import(handle, &self.settings.exchange)?;
                    return Err(error.into());
                }
            };
            failpoint!("import.mapped");
            // From here on it is released if it cannot be used.
            let opened = ImportedRegion::new(producer, imported, import);
            producer.check_driver_import(handle, &self.settings.exchange)?;
            self.statistics_ledger.note_opened();
            Ok(opened)
        })
    }

    /// The window that the region lies in; `None` if its file turns out to have none, or none can
    /// be mapped.
    pub(super) fn open_window(
        &self,
        producer: &Arc<Producer>,
        handle: &Handle,
        window: Window,
        access: Access,
    ) -> Result<Option<PinnedRegion<'_>>> {
        let key = Key { producer: handle.producer(), extent: window.extent(handle), access };
        let has_none = Cell::new(false);
        let map = || {
            let import = self.import_for(handle)?;
            let fd = producer.fetch(handle, &self.settings.exchange)?;
            let end = fd.as_ref().and_then(|fd| import.window_file(std::os::fd::AsFd::as_fd(fd)));
            let size =
                end.and_then(|end| end.checked_sub(window.start)).map_or(0, |size| size.min(window.size));
            if size < handle.data_offset() - window.start + handle.region_size() {
                has_none.set(true);
                return Err(Error::Misbehaved { pid: producer.pid(), what: "its region lies in no window" });
            }
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let mut request = ImportRequest::new(fd.map(ReceivedFd::into_inner), window.start, size, access);
            request.is_window = true;
            failpoint!("window.fetched");
            let imported = import.import(request)?;
            failpoint!("window.mapped");
            self.statistics_ledger.note_opened();
            Ok(ImportedRegion::new(producer, imported, import))
        };
        // Idle windows take address space that this one may need.
        let opened = self.cache.get_or_insert_with(&key, window.size, || self.retry_after_eviction(map));
        // A window may be more than RLIMIT_AS or strict accounting of memory lets this process map,
        // and a region not.
        let is_too_large = matches!(opened, Err(Error::Memory(umf_core::Error::OutOfMemory { .. })));
        if has_none.get() || is_too_large {
            producer.note_no_windows(handle);
            return Ok(None);
        }
        let needed = handle.data_offset() - window.start + handle.region_size();
        // Its file may have been shorter when the window was mapped.
        opened.map(|pinned| Some(pinned).filter(|pinned| pinned.entry().value.imported.size as u64 >= needed))
    }
}

/// A pin on an entry of the importer's cache.
pub(super) struct PinnedMapping<'i> {
    importer: &'i ImporterInner,
    /// `None` once another owner gives it back.
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
pub(super) struct MemoizedWindow {
    /// In the entry that has the note's stamp.
    region: NonNull<ImportedRegion>,
    /// Where it begins in the file.
    start: u64,
    size: u64,
}

// SAFETY: it points to a region that any thread may look at.
unsafe impl MemoValue for MemoizedWindow {}

impl<'i> PinnedMapping<'i> {
    pub(super) fn new(importer: &'i ImporterInner, pinned: PinnedRegion<'i>) -> Self {
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

    /// Leaves the pin to the caller, which gives it back later.
    pub(super) fn into_pin(mut self) -> Pin {
        self.pin.take().unwrap_or_else(|| unreachable!("the pin is taken here alone"))
    }
}

impl Drop for PinnedMapping<'_> {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            self.importer.pins().give_back(pin, thread::current());
        }
    }
}

impl ImporterInner {
    /// The window that this thread opened a handle of the same file in last, if the handle's region
    /// lies in it. Found without a lock.
    pub(super) fn known_window(&self, handle: &Handle, access: Access) -> Option<PinnedMapping<'_>> {
        if handle.is_isolated() {
            return None;
        }
        let memo = self.windows[access as usize].current()?;
        let key = window_key(handle);
        let note = memo.by_bytes(hash(&key), &key)?;
        let MemoizedWindow { region, start, size } = note.value;
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
        Some(PinnedMapping { importer: self, pin, number, stamp, region, start: Some(start) })
    }

    pub(super) fn remember_window(&self, handle: &Handle, access: Access, held: &PinnedMapping<'_>) {
        if let Some(start) = held.start
            && let Some(memo) = self.windows[access as usize].current_or_new()
            && let Some((_, pin)) = self.cache.pins().cell(held.number)
        {
            let key = window_key(handle);
            let size = held.region().imported.size as u64;
            let value = MemoizedWindow { region: held.region, start, size };
            let note = MemoEntry { key: hash(&key), pin, stamp: held.stamp, value };
            memo.store(hash(&key), &key, note);
        }
    }
}

/// Bytes of a window's name.
pub(super) const WINDOW_KEY_SIZE: usize = 72;

/// What is the same in all handles whose regions may lie in one window.
fn window_key(handle: &Handle) -> [u8; WINDOW_KEY_SIZE] {
    let mut name = [0; WINDOW_KEY_SIZE];
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

fn hash(name: &[u8; WINDOW_KEY_SIZE]) -> u64 {
    let word = |at: usize| name[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    word(16) ^ word(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_regions_are_those_opened_last_of_each_place() {
        let recent = RecentRegions::default();
        assert!(!recent.any(|_, _| true), "none was opened");
        for slot in 0..100 {
            recent.add(slot, u64::from(slot) + (7 << 32));
        }
        for slot in 0..100 {
            let is_recent = recent.any(|other, generation| (other, generation) == (slot, slot));
            assert_eq!(is_recent, slot >= 84, "slot {slot}");
        }
    }
}
