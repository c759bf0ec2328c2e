//! [`DevDaxProvider`].

use core::fmt;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, NativeExport, Provider, ProviderKind, Region, Result,
    Visibility,
};
use umf_os::CheckedFile;
use umf_suballoc::Carver;
use umf_sync::fork;

use crate::DevDaxImport;
use crate::sys::{self, PAGE};

pub(crate) const KIND: ProviderKind = match ProviderKind::new("devdax") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

const OWNER: &str = "this DAX provider";

/// Regions of a DAX device. Thread-safe.
///
/// A forked child shares the memory, so the provider is frozen there: allocating is [`Error::Frozen`], and freeing does nothing.
/// Freed memory keeps its content, and so does the device. It uses the global allocator for its records, so that a pool over it is not to be that.
///
/// If the program closes the device's descriptor, or opens another file under its number, exporting
/// is [`Error::Native`], and that file is not closed.
pub struct DevDaxProvider {
    device: CheckedFile,
    /// Places are offsets in the device.
    carver: Carver,
    base: Address,
    size: usize,
    name: String,
    generation: u32,
}

impl DevDaxProvider {
    /// A provider of the first `size` bytes of the device at `path`, rounded down to whole pages of 2 MiB.
    ///
    /// # Errors
    /// [`Error::Native`] if it cannot be opened, or cannot be mapped as a DAX device; [`Error::InvalidArgument`] for less than a
    /// page.
    pub fn open(path: &Path, size: usize, name: impl Into<String>) -> Result<Arc<Self>> {
        let size = size / PAGE * PAGE;
        let carver = Carver::new(0, size as u64, OWNER)?;
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let device = opened.map_err(|error| Error::native("open", error.raw_os_error().unwrap_or(0)))?;
        let device = CheckedFile::new(device.into())?;
        let start = sys::map(device.fd()?.as_fd(), 0, size, true)?;
        Ok(Arc::new(Self {
            device,
            carver,
            base: Address::from_ptr(start.as_ptr()),
            size,
            name: name.into(),
            generation: fork::generation(),
        }))
    }

    fn is_frozen(&self) -> bool {
        self.generation != fork::generation()
    }
}

impl Drop for DevDaxProvider {
    fn drop(&mut self) {
        // Regions are promised to stay until they are freed.
        if self.carver.live() == 0
            && let Some(start) = self.base.as_ptr()
        {
            // SAFETY: mapped by `open`, and no region of it is left.
            let _ = unsafe { sys::unmap(start, self.size) };
        }
    }
}

// SAFETY: regions are parts of the device's mapping, and do not overlap, as the carver sees to.
unsafe impl Provider for DevDaxProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        PAGE
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        if self.is_frozen() {
            return Err(Error::Frozen { what: "memory of a DAX device" });
        }
        let layout = layout.pad_to(PAGE)?.align_to(PAGE)?;
        // Pools ask for no more than a page's alignment; more is there only if the mapping has it.
        let outside = Error::BadAlignment { align: layout.align() };
        if !self.base.is_aligned_to(layout.align()) {
            return Err(outside);
        }
        self.carver.allocate(layout.size(), layout.align() as u64, |place| {
            self.base.checked_add(place).ok_or(outside)
        })
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        self.carver.free(&region, |_| Ok(()))
    }

    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        Some(&DevDaxImport)
    }
}

impl Export for DevDaxProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let offset = self.carver.place_of(region)?;
        Ok(NativeExport::from_fd(Arc::clone(self.device.fd()?), offset))
    }

    fn uses_fd_per_export(&self) -> bool {
        false
    }
}

impl fmt::Debug for DevDaxProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DAX provider {:?}: {:?}", self.name, self.carver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_dax_device_is_refused() {
        let open = |path: &str, size| DevDaxProvider::open(Path::new(path), size, "test");
        assert!(matches!(open("/dev/zero", PAGE), Err(Error::Native { call: "mmap", .. })));
        assert!(matches!(open("/nowhere", PAGE), Err(Error::Native { call: "open", .. })));
        assert!(matches!(open("/dev/zero", PAGE - 1), Err(Error::InvalidArgument { .. })));
    }
}
