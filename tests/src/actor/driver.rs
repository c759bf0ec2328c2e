//! Memory that the application brought itself, with a file behind it, and a driver's ways with native handles: one
//! driver makes an fd for each export, another gives out the same one again.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use umf::{Address, MemoryKind, ProviderKind, Visibility};
use umf_core::{Error, Export, Layout, NativeBytes, NativeExport, Provider, Region, Result};

use crate::{Answer, Failure};

/// Each region has this many bytes.
const PART: usize = 64 << 10;
const PARTS: usize = 64;

/// Native exports of all drivers of this process: made, given back.
static MADE: AtomicU64 = AtomicU64::new(0);
static BACK: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Driver {
    kind: ProviderKind,
    file: Arc<OwnedFd>,
    start: usize,
    /// Whether each export has an fd of its own.
    makes_fds: bool,
    /// Parts that no region has, and the regions whose native export is out.
    books: Mutex<(BTreeSet<usize>, BTreeSet<u64>)>,
}

impl Driver {
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
        // SAFETY: a new fd that nobody else owns.
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
            books: Mutex::new(((0..PARTS).collect(), BTreeSet::new())),
        }))
    }

    fn part_of(&self, region: &Region) -> usize {
        (region.base().to_bits() as usize - self.start) / PART
    }
}

/// How many native exports were made, given back, and are out.
pub(crate) fn counts() -> Answer {
    let (made, back) = (MADE.load(Ordering::SeqCst), BACK.load(Ordering::SeqCst));
    Ok(format!("made={made} back={back} out={}", made - back))
}

// SAFETY: regions are parts of a mapping that stays for ever and can be read and written; no part is given out twice.
unsafe impl Provider for Driver {
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
        let part = self.books.lock().unwrap().0.pop_first().ok_or(full)?;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.start + part * PART);
        Ok(Region::new(Address::from_ptr(start), PART))
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let mut books = self.books.lock().unwrap();
        assert!(!books.1.contains(&region.id().get()), "freed before its native export was given back");
        books.0.insert(self.part_of(&region));
        Ok(())
    }

    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }
}

impl Export for Driver {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let number = MADE.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(
            self.books.lock().unwrap().1.insert(region.id().get()),
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
        assert!(self.books.lock().unwrap().1.remove(&region.id().get()), "given back once");
        assert_eq!(export.allocation_id, region.id().get(), "to the region that it was made for");
        BACK.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn uses_fd_per_export(&self) -> bool {
        self.makes_fds
    }
}
