//! [`Arena`]: a memory file from which regions are suballocated; and the creation of memory files.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::CheckedFile;
use umf_suballoc::FreeRanges;
use umf_sync::failpoint;

use crate::pages::huge_pages_exhausted;
use crate::sys;

/// A memory file from which regions are suballocated.
///
/// The file is created with its final size, so that it can be sealed. Ranges that no region has
/// used are holes, which take no memory.
pub(crate) struct Arena {
    pub(crate) file: Arc<CheckedFile>,
    pub(crate) ranges: FreeRanges,
    /// Size of the file's reserved huge pages; `None` for normal pages.
    pub(crate) huge_page: Option<usize>,
}

impl Arena {
    /// Creates a sealed arena of `size` bytes, whose fd is at least `lowest_fd`.
    pub(crate) fn sealed(size: u64, huge_page: Option<usize>, lowest_fd: i32) -> Result<Self> {
        let file = create(size, huge_page, lowest_fd)?;
        seal(&file, false)?;
        Self::over(file, size, huge_page)
    }

    /// Makes an arena of an empty file of `size` bytes.
    pub(crate) fn over(file: OwnedFd, size: u64, huge_page: Option<usize>) -> Result<Self> {
        Ok(Self { file: Arc::new(CheckedFile::new(file)?), ranges: FreeRanges::new(size)?, huge_page })
    }
}

/// Limits the size of an arena to `RLIMIT_FSIZE`, and rounds it to a multiple of `granularity`.
/// Returns 0 if the limit is less than that.
pub(crate) fn limited_size(wanted: u64, granularity: usize) -> u64 {
    let granularity = granularity as u64;
    let wanted = wanted.checked_next_multiple_of(granularity).unwrap_or(wanted);
    wanted.min(sys::file_size_limit()) / granularity * granularity
}

/// Creates a memfd of `size` bytes without pages, whose fd is at least `lowest_fd`. It is not
/// sealed yet: see [`seal`].
pub(crate) fn create(size: u64, huge_page: Option<usize>, lowest_fd: i32) -> Result<OwnedFd> {
    let limit = sys::file_size_limit();
    if size > limit {
        return Err(Error::LimitReached { what: "file size (RLIMIT_FSIZE)", limit, size: clamp(size) });
    }
    let file = sys::memfd(c"umf", huge_page).map_err(|errno| create_error(errno, huge_page, size))?;
    let file = sys::move_above(file, lowest_fd);
    failpoint!("host.file_made");
    sys::set_size(file.as_fd(), size).map_err(|errno| match errno {
        Errno::FBIG | Errno::INVAL | Errno::NOMEM | Errno::NOSPC => {
            Error::OutOfMemory { size: clamp(size), owner: "host", native: errno.raw_os_error() }
        }
        _ => Error::native("ftruncate", errno.raw_os_error()),
    })?;
    Ok(file)
}

/// Seals the size of a file permanently. With `read_only`, also prevents writes and new writable
/// mappings; existing mappings stay writable.
pub(crate) fn seal(file: &OwnedFd, read_only: bool) -> Result<()> {
    sys::seal(file.as_fd(), read_only).map_err(|errno| Error::Native {
        call: "fcntl(F_ADD_SEALS)",
        native: errno.raw_os_error(),
        hint: if read_only { "read-only exports need Linux 5.1" } else { "" },
    })?;
    failpoint!("host.file_sealed");
    Ok(())
}

fn clamp(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn create_error(errno: Errno, huge_page: Option<usize>, size: u64) -> Error {
    match errno {
        Errno::MFILE => Error::Native {
            call: "memfd_create",
            native: errno.raw_os_error(),
            hint: "raise RLIMIT_NOFILE (ulimit -n), or close descriptors; each region of an isolated provider needs one",
        },
        Errno::NFILE => Error::Native {
            call: "memfd_create",
            native: errno.raw_os_error(),
            hint: "the system-wide limit of open files is reached: raise fs.file-max",
        },
        Errno::NODEV | Errno::INVAL if huge_page.is_some() => Error::NotSupported {
            what: "this huge page size",
            owner: "this system (see /sys/kernel/mm/hugepages)",
            native: errno.raw_os_error(),
        },
        Errno::NOMEM if huge_page.is_some() => huge_pages_exhausted(clamp(size), errno.raw_os_error()),
        Errno::NOMEM => Error::OutOfMemory { size: clamp(size), owner: "host", native: errno.raw_os_error() },
        _ => Error::native("memfd_create", errno.raw_os_error()),
    }
}
