//! [`SuballocatedFile`]: the common part of the providers over a file and over a DAX device.

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use umf_core::{Access, Export, Imported, NativeExport, Region, Result};
use umf_os::{CheckedFile, Mapping};
use umf_suballoc::Suballocator;
use umf_sync::fork;

/// Flags of a mapping that bypasses the page cache (persistent memory).
pub(crate) const SYNCHRONOUS: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);
/// The page size of persistent memory in bytes.
pub(crate) const HUGE: usize = 2 << 20;

/// A file or device, and the suballocator of its regions.
pub(crate) struct SuballocatedFile {
    pub(crate) file: CheckedFile,
    /// The offset of a region in the file is its place in the suballocator minus this.
    pub(crate) origin: u64,
    pub(crate) suballocator: Suballocator,
    pub(crate) name: String,
    /// The fork generation in which the file was opened.
    generation: u32,
}

impl SuballocatedFile {
    pub(crate) fn new(file: CheckedFile, origin: u64, suballocator: Suballocator, name: String) -> Self {
        Self { file, origin, suballocator, name, generation: fork::generation() }
    }

    /// Returns whether this process is a child of the one that opened the file.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }
}

impl Export for SuballocatedFile {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let place = self.suballocator.place_of(region)?;
        Ok(NativeExport::from_fd(Arc::clone(self.file.fd()?), place - self.origin))
    }

    fn uses_fd_per_export(&self) -> bool {
        false
    }
}

/// Maps `size` bytes at `offset` of a file, at a multiple of `align`. All three are multiples of
/// the page size, and `align` is a power of two.
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
    // SAFETY: the closure creates a mapping of `size` bytes, replaces no other, and passes it on.
    unsafe {
        Mapping::placed(size, align, |place| {
            let (hint, fixed) = place.hint();
            let mapped = rustix::mm::mmap(hint, size, protection, flags | fixed, file, offset)?;
            NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
        })
    }
}

/// Unmaps the memory of an importer of this crate.
///
/// # Safety
/// As `Import::release`.
pub(crate) unsafe fn release(imported: &Imported) -> Result<()> {
    let region = Region::new(imported.base, imported.size);
    // SAFETY: the caller's contract.
    unsafe { Mapping::of_region(&region) }.map_or(Ok(()), Mapping::unmap_or_leak)
}
