//! [`SharedMemory`]: regions that other processes can map, as ranges of memory files.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use umf_core::{Address, Error, Layout, NativeExport, Region, Result};
use umf_os::{AvailableMemory, CheckedFile, Mapping, map_error};
use umf_suballoc::RegionTable;
use umf_sync::{Lock, failpoint, fork};

use crate::arena::{self, Arena};
use crate::named::{self, NamedObject};
use crate::pages::{PagePolicy, huge_pages_exhausted};
use crate::sys;
use crate::sys::MemAdvice;

/// The distribution of regions over files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileLayout {
    /// Many regions per file of this many bytes. A larger region has a file of its own size.
    Arenas(u64),
    /// All regions in one file, which has a name.
    Named,
    /// One file per region.
    Isolated {
        /// Whether importers can only read.
        read_only: bool,
    },
}

impl FileLayout {
    /// Returns the resource that has no free pages, and what to do.
    const fn owner(self, errno: Errno) -> &'static str {
        match (self, errno) {
            (Self::Named, Errno::NOSPC | Errno::DQUOT) => {
                "/dev/shm, which is full: mount it larger, or remove what killed processes left there (umf gc)"
            }
            (_, Errno::NOSPC) => {
                "this machine, whose commit limit is reached (vm.overcommit_memory, vm.overcommit_ratio)"
            }
            _ => "host",
        }
    }
}

/// File offsets have the alignment of their regions up to this, so that importers can use huge
/// pages.
pub(crate) const FILE_ALIGN: u64 = 2 << 20;

/// The file range of a region.
enum RegionBacking {
    /// A range of one of the provider's arenas.
    Arena {
        /// Index of the arena.
        arena: u32,
        /// Offset in its file, in bytes.
        offset: u64,
    },
    /// A file of this region only.
    Isolated(Arc<CheckedFile>),
}

struct SharedState {
    regions: RegionTable<RegionBacking>,
    arenas: Vec<Arena>,
}

/// The regions and files of a shared provider.
pub(crate) struct SharedMemory {
    form: FileLayout,
    /// Lowest number of the fds of files.
    lowest_fd: i32,
    /// The fork generation of the creation. In a child the provider is frozen, and its locks are
    /// never taken.
    generation: u32,
    state: ManuallyDrop<Lock<SharedState>>,
    /// Held while an arena is added.
    growth: Lock<()>,
    name: ManuallyDrop<Option<NamedObject>>,
}

impl core::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}, {:?}", self.form, *self.name)
    }
}

impl SharedMemory {
    /// Creates the first file, unless each region has its own.
    pub(crate) fn new(
        form: FileLayout,
        name: Option<&str>,
        size: u64,
        pages: &PagePolicy,
        lowest_fd: i32,
    ) -> Result<Self> {
        let mut arenas = Vec::new();
        let mut shm_object = None;
        let size = arena::limited_size(size, pages.granularity());
        if size == 0 {
            let limit = sys::file_size_limit();
            let what = "file size (RLIMIT_FSIZE)";
            return Err(Error::LimitReached { what, limit, size: pages.granularity() });
        }
        match name {
            Some(name) => {
                let (file, name) = named::create(name, size, lowest_fd)?;
                shm_object = Some(name);
                arenas.push(Arena::over(file, size, None)?);
            }
            None if matches!(form, FileLayout::Arenas(_)) => {
                // Arenas of the second page size are added when the first has no free pages.
                let mut made = None;
                for choice in pages.page_size_choices() {
                    made = Some(Arena::sealed(size, choice, lowest_fd));
                    if let Some(Ok(_)) = made {
                        break;
                    }
                }
                arenas.extend(made.transpose()?);
            }
            None => {}
        }
        Ok(Self {
            form,
            lowest_fd,
            generation: fork::generation(),
            state: ManuallyDrop::new(Lock::new(SharedState {
                regions: RegionTable::new("this host provider"),
                arenas,
            })),
            growth: Lock::new(()),
            name: ManuallyDrop::new(shm_object),
        })
    }

