//! Deferred free: what happens to the contents of freed memory that is still in use, and
//! statistics.

crate::words! {
    /// What a free does with the contents of memory that another process has open.
    #[derive(Default)]
    pub enum OnFree {
        /// The contents stay until the last lease ends.
        #[default]
        Hold = "hold",
        /// Whole pages go back to the system at once. Importers that still read them see zeros. If
        /// the provider cannot purge ([`crate::Provider::purge`]), the contents stay. In both cases
        /// the addresses are not reused before the last lease ends.
        Release = "release",
    }
}

/// Memory whose free is deferred. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferredStatistics {
    /// Blocks that their pool does not reuse.
    pub blocks: u64,
    /// Regions that did not go back to their provider.
    pub regions: u64,
    /// Bytes in these blocks and regions.
    pub bytes: u64,
    /// Of `bytes`: bytes in blocks that wait for a [`crate::Completion`], and in regions with such
    /// a block whose pool was dropped.
    pub pending_bytes: u64,
    /// Of `pending_bytes`: bytes with a completion that is [`crate::Progress::Lost`].
    pub lost_bytes: u64,
    /// Bytes that were in use when there was no memory to record that. They leak.
    pub unrecorded_bytes: u64,
}

impl DeferredStatistics {
    /// Returns whether there is nothing to reclaim, now or later.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0 && self.regions == 0
    }
}
