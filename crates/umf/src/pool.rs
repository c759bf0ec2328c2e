//! [`Pool`]: the pool of an application, and its use as an allocator of collections.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use allocator_api2::alloc::{AllocError, Allocator};
use umf_core::deferred::{DeferredStatistics, OnFree};
use umf_core::history::PoolHistory;
use umf_core::leaks::LeakReport;
use umf_core::map::PoolMap;
use umf_core::out_of_memory::OnOutOfMemory;
use umf_core::pool::missing;
use umf_core::statistics::PoolStatistics;
use umf_core::{Address, Controls, Inspect, Layout, ProviderRef};
#[cfg(all(feature = "host", any(feature = "slab", not(feature = "config"))))]
use umf_provider_host::HostProvider;
#[cfg(any(feature = "config", feature = "slab"))]
use umf_runtime::checked::{CheckSettings, Checked, Leaks};

#[cfg(feature = "config")]
use crate::assembly;
use crate::{Block, OwnedBlock, Result};

/// A pool of memory blocks.
///
/// Blocks borrow their pool, or own a share of it ([`Pool::allocate_owned`]), and free themselves
/// when dropped. A clone is the same pool. All methods may be called from several threads at once.
///
/// `&Pool` is an allocator for `allocator_api2::vec::Vec` and `hashbrown::HashMap`, if the memory
/// is host-accessible.
#[derive(Clone)]
pub struct Pool {
    pool: PoolRef,
}

/// An `Arc<dyn Pool>` with the address of its content cached.
///
/// An `Arc` of a trait object computes that address from the alignment in the vtable at each
/// access. That would be a tenth of the cost of an allocation.
#[derive(Clone)]
struct PoolRef {
    /// Points into `_owner`.
    pool: NonNull<dyn umf_core::Pool>,
    _owner: Arc<dyn umf_core::Pool>,
}

// SAFETY: a `PoolRef` gives the access that its `Arc` gives, and that `Arc` is `Send`.
unsafe impl Send for PoolRef {}
// SAFETY: a `PoolRef` gives the access that its `Arc` gives, and that `Arc` is `Sync`.
unsafe impl Sync for PoolRef {}

impl From<Arc<dyn umf_core::Pool>> for PoolRef {
    fn from(owner: Arc<dyn umf_core::Pool>) -> Self {
        Self { pool: NonNull::from(&*owner), _owner: owner }
    }
}

impl Deref for PoolRef {
    type Target = dyn umf_core::Pool;

    #[inline(always)]
    fn deref(&self) -> &(dyn umf_core::Pool + 'static) {
        // SAFETY: the content of an `Arc` does not move, and lives as long as `_owner`.
        unsafe { self.pool.as_ref() }
    }
}

impl Pool {
    /// Opens the pool `shared`: host memory that other processes can open. Its settings are
    /// `[pool.shared]` and `[provider.shared]`.
    ///
    /// # Errors
    /// [`crate::Error::Settings`] and others if the settings cannot be used;
    /// [`crate::Error::Memory`].
    #[cfg(feature = "host")]
    pub fn shared() -> Result<Self> {
        #[cfg(feature = "config")]
        return Self::named("shared");
        #[cfg(not(feature = "config"))]
        Self::over_core("shared", shared_memory("shared", false)?)
    }

    /// Opens the pool `private`: host memory of this process only, which cannot be exported. Its
    /// settings are `[pool.private]` and `[provider.private]`.
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
    /// own. A process that opens a block has no access to any other block. Each block costs an fd,
    /// a mapping and system calls. Its settings are `[pool.isolated]` and `[provider.isolated]`.
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

    /// Opens the pool `[pool.<provider>]` of the settings over the provider
    /// `[provider.<provider>]`. The name of a kind (`level-zero`, `cuda`, `dma-buf`) is a provider
    /// with the defaults of that kind.
    ///
    /// # Errors
    /// As [`Pool::named`]. If there is no such device, [`crate::Error::Memory`] says what is
    /// missing.
    #[cfg(feature = "config")]
    pub fn over(provider: &str) -> Result<Self> {
        Self::over_core(provider, assembly::provider(crate::settings()?, provider)?.into())
    }

