//! [`FileProvider`] and [`FileImport`]: a file, in the page cache, or on persistent memory (fsdax), where stores reach the
//! medium without it.
//!
//! A region is a range of the file and a mapping of its own, so that its alignment never shifts its offset. A freed range gives
//! its blocks back to the file system (where that can punch holes) and is used again. What the file held before is not kept.

use core::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::MapFlags;
use umf_core::{
    Access, Address, Error, Export, Import, ImportRequest, Imported, Layout, MemoryKind, Provider,
    ProviderKind, Purge, Region, Result, Visibility,
};
use umf_os::{CheckedFile, FileRange, Mapping, page_size};
use umf_suballoc::Suballocator;

use crate::backing::{self, Backing, HUGE, SYNCHRONOUS};

const KIND: ProviderKind = match ProviderKind::new("file") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// A program that makes a provider of a file trusts the processes that can write to the file.
static IMPORT: FileImport = FileImport::trust_writers();

const OWNER: &str = "this file provider";
/// Where offsets end: no file gets that long before its medium is full.
const END: u64 = 1 << 50;

/// Regions of a file. Thread-safe.
///
/// In a forked child, a private one works on; a shared one is frozen there: allocating is [`Error::Frozen`], and freeing does
/// nothing, since the memory is still the parent's. Allocating and freeing do not use the global allocator. Dropping it leaves live regions mapped, and the file where it is.
///
/// The program must not close the file's descriptor. If it does, live regions stay usable and can
/// be freed, without giving their blocks back to the file system. Allocating, exporting and purging
/// are [`Error::Native`] then. A file that the program opens under the number is neither changed nor
/// closed nor exported.
pub struct FileProvider {
    backing: Backing,
    visibility: Visibility,
    flags: MapFlags,
    page: usize,
}

impl FileProvider {
    /// A provider of the file at `path`, which is made if it is not there (mode 0600). Its content is not kept.
    ///
    /// # Errors
    /// [`Error::Native`] if it cannot be opened for reading and writing, or mapped; [`Error::InvalidArgument`] if it is no
    /// regular file; [`Error::OutOfMemory`] if its medium is full.
    pub fn open(path: &Path, visibility: Visibility, name: impl Into<String>) -> Result<Arc<Self>> {
        let mut options = OpenOptions::new();
        // Without waiting for a process at the other end of a pipe.
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK);
        let native =
            |call| move |error: std::io::Error| Error::native(call, error.raw_os_error().unwrap_or(0));
        let file = options.open(path).map_err(native("open"))?;
        if !file.metadata().map_err(native("fstat"))?.is_file() {
            return Err(Error::InvalidArgument { what: "path", why: "must name a regular file" });
        }
        let flags = match visibility {
            Visibility::Private => MapFlags::PRIVATE,
            Visibility::Shared if is_fsdax(&file)? => SYNCHRONOUS,
            Visibility::Shared => MapFlags::SHARED,
        };
        let page = if flags == SYNCHRONOUS { HUGE } else { page_size() };
        let suballocator = Suballocator::new(0, END, OWNER)?;
        let backing = Backing::new(CheckedFile::new(file.into())?, 0, suballocator, name.into());
        Ok(Arc::new(Self { backing, visibility, flags, page }))
    }

    /// Whether stores reach the medium past the page cache: persistent memory.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        self.flags == SYNCHRONOUS
    }

    fn is_frozen(&self) -> bool {
        self.visibility == Visibility::Shared && self.backing.is_inherited()
    }
}

/// Whether the file can be mapped past the page cache, which is so on persistent memory alone. Nothing that another process
/// has in the file is touched.
fn is_fsdax(file: &File) -> Result<bool> {
    let native = |error: std::io::Error| Error::native("ftruncate", error.raw_os_error().unwrap_or(0));
    if file.metadata().map_err(native)?.len() < HUGE as u64 {
        file.set_len(HUGE as u64).map_err(native)?;
    }
    Ok(backing::map(file.as_fd(), 0, HUGE, HUGE, SYNCHRONOUS, Access::ReadWrite).is_ok())
}

/// Maps a range of a file as [`backing::map`] does.
fn map(
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    align: usize,
    flags: MapFlags,
    access: Access,
) -> Result<Mapping> {
    backing::map(file, offset, size, align, flags, access).map_err(|errno| match errno {
        Errno::NOMEM => Error::OutOfMemory { size, owner: "file", native: errno.raw_os_error() },
        errno => Error::Native {
            call: "mmap",
            native: errno.raw_os_error(),
            hint: "the file system may not be able to map files so",
        },
    })
}

