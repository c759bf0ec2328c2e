//! [`statistics`]: what this process has in pools, held for others, in transit, and in caches.

use umf_core::deferred::DeferredStatistics;
use umf_core::statistics::PoolStatistics;
use umf_core::{Pool, ProviderKind};
use umf_ipc::CacheStatistics;

use crate::process;

/// The counters of a pool, with its name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NamedPoolStatistics {
    /// The pool's name.
    pub name: String,
    /// The kind of the pool's provider.
    pub provider: ProviderKind,
    /// The pool's counters.
    pub counters: PoolStatistics,
}

/// The counters of this process. A snapshot: they are read one after another while other threads
/// continue.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ProcessStatistics {
    /// All pools of this process, in no order.
    pub pools: Vec<NamedPoolStatistics>,
    /// Memory that was freed and is still in use elsewhere, of dropped pools too.
    pub held: DeferredStatistics,
    /// The number of handles that this process has sent and that not all readers have opened.
    pub in_transit: usize,
    /// The cache of exports.
    pub exporter: CacheStatistics,
    /// The cache of opened memory.
    pub importer: CacheStatistics,
}

/// Returns the counters of this process. `umf ps` shows those of all processes. Releases the memory
/// of messages that were read, as [`crate::handles_in_transit`] does.
///
/// ```
/// # #[cfg(all(feature = "host", feature = "slab"))]
/// # fn main() -> umf::Result<()> {
/// let pool = umf::Pool::shared()?;
/// let block = pool.allocate(4096)?;
/// assert_eq!(umf::statistics().pools[0].counters.live_blocks, 1);
/// # drop(block);
/// # Ok(())
/// # }
/// # #[cfg(not(all(feature = "host", feature = "slab")))]
/// # fn main() {}
/// ```
#[must_use]
pub fn statistics() -> ProcessStatistics {
    let mut found = ProcessStatistics::default();
    if let Some((exporter, importer)) = process::known() {
        found.in_transit = exporter.poll_tickets() + umf_ipc::importer::poll_passed_on();
        found.exporter = exporter.statistics();
        found.importer = importer.statistics();
    }
    umf_runtime::tracker::for_each_pool(|pool: &dyn Pool| {
        found.pools.push(NamedPoolStatistics {
            name: pool.name().to_owned(),
            provider: pool.provider().kind(),
            counters: pool.statistics(),
        });
    });
    found.held = umf_runtime::deferred::statistics();
    found
}
