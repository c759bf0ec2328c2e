//! [`SharedArena`], a provider whose memory other processes can open, and its importer
//! [`SharedArenaImport`].

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use umf_core::settings::ByteSize;
use umf_core::{
    Access, Address, Error, Export, FactoryError, Import, ImportRequest, Imported, Layout, MemoryKind,
    NativeExport, Provider, ProviderFactory, ProviderKind, Region, Result, Visibility,
};
use umf_sync::{Lock, fork};

use crate::arena::{PAGE, errno};
use crate::ranges::FreeRanges;

/// The kind in handles. An importer of the same kind opens them.
const KIND: ProviderKind = match ProviderKind::new("shared-arena") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// A provider of host memory in one memory file, which other processes can map.
///
/// ```
/// use own_provider::SharedArena;
/// use umf_core::{Layout, Provider};
///
/// # fn main() -> Result<(), umf_core::Error> {
/// let arena = SharedArena::new("mine", 1 << 30)?;
/// let region = arena.allocate(Layout::new(1 << 20, 4096)?)?;
/// let export = arena.export().expect("it exports").export(&region)?;
/// assert!(export.fd.is_some());
/// // SAFETY: nothing uses the region.
/// unsafe { arena.free(region)? };
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedArena {
    name: String,
    /// Each export has a clone, which keeps the descriptor open under its number.
    file: Arc<OwnedFd>,
    start: NonNull<libc::c_void>,
    size: usize,
    ranges: Lock<FreeRanges>,
    /// Generation of the process that made the arena. A forked child shares the pages with its
    /// parent, and must not allocate them too.
    generation: u32,
}

// SAFETY: the pointer is valid in all threads, and a lock protects the ranges.
unsafe impl Send for SharedArena {}
// SAFETY: as above.
unsafe impl Sync for SharedArena {}

impl SharedArena {
    /// Makes an arena of `size` bytes, rounded up to pages. `name` is used in statistics, logs and
    /// errors.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::SizeOverflow`]; [`Error::Native`] if there are no descriptors;
    /// [`Error::OutOfMemory`] if there is no free range of that size.
    pub fn new(name: &str, size: usize) -> Result<Arc<Self>> {
        let size = Layout::new(size, PAGE)?.pad_to(PAGE)?.size();
        let too_large = Error::SizeOverflow { size, align: PAGE };
        let length = libc::off_t::try_from(size).map_err(|_| too_large)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a NUL.
        let file = unsafe { libc::memfd_create(c"shared-arena".as_ptr(), flags) };
        if file < 0 {
            return Err(Error::native("memfd_create", errno()));
        }
        // SAFETY: a new descriptor, which has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // An importer accepts only a file that cannot shrink: otherwise its next access could raise
        // SIGBUS.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: both calls change this file only.
        let is_sized = unsafe {
            libc::ftruncate(file.as_raw_fd(), length) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        if !is_sized {
            return Err(Error::native("ftruncate and F_ADD_SEALS", errno()));
        }
        let start = map(&file, 0, size, libc::PROT_READ | libc::PROT_WRITE)?;
        let ranges = FreeRanges::new(start.as_ptr().expose_provenance() as u64, size as u64);
        Ok(Arc::new(Self {
            name: name.to_owned(),
            file: Arc::new(file),
            start,
            size,
            ranges: Lock::new(ranges),
            generation: fork::generation(),
        }))
    }

    /// Returns the offset of a live region in the file.
    fn offset(&self, region: &Region) -> Result<u64> {
        self.ranges.lock().check(region)?;
        Ok(region.base().to_bits() - self.start.as_ptr().expose_provenance() as u64)
    }

    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }
}

/// Maps a range of a file at an address of the kernel's choice.
fn map(file: &OwnedFd, offset: u64, size: usize, access: i32) -> Result<NonNull<libc::c_void>> {
    let refused = || Error::OutOfMemory { size, owner: "mmap", native: errno() };
    let offset = libc::off_t::try_from(offset).map_err(|_| refused())?;
    // SAFETY: a new mapping at an address of the kernel's choice changes no existing memory.
    let mapped = unsafe { libc::mmap(null_mut(), size, access, libc::MAP_SHARED, file.as_raw_fd(), offset) };
    NonNull::new(mapped).filter(|_| mapped != libc::MAP_FAILED).ok_or_else(refused)
}

