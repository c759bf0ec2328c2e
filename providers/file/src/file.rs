//! [`FileProvider`] and [`FileImport`]: regions of a file, in the page cache or on persistent
//! memory (fsdax), where stores bypass the page cache.
//!
//! A region is a range of the file with a mapping of its own, so that the offset does not depend on
//! the alignment. Freeing punches the range out of the file, if the file system supports it, and
//! the range is reused. The previous content of the file is not preserved.
//!
//! [`SuballocatedFile`] is the common part of this provider and of that of a DAX device.

use core::fmt;
use core::ptr::NonNull;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags};
use umf_core::settings::Trusted;
use umf_core::{
    Access, Address, Error, Export, FactoryError, Import, ImportRequest, Imported, Layout, MemoryKind,
    NativeExport, Provider, ProviderFactory, ProviderKind, Purge, Region, Result, Visibility,
};
use umf_os::{CheckedFile, FileRange, Mapping, page_size};
use umf_suballoc::Suballocator;
use umf_sync::fork;

const KIND: ProviderKind = match ProviderKind::new("file") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// A program that uses a file for memory trusts the processes that can write to it.
static IMPORT: FileImport = FileImport::trust_writers();

const OWNER: &str = "this file provider";
/// Limit of offsets: larger than any file system.
const END: u64 = 1 << 50;

/// A provider of regions of a file. Thread-safe.
///
/// In a forked child, a private provider keeps working. A shared one is frozen: allocating fails
/// with [`Error::Frozen`], and freeing does nothing, because the memory belongs to the parent.
/// Allocating and freeing do not use the global allocator. Dropping a provider leaves live regions
/// mapped, and does not remove the file.
///
/// The program must not close the file's fd. If it does, live regions stay usable and can be freed,
/// but their blocks are not returned to the file system. Allocating, exporting and purging fail
/// with [`Error::Native`]. A file that the program opens under the number is neither changed nor
/// closed nor exported.
pub struct FileProvider {
    backing: SuballocatedFile,
    visibility: Visibility,
    flags: MapFlags,
    page: usize,
}

impl FileProvider {
    /// Opens the file at `path`, or creates it with mode 0600. Its content is not preserved.
    ///
    /// # Errors
    /// - [`Error::Native`]: the file cannot be opened for reading and writing, or cannot be mapped.
    /// - [`Error::InvalidArgument`]: it is not a regular file.
    pub fn open(path: &Path, visibility: Visibility, name: impl Into<String>) -> Result<Arc<Self>> {
        let mut options = OpenOptions::new();
        // O_NONBLOCK: opening a FIFO does not wait for a process at the other end.
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
        let backing = SuballocatedFile::new(CheckedFile::new(file.into())?, 0, suballocator, name.into());
        Ok(Arc::new(Self { backing, visibility, flags, page }))
    }

    /// Returns whether stores bypass the page cache, that is, whether the file is on persistent
    /// memory.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        self.flags == SYNCHRONOUS
    }

    fn is_frozen(&self) -> bool {
        self.visibility == Visibility::Shared && self.backing.is_inherited()
    }
}

/// Returns whether the file can be mapped with `MAP_SYNC`, which only persistent memory supports.
/// Does not change the content of the file.
fn is_fsdax(file: &File) -> Result<bool> {
    let native = |error: std::io::Error| Error::native("ftruncate", error.raw_os_error().unwrap_or(0));
    if file.metadata().map_err(native)?.len() < HUGE as u64 {
        file.set_len(HUGE as u64).map_err(native)?;
    }
    Ok(map_file(file.as_fd(), 0, HUGE, HUGE, SYNCHRONOUS, Access::ReadWrite).is_ok())
}

