//! [`ImportedRegion`]: a mapping in the importer's cache. It maps one region, or a window of a file
//! that contains many regions. Each open holds a pin on one ([`PinnedMapping`]).

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::cell::Cell;
use std::sync::Arc;

use rustix::io::Errno;
use umf_core::{Access, Address, Import, ImportRequest, Imported, ProviderKind};
use umf_os::ReceivedFd;
use umf_sync::{failpoint, thread};

use super::ImporterInner;
use super::mapping::{BRACKETS_ACCESS, HOST_ACCESSIBLE, READ_ONLY};
use super::producer::Producer;
use crate::cache::{Cached, MemoEntry, MemoValue, Pin, Pinned};
use crate::handle::Handle;
use crate::identity::ProducerId;
use crate::{Error, Result};
use umf_os::FileIdentity;

/// The key of a mapping in the cache: producer, part of its memory, access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub producer: ProducerId,
    pub extent: Extent,
    pub access: Access,
}

/// A part of a producer's memory that is mapped as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extent {
    /// The region with this id.
    Region(u64),
    /// The window of a file that contains many regions, from this offset on.
    ///
    /// The window's mapping keeps the file alive, so that no other file gets its device and inode.
    Window { file: FileIdentity, start: u64 },
}

/// The number of regions of a mapping that are remembered.
const RECENT_REGIONS: usize = 16;

/// The regions that were opened most recently in a mapping. A word has the slot of the region's
/// export (high half) and the low half of its generation. 0: empty.
#[derive(Debug, Default)]
struct RecentRegions([AtomicU64; RECENT_REGIONS]);

impl RecentRegions {
    fn add(&self, slot: u32, generation: u64) {
        let word = &self.0[slot as usize % RECENT_REGIONS];
        let region = u64::from(slot) << 32 | u64::from(generation as u32);
        // Most opens find their region here, and do not write the shared cache line.
        if word.load(Ordering::Relaxed) != region {
            word.store(region, Ordering::Relaxed);
        }
    }

    fn any(&self, is_current: impl Fn(u32, u32) -> bool) -> bool {
        let regions = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        regions.filter(|&region| region != 0).any(|region| is_current((region >> 32) as u32, region as u32))
    }
}

/// A mapping of a region of another process, or of a window that contains many. Dropping it unmaps
/// it.
pub(super) struct ImportedRegion {
    /// Keeps the ledger mapped, which shows whether blocks of this region are current.
    pub producer: Arc<Producer>,
    pub imported: Imported,
    pub import: Arc<dyn Import>,
    /// The part of the file that is mapped, if the file is of the producer alone and its pages can
    /// be released.
    pub file: Option<FilePart>,
    recent: RecentRegions,
}

/// The file of a mapping, and the offset in it at which the mapping begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilePart {
    pub file: FileIdentity,
    pub offset: u64,
}

impl FilePart {
    /// Returns the part from `offset` on of the file that a handle names. `None` for memory of
    /// devices, for files with a name and for huge page files: only a memfd of the host provider is
    /// of its producer alone.
    fn of(handle: &Handle, offset: u64) -> Option<Self> {
        let (device, inode) = handle.data_identity();
        let is_memfd = handle.data_fd().is_some() && umf_os::memfd::device().ok()? == Some(device);
        let is_host = handle.provider_kind() == ProviderKind::HOST;
        (is_memfd && is_host).then_some(Self { file: FileIdentity { device, inode }, offset })
    }
}

impl ImportedRegion {
    pub(super) fn new(
        producer: &Arc<Producer>,
        imported: Imported,
        import: Arc<dyn Import>,
        file: Option<FilePart>,
    ) -> Self {
        Self { producer: Arc::clone(producer), imported, import, file, recent: RecentRegions::default() }
    }

    /// Releases the pages of a range of the file that lies in this mapping. The producer and its
    /// children have ended, and no importer has the range open.
    ///
    /// # Errors
    /// Those of `madvise(2)`: `EACCES` if the mapping is read-only, `EPERM` if the file is sealed
    /// against writing.
    pub(super) fn release_pages(&self, range: &Range<u64>) -> umf_os::SystemResult<()> {
        if self.imported.read_only {
            return Err(Errno::ACCESS);
        }
        let offset = self.file.and_then(|file| range.start.checked_sub(file.offset)).ok_or(Errno::INVAL)?;
        let offset = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let size = usize::try_from(range.end - range.start).map_err(|_| Errno::INVAL)?;
        if offset.checked_add(size).is_none_or(|end| end > self.imported.size) {
            return Err(Errno::INVAL);
        }
        let base = self.imported.base.as_ptr().and_then(NonNull::new).ok_or(Errno::INVAL)?;
        // SAFETY: the range lies in the mapping, which `self` keeps. All accesses by others are to
        // blocks that are open, and so are not in the range.
        unsafe { umf_os::memfd::release_pages(base.add(offset), size) }
    }

