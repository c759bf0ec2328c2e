//! [`BufferSource`]: the devices that create dma-bufs, [`Udmabuf`] over memfds and [`Heap`] of
//! `/dev/dma_heap/<name>`; and reports of their availability on this machine.

use core::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::page_size;

use crate::buffer::DmaBuf;
use crate::sys::{self, udmabuf};

/// A device that creates a buffer per region.
#[derive(Debug)]
pub(crate) enum BufferSource {
    Udmabuf(Udmabuf),
    Heap(Heap),
}

impl BufferSource {
    /// Returns the granularity of the sizes of buffers.
    pub(crate) fn page_size(&self) -> usize {
        match self {
            Self::Udmabuf(device) => device.page_size(),
            Self::Heap(_) => page_size(),
        }
    }

    /// Creates a buffer of `size` bytes, a multiple of the page size.
    pub(crate) fn create(&self, size: usize) -> Result<DmaBuf> {
        match self {
            Self::Udmabuf(device) => device.create(size),
            Self::Heap(heap) => heap.create(size),
        }
    }

    /// Returns the name of the source in errors, if it allocates from all memory of the machine.
    pub(crate) const fn page_owner(&self) -> Option<&'static str> {
        match self {
            Self::Udmabuf(device) if device.has_huge_pages() => None,
            Self::Udmabuf(_) => Some("udmabuf"),
            Self::Heap(_) => Some("the dma-buf heap"),
        }
    }

    /// Returns whether the pages of a buffer are charged to the cgroup of the process that creates
    /// it. Pages of heaps are not charged.
    pub(crate) const fn is_charged_to_cgroup(&self) -> bool {
        !matches!(self, Self::Heap(_))
    }
}

/// The texts of errors for a device that cannot be opened.
pub(crate) struct OpenHints {
    /// The device.
    pub(crate) what: &'static str,
    /// The call.
    pub(crate) call: &'static str,
    /// What to do if the device does not exist.
    pub(crate) absent: &'static str,
    /// What to do if this process may not open it.
    pub(crate) refused: &'static str,
}

/// Returns the error for a device that cannot be opened.
pub(crate) fn open_error(errno: Errno, hints: &OpenHints) -> Error {
    let native = errno.raw_os_error();
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOTDIR => {
            Error::NotSupported { what: hints.what, owner: hints.absent, native }
        }
        Errno::ACCESS | Errno::PERM => Error::Native { call: hints.call, native, hint: hints.refused },
        _ => descriptors_exhausted(hints.call, errno).unwrap_or(Error::native(hints.call, native)),
    }
}

/// Returns the error for an exhausted limit of fds, if `errno` is one.
pub(crate) fn descriptors_exhausted(call: &'static str, errno: Errno) -> Option<Error> {
    let hint = match errno {
        Errno::MFILE => "raise RLIMIT_NOFILE: each dma-buf needs a file descriptor",
        Errno::NFILE => "the system-wide limit of open files is reached: raise fs.file-max",
        _ => return None,
    };
    Some(Error::Native { call, native: errno.raw_os_error(), hint })
}

const UDMABUF: OpenHints = OpenHints {
    what: "udmabuf",
    call: "open of /dev/udmabuf",
    absent: "this system: there is no /dev/udmabuf (modprobe udmabuf, a kernel with CONFIG_UDMABUF, or --device /dev/udmabuf for a container)",
    refused: "it belongs to root or the group kvm: join that (ls -l /dev/udmabuf), add a udev rule, or allow the device in the container",
};

const CREATE: &str = "ioctl(UDMABUF_CREATE_LIST)";

/// A part of a memfd (`memfd_create(2)`), for [`Udmabuf::over`].
#[derive(Clone, Debug)]
pub struct FilePart<'file> {
    /// The file. It must be sealed against shrinking, and not sealed against writing.
    pub file: BorrowedFd<'file>,
    /// The bytes of the file: whole pages.
    pub range: Range<u64>,
}

/// Availability of `/dev/udmabuf`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdmabufReport {
    /// The result of creating a buffer; an error says what to do.
    pub works: Result<(), Error>,
    /// Limit of the bytes of a buffer.
    pub size_limit: Option<u64>,
    /// Limit of the parts of a buffer.
    pub parts_limit: Option<u64>,
}

/// The device that creates dma-bufs over memfds. Thread-safe.
#[derive(Debug)]
pub struct Udmabuf {
    device: OwnedFd,
    huge_page: Option<usize>,
}

impl Udmabuf {
    /// Path of the device.
    pub const DEVICE: &str = "/dev/udmabuf";

    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if it does not exist, [`Error::Native`] if this process may not open
    /// it. The text says what to do.
    pub fn open() -> Result<Self> {
        let device =
            sys::open_device(Path::new(Self::DEVICE)).map_err(|errno| open_error(errno, &UDMABUF))?;
        Ok(Self { device, huge_page: None })
    }

