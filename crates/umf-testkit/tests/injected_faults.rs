//! Checks the suite itself: a pool with one injected fault must fail the case that tests for it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use umf_core::Freed;
use umf_core::deferred::{DeferredStatistics, OnFree};
use umf_core::out_of_memory::OnOutOfMemory;
use umf_core::statistics::PoolStatistics;
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, Layout, Pool, ProviderRef, Region, Result,
};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;
use umf_runtime::observer::before_free;
use umf_testkit::pool::{self as suite, MakePool};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Ignores the leases that observers return.
    IgnoresLeases,
    /// Never reclaims held blocks.
    NeverReclaims,
    /// Ignores the held limit, and allocates regions past the upstream.
    IgnoresBound,
    /// Counts held blocks as live.
    CountsHeldAsLive,
    /// Accepts a second free of a held block.
    FreesTwice,
    /// Returns all regions to the provider when dropped, leased or not.
    FreesLeasedWhenDropped,
    /// Never polls on its own.
    NeverPolls,
    /// Never releases the contents of held blocks.
    NeverReleases,
    /// Frees a block at once despite its completion.
    IgnoresCompletions,
    /// Returns from `drain` at once.
    DoesNotWait,
}

#[derive(Default)]
struct RegionTable {
    /// Live blocks, each a region of its own, and whether each is exported.
    live: BTreeMap<u64, (Region, bool)>,
    held: BTreeMap<u64, Region>,
    statistics: PoolStatistics,
}

struct Faulty {
    upstream: Upstream,
    regions_table: Mutex<RegionTable>,
    fault: Fault,
}

impl Faulty {
    fn make(provider: ProviderRef, fault: Fault) -> Arc<dyn Pool> {
        let upstream = Upstream::new(provider).unwrap();
        let pool = Arc::new(Self { upstream, regions_table: Mutex::default(), fault });
        let this: &(dyn Pool + 'static) = &*pool;
        // SAFETY: the content of an `Arc` does not move, and its field `upstream` is dropped with
        // it.
        unsafe { pool.upstream.set_pool(NonNull::from(this)) };
        pool
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn regions_table(&self) -> MutexGuard<'_, RegionTable> {
        self.regions_table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free_region(&self, region: Region) -> Result<()> {
        // SAFETY: the block in this region is freed.
        let outcome = unsafe { self.upstream.free(region) }?;
        if outcome == FreeOutcome::Freed {
            self.count_freed(region);
        }
        Ok(())
    }

    fn count_freed(&self, region: Region) {
        let statistics = &mut self.regions_table().statistics;
        statistics.reserved_bytes -= region.size() as u64;
        statistics.regions -= 1;
    }
}

impl Faulty {
    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        let mut regions_table = self.regions_table();
        let Some((region, exported)) = regions_table.live.remove(&address.to_bits()) else {
            let twice = self.is(Fault::FreesTwice) && regions_table.held.contains_key(&address.to_bits());
            return if twice { Ok(()) } else { Err(Error::NotAllocated { address }) };
        };
        regions_table.statistics.frees += 1;
        drop(regions_table);
        let leases = if exported { before_free(Freed::Block { address }) } else { None };
        let leases = leases.filter(|_| !self.is(Fault::IgnoresLeases));
        if leases.is_some() || completion.is_some() {
            self.regions_table().held.insert(address.to_bits(), region);
            let held = match (completion, leases) {
                (Some(completion), leases) => {
                    self.upstream.defer_until(address, region.size(), completion, leases)
                }
                (None, Some(leases)) => self.upstream.defer(address, region.size(), leases),
                (None, None) => false,
            };
            if held {
                if !self.is(Fault::NeverPolls) {
                    self.upstream.poll_some();
                }
                return Ok(());
            }
            self.regions_table().held.remove(&address.to_bits());
        }
        self.free_region(region)
    }
}

// SAFETY: each block is a region of the provider. An injected fault may break this, in tests that
// access no memory.
unsafe impl Pool for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn provider(&self) -> &ProviderRef {
        self.upstream.provider()
    }

    fn allocate(&self, layout: Layout) -> Result<Address> {
        if !self.is(Fault::IgnoresBound) {
            self.upstream.admit()?;
        }
        let (region, _) = self.upstream.allocate(layout)?;
        let mut regions_table = self.regions_table();
        regions_table.live.insert(region.base().to_bits(), (region, false));
        let statistics = &mut regions_table.statistics;
        statistics.allocations += 1;
        statistics.regions += 1;
        statistics.reserved_bytes += region.size() as u64;
        Ok(region.base())
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.free_block(address, None)
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        let regions_table = self.regions_table();
        let below = regions_table.live.range(..=address.to_bits()).next_back();
        let (region, _) = below
            .map(|(_, block)| *block)
            .filter(|(region, _)| region.contains(address))
            .ok_or(Error::NotAllocated { address })?;
        Ok(BlockSpan { address: region.base(), size: region.size() })
    }

    fn trim(&self, _: usize) -> Result<usize> {
        Ok(self.upstream.poll() as usize)
    }