    /// Returns whether this process is a child of the one that created the provider.
    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Frozen { what: "shared memory" }) } else { Ok(()) }
    }

    pub(crate) fn allocate(&self, pages: &PagePolicy, layout: Layout) -> Result<Region> {
        self.check_not_inherited()?;
        let (size, align) = pages.region_layout(layout)?;
        // Checked first, because the records of a region take memory in proportion to its size.
        if !pages.populates() {
            AvailableMemory::check_machine(size)?;
        }
        let mut failed = Error::OutOfMemory { size, owner: "host", native: 0 };
        for choice in pages.page_size_choices() {
            let allocated = match self.form {
                FileLayout::Arenas(arena) => self.suballocate(pages, size, align, choice, Some(arena)),
                FileLayout::Named => self.suballocate(pages, size, align, choice, None),
                FileLayout::Isolated { read_only } => self.isolate(pages, size, align, choice, read_only),
            };
            match allocated {
                Ok(region) => return Ok(region),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Allocates a region in an arena.
    fn suballocate(
        &self,
        pages: &PagePolicy,
        size: usize,
        align: usize,
        huge_page: Option<usize>,
        arena_size: Option<u64>,
    ) -> Result<Region> {
        let (arena, file, offset) = self.take_range(pages, size, align, huge_page, arena_size)?;
        let made = map(self.form, pages, &file, offset, size, align, huge_page).and_then(|mapping| {
            let region = Region::new(mapping.address(), size);
            let backing = RegionBacking::Arena { arena, offset };
            self.state.lock().regions.insert(region, backing)?;
            mapping.leak();
            Ok(region)
        });
        if made.is_err() {
            // Releases pages that were populated before the failure. If that fails, they still read
            // as zero.
            let _ = punch(&file, offset, size, None);
            self.give_range(arena, offset, size);
        }
        made
    }

    /// Takes a range of an arena, and adds an arena if none has room. Returns the index of the
    /// arena, its file, and the offset.
    fn take_range(
        &self,
        pages: &PagePolicy,
        size: usize,
        align: usize,
        huge_page: Option<usize>,
        arena_size: Option<u64>,
    ) -> Result<(u32, Arc<CheckedFile>, u64)> {
        let file_align = (align as u64).min(FILE_ALIGN).max(pages.granularity() as u64);
        let take = || -> Result<_> {
            let mut state = self.state.lock();
            for (number, arena) in (0..).zip(&mut state.arenas) {
                if arena.huge_page == huge_page
                    && let Some(offset) = arena.ranges.take(size as u64, file_align)?
                {
                    failpoint!("host.range_taken");
                    return Ok(Some((number, Arc::clone(&arena.file), offset)));
                }
            }
            Ok(None)
        };
        if let Some(taken) = take()? {
            return Ok(taken);
        }
        let full = Error::OutOfMemory { size, owner: "the shared memory file, which is full", native: 0 };
        let arena_size = arena_size.ok_or(full)?;
        let growing = self.growth.lock();
        // Another thread may have added an arena meanwhile.
        if let Some(taken) = take()? {
            return Ok(taken);
        }
        if size as u64 > arena_size {
            // Addresses are the scarcest resource at such a size. A file would stay after the
            // failure.
            Mapping::probe(size).map_err(|errno| map_error(size, "host", errno))?;
        }
        let arena_size = arena::limited_size(arena_size.max(size as u64), pages.granularity());
        if arena_size < size as u64 {
            let limit = sys::file_size_limit();
            return Err(Error::LimitReached { what: "file size (RLIMIT_FSIZE)", limit, size });
        }
        let arena = Arena::sealed(arena_size, huge_page, self.lowest_fd)?;
        self.state.lock().arenas.push(arena);
        drop(growing);
        take()?.ok_or(full)
    }

    fn give_range(&self, arena: u32, offset: u64, size: usize) {
        if let Some(arena) = self.state.lock().arenas.get_mut(arena as usize) {
            arena.ranges.give(offset, size as u64);
            failpoint!("host.range_given");
        }
    }

    /// Allocates a region with a file of its own.
    fn isolate(
        &self,
        pages: &PagePolicy,
        size: usize,
        align: usize,
        huge_page: Option<usize>,
        read_only: bool,
    ) -> Result<Region> {
        self.state.lock().regions.ensure(1)?;
        let file = arena::create(size as u64, huge_page, self.lowest_fd)?;
        let file = Arc::new(CheckedFile::new(file)?);
        let mapping = map(self.form, pages, &file, 0, size, align, huge_page)?;
        // Sealed after mapping, because existing mappings stay writable.
        arena::seal(file.fd()?, read_only)?;
        let region = Region::new(mapping.address(), size);
        let backing = RegionBacking::Isolated(file);
        self.state.lock().regions.insert(region, backing)?;
        mapping.leak();
        Ok(region)
    }

    /// # Safety
    /// As `Provider::free`.
    pub(crate) unsafe fn free(&self, region: &Region) -> Result<bool> {
        if self.is_inherited() {
            // The region belongs to the parent, which may still use it.
            return Ok(false);
        }
        // Removed before it is unmapped: afterwards another thread may get the same address.
        let (backing, file, offset) = {
            let mut state = self.state.lock();
            let backing = state.regions.remove(region)?;
            let (file, offset) = state.locate(&backing, region)?;
            (backing, file, offset)
        };
        // SAFETY: the region was live until now, and by the caller's contract it is not in use.
        let mapping = unsafe { Mapping::of_region(region) };
        let mapped = mapping.as_ref().map(Mapping::base);
        // A file of one region is not punched: its pages are freed with the last mapping, so
        // importers keep them.
        let punched = match backing {
            RegionBacking::Arena { .. } => punch(&file, offset, region.size(), mapped),
            RegionBacking::Isolated(_) => Ok(()),
        };
        let freed = match (punched, mapping) {
            (Ok(()), Some(mapping)) => mapping.unmap_or_leak(),
            (punched, mapping) => {
                mapping.map(Mapping::leak);
                punched
            }
        };
        match (freed, backing) {
            (Err(error), backing) => {
                // The tree node of the region is most likely still free, so this does not allocate.
                self.state.lock().regions.insert(*region, backing)?;
                return Err(error);
            }
            (Ok(()), RegionBacking::Arena { arena, offset }) => self.give_range(arena, offset, region.size()),
            (Ok(()), RegionBacking::Isolated(_)) => {}
        }
        Ok(true)
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.check_not_inherited()?;
        self.state.lock().regions.get(region).map(drop)
    }

    pub(crate) fn export(&self, region: &Region) -> Result<NativeExport> {
        self.check_not_inherited()?;
        let state = self.state.lock();
        let backing = state.regions.get(region)?;
        let (file, offset) = state.locate(backing, region)?;
        let mut export = NativeExport::from_fd(Arc::clone(file.fd()?), offset);
        export.isolated = matches!(backing, RegionBacking::Isolated(_));
        export.read_only = self.form == FileLayout::Isolated { read_only: true };
        Ok(export)
    }

    /// Checks that the range is whole pages of a live region.
    pub(crate) fn check_range(&self, pages: &PagePolicy, base: Address, size: usize) -> Result<()> {
        self.check_not_inherited()?;
        self.state.lock().regions.holding(base, size, pages.granularity()).map(drop)
    }

    /// Releases the pages of a range, in every process that maps them.
    pub(crate) fn purge(&self, pages: &PagePolicy, base: Address, size: usize) -> Result<()> {
        self.check_not_inherited()?;
        let (file, offset) = {
            let state = self.state.lock();
            let (region, backing) = state.regions.holding(base, size, pages.granularity())?;
            let (file, offset) = state.locate(backing, &region)?;
            (file, offset + base.offset_from(region.base()).unwrap_or(0))
        };
        punch(&file, offset, size, base.as_ptr().and_then(NonNull::new))
    }
}

impl SharedState {
    /// Returns the file of a region, and the offset of the region in it.
    fn locate(&self, backing: &RegionBacking, region: &Region) -> Result<(Arc<CheckedFile>, u64)> {
        match backing {
            RegionBacking::Arena { arena, offset } => {
                let gone = Error::NotAllocated { address: region.base() };
                let arena = self.arenas.get(*arena as usize).ok_or(gone)?;
                Ok((Arc::clone(&arena.file), *offset))
            }
            RegionBacking::Isolated(file) => Ok((Arc::clone(file), 0)),
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The name belongs to the parent, and another thread may have been changing the tables
            // at the fork.
            return;
        }
        // SAFETY: the fields are dropped once, here, and not used afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.state);
            ManuallyDrop::drop(&mut self.name);
        }
    }
}

/// Maps a new range of a file, and populates it if regions are populated when allocated.
fn map(
    form: FileLayout,
    pages: &PagePolicy,
    file: &CheckedFile,
    offset: u64,
    size: usize,
    align: usize,
    huge_page: Option<usize>,
) -> Result<Mapping> {
    let file = file.fd()?;
    let mapping = Mapping::of_file(file.as_fd(), offset, size, align, true)
        .map_err(|errno| map_error(size, "host", errno))?;
    // The placement applies only to pages that are populated later.
    pages.prepare(&mapping)?;
    // Reserved huge pages are always populated now: a later access raises SIGBUS if no page is
    // free.
    if pages.populates() || huge_page.is_some() {
        pages.check_available(size, huge_page)?;
        sys::commit(file.as_fd(), offset, size).map_err(|errno| match errno {
            Errno::NOSPC | Errno::NOMEM if huge_page.is_some() => {
                huge_pages_exhausted(size, errno.raw_os_error())
            }
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::DQUOT => {
                Error::OutOfMemory { size, owner: form.owner(errno), native: errno.raw_os_error() }
            }
            _ => Error::native("fallocate", errno.raw_os_error()),
        })?;
    }
    pages.collapse(&mapping);
    Ok(mapping)
}

/// Releases the pages of a range of a file, in every process that maps them. `mapped` is the
/// address of the range in this process; with it, the file's fd is not needed.
fn punch(file: &CheckedFile, offset: u64, size: usize, mapped: Option<NonNull<u8>>) -> Result<()> {
    // SAFETY: the range belongs to a region of this provider, whose owner frees or purges it.
    let removed = mapped.is_some_and(|base| unsafe { sys::advise(base, size, MemAdvice::Remove) }.is_ok());
    let punched = if removed {
        Ok(())
    } else {
        // The range is not mapped, locked (`mlock(2)`), or not writable (`mprotect(2)`).
        file.fd().and_then(|fd| {
            umf_os::file::punch_hole(fd.as_fd(), offset, size as u64)
                .map_err(|errno| Error::native("fallocate(FALLOC_FL_PUNCH_HOLE)", errno.raw_os_error()))
        })
    };
    failpoint!("host.punched");
    punched
}
