//! [`Arena`].

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use umf_core::{Error, Layout, MemoryKind, Provider, ProviderKind, Region, Result, Visibility};
use umf_sync::Lock;

use crate::ranges::Ranges;

const PAGE: usize = 4096;

const KIND: ProviderKind = match ProviderKind::new("arena") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// Private host memory out of one reserved range of addresses.
///
/// Reserving costs addresses, no memory: pages come as they are touched.
///
/// ```
/// use own_provider::Arena;
/// use umf_core::{Layout, Provider};
///
/// # fn main() -> Result<(), umf_core::Error> {
/// let arena = Arena::new("mine", 1 << 30)?;
/// let region = arena.allocate(Layout::new(1 << 20, 4096)?)?;
/// // SAFETY: nothing uses the region.
/// unsafe { arena.free(region)? };
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Arena {
    name: String,
    start: NonNull<libc::c_void>,
    size: usize,
    ranges: Lock<Ranges>,
}

// SAFETY: the pointer is an address of the process, good in each thread; the ranges have a lock.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes an arena of `size` bytes, rounded up to pages. `name` stands in statistics, logs and
    /// errors.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::SizeOverflow`], [`Error::OutOfMemory`] if there are not that many
    /// addresses in one piece.
    pub fn new(name: &str, size: usize) -> Result<Arc<Self>> {
        let size = Layout::new(size, PAGE)?.pad_to(PAGE)?.size();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let mapped = unsafe { libc::mmap(null_mut(), size, access, flags, -1, 0) };
        let start = NonNull::new(mapped).filter(|_| mapped != libc::MAP_FAILED);
        let start = start.ok_or_else(|| Error::OutOfMemory { size, owner: "mmap", native: errno() })?;
        let ranges = Ranges::new(start.as_ptr().expose_provenance() as u64, size as u64);
        Ok(Arc::new(Self { name: name.to_owned(), start, size, ranges: Lock::new(ranges) }))
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

// SAFETY: regions are parts of a mapping that can be read and written and stays until the arena goes (and longer, if
// regions are live then); the ranges are given out once.
unsafe impl Provider for Arena {
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
        Visibility::Private
    }

    fn page_size(&self) -> usize {
        PAGE
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        let layout = layout.pad_to(PAGE)?.align_to(PAGE)?;
        self.ranges.lock().take(layout.size(), layout.align())
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        self.ranges.lock().check(&region)?;
        let start = region.base().as_ptr().unwrap_or(null_mut());
        // Before the place is free: afterwards another thread may have it.
        // SAFETY: a live region, of which the caller says that nobody uses it. It reads as zero then.
        if unsafe { libc::madvise(start.cast(), region.size(), libc::MADV_DONTNEED) } != 0 {
            return Err(Error::native("madvise(MADV_DONTNEED)", errno()));
        }
        self.ranges.lock().give_back(&region)
    }

    fn zeroed(&self) -> bool {
        true
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Regions are promised to stay until they are freed. One that is live keeps the arena mapped for ever.
        if self.ranges.lock().is_empty() {
            // SAFETY: mapped in `new`, and no part of it is in use.
            unsafe { libc::munmap(self.start.as_ptr(), self.size) };
        }
    }
}