    /// Notes that memory of a region was opened. `slot` and `generation` are those of the region's
    /// export.
    pub(super) fn note_recent(&self, slot: u32, generation: u64) {
        self.recent.add(slot, generation);
    }

    /// Returns the flags of an [`OpenBlock`](super::mapping::OpenBlock) in this mapping.
    pub(super) fn flags(&self, access: Access) -> u64 {
        let is_read_only = self.imported.read_only || matches!(access, Access::ReadOnly);
        let host_accessible = if self.imported.host_accessible { HOST_ACCESSIBLE } else { 0 };
        let brackets_access = self.import.host_access().is_some() || self.import.transfer().is_some();
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        host_accessible | flag(is_read_only, READ_ONLY) | flag(brackets_access, BRACKETS_ACCESS)
    }

    /// Returns whether the producer has ended, or all of the regions that were opened here most
    /// recently were freed. A window may contain another current region. Then it is mapped again
    /// when that region is opened.
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
        // SAFETY: `imported` came from `self.import` and is released only here. The cache drops an
        // entry only when it has no pins.
        if let Err(error) = unsafe { self.import.release(self.imported) } {
            tracing::warn!(imported = ?self.imported, %error, "cannot close a mapping");
        }
        failpoint!("import.released");
    }
}

/// The fewest windows that must fit into a limit on mapped bytes. Otherwise regions are mapped by
/// themselves.
const WINDOWS_IN_LIMIT: u64 = 16;

/// A window of a file. It is shorter than `size` at the end of the file.
#[derive(Clone, Copy)]
pub(super) struct Window {
    start: u64,
    size: u64,
}

impl Window {
    /// Returns the window that contains all of a handle's region, if there is one.
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
    /// Returns the size of windows for a handle's kind of memory, in bytes. `None` if the kind has
    /// no windows, or they are too large for the limit on mapped bytes.
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

    /// Calls `open`. If memory or address space is short, closes all idle mappings and calls it
    /// again.
    pub(super) fn retry_after_eviction<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(error) if error.is_out_of_memory() && self.cache.evict_idle(|_| true) > 0 => open(),
            other => other,
        }
    }

    /// Finds or maps a handle's region.
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
            // Released when dropped, also after an error.
            let file = FilePart::of(handle, handle.data_offset());
            let opened = ImportedRegion::new(producer, imported, import, file);
            producer.check_driver_import(handle, &self.settings.exchange)?;
            self.statistics_ledger.note_opened();
            Ok(opened)
        })
    }

    /// Finds or maps the window of a handle's region. Returns `None` if the file has no windows, or
    /// the window cannot be mapped.
    pub(super) fn open_window(
        &self,
        producer: &Arc<Producer>,
        handle: &Handle,
        window: Window,
        access: Access,
    ) -> Result<Option<PinnedRegion<'_>>> {
        let key = Key { producer: handle.producer(), extent: window.extent(handle), access };
        let has_no_window = Cell::new(false);
        let map = || {
            let import = self.import_for(handle)?;
            let fd = producer.fetch(handle, &self.settings.exchange)?;
            let end = fd.as_ref().and_then(|fd| import.window_file(std::os::fd::AsFd::as_fd(fd)));
            let size =
                end.and_then(|end| end.checked_sub(window.start)).map_or(0, |size| size.min(window.size));
            if size < handle.data_offset() - window.start + handle.region_size() {
                has_no_window.set(true);
                return Err(Error::Misbehaved {
                    pid: producer.pid(),
                    what: "its region is not in a window of its file",
                });
            }
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let mut request = ImportRequest::new(fd.map(ReceivedFd::into_inner), window.start, size, access);
            request.is_window = true;
            failpoint!("window.fetched");
            let imported = import.import(request)?;
            failpoint!("window.mapped");
            self.statistics_ledger.note_opened();
            let file = FilePart::of(handle, window.start);
            Ok(ImportedRegion::new(producer, imported, import, file))
        };
        // Idle windows may use the address space that this one needs.
        let opened = self.cache.get_or_insert_with(&key, window.size, || self.retry_after_eviction(map));
        // RLIMIT_AS or strict memory accounting may refuse a window, but not a region.
        let is_too_large = matches!(opened, Err(Error::Memory(umf_core::Error::OutOfMemory { .. })));
        if has_no_window.get() || is_too_large {
            producer.note_no_windows(handle);
            return Ok(None);
        }
        let needed = handle.data_offset() - window.start + handle.region_size();
        // A cached window may be too short: its file may have grown since.
        opened.map(|pinned| Some(pinned).filter(|pinned| pinned.entry().value.imported.size as u64 >= needed))
    }
}

