//! Pools that lack what the traits leave open pass the suite: a bump arena, which reuses memory
//! only while it has no live block, and one that refuses the optional operations.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use umf_core::deferred::{DeferredStatistics, OnFree};
use umf_core::out_of_memory::OnOutOfMemory;
use umf_core::pool::missing;
use umf_core::statistics::PoolStatistics;
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, Freed, Layout, Pool, ProviderRef, Region,
    Result, Reuse,
};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;
use umf_runtime::observer::before_free;
use umf_sync::{Lock, LockGuard};
use umf_testkit::pool::{self as suite, MakePool};

/// The size of a region for many blocks.
const CHUNK: usize = 1 << 20;

/// A deviation of an arena from the correct one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Correct,
    /// Has deferred frees and controls, but neither completions nor the callback.
    RefusesOptionalOperations,
    /// Begins again at the first address while blocks are live.
    ReusesLiveMemory,
    /// Never reuses memory, and releases none.
    NeverReuses,
    /// Frees the block although it refuses the completion.
    FreesWhenItRefuses,
    /// Uses a lock that a thread of the parent may hold in the child.
    HasPlainLock,
    /// Allocates shared memory in a child.
    IgnoresFork,
}

/// A live block.
#[derive(Clone, Copy)]
struct Block {
    size: usize,
    is_exported: bool,
}

#[derive(Default)]
struct Chunks {
    /// The regions, by base address.
    regions: BTreeMap<u64, Region>,
    /// The region in use, and the offset of its free part.
    current: Option<(Region, usize)>,
    live: BTreeMap<u64, Block>,
    /// Freed blocks that importers have open, with their sizes.
    held: BTreeMap<u64, usize>,
    statistics: PoolStatistics,
}

/// A pool that allocates by adding to an offset.
struct BumpArena {
    upstream: Upstream,
    chunks: Lock<Chunks>,
    plain: Mutex<()>,
    variant: Variant,
}

impl BumpArena {
    fn make(provider: ProviderRef, variant: Variant) -> Arc<dyn Pool> {
        let upstream = Upstream::new(provider).unwrap();
        let pool = Arc::new(Self { upstream, chunks: Lock::default(), plain: Mutex::default(), variant });
        let this: &(dyn Pool + 'static) = &*pool;
        // SAFETY: the content of an `Arc` does not move, and its field `upstream` is dropped with
        // it.
        unsafe { pool.upstream.set_pool(NonNull::from(this)) };
        pool
    }

    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    fn lock(&self) -> (Option<MutexGuard<'_, ()>>, LockGuard<'_, Chunks>) {
        let plain = self.is(Variant::HasPlainLock);
        let plain = plain.then(|| self.plain.lock().unwrap_or_else(PoisonError::into_inner));
        (plain, self.chunks.lock())
    }

    fn is_frozen(&self) -> bool {
        self.upstream.is_frozen() && !self.is(Variant::IgnoresFork)
    }

    fn add_region(&self, chunks: &mut Chunks, layout: Layout) -> Result<Region> {
        let (region, _) = self.upstream.allocate(layout)?;
        chunks.regions.insert(region.base().to_bits(), region);
        let statistics = &mut chunks.statistics;
        statistics.regions += 1;
        statistics.reserved_bytes += region.size() as u64;
        statistics.peak_reserved_bytes = statistics.peak_reserved_bytes.max(statistics.reserved_bytes);
        Ok(region)
    }

    fn place(&self, chunks: &mut Chunks, layout: Layout) -> Result<Address> {
        let (size, align) = (layout.size(), layout.align());
        if size.max(align) > CHUNK / 2 {
            return Ok(self.add_region(chunks, layout)?.base());
        }
        if let Some((region, used)) = chunks.current {
            let base = region.base().to_bits() as usize;
            let start = (base + used).next_multiple_of(align) - base;
            if start + size <= region.size() {
                chunks.current = Some((region, start + size));
                return Ok(region.base().checked_add(start as u64).unwrap());
            }
        }
        let region = self.add_region(chunks, Layout::new(CHUNK, align)?)?;
        chunks.current = Some((region, size));
        Ok(region.base())
    }

    /// Begins the region in use again if no block is live or held.
    fn reset_if_empty(&self, chunks: &mut Chunks) {
        let is_empty = chunks.live.is_empty() && chunks.held.is_empty();
        if (is_empty && !self.is(Variant::NeverReuses)) || self.is(Variant::ReusesLiveMemory) {
            chunks.current = chunks.current.map(|(region, _)| (region, 0));
        }
    }

    fn release(&self, chunks: &mut Chunks, region: Region) -> Result<usize> {
        // SAFETY: no block in the region is live or held.
        let outcome = unsafe { self.upstream.free(region) }?;
        chunks.regions.remove(&region.base().to_bits());
        chunks.current = chunks.current.filter(|(current, _)| *current != region);
        if outcome == FreeOutcome::Freed {
            count_released(chunks, region);
        }
        Ok(region.size())
    }
}

fn count_released(chunks: &mut Chunks, region: Region) {
    chunks.statistics.regions -= 1;
    chunks.statistics.reserved_bytes -= region.size() as u64;
}

/// Returns the region and the live block that contain `address`.
fn find(chunks: &Chunks, address: Address) -> Result<(BlockSpan, bool)> {
    let below = chunks.regions.range(..=address.to_bits()).next_back();
    let Some((_, region)) = below.filter(|(_, region)| region.contains(address)) else {
        return Err(Error::ForeignAddress { address, owner: "this bump arena" });
    };
    let (&start, block) =
        chunks.live.range(..=address.to_bits()).next_back().ok_or(Error::NotAllocated { address })?;
    let begin = Address::from_bits(start);
    let offset = address.offset_from(begin).filter(|&offset| offset < block.size as u64);
    if offset.is_none() || !region.contains(begin) {
        return Err(Error::NotAllocated { address });
    }
    Ok((BlockSpan { address: begin, size: block.size }, block.is_exported))
}

/// Returns the live block that starts at `address`.
fn find_start(chunks: &Chunks, address: Address) -> Result<(BlockSpan, bool)> {
    let found = find(chunks, address)?;
    if found.0.address == address { Ok(found) } else { Err(Error::InteriorAddress { address }) }
}

// SAFETY: blocks lie in regions of the upstream, one after another. Memory is used again only while
// no block is live or held. A variant may break this, in tests that access no memory.
unsafe impl Pool for BumpArena {
    fn name(&self) -> &str {
        "arena"
    }

