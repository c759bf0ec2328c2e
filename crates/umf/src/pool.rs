//! [`Pool`]: what an application allocates from.

use std::sync::Arc;
use std::time::Duration;

use umf_core::ProviderRef;
use umf_core::deferred::{DeferredStatistics, OnFree};
use umf_core::history::PoolHistory;
use umf_core::leaks::LeakReport;
use umf_core::map::PoolMap;
use umf_core::out_of_memory::OnOutOfMemory;
use umf_core::pool::missing;
use umf_core::statistics::PoolStatistics;
use umf_core::{Controls, Inspect, Layout};
#[cfg(all(feature = "host", any(feature = "slab", not(feature = "config"))))]
use umf_provider_host::HostProvider;
#[cfg(any(feature = "config", feature = "slab"))]
use umf_runtime::checked::{CheckSettings, Checked, Leaks};

#[cfg(feature = "config")]
use crate::assembly;
use crate::behind::Behind;
use crate::{Block, OwnedBlock, Result};

/// Hands out blocks of memory.
///
/// Blocks borrow their pool, or own a share of it ([`Pool::allocate_owned`]), and free themselves when
/// dropped. A clone is the same pool. All methods may be called from several threads at once.
///
/// As `&Pool` it is an allocator for `allocator_api2::vec::Vec` and `hashbrown::HashMap`, if its memory is
/// host-accessible.
#[derive(Clone)]
pub struct Pool {
    pool: Behind,
}

impl Pool {
    /// Opens the pool `shared`: host memory that other processes can open. Its settings are
    /// `[pool.shared]` and `[provider.shared]`.
    ///
    /// # Errors
    /// [`crate::Error::Settings`] and others if the settings cannot be used; [`crate::Error::Memory`].
    #[cfg(feature = "host")]
    pub fn shared() -> Result<Self> {
        #[cfg(feature = "config")]
        return Self::named("shared");
        #[cfg(not(feature = "config"))]
        Self::over_core("shared", shared_memory("shared", false)?)
    }

    /// Opens the pool `private`: host memory of this process alone. It is fast, and cannot be
    /// exported. Its settings are `[pool.private]` and `[provider.private]`.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    #[cfg(feature = "host")]
    pub fn private() -> Result<Self> {
        #[cfg(feature = "config")]
        return Self::named("private");
        #[cfg(not(feature = "config"))]
        Self::over_core("private", HostProvider::builder().name("private").build()?.into())
    }

    /// Opens the pool `isolated`: shared host memory in which each block is a memory file of its
    /// own. A process that opens one sees nothing else, and no page is shared with another block.
    /// Costs an fd, a mapping and system calls per block. Its settings are `[pool.isolated]` and
    /// `[provider.isolated]`.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    #[cfg(feature = "host")]
    pub fn isolated() -> Result<Self> {
        #[cfg(feature = "config")]
        return Self::named("isolated");
        #[cfg(not(feature = "config"))]
        Ok(Self::from_pool(umf_pool_proxy::ProxyPool::with_settings(
            shared_memory("isolated", true)?,
            umf_pool_proxy::ProxySettings::new().name("isolated"),
        )?))
    }

    /// Opens the pool `[pool.<name>]` of the settings, over the provider that it names.
    ///
    /// # Errors
    /// As [`Pool::shared`]; [`crate::Error::UnknownName`], [`crate::Error::UnknownKind`].
    #[cfg(feature = "config")]
    pub fn named(name: &str) -> Result<Self> {
        let settings = crate::settings()?;
        Self::over_core(name, assembly::provider(settings, &settings.pool(name)?.provider)?.into())
    }

    /// A pool over the provider `[provider.<provider>]` of the settings, or over one of a kind of device memory by its kind's name
    /// alone (`level-zero`, `cuda`, `dma-buf`): otherwise the set `[pool.<provider>]`.
    ///
    /// # Errors
    /// As [`Pool::named`]; [`crate::Error::Memory`] says what is lacking where there is no such device.
    #[cfg(feature = "config")]
    pub fn over(provider: &str) -> Result<Self> {
        Self::over_core(provider, assembly::provider(crate::settings()?, provider)?.into())
    }

