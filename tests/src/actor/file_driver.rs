//! [`FileDriver`]: a provider over one file, as an application may write it, with native handles.
//!
//! It imitates two kinds of drivers: the first creates an fd for each export, and the second
//! returns the same fd for all exports.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use umf::{Address, MemoryKind, ProviderKind, Visibility};
use umf_core::{Error, Export, Layout, NativeBytes, NativeExport, Provider, Region, Result};

use crate::{Answer, Failure};

/// Size of a region.
const REGION: usize = 64 << 10;
/// Number of regions in the file.
const REGIONS: usize = 64;

/// Number of native exports of this process so far.
static EXPORTS: AtomicU64 = AtomicU64::new(0);
/// Number of native exports that were released.
static UNEXPORTS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct FileDriver {
    kind: ProviderKind,
    file: Arc<OwnedFd>,
    start: usize,
    /// Whether each export has its own fd.
    makes_fds: bool,
    regions: Mutex<Regions>,
}

/// State of the regions of the file.
struct Regions {
    /// Indices of free regions.
    free: BTreeSet<usize>,
    /// Ids of the regions with a native export.
    exported: BTreeSet<u64>,
}

impl FileDriver {
    pub(crate) fn new(kind: &str, makes_fds: bool) -> std::result::Result<Arc<Self>, Failure> {
        let kind = ProviderKind::new(kind).ok_or_else(|| Failure::unknown(kind))?;
        let failed = || Failure::from(std::io::Error::last_os_error());
        let size = REGION * REGIONS;
        // SAFETY: a C string.
        let file =
            unsafe { libc::memfd_create(c"driver".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if file < 0 {
            return Err(failed());
        }
        // SAFETY: the fd is new, and owned here alone.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: an fd of this process, and numbers.
        let sized = unsafe {
            libc::ftruncate(file.as_raw_fd(), size as i64) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), size, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if !sized || start == libc::MAP_FAILED {
            return Err(failed());
        }
        Ok(Arc::new(Self {
            kind,
            file: Arc::new(file),
            start: start.expose_provenance(),
            makes_fds,
            regions: Mutex::new(Regions { free: (0..REGIONS).collect(), exported: BTreeSet::new() }),
        }))
    }

    fn index_of(&self, region: &Region) -> usize {
        (region.base().to_bits() as usize - self.start) / REGION
    }
}

/// Answers with the numbers of native exports that were made, were released, and are outstanding.
pub(crate) fn counts() -> Answer {
    let (made, released) = (EXPORTS.load(Ordering::SeqCst), UNEXPORTS.load(Ordering::SeqCst));
    Ok(format!("made={made} released={released} outstanding={}", made - released))
}

// SAFETY: regions are disjoint ranges of a writable mapping that is never unmapped.
unsafe impl Provider for FileDriver {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn name(&self) -> &str {
        "driver"
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        4096
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        let full = Error::OutOfMemory { size: layout.size(), owner: "driver", native: 0 };
        if layout.size() > REGION || layout.align() > 4096 {
            return Err(full);
        }
        let index = self.regions.lock().unwrap().free.pop_first().ok_or(full)?;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.start + index * REGION);
        Ok(Region::new(Address::from_ptr(start), REGION))
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let mut regions = self.regions.lock().unwrap();
        assert!(
            !regions.exported.contains(&region.id().get()),
            "the region is freed before its native export is released"
        );
        regions.free.insert(self.index_of(&region));
        Ok(())
    }

    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }
}

impl Export for FileDriver {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let number = EXPORTS.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(
            self.regions.lock().unwrap().exported.insert(region.id().get()),
            "the region has a native export already"
        );
        let file = if self.makes_fds {
            Arc::new(self.file.try_clone().map_err(|_| Error::native("dup", libc::EMFILE))?)
        } else {
            Arc::clone(&self.file)
        };
        let mut export = NativeExport::from_fd(file, (self.index_of(region) * REGION) as u64);
        export.native = NativeBytes::new(format!("native {number}").as_bytes())?;
        export.allocation_id = region.id().get();
        Ok(export)
    }

    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        let is_exported = self.regions.lock().unwrap().exported.remove(&region.id().get());
        assert!(is_exported, "the native export is released twice");
        assert_eq!(export.allocation_id, region.id().get(), "the native export is of another region");
        UNEXPORTS.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn uses_fd_per_export(&self) -> bool {
        self.makes_fds
    }
}