    fn provider(&self) -> &ProviderRef {
        self.upstream.provider()
    }

    fn allocate(&self, layout: Layout) -> Result<Address> {
        if self.is_frozen() {
            return Err(Error::Frozen { what: "a bump arena" });
        }
        self.upstream.admit()?;
        self.upstream.poll_pending();
        let (_plain, mut chunks) = self.lock();
        let address = self.place(&mut chunks, layout)?;
        chunks.live.insert(address.to_bits(), Block { size: layout.size(), is_exported: false });
        chunks.statistics.live_blocks += 1;
        chunks.statistics.live_bytes += layout.size() as u64;
        chunks.statistics.allocations += 1;
        Ok(address)
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        let (size, is_exported) = {
            let (_plain, mut chunks) = self.lock();
            let (span, is_exported) = find_start(&chunks, address)?;
            chunks.live.remove(&address.to_bits());
            chunks.statistics.live_blocks -= 1;
            chunks.statistics.live_bytes -= span.size as u64;
            chunks.statistics.frees += 1;
            if is_exported {
                chunks.held.insert(address.to_bits(), span.size);
            } else {
                self.reset_if_empty(&mut chunks);
            }
            (span.size, is_exported)
        };
        if is_exported {
            // Without the lock, because observers lock, too.
            let leases = before_free(Freed::Block { address });
            let is_held = leases.is_some_and(|leases| self.upstream.defer(address, size, leases));
            if !is_held {
                let (_plain, mut chunks) = self.lock();
                chunks.held.remove(&address.to_bits());
                self.reset_if_empty(&mut chunks);
            }
            self.upstream.poll_some();
        }
        Ok(())
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        find(&self.lock().1, address).map(|(span, _)| span)
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        if self.is_frozen() {
            return Ok(0);
        }
        self.upstream.poll();
        let (_plain, mut chunks) = self.lock();
        if !chunks.live.is_empty() || !chunks.held.is_empty() || self.is(Variant::NeverReuses) {
            return Ok(0);
        }
        let mut released = 0;
        for region in chunks.regions.values().copied().collect::<Vec<_>>() {
            if chunks.statistics.reserved_bytes <= keep as u64 {
                break;
            }
            released += self.release(&mut chunks, region)?;
        }
        Ok(released)
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = self.lock().1.statistics;
        statistics.held_bytes = self.upstream.deferred().bytes;
        let used = statistics.live_bytes + statistics.held_bytes;
        statistics.cached_bytes = statistics.reserved_bytes.saturating_sub(used);
        statistics
    }

