//! [`Export`]: the ability to make regions visible to other processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::{Error, Region, Result};

/// The largest number of opaque bytes of an export. A Level Zero or CUDA handle has 64.
pub const NATIVE_BYTES: usize = 64;

/// Up to [`NATIVE_BYTES`] opaque bytes of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeBytes {
    bytes: [u8; NATIVE_BYTES],
    len: u8,
}

impl NativeBytes {
    /// No bytes.
    pub const EMPTY: Self = Self { bytes: [0; NATIVE_BYTES], len: 0 };

    /// Copies `bytes`.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there are more than [`NATIVE_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut native = Self::EMPTY;
        let (Some(target), Ok(len)) = (native.bytes.get_mut(..bytes.len()), u8::try_from(bytes.len())) else {
            return Err(Error::NotSupported {
                what: "a native handle of more than 64 bytes",
                owner: "this version of the handle",
                native: 0,
            });
        };
        target.copy_from_slice(bytes);
        native.len = len;
        Ok(native)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The data that another process needs to import a region.
///
/// The fd stays open, under the same number, as long as a clone exists.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NativeExport {
    /// The file descriptor that the importer gets a duplicate of, if the memory has one.
    pub fd: Option<Arc<OwnedFd>>,
    /// The offset of the region in the file, in bytes.
    pub offset: u64,
    /// Opaque bytes of the driver.
    pub native: NativeBytes,
    /// The driver's id of the allocation; 0 if it has none.
    pub allocation_id: u64,
    /// The fd has memory of this region only, so that an importer cannot access other memory.
    pub isolated: bool,
    /// Importers cannot write (the file is sealed).
    pub read_only: bool,
}

impl NativeExport {
    /// Returns an export of memory behind `fd` at `offset`, without opaque bytes.
    #[must_use]
    pub const fn from_fd(fd: Arc<OwnedFd>, offset: u64) -> Self {
        Self {
            fd: Some(fd),
            offset,
            native: NativeBytes::EMPTY,
            allocation_id: 0,
            isolated: false,
            read_only: false,
        }
    }

    /// Returns an export that consists of opaque bytes alone.
    #[must_use]
    pub const fn from_bytes(native: NativeBytes, allocation_id: u64) -> Self {
        Self { fd: None, offset: 0, native, allocation_id, isolated: false, read_only: false }
    }
}

/// Makes regions visible to other processes.
///
/// A provider does not transfer fds between processes; the crate `umf-ipc` does. An export is
/// always a whole region. The handle of a block has the offset of the block in its region.
pub trait Export: Send + Sync {
    /// Returns the data that another process needs to import `region`. Called once per region; the
    /// caller caches the result.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if this memory cannot be exported, [`Error::ForeignAddress`] if the
    /// region is not a live one of this provider, [`Error::Native`].
    fn export(&self, region: &Region) -> Result<NativeExport>;

    /// Ends an export. Called once for each [`Export::export`], before the region is freed. For
    /// drivers whose handles must be released.
    ///
    /// # Errors
    /// [`Error::Native`]. The export has ended nevertheless.
    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        let _ = (region, export);
        Ok(())
    }

    /// Returns whether each export has a file descriptor of its own, which counts against
    /// `RLIMIT_NOFILE`.
    fn uses_fd_per_export(&self) -> bool {
        true
    }

    /// Returns whether the fd can be opened through `/proc/<pid>/fd/<n>`: files and memfds can,
    /// dma-bufs cannot.
    fn fd_opens_through_procfs(&self) -> bool {
        true
    }
}