/// Maps a range of a file as [`map_file`] does, and converts the error.
fn map(
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    align: usize,
    flags: MapFlags,
    access: Access,
) -> Result<Mapping> {
    map_file(file, offset, size, align, flags, access).map_err(|errno| match errno {
        Errno::NOMEM => Error::OutOfMemory { size, owner: "the file system", native: errno.raw_os_error() },
        errno => Error::Native {
            call: "mmap",
            native: errno.raw_os_error(),
            hint: "this file system may not support such mappings; use a file on another one",
        },
    })
}

/// Allocates blocks of the file system for a range, so that a full file system cannot cause SIGBUS
/// on a store.
fn reserve(file: BorrowedFd<'_>, offset: u64, size: usize) -> Result<()> {
    let allocated =
        retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), offset, size as u64));
    allocated.map_err(|errno| match errno {
        Errno::NOSPC | Errno::FBIG | Errno::DQUOT => {
            Error::OutOfMemory { size, owner: "the file system", native: errno.raw_os_error() }
        }
        errno => Error::native("fallocate", errno.raw_os_error()),
    })
}

/// Returns a range to the file system, after which it reads as zero. Returns `false` if the file
/// system cannot punch holes.
fn punch(file: BorrowedFd<'_>, offset: u64, size: usize) -> bool {
    umf_os::file::punch_hole(file, offset, size as u64).is_ok()
}

// SAFETY: each region is a mapping of its own, of a range that no other live region has. Only
// `free` unmaps it.
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
            // SAFETY: `allocate` created the mapping, and by the caller's contract it is not in
            // use.
            unsafe { Mapping::of_region(&region) }.map_or(Ok(()), Mapping::unmap_or_leak)?;
            // Best effort: without hole punching, the next region of the range reuses the blocks.
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
        Some(self)
    }
}

impl Purge for FileProvider {
    unsafe fn purge_lazy(&self, _base: Address, _size: usize) -> Result<()> {
        Err(Error::NotSupported { what: "lazy purging", owner: OWNER, native: 0 })
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        let (region, place) = self.backing.suballocator.holding(base, size, self.page)?;
        let inside = base.offset_from(region.base()).unwrap_or(0);
        let is_punched = punch(self.backing.file.fd()?.as_fd(), place + inside, size);
        if is_punched && self.visibility == Visibility::Private {
            // Pages that were written are copies of the file's, which has none there any more.
            let start = base.as_ptr().ok_or(Error::ForeignAddress { address: base, owner: OWNER })?;
            // SAFETY: the range lies in a live region, and by the caller's contract its content is
            // not needed.
            return unsafe { rustix::mm::madvise(start.cast(), size, rustix::mm::Advice::LinuxDontNeed) }
                .map_err(|errno| Error::native("madvise", errno.raw_os_error()));
        }
        if is_punched {
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

/// An importer of regions of a file that another process exported. It needs no provider, and has no
/// state.
///
/// A file of a file system on a medium cannot be sealed: any process that may write to it may
/// truncate it, and then an access to a lost page raises SIGBUS here. Import only if all these
/// processes are trusted. The importer checks that the file is a regular file that contains the
/// whole range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileImport(());

impl FileImport {
    /// Returns an importer for a program that trusts all processes that can write to the files it
    /// opens.
    #[must_use]
    pub const fn trust_writers() -> Self {
        Self(())
    }
}

// SAFETY: the mapping keeps the file open, and exists until it is released. The program vouches, by
// `trust_writers`, that no process truncates the file.
unsafe impl Import for FileImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let refuse = |why| Error::Untrusted { why };
        let file = request
            .fd
            .take()
            .map(File::from)
            .ok_or(refuse("the handle needs a file descriptor, and none was received"))?;
        let about =
            file.metadata().map_err(|_| refuse("the descriptor is not a file that fstat supports"))?;
        if !about.is_file() {
            return Err(refuse("the descriptor is not a regular file"));
        }
        if is_unsealed_memory(file.as_fd()) {
            return Err(refuse(
                "the descriptor is an unsealed memfd, which any process may truncate; open it with the host provider",
            ));
        }
        let page = page_size();
        let FileRange { offset, size } = FileRange::of(&request, page, about.len())?;
        let mapping = map(file.as_fd(), offset, size, page, MapFlags::SHARED, request.access)?;
        Ok(Imported::host(mapping.leak(), size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { release_mapping(&imported) }
    }
}

/// Returns whether the file is a memfd that can still be truncated. Named files of tmpfs have
/// `F_SEAL_SEAL`.
fn is_unsealed_memory(file: BorrowedFd<'_>) -> bool {
    let sealed = SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| !seals.intersects(sealed))
}

// The file or device behind a provider.

/// Flags of a mapping that bypasses the page cache (persistent memory).
pub(crate) const SYNCHRONOUS: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);
/// The page size of persistent memory in bytes.
pub(crate) const HUGE: usize = 2 << 20;

/// A file or device, and the suballocator of its regions.
pub(crate) struct SuballocatedFile {
    pub(crate) file: CheckedFile,
    /// The offset of a region in the file is its place in the suballocator minus this.
    pub(crate) origin: u64,
    pub(crate) suballocator: Suballocator,
    pub(crate) name: String,
    /// The fork generation in which the file was opened.
    generation: u32,
}

impl SuballocatedFile {
    pub(crate) fn new(file: CheckedFile, origin: u64, suballocator: Suballocator, name: String) -> Self {
        Self { file, origin, suballocator, name, generation: fork::generation() }
    }