    /// Opens the pool `name` of the settings over `provider`, or one with the defaults in a build
    /// without settings.
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

    /// Wraps a pool implementation ([`crate::pools`], or one of another crate).
    #[must_use]
    pub fn from_pool(pool: Arc<dyn umf_core::Pool>) -> Self {
        Self { pool: pool.into() }
    }

    /// Returns a builder for a slab pool over any provider.
    #[cfg(feature = "slab")]
    #[must_use]
    pub fn builder() -> crate::PoolBuilder {
        crate::PoolBuilder::default()
    }

    /// Allocates a block of `size` bytes. Its alignment is 16, or `size` rounded up to a power of
    /// two if that is less.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: zero size, overflow, out of memory, a limit reached, or shared memory in
    /// a forked child.
    #[inline]
    pub fn allocate(&self, size: usize) -> Result<Block<'_>> {
        let align = size.checked_next_power_of_two().map_or(1, |size| size.min(16));
        self.allocate_aligned(size, align)
    }

    /// Allocates a block of `size` bytes at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// As [`Pool::allocate`]; an alignment that is no power of two, or larger than the provider
    /// supports.
    #[inline]
    pub fn allocate_aligned(&self, size: usize, align: usize) -> Result<Block<'_>> {
        let layout = Layout::new(size, align)?;
        let address = umf_core::pool::allocate(&*self.pool, layout)?;
        Ok(Block::new(self, address, size))
    }

    /// Allocates as [`Pool::allocate`] a block that keeps its pool alive. This costs one more
    /// atomic increment and decrement.
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

    /// Returns free memory to the provider until at most `keep` bytes of free memory are left.
    /// Returns the number of bytes released.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: the provider's error.
    pub fn trim(&self, keep: usize) -> Result<usize> {
        Ok(self.pool.trim(keep)?)
    }

    /// Allocates from the provider until the pool has at least `bytes`, live blocks included. Pages
    /// are populated if the provider supports it. The memory stays in the pool until
    /// [`Pool::trim`]. Returns the number of bytes added.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: the provider's error, and then no memory was added; or this kind of
    /// pool has no cache.
    pub fn reserve(&self, bytes: usize) -> Result<usize> {
        Ok(self.pool.reserves().ok_or(missing("reserving memory"))?.reserve(bytes)?)
    }

    /// Applies the release policy (`max_cached`, `release_after_ms`) now. Returns the number of
    /// bytes released. Threads apply it as they allocate and free, so this is for a program that is
    /// idle.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: the provider's error.
    pub fn purge(&self) -> Result<usize> {
        self.pool.reserves().map_or(Ok(0), |reserves| Ok(reserves.purge()?))
    }

    /// Sets the callback that runs before an allocation fails for lack of memory. It may free
    /// blocks and trim this pool and others, and returns whether to retry; see
    /// [`umf_core::out_of_memory`].
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool has no such callback.
    pub fn on_out_of_memory(&self, callback: impl OnOutOfMemory + 'static) -> Result<()> {
        Ok(self.controls()?.set_on_out_of_memory(Some(Arc::new(callback)))?)
    }

    /// Waits, for at most `timeout`, until all deferred frees of this pool are reclaimed: until
    /// other processes have closed the freed blocks and each [`crate::Completion`] is ready.
    /// Returns what is still held then. Held memory is never reused.
    pub fn drain(&self, timeout: Duration) -> DeferredStatistics {
        self.pool.controls().map_or_else(DeferredStatistics::default, |controls| controls.drain(timeout))
    }

    /// Sets what happens to blocks that are freed while other processes have them open. If more
    /// than `max_held_bytes` are held for that reason, allocating fails with
    /// [`umf_core::Error::HeldLimit`]; 0 is unlimited.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool does not support it.
    pub fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) -> Result<()> {
        self.controls()?.set_on_free(on_free, max_held_bytes);
        Ok(())
    }

    /// Returns a snapshot of the pool's regions: live blocks and free memory. [`crate::map`]
    /// renders it as SVG and JSON.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool has no map.
    pub fn map(&self) -> Result<PoolMap> {
        let map = self.pool.inspect().and_then(Inspect::map);
        Ok(map.ok_or(missing("a map of its regions"))?)
    }

    /// Returns the latest events of the pool.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if the history is off ([`crate::PoolBuilder::history`]).
    pub fn history(&self) -> Result<PoolHistory> {
        let history = self.pool.inspect().and_then(Inspect::history);
        Ok(history.ok_or(missing("a history, or is not set to keep one"))?)
    }

    /// Calls `visit` with a report of the live blocks. With [`crate::PoolBuilder::leaks`] the
    /// report has the allocation sites.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if this kind of pool has no such report.
    pub fn leaks(&self, mut visit: impl FnMut(&LeakReport<'_>)) -> Result<()> {
        let is_reported = self.pool.inspect().is_some_and(|inspect| inspect.leaks(&mut visit));
        Ok(is_reported.then_some(()).ok_or(missing("a report of leaks"))?)
    }

    fn controls(&self) -> Result<&dyn Controls> {
        Ok(self.pool.controls().ok_or(missing("being controlled while in use"))?)
    }

    /// Returns the pool's statistics.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        self.pool.statistics()
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.pool.name()
    }

    /// Returns the provider of the pool's memory.
    #[must_use]
    pub fn provider(&self) -> &ProviderRef {
        self.pool.provider()
    }

    /// Returns the pool implementation.
    #[must_use]
    #[inline]
    pub fn as_core(&self) -> &dyn umf_core::Pool {
        &*self.pool
    }
}

