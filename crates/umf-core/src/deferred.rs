//! Freed memory that is still in use: what becomes of its contents, and how much there is.

crate::words! {
    /// What becomes of the contents of memory that is freed while another process has it open.
    #[derive(Default)]
    pub enum OnFree {
        /// They stay until the last lease goes.
        #[default]
        Hold = "hold",
        /// Whole pages go back to the system at once: who still reads them sees zeros. Where the provider cannot purge
        /// ([`crate::Provider::purge`]), the contents stay. The addresses are not used again before the last lease goes either
        /// way.
        Release = "release",
    }
}

/// What is held. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferredStatistics {
    /// Blocks that their pool does not hand out.
    pub blocks: u64,
    /// Regions that their provider does not get back.
    pub regions: u64,
    /// Bytes in these blocks and regions.
    pub bytes: u64,
    /// Of these, bytes in blocks that wait for a [`crate::Completion`], and in regions that hold
    /// such a block of a pool that is gone.
    pub pending_bytes: u64,
    /// Of those, bytes of which a completion is [`crate::Progress::Lost`].
    pub lost_bytes: u64,
    /// Bytes that were in use when there was no memory to note that: they are never used again.
    pub unrecorded_bytes: u64,
}

impl DeferredStatistics {
    /// Whether nothing is held that can still be let go.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0 && self.regions == 0
    }
}
