//! Memory files without a name, sealed so that nobody can take the memory away.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_sync::failpoint;

use crate::{huge, sys};

/// A memfd of `size` bytes, all of it a hole, under the first free number from `first` on. Not sealed yet: see [`seal`].
pub(crate) fn create(size: u64, huge_page: Option<usize>, first: i32) -> Result<OwnedFd> {
    let limit = sys::file_size_limit();
    if size > limit {
        return Err(Error::LimitReached { what: "file size (RLIMIT_FSIZE)", limit, size: clamp(size) });
    }
    let file = sys::memfd(c"umf", huge_page).map_err(|errno| create_error(errno, huge_page, size))?;
    let file = sys::from_number(file, first);
    failpoint!("host.file_made");
    sys::set_size(file.as_fd(), size).map_err(|errno| match errno {
        Errno::FBIG | Errno::INVAL | Errno::NOMEM | Errno::NOSPC => {
            Error::OutOfMemory { size: clamp(size), owner: "host", native: errno.raw_os_error() }
        }
        _ => Error::native("ftruncate", errno.raw_os_error()),
    })?;
    Ok(file)
}

/// Seals a file for good: it can be neither shrunk nor grown. With `read_only` nobody can make a writable
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
        Errno::NOMEM if huge_page.is_some() => huge::none_left(clamp(size), errno.raw_os_error()),
        Errno::NOMEM => Error::OutOfMemory { size: clamp(size), owner: "host", native: errno.raw_os_error() },
        _ => Error::native("memfd_create", errno.raw_os_error()),
    }
}
