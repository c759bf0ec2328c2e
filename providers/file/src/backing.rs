//! [`Backing`]: what regions of a file and of a device have in common, and how ranges of both are mapped.

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use umf_core::{Access, Export, Imported, NativeExport, Region, Result};
use umf_os::{CheckedFile, Mapping};
use umf_suballoc::Suballocator;
use umf_sync::fork;

/// Flags of a mapping that reaches the medium past the page cache.
pub(crate) const SYNCHRONOUS: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);
/// The pages of persistent memory, in bytes.
pub(crate) const HUGE: usize = 2 << 20;

/// A file or device, and the regions in it.
pub(crate) struct Backing {
    pub(crate) file: CheckedFile,
    /// Where a region begins in the file is its place, less this.
    pub(crate) origin: u64,
    pub(crate) suballocator: Suballocator,
    pub(crate) name: String,
    /// The fork generation in which the file was opened.
    generation: u32,
}

impl Backing {
    pub(crate) fn new(file: CheckedFile, origin: u64, suballocator: Suballocator, name: String) -> Self {
        Self { file, origin, suballocator, name, generation: fork::generation() }
    }

    /// Returns whether this process is a child of the one that opened the file.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }
}

impl Export for Backing {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let place = self.suballocator.place_of(region)?;
        Ok(NativeExport::from_fd(Arc::clone(self.file.fd()?), place - self.origin))
    }

    fn uses_fd_per_export(&self) -> bool {
        false
    }
}

/// Maps `size` bytes at `offset` of a file at a multiple of `align`, a power of two; all of them whole pages.
pub(crate) fn map(
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    align: usize,
    flags: MapFlags,
    access: Access,
) -> Result<Mapping, Errno> {
    let protection = match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    // SAFETY: the function maps that much, which no other mapping owns, and replaces none.
    unsafe {
        Mapping::placed(size, align, |place| {
            let (hint, fixed) = place.hint();
            let mapped = rustix::mm::mmap(hint, size, protection, flags | fixed, file, offset)?;
            NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
        })
    }
}

/// Unmaps what an importer of this crate mapped.
///
/// # Safety
/// As `Import::release`.
pub(crate) unsafe fn release(imported: &Imported) -> Result<()> {
    let region = Region::new(imported.base, imported.size);
    // SAFETY: passed on to the caller.
    unsafe { Mapping::of_region(&region) }.map_or(Ok(()), Mapping::unmap_or_leak)
}
