//! Mapping what a handle names: a region by itself, or the window of its file that it lies in.

use std::cell::Cell;
use std::sync::Arc;

use umf_core::{Access, Import, ImportRequest, ReceivedFd};
use umf_sync::failpoint;

use super::Inner;
use super::producer::Producer;
use super::region::{Extent, ImportedRegion, Key};
use crate::cache::Pinned;
use crate::handle::Handle;
use crate::sys::FileIdentity;
use crate::{Error, Result};

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

impl Inner {
    /// How large the windows are in which memory of a handle's kind is mapped, if it is. Not, if there is a limit on
    /// mapped bytes of which they would take much.
    pub(super) fn window_size(&self, handle: &Handle) -> Result<Option<u64>> {
        let kind = handle.provider_kind();
        let imports = self.imports.lock();
        let import = imports.get(&kind).ok_or(Error::UnknownProvider { kind })?;
        let limit = self.settings.max_opened_bytes;
        Ok(import.window().filter(|&size| limit == 0 || limit / WINDOWS_IN_LIMIT >= size))
    }

    fn importing(&self, handle: &Handle) -> Result<Arc<dyn Import>> {
        let kind = handle.provider_kind();
        self.imports.lock().get(&kind).cloned().ok_or(Error::UnknownProvider { kind })
    }

    /// Runs `open`, and if there was no memory or address space, once more after all idle mappings
    /// are closed.
    pub(super) fn retry_without_idle<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
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
        self.cache.get_or_make(&key, handle.region_size(), || {
            let import = self.importing(handle)?;
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
                    producer.check_brought_over(handle, &self.settings.exchange)?;
                    return Err(error.into());
                }
            };
            failpoint!("import.mapped");
            // From here on it is released if it cannot be used.
            let opened = ImportedRegion::new(producer, imported, import);
            producer.check_brought_over(handle, &self.settings.exchange)?;
            self.board.opened();
            Ok(opened)
        })
    }

    /// The window that the region lies in; `None` if its file turns out to have none, or none can be mapped.
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
            let import = self.importing(handle)?;
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
            self.board.opened();
            Ok(ImportedRegion::new(producer, imported, import))
        };
        // Idle windows take address space that this one may need.
        let opened = self.cache.get_or_make(&key, window.size, || self.retry_without_idle(map));
        // A window may be more than RLIMIT_AS or strict accounting of memory lets this process map, and a region not.
        let is_too_large = matches!(opened, Err(Error::Memory(umf_core::Error::OutOfMemory { .. })));
        if has_none.get() || is_too_large {
            producer.forget_windows(handle);
            return Ok(None);
        }
        let needed = handle.data_offset() - window.start + handle.region_size();
        // Its file may have been shorter when the window was mapped.
        opened.map(|pinned| Some(pinned).filter(|pinned| pinned.entry().value.imported.size as u64 >= needed))
    }
}
