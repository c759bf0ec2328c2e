//! How an exporter behaves.

use crate::cache::LimitPolicy;
use crate::transfer::Exchange;

/// Who may attach to this process in spite of yama (`PR_SET_PTRACER`, `prctl(2)`). Set only if the settings
/// say so, and to what they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ptracer {
    /// Leave it as it is.
    #[default]
    None,
    /// Any process of the same user.
    Any,
    /// The process with this id, and its descendants.
    Process(u32),
}

/// Settings of an [`crate::Exporter`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExporterSettings {
    /// Which ways importers may take; decides whether the socket is started. Default: auto.
    pub exchange: Exchange,
    /// `PR_SET_PTRACER` at the first export. Default: none.
    pub ptracer: Ptracer,
    /// The most native exports (one per region) that are kept, 0 for no limit other than half of
    /// `RLIMIT_NOFILE` for providers that hold an fd for each. Default: 0. `UMF_MAX_CREATED_IPC_HANDLES`.
    pub max_created_handles: u64,
    /// What happens over that limit when all are in use. Default: soft.
    pub limit: LimitPolicy,
    /// The most exports at one time; the ledger has 128 bytes of sparse file for each. Default: 4,194,304.
    pub slots: u32,
}

impl Default for ExporterSettings {
    fn default() -> Self {
        Self {
            exchange: Exchange::Auto,
            ptracer: Ptracer::None,
            max_created_handles: 0,
            limit: LimitPolicy::Soft,
            slots: crate::ledger::MAX_SLOTS,
        }
    }
}
