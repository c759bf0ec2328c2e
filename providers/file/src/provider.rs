//! [`FileProvider`].

use core::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, NativeExport, Provider, ProviderKind, Purge, Region,
    Result, Visibility,
};
use umf_os::CheckedFile;
use umf_suballoc::Carver;
use umf_sync::fork;

use crate::FileImport;
use crate::sys::{self, Kind};

pub(crate) const KIND: ProviderKind = match ProviderKind::new("file") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// Who makes a provider of a file trusts whoever else can write to it.
static IMPORT: FileImport = FileImport::trusting();

const OWNER: &str = "this file provider";
/// The pages of persistent memory.
const HUGE: usize = 2 << 20;
/// Where offsets end: no file gets that long before its medium is full.
const END: u64 = 1 << 50;

/// How regions are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// For this process alone: what is stored never reaches the file.
    Private,
    /// Other processes can open regions; what is stored is stored in the file.
    Shared,
}

/// Regions of a file. Thread-safe.
///
/// In a forked child, a private one works on; a shared one is frozen there: allocating is [`Error::Frozen`], and freeing does
/// nothing, since the memory is still the parent's. It uses the global allocator for its records, so that a pool over it is not
/// to be that. Dropping it leaves live regions mapped, and the file where it is.
///
/// The program must not close the file's descriptor. If it does, live regions stay usable and can
/// be freed, without giving their blocks back to the file system. Allocating, exporting and purging
/// are [`Error::Native`] then. A file that the program opens under the number is neither changed nor
/// closed nor exported.
pub struct FileProvider {
    file: CheckedFile,
    carver: Carver,
    name: String,
    mapped: Mapped,
    kind: Kind,
    page: usize,
    generation: u32,
}

impl FileProvider {
    /// A provider of the file at `path`, which is made if it is not there (mode 0600). Its content is not kept.
    ///
    /// # Errors
    /// [`Error::Native`] if it cannot be opened for reading and writing, or mapped; [`Error::InvalidArgument`] if it is no
    /// regular file; [`Error::OutOfMemory`] if its medium is full.
    pub fn open(path: &Path, mapped: Mapped, name: impl Into<String>) -> Result<Arc<Self>> {
        let mut options = OpenOptions::new();
        // Without waiting for somebody at the other end of a pipe.
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
        let kind = match mapped {
            Mapped::Private => Kind::Private,
            Mapped::Shared if is_fsdax(&file)? => Kind::Synchronous,
            Mapped::Shared => Kind::Shared,
        };
        let page = if kind == Kind::Synchronous { HUGE } else { sys::page_size() };
        Ok(Arc::new(Self {
            file: CheckedFile::new(file.into())?,
            carver: Carver::new(0, END, OWNER)?,
            name: name.into(),
            mapped,
            kind,
            page,
            generation: fork::generation(),
        }))
    }

    /// Whether stores reach the medium past the page cache: persistent memory.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        self.kind == Kind::Synchronous
    }

    fn is_frozen(&self) -> bool {
        self.mapped == Mapped::Shared && self.generation != fork::generation()
    }
}

/// Whether the file can be mapped past the page cache, which is so on persistent memory alone. Nothing that another process
/// has in the file is touched.
fn is_fsdax(file: &File) -> Result<bool> {
    let native = |error: std::io::Error| Error::native("ftruncate", error.raw_os_error().unwrap_or(0));
    if file.metadata().map_err(native)?.len() < HUGE as u64 {
        file.set_len(HUGE as u64).map_err(native)?;
    }
    match sys::map(file.as_fd(), 0, HUGE, HUGE, Kind::Synchronous, true) {
        // SAFETY: mapped just now, and not used.
        Ok(start) => unsafe { sys::unmap(start.as_ptr(), HUGE) }.map(|()| true),
        Err(_) => Ok(false),
    }
}

// SAFETY: regions are mappings of their own, of ranges that no other live region has, and are unmapped by `free` only.
unsafe impl Provider for FileProvider {
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
        match self.mapped {
            Mapped::Private => Visibility::Private,
            Mapped::Shared => Visibility::Shared,
        }
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
        let file = self.file.fd()?.as_fd();
        self.carver.allocate(size, self.page as u64, |offset| {
            sys::reserve(file, offset, size)?;
            let mapped = sys::map(file, offset, size, align, self.kind, true);
            if mapped.is_err() {
                sys::punch(file, offset, size);
            }
            Ok(Address::from_ptr(mapped?.as_ptr()))
        })
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        self.carver.free(&region, |offset| {
            if let Some(start) = region.base().as_ptr() {
                // SAFETY: mapped by `allocate`, and nobody uses it, says the caller.
                unsafe { sys::unmap(start, region.size())? };
            }
            // Where holes cannot be made, the blocks are kept for what comes next.
            if let Ok(file) = self.file.fd() {
                sys::punch(file.as_fd(), offset, region.size());
            }
            Ok(())
        })
    }

    fn export(&self) -> Option<&dyn Export> {
        (self.mapped == Mapped::Shared).then_some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        Some(&IMPORT)
    }

    fn purge(&self) -> Option<&dyn Purge> {
        (self.mapped == Mapped::Shared).then_some(self)
    }
}

impl Export for FileProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let offset = self.carver.place_of(region)?;
        Ok(NativeExport::from_fd(Arc::clone(self.file.fd()?), offset))
    }

    fn uses_fd_per_export(&self) -> bool {
        false
    }
}

impl Purge for FileProvider {
    unsafe fn purge_lazy(&self, _base: Address, _size: usize) -> Result<()> {
        Err(Error::NotSupported { what: "purging lazily", owner: OWNER, native: 0 })
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        if size == 0 || !base.is_aligned_to(self.page) || !size.is_multiple_of(self.page) {
            return Err(Error::InvalidArgument { what: "range", why: "must be one or more whole pages" });
        }
        let (region, place) = self.carver.holding(base, size)?;
        let inside = base.offset_from(region.base()).unwrap_or(0);
        if sys::punch(self.file.fd()?.as_fd(), place + inside, size) {
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
        write!(f, "file provider {:?}: {:?}", self.name, self.carver)
    }
}
