//! [`Import`]: the ability to open exports of other processes.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::{HostAccess, NATIVE_BYTES, ProviderKind, Transfer};
use crate::{Address, Result};

/// The access of an importer to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read only. The kernel enforces it only if the export is read-only.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// A request to import a region. All data came from another process and is untrusted.
#[derive(Debug)]
#[non_exhaustive]
pub struct ImportRequest {
    /// A duplicate of the exporter's fd, whose identity was checked. Closing it may block unless
    /// the file is of the expected type: see `umf_os::ReceivedFd`.
    pub fd: Option<OwnedFd>,
    /// The offset of the region in the file, in bytes.
    pub offset: u64,
    /// Size of the region in bytes, not 0.
    pub size: usize,
    /// Opaque bytes of the exporter's driver, `native[..native_len]`.
    pub native: [u8; NATIVE_BYTES],
    /// The number of valid bytes in `native`.
    pub native_len: usize,
    /// The driver's id of the allocation, 0 if it has none.
    pub allocation_id: u64,
    /// The requested access.
    pub access: Access,
    /// The range is a window ([`Import::window`]), which has other regions and holes too.
    pub is_window: bool,
}

impl ImportRequest {
    /// Returns a request for `size` bytes at `offset` behind `fd`.
    #[must_use]
    pub const fn new(fd: Option<OwnedFd>, offset: u64, size: usize, access: Access) -> Self {
        Self {
            fd,
            offset,
            size,
            native: [0; NATIVE_BYTES],
            native_len: 0,
            allocation_id: 0,
            access,
            is_window: false,
        }
    }
}

/// A region of another process, opened in this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// The address of the region in this process.
    pub base: Address,
    /// Its size in bytes, at least that of the request.
    pub size: usize,
    /// Whether the CPU may access it.
    pub host_accessible: bool,
    /// The kernel rejects writes through this import.
    pub read_only: bool,
}

impl Imported {
    /// Returns an import of host-accessible memory at `base`.
    #[must_use]
    pub const fn host(base: Address, size: usize, access: Access) -> Self {
        Self { base, size, host_accessible: true, read_only: matches!(access, Access::ReadOnly) }
    }

    /// Returns an import of device memory at `base`.
    #[must_use]
    pub const fn device(base: Address, size: usize) -> Self {
        Self { base, size, host_accessible: false, read_only: false }
    }
}

/// Opens exports of [`super::Export`] of the same kind in another process. Needs no pool; for host
/// memory it needs no provider.
///
/// # Safety
/// An implementor promises that the memory of an [`Imported`] stays valid until
/// [`Import::release`], whatever the exporting process does, including its death. If it is
/// host-accessible, the CPU may read it, and write it unless it is read-only. If the fd or the
/// bytes do not guarantee that, the import must fail: a file that can shrink, for example, would
/// cause SIGBUS.
pub unsafe trait Import: Send + Sync {
    /// Returns the kind of export that it opens.
    fn kind(&self) -> ProviderKind;

    /// Opens the region.
    ///
    /// # Errors
    /// [`crate::Error::Untrusted`] if the fd or the bytes fail a check; [`crate::Error::Native`],
    /// [`crate::Error::OutOfMemory`].
    fn import(&self, request: ImportRequest) -> Result<Imported>;

    /// Returns the window size in bytes, a power of two: the part of a file with many regions that
    /// is mapped at once. `None` if each region is imported separately.
    ///
    /// With `Some`, the importer may request the whole window that contains a region: it begins at
    /// the multiple of the window size at or below the region's `offset`, and is cut at the end of
    /// the file. A second region in the same window needs no import.
    fn window(&self) -> Option<u64> {
        None
    }

    /// Returns the size of this file in bytes, if it can be imported by windows.
    fn window_file(&self, fd: BorrowedFd<'_>) -> Option<u64> {
        let _ = fd;
        None
    }

    /// Returns the brackets for CPU access to imported memory, if it needs any. Always returns the
    /// same.
    fn host_access(&self) -> Option<&dyn HostAccess> {
        None
    }

    /// Returns the ability to copy imported memory that the CPU must not access, if there is one.
    /// Always returns the same.
    fn transfer(&self) -> Option<&dyn Transfer> {
        None
    }

    /// Closes an import. Called once for each [`Import::import`].
    ///
    /// # Errors
    /// [`crate::Error::Native`].
    ///
    /// # Safety
    /// The memory is not in use any more. `imported` came from this object and was not released
    /// before.
    unsafe fn release(&self, imported: Imported) -> Result<()>;
}
