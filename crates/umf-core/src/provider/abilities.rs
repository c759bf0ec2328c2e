//! The smaller abilities of a provider: purging and populating pages, properties of regions, and
//! copies by the device.

use super::Region;
use crate::{Address, Result};

/// Returns pages of a region to the system. The addresses stay valid.
pub trait Purge: Send + Sync {
    /// Allows the system to take the pages when it needs memory, as `MADV_FREE` does for private
    /// memory. Until then the content can be read, and writing to a page keeps it. After that, the
    /// page reads as zero.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if the range is not whole pages of one live region;
    /// [`crate::Error::NotSupported`] if only [`Purge::purge_forced`] is supported.
    ///
    /// # Safety
    /// The content of the range is not needed any more.
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()>;

    /// Returns the pages to the system now. They then read as zero in every process that maps them.
    ///
    /// # Errors
    /// As [`Purge::purge_lazy`].
    ///
    /// # Safety
    /// As [`Purge::purge_lazy`].
    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()>;
}

/// Allocates pages of a region, so that a later access causes no page fault and cannot lack memory.
pub trait Populate: Send + Sync {
    /// Allocates the missing pages of the range. The content stays.
    ///
    /// # Errors
    /// - [`crate::Error::OutOfMemory`]: not enough memory; some pages may have been allocated.
    /// - [`crate::Error::InvalidArgument`]: the range is not whole pages.
    /// - [`crate::Error::ForeignAddress`]: the range does not lie in one live region.
    /// - [`crate::Error::NotSupported`]: the system has no such operation.
    fn populate(&self, base: Address, size: usize) -> Result<()>;

    /// Checks that `size` bytes of pages are available now. Populating more than that can make the
    /// kernel end processes. By default, this checks nothing.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if they are not.
    fn check_available(&self, size: usize) -> Result<()> {
        let _ = size;
        Ok(())
    }
}

/// A property of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Property {
    /// A number that is unique per allocation, even at the same address.
    AllocationId,
    /// The NUMA node or device ordinal of the memory.
    Node,
    /// The native context handle (a `ze_context_handle_t`, a `CUcontext`).
    Context,
    /// The native device handle.
    Device,
    /// The cache line size in bytes of the processor or device that uses the memory.
    CacheLine,
}

/// The value of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PropertyValue {
    /// A number.
    Number(u64),
    /// A native handle as a number.
    Handle(usize),
}

/// Reports properties of regions.
pub trait Properties: Send + Sync {
    /// Returns a property of `region`.
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if this provider does not know the property,
    /// [`crate::Error::ForeignAddress`] if the region is not one of its own.
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue>;
}

/// Copies memory that the CPU must not access, with the copy engines of the device.
///
/// [`super::Provider::transfer`] and [`super::Import::transfer`] return it. Blocks and mappings of
/// device memory are read and written through it.
///
/// Each call returns when the copy is complete. Several threads may call all methods at the same
/// time.
///
/// # Safety
/// For every method: the memory, a region or an import, is neither freed nor released during the
/// call. This process has no reference (`&[u8]`, `&mut T`) into memory that is written.
pub trait Transfer: Send + Sync {
    /// Copies `into.len()` bytes at `from` to memory of this process.
    ///
    /// # Errors
    /// [`crate::Error::ForeignAddress`] if the range does not lie in one live region or import of
    /// the device. [`crate::Error::Driver`]; then the content of `into` is undefined.
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()>;

    /// Copies `bytes` to `to`.
    ///
    /// # Errors
    /// As [`Transfer::read`]. After [`crate::Error::Driver`] some bytes may be written.
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()>;

    /// Fills `size` bytes from `to` on.
    ///
    /// # Errors
    /// As [`Transfer::write`].
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()>;

    /// Copies `size` bytes at `from` to `to` on the device. The ranges do not overlap.
    ///
    /// # Errors
    /// As [`Transfer::write`].
    ///
    /// # Safety
    /// See [`Transfer`].
    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()>;
}