    /// Returns whether this process is a child of the one that opened the file.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }
}

impl Export for SuballocatedFile {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let place = self.suballocator.offset_of(region)?;
        Ok(NativeExport::from_fd(Arc::clone(self.file.fd()?), place - self.origin))
    }

    fn uses_fd_per_export(&self) -> bool {
        false
    }
}

/// Maps `size` bytes at `offset` of a file, at a multiple of `align`. All three are multiples of
/// the page size, and `align` is a power of two.
pub(crate) fn map_file(
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    align: usize,
    flags: MapFlags,
    access: Access,
) -> Result<Mapping, Errno> {
    let protection = match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    // SAFETY: the closure creates a mapping of `size` bytes, replaces no other, and passes it on.
    unsafe {
        Mapping::placed(size, align, |place| {
            let (hint, fixed) = place.hint();
            let mapped = rustix::mm::mmap(hint, size, protection, flags | fixed, file, offset)?;
            NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
        })
    }
}

/// Unmaps the memory of an importer of this crate.
///
/// # Safety
/// As `Import::release`.
pub(crate) unsafe fn release_mapping(imported: &Imported) -> Result<()> {
    let region = Region::new(imported.base, imported.size);
    // SAFETY: the caller's contract.
    unsafe { Mapping::of_region(&region) }.map_or(Ok(()), Mapping::unmap_or_leak)
}

// Settings.

umf_core::settings! {
    /// The keys of the kind `file`.
    pub struct FileSettings {
        /// Absolute path of the file, which is created if it does not exist. Its content is not
        /// preserved. Refused in ./umf.toml.
        pub path: Option<PathBuf> as Option<Trusted<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// "shared" (other processes can open the memory, and stores reach the file) or "private"
        /// (stores are visible to this process only).
        pub visibility | "mapped": Visibility = Visibility::Shared;
    }
}

/// The error for settings without a path.
pub(crate) const NO_PATH: Error = Error::InvalidArgument { what: "path", why: "must be set for this kind" };

impl ProviderFactory for FileProvider {
    const KIND: &'static str = "file";
    type Settings = FileSettings;

    fn build(name: &str, settings: FileSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        Ok(Self::open(&settings.path.ok_or(NO_PATH)?, settings.visibility, name)?)
    }

    /// A process whose settings name a file trusts the processes that can write to it.
    fn import(settings: &FileSettings) -> Option<Arc<dyn Import>> {
        settings.path.as_ref()?;
        Some(Arc::new(FileImport::trust_writers()))
    }
}
