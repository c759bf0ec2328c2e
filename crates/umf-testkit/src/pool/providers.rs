//! Providers for tests: bare address ranges, and anonymous host memory. Both count, and fail on
//! demand.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

use umf_core::{
    Address, AddressSpace, Error, Layout, MemoryKind, Populate, Provider, ProviderKind, Purge, Region,
    Result, Visibility,
};
use umf_sync::{Lock, LockGuard};

/// Live regions by base address, counters, and injected failures.
#[derive(Debug, Default)]
struct RegionTable {
    regions: Lock<BTreeMap<u64, Region>>,
    /// Allocations that still succeed; `u64::MAX` for no limit.
    successes: AtomicU64,
    allocations: AtomicU64,
    refuses_frees: AtomicBool,
    populated: AtomicU64,
    populate_fails: AtomicBool,
}

impl RegionTable {
    fn new() -> Self {
        Self { successes: AtomicU64::new(u64::MAX), ..Self::default() }
    }

    fn lock(&self) -> LockGuard<'_, BTreeMap<u64, Region>> {
        self.regions.lock()
    }

    fn admit(&self, size: usize) -> Result<()> {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let decrement = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        let failed = Error::OutOfMemory { size, owner: "the test's provider", native: 0 };
        self.successes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement)
            .map(drop)
            .map_err(|_| failed)
    }

    fn remove(&self, region: &Region) -> Result<()> {
        if self.refuses_frees.load(Ordering::Relaxed) {
            return Err(Error::native("freeing in a provider that refuses frees", libc::EBUSY));
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

// The lock survives forks: a child allocates while a thread of the parent held it at the fork.
macro_rules! bookkeeping {
    () => {
        /// Returns the number of live regions.
        pub fn live_regions(&self) -> usize {
            self.regions_table.lock().len()
        }

        /// Returns the bytes of live regions.
        pub fn live_bytes(&self) -> usize {
            self.regions_table.lock().values().map(Region::size).sum()
        }

        /// Returns the number of calls of `allocate`.
        pub fn allocations(&self) -> u64 {
            self.regions_table.allocations.load(Ordering::Relaxed)
        }

        /// Lets `n` more allocations succeed and all later ones fail; `None` lets all succeed.
        pub fn fail_after(&self, n: Option<u64>) {
            self.regions_table.successes.store(n.unwrap_or(u64::MAX), Ordering::Relaxed);
        }

        /// Returns the bytes that were populated.
        pub fn populated_bytes(&self) -> u64 {
            self.regions_table.populated.load(Ordering::Relaxed)
        }

        /// Sets whether populating fails for lack of memory.
        pub fn set_populate_fails(&self, fails: bool) {
            self.regions_table.populate_fails.store(fails, Ordering::Relaxed);
        }

        /// Sets whether every free is refused.
        pub fn refuse_frees(&self, refuse: bool) {
            self.regions_table.refuses_frees.store(refuse, Ordering::Relaxed);
        }

        /// Returns whether `size` bytes at `address` lie in one live region.
        pub fn contains(&self, address: Address, size: usize) -> bool {
            let regions = self.regions_table.lock();
            let below = regions.range(..=address.to_bits()).next_back();
            below.is_some_and(|(_, region)| {
                address
                    .offset_from(region.base())
                    .is_some_and(|offset| offset + size as u64 <= region.size() as u64)
            })
        }
    };
}

/// A provider of addresses without memory, in an address space of its own, like a device's.
/// Accessing them is fatal. Allocates first fit, so that addresses are reused.
#[derive(Debug)]
pub struct AddressOnlyProvider {
    space: AddressSpace,
    page: usize,
    regions_table: RegionTable,
}

impl AddressOnlyProvider {
    /// First and last address.
    const RANGE: (u64, u64) = (1 << 20, 1 << 46);

    /// The first address space for such providers, and their number.
    const SPACES: (u8, u8) = (20, 100);

    /// Creates a provider with pages of `page` bytes, in an address space that no other live
    /// provider has.
    ///
    /// # Panics
    /// If 100 of them are live.
    #[must_use]
    pub fn new(page: usize) -> Arc<Self> {
        // Round robin, so that an address space is reused as late as possible.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let all = u64::from(Self::SPACES.1);
        let free = (next..next + all).map(|number| (number % all) as u8).find(|number| {
            let bit = 1 << (number % 64);
            IN_USE[usize::from(number / 64)].fetch_or(bit, Ordering::Acquire) & bit == 0
        });
        let space = free.and_then(|number| AddressSpace::new(Self::SPACES.0 + number));
        let space = space.expect("at most 100 such providers are live");
        Arc::new(Self { space, page, regions_table: RegionTable::new() })
    }

    bookkeeping!();
}

/// One bit for each of [`AddressOnlyProvider::SPACES`]: set while a provider has it.
static IN_USE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

impl Drop for AddressOnlyProvider {
    fn drop(&mut self) {
        let number = self.space.number() - Self::SPACES.0;
        IN_USE[usize::from(number / 64)].fetch_and(!(1 << (number % 64)), Ordering::Release);
    }
}

// SAFETY: regions are address ranges in a space without memory; first fit keeps them disjoint.
unsafe impl Provider for AddressOnlyProvider {
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
        self.regions_table.admit(layout.size())?;
        let failed = Error::OutOfMemory { size: layout.size(), owner: "numbers", native: 0 };
        let mut regions = self.regions_table.lock();
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
        self.regions_table.remove(&region)
    }

    fn populate(&self) -> Option<&dyn Populate> {
        Some(self)
    }
}

impl Populate for AddressOnlyProvider {
    fn populate(&self, base: Address, size: usize) -> Result<()> {
        if !self.contains(base, size) || size == 0 {
            return Err(Error::ForeignAddress { address: base, owner: "numbers" });
        }
        if self.regions_table.populate_fails.load(Ordering::Relaxed) {
            return Err(Error::OutOfMemory { size, owner: "numbers", native: 0 });
        }
        self.regions_table.populated.fetch_add(size as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// A provider of anonymous host memory: private or shared with forked children; accessible or not.
#[derive(Debug)]
pub struct MmapProvider {
    visibility: Visibility,
    touchable: bool,
    regions_table: RegionTable,
}

const PAGE: usize = 4096;

impl MmapProvider {
    fn new(visibility: Visibility, touchable: bool) -> Arc<Self> {
        Arc::new(Self { visibility, touchable, regions_table: RegionTable::new() })
    }

    /// Creates a provider of private memory.
    #[must_use]
    pub fn private() -> Arc<Self> {
        Self::new(Visibility::Private, true)
    }

    /// Creates a provider of memory that forked children share.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        Self::new(Visibility::Shared, true)
    }

    /// Creates a provider of memory without access rights: a pool that accesses it is killed.
    #[must_use]
    pub fn untouchable() -> Arc<Self> {
        Self::new(Visibility::Private, false)
    }

    bookkeeping!();
}

// SAFETY: each region is a mapping of its own, which only `free` unmaps.
unsafe impl Provider for MmapProvider {
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
        self.regions_table.admit(size)?;
        let failed = |native| Error::OutOfMemory { size, owner: "pages", native };
        let padded = size.checked_add(align - PAGE).ok_or(failed(0))?;
        let access = if self.touchable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let sharing = match self.visibility {
            Visibility::Private => libc::MAP_PRIVATE,
            Visibility::Shared => libc::MAP_SHARED,
        };
        let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice replaces no mapping.
        let mapped = unsafe { libc::mmap(core::ptr::null_mut(), padded, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)));
        }
        let start = mapped.expose_provenance();
        let base = start.next_multiple_of(align);
        for (from, to) in [(start, base), (base + size, start + padded)] {
            if from < to {
                // SAFETY: a part of the mapping made above, which is not in use yet.
                unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(from), to - from) };
            }
        }
        let region = Region::new(Address::new(base).ok_or(failed(0))?, size);
        self.regions_table.lock().insert(region.base().to_bits(), region);
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        self.regions_table.remove(&region)?;
        if let Some(base) = region.base().as_ptr() {
            // SAFETY: `allocate` mapped the region, and the caller promises that it is not in use.
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

impl Purge for MmapProvider {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: the caller keeps the contract, which is the same.
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
        // SAFETY: pages of a live region, whose contents the caller does not need.
        match unsafe { libc::madvise(pointer.cast(), size, advice) } {
            0 => Ok(()),
            _ => Err(Error::native("madvise", std::io::Error::last_os_error().raw_os_error().unwrap_or(0))),
        }
    }
}
