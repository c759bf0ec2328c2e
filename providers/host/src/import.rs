//! [`HostImport`]: maps host memory that another process exported.

use core::ptr::NonNull;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::io::Errno;
use umf_core::{Access, Error, Import, ImportRequest, Imported, ProviderKind, Result};
use umf_os::ReceivedFd;
use umf_os::{FileRange, Mapping, map_error, page_size};

use crate::pages;
use crate::shared::FILE_ALIGN;
use crate::sys::{self, FileSystem};

/// An importer of host memory: maps a range of a memory file that another process exported. It
/// needs no provider, and has no state.
///
/// The exporter cannot revoke a mapping. The file must be a memfd, or a file of tmpfs or hugetlbfs.
/// It must be sealed against shrinking, and contain the whole range. The checks make no call into
/// the file's file system before it is known, so that no device, FIFO or FUSE mount can block or
/// kill the importer.
///
/// One case remains. If the exporter punches an imported page of hugetlbfs, as freeing a region of
/// an arena does, and no reserved huge page is free, the next access raises SIGBUS. Exporters of
/// such memory prevent this by leases, isolation or read-only exports.
///
/// The mapping is aligned to pages; to 2 MiB if region and offset are, so that huge pages can be
/// used.
///
/// Thread-safe. See `memfd_create(2)` and `fcntl(2)` on seals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostImport {
    allow_unsealed: bool,
    /// Files whose path begins with this need no seals.
    unsealed_prefix: Option<&'static str>,
}

impl HostImport {
    /// Returns an importer that refuses files that can shrink.
    #[must_use]
    pub const fn new() -> Self {
        Self { allow_unsealed: false, unsealed_prefix: None }
    }

    /// Sets whether files that are not sealed, such as named shared memory, are accepted. Any
    /// process that may write to such a file may truncate it, and then the next access raises
    /// SIGBUS here. Allow it only if all these processes are trusted. The other checks still apply.
    #[must_use]
    pub const fn allow_unsealed(mut self, allow: bool) -> Self {
        self.allow_unsealed = allow;
        self
    }

    /// Sets the prefix of the paths of files that are accepted although they are not sealed, as
    /// with [`HostImport::allow_unsealed`]: `/dev/shm/name_`. Without `/proc` no path is known, and
    /// they are refused.
    #[must_use]
    pub const fn allow_unsealed_below(mut self, prefix: &'static str) -> Self {
        self.unsealed_prefix = Some(prefix);
        self
    }

    /// Returns whether the file needs no seals.
    fn allows_unsealed(self, file: BorrowedFd<'_>) -> bool {
        let has_prefix = |prefix: &str| {
            let link = format!("/proc/self/fd/{}", file.as_raw_fd());
            std::fs::read_link(link)
                .is_ok_and(|path| path.as_os_str().as_bytes().starts_with(prefix.as_bytes()))
        };
        self.allow_unsealed || self.unsealed_prefix.is_some_and(has_prefix)
    }

    fn map(self, request: &ImportRequest, file: &ReceivedFd) -> Result<Imported> {
        let file = file.as_fd();
        // The first check, because the VFS answers it without calling into the file's file system.
        let seals = sys::seals(file).map_err(|errno| match errno {
            Errno::INVAL | Errno::BADF => {
                Error::Untrusted { why: "the descriptor is not a file of shared memory (tmpfs or hugetlbfs)" }
            }
            _ => Error::native("fcntl(F_GET_SEALS)", errno.raw_os_error()),
        })?;
        if !seals.shrink && !self.allows_unsealed(file) {
            return Err(Error::Untrusted {
                why: "the file is not sealed against shrinking, so an access could raise SIGBUS; named shared \
                      memory is never sealed: allow unsealed imports if its owner is trusted",
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
        // A window is much larger than its regions, so its pages are not prefaulted.
        let map = if request.is_window { Mapping::of_file_on_demand } else { Mapping::of_file };
        let mapping = map(file, offset, size, align, writable).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM => Error::Native {
                call: "mmap",
                native: errno.raw_os_error(),
                hint: "the exporter opened the file read-only; import it read-only",
            },
            _ => map_error(size, "host", errno),
        })?;
        if request.is_window {
            // A core dump would populate the holes.
            pages::exclude_from_dumps(&mapping);
        }
        Ok(Imported::host(mapping.leak(), size, request.access))
    }
}

/// Bytes of an arena that are mapped at a time: thousands of regions, and a small part of the
/// address space.
const WINDOW: u64 = 4 << 30;

// SAFETY: the mapped range lies in the file, and the file is sealed against shrinking, or the user
// vouches that it does not shrink. So every page can be accessed until it is unmapped, even after
// the exporter has exited.
unsafe impl Import for HostImport {
    fn kind(&self) -> ProviderKind {
        ProviderKind::HOST
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let file = request
            .fd
            .take()
            .ok_or(Error::Untrusted { why: "the handle needs a file descriptor, and none was received" })?;
        self.map(&request, &ReceivedFd::from(file))
    }

    fn window(&self) -> Option<u64> {
        Some(WINDOW)
    }

    /// Returns `None` for hugetlbfs, where a mapping reserves all of its pages.
    fn window_file(&self, fd: BorrowedFd<'_>) -> Option<u64> {
        // `fstat` only for files with seals: on another file system it could block.
        sys::seals(fd).ok().filter(|seals| seals.shrink)?;
        match sys::size_and_kind_with_seals(fd) {
            Ok((size, FileSystem::Tmpfs)) => Some(size),
            _ => None,
        }
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let foreign = Error::ForeignAddress { address: imported.base, owner: "the host importer" };
        let base = imported.base.as_ptr().and_then(NonNull::new).ok_or(foreign)?;
        // SAFETY: `map` created this mapping, and by the caller's contract it is not in use.
        unsafe { Mapping::from_parts(base, imported.size) }.unmap_or_leak()
    }
}