/// Gives a range blocks on the medium, so that storing to it cannot fail: without them it is SIGBUS where the medium is full.
fn reserve(file: BorrowedFd<'_>, offset: u64, size: usize) -> Result<()> {
    let allocated =
        retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), offset, size as u64));
    allocated.map_err(|errno| match errno {
        Errno::NOSPC | Errno::FBIG | Errno::DQUOT => {
            Error::OutOfMemory { size, owner: "file", native: errno.raw_os_error() }
        }
        errno => Error::native("fallocate", errno.raw_os_error()),
    })
}

/// Gives a range back to the file system; it then reads as zero. `false` if this file system cannot.
fn punch(file: BorrowedFd<'_>, offset: u64, size: usize) -> bool {
    umf_os::file::punch_hole(file, offset, size as u64).is_ok()
}

// SAFETY: regions are mappings of their own, of ranges that no other live region has, and are unmapped by `free` only.
unsafe impl Provider for FileProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.backing.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn visibility(&self) -> Visibility {
        self.visibility
    }

    fn page_size(&self) -> usize {
        self.page
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        if self.is_frozen() {
            return Err(Error::Frozen { what: "memory of a file" });
        }
        let layout = layout.pad_to(self.page)?.align_to(self.page)?;
        let (size, align) = (layout.size(), layout.align());
        let file = self.backing.file.fd()?.as_fd();
        self.backing.suballocator.allocate(size, self.page as u64, |offset| {
            reserve(file, offset, size)?;
            let mapped = map(file, offset, size, align, self.flags, Access::ReadWrite);
            if mapped.is_err() {
                punch(file, offset, size);
            }
            mapped.map(Mapping::leak)
        })
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        self.backing.suballocator.free(&region, |offset| {
            // SAFETY: mapped by `allocate`, and nothing uses it, says the caller.
            unsafe { Mapping::of_region(&region) }.map_or(Ok(()), Mapping::unmap_or_leak)?;
            // Where holes cannot be made, the blocks are kept for what comes next.
            if let Ok(file) = self.backing.file.fd() {
                punch(file.as_fd(), offset, region.size());
            }
            Ok(())
        })
    }

    fn export(&self) -> Option<&dyn Export> {
        (self.visibility == Visibility::Shared).then_some(&self.backing)
    }

    fn import(&self) -> Option<&dyn Import> {
        Some(&IMPORT)
    }

    fn purge(&self) -> Option<&dyn Purge> {
        (self.visibility == Visibility::Shared).then_some(self)
    }
}

impl Purge for FileProvider {
    unsafe fn purge_lazy(&self, _base: Address, _size: usize) -> Result<()> {
        Err(Error::NotSupported { what: "purging lazily", owner: OWNER, native: 0 })
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        let (region, place) = self.backing.suballocator.holding(base, size, self.page)?;
        let inside = base.offset_from(region.base()).unwrap_or(0);
        if punch(self.backing.file.fd()?.as_fd(), place + inside, size) {
            return Ok(());
        }
        Err(Error::NotSupported {
            what: "purging",
            owner: "this file system, which cannot punch holes",
            native: 0,
        })
    }
}

impl fmt::Debug for FileProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file provider {:?}: {:?}", self.backing.name, self.backing.suballocator)
    }
}

/// Opens regions of a file of another process. Needs no provider, and keeps no state.
///
/// A file on a medium cannot be sealed: any process that may write to it may truncate it, and the next touch of what is gone is
/// SIGBUS here. Import only where every process that can write to the file is trusted not to. Otherwise it is checked that it is a
/// regular file that holds the whole range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileImport(());

impl FileImport {
    /// An importer for a program that trusts the processes that can write to the files that it opens.
    #[must_use]
    pub const fn trust_writers() -> Self {
        Self(())
    }
}

// SAFETY: the mapping keeps the file, and stays until released. The program that made the importer trusts other
// processes not to truncate the file.
unsafe impl Import for FileImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let refuse = |why| Error::Untrusted { why };
        let file = request.fd.take().map(File::from).ok_or(refuse("no file descriptor came along"))?;
        let about = file.metadata().map_err(|_| refuse("the descriptor is no file"))?;
        if !about.is_file() {
            return Err(refuse("the descriptor is not that of a regular file"));
        }
        if is_unsealed_memory(file.as_fd()) {
            return Err(refuse("the descriptor is of a memory file without a name, and not sealed"));
        }
        let page = page_size();
        let FileRange { offset, size } = FileRange::of(&request, page, about.len())?;
        let mapping = map(file.as_fd(), offset, size, page, MapFlags::SHARED, request.access)?;
        Ok(Imported::host(mapping.leak(), size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { backing::release(&imported) }
    }
}

/// Whether it is a memfd that any process may still truncate. (What has a name on a tmpfs is sealed against sealing.)
fn is_unsealed_memory(file: BorrowedFd<'_>) -> bool {
    let sealed = SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| !seals.intersects(sealed))
}
