//! [`HostImport`]: opens host memory that another process exported.

use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use umf_core::{Access, Error, Import, ImportRequest, Imported, ProviderKind, Result};
use umf_os::ReceivedFd;
use umf_os::{FileRange, Mapping, map_error, page_size};

use crate::pages;
use crate::shared::FILE_ALIGN;
use crate::sys::{self, FileSystem};

/// Opens host memory that another process exported: maps a range of a memory file. Needs no provider, and
/// keeps no state.
///
/// Nothing is mapped that its exporter could take away again. The file must be of tmpfs or hugetlbfs (memfd
/// counts as such), be sealed against shrinking, and hold the whole range. What it is asked for, it is asked
/// without calling into a file system that somebody else implements, so that no file, device, pipe or FUSE
/// mount can hang or kill the importer.
///
/// One thing remains: a page of hugetlbfs that the exporter punches while it is imported (as freeing a region
/// in an arena does) is SIGBUS at the next touch if the reserved huge pages have run out. Exporters of such
/// memory hold it while it is leased, isolate it, or export it read-only, which rules punching out.
///
/// The import is aligned to pages; to 2 MiB if region and offset are, so that huge pages can be mapped as
/// such.
///
/// Thread-safe. See `memfd_create(2)` and `fcntl(2)` on seals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostImport {
    allow_unsealed: bool,
}

impl HostImport {
    /// An importer that refuses files that can shrink.
    #[must_use]
    pub const fn new() -> Self {
        Self { allow_unsealed: false }
    }

    /// Whether to open files that are not sealed, which is what named shared memory is. Whoever may write to
    /// such a file may truncate it, and the next touch of a page that is gone is SIGBUS here: allow it only
    /// where every such process is trusted not to. Everything else is still checked.
    #[must_use]
    pub const fn allow_unsealed(mut self, allow: bool) -> Self {
        self.allow_unsealed = allow;
        self
    }

    fn map(self, request: &ImportRequest, file: &ReceivedFd) -> Result<Imported> {
        let file = file.as_fd();
        // First of all, because it is the one question that only the kernel answers.
        let seals = sys::seals(file).map_err(|errno| match errno {
            Errno::INVAL | Errno::BADF => {
                Error::Untrusted { why: "the descriptor is not a file of shared memory (tmpfs or hugetlbfs)" }
            }
            _ => Error::native("fcntl(F_GET_SEALS)", errno.raw_os_error()),
        })?;
        if !seals.shrink && !self.allow_unsealed {
            return Err(Error::Untrusted {
                why: "the file is not sealed against shrinking, so a touch of it could be SIGBUS; named shared \
                      memory is like that: allow it by the setting for unsealed imports",
            });
        }
        if seals.write && request.access == Access::ReadWrite {
            return Err(Error::Untrusted { why: "the file is sealed against writing; import it read-only" });
        }
        let (file_size, kind) = sys::size_and_kind_with_seals(file)
            .map_err(|errno| Error::native("fstat", errno.raw_os_error()))?;
        let page = match kind {
            FileSystem::Tmpfs => page_size(),
            FileSystem::Hugetlbfs(page) if page.is_power_of_two() => page,
            _ => return Err(Error::Untrusted { why: "the file is neither of tmpfs nor of hugetlbfs" }),
        };
        let FileRange { offset, size } = FileRange::of(request, page, file_size)?;
        let can_be_huge = size as u64 >= FILE_ALIGN && offset.is_multiple_of(FILE_ALIGN);
        let align = if can_be_huge { page.max(FILE_ALIGN as usize) } else { page };
        let writable = request.access == Access::ReadWrite;
        // A window is far larger than what its regions take.
        let map = if request.is_window { Mapping::of_file_on_demand } else { Mapping::of_file };
        let mapping = map(file, offset, size, align, writable).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM => Error::Native {
                call: "mmap",
                native: errno.raw_os_error(),
                hint: "the exporter opened the file read-only: import it read-only",
            },
            _ => map_error(size, "host", errno),
        })?;
        if request.is_window {
            // Writing the holes to a core dump would give them memory.
            pages::exclude_from_dumps(&mapping);
        }
        Ok(Imported::host(mapping.leak(), size, request.access))
    }
}

/// How much of an arena is mapped at a time: some thousand regions of usual sizes, and little of an address space.
const WINDOW: u64 = 4 << 30;

// SAFETY: what is mapped is sealed against shrinking (or the user has allowed otherwise) and lies inside of
// the file, so every page of it can be touched until it is unmapped, whatever becomes of the exporter and its
// descriptor.
unsafe impl Import for HostImport {
    fn kind(&self) -> ProviderKind {
        ProviderKind::HOST
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let file = request.fd.take().ok_or(Error::Untrusted { why: "no file descriptor came along" })?;
        self.map(&request, &ReceivedFd::from(file))
    }

    fn window(&self) -> Option<u64> {
        Some(WINDOW)
    }

    /// Not hugetlbfs, where a mapping reserves all of its pages.
    fn window_file(&self, fd: BorrowedFd<'_>) -> Option<u64> {
        // Only a file with seals is asked for its size: another file system might not answer.
        sys::seals(fd).ok().filter(|seals| seals.shrink)?;
        match sys::size_and_kind_with_seals(fd) {
            Ok((size, FileSystem::Tmpfs)) => Some(size),
            _ => None,
        }
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let foreign = Error::ForeignAddress { address: imported.base, owner: "the host importer" };
        let base = imported.base.as_ptr().and_then(NonNull::new).ok_or(foreign)?;
        // SAFETY: `map` mapped this much there, and the caller says that nobody uses it any more.
        unsafe { Mapping::from_parts(base, imported.size) }.unmap_or_leak()
    }
}
