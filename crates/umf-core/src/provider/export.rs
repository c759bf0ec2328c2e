//! The ability to make a region visible to other processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::{Error, Region, Result};

/// The most opaque bytes that a native export can have (a Level Zero or CUDA handle is 64).
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

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there are more than [`NATIVE_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut native = Self::EMPTY;
        let (Some(place), Ok(len)) = (native.bytes.get_mut(..bytes.len()), u8::try_from(bytes.len())) else {
            return Err(Error::NotSupported {
                what: "a native handle of more than 64 bytes",
                owner: "this version of the handle",
                native: 0,
            });
        };
        place.copy_from_slice(bytes);
        native.len = len;
        Ok(native)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What another process needs in order to import a region.
///
/// It keeps what it names alive: the fd stays open, under the same number, as long as a clone
/// exists.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NativeExport {
    /// The file descriptor that the importer gets a duplicate of, if the memory has one.
    pub fd: Option<Arc<OwnedFd>>,
    /// Where the region begins in that file, in bytes.
    pub offset: u64,
    /// Opaque bytes of the driver.
    pub native: NativeBytes,
    /// The driver's id of the allocation, where it has one; otherwise 0.
    pub allocation_id: u64,
    /// The fd names memory of this region only, so that exporting it shows nothing else.
    pub isolated: bool,
    /// Importers cannot write (the file is sealed).
    pub read_only: bool,
}

impl NativeExport {
    /// An export of memory behind `fd` at `offset`, without opaque bytes.
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

    /// An export that consists of opaque bytes alone.
    #[must_use]
    pub const fn from_bytes(native: NativeBytes, allocation_id: u64) -> Self {
        Self { fd: None, offset: 0, native, allocation_id, isolated: false, read_only: false }
    }
}

/// Makes regions visible to other processes.
///
/// A provider never moves an fd between processes: it names one, and how it travels is written
/// once, in `umf-ipc`. The region that is exported is always the whole one; a handle for a block
/// carries the offset of the block in it.
pub trait Export: Send + Sync {
    /// What another process needs to import `region`. Called once per region and cached.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if this memory cannot be exported, [`Error::ForeignAddress`] if the
    /// region is not a live one of this provider, [`Error::Native`].
    fn export(&self, region: &Region) -> Result<NativeExport>;

    /// Takes back what [`Export::export`] gave, exactly once, before the region is freed. Drivers
    /// that want their handles put back do it here.
    ///
    /// # Errors
    /// [`Error::Native`]; the export counts as taken back all the same.
    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        let _ = (region, export);
        Ok(())
    }

    /// Whether each export holds a file descriptor of its own, which then counts against
    /// `RLIMIT_NOFILE`.
    fn uses_fd_per_export(&self) -> bool {
        true
    }

    /// Whether `/proc/<pid>/fd/<n>` can open the fd: true for files and memfds, not for dma-buf.
    fn fd_opens_through_procfs(&self) -> bool {
        true
    }
}
