//! Bracketing what the CPU does with `DMA_BUF_IOCTL_SYNC`.

use umf_core::{Access, Address, CpuAccess, Error, HostAccess, Result};

use crate::live;

/// Of all dma-bufs that this crate has mapped, whoever made or imported them.
#[derive(Debug)]
pub(crate) struct Bracket;

impl HostAccess for Bracket {
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, writable) = live::find(base, size)?;
        if access == Access::ReadWrite && !writable {
            return Err(Error::InvalidArgument { what: "access", why: "the memory was imported read-only" });
        }
        buffer.begin(access)
    }

    fn end(&self, base: Address, size: usize, access: Access) -> Result<()> {
        let (buffer, _) = live::find(base, size)?;
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
/// Until the access has ended the memory is neither freed nor closed, and nobody in this process has a reference (`&[u8]`,
/// `&mut T`) into it that what is done here would contradict.
pub unsafe fn cpu_access(base: Address, size: usize, access: Access) -> Result<CpuAccess<'static>> {
    if size == 0 {
        return Err(Error::InvalidArgument { what: "range", why: "must have at least one byte" });
    }
    // SAFETY: passed on to the caller; that it can be written if it is to be is checked at the beginning.
    unsafe { CpuAccess::begin(Some(&Bracket), base, size, access) }
}
