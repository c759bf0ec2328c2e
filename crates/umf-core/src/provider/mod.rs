//! Providers: sources of regions.
//!
//! [`Provider`] has the methods that every provider implements. Each optional ability is a trait,
//! which an accessor of [`Provider`] returns:
//!
//! | ability | trait |
//! |---|---|
//! | makes regions visible to other processes, and opens theirs | [`Export`], [`Import`] |
//! | returns pages to the system and keeps the addresses | [`Purge`] |
//! | allocates pages before they are used | [`Populate`] |
//! | reports properties of a region | [`Properties`] |
//! | brackets CPU accesses to memory that devices share | [`HostAccess`] |
//! | copies memory that the CPU must not access | [`Transfer`] |
//!
//! `umf_testkit::provider_conformance!` tests a provider by one line.

mod abilities;
mod export;
mod host_access;
mod import;
mod kind;

pub use abilities::{Populate, Properties, Property, PropertyValue, Purge, Transfer};
pub use export::{Export, NATIVE_BYTES, NativeBytes, NativeExport};
pub use host_access::{CpuAccess, HostAccess};
pub use import::{Access, Import, ImportRequest, Imported};
pub use kind::{MemoryKind, ProviderKind, Visibility};

use core::fmt;
use core::num::NonZeroU64;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::{Address, Layout, Result};

/// The id of a region in this process. Ids are never reused: a later region at the same address has
/// another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(NonZeroU64);

impl RegionId {
    /// Returns an id that no region had before.
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        // A 64-bit counter does not wrap around.
        Self(NonZeroU64::new(id).unwrap_or(NonZeroU64::MAX))
    }

    /// Returns the id as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the id of which [`RegionId::get`] returned `id`; `None` for 0.
    #[must_use]
    pub const fn from_number(id: u64) -> Option<Self> {
        match NonZeroU64::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }
}

/// An allocation of a provider: base address, size in bytes, id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    base: Address,
    size: usize,
    id: RegionId,
}

impl Region {
    /// Returns a region with a new id. For providers.
    #[must_use]
    pub fn new(base: Address, size: usize) -> Self {
        Self { base, size, id: RegionId::next() }
    }

    /// Returns an existing region, from the record of a registry.
    #[must_use]
    pub const fn with_id(base: Address, size: usize, id: RegionId) -> Self {
        Self { base, size, id }
    }

    /// Returns the base address.
    #[must_use]
    pub const fn base(&self) -> Address {
        self.base
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the id.
    #[must_use]
    pub const fn id(&self) -> RegionId {
        self.id
    }

    /// Returns whether the region contains `address`.
    #[inline]
    #[must_use]
    pub const fn contains(&self, address: Address) -> bool {
        match address.offset_from(self.base) {
            Some(offset) => offset < self.size as u64,
            None => false,
        }
    }
}

/// A source of regions.
///
/// Several threads may call all methods at the same time. The owner of a region ensures that calls
/// for this region (free, purge) do not overlap. Only purges of ranges without a common page may
/// overlap.
///
/// # Safety
/// An implementor promises for each region that it returns, until [`Provider::free`]:
/// - It is memory of the stated kind, with at least the requested size and alignment.
/// - It overlaps no other live region of any provider, except a block of a pool from which it is
///   carved.
/// - If the [`MemoryKind`] is host-accessible, the CPU may read and write every byte.
pub unsafe trait Provider: Send + Sync {
    /// Returns the kind of provider, such as `"host"`. `umf.toml` and handles contain it.
    fn kind(&self) -> ProviderKind;

    /// Returns the name of this instance, for logs, statistics and `umf ps`.
    fn name(&self) -> &str;

    /// Returns what the memory is, and whether CPU and devices may access it.
    fn memory_kind(&self) -> MemoryKind;

    /// Returns whether a forked child shares the memory with its parent, or gets a copy.
    fn visibility(&self) -> Visibility;

    /// Returns the granularity of allocations in bytes, a power of two. Sizes are rounded up to it.
    fn page_size(&self) -> usize;

    /// Returns the page size with which a region of `size` bytes performs best, such as that of
    /// huge pages.
    fn recommended_page_size(&self, size: usize) -> usize {
        let _ = size;
        self.page_size()
    }

    /// Allocates a region of at least `layout.size()` bytes at a multiple of `layout.align()` and
    /// of [`Provider::page_size`]. [`Region::size`] is the allocated size. The memory reads as zero
    /// if [`Provider::zeroed`] returns `true`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], [`crate::Error::BadAlignment`], [`crate::Error::Native`], or
    /// what the implementation documents. After an error nothing is allocated.
    fn allocate(&self, layout: Layout) -> Result<Region>;

    /// Frees a region. Before this returns, its pages go back to the system or device, and its
    /// addresses may be reused.
    ///
    /// # Errors
    /// [`crate::Error::ForeignAddress`] or [`crate::Error::NotAllocated`] if the region is not a
    /// live one of this provider. After an error the region is unchanged.
    ///
    /// # Safety
    /// The region is not in use any more, neither directly nor through a pool.
    unsafe fn free(&self, region: Region) -> Result<()>;

    /// Returns whether new regions read as zero.
    fn zeroed(&self) -> bool {
        false
    }

    /// Returns the ability to make regions visible to other processes, if this provider has it.
    fn export(&self) -> Option<&dyn Export> {
        None
    }

    /// Returns the ability to open exports of the same kind, if this provider has it.
    fn import(&self) -> Option<&dyn Import> {
        None
    }

    /// Returns the ability to purge pages, if this provider has it.
    fn purge(&self) -> Option<&dyn Purge> {
        None
    }

    /// Returns the ability to populate pages, if this provider has it.
    fn populate(&self) -> Option<&dyn Populate> {
        None
    }

    /// Returns the ability to report properties of regions, if this provider has it.
    fn properties(&self) -> Option<&dyn Properties> {
        None
    }

    /// Returns the brackets for CPU access to a region, if it needs any. Concerns host-accessible
    /// memory.
    fn host_access(&self) -> Option<&dyn HostAccess> {
        None
    }

    /// Returns the ability to copy memory that the CPU must not access, if this provider has it.
    fn transfer(&self) -> Option<&dyn Transfer> {
        None
    }
}

/// A reference to a provider.
///
/// The static form is for a pool that is the global allocator, which cannot allocate a reference
/// count.
#[derive(Clone)]
pub enum ProviderRef {
    /// Reference counted.
    Shared(Arc<dyn Provider>),
    /// Static.
    Static(&'static dyn Provider),
}

impl ProviderRef {
    /// Returns whether both are the same provider object.
    #[must_use]
    pub fn is(&self, other: &dyn Provider) -> bool {
        core::ptr::addr_eq(core::ptr::from_ref(&**self), core::ptr::from_ref(other))
    }
}

impl Deref for ProviderRef {
    type Target = dyn Provider;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shared(provider) => &**provider,
            Self::Static(provider) => *provider,
        }
    }
}

impl fmt::Debug for ProviderRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} provider {:?}", self.kind(), self.name())
    }
}

impl<P: Provider + 'static> From<Arc<P>> for ProviderRef {
    fn from(provider: Arc<P>) -> Self {
        Self::Shared(provider)
    }
}

impl From<Arc<dyn Provider>> for ProviderRef {
    fn from(provider: Arc<dyn Provider>) -> Self {
        Self::Shared(provider)
    }
}