    /// The pool `name` of the settings over `provider`. Without settings, one with the defaults.
    #[cfg(any(feature = "config", feature = "host"))]
    fn over_core(name: &str, provider: ProviderRef) -> Result<Self> {
        #[cfg(feature = "config")]
        let pool = assembly::pool(crate::settings()?, name, provider)?;
        #[cfg(all(not(feature = "config"), feature = "slab"))]
        let pool = umf_pool_slab::SlabPool::new(provider, umf_pool_slab::SlabSettings::new().name(name))?;
        #[cfg(not(any(feature = "config", feature = "slab")))]
        let pool = {
            let settings = umf_pool_proxy::ProxySettings::new().name(name);
            umf_pool_proxy::ProxyPool::with_settings(provider, settings)?
        };
        Ok(Self::from_pool(pool))
    }

    /// Wraps a pool that the caller made.
    #[must_use]
    pub fn from_pool(pool: Arc<dyn umf_core::Pool>) -> Self {
        Self { pool: pool.into() }
    }

    /// A builder for a slab pool over any provider.
    #[cfg(feature = "slab")]
    #[must_use]
    pub fn builder() -> crate::PoolBuilder {
        crate::PoolBuilder::default()
    }

    /// Allocates a block of `size` bytes, aligned to 16 (or to `size` rounded up to a power of two, if that is
    /// less).
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: zero size, overflow, no memory left, a limit reached, frozen after a fork.
    #[inline]
    pub fn allocate(&self, size: usize) -> Result<Block<'_>> {
        let align = size.checked_next_power_of_two().map_or(1, |size| size.min(16));
        self.allocate_aligned(size, align)
    }

    /// Allocates a block of `size` bytes at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// As [`Pool::allocate`]; an alignment that is no power of two or beyond what the provider can give.
    #[inline]
    pub fn allocate_aligned(&self, size: usize, align: usize) -> Result<Block<'_>> {
        let layout = Layout::new(size, align)?;
        let address = umf_core::pool::allocate(&*self.pool, layout)?;
        Ok(Block::new(self, address, size))
    }

    /// As [`Pool::allocate`], for a block that keeps its pool alive. It costs one more atomic increment
    /// and decrement.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    ///
    /// # Examples
    /// ```
    /// struct Message {
    ///     body: umf::OwnedBlock,
    /// }
    ///
    /// let pool = umf::Pool::shared()?;
    /// let message = Message { body: pool.allocate_owned(4096)? };
    /// drop(pool);
    /// std::thread::spawn(move || message.body.write(0, b"still there")).join().unwrap()?;
    /// # Ok::<(), umf::Error>(())
    /// ```
    pub fn allocate_owned(&self, size: usize) -> Result<OwnedBlock> {
        Ok(self.allocate(size)?.into_owned())
    }

    /// Gives free memory back to the provider until at most `keep` bytes of free memory are left; returns how many
    /// bytes went.
    ///
    /// # Errors
    /// [`crate::Error::Memory`], what the provider says.
    pub fn trim(&self, keep: usize) -> Result<usize> {
        Ok(self.pool.trim(keep)?)
    }

    /// Takes memory from the provider until at least `bytes` are there, blocks that are live included, with their pages made if the
    /// provider can; it stays until [`Pool::trim`]. Returns how many bytes came.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: nothing has come then; a pool that keeps nothing cannot.
    pub fn reserve(&self, bytes: usize) -> Result<usize> {
        Ok(self.pool.reserves().ok_or(missing("reserving memory"))?.reserve(bytes)?)
    }

    /// Gives back at once what the release policy (`max_cached`, `release_after_ms`) says that should have gone by now; returns how
    /// many bytes went. For idle moments: otherwise threads see to that as they allocate and free.
    ///
    /// # Errors
    /// [`crate::Error::Memory`], what the provider says.
    pub fn purge(&self) -> Result<usize> {
        self.pool.reserves().map_or(Ok(0), |reserves| Ok(reserves.purge()?))
    }

    /// Sets who is asked when an allocation would fail for lack of memory: any closure. It may free blocks, trim this pool and
    /// others, and says whether to try again; see [`umf_core::out_of_memory`].
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool asks nobody.
    pub fn on_out_of_memory(&self, callback: impl OnOutOfMemory + 'static) -> Result<()> {
        self.controls()?.set_on_out_of_memory(Some(Arc::new(callback)));
        Ok(())
    }

    /// Waits until nobody uses memory any more that was freed here, in another process or until a [`crate::Completion`] is ready, but
    /// no longer than `timeout`; returns what is still held for that reason. Meanwhile it is not handed out again.
    pub fn drain(&self, timeout: Duration) -> DeferredStatistics {
        self.pool.controls().map_or_else(DeferredStatistics::default, |controls| controls.drain(timeout))
    }

    /// Sets what becomes of blocks that are freed while other processes have them open, and how many bytes may be held because
    /// of that (0 is unlimited) before allocating fails as [`umf_core::Error::HeldLimit`].
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool cannot.
    pub fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) -> Result<()> {
        self.controls()?.set_on_free(on_free, max_held_bytes);
        Ok(())
    }

    /// What its regions look like now: which of their blocks are handed out, and what is free. [`crate::map`] writes and draws it.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool does not keep that in mind.
    pub fn map(&self) -> Result<PoolMap> {
        let map = self.pool.inspect().and_then(Inspect::map);
        Ok(map.ok_or(missing("a map of its regions"))?)
    }

    /// What happened in it lately, if it is set to remember that ([`crate::PoolBuilder::history`]).
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if it is not, or if this kind of pool cannot.
    pub fn history(&self) -> Result<PoolHistory> {
        let history = self.pool.inspect().and_then(Inspect::history);
        Ok(history.ok_or(missing("a history, or is not set to keep one"))?)
    }

    /// Shows `look` which blocks are live, and where they were allocated if it is set to remember that ([`crate::PoolBuilder::leaks`]).
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool cannot tell.
    pub fn leaks(&self, mut look: impl FnMut(&LeakReport<'_>)) -> Result<()> {
        let is_known = self.pool.inspect().is_some_and(|inspect| inspect.leaks(&mut look));
        Ok(is_known.then_some(()).ok_or(missing("a report of leaks"))?)
    }

    fn controls(&self) -> Result<&dyn Controls> {
        Ok(self.pool.controls().ok_or(missing("being controlled while in use"))?)
    }

    /// What the pool holds.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        self.pool.statistics()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.pool.name()
    }

    /// Where its memory comes from.
    #[must_use]
    pub fn provider(&self) -> &ProviderRef {
        self.pool.provider()
    }

    /// The pool behind this one.
    #[must_use]
    #[inline]
    pub fn as_core(&self) -> &dyn umf_core::Pool {
        &*self.pool
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool {:?} over {:?}", self.name(), self.provider())
    }
}

/// A provider of shared host memory.
#[cfg(all(feature = "host", any(feature = "slab", not(feature = "config"))))]
pub(crate) fn shared_memory(name: &'static str, isolate: bool) -> Result<ProviderRef> {
    let builder = HostProvider::builder().name(name).visibility(umf_core::Visibility::Shared);
    Ok(builder.isolate(isolate).build()?.into())
}

/// The pool itself, or before it what checks its use.
#[cfg(any(feature = "config", feature = "slab"))]
pub(crate) fn checked(
    pool: Arc<dyn umf_core::Pool>,
    checks: CheckSettings,
) -> umf_core::Result<Arc<dyn umf_core::Pool>> {
    if checks.leaks == Leaks::Sites {
        crate::leaks::name_stacks();
    }
    Ok(if checks.is_off() { pool } else { Checked::new(pool, checks)? })
}
