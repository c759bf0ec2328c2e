//! [`Importer`]: opens handles, and keeps mappings in a bounded cache. This file has the public
//! types and the settings. `open` has the steps of an open, `producer` the connection to a
//! producer, `region` the cached mappings, `dead` the memory of producers that have ended.

mod dead;
mod mapping;
mod open;
mod producer;
mod region;
mod statistics_ledger;

pub(crate) use dead::sweep_all;
pub use mapping::Mapping;
pub use producer::{cancel_passed_on, is_passed_on, poll_passed_on};
pub use umf_core::Access;

use core::mem::MaybeUninit;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use crate::rendezvous::Directory;
use hashbrown::HashMap;
use umf_core::{Address, Import, ProviderKind};
use umf_os::socket::Allow;
use umf_sync::Lock;

use crate::Result;
use crate::cache::{Cache, CacheStatistics, LimitPolicy, Limits, Memo};
use crate::handle::Handle;
use crate::identity::ProducerId;
use crate::transfer::{ChannelSettings, Exchange};
use dead::DeadProducers;
use mapping::OpenBlock;
use producer::Producer;
use region::{ImportedRegion, Key, MemoizedWindow};
use statistics_ledger::StatisticsLedger;

/// Opens handles of other processes and of this one. Needs an [`Import`] for each kind of memory,
/// but no pool and no provider.
///
/// The importer caches one mapping per region, which all blocks in the region share. Opening a
/// handle that the calling thread opened before compares its bytes, pins the mapping and loads a
/// word of the producer's ledger. It takes no lock and makes no system call.
///
/// All methods may be called from several threads at once. In a forked child, mappings of the
/// parent stay valid, and the importer continues with a cache of its own.
#[derive(Debug)]
pub struct Importer {
    inner: Arc<ImporterInner>,
}

pub(crate) struct ImporterInner {
    settings: ImporterSettings,
    imports: Lock<HashMap<ProviderKind, Arc<dyn Import>>>,
    cache: Cache<Key, ImportedRegion>,
    /// Handles that a thread opened, by access.
    memo: [Memo<OpenBlock>; 2],
    /// Windows that a thread used, by access.
    windows: [Memo<MemoizedWindow, { region::WINDOW_KEY_SIZE }, 64>; 2],
    producers: Lock<HashMap<ProducerId, Arc<Producer>>>,
    dead: DeadProducers,
    statistics_ledger: StatisticsLedger,
}

impl core::fmt::Debug for ImporterInner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Importer")
            .field("settings", &self.settings)
            .field("kinds", &self.imports.lock().keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Importer {
    /// Returns a builder. Add at least one kind of memory with [`ImporterBuilder::import`].
    #[must_use]
    pub fn builder() -> ImporterBuilder {
        ImporterBuilder::default()
    }

    /// Returns a builder of another importer with the settings and the kinds of memory of this one.
    /// Both map memory at addresses of their own.
    #[must_use]
    pub fn to_builder(&self) -> ImporterBuilder {
        let imports = self.inner.imports.lock().clone();
        ImporterBuilder { settings: self.inner.settings.clone(), imports }
    }

    /// Opens a handle for reading and writing.
    ///
    /// # Errors
    /// See [`crate::Error`]. Nothing stays open after an error.
    #[inline]
    pub fn open(&self, handle: &Handle) -> Result<Mapping<'_>> {
        self.inner.open(handle, Access::ReadWrite)
    }

    /// Opens a handle for reading. This process cannot write through the mapping. Other processes
    /// may still write, unless [`Handle::is_read_only`].
    ///
    /// # Errors
    /// As [`Importer::open`].
    #[inline]
    pub fn open_read_only(&self, handle: &Handle) -> Result<Mapping<'_>> {
        self.inner.open(handle, Access::ReadOnly)
    }

    /// As [`Importer::open`] or [`Importer::open_read_only`], from the bytes of a handle. They are
    /// decoded and checked only if the calling thread has not opened them before.
    ///
    /// # Errors
    /// As [`Importer::open`], and [`crate::Error::Decode`].
    #[inline]
    pub fn open_bytes(&self, bytes: &[u8], access: Access) -> Result<Mapping<'_>> {
        match bytes.try_into() {
            Ok(bytes) => self.inner.open_bytes(bytes, access),
            Err(_) => Err(crate::DecodeError::Length { length: bytes.len() }.into()),
        }
    }

    /// Opens a handle that the calling thread opened before with the same access. `place` receives
    /// the block's address and length, and returns the memory into which the mapping is written.
    /// The mapping is not moved after that.
    ///
    /// Returns `false` if the handle is not in the thread's memo, is stale, or `place` returned
    /// `None`. Then use [`Importer::open_bytes`].
    #[inline(always)]
    #[must_use]
    pub fn open_cached<'i, 'p>(
        &'i self,
        bytes: &[u8; crate::HANDLE_SIZE],
        access: Access,
        place: impl FnOnce(Address, usize) -> Option<&'p mut MaybeUninit<Mapping<'i>>>,
    ) -> bool
    where
        'i: 'p,
    {
        self.inner.open_fast_into(bytes, access, place)
    }

    /// Adds a kind of memory, or replaces its [`Import`]. Open mappings keep the `Import` that
    /// opened them.
    pub fn add_import(&self, import: Arc<dyn Import>) {
        let before = self.inner.imports.lock().insert(import.kind(), import);
        // Dropped without the lock: its destructor may wait for a fork, which waits for the lock.
        drop(before);
    }

    /// Closes idle mappings, and disconnects from producers without a mapping. Returns the number
    /// of mappings that were closed.
    pub fn evict_idle(&self) -> usize {
        self.inner.evict_idle()
    }

    /// Returns the counters of the cache.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.inner.statistics()
    }

    /// Returns the settings in force.
    #[must_use]
    pub fn settings(&self) -> &ImporterSettings {
        &self.inner.settings
    }
}

