//! [`Pool`]: what an application allocates from.

use std::sync::Arc;
use std::time::Duration;

use umf_core::ProviderRef;
use umf_core::held::{HeldStatistics, OnFree};
use umf_core::history::PoolHistory;
use umf_core::leaks::LeakReport;
use umf_core::map::PoolMap;
use umf_core::pool::missing;
use umf_core::shortage::OutOfMemory;
use umf_core::statistics::PoolStatistics;
use umf_core::{Controls, Inspect, Layout, Visibility};
use umf_provider_host::HostProvider;

use crate::behind::Behind;
use crate::{Block, CheckSettings, Leaks, OwnedBlock, Poison, Result, assembly, leaks, settings};

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
    /// A pool over shared host memory, whose blocks can be exported to other processes: the set `[pool.shared]` of
    /// the settings, over `[provider.shared]` if that is given.
    ///
    /// # Errors
    /// [`crate::Error::Settings`] and others if the settings cannot be used; [`crate::Error::Memory`].
    pub fn shared() -> Result<Self> {
        let settings = settings()?;
        let named = settings.pool("shared")?.provider;
        let provider: ProviderRef = if settings.loaded().declares("provider", "shared") {
            assembly::provider(settings, "shared")?.into()
        } else if settings.loaded().declares("pool", "shared") && named != "host" {
            assembly::provider(settings, &named)?.into()
        } else {
            HostProvider::builder().name("shared").visibility(Visibility::Shared).build()?.into()
        };
        Ok(Self::from_pool(assembly::pool(settings, "shared", provider)?))
    }

    /// A pool over private host memory: fast, and not for export.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    pub fn private() -> Result<Self> {
        let provider: ProviderRef = HostProvider::builder().name("private").build()?.into();
        let settings = settings()?;
        Ok(Self::from_pool(assembly::pool(settings, "private", provider)?))
    }

    /// A pool over shared host memory in which every block is a memory file of its own: exporting one exposes
    /// nothing else, and no page is shared with another block. Costs an fd, a mapping and system calls per block. Of the
    /// settings it heeds `on_free` and `max_held` of `[pool.isolated]`.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    pub fn isolated() -> Result<Self> {
        let provider =
            HostProvider::builder().name("isolated").visibility(Visibility::Shared).isolate(true).build()?;
        let pool = umf_pool_proxy::ProxyPool::new(provider)?;
        assembly::holding(&*pool, &settings()?.pool("isolated")?)?;
        Ok(Self::from_pool(pool))
    }

    /// The pool `[pool.<name>]` of the settings, over the provider that it names.
    ///
    /// # Errors
    /// As [`Pool::shared`]; [`crate::Error::UnknownName`], [`crate::Error::UnknownKind`].
    pub fn named(name: &str) -> Result<Self> {
        let settings = settings()?;
        let provider = assembly::provider(settings, &settings.pool(name)?.provider)?;
        Ok(Self::from_pool(assembly::pool(settings, name, provider.into())?))
    }

    /// A pool over the provider `[provider.<provider>]` of the settings, or over one of a kind of device memory by its kind's name
    /// alone (`level-zero`, `cuda`, `dma-buf`): otherwise the set `[pool.<provider>]`.
    ///
    /// # Errors
    /// As [`Pool::named`]; [`crate::Error::Memory`] says what is lacking where there is no such device.
    pub fn over(provider: &str) -> Result<Self> {
        let settings = settings()?;
        let made = assembly::provider(settings, provider)?;
        Ok(Self::from_pool(assembly::pool(settings, provider, made.into())?))
    }

    /// A pool of one's own making.
    #[must_use]
    pub fn from_pool(pool: Arc<dyn umf_core::Pool>) -> Self {
        Self { pool: pool.into() }
    }

    /// A builder for a slab pool over any provider.
    #[must_use]
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
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
    /// others, and says whether to try again; see [`umf_core::shortage`].
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool asks nobody.
    pub fn on_shortage(&self, callback: impl OutOfMemory + 'static) -> Result<()> {
        self.controls()?.set_out_of_memory(Some(Arc::new(callback)));
        Ok(())
    }

    /// Waits until nobody uses memory any more that was freed here, in another process or until a [`crate::Completion`] is ready, but
    /// no longer than `timeout`; returns what is still held for that reason. Meanwhile it is not handed out again.
    pub fn drain(&self, timeout: Duration) -> HeldStatistics {
        self.pool.controls().map_or_else(HeldStatistics::default, |controls| controls.drain(timeout))
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

    /// What happened in it lately, if it is set to remember that ([`PoolBuilder::history`]).
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if it is not, or if this kind of pool cannot.
    pub fn history(&self) -> Result<PoolHistory> {
        let history = self.pool.inspect().and_then(Inspect::history);
        Ok(history.ok_or(missing("a history, or is not set to keep one"))?)
    }

    /// Shows `look` which blocks are live, and where they were allocated if it is set to remember that ([`PoolBuilder::leaks`]).
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

/// Builds a slab pool.
#[derive(Clone, Debug, Default)]
pub struct PoolBuilder {
    provider: Option<ProviderRef>,
    slab: umf_pool_slab::SlabSettings,
    checks: CheckSettings,
}

impl PoolBuilder {
    /// Where the memory comes from. Default: shared host memory.
    #[must_use]
    pub fn provider(mut self, provider: impl Into<ProviderRef>) -> Self {
        self.provider = Some(provider.into());
        self
    }

    /// Its name, in statistics, logs and errors. Default: `"slab"`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.slab = self.slab.name(name);
        self
    }

    /// Changes further settings of the slab pool. What was set before stays unless `change` sets it.
    ///
    /// # Examples
    /// ```
    /// let builder = umf::Pool::builder().memory_limit(64 << 20).slab(|slab| slab.capacity(8));
    /// # builder.build()?;
    /// # Ok::<(), umf::Error>(())
    /// ```
    #[must_use]
    pub fn slab(
        mut self,
        change: impl FnOnce(umf_pool_slab::SlabSettings) -> umf_pool_slab::SlabSettings,
    ) -> Self {
        self.slab = change(self.slab);
        self
    }

    /// The most bytes that the pool may hold, free ones included; 0 is unlimited. Default: 0.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.slab = self.slab.memory_limit(bytes);
        self
    }

    /// The largest block that is kept for later use, in bytes. A larger one is a region of its own.
    #[must_use]
    pub fn max_poolable_size(mut self, bytes: usize) -> Self {
        self.slab = self.slab.max_poolable_size(bytes);
        self
    }

    /// What becomes of the contents of a block that is freed while other processes have it open. Default:
    /// [`OnFree::Hold`].
    #[must_use]
    pub fn on_free(mut self, on_free: OnFree) -> Self {
        self.slab = self.slab.on_free(on_free);
        self
    }

    /// The most bytes of freed memory that may be held because other processes have it open, before allocating more fails;
    /// 0 is unlimited. Default: 0.
    #[must_use]
    pub fn max_held(mut self, bytes: u64) -> Self {
        self.slab = self.slab.max_held(bytes);
        self
    }

    /// Replaces all that is set to be checked ([`PoolBuilder::history`] and the three after it change a
    /// part of this).
    #[must_use]
    pub fn check(mut self, checks: CheckSettings) -> Self {
        self.checks = checks;
        self
    }

    /// How many events each thread's history keeps: [`Pool::history`]. Default: 0, none.
    #[must_use]
    pub fn history(mut self, events: u32) -> Self {
        self.checks = self.checks.history(events);
        self
    }

    /// What is told of blocks that are live when the pool is dropped, or when the process ends. Default: [`Leaks::Off`].
    #[must_use]
    pub fn leaks(mut self, leaks: Leaks) -> Self {
        self.checks = self.checks.leaks(leaks);
        self
    }

    /// What is filled, so that mistakes show. Default: [`Poison::Off`].
    #[must_use]
    pub fn poison(mut self, poison: Poison) -> Self {
        self.checks = self.checks.poison(poison);
        self
    }

    /// Bytes of freed blocks that wait before anybody gets them again. Default: 0.
    #[must_use]
    pub fn quarantine(mut self, bytes: u64) -> Self {
        self.checks = self.checks.quarantine(bytes);
        self
    }

    /// Bytes that are taken from the provider at the beginning, and kept. Default: 0.
    #[must_use]
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.slab = self.slab.reserve(bytes);
        self
    }

    /// The most bytes that may be free before memory goes back to the provider unasked; 0 is unlimited. Default: 0.
    #[must_use]
    pub fn max_cached(mut self, bytes: u64) -> Self {
        self.slab = self.slab.max_cached(bytes);
        self
    }

    /// How long memory may lie unused before it goes back to the provider unasked; zero is for ever. Default: zero.
    #[must_use]
    pub fn release_after(mut self, age: Duration) -> Self {
        self.slab = self.slab.release_after(age);
        self
    }

    /// Who is asked when an allocation would fail for lack of memory: any closure. Default: nobody.
    #[must_use]
    pub fn on_shortage(mut self, callback: impl OutOfMemory + 'static) -> Self {
        self.slab = self.slab.out_of_memory(callback);
        self
    }

    /// The pool.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: no memory, or settings that contradict each other or the provider.
    pub fn build(self) -> Result<Pool> {
        leaks::name_stacks();
        let provider = match self.provider {
            Some(provider) => provider,
            None => HostProvider::builder().name("shared").visibility(Visibility::Shared).build()?.into(),
        };
        let pool = umf_pool_slab::SlabPool::new(provider, self.slab)?;
        Ok(Pool::from_pool(assembly::checked(pool, self.checks)?))
    }
}
