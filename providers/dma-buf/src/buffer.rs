//! [`DmaBuf`]: an fd that is verified to be a dma-buf, and the operations on it.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use umf_core::{Access, Error, Result};
use umf_os::ReceivedFd;
use umf_os::{CheckedFile, Mapping, is_dma_buf, map_error};

use crate::sys::{self, dma_buf};

/// A dma-buf: memory that devices and processes share by an fd. Clones share the fd.
///
/// If the program closes the fd, or opens another file under its number, that file is neither
/// mapped nor exported nor closed.
///
/// Thread-safe. See the kernel's documentation, "Buffer Sharing and Synchronization".
#[derive(Clone, Debug)]
pub struct DmaBuf {
    file: Arc<CheckedFile>,
    size: u64,
}

impl DmaBuf {
    /// Limit of the length of a buffer's name, in bytes.
    pub const NAME_MAX: usize = 31;

    /// Takes ownership of an fd from a driver or another process, if it is a dma-buf.
    ///
    /// The check makes no call into the file, because another file system could block for ever.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if it is another file. [`Error::Native`] if that is unknown, without
    /// `/proc`.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let fd = ReceivedFd::from(fd);
        if !is_dma_buf(fd.as_fd())? {
            return Err(Error::Untrusted { why: "the descriptor is not a dma-buf" });
        }
        Self::from_new_fd(fd.into_inner())
    }

    /// Takes ownership of a dma-buf that a device has just created.
    pub(crate) fn from_new_fd(fd: OwnedFd) -> Result<Self> {
        let size = sys::size_of_buffer(fd.as_fd())
            .map_err(|errno| Error::native("lseek of a dma-buf", errno.raw_os_error()))?;
        Ok(Self { file: Arc::new(CheckedFile::new(fd)?), size })
    }

    /// Returns the size in bytes, which never changes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the shared fd.
    #[must_use]
    pub fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(self.file.unchecked())
    }

    /// Returns the shared fd, after a check that it still refers to the buffer.
    pub(crate) fn checked_fd(&self) -> Result<Arc<OwnedFd>> {
        self.file.fd().map(Arc::clone)
    }

    /// Sets the name that `/sys/kernel/debug/dma_buf/bufinfo` and `/proc/<pid>/fdinfo` show. A name
    /// of more than [`DmaBuf::NAME_MAX`] bytes is truncated.
    ///
    /// # Errors
    /// [`Error::NotSupported`] before Linux 5.3.
    pub fn set_name(&self, name: &str) -> Result<()> {
        let plain: Vec<u8> =
            name.bytes().filter(|byte| !byte.is_ascii_control()).take(Self::NAME_MAX).collect();
        let name = CString::new(plain).unwrap_or_default();
        dma_buf::set_name(self.as_fd(), &name)
            .map_err(|errno| error("naming a dma-buf (Linux 5.3)", "ioctl(DMA_BUF_SET_NAME)", errno))
    }

    /// Maps `size` bytes at `offset`, at a multiple of `align`.
    pub(crate) fn map(&self, offset: u64, size: usize, align: usize, writable: bool) -> Result<Mapping> {
        let fd = self.file.fd()?;
        Mapping::of_file(fd.as_fd(), offset, size, align, writable).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM => Error::Native {
                call: "mmap of a dma-buf",
                native: errno.raw_os_error(),
                hint: "it was exported read-only; import it read-only, or export it with DRM_RDWR or O_RDWR",
            },
            Errno::NODEV | Errno::INVAL | Errno::OPNOTSUPP => Error::NotSupported {
                what: "mapping this dma-buf",
                owner: "the driver that exported it",
                native: errno.raw_os_error(),
            },
            errno => map_error(size, "the address space of this process", errno),
        })
    }

    /// Begins an access of the CPU. Waits for devices that write to the buffer; for writing, for
    /// all devices that use it. [`DmaBuf::end_cpu_access`] ends the access.
    pub(crate) fn begin_cpu_access(&self, access: Access) -> Result<()> {
        dma_buf::sync(self.as_fd(), flags(access), false)
            .map_err(|errno| Error::native("ioctl(DMA_BUF_IOCTL_SYNC) to begin", errno.raw_os_error()))
    }

    /// Ends an access of the CPU.
    pub(crate) fn end_cpu_access(&self, access: Access) -> Result<()> {
        dma_buf::sync(self.as_fd(), flags(access), true)
            .map_err(|errno| Error::native("ioctl(DMA_BUF_IOCTL_SYNC) to end", errno.raw_os_error()))
    }

    /// Returns a sync file that becomes readable (`poll(2)`) when pending device work on the buffer
    /// is complete: all writes if `access` is read-only, else all work.
    ///
    /// # Errors
    /// [`Error::NotSupported`] before Linux 6.0.
    pub fn export_sync_file(&self, access: Access) -> Result<OwnedFd> {
        dma_buf::export_sync_file(self.as_fd(), flags(access)).map_err(|errno| {
            error("sync files of a dma-buf (Linux 6.0)", "ioctl(DMA_BUF_IOCTL_EXPORT_SYNC_FILE)", errno)
        })
    }

    /// Adds the work of a sync file to the buffer, as a read or a write by `access`. Devices and
    /// [`crate::cpu_access`] then wait for it.
    ///
    /// # Errors
    /// [`Error::NotSupported`] before Linux 6.0. [`Error::InvalidArgument`] if `file` is not a sync
    /// file.
    pub fn import_sync_file(&self, file: BorrowedFd<'_>, access: Access) -> Result<()> {
        dma_buf::import_sync_file(self.as_fd(), flags(access), file).map_err(|errno| match errno {
            Errno::INVAL | Errno::BADF => {
                Error::InvalidArgument { what: "sync file", why: "must be the descriptor of a sync file" }
            }
            errno => {
                error("sync files of a dma-buf (Linux 6.0)", "ioctl(DMA_BUF_IOCTL_IMPORT_SYNC_FILE)", errno)
            }
        })
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.unchecked().as_fd()
    }
}

fn flags(access: Access) -> u32 {
    match access {
        Access::ReadOnly => dma_buf::READ,
        Access::ReadWrite => dma_buf::READ | dma_buf::WRITE,
    }
}

fn error(what: &'static str, call: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::NOTTY | Errno::NOSYS => {
            Error::NotSupported { what, owner: "this kernel", native: errno.raw_os_error() }
        }
        _ => Error::native(call, errno.raw_os_error()),
    }
}