/// Settings of an [`Importer`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImporterSettings {
    /// The exchange modes that may fetch the producer's descriptors, in order. Default: auto.
    pub exchange: Exchange,
    /// The directory in which producers of other containers answer. Default: none. `UMF_IPC_DIR`.
    pub directory: Option<PathBuf>,
    /// Which producers this process asks over a socket. Default: those of the same user.
    pub allow: Allow,
    /// The most mappings (one per region) in the cache, 0 for no limit. Default: 0.
    /// `UMF_MAX_OPENED_IPC_HANDLES`.
    pub max_opened_handles: u64,
    /// The most bytes of mappings in the cache, 0 for no limit. Default: 0.
    pub max_opened_bytes: u64,
    /// The policy above a limit if all mappings are in use. Default: soft.
    pub limit: LimitPolicy,
    /// Shards of the cache's table, a power of two. With more shards, more threads can open regions
    /// at the same time. Default: 16.
    pub shards: usize,
    /// The longest time that a producer may take to answer on its socket. Default: 2 s.
    pub open_timeout: Duration,
    /// Whether an open takes a lease, which prevents the reuse of freed memory while it is open.
    /// Without leases a mapping may show other contents as soon as its block is freed
    /// ([`crate::Mapping::is_current`]). Disable them only in processes that can neither open files
    /// through `/proc` nor reach their producers' sockets. Default: true.
    pub leases: bool,
}

impl ImporterSettings {
    fn channel(&self) -> ChannelSettings {
        ChannelSettings {
            directory: self.directory.as_ref().map(Directory::new),
            allow: self.allow,
            timeout: self.open_timeout,
        }
    }
}

impl Default for ImporterSettings {
    fn default() -> Self {
        Self {
            exchange: Exchange::Auto,
            directory: None,
            allow: Allow::SameUser,
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
    /// Adds a kind of memory. A second [`Import`] of the same kind replaces the first.
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

    /// Sets the exchange modes that may fetch the producer's descriptors.
    #[must_use]
    pub fn exchange(mut self, exchange: Exchange) -> Self {
        self.settings.exchange = exchange;
        self
    }

    /// Sets the most mappings in the cache, 0 for no limit.
    #[must_use]
    pub const fn max_opened_handles(mut self, limit: u64) -> Self {
        self.settings.max_opened_handles = limit;
        self
    }

    /// Sets the most bytes of mappings in the cache, 0 for no limit.
    #[must_use]
    pub const fn max_opened_bytes(mut self, limit: u64) -> Self {
        self.settings.max_opened_bytes = limit;
        self
    }

    /// Sets the policy above a limit if all mappings are in use.
    #[must_use]
    pub const fn limit(mut self, policy: LimitPolicy) -> Self {
        self.settings.limit = policy;
        self
    }

    /// Sets the longest time that a producer may take to answer on its socket.
    #[must_use]
    pub const fn open_timeout(mut self, timeout: Duration) -> Self {
        self.settings.open_timeout = timeout;
        self
    }

    /// Sets whether an open takes a lease: see [`ImporterSettings::leases`].
    #[must_use]
    pub const fn leases(mut self, leases: bool) -> Self {
        self.settings.leases = leases;
        self
    }

    /// Builds the importer.
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
        let inner = Arc::new(ImporterInner {
            cache: Cache::new(limits, self.settings.shards.clamp(1, 1024)),
            memo: [const { Memo::new() }; 2],
            windows: [const { Memo::new() }; 2],
            producers: Lock::new(HashMap::new()),
            dead: DeadProducers::default(),
            imports: Lock::new(self.imports),
            statistics_ledger: StatisticsLedger::default(),
            settings: self.settings,
        });
        dead::register(&inner);
        Ok(Importer { inner })
    }
}
