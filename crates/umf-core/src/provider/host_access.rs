//! [`HostAccess`]: brackets around CPU accesses to memory that devices share, and [`CpuAccess`], the
//! guard of one bracket.

use core::marker::PhantomData;

use crate::{Access, Address, Error, Result};

/// Begins and ends CPU access to memory that devices use too.
///
/// [`super::Provider::host_access`] and [`super::Import::host_access`] return it. Memory without
/// it, such as host memory, may be accessed at any time. Blocks and mappings bracket each of their
/// copies.
///
/// Accesses may overlap, in one process and between processes: a bracket is not a lock. Several
/// threads may call all methods at the same time. The memory must not be freed or released during
/// an access.
pub trait HostAccess: Send + Sync {
    /// Begins an access to `size` bytes (not 0) at `base`. Waits for devices that write them. A
    /// write access also waits for devices that read them.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] for memory of another provider, [`Error::InvalidArgument`] if the
    /// range exceeds the region or is read-only and `access` writes, [`Error::Native`]. After an
    /// error no access has begun.
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()>;

    /// Ends an access, and makes its writes visible to devices. Called once for each
    /// [`HostAccess::begin`], with the same arguments.
    ///
    /// # Errors
    /// [`Error::Native`]. The access has ended nevertheless.
    fn end(&self, base: Address, size: usize, access: Access) -> Result<()>;
}

/// A CPU access to a range of memory, which ends when this is dropped.
///
/// If CPU and device caches are not coherent, or a driver migrates memory, a write outside of an
/// access may never reach the device, and a read may be stale. Copies of blocks and mappings
/// bracket themselves. This is for several copies, and for code that works on pointers. For memory
/// without [`HostAccess`] it costs nothing.
///
/// Dropping it ends the access as [`CpuAccess::end`] does, and ignores errors.
#[must_use = "the access ends when this is dropped"]
pub struct CpuAccess<'memory> {
    ability: Option<&'memory dyn HostAccess>,
    base: Address,
    size: usize,
    access: Access,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> CpuAccess<'memory> {
    /// Begins an access to `size` bytes at `base`.
    ///
    /// # Errors
    /// As [`HostAccess::begin`].
    ///
    /// # Safety
    /// Until the access ends, the memory is neither freed nor closed. The CPU may read it, and
    /// write it if `access` is [`Access::ReadWrite`]. No reference (`&[u8]`, `&mut T`) into it
    /// exists in this process that the access would alias.
    pub unsafe fn begin(
        ability: Option<&'memory dyn HostAccess>,
        base: Address,
        size: usize,
        access: Access,
    ) -> Result<Self> {
        // An empty range needs no bracket.
        let ability = ability.filter(|_| size > 0);
        if let Some(ability) = ability {
            ability.begin(base, size, access)?;
        }
        Ok(Self { ability, base, size, access, memory: PhantomData })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Copies bytes at `offset` to `into`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes do not lie in the range.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let from = self.pointer_at(offset, into.len())?;
        for (number, byte) in into.iter_mut().enumerate() {
            // SAFETY: `pointer_at` checked that the bytes lie in the range, which is mapped. Other
            // processes may write to it, so the reads are volatile.
            *byte = unsafe { from.add(number).read_volatile() };
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes do not lie in the range, or the access is read-only.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        if self.access != Access::ReadWrite {
            return Err(Error::InvalidArgument {
                what: "access",
                why: "is read-only; begin it with Access::ReadWrite",
            });
        }
        let to = self.pointer_at(offset, bytes.len())?;
        for (number, &byte) in bytes.iter().enumerate() {
            // SAFETY: `pointer_at` checked that the bytes lie in the range, which is writable by
            // the contract of `begin`.
            unsafe { to.add(number).write_volatile(byte) };
        }
        Ok(())
    }

    /// Returns a pointer to the first byte. It must not be used after the access has ended, nor be
    /// written through if the access is read-only.
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

    /// Returns a pointer to `size` bytes at `offset`.
    fn pointer_at(&self, offset: usize, size: usize) -> Result<*mut u8> {
        let outside =
            Error::InvalidArgument { what: "range", why: "must lie in the memory that is accessed" };
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
            .field("is_bracketed", &self.ability.is_some())
            .finish()
    }
}
