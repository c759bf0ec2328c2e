//! [`Arena`], the provider, and its settings [`ArenaSettings`].

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use umf_core::settings::ByteSize;
use umf_core::{
    Error, FactoryError, Layout, MemoryKind, Provider, ProviderFactory, ProviderKind, Region, Result,
    Visibility,
};
use umf_sync::Lock;

use crate::ranges::FreeRanges;

pub(crate) const PAGE: usize = 4096;

const KIND: ProviderKind = match ProviderKind::new("arena") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// A provider of private host memory in one reserved range of addresses.
///
/// The reservation takes no memory: the kernel allocates pages at first use.
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
    ranges: Lock<FreeRanges>,
}

// SAFETY: the pointer is valid in all threads, and a lock protects the ranges.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes an arena of `size` bytes, rounded up to pages. `name` is used in statistics, logs and
    /// errors.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::SizeOverflow`]; [`Error::OutOfMemory`] if there is no free
    /// range of that size.
    pub fn new(name: &str, size: usize) -> Result<Arc<Self>> {
        let size = Layout::new(size, PAGE)?.pad_to(PAGE)?.size();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice changes no existing memory.
        let mapped = unsafe { libc::mmap(null_mut(), size, access, flags, -1, 0) };
        let start = NonNull::new(mapped).filter(|_| mapped != libc::MAP_FAILED);
        let start = start.ok_or_else(|| Error::OutOfMemory { size, owner: "mmap", native: errno() })?;
        let ranges = FreeRanges::new(start.as_ptr().expose_provenance() as u64, size as u64);
        Ok(Arc::new(Self { name: name.to_owned(), start, size, ranges: Lock::new(ranges) }))
    }
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

// SAFETY: regions are disjoint parts of a readable and writable mapping. The mapping exists until
// the arena is dropped without live regions.
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
        self.ranges.lock().allocate(layout.size(), layout.align())
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        self.ranges.lock().check(&region)?;
        let start = region.base().as_ptr().unwrap_or(null_mut());
        // Before the range is freed, because another thread may allocate it afterwards.
        // SAFETY: the region is live and, by the caller's contract, not in use. It reads as zero
        // afterwards.
        if unsafe { libc::madvise(start.cast(), region.size(), libc::MADV_DONTNEED) } != 0 {
            return Err(Error::native("madvise(MADV_DONTNEED)", errno()));
        }
        self.ranges.lock().free(&region)
    }

    fn zeroed(&self) -> bool {
        true
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Live regions must stay valid, so the mapping is leaked if there are any.
        if self.ranges.lock().is_empty() {
            // SAFETY: `new` created the mapping, and no part of it is in use.
            unsafe { libc::munmap(self.start.as_ptr(), self.size) };
        }
    }
}

umf_core::settings! {
    /// The settings of the kind `arena`.
    pub struct ArenaSettings {
        /// The bytes of addresses to reserve.
        pub size: usize as ByteSize = 1 << 30, "a number of bytes above 0" if |bytes| *bytes > 0;
    }
}

impl ProviderFactory for Arena {
    const KIND: &'static str = "arena";
    type Settings = ArenaSettings;

    fn build(name: &str, settings: ArenaSettings) -> std::result::Result<Arc<dyn Provider>, FactoryError> {
        Ok(Self::new(name, settings.size)?)
    }
}
