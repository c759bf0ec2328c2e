//! Providers for tests: address numbers without memory, and host memory. Both count, and fail on demand.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

use umf_core::{
    Address, AddressSpace, Error, Layout, MemoryKind, Populate, Provider, ProviderKind, Purge, Region,
    Result, Visibility,
};
use umf_sync::{Lock, LockGuard};

/// Regions by base, and what is left of an injected failure.
#[derive(Debug, Default)]
struct Books {
    regions: Lock<BTreeMap<u64, Region>>,
    /// Allocations that still succeed; `u64::MAX`: all.
    successes: AtomicU64,
    allocations: AtomicU64,
    refusing: AtomicBool,
    populated: AtomicU64,
    full: AtomicBool,
}

impl Books {
    fn new() -> Self {
        Self { successes: AtomicU64::new(u64::MAX), ..Self::default() }
    }

    fn lock(&self) -> LockGuard<'_, BTreeMap<u64, Region>> {
        self.regions.lock()
    }

    fn admit(&self, size: usize) -> Result<()> {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let fewer = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        let failed = Error::OutOfMemory { size, owner: "the test's provider", native: 0 };
        self.successes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).map(drop).map_err(|_| failed)
    }

    fn remove(&self, region: &Region) -> Result<()> {
        if self.refusing.load(Ordering::Relaxed) {
            return Err(Error::native("freeing in a provider that was told to refuse", libc::EBUSY));
        }
        let mut regions = self.lock();
        let address = region.base();
        if regions.get(&address.to_bits()) != Some(region) {
            return Err(Error::ForeignAddress { address, owner: "the test's provider" });
        }
        regions.remove(&address.to_bits());
        Ok(())
    }
}

// A forked child goes on allocating, while another thread of the parent may have been in here.
macro_rules! bookkeeping {
    () => {
        /// Regions that are allocated now.
        pub fn live_regions(&self) -> usize {
            self.books.lock().len()
        }

        /// Bytes that are allocated now.
        pub fn live_bytes(&self) -> usize {
            self.books.lock().values().map(Region::size).sum()
        }

        /// Calls of `allocate` so far.
        pub fn allocations(&self) -> u64 {
            self.books.allocations.load(Ordering::Relaxed)
        }

        /// From now on `n` allocations succeed, and all later ones fail; `None` lets all succeed.
        pub fn fail_after(&self, n: Option<u64>) {
            self.books.successes.store(n.unwrap_or(u64::MAX), Ordering::Relaxed);
        }

        /// Bytes whose pages were asked for ahead so far.
        pub fn populated_bytes(&self) -> u64 {
            self.books.populated.load(Ordering::Relaxed)
        }

        /// From now on, whether no pages can be made ahead.
        pub fn be_full(&self, full: bool) {
            self.books.full.store(full, Ordering::Relaxed);
        }

        /// From now on, whether every free is refused.
        pub fn refuse_frees(&self, refuse: bool) {
            self.books.refusing.store(refuse, Ordering::Relaxed);
        }

        /// Whether `size` bytes at `address` lie in one live region.
        pub fn contains(&self, address: Address, size: usize) -> bool {
            let regions = self.books.lock();
            let below = regions.range(..=address.to_bits()).next_back();
            below.is_some_and(|(_, region)| {
                address
                    .offset_from(region.base())
                    .is_some_and(|offset| offset + size as u64 <= region.size() as u64)
            })
        }
    };
}

/// Addresses without memory, in an address space of their own, as a device would have: who touches them
/// crashes. First fit, so that addresses are used again.
#[derive(Debug)]
pub struct Numbers {
    space: AddressSpace,
    page: usize,
    books: Books,
}

impl Numbers {
    /// Where the addresses begin and end.
    const RANGE: (u64, u64) = (1 << 20, 1 << 46);

    /// The first space of those that such providers have, and how many there are.
    const SPACES: (u8, u8) = (20, 100);

    /// A provider with pages of `page` bytes, in a space that no other one of this process has.
    ///
    /// # Panics
    /// If there are 100 of them already.
    #[must_use]
    pub fn new(page: usize) -> Arc<Self> {
        // In turn, so that addresses are used again as late as can be.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let all = u64::from(Self::SPACES.1);
        let free = (next..next + all).map(|number| (number % all) as u8).find(|number| {
            let bit = 1 << (number % 64);
            IN_USE[usize::from(number / 64)].fetch_or(bit, Ordering::Acquire) & bit == 0
        });
        let space = free.and_then(|number| AddressSpace::new(Self::SPACES.0 + number));
        let space = space.expect("no more than 100 providers of numbers at one time");
        Arc::new(Self { space, page, books: Books::new() })
    }

    bookkeeping!();
}

/// A bit for each of [`Numbers::SPACES`]: a provider has it.
static IN_USE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

impl Drop for Numbers {
    fn drop(&mut self) {
        let number = self.space.number() - Self::SPACES.0;
        IN_USE[usize::from(number / 64)].fetch_and(!(1 << (number % 64)), Ordering::Release);
    }
}

// SAFETY: regions are ranges of numbers in a space that nobody can touch; first fit keeps them apart.
unsafe impl Provider for Numbers {
    fn kind(&self) -> ProviderKind {
        ProviderKind::new("numbers").unwrap_or(ProviderKind::HOST)
    }