    fn reuse(&self) -> Reuse {
        Reuse::WhenEmpty
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        let has_it = matches!(self.variant, Variant::RefusesOptionalOperations | Variant::FreesWhenItRefuses);
        has_it.then_some(self)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        self.deferred_free().map(|_| self as &dyn Controls)
    }
}

// SAFETY: `free` announces exported blocks. A held block keeps the arena from being reset.
unsafe impl DeferredFree for BumpArena {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let (_plain, mut chunks) = self.lock();
        find_start(&chunks, address)?;
        chunks.live.get_mut(&address.to_bits()).unwrap().is_exported = true;
        Ok(())
    }

    unsafe fn free_after(&self, address: Address, _: Arc<dyn Completion>) -> Result<()> {
        if self.is(Variant::FreesWhenItRefuses) {
            // SAFETY: passed on to the caller.
            unsafe { self.free(address) }?;
        }
        Err(missing("freeing with a completion"))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        let (_plain, mut chunks) = self.lock();
        match freed {
            Freed::Block { address } => {
                chunks.held.remove(&address.to_bits());
                self.reset_if_empty(&mut chunks);
            }
            Freed::Region(region) => count_released(&mut chunks, region),
        }
        Ok(())
    }
}

impl Controls for BumpArena {
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) {
        self.upstream.set_on_free(on_free, max_held_bytes);
    }

    fn set_on_out_of_memory(&self, _: Option<Arc<dyn OnOutOfMemory>>) -> Result<()> {
        Err(missing("an out-of-memory callback"))
    }

    fn drain(&self, timeout: Duration) -> DeferredStatistics {
        self.upstream.drain(timeout)
    }
}

impl Drop for BumpArena {
    fn drop(&mut self) {
        self.upstream.stop_reclaiming();
        let chunks = std::mem::take(&mut *self.lock().1);
        let exported = chunks.live.iter().filter(|(_, block)| block.is_exported);
        for (&start, block) in exported.filter(|_| !self.upstream.is_frozen()) {
            let address = Address::from_bits(start);
            if let Some(leases) = before_free(Freed::Block { address }) {
                let _ = self.upstream.defer(address, block.size, leases);
            }
        }
        for region in chunks.regions.into_values() {
            // SAFETY: the pool is being dropped, and its blocks are not used any more.
            let _ = unsafe { self.upstream.free(region) };
        }
        self.upstream.close();
    }
}

umf_testkit::pool_conformance!(arena, |provider| BumpArena::make(provider, Variant::Correct));
umf_testkit::pool_conformance!(refusing, |provider| BumpArena::make(
    provider,
    Variant::RefusesOptionalOperations
));

/// A case of the suite.
type Case = fn(MakePool<'_>);

/// Returns the text of the panic of a case, if it panics.
fn failure(variant: Variant, case: Case) -> Option<String> {
    let run = || case(&|provider| BumpArena::make(provider, variant));
    let payload = catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = payload.downcast_ref::<String>().cloned();
    Some(text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
}

#[test]
fn suite_detects_faulty_arenas() {
    let faults: [(Variant, Case); 4] = [
        (Variant::ReusesLiveMemory, suite::blocks_are_aligned_contained_and_disjoint),
        (Variant::NeverReuses, suite::memory_is_bounded_over_a_million_cycles),
        (Variant::NeverReuses, suite::freed_addresses_are_reused),
        (Variant::FreesWhenItRefuses, |make| {
            suite::has_free_after(make);
        }),
    ];
    for (variant, case) in faults {
        assert_eq!(failure(Variant::RefusesOptionalOperations, case), None, "{variant:?}: the correct arena");
        assert!(failure(variant, case).is_some(), "{variant:?} was not detected");
    }
}

#[test]
fn missing_fork_handling_is_reported_in_words() {
    let cases: [(Variant, Case, &str); 2] = [
        (Variant::HasPlainLock, suite::private_pool_works_in_forked_child, "must be `umf_sync::Lock`"),
        (Variant::IgnoresFork, suite::shared_pool_is_frozen_in_forked_child, "return `Error::Frozen` if"),
    ];
    for (variant, case, expected) in cases {
        let text = failure(variant, case).unwrap_or_else(|| panic!("{variant:?} was not detected"));
        assert!(text.contains(expected) && text.contains("docs/extending.md"), "{variant:?}: {text}");
        assert!(text.starts_with("child of fork "), "{variant:?}: {text}");
    }
}
