//! [`DevDaxProvider`] and [`DevDaxImport`]: regions of a DAX device (`/dev/daxX.Y`), which is
//! persistent memory or other memory that the kernel does not manage.
//!
//! The device is mapped once, and regions are parts of that mapping, in pages of 2 MiB. An export
//! is the fd of the device and an offset.

use core::fmt;
use core::mem::ManuallyDrop;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use umf_core::settings::{ByteSize, Trusted};
use umf_core::{
    Access, Error, Export, FactoryError, Import, ImportRequest, Imported, Layout, MemoryKind, Provider,
    ProviderFactory, ProviderKind, Region, Result, Visibility,
};
use umf_os::{CheckedFile, FileRange, Mapping};
use umf_suballoc::Suballocator;

use crate::file::{HUGE, NO_PATH, SYNCHRONOUS, SuballocatedFile, map_file, release_mapping};

const KIND: ProviderKind = match ProviderKind::new("devdax") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

const OWNER: &str = "this DAX provider";

/// A provider of regions of a DAX device. Thread-safe.
///
/// A forked child shares the memory, so the provider is frozen there: allocating fails with
/// [`Error::Frozen`], and freeing does nothing. Freed memory keeps its content. Allocating and
/// freeing do not use the global allocator.
///
/// If the program closes the device's fd, or opens another file under its number, exporting fails
/// with [`Error::Native`], and that file is not closed.
pub struct DevDaxProvider {
    backing: SuballocatedFile,
    mapping: ManuallyDrop<Mapping>,
}

impl DevDaxProvider {
    /// Opens the device at `path`, and makes a provider of its first `size` bytes, rounded down to
    /// pages of 2 MiB.
    ///
    /// # Errors
    /// [`Error::Native`] if the file cannot be opened, or cannot be mapped as a DAX device.
    /// [`Error::InvalidArgument`] if `size` is less than a page.
    pub fn open(path: &Path, size: usize, name: impl Into<String>) -> Result<Arc<Self>> {
        let size = size / HUGE * HUGE;
        if size == 0 {
            return Err(Error::InvalidArgument { what: "size", why: "must be at least 2 MiB" });
        }
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let device = opened.map_err(|error| Error::native("open", error.raw_os_error().unwrap_or(0)))?;
        let mapping = map(device.as_fd(), 0, size, Access::ReadWrite)?;
        let start = mapping.address().to_bits();
        let suballocator = Suballocator::new(start, start + size as u64, OWNER)?;
        let backing =
            SuballocatedFile::new(CheckedFile::new(device.into())?, start, suballocator, name.into());
        Ok(Arc::new(Self { backing, mapping: ManuallyDrop::new(mapping) }))
    }
}

/// Maps whole pages of a device. Fails if the device is not a DAX device.
fn map(device: BorrowedFd<'_>, offset: u64, size: usize, access: Access) -> Result<Mapping> {
    map_file(device, offset, size, HUGE, SYNCHRONOUS, access).map_err(|errno| Error::Native {
        call: "mmap",
        native: errno.raw_os_error(),
        hint: "use a DAX device such as /dev/dax0.0, and no more bytes than the device has",
    })
}

impl Drop for DevDaxProvider {
    fn drop(&mut self) {
        // Live regions stay mapped until they are freed.
        if self.backing.suballocator.live() == 0 {
            // SAFETY: the field is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}

// SAFETY: regions are parts of the device's mapping, and the suballocator keeps them disjoint.
unsafe impl Provider for DevDaxProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.backing.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        HUGE
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        if self.backing.is_inherited() {
            return Err(Error::Frozen { what: "memory of a DAX device" });
        }
        self.backing.suballocator.allocate_pages(layout, HUGE)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.backing.is_inherited() {
            return Ok(());
        }
        self.backing.suballocator.free(&region, |_| Ok(()))
    }

    fn export(&self) -> Option<&dyn Export> {
        Some(&self.backing)
    }

    fn import(&self) -> Option<&dyn Import> {
        Some(&DevDaxImport)
    }
}

impl fmt::Debug for DevDaxProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DAX provider {:?}: {:?}", self.backing.name, self.backing.suballocator)
    }
}

/// An importer of regions of a DAX device that another process exported. It needs no provider, and
/// has no state.
///
/// A device does not shrink while it is open. Mapping fails for a file that is not a DAX device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevDaxImport;

// SAFETY: the mapping keeps the device open, and exists until it is released.
unsafe impl Import for DevDaxImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let refuse = |why| Error::Untrusted { why };
        let device = request
            .fd
            .take()
            .map(File::from)
            .ok_or(refuse("the handle needs a file descriptor, and none was received"))?;
        if !device.metadata().is_ok_and(|about| about.file_type().is_char_device()) {
            return Err(refuse("the descriptor is not a character device"));
        }
        // The size of the device is unknown here; the kernel rejects ranges beyond it.
        let FileRange { offset, size } = FileRange::of(&request, HUGE, i64::MAX as u64)?;
        let mapping = map(device.as_fd(), offset, size, request.access)?;
        Ok(Imported::host(mapping.leak(), size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { release_mapping(&imported) }
    }
}

// Settings.

umf_core::settings! {
    /// The keys of the kind `devdax`.
    pub struct DevDaxSettings {
        /// Absolute path of the device, such as /dev/dax0.0. Refused in ./umf.toml.
        pub path: Option<PathBuf> as Option<Trusted<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// How many bytes of the device are used, from its start, in pages of 2 MiB.
        pub size: usize as ByteSize = 0;
    }
}

impl ProviderFactory for DevDaxProvider {
    const KIND: &'static str = "devdax";
    type Settings = DevDaxSettings;

    fn build(name: &str, settings: DevDaxSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        Ok(Self::open(&settings.path.ok_or(NO_PATH)?, settings.size, name)?)
    }

    fn import(settings: &DevDaxSettings) -> Option<Arc<dyn Import>> {
        settings.path.as_ref()?;
        Some(Arc::new(DevDaxImport))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_rejects_files_that_are_not_dax_devices() {
        let open = |path: &str, size| DevDaxProvider::open(Path::new(path), size, "test");
        assert!(matches!(open("/dev/zero", HUGE), Err(Error::Native { call: "mmap", .. })));
        assert!(matches!(open("/nowhere", HUGE), Err(Error::Native { call: "open", .. })));
        assert!(matches!(open("/dev/zero", HUGE - 1), Err(Error::InvalidArgument { .. })));
    }
}
