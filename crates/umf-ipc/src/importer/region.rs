//! What the importer's cache holds: one mapping per region of a producer.

use std::sync::Arc;

use umf_core::step::{Step, step};
use umf_core::{Access, Import, Imported};

use super::producer::Producer;
use crate::cache::Cached;
use crate::identity::Nonce;

/// Which region: of which producer, under which id, with which access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RegionKey {
    pub nonce: Nonce,
    pub region: u64,
    pub access: Access,
}

/// A region of another process, open in this one. Dropping it closes it.
pub(super) struct ImportedRegion {
    /// Keeps the ledger mapped that says whether blocks of this region are current.
    pub producer: Arc<Producer>,
    pub imported: Imported,
    pub import: Arc<dyn Import>,
    /// The region's own slot in the ledger and its generation: whether anything of it can be current.
    pub slot: u32,
    pub generation: u64,
}

impl ImportedRegion {
    /// Whether the region itself was freed, or its producer is known to have ended.
    pub(super) fn is_gone(&self) -> bool {
        let now = self.producer.ledger().slot(self.slot).map(|slot| slot.generation());
        now != Some(self.generation)
    }
}

impl Cached for ImportedRegion {}

impl core::fmt::Debug for ImportedRegion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ImportedRegion")
            .field("producer", &self.producer)
            .field("imported", &self.imported)
            .finish_non_exhaustive()
    }
}

impl Drop for ImportedRegion {
    fn drop(&mut self) {
        // SAFETY: `imported` came from this importer's `import`, is released here alone, and the cache drops an
        // entry only when nobody has it pinned.
        if let Err(error) = unsafe { self.import.release(self.imported) } {
            tracing::warn!(imported = ?self.imported, %error, "a mapping could not be closed");
        }
        step(Step::ImportReleased);
    }
}