    fn name(&self) -> &str {
        "numbers"
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn visibility(&self) -> Visibility {
        Visibility::Private
    }

    fn page_size(&self) -> usize {
        self.page
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        let layout = layout.pad_to(self.page)?.align_to(self.page)?;
        let (size, align) = (layout.size() as u64, layout.align() as u64);
        self.books.admit(layout.size())?;
        let failed = Error::OutOfMemory { size: layout.size(), owner: "numbers", native: 0 };
        let mut regions = self.books.lock();
        let mut place = Self::RANGE.0.next_multiple_of(align);
        for region in regions.values() {
            let base = region.base().value();
            if place + size <= base {
                break;
            }
            place = place.max((base + region.size() as u64).next_multiple_of(align));
        }
        if place.checked_add(size).is_none_or(|end| end > Self::RANGE.1) {
            return Err(failed);
        }
        let region = Region::new(Address::in_space(self.space, place).ok_or(failed)?, layout.size());
        regions.insert(region.base().to_bits(), region);
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        self.books.remove(&region)
    }

    fn populate(&self) -> Option<&dyn Populate> {
        Some(self)
    }
}

impl Populate for Numbers {
    fn populate(&self, base: Address, size: usize) -> Result<()> {
        if !self.contains(base, size) || size == 0 {
            return Err(Error::ForeignAddress { address: base, owner: "numbers" });
        }
        if self.books.full.load(Ordering::Relaxed) {
            return Err(Error::OutOfMemory { size, owner: "numbers", native: 0 });
        }
        self.books.populated.fetch_add(size as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Anonymous host memory: private, or shared with forked children; readable, or not to be touched at all.
#[derive(Debug)]
pub struct Pages {
    visibility: Visibility,
    touchable: bool,
    books: Books,
}

const PAGE: usize = 4096;

impl Pages {
    fn new(visibility: Visibility, touchable: bool) -> Arc<Self> {
        Arc::new(Self { visibility, touchable, books: Books::new() })
    }

    /// Private memory.
    #[must_use]
    pub fn private() -> Arc<Self> {
        Self::new(Visibility::Private, true)
    }

    /// Memory that a forked child shares.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        Self::new(Visibility::Shared, true)
    }

    /// Memory that is mapped without any access: a pool that touches it is killed.
    #[must_use]
    pub fn untouchable() -> Arc<Self> {
        Self::new(Visibility::Private, false)
    }

    bookkeeping!();
}

// SAFETY: regions are mappings of this provider alone, unmapped when freed.
unsafe impl Provider for Pages {
    fn kind(&self) -> ProviderKind {
        ProviderKind::new("pages").unwrap_or(ProviderKind::HOST)
    }

    fn name(&self) -> &str {
        "pages"
    }

    fn memory_kind(&self) -> MemoryKind {
        if self.touchable { MemoryKind::Host } else { MemoryKind::Device }
    }

    fn visibility(&self) -> Visibility {
        self.visibility
    }

    fn page_size(&self) -> usize {
        PAGE
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        let layout = layout.pad_to(PAGE)?.align_to(PAGE)?;
        let (size, align) = (layout.size(), layout.align());
        self.books.admit(size)?;
        let failed = |native| Error::OutOfMemory { size, owner: "pages", native };
        let padded = size.checked_add(align - PAGE).ok_or(failed(0))?;
        let access = if self.touchable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let sharing = match self.visibility {
            Visibility::Private => libc::MAP_PRIVATE,
            Visibility::Shared => libc::MAP_SHARED,
        };
        let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let mapped = unsafe { libc::mmap(core::ptr::null_mut(), padded, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)));
        }
        let start = mapped.expose_provenance();
        let base = start.next_multiple_of(align);
        for (from, to) in [(start, base), (base + size, start + padded)] {
            if from < to {
                // SAFETY: both ends of the mapping made above, which nobody has seen.
                unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(from), to - from) };
            }
        }
        let region = Region::new(Address::new(base).ok_or(failed(0))?, size);
        self.books.lock().insert(region.base().to_bits(), region);
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        self.books.remove(&region)?;
        if let Some(base) = region.base().as_ptr() {
            // SAFETY: the region was one of ours, mapped by `allocate`; the caller says that nobody uses it.
            unsafe { libc::munmap(base.cast(), region.size()) };
        }
        Ok(())
    }

    fn zeroed(&self) -> bool {
        true
    }

    fn purge(&self) -> Option<&dyn Purge> {
        self.touchable.then_some(self)
    }
}

impl Purge for Pages {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.purge_forced(base, size) }
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        let inside = self.contains(base, size) && base.is_aligned_to(PAGE) && size.is_multiple_of(PAGE);
        let pointer = base.as_ptr().filter(|_| inside && size > 0);
        let pointer =
            pointer.ok_or(Error::InvalidArgument { what: "range", why: "whole pages of a live region" })?;
        let advice = match self.visibility {
            Visibility::Private => libc::MADV_DONTNEED,
            Visibility::Shared => libc::MADV_REMOVE,
        };
        // SAFETY: the pages are those of a live region, and the caller says that nobody needs their content.
        match unsafe { libc::madvise(pointer.cast(), size, advice) } {
            0 => Ok(()),
            _ => Err(Error::native("madvise", std::io::Error::last_os_error().raw_os_error().unwrap_or(0))),
        }
    }
}
