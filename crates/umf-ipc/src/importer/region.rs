//! What the importer's cache holds: one mapping per region of a producer, or per window of many regions.

use std::sync::Arc;

use umf_core::step::{Step, step};
use umf_core::{Access, Import, Imported};

use super::producer::Producer;
use crate::cache::Cached;
use crate::identity::Nonce;
use crate::sys::FileIdentity;

/// What is mapped: of which producer, which part of its memory, with which access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub nonce: Nonce,
    pub extent: Extent,
    pub access: Access,
}

/// A part of a producer's memory that is mapped at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extent {
    /// The region with this id.
    Region(u64),
    /// A window of a file that many regions lie in, from this offset on.
    ///
    /// The window's mapping keeps the file, so that no other file has its device and inode meanwhile.
    Window { file: FileIdentity, start: u64 },
}

/// A region of another process, or a window of many, open in this one. Dropping it closes it.
pub(super) struct ImportedRegion {
    /// Keeps the ledger mapped that says whether blocks of this region are current.
    pub producer: Arc<Producer>,
    pub imported: Imported,
    pub import: Arc<dyn Import>,
    /// The region's own slot in the ledger and its generation: whether anything of it can be current. None for a window,
    /// which outlives its regions.
    pub region: Option<(u32, u64)>,
}

impl ImportedRegion {
    /// Whether the region itself was freed, or its producer has ended.
    pub(super) fn is_gone(&self) -> bool {
        if self.producer.has_ended() {
            return true;
        }
        self.region.is_some_and(|(slot, generation)| {
            let now = self.producer.ledger().slot(slot).map(|slot| slot.generation());
            now != Some(generation)
        })
    }
}

impl Cached for ImportedRegion {
    fn is_dead(&self) -> bool {
        self.is_gone()
    }
}

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
