//! What the importer's cache holds: one mapping per region of a producer, or per window of many regions.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::{Access, Import, Imported};
use umf_sync::failpoint;

use super::producer::Producer;
use crate::cache::Cached;
use crate::identity::ProducerId;
use umf_os::FileIdentity;

/// What is mapped: of which producer, which part of its memory, with which access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub producer: ProducerId,
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

/// How many regions of a window are remembered.
const RECENT: usize = 16;

/// The regions that were opened in a mapping most recently. A word has the region's own slot in the
/// ledger (high half) and the low half of its generation there. 0 stands for none.
#[derive(Debug, Default)]
struct Recent([AtomicU64; RECENT]);

impl Recent {
    fn add(&self, slot: u32, generation: u64) {
        let word = &self.0[slot as usize % RECENT];
        let region = u64::from(slot) << 32 | u64::from(generation as u32);
        // Most opens find their region here, and write nothing that threads share.
        if word.load(Ordering::Relaxed) != region {
            word.store(region, Ordering::Relaxed);
        }
    }

    fn any(&self, is_current: impl Fn(u32, u32) -> bool) -> bool {
        let regions = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        regions.filter(|&region| region != 0).any(|region| is_current((region >> 32) as u32, region as u32))
    }
}

/// A region of another process, or a window of many, open in this one. Dropping it closes it.
pub(super) struct ImportedRegion {
    /// Keeps the ledger mapped that says whether blocks of this region are current.
    pub producer: Arc<Producer>,
    pub imported: Imported,
    pub import: Arc<dyn Import>,
    recent: Recent,
}

impl ImportedRegion {
    pub(super) fn new(producer: &Arc<Producer>, imported: Imported, import: Arc<dyn Import>) -> Self {
        Self { producer: Arc::clone(producer), imported, import, recent: Recent::default() }
    }

    /// Notes that something of a region is opened here: by its own slot in the ledger, and its
    /// generation there.
    pub(super) fn note(&self, slot: u32, generation: u64) {
        self.recent.add(slot, generation);
    }

    /// Returns whether the producer has ended, or all of the regions that were opened here most
    /// recently were freed. A window may have another current region. It is mapped again when that
    /// one is opened.
    pub(super) fn is_gone(&self) -> bool {
        let is_current = |slot, generation| {
            let slot = self.producer.ledger().slot(slot);
            slot.is_some_and(|slot| slot.generation() as u32 == generation)
        };
        self.producer.has_ended() || !self.recent.any(is_current)
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
        failpoint!("import.released");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_regions_are_those_opened_last_of_each_place() {
        let recent = Recent::default();
        assert!(!recent.any(|_, _| true), "none was opened");
        for slot in 0..100 {
            recent.add(slot, u64::from(slot) + (7 << 32));
        }
        for slot in 0..100 {
            let is_recent = recent.any(|other, generation| (other, generation) == (slot, slot));
            assert_eq!(is_recent, slot >= 84, "slot {slot}");
        }
    }
}
