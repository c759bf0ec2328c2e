//! Providers: sources of coarse memory.
//!
//! [`Provider`] is the small mandatory part. What a provider can do beyond that it offers through
//! an accessor that yields the ability, each a trait of its own: [`Export`] and [`Import`] (other
//! processes), [`Purge`] (give pages back, keep the addresses), [`Populate`] (make them before they
//! are used), [`Properties`], [`HostAccess`] (be told when the CPU touches the memory),
//! [`Transfer`] (copy what the CPU must not touch). A provider is accepted by
//! `umf_testkit::provider_conformance!`, in one line.

mod export;
mod host_access;
mod import;
mod kind;
mod populate;
mod properties;
mod purge;
mod reference;
mod region;
mod transfer;

pub use export::{Export, NATIVE_BYTES, NativeBytes, NativeExport};
pub use host_access::{CpuAccess, HostAccess};
pub use import::{Access, Import, ImportRequest, Imported};
pub use kind::{MemoryKind, ProviderKind, Visibility};
pub use populate::Populate;
pub use properties::{Properties, Property, PropertyValue};
pub use purge::Purge;
pub use reference::ProviderRef;
pub use region::{Region, RegionId};
pub use transfer::Transfer;

use crate::{Layout, Result};

/// A source of regions.
///
/// All methods may be called from several threads at once. Two calls that concern the same region
/// (free, purge) must not overlap; the owner of the region ensures that. Only purges of ranges
/// without a common page may overlap.
///
/// # Safety
/// An implementor promises that a region it returns is memory of the stated kind, of at least the
/// size and alignment asked for, that overlaps no other live region of any provider (except where
/// it is carved from a block of a pool), and stays so until [`Provider::free`]. If [`MemoryKind`]
/// says that the memory is host-accessible, the CPU may read and write every byte of it.
pub unsafe trait Provider: Send + Sync {
    /// The kind of provider: what `umf.toml` and handles call it, `"host"` for one.
    fn kind(&self) -> ProviderKind;

    /// The name of this instance, for people: logs, statistics, `umf ps`.
    fn name(&self) -> &str;

    /// Returns what the memory is, and whether CPU and devices may access it.
    fn memory_kind(&self) -> MemoryKind;

    /// Whether a forked child shares the memory with its parent, or gets a copy.
    fn visibility(&self) -> Visibility;

    /// The granularity of allocation, in bytes: a power of two. Sizes are rounded up to it.
    fn page_size(&self) -> usize;

    /// The page size at which a region of `size` bytes works best (a huge page, for instance).
    fn recommended_page_size(&self, size: usize) -> usize {
        let _ = size;
        self.page_size()
    }

    /// Allocates a region of at least `layout.size()` bytes at a multiple of `layout.align()` and
    /// of [`Provider::page_size`]. [`Region::size`] is what was really allocated. The memory reads
    /// as zero if [`Provider::zeroed`] says so.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], [`crate::Error::BadAlignment`], [`crate::Error::Native`], or
    /// what the implementation documents. After an error nothing is allocated.
    fn allocate(&self, layout: Layout) -> Result<Region>;

    /// Frees a region. Its pages go back to the system or device, and its addresses may be used
    /// again, before this returns.
    ///
    /// # Errors
    /// [`crate::Error::ForeignAddress`] or [`crate::Error::NotAllocated`] if the region is not a
    /// live one of this provider. After an error the region is as it was.
    ///
    /// # Safety
    /// The region is not in use any more, neither directly nor through a pool.
    unsafe fn free(&self, region: Region) -> Result<()>;

    /// Whether fresh regions read as zero.
    fn zeroed(&self) -> bool {
        false
    }

    /// How to make regions visible to other processes, if this provider can.
    fn export(&self) -> Option<&dyn Export> {
        None
    }

    /// How to open what another process exported through the same kind, if this provider can.
    fn import(&self) -> Option<&dyn Import> {
        None
    }

    /// How to give pages back while keeping the region, if this provider can.
    fn purge(&self) -> Option<&dyn Purge> {
        None
    }

    /// How to make pages before they are used, if this provider can.
    fn populate(&self) -> Option<&dyn Populate> {
        None
    }

    /// What else is known of a region, if this provider tells.
    fn properties(&self) -> Option<&dyn Properties> {
        None
    }

    /// Returns the brackets for CPU access to a region, if it needs any. Concerns host-accessible
    /// memory.
    fn host_access(&self) -> Option<&dyn HostAccess> {
        None
    }

    /// How to copy regions that the CPU must not touch, if this provider can.
    fn transfer(&self) -> Option<&dyn Transfer> {
        None
    }
}