// SAFETY: blocks of a pool do not move until they are freed. The reference keeps the pool alive,
// and copies of the reference are the same pool. Memory that the CPU cannot access is refused.
unsafe impl Allocator for &Pool {
    fn allocate(&self, layout: std::alloc::Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let dangling =
                NonNull::new(std::ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(dangling, 0));
        }
        if !self.provider().memory_kind().is_host_accessible() {
            return Err(AllocError);
        }
        let checked = Layout::try_from(layout).map_err(|_| AllocError)?;
        let address = umf_core::pool::allocate(self.as_core(), checked).map_err(|_| AllocError)?;
        let pointer = address.as_ptr().and_then(NonNull::new).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(pointer, layout.size()))
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: std::alloc::Layout) {
        if layout.size() == 0 {
            return;
        }
        // SAFETY: the caller's contract: `pointer` came from `allocate` and is not used any more.
        let freed = unsafe { umf_core::pool::free(self.as_core(), Address::from_ptr(pointer.as_ptr())) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool {:?} over {:?}", self.name(), self.provider())
    }
}

/// Makes a provider of shared host memory.
#[cfg(all(feature = "host", any(feature = "slab", not(feature = "config"))))]
pub(crate) fn shared_memory(name: &'static str, isolate: bool) -> Result<ProviderRef> {
    let builder = HostProvider::builder().name(name).visibility(umf_core::Visibility::Shared);
    Ok(builder.isolate(isolate).build()?.into())
}

/// Wraps the pool in the debug instrumentation that `checks` asks for, if any.
#[cfg(any(feature = "config", feature = "slab"))]
pub(crate) fn checked(
    pool: Arc<dyn umf_core::Pool>,
    checks: CheckSettings,
) -> umf_core::Result<Arc<dyn umf_core::Pool>> {
    if checks.leaks == Leaks::Sites {
        crate::leaks::install_resolver();
    }
    Ok(if checks.is_off() { pool } else { Checked::new(pool, checks)? })
}