    /// Returns the limit of the bytes of a buffer (module parameter `size_limit_mb`), if it is
    /// known.
    #[must_use]
    pub fn size_limit() -> Option<u64> {
        parameter("size_limit_mb")?.checked_mul(1 << 20)
    }

    /// Returns the limit of the parts of a buffer (module parameter `list_limit`), if it is known.
    #[must_use]
    pub fn parts_limit() -> Option<u64> {
        parameter("list_limit")
    }

    /// Creates a dma-buf of parts of memfds, in this order. It pins the current pages of the files.
    /// If pages are punched out of a file later, their replacements are not part of the buffer.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: no parts, partial pages, or a file that can shrink or cannot
    ///   be written.
    /// - [`Error::LimitReached`], [`Error::TooMany`]: limits of the device.
    /// - [`Error::OutOfMemory`], [`Error::Native`].
    pub fn over(&self, parts: &[FilePart<'_>]) -> Result<DmaBuf> {
        let invalid = |why| Error::InvalidArgument { what: "parts of a udmabuf", why };
        if parts.is_empty() {
            return Err(invalid("must have at least one element"));
        }
        let mut items = Vec::with_capacity(parts.len());
        let mut total = 0_u64;
        for part in parts {
            let page = page_size() as u64;
            let size = part.range.end.saturating_sub(part.range.start);
            if size == 0 || !part.range.start.is_multiple_of(page) || !size.is_multiple_of(page) {
                return Err(invalid("must each be one or more whole pages"));
            }
            match rustix::fs::fcntl_get_seals(part.file) {
                Ok(seals) if !seals.contains(SealFlags::SHRINK) => {
                    return Err(invalid(
                        "must lie in files that are sealed against shrinking (F_SEAL_SHRINK)",
                    ));
                }
                Ok(seals) if seals.contains(SealFlags::WRITE) => {
                    return Err(invalid(
                        "must lie in files that are not sealed against writing (F_SEAL_WRITE)",
                    ));
                }
                Ok(_) => {}
                Err(_) => return Err(invalid("must lie in memory files (memfd_create)")),
            }
            let memfd =
                u32::try_from(part.file.as_raw_fd()).map_err(|_| invalid("must have a valid descriptor"))?;
            items.push(udmabuf::Item { memfd, padding: 0, offset: part.range.start, size });
            total = total.checked_add(size).ok_or(invalid("must have fewer than 2^64 bytes in all"))?;
        }
        let size = usize::try_from(total).unwrap_or(usize::MAX);
        let buffer = udmabuf::create(self.device.as_fd(), &items).map_err(|errno| match errno {
            Errno::NOMEM => Error::OutOfMemory { size, owner: "udmabuf", native: errno.raw_os_error() },
            Errno::INVAL => invalid_error(items.len(), size),
            errno => {
                descriptors_exhausted(CREATE, errno).unwrap_or(Error::native(CREATE, errno.raw_os_error()))
            }
        })?;
        DmaBuf::from_new_fd(buffer)
    }

    /// Tests the device by creating a buffer of one page.
    #[must_use]
    pub fn report() -> UdmabufReport {
        UdmabufReport {
            works: Self::open().and_then(|device| device.create(page_size())).map(drop),
            size_limit: Self::size_limit(),
            parts_limit: Self::parts_limit(),
        }
    }

    /// Sets that new buffers have huge pages of this many bytes.
    pub(crate) fn set_huge_page(&mut self, size: usize) {
        self.huge_page = Some(size);
    }

    pub(crate) const fn has_huge_pages(&self) -> bool {
        self.huge_page.is_some()
    }

    pub(crate) fn page_size(&self) -> usize {
        self.huge_page.unwrap_or_else(page_size)
    }

    /// Creates a buffer over a new memfd, whose fd is closed.
    pub(crate) fn create(&self, size: usize) -> Result<DmaBuf> {
        let file = sys::memfd(c"umf-udmabuf", self.huge_page).map_err(|errno| match errno {
            Errno::NODEV | Errno::INVAL | Errno::NOENT if self.huge_page.is_some() => Error::NotSupported {
                what: "this huge page size",
                owner: "this system (see /sys/kernel/mm/hugepages)",
                native: errno.raw_os_error(),
            },
            errno => descriptors_exhausted("memfd_create", errno)
                .unwrap_or(Error::native("memfd_create", errno.raw_os_error())),
        })?;
        sys::set_size_and_seal(file.as_fd(), size as u64).map_err(|errno| match errno {
            Errno::NOMEM | Errno::NOSPC | Errno::FBIG | Errno::INVAL => {
                Error::OutOfMemory { size, owner: "udmabuf", native: errno.raw_os_error() }
            }
            _ => Error::native("ftruncate or F_ADD_SEALS", errno.raw_os_error()),
        })?;
        if self.huge_page.is_some() {
            if Self::size_limit().is_some_and(|limit| size as u64 > limit) {
                return Err(invalid_error(1, size));
            }
            // Populated first, because the device does not report that huge pages are exhausted.
            sys::commit(file.as_fd(), size as u64).map_err(|errno| match errno {
                Errno::NOSPC | Errno::NOMEM => Error::OutOfMemory {
                    size,
                    owner: "the reserved huge pages (raise vm.nr_hugepages)",
                    native: errno.raw_os_error(),
                },
                _ => Error::native("fallocate", errno.raw_os_error()),
            })?;
        }
        self.over(&[FilePart { file: file.as_fd(), range: 0..size as u64 }])
    }
}

/// Returns the error for EINVAL of the device, after the parts were checked: an exceeded limit, if
/// known.
fn invalid_error(parts: usize, size: usize) -> Error {
    if let Some(limit) = Udmabuf::parts_limit().filter(|&limit| parts as u64 > limit) {
        let what = "parts of one udmabuf (raise /sys/module/udmabuf/parameters/list_limit)";
        return Error::TooMany { what, limit: usize::try_from(limit).unwrap_or(usize::MAX) };
    }
    if let Some(limit) = Udmabuf::size_limit().filter(|&limit| size as u64 > limit) {
        let what = "udmabuf size (size_limit_mb in /sys/module/udmabuf/parameters)";
        return Error::LimitReached { what, limit, size };
    }
    Error::Native {
        call: CREATE,
        native: Errno::INVAL.raw_os_error(),
        hint: "the parts must lie in their files; parts on huge pages need Linux 6.6",
    }
}

fn parameter(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/sys/module/udmabuf/parameters/{name}")).ok()?.trim().parse().ok()
}

const HEAP: OpenHints = OpenHints {
    what: "this dma-buf heap",
    call: "open of a dma-buf heap",
    absent: "this system: /dev/dma_heap lists the heaps (a kernel with CONFIG_DMABUF_HEAPS_SYSTEM has \"system\")",
    refused: "heaps belong to root: change the mode of /dev/dma_heap/* by a udev rule, or allow the device in the container",
};

/// Availability of a heap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeapReport {
    /// The name of the heap.
    pub name: String,
    /// The result of creating a buffer; an error says what to do.
    pub works: Result<(), Error>,
}

