//! [`PoolBuilder`]: a slab pool with settings that the program makes.

use std::time::Duration;

use umf_core::ProviderRef;
use umf_core::deferred::OnFree;
use umf_core::out_of_memory::OnOutOfMemory;

use crate::pool::checked;
use crate::{CheckSettings, Leaks, Poison, Pool, Result};

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

    /// Changes further settings of the slab pool. What was set before stays unless `change` sets
    /// it.
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

    /// What becomes of the contents of a block that is freed while other processes have it open.
    /// Default: [`OnFree::Hold`].
    #[must_use]
    pub fn on_free(mut self, on_free: OnFree) -> Self {
        self.slab = self.slab.on_free(on_free);
        self
    }

    /// The most bytes of freed memory that may be held because other processes have it open, before
    /// allocating more fails; 0 is unlimited. Default: 0.
    #[must_use]
    pub fn max_held(mut self, bytes: u64) -> Self {
        self.slab = self.slab.max_held(bytes);
        self
    }

    /// Replaces all that is set to be checked ([`PoolBuilder::history`] and the three after it
    /// change a part of this).
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

    /// What is told of blocks that are live when the pool is dropped, or when the process ends.
    /// Default: [`Leaks::Off`].
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

    /// The most bytes that may be free before memory goes back to the provider unasked; 0 is
    /// unlimited. Default: 0.
    #[must_use]
    pub fn max_cached(mut self, bytes: u64) -> Self {
        self.slab = self.slab.max_cached(bytes);
        self
    }

    /// How long memory may lie unused before it goes back to the provider unasked; zero is for
    /// ever. Default: zero.
    #[must_use]
    pub fn release_after(mut self, age: Duration) -> Self {
        self.slab = self.slab.release_after(age);
        self
    }

    /// Who is asked when an allocation would fail for lack of memory: any closure. Default: none.
    #[must_use]
    pub fn on_out_of_memory(mut self, callback: impl OnOutOfMemory + 'static) -> Self {
        self.slab = self.slab.out_of_memory(callback);
        self
    }

    /// The pool.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: no memory, or settings that contradict each other or the provider.
    pub fn build(self) -> Result<Pool> {
        #[cfg(feature = "host")]
        let default = || crate::pool::shared_memory("shared", false);
        #[cfg(not(feature = "host"))]
        let default = || {
            Err(crate::Error::MissingFeature {
                what: "pool",
                name: "over host memory".to_owned(),
                feature: "host",
            })
        };
        let provider = self.provider.map_or_else(default, Ok)?;
        let pool = umf_pool_slab::SlabPool::new(provider, self.slab)?;
        Ok(Pool::from_pool(checked(pool, self.checks)?))
    }
}
