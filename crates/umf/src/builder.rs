//! [`PoolBuilder`]: a slab pool configured by the program.

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
    /// Sets the provider. Default: shared host memory.
    #[must_use]
    pub fn provider(mut self, provider: impl Into<ProviderRef>) -> Self {
        self.provider = Some(provider.into());
        self
    }

    /// Sets the name, for statistics, logs and errors. Default: `"slab"`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.slab = self.slab.name(name);
        self
    }

    /// Changes further settings of the slab pool. Settings that `change` does not touch keep their
    /// values.
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

    /// Limits the bytes that the pool holds, free memory included; 0 is unlimited. Default: 0.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.slab = self.slab.memory_limit(bytes);
        self
    }

    /// Sets the size in bytes of the largest block that is pooled. A larger block is a region of
    /// its own.
    #[must_use]
    pub fn max_poolable_size(mut self, bytes: usize) -> Self {
        self.slab = self.slab.max_poolable_size(bytes);
        self
    }

    /// Sets what happens to the content of a block that is freed while other processes have it
    /// open. Default: [`OnFree::Hold`].
    #[must_use]
    pub fn on_free(mut self, on_free: OnFree) -> Self {
        self.slab = self.slab.on_free(on_free);
        self
    }

    /// Limits the bytes of freed memory that are held because other processes have it open. Beyond
    /// the limit, allocating fails. 0 is unlimited. Default: 0.
    #[must_use]
    pub fn max_held(mut self, bytes: u64) -> Self {
        self.slab = self.slab.max_held(bytes);
        self
    }

    /// Replaces all debug settings: those that the next four methods set, and callbacks.
    #[must_use]
    pub fn check(mut self, checks: CheckSettings) -> Self {
        self.checks = checks;
        self
    }

    /// Sets how many events each thread's history keeps; see [`Pool::history`]. Default: 0, no
    /// history.
    #[must_use]
    pub fn history(mut self, events: u32) -> Self {
        self.checks = self.checks.history(events);
        self
    }

    /// Sets what is reported about blocks that are live when the pool is dropped or the process
    /// exits. Default: [`Leaks::Off`].
    #[must_use]
    pub fn leaks(mut self, leaks: Leaks) -> Self {
        self.checks = self.checks.leaks(leaks);
        self
    }

    /// Sets which memory is filled with a pattern, to detect use after free. Default:
    /// [`Poison::Off`].
    #[must_use]
    pub fn poison(mut self, poison: Poison) -> Self {
        self.checks = self.checks.poison(poison);
        self
    }

    /// Sets how many bytes of freed blocks are quarantined before they are reused. Default: 0.
    #[must_use]
    pub fn quarantine(mut self, bytes: u64) -> Self {
        self.checks = self.checks.quarantine(bytes);
        self
    }

    /// Sets how many bytes the pool allocates from the provider when it is built, and keeps.
    /// Default: 0.
    #[must_use]
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.slab = self.slab.reserve(bytes);
        self
    }

    /// Limits the bytes of free memory. Memory beyond the limit is released automatically. 0 is
    /// unlimited. Default: 0.
    #[must_use]
    pub fn max_cached(mut self, bytes: u64) -> Self {
        self.slab = self.slab.max_cached(bytes);
        self
    }

    /// Sets the age at which unused memory is released automatically; zero is never. Default: zero.
    #[must_use]
    pub fn release_after(mut self, age: Duration) -> Self {
        self.slab = self.slab.release_after(age);
        self
    }

    /// Sets the callback that runs before an allocation fails for lack of memory; see
    /// [`Pool::on_out_of_memory`]. Default: none.
    #[must_use]
    pub fn on_out_of_memory(mut self, callback: impl OnOutOfMemory + 'static) -> Self {
        self.slab = self.slab.out_of_memory(callback);
        self
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: out of memory, or settings that contradict each other or the provider.
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
