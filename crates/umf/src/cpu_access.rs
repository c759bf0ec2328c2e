//! Touching dma-buf memory while devices use it, for blocks and mappings.

use umf_core::Access;
use umf_ipc::Mapping;
use umf_provider_dma_buf::CpuAccess;

use crate::{Block, Error, Result};

impl Block<'_> {
    /// Begins to touch the block's memory while devices use it too, if it lies in a dma-buf. Between processes alone,
    /// [`Block::read`] and [`Block::write`] do.
    ///
    /// # Errors
    /// [`Error::Memory`] if the block lies in no dma-buf, or the driver refuses.
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        // SAFETY: the block is live as long as it is borrowed, and references into it need it to be borrowed mutably.
        Ok(unsafe { CpuAccess::begin(self.address(), self.len(), access) }?)
    }
}

/// As [`Block::cpu_access`], for what was opened with [`crate::open`].
///
/// # Errors
/// As [`Block::cpu_access`]; for writing also if the mapping is read-only.
pub fn cpu_access<'a>(mapping: &'a Mapping<'_>, access: Access) -> Result<CpuAccess<'a>> {
    // SAFETY: the mapping is open as long as it is borrowed, and shows itself as volatile memory alone.
    unsafe { CpuAccess::begin(mapping.address(), mapping.len(), access) }.map_err(Error::from)
}
