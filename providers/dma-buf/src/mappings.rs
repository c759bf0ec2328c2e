//! The table of mapped dma-bufs of this process, by address; and the bracketing of CPU accesses
//! with `DMA_BUF_IOCTL_SYNC`.

use std::collections::BTreeMap;

use umf_core::{Access, Address, CpuAccess, Error, HostAccess, Result};
use umf_sync::Lock;

use crate::buffer::DmaBuf;

struct MappedBuffer {
    end: u64,
    buffer: DmaBuf,
    writable: bool,
}

static MAPPED: Lock<BTreeMap<u64, MappedBuffer>> = Lock::new(BTreeMap::new());

/// Adds a mapping of a buffer.
pub(crate) fn add(base: Address, size: usize, buffer: DmaBuf, writable: bool) {
    let start = base.to_bits();
    let end = start.saturating_add(size as u64);
    MAPPED.lock().insert(start, MappedBuffer { end, buffer, writable });
}

/// Removes a mapping. Call it before unmapping.
pub(crate) fn remove(base: Address) -> Option<DmaBuf> {
    let removed = MAPPED.lock().remove(&base.to_bits());
    removed.map(|live| live.buffer)
}

/// Returns the buffer that contains the whole range, and whether the mapping is writable.
pub(crate) fn find(base: Address, size: usize) -> Result<(DmaBuf, bool)> {
    let foreign = Error::ForeignAddress { address: base, owner: "the dma-bufs that are mapped here" };
    let start = base.to_bits();
    let end = start.checked_add(size as u64).ok_or(foreign)?;
    let live = MAPPED.lock();
    let (_, found) = live.range(..=start).next_back().ok_or(foreign)?;
    if start >= found.end {
        return Err(foreign);
    }
    if end > found.end {
        return Err(Error::InvalidArgument { what: "range", why: "must lie in one mapped dma-buf" });
    }
    Ok((found.buffer.clone(), found.writable))
}

/// Bracketing of CPU accesses for all dma-bufs that this crate has mapped.
#[derive(Debug)]
pub(crate) struct CpuSync;

impl HostAccess for CpuSync {
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, writable) = find(base, size)?;
        if access == Access::ReadWrite && !writable {
            return Err(Error::InvalidArgument { what: "access", why: "the memory was imported read-only" });
        }
        buffer.begin_cpu_access(access)
    }

    fn end(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, _) = find(base, size)?;
        buffer.end_cpu_access(access)
    }
}

/// Begins an access of the CPU to `size` bytes at `base` (`DMA_BUF_IOCTL_SYNC` with `START`);
/// dropping the guard ends it (`END`). The range lies in a region of a [`crate::DmaBufProvider`],
/// in a block of a pool over one, or in an import.
///
/// # Errors
/// - [`Error::ForeignAddress`]: this crate has no dma-buf mapped at `base`.
/// - [`Error::InvalidArgument`]: the range is empty or exceeds the buffer, or a read-only import is
///   to be written.
/// - [`Error::Native`]: the driver's error.
///
/// # Safety
/// Until the access has ended, the memory is neither freed nor closed. Accesses through the guard
/// do not violate the aliasing rules of references (`&[u8]`, `&mut T`) that other code of this
/// process has into the memory.
pub unsafe fn cpu_access(base: Address, size: usize, access: Access) -> Result<CpuAccess<'static>> {
    if size == 0 {
        return Err(Error::InvalidArgument { what: "range", why: "must have at least one byte" });
    }
    // SAFETY: the caller's contract. `CpuSync::begin` checks that the memory is writable if it is
    // to be written.
    unsafe { CpuAccess::begin(Some(&CpuSync), base, size, access) }
}
