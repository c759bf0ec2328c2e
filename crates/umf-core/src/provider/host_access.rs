//! The ability to hear of it when the CPU touches memory, and [`CpuAccess`], the time in which it does.

use core::marker::PhantomData;

use crate::{Access, Address, Error, Result};

/// Is told when the CPU begins and ends to touch memory that devices use, too.
///
/// Found at [`super::Provider::host_access`] and [`super::Import::host_access`]. Where there is none (host memory), the CPU may
/// touch the memory at any time. Blocks and mappings call it around each of their copies.
///
/// Times may overlap, in one process and several: they do not keep each other out. All methods may be called from several
/// threads at once, and by no memory that was freed or released.
pub trait HostAccess: Send + Sync {
    /// The CPU is going to touch `size` bytes (not 0) from `base` on. Waits for devices that write them and, for writing, for
    /// those that read them.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] if the memory is not one's own, [`Error::InvalidArgument`] if the range reaches beyond it or is
    /// to be written and cannot be, [`Error::Native`]. After an error nothing has begun.
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()>;

    /// It is done: what it wrote is handed over. Once for each beginning, with the same arguments.
    ///
    /// # Errors
    /// [`Error::Native`]; the time has ended all the same.
    fn end(&self, base: Address, size: usize, access: Access) -> Result<()>;
}

/// The time in which the CPU touches a piece of memory.
///
/// Where CPU and device do not see each other's caches, or a driver moves memory about, what is written outside of such a time may
/// never reach the device, and what is read may be old. Copies by blocks and mappings are such times by themselves; this is for
/// several of them, and for code that works on pointers. For memory without [`HostAccess`] it costs nothing.
///
/// Dropping it ends the time as [`CpuAccess::end`] does, and cannot tell of a failure.
#[must_use = "the access ends when this is dropped"]
pub struct CpuAccess<'memory> {
    ability: Option<&'memory dyn HostAccess>,
    base: Address,
    size: usize,
    access: Access,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> CpuAccess<'memory> {
    /// Begins to touch `size` bytes from `base` on.
    ///
    /// # Errors
    /// As [`HostAccess::begin`].
    ///
    /// # Safety
    /// Until the time has ended the memory is neither freed nor closed; the CPU may read it, and write it if `access` says so;
    /// and nobody in this process has a reference (`&[u8]`, `&mut T`) into it that what is done here would contradict.
    pub unsafe fn begin(
        ability: Option<&'memory dyn HostAccess>,
        base: Address,
        size: usize,
        access: Access,
    ) -> Result<Self> {
        // Of nothing there is nothing to tell.
        let ability = ability.filter(|_| size > 0);
        if let Some(ability) = ability {
            ability.begin(base, size, access)?;
        }
        Ok(Self { ability, base, size, access, memory: PhantomData })
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
            // SAFETY: as in `read`; by `begin`'s contract it can be written.
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
    /// As [`HostAccess::end`].
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        match self.ability.take() {
            Some(ability) => ability.end(self.base, self.size, self.access),
            None => Ok(()),
        }
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
        let _ = self.finish();
    }
}

impl core::fmt::Debug for CpuAccess<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CpuAccess")
            .field("base", &self.base)
            .field("size", &self.size)
            .field("access", &self.access)
            .field("is_told", &self.ability.is_some())
            .finish()
    }
}
