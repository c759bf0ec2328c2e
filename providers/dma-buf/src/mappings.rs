//! Which dma-buf lies at an address of this process, and bracketing what the CPU does there with
//! `DMA_BUF_IOCTL_SYNC`.

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

/// Notes a mapping of a buffer.
pub(crate) fn add(base: Address, size: usize, buffer: DmaBuf, writable: bool) {
    let start = base.to_bits();
    let end = start.saturating_add(size as u64);
    MAPPED.lock().insert(start, MappedBuffer { end, buffer, writable });
}

/// Forgets it, before it is unmapped.
pub(crate) fn remove(base: Address) -> Option<DmaBuf> {
    let removed = MAPPED.lock().remove(&base.to_bits());
    removed.map(|live| live.buffer)
}

/// The buffer in which all of the range lies, and whether it can be written.
pub(crate) fn find(base: Address, size: usize) -> Result<(DmaBuf, bool)> {
    let foreign = Error::ForeignAddress { address: base, owner: "a dma-buf that is mapped here" };
    let start = base.to_bits();
    let end = start.checked_add(size as u64).ok_or(foreign)?;
    let live = MAPPED.lock();
    let (_, found) = live.range(..=start).next_back().ok_or(foreign)?;
    if start >= found.end {
        return Err(foreign);
    }
    if end > found.end {
        return Err(Error::InvalidArgument { what: "range", why: "must lie inside one mapped dma-buf" });
    }
    Ok((found.buffer.clone(), found.writable))
}

/// Of all dma-bufs that this crate has mapped, made here or imported.
#[derive(Debug)]
pub(crate) struct CpuSync;

impl HostAccess for CpuSync {
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, writable) = find(base, size)?;
        if access == Access::ReadWrite && !writable {
            return Err(Error::InvalidArgument { what: "access", why: "the memory was imported read-only" });
        }
        buffer.begin(access)
    }

    fn end(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, _) = find(base, size)?;
        buffer.end(access)
    }
}

/// Begins to touch `size` bytes from `base` on: from `DMA_BUF_IOCTL_SYNC` with `START` to the one with `END`. For any address in a
/// region of a [`crate::DmaBufProvider`], in a block of a pool over one, and in an import.
///
/// # Errors
/// [`Error::ForeignAddress`] if no dma-buf is mapped there by this crate, [`Error::InvalidArgument`] if the range is empty, reaches
/// beyond the buffer, or was imported read-only and is to be written; [`Error::Native`].
///
/// # Safety
/// Until the access has ended the memory is neither freed nor closed, and no code of this process has a reference (`&[u8]`,
/// `&mut T`) into it that what is done here would contradict.
pub unsafe fn cpu_access(base: Address, size: usize, access: Access) -> Result<CpuAccess<'static>> {
    if size == 0 {
        return Err(Error::InvalidArgument { what: "range", why: "must have at least one byte" });
    }
    // SAFETY: passed on to the caller; that it can be written if it is to be is checked at the beginning.
    unsafe { CpuAccess::begin(Some(&CpuSync), base, size, access) }
}
