//! Memory that other processes can map: ranges of memory files.

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

/// How regions share files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileLayout {
    /// Many in each file of this many bytes (or of one region that is larger).
    Arenas(u64),
    /// All in one file.
    Named,
    /// A file for each.
    Isolated {
        /// Importers can only read.
        read_only: bool,
    },
}

impl FileLayout {
    /// Who has no pages left, and what to do about it.
    const fn owner(self, errno: Errno) -> &'static str {
        match (self, errno) {
            (Self::Named, Errno::NOSPC | Errno::DQUOT) => {
                "/dev/shm, which is full: mount it larger, or take away what is left there (umf gc)"
            }
            (_, Errno::NOSPC) => {
                "this machine, which lets nobody commit more (vm.overcommit_memory, vm.overcommit_ratio)"
            }
            _ => "host",
        }
    }
}

/// File offsets have the alignment of their regions up to this, so that an importer can have huge pages, too.
pub(crate) const FILE_ALIGN: u64 = 2 << 20;

/// What is behind a region.
enum RegionBacking {
    /// A range of one of the provider's arenas.
    Arena {
        /// The arena's number.
        arena: u32,
        /// Where in its file, in bytes.
        offset: u64,
    },
    /// A file that holds nothing else.
    Isolated(Arc<CheckedFile>),
}

struct SharedState {
    regions: RegionTable<RegionBacking>,
    arenas: Vec<Arena>,
}

/// Where shared memory comes from.
pub(crate) struct SharedMemory {
    form: FileLayout,
    /// Descriptors have numbers from here on.
    lowest_fd: i32,
    /// The fork generation in which it was made: in a child it is frozen, and none of its locks are taken.
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
    /// Opens the first file, unless each region gets its own.
    pub(crate) fn new(
        form: FileLayout,
        name: Option<&str>,
        size: u64,
        pages: &PagePolicy,
        lowest_fd: i32,
    ) -> Result<Self> {
        let mut arenas = Vec::new();
        let mut made_name = None;
        let size = arena::limited_size(size, pages.granularity());
        if size == 0 {
            let limit = sys::file_size_limit();
            let what = "file size (RLIMIT_FSIZE)";
            return Err(Error::LimitReached { what, limit, size: pages.granularity() });
        }
        match name {
            Some(name) => {
                let (file, name) = named::create(name, size, lowest_fd)?;
                made_name = Some(name);
                arenas.push(Arena::over(file, size, None)?);
            }
            None if matches!(form, FileLayout::Arenas(_)) => {
                // Of the second choice, too, an arena is made: when the first has no pages left.
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
            name: ManuallyDrop::new(made_name),
        })
    }

    /// Whether this process is a child of the one that made the provider.
    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Frozen { what: "shared memory" }) } else { Ok(()) }
    }

    pub(crate) fn allocate(&self, pages: &PagePolicy, layout: Layout) -> Result<Region> {
        self.check_not_inherited()?;
        let (size, align) = pages.region_layout(layout)?;
        // Before there are records of it, which take memory by its size.
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

    /// A region in an arena.
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
            // Pages that were made before the failure. If they stay, they are zero still.
            let _ = punch(&file, offset, size, None);
            self.give_range(arena, offset, size);
        }
        made
    }

    /// A range of an arena: its number, its file, the offset.
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
        // Another thread may have added one while this one waited.
        if let Some(taken) = take()? {
            return Ok(taken);
        }
        if size as u64 > arena_size {
            // A file is cheap, but stays; addresses are what such a size lacks most often.
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

    /// A region with a file of its own.
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
        // After mapping: a mapping that exists stays writable.
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
            // The region is the parent's. Punching it would take it from under the parent.
            return Ok(false);
        }
        // Forgotten first: once unmapped, another thread may get the same address.
        let (backing, file, offset) = {
            let mut state = self.state.lock();
            let backing = state.regions.remove(region)?;
            let (file, offset) = state.locate(&backing, region)?;
            (backing, file, offset)
        };
        // SAFETY: the region was live until now, and the caller says that nobody uses it.
        let mapping = unsafe { Mapping::of_region(region) };
        let mapped = mapping.as_ref().map(Mapping::base);
        // The pages of a whole file go with its last mapping, so that importers keep what they mapped.
        let punched = match backing {
            RegionBacking::Arena { .. } => punch(&file, offset, region.size(), mapped),
            RegionBacking::Isolated(_) => Ok(()),
        };
        let gone = match (punched, mapping) {
            (Ok(()), Some(mapping)) => mapping.unmap_or_leak(),
            (punched, mapping) => {
                mapping.map(Mapping::leak);
                punched
            }
        };
        match (gone, backing) {
            (Err(error), backing) => {
                // The node that the region had is most likely still free.
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

    /// Gives the pages of a range back, in every process that maps them.
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
    /// The file of a region, and where the region begins in it.
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
            // The name is the parent's, and the tables may have been in the middle of a change at the fork.
            return;
        }
        // SAFETY: dropped once, here, and not used after.
        unsafe {
            ManuallyDrop::drop(&mut self.state);
            ManuallyDrop::drop(&mut self.name);
        }
    }
}

/// Maps a fresh range of a file and makes its pages, if they are to be made now.
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
    // Where the pages shall lie has to be said before there are any.
    pages.prepare(&mapping)?;
    // Huge pages are always made now: a touch that finds none left is a signal.
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

/// Gives the pages of a range of a file back, in every process that maps them. `mapped` is where
/// this process maps the range: with it, this works without the file's descriptor.
fn punch(file: &CheckedFile, offset: u64, size: usize, mapped: Option<NonNull<u8>>) -> Result<()> {
    // SAFETY: the range is one of a region of this provider, whose owner frees or purges it.
    let removed = mapped.is_some_and(|base| unsafe { sys::advise(base, size, MemAdvice::Remove) }.is_ok());
    let punched = if removed {
        Ok(())
    } else {
        // Not mapped, or locked (`mlock(2)`), or not writable now (`mprotect(2)`).
        file.fd().and_then(|fd| {
            umf_os::file::punch_hole(fd.as_fd(), offset, size as u64)
                .map_err(|errno| Error::native("fallocate(FALLOC_FL_PUNCH_HOLE)", errno.raw_os_error()))
        })
    };
    failpoint!("host.punched");
    punched
}
