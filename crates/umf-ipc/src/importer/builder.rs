//! Building an importer.

use core::time::Duration;
use std::sync::Arc;

use hashbrown::HashMap;
use umf_core::{Import, ProviderKind};
use umf_sync::Lock;

use super::board::Board;
use super::{Importer, Inner};
use crate::Result;
use crate::cache::{Cache, LimitPolicy, Limits, Memo};
use crate::transfer::Exchange;

/// Settings of an [`Importer`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImporterSettings {
    /// Which ways to the producer's fds may be taken, in which order. Default: auto.
    pub exchange: Exchange,
    /// The most mappings (one per region) that are kept, 0 for no limit. Default: 0.
    /// `UMF_MAX_OPENED_IPC_HANDLES`.
    pub max_opened_handles: u64,
    /// The most bytes that are kept mapped, 0 for no limit. Default: 0.
    pub max_opened_bytes: u64,
    /// What happens over a limit when all mappings are in use. Default: soft.
    pub limit: LimitPolicy,
    /// Shards of the table, a power of two. More let more threads miss at the same time. Default: 16.
    pub shards: usize,
    /// How long a producer may take to answer on its socket. Default: 2 s.
    pub open_timeout: Duration,
    /// Whether an open takes a lease, which keeps freed memory from being used again while it is open. Without leases a mapping
    /// may show other contents as soon as its block is freed ([`crate::Mapping::is_current`] tells). For processes that can
    /// neither open files through `/proc` nor reach their producers' sockets. Default: true.
    pub leases: bool,
}

impl Default for ImporterSettings {
    fn default() -> Self {
        Self {
            exchange: Exchange::Auto,
            max_opened_handles: 0,
            max_opened_bytes: 0,
            limit: LimitPolicy::Soft,
            shards: 16,
            open_timeout: Duration::from_secs(2),
            leases: true,
        }
    }
}

/// Builds an [`Importer`].
#[derive(Default)]
pub struct ImporterBuilder {
    settings: ImporterSettings,
    imports: HashMap<ProviderKind, Arc<dyn Import>>,
}

impl core::fmt::Debug for ImporterBuilder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ImporterBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl ImporterBuilder {
    /// Lets the importer open this kind of memory. A second one of the same kind replaces the first.
    #[must_use]
    pub fn import(mut self, import: Arc<dyn Import>) -> Self {
        self.imports.insert(import.kind(), import);
        self
    }

    /// Sets all settings at once.
    #[must_use]
    pub fn settings(mut self, settings: ImporterSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Which ways to the producer's fds may be taken.
    #[must_use]
    pub fn exchange(mut self, exchange: Exchange) -> Self {
        self.settings.exchange = exchange;
        self
    }

    /// The most mappings that are kept, 0 for no limit.
    #[must_use]
    pub const fn max_opened_handles(mut self, limit: u64) -> Self {
        self.settings.max_opened_handles = limit;
        self
    }

    /// The most bytes that are kept mapped, 0 for no limit.
    #[must_use]
    pub const fn max_opened_bytes(mut self, limit: u64) -> Self {
        self.settings.max_opened_bytes = limit;
        self
    }

    /// What happens over a limit when all mappings are in use.
    #[must_use]
    pub const fn limit(mut self, policy: LimitPolicy) -> Self {
        self.settings.limit = policy;
        self
    }

    /// How long a producer may take to answer on its socket.
    #[must_use]
    pub const fn open_timeout(mut self, timeout: Duration) -> Self {
        self.settings.open_timeout = timeout;
        self
    }

    /// Whether an open takes a lease: see [`ImporterSettings::leases`].
    #[must_use]
    pub const fn leases(mut self, leases: bool) -> Self {
        self.settings.leases = leases;
        self
    }

    /// The importer.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this process has too many (4096 exporters, importers and pools).
    pub fn build(self) -> Result<Importer> {
        let limits = Limits {
            entries: self.settings.max_opened_handles,
            bytes: self.settings.max_opened_bytes,
            policy: self.settings.limit,
            what: "opened mappings",
            setting: "UMF_MAX_OPENED_IPC_HANDLES, UMF_IPC_MAX_OPENED_BYTES",
        };
        Importer::new(Inner {
            cache: Cache::new(limits, self.settings.shards.clamp(1, 1024)),
            memo: [const { Memo::new() }; 2],
            windows: [const { Memo::new() }; 2],
            producers: Lock::new(HashMap::new()),
            imports: Lock::new(self.imports),
            board: Board::default(),
            settings: self.settings,
        })
    }
}