// SAFETY: regions are disjoint parts of a readable and writable mapping of a file that cannot
// shrink. The mapping exists until the arena is dropped without live regions.
unsafe impl Provider for SharedArena {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        PAGE
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        if self.is_inherited() {
            return Err(Error::Frozen { what: "a shared arena" });
        }
        let layout = layout.pad_to(PAGE)?.align_to(PAGE)?;
        self.ranges.lock().allocate(layout.size(), layout.align())
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let offset = self.offset(&region)?;
        if self.is_inherited() {
            // The region is the parent's.
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, size) = (offset as libc::off_t, region.size() as libc::off_t);
        // Before the range is freed, because another thread may allocate it afterwards. The region
        // reads as zero afterwards, in other processes too.
        // SAFETY: the range lies in the file of this arena, and is not in use.
        if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, size) } != 0 {
            return Err(Error::native("fallocate(FALLOC_FL_PUNCH_HOLE)", errno()));
        }
        self.ranges.lock().free(&region)
    }

    fn zeroed(&self) -> bool {
        true
    }

    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        Some(&SharedArenaImport)
    }
}

impl Export for SharedArena {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        Ok(NativeExport::from_fd(Arc::clone(&self.file), self.offset(region)?))
    }

    fn uses_fd_per_export(&self) -> bool {
        false
    }
}

impl Drop for SharedArena {
    fn drop(&mut self) {
        // Live regions must stay valid, so the mapping is leaked if there are any.
        if self.ranges.lock().is_empty() {
            // SAFETY: `new` created the mapping, and no part of it is in use.
            unsafe { libc::munmap(self.start.as_ptr(), self.size) };
        }
    }
}

/// The importer of [`SharedArena`]'s memory. It has no state, and needs no arena.
///
/// A program that only opens such memory registers it:
/// `umf::registry::register_import(Arc::new(SharedArenaImport))`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedArenaImport;

impl SharedArenaImport {
    /// Checks that every page of the range can be accessed for as long as it is mapped. The request
    /// came from another process.
    fn check(file: &OwnedFd, request: &ImportRequest) -> Result<()> {
        let untrusted = |why| Err(Error::Untrusted { why });
        // SAFETY: reads the seals of an open descriptor. The kernel answers without calling the file
        // system, which another process may control.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return untrusted("the file is not a memory file that is sealed against shrinking");
        }
        if seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0
            && request.access == Access::ReadWrite
        {
            return untrusted("the file is sealed against writing; import it read-only");
        }
        // SAFETY: all-zero bytes are a valid value of both.
        let (mut system, mut status): (libc::statfs, libc::stat) = unsafe { std::mem::zeroed() };
        // SAFETY: writes to the two locals.
        let is_known = unsafe {
            libc::fstatfs(file.as_raw_fd(), &raw mut system) == 0
                && libc::fstat(file.as_raw_fd(), &raw mut status) == 0
        };
        // On hugetlbfs an access can fail for lack of pages.
        if !is_known || system.f_type != libc::TMPFS_MAGIC {
            return untrusted("the file is not of tmpfs");
        }
        let end = request.offset.checked_add(request.size as u64);
        let is_inside = end.is_some_and(|end| end <= status.st_size.cast_unsigned());
        if request.size == 0 || !request.offset.is_multiple_of(PAGE as u64) || !is_inside {
            return untrusted("the range is not one of whole pages inside of the file");
        }
        Ok(())
    }
}

// SAFETY: the mapped range lies in a memory file that cannot shrink. So every page can be accessed
// until it is unmapped, even after the exporter has exited.
unsafe impl Import for SharedArenaImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let no_file = Error::Untrusted { why: "the handle needs a file descriptor, and none was received" };
        let file = request.fd.as_ref().ok_or(no_file)?;
        Self::check(file, &request)?;
        let write = if request.access == Access::ReadWrite { libc::PROT_WRITE } else { 0 };
        let start = map(file, request.offset, request.size, libc::PROT_READ | write)?;
        let base = Address::from_ptr(start.as_ptr().cast::<u8>());
        Ok(Imported::host(base, request.size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let start = imported.base.as_ptr().unwrap_or(null_mut());
        // SAFETY: `import` made the mapping and, by the caller's contract, it is not in use.
        if unsafe { libc::munmap(start.cast(), imported.size) } == 0 {
            Ok(())
        } else {
            Err(Error::native("munmap", errno()))
        }
    }
}

umf_core::settings! {
    /// The settings of the kind `shared-arena`.
    pub struct SharedArenaSettings {
        /// The size of the memory file.
        pub size: usize as ByteSize = 1 << 30, "a number of bytes above 0" if |bytes| *bytes > 0;
    }
}

impl ProviderFactory for SharedArena {
    const KIND: &'static str = "shared-arena";
    type Settings = SharedArenaSettings;

    fn build(
        name: &str,
        settings: SharedArenaSettings,
    ) -> std::result::Result<Arc<dyn Provider>, FactoryError> {
        Ok(Self::new(name, settings.size)?)
    }

    /// A program that registers the kind opens such memory, too.
    fn import(_: &SharedArenaSettings) -> Option<Arc<dyn Import>> {
        Some(Arc::new(SharedArenaImport))
    }
}
