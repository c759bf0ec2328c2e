//! The cases about leases and completions are worth something only if they fail: a pool with one fault at a time does not pass the case that
//! is there for it.
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
use umf_testkit::pool::{self as suite, Make};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// What the observers answer is dropped.
    IgnoresLeases,
    /// What was held is never taken back.
    NeverTakesBack,
    /// The bound is not looked at, and regions come past the upstream.
    IgnoresBound,
    /// What is held counts as live.
    CountsHeldAsLive,
    /// A second free of what is held succeeds.
    FreesTwice,
    /// When the pool goes its regions go back to the provider as they are.
    ForgetsAtTheEnd,
    /// Nothing is let go before somebody asks for it.
    NeverPolls,
    /// Contents stay, whatever is set.
    NeverReleases,
    /// What is freed with a completion is freed at once.
    IgnoresCompletions,
    /// Draining returns at once.
    DoesNotWait,
}

#[derive(Default)]
struct Books {
    /// Live blocks, and whether each is exported; each is a region.
    live: BTreeMap<u64, (Region, bool)>,
    held: BTreeMap<u64, Region>,
    statistics: PoolStatistics,
}

struct Faulty {
    upstream: Upstream,
    books: Mutex<Books>,
    fault: Fault,
}

impl Faulty {
    fn make(provider: ProviderRef, fault: Fault) -> Arc<dyn Pool> {
        let upstream = Upstream::new(provider).unwrap();
        let pool = Arc::new(Self { upstream, books: Mutex::default(), fault });
        let this: &(dyn Pool + 'static) = &*pool;
        // SAFETY: an `Arc`'s content does not move, and `upstream`, a field, is dropped before it goes.
        unsafe { pool.upstream.set_pool(NonNull::from(this)) };
        pool
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, region: Region) -> Result<()> {
        // SAFETY: the block that the region was is freed.
        let fate = unsafe { self.upstream.free(region) }?;
        if fate == FreeOutcome::Freed {
            self.went(region);
        }
        Ok(())
    }

    fn went(&self, region: Region) {
        let statistics = &mut self.books().statistics;
        statistics.reserved_bytes -= region.size() as u64;
        statistics.regions -= 1;
    }
}

impl Faulty {
    fn free_block(&self, address: Address, completion: Option<Arc<dyn Completion>>) -> Result<()> {
        let mut books = self.books();
        let Some((region, exported)) = books.live.remove(&address.to_bits()) else {
            let twice = self.is(Fault::FreesTwice) && books.held.contains_key(&address.to_bits());
            return if twice { Ok(()) } else { Err(Error::NotAllocated { address }) };
        };
        books.statistics.frees += 1;
        drop(books);
        let leases = if exported { before_free(Freed::Block { address }) } else { None };
        let leases = leases.filter(|_| !self.is(Fault::IgnoresLeases));
        if leases.is_some() || completion.is_some() {
            self.books().held.insert(address.to_bits(), region);
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
            self.books().held.remove(&address.to_bits());
        }
        self.give_back(region)
    }
}

// SAFETY: a block is a region of the provider. (The faults make some of this untrue, in tests that touch no memory then.)
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
        let mut books = self.books();
        books.live.insert(region.base().to_bits(), (region, false));
        let statistics = &mut books.statistics;
        statistics.allocations += 1;
        statistics.regions += 1;
        statistics.reserved_bytes += region.size() as u64;
        Ok(region.base())
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.free_block(address, None)
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        let books = self.books();
        let below = books.live.range(..=address.to_bits()).next_back();
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
        let books = self.books();
        let mut statistics = books.statistics;
        let counted = if self.is(Fault::CountsHeldAsLive) { books.held.len() } else { 0 };
        statistics.live_blocks = (books.live.len() + counted) as u64;
        statistics.live_bytes = books.live.values().map(|(region, _)| region.size() as u64).sum();
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

// SAFETY: as above: some of it is untrue where that is the fault.
unsafe impl DeferredFree for Faulty {
    fn mark_exported(&self, address: Address) -> Result<()> {
        let mut books = self.books();
        books.live.get_mut(&address.to_bits()).ok_or(Error::NotAllocated { address })?.1 = true;
        Ok(())
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        self.free_block(address, Some(completion).filter(|_| !self.is(Fault::IgnoresCompletions)))
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Block { address } if !self.is(Fault::NeverTakesBack) => {
                let region = self.books().held.remove(&address.to_bits()).unwrap();
                self.give_back(region)
            }
            Freed::Region(region) => {
                self.went(region);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Controls for Faulty {
    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) {
        self.upstream.set_on_out_of_memory(callback);
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
        let books = std::mem::take(&mut *self.books());
        let held = books.held.into_values();
        for (region, exported) in books.live.into_values().chain(held.map(|region| (region, false))) {
            if self.is(Fault::ForgetsAtTheEnd) {
                // SAFETY: the pool goes, and its blocks with it. (Those that are leased should not.)
                let _ = unsafe { self.provider().free(region) };
                keep_unused(region);
                continue;
            }
            if exported && let Some(leases) = before_free(Freed::Block { address: region.base() }) {
                let _ = self.upstream.defer(region.base(), region.size(), leases);
            }
            // SAFETY: as above.
            let _ = unsafe { self.upstream.free(region) };
        }
    }
}

/// Keeps everyone from the addresses of a region that went behind the tracker's back: it is found there for ever, also by the
/// sound pools that come later.
fn keep_unused(region: Region) {
    let wanted = region.base().as_ptr().unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing that is mapped is replaced.
    let kept = unsafe { libc::mmap(wanted.cast(), region.size(), libc::PROT_NONE, flags, -1, 0) };
    assert_eq!(kept, wanted.cast(), "the addresses of {region:?} are used again already");
}

fn passes(fault: Fault, case: fn(Make<'_>)) -> bool {
    catch_unwind(AssertUnwindSafe(|| case(&|provider| Faulty::make(provider, fault)))).is_ok()
}

#[test]
fn each_fault_is_noticed() {
    let faults: [(Fault, fn(Make<'_>)); 17] = [
        (Fault::IgnoresLeases, suite::leased_blocks_are_not_handed_out),
        (Fault::IgnoresLeases, suite::threads_keep_off_leased_blocks),
        (Fault::FreesTwice, suite::leased_blocks_are_not_handed_out),
        (Fault::CountsHeldAsLive, suite::leased_blocks_are_not_handed_out),
        (Fault::NeverTakesBack, suite::leased_blocks_are_not_handed_out),
        (Fault::NeverTakesBack, suite::threads_keep_off_leased_blocks),
        (Fault::NeverPolls, suite::closed_blocks_are_used_again),
        (Fault::DoesNotWait, suite::draining_waits_for_the_last_lease),
        (Fault::IgnoresBound, suite::the_bound_on_what_is_held_is_kept),
        (Fault::NeverReleases, suite::contents_stay_or_go_as_told),
        (Fault::ForgetsAtTheEnd, suite::leased_blocks_outlive_their_pool),
        (Fault::IgnoresCompletions, suite::delayed_blocks_are_not_handed_out),
        (Fault::IgnoresCompletions, suite::lost_completions_hold_their_blocks),
        (Fault::IgnoresLeases, suite::exports_of_delayed_blocks_end_at_once),
        (Fault::FreesTwice, suite::delayed_blocks_are_not_handed_out),
        (Fault::NeverPolls, suite::ready_blocks_are_used_again),
        (Fault::ForgetsAtTheEnd, suite::delayed_blocks_outlive_their_pool),
    ];
    for (fault, case) in faults {
        assert!(passes(Fault::None, case), "{fault:?}: the sound pool does not pass");
        assert!(!passes(fault, case), "{fault:?} was not noticed");
    }
}
