//! [`CpuAccess`]: the time in which the CPU touches a dma-buf.

use core::marker::PhantomData;

use umf_core::{Access, Address, Error, Result};

use crate::buffer::DmaBuf;
use crate::live;

/// The time in which the CPU touches a part of a dma-buf: from `DMA_BUF_IOCTL_SYNC` with `START` to the one with `END`.
///
/// Where CPU and device do not see each other's caches, or a driver moves memory about, what is written outside of such a time may
/// never reach the device, and what is read may be old. So the memory is reached through the guard: it waits for devices that are
/// at work on the buffer, and what was written is handed over when it ends. Between processes alone no bracket is needed.
///
/// For any address in a region of a [`crate::DmaBufProvider`], in a block of a pool over one, and in an import. Times may
/// overlap, in one process and several: they do not keep each other out. Dropping a guard ends its time as [`CpuAccess::end`] does,
/// and cannot tell of a failure.
#[derive(Debug)]
#[must_use = "the access ends when this is dropped"]
pub struct CpuAccess<'memory> {
    buffer: DmaBuf,
    base: Address,
    size: usize,
    access: Access,
    memory: PhantomData<&'memory [u8]>,
}

impl CpuAccess<'_> {
    /// Begins to touch `size` bytes from `base` on. Waits for devices that write the buffer and, for writing, for those that
    /// read it.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] if no dma-buf is mapped there by this crate, [`Error::InvalidArgument`] if the range reaches
    /// beyond it or the memory was imported read-only and is to be written, [`Error::Native`].
    ///
    /// # Safety
    /// Until the access has ended the memory is neither freed nor closed, and nobody in this process has a reference (`&[u8]`,
    /// `&mut T`) into it that what is done here would contradict.
    pub unsafe fn begin(base: Address, size: usize, access: Access) -> Result<Self> {
        let (buffer, writable) = live::find(base, size)?;
        if access == Access::ReadWrite && !writable {
            return Err(Error::InvalidArgument { what: "access", why: "the memory was imported read-only" });
        }
        buffer.begin(access)?;
        Ok(Self { buffer, base, size, access, memory: PhantomData })
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Copies out of the memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes do not lie in the range.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let from = self.place(offset, into.len())?;
        for (number, byte) in into.iter_mut().enumerate() {
            // SAFETY: inside of the range, which is mapped. Others may write there meanwhile: hence volatile, and never as a slice.
            *byte = unsafe { from.add(number).read_volatile() };
        }
        Ok(())
    }

    /// Copies into the memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes do not lie in the range, or the access is for reading.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        if self.access != Access::ReadWrite {
            return Err(Error::InvalidArgument { what: "access", why: "was begun for reading alone" });
        }
        let to = self.place(offset, bytes.len())?;
        for (number, &byte) in bytes.iter().enumerate() {
            // SAFETY: as in `read`; the mapping is writable, or the access would not have begun.
            unsafe { to.add(number).write_volatile(byte) };
        }
        Ok(())
    }

    /// The first byte, for code that works on pointers. Not to be used after the access has ended, nor written to if it is
    /// for reading.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr().unwrap_or(core::ptr::null_mut())
    }

    /// Ends the access.
    ///
    /// # Errors
    /// [`Error::Native`]: the driver could not hand the memory over.
    pub fn end(self) -> Result<()> {
        let this = core::mem::ManuallyDrop::new(self);
        let ended = this.buffer.end(this.access);
        // SAFETY: read once, of what is not dropped otherwise.
        drop(unsafe { core::ptr::read(&raw const this.buffer) });
        ended
    }

    fn place(&self, offset: usize, size: usize) -> Result<*mut u8> {
        let outside = Error::InvalidArgument { what: "range", why: "must lie inside of what is accessed" };
        let base = self.base.as_ptr().ok_or(outside)?;
        if offset.checked_add(size).is_none_or(|end| end > self.size) {
            return Err(outside);
        }
        // SAFETY: inside of the range, as was just checked.
        Ok(unsafe { base.add(offset) })
    }
}

impl Drop for CpuAccess<'_> {
    fn drop(&mut self) {
        let _ = self.buffer.end(self.access);
    }
}
