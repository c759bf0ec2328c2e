//! Touching memory while devices use it, for blocks and mappings.

use umf_core::{Access, CpuAccess};
use umf_ipc::Mapping;

use crate::{Block, Result};

impl Block<'_> {
    /// Begins to touch the block's memory, for more than one copy or by pointers, while devices may use it too. (One
    /// [`Block::read`] or [`Block::write`] needs no such thing.) For memory that no device uses it costs nothing.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if the driver refuses, [`crate::Error::Inaccessible`].
    pub fn cpu_access(&self, access: Access) -> Result<CpuAccess<'_>> {
        self.view::<u8>()?;
        // SAFETY: the block is live as long as it is borrowed, and the CPU may touch it, as was just asked; references into it
        // need it to be borrowed mutably.
        Ok(unsafe { CpuAccess::begin(self.host_access(), self.address(), self.len(), access) }?)
    }
}

/// As [`Block::cpu_access`], for what was opened with [`crate::open`].
///
/// # Errors
/// As [`Block::cpu_access`]; for writing also if the mapping is read-only.
pub fn cpu_access<'a>(mapping: &'a Mapping<'_>, access: Access) -> Result<CpuAccess<'a>> {
    Ok(mapping.cpu_access(access)?)
}
