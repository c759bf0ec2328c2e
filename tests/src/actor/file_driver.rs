//! [`FileDriver`]: a provider of an application, over one file, with native handles.
//!
//! It imitates two kinds of drivers: one makes an fd for each export, the other returns the same
//! fd.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use umf::{Address, MemoryKind, ProviderKind, Visibility};
use umf_core::{Error, Export, Layout, NativeBytes, NativeExport, Provider, Region, Result};

use crate::{Answer, Failure};

/// Size of a region.
const PART: usize = 64 << 10;
const PARTS: usize = 64;

/// Native exports of this process so far.
static EXPORTS: AtomicU64 = AtomicU64::new(0);
/// Native exports that were given back.
static UNEXPORTS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct FileDriver {
    kind: ProviderKind,
    file: Arc<OwnedFd>,
    start: usize,
    /// Whether each export has an fd of its own.
    makes_fds: bool,
    parts: Mutex<Parts>,
}

struct Parts {
    /// Parts of the file without a region.
    free: BTreeSet<usize>,
    /// Ids of the regions with a native export.
    exported: BTreeSet<u64>,
}

impl FileDriver {
    pub(crate) fn new(kind: &str, makes_fds: bool) -> std::result::Result<Arc<Self>, Failure> {
        let kind = ProviderKind::new(kind).ok_or_else(|| Failure::unknown(kind))?;
        let failed = || Failure::from(std::io::Error::last_os_error());
        let size = PART * PARTS;
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
            parts: Mutex::new(Parts { free: (0..PARTS).collect(), exported: BTreeSet::new() }),
        }))
    }

    fn part_of(&self, region: &Region) -> usize {
        (region.base().to_bits() as usize - self.start) / PART
    }
}

/// Answers with the numbers of native exports that were made, were given back, and are outstanding.
pub(crate) fn counts() -> Answer {
    let (made, back) = (EXPORTS.load(Ordering::SeqCst), UNEXPORTS.load(Ordering::SeqCst));
    Ok(format!("made={made} back={back} out={}", made - back))
}

// SAFETY: regions are disjoint parts of a writable mapping that is never unmapped.
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
        if layout.size() > PART || layout.align() > 4096 {
            return Err(full);
        }
        let part = self.parts.lock().unwrap().free.pop_first().ok_or(full)?;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.start + part * PART);
        Ok(Region::new(Address::from_ptr(start), PART))
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let mut parts = self.parts.lock().unwrap();
        assert!(
            !parts.exported.contains(&region.id().get()),
            "freed before its native export was given back"
        );
        parts.free.insert(self.part_of(&region));
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
            self.parts.lock().unwrap().exported.insert(region.id().get()),
            "one native export of a region at a time"
        );
        let file = if self.makes_fds {
            Arc::new(self.file.try_clone().map_err(|_| Error::native("dup", libc::EMFILE))?)
        } else {
            Arc::clone(&self.file)
        };
        let mut export = NativeExport::from_fd(file, (self.part_of(region) * PART) as u64);
        export.native = NativeBytes::new(format!("native {number}").as_bytes())?;
        export.allocation_id = region.id().get();
        Ok(export)
    }

    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        assert!(self.parts.lock().unwrap().exported.remove(&region.id().get()), "given back twice");
        assert_eq!(export.allocation_id, region.id().get(), "given back to another region");
        UNEXPORTS.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn uses_fd_per_export(&self) -> bool {
        self.makes_fds
    }
}