/// A pin on a mapping in the importer's cache.
pub(super) struct PinnedMapping<'i> {
    importer: &'i ImporterInner,
    /// `None` after [`PinnedMapping::into_pin`].
    pin: Option<Pin>,
    pub number: u32,
    pub stamp: u64,
    /// The entry's value, which the pin keeps.
    region: NonNull<ImportedRegion>,
    /// The offset of the window in its file; `None` for a region.
    start: Option<u64>,
}

/// The window that a thread used last for a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoizedWindow {
    /// The value of the entry that has the note's stamp.
    region: NonNull<ImportedRegion>,
    /// Offset in the file.
    start: u64,
    size: u64,
}

// SAFETY: it points to a region, which any thread may read.
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

    /// Returns the address of a handle's block; `None` if the block is not inside of the mapping.
    pub(super) fn address_of(&self, handle: &Handle) -> Option<Address> {
        let region_offset = match self.start {
            None => 0,
            Some(start) => handle.data_offset().checked_sub(start)?,
        };
        let offset = region_offset.checked_add(handle.offset())?;
        let imported = &self.region().imported;
        let is_inside = offset.checked_add(handle.length())? <= imported.size as u64;
        imported.base.checked_add(offset).filter(|_| is_inside)
    }

    /// Transfers the pin to the caller.
    pub(super) fn into_pin(mut self) -> Pin {
        self.pin.take().unwrap_or_else(|| unreachable!("only this method takes the pin"))
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
    /// Returns the window that this thread used last for the handle's file, pinned, if it contains
    /// the handle's region. Takes no lock.
    pub(super) fn find_memoized_window(&self, handle: &Handle, access: Access) -> Option<PinnedMapping<'_>> {
        if handle.is_isolated() {
            return None;
        }
        let memo = self.windows[access as usize].current()?;
        let key = window_key(handle);
        let note = memo.by_bytes(hash(&key), &key)?;
        let MemoizedWindow { region, start, size } = note.value;
        let end = handle.data_offset().checked_sub(start)?.checked_add(handle.region_size())?;
        if end > size {
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

    /// Adds a window to this thread's memo, as the last one of the handle's file.
    pub(super) fn memoize_window(&self, handle: &Handle, access: Access, pinned: &PinnedMapping<'_>) {
        if let Some(start) = pinned.start
            && let Some(memo) = self.windows[access as usize].current_or_new()
            && let Some((_, pin)) = self.cache.pins().cell(pinned.number)
        {
            let key = window_key(handle);
            let size = pinned.region().imported.size as u64;
            let value = MemoizedWindow { region: pinned.region, start, size };
            let note = MemoEntry { key: hash(&key), pin, stamp: pinned.stamp, value };
            memo.store(hash(&key), &key, note);
        }
    }
}

/// Bytes of the memo's key for windows.
pub(super) const WINDOW_KEY_SIZE: usize = 72;

/// Returns the memo's key: the fields that are equal in all handles of regions in one file.
fn window_key(handle: &Handle) -> [u8; WINDOW_KEY_SIZE] {
    let mut key = [0; WINDOW_KEY_SIZE];
    let (device, inode) = handle.data_identity();
    let producer = handle.producer();
    key[0..8].copy_from_slice(&u64::from(producer.pid).to_le_bytes());
    key[8..16].copy_from_slice(&producer.pidfs_inode.to_le_bytes());
    key[16..32].copy_from_slice(producer.nonce.as_bytes());
    key[32..40].copy_from_slice(&producer.pid_namespace.to_le_bytes());
    // Only the `Import` of that kind may open it.
    key[40..56].copy_from_slice(&handle.provider_kind().to_bytes());
    key[56..64].copy_from_slice(&device.to_le_bytes());
    key[64..72].copy_from_slice(&inode.to_le_bytes());
    key
}

fn hash(key: &[u8; WINDOW_KEY_SIZE]) -> u64 {
    let word = |at: usize| key[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    word(16) ^ word(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_regions_keep_the_last_of_each_word() {
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