/// A dma-buf heap: a part of the machine's memory that some devices can access. Thread-safe.
#[derive(Debug)]
pub struct Heap {
    device: OwnedFd,
}

impl Heap {
    /// Folder of the heaps.
    pub const FOLDER: &str = "/dev/dma_heap";

    /// Opens a heap by name, such as `system`.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if it does not exist, [`Error::Native`] if this process may not open
    /// it. The text says what to do. [`Error::InvalidArgument`] if `name` is not the name of a
    /// file.
    pub fn open(name: &str) -> Result<Self> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(Error::InvalidArgument {
                what: "dma-buf heap",
                why: "must be a name in /dev/dma_heap",
            });
        }
        let device = sys::open_device(&Path::new(Self::FOLDER).join(name))
            .map_err(|errno| open_error(errno, &HEAP))?;
        Ok(Self { device })
    }

    /// Returns the names of the heaps of this machine.
    #[must_use]
    pub fn names() -> Vec<String> {
        let entries = std::fs::read_dir(Self::FOLDER).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Tests each heap of this machine by creating a buffer of one page.
    #[must_use]
    pub fn reports() -> Vec<HeapReport> {
        let report = |name: String| {
            let works = Self::open(&name).and_then(|heap| heap.create(page_size())).map(drop);
            HeapReport { name, works }
        };
        Self::names().into_iter().map(report).collect()
    }

    /// Creates a buffer.
    pub(crate) fn create(&self, size: usize) -> Result<DmaBuf> {
        let buffer = sys::heap::allocate(self.device.as_fd(), size as u64).map_err(|errno| match errno {
            Errno::NOMEM => {
                Error::OutOfMemory { size, owner: "the dma-buf heap", native: errno.raw_os_error() }
            }
            errno => descriptors_exhausted("ioctl(DMA_HEAP_IOCTL_ALLOC)", errno)
                .unwrap_or(Error::native("ioctl(DMA_HEAP_IOCTL_ALLOC)", errno.raw_os_error())),
        })?;
        DmaBuf::from_new_fd(buffer)
    }
}
