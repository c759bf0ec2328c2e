//! What the launcher and the ranks of a demo say to each other.

use serde::{Deserialize, Serialize};
use umf::Handle;

use super::census::Census;
use super::plan::Round;

/// What the launcher tells a rank to do. Each order has one answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Allocate, fill and export the blocks.
    Export,
    /// Open another rank's blocks and check what they hold.
    Open { owner: u32, handles: Vec<Handle> },
    /// Answer in the opened blocks.
    Answer(Round),
    /// Check the answers in the own blocks.
    Verify(Round),
    /// Time what is cached, and copy.
    Measure,
    /// Close what is open and free the blocks.
    Free,
    /// Try to open what others have freed.
    OpenStale,
    /// Close what the caches keep.
    LetGo,
    /// Let go of the pool and look what is left.
    Leave,
}

/// What a rank says when it has done so.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Done,
    Exported(Vec<Handle>),
    Left(Box<Report>),
    /// It could not be done, and why.
    Failed(String),
}

/// What a rank has to tell in the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    pub process: u32,
    pub exported: u64,
    pub opened: u64,
    pub times: Times,
    pub importer: Counters,
    pub exporter: Counters,
    /// Handles of freed blocks that were refused as stale.
    pub stale_refused: u64,
    pub before: Census,
    pub after: Census,
    /// The random name of this producer, which its socket would have.
    pub nonce: Option<String>,
}

/// Medians; `None` for what there was nothing to time of.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub get_cold_ns: Option<f64>,
    pub get_cached_ns: Option<f64>,
    /// The first open of a producer: it is found and its ledger mapped.
    pub open_first_ns: Option<f64>,
    pub open_cold_ns: Option<f64>,
    pub open_cached_ns: Option<f64>,
    /// Out of the mappings into private memory.
    pub copy_bytes_per_s: Option<f64>,
}

/// A cache's counters: what it has done in the end, and what it held while everything was open.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counters {
    pub hits: u64,
    pub table_hits: u64,
    pub misses: u64,
    pub stale: u64,
    pub evictions: u64,
    pub held_entries: u64,
    pub held_bytes: u64,
    pub held_fds: u64,
}
