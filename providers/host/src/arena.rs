//! [`Arena`]: one memory file out of which many regions are carved; and how memory files are made.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::CheckedFile;
use umf_suballoc::FreeRanges;
use umf_sync::failpoint;

use crate::pages::huge_pages_exhausted;
use crate::sys;

/// One memory file out of which many regions are carved.
///
/// The file has its final size from the start, so that it can be sealed; what no region has used is a hole
/// that costs nothing.
pub(crate) struct Arena {
    pub(crate) file: Arc<CheckedFile>,
    pub(crate) ranges: FreeRanges,
    /// Size of its reserved huge pages; `None` for normal ones.
    pub(crate) huge_page: Option<usize>,
}

impl Arena {
    /// A sealed arena of `size` bytes, whose descriptor has a number from `first` on.
    pub(crate) fn sealed(size: u64, huge_page: Option<usize>, first: i32) -> Result<Self> {
        let file = create(size, huge_page, first)?;
        seal(&file, false)?;
        Self::over(file, size, huge_page)
    }

    /// An arena over a file of `size` bytes that has no content yet.
    pub(crate) fn over(file: OwnedFd, size: u64, huge_page: Option<usize>) -> Result<Self> {
        Ok(Self { file: Arc::new(CheckedFile::new(file)?), ranges: FreeRanges::new(size)?, huge_page })
    }
}

/// The size that an arena can have where `wanted` bytes are wanted: as much as this process may put into one
/// file, a multiple of `granularity`. 0 if that is nothing.
pub(crate) fn limited_size(wanted: u64, granularity: usize) -> u64 {
    let granularity = granularity as u64;
    let wanted = wanted.checked_next_multiple_of(granularity).unwrap_or(wanted);
    wanted.min(sys::file_size_limit()) / granularity * granularity
}

/// A memfd of `size` bytes, all of it a hole, under the first free number from `first` on. Not sealed yet: see [`seal`].
pub(crate) fn create(size: u64, huge_page: Option<usize>, first: i32) -> Result<OwnedFd> {
    let limit = sys::file_size_limit();
    if size > limit {
        return Err(Error::LimitReached { what: "file size (RLIMIT_FSIZE)", limit, size: clamp(size) });
    }
    let file = sys::memfd(c"umf", huge_page).map_err(|errno| create_error(errno, huge_page, size))?;
    let file = sys::move_above(file, first);
    failpoint!("host.file_made");
    sys::set_size(file.as_fd(), size).map_err(|errno| match errno {
        Errno::FBIG | Errno::INVAL | Errno::NOMEM | Errno::NOSPC => {
            Error::OutOfMemory { size: clamp(size), owner: "host", native: errno.raw_os_error() }
        }
        _ => Error::native("ftruncate", errno.raw_os_error()),
    })?;
    Ok(file)
}

/// Seals a file for good: it can be neither shrunk nor grown. With `read_only` no process can make a writable
/// mapping or write any more either; mappings that exist stay writable.
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
            hint: "the whole system is out of files: raise fs.file-max",
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