    fn statistics(&self) -> PoolStatistics {
        let regions_table = self.regions_table();
        let mut statistics = regions_table.statistics;
        let counted = if self.is(Fault::CountsHeldAsLive) { regions_table.held.len() } else { 0 };
        statistics.live_blocks = (regions_table.live.len() + counted) as u64;
        statistics.live_bytes = regions_table.live.values().map(|(region, _)| region.size() as u64).sum();
        statistics.held_bytes = self.upstream.deferred().bytes;
        statistics
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        Some(self)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        Some(self)
    }
}

// SAFETY: each block is a region of the provider, unless a fault is injected.
unsafe impl DeferredFree for Faulty {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let mut regions_table = self.regions_table();
        regions_table.live.get_mut(&address.to_bits()).ok_or(Error::NotAllocated { address })?.1 = true;
        Ok(())
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_block(address, Some(completion).filter(|_| !self.is(Fault::IgnoresCompletions)))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } if !self.is(Fault::NeverReclaims) => {
                let region = self.regions_table().held.remove(&address.to_bits()).unwrap();
                self.free_region(region)
            }
            Freed::Region(region) => {
                self.count_freed(region);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Controls for Faulty {
    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) -> Result<()> {
        self.upstream.set_on_out_of_memory(callback);
        Ok(())
    }

    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        let on_free = if self.is(Fault::NeverReleases) { OnFree::Hold } else { on_free };
        let max_held_bytes = if self.is(Fault::IgnoresBound) { 0 } else { max_held_bytes };
        self.upstream.set_on_free(on_free, max_held_bytes);
    }

    fn drain(&self, timeout: Duration) -> DeferredStatistics {
        self.upstream.drain(if self.is(Fault::DoesNotWait) { Duration::ZERO } else { timeout })
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.upstream.stop_reclaiming();
        let regions_table = std::mem::take(&mut *self.regions_table());
        let held = regions_table.held.into_values();
        for (region, exported) in regions_table.live.into_values().chain(held.map(|region| (region, false))) {
            if self.is(Fault::FreesLeasedWhenDropped) {
                // SAFETY: the pool is being dropped with its blocks. The fault is that leased ones
                // are freed, too.
                let _ = unsafe { self.provider().free(region) };
                keep_unused(region);
                continue;
            }
            if exported && let Some(leases) = before_free(Freed::Block { address: region.base() }) {
                let _ = self.upstream.defer(region.base(), region.size(), leases);
            }
            // SAFETY: the pool is being dropped, and its blocks are not used any more.
            let _ = unsafe { self.upstream.free(region) };
        }
    }
}

/// Reserves the addresses of a region that was freed past the tracker. The tracker keeps its entry,
/// so a later pool must not get these addresses.
fn keep_unused(region: Region) {
    let wanted = region.base().as_ptr().unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: `MAP_FIXED_NOREPLACE` never replaces an existing mapping.
    let kept = unsafe { libc::mmap(wanted.cast(), region.size(), libc::PROT_NONE, flags, -1, 0) };
    assert_eq!(kept, wanted.cast(), "the addresses of {region:?} are used again already");
}

fn passes(fault: Fault, case: fn(MakePool<'_>)) -> bool {
    catch_unwind(AssertUnwindSafe(|| case(&|provider| Faulty::make(provider, fault)))).is_ok()
}

#[test]
fn suite_detects_each_fault() {
    let faults: [(Fault, fn(MakePool<'_>)); 17] = [
        (Fault::IgnoresLeases, suite::leased_block_is_not_reused),
        (Fault::IgnoresLeases, suite::concurrent_threads_never_get_leased_blocks),
        (Fault::FreesTwice, suite::leased_block_is_not_reused),
        (Fault::CountsHeldAsLive, suite::leased_block_is_not_reused),
        (Fault::NeverReclaims, suite::leased_block_is_not_reused),
        (Fault::NeverReclaims, suite::concurrent_threads_never_get_leased_blocks),
        (Fault::NeverPolls, suite::closed_block_is_reused_without_poll),
        (Fault::DoesNotWait, suite::drain_waits_for_last_lease),
        (Fault::IgnoresBound, suite::held_limit_refuses_allocation),
        (Fault::NeverReleases, suite::on_free_keeps_or_releases_contents),
        (Fault::FreesLeasedWhenDropped, suite::leased_blocks_outlive_pool),
        (Fault::IgnoresCompletions, suite::block_is_not_reused_before_completion),
        (Fault::IgnoresCompletions, suite::lost_completion_keeps_block_held),
        (Fault::IgnoresLeases, suite::free_after_ends_exports_at_once),
        (Fault::FreesTwice, suite::block_is_not_reused_before_completion),
        (Fault::NeverPolls, suite::block_is_reused_after_completion),
        (Fault::FreesLeasedWhenDropped, suite::pending_blocks_outlive_pool),
    ];
    for (fault, case) in faults {
        assert!(passes(Fault::None, case), "{fault:?}: the pool without a fault does not pass");
        assert!(!passes(fault, case), "{fault:?} was not detected");
    }
}
