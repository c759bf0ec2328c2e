//! The ability to open what another process exported.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::{HostAccess, NATIVE_BYTES, ProviderKind, Transfer};
use crate::{Address, Result};

/// What an importer may do with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read only. A guarantee only where the export itself is read-only; otherwise a courtesy.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// What to import. All of it came from another process and is not to be trusted.
#[derive(Debug)]
#[non_exhaustive]
pub struct ImportRequest {
    /// This process's duplicate of the exporter's fd, its identity checked. Until it is known to be
    /// of the right kind, closing it can wait: see `umf_os::ReceivedFd`.
    pub fd: Option<OwnedFd>,
    /// Where the region begins in the file, in bytes.
    pub offset: u64,
    /// Size of the region in bytes, not 0.
    pub size: usize,
    /// Opaque bytes of the exporter's driver, `native[..native_len]`.
    pub native: [u8; NATIVE_BYTES],
    /// How many of them count.
    pub native_len: usize,
    /// The driver's id of the allocation, 0 if it has none.
    pub allocation_id: u64,
    /// What will be done with the memory.
    pub access: Access,
    /// The range is a window ([`Import::window`]): it holds more than was exported, and holes.
    pub is_window: bool,
}

impl ImportRequest {
    /// A request for `size` bytes at `offset` behind `fd`.
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
    /// Where the region begins in this process.
    pub base: Address,
    /// Its size in bytes, at least that of the request.
    pub size: usize,
    /// Whether the CPU may touch it.
    pub host_accessible: bool,
    /// The kernel refuses writes through this import.
    pub read_only: bool,
}

impl Imported {
    /// Host-accessible memory at `base`.
    #[must_use]
    pub const fn host(base: Address, size: usize, access: Access) -> Self {
        Self { base, size, host_accessible: true, read_only: matches!(access, Access::ReadOnly) }
    }

    /// Memory of a device at `base`.
    #[must_use]
    pub const fn device(base: Address, size: usize) -> Self {
        Self { base, size, host_accessible: false, read_only: false }
    }
}

/// Opens what [`super::Export`] of the same kind exported in another process. Needs no pool and,
/// for host memory, no provider.
///
/// # Safety
/// An implementor promises that the memory described by an [`Imported`] stays valid, and if it is
/// host-accessible may be read (and written, unless read-only) by the CPU, until
/// [`Import::release`] — whatever the exporting process does, including its death. What cannot be
/// promised for the fd or bytes given must be refused: a file that can shrink would be SIGBUS.
pub unsafe trait Import: Send + Sync {
    /// The kind of export that it opens.
    fn kind(&self) -> ProviderKind;

    /// Opens the region.
    ///
    /// # Errors
    /// [`crate::Error::Untrusted`] if the fd or the bytes are not what they should be,
    /// [`crate::Error::Native`], [`crate::Error::OutOfMemory`].
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

    /// Returns the brackets for CPU access to imported memory, if it needs any. Always the same
    /// answer.
    fn host_access(&self) -> Option<&dyn HostAccess> {
        None
    }

    /// Returns how to copy imported memory that the CPU must not touch, if that is possible. Always
    /// the same answer.
    fn transfer(&self) -> Option<&dyn Transfer> {
        None
    }

    /// Closes what [`Import::import`] gave, exactly once.
    ///
    /// # Errors
    /// [`crate::Error::Native`].
    ///
    /// # Safety
    /// The memory is not in use any more. `imported` came from this object and was not released
    /// before.
    unsafe fn release(&self, imported: Imported) -> Result<()>;
}
