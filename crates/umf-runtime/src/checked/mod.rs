//! [`Checked`]: a pool adaptor that detects errors in the use of any pool.
//!
//! It wraps a pool and sees each allocation and free. It replaces the pool in the tracker, so that
//! it also sees frees by address, exports and reclaimed blocks. If no setting concerns single
//! blocks, it forwards the fast paths.
//!
//! | module | purpose |
//! |---|---|
//! | `history` | the latest events of each thread |
//! | `sites` | where live blocks were allocated |
//! | `frees` | active frees: of two concurrent frees of a block, one fails |
//! | `quarantine` | freed blocks that are not reused yet; poison, which detects writes to them |
//! | `report` | reports of leaks and of writes after the free |
//! | `settings` | the settings |

mod frees;
mod history;
mod quarantine;
mod report;
mod settings;
mod sites;

pub use settings::{CheckSettings, Leaks, Poison};

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::fork;

use crate::tracker::{self, OwnerId};
use umf_core::Freed;
use umf_core::history::{Event, EventKind, PoolHistory, reason};
use umf_core::leaks::{LeakReport, LeakTime};
use umf_core::map::{PieceState, PoolMap};
use umf_core::pool::{self, missing};
use umf_core::statistics::PoolStatistics;
use umf_core::{
    Address, BlockSpan, Completion, Controls, DeferredFree, Error, Inspect, Layout, Pool, ProviderRef,
    Reserve, Result, Reuse, ShareLimit, Visibility,
};
use umf_os::process::thread_id;

use frees::ActiveFrees;
use history::History;
use quarantine::{Quarantine, poison};
use sites::Sites;

/// The pool that is checked.
enum Inner {
    Shared(Arc<dyn Pool>),
    Static(&'static dyn Pool),
}

impl Deref for Inner {
    type Target = dyn Pool;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shared(pool) => &**pool,
            Self::Static(pool) => *pool,
        }
    }
}

/// A pool that checks the use of another pool.
///
/// ```
/// # fn check(pool: std::sync::Arc<dyn umf_core::Pool>) -> umf_core::Result<()> {
/// use umf_runtime::checked::{CheckSettings, Checked, Leaks, Poison};
///
/// let settings = CheckSettings::new().history(1000).leaks(Leaks::Count).poison(Poison::Freed);
/// let pool = Checked::new(pool, settings)?;
/// # Ok(())
/// # }
/// ```
pub struct Checked {
    inner: Inner,
    owner: OwnerId,
    settings: CheckSettings,
    /// Whether single allocations and frees are checked.
    checks_blocks: bool,
    began: Instant,
    history: History,
    /// Live blocks, all or a sample: if leaks are reported with sites, or the pool does not count.
    sites: Option<Sites>,
    quarantine: Option<Quarantine>,
    /// Detects concurrent frees of a block, for pools that do not.
    frees: ActiveFrees,
    /// The process that made this ([`fork::generation`]).
    process: u32,
    /// The pool may be the global allocator, so reports allocate nothing.
    is_global: bool,
}

struct StaticSlot(UnsafeCell<MaybeUninit<Checked>>);

// SAFETY: each slot is claimed by one thread, which writes it once, before any reference to it
// exists.
unsafe impl Sync for StaticSlot {}
// SAFETY: all bytes, zeros included, are a valid `MaybeUninit`.
unsafe impl Zeroable for StaticSlot {}

static STATIC_SLOTS: Chunks<StaticSlot, 1> = Chunks::new();
/// The number of claimed slots.
static CLAIMED: AtomicU32 = AtomicU32::new(0);

impl Checked {
    /// Wraps `pool`. There must be no other reference to it, and no live block.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: settings out of range, poison for memory that is not
    ///   host-accessible, or a pool that is in use.
    /// - [`Error::NotSupported`]: a quarantine or poison for a pool that cannot defer frees, or
    ///   allocation sites without a C library that captures stacks.
    pub fn new(mut pool: Arc<dyn Pool>, settings: CheckSettings) -> Result<Arc<Self>> {
        if Arc::get_mut(&mut pool).is_none() || pool.statistics().live_blocks != 0 {
            return Err(Error::InvalidArgument {
                what: "pool",
                why: "must have no other reference and no live block; wrap it before its first use",
            });
        }
        let checked = Arc::new(Self::build(Inner::Shared(pool), settings, false)?);
        // SAFETY: the content of an `Arc` does not move until it is dropped.
        unsafe { checked.install() }?;
        Ok(checked)
    }

    /// Wraps a static pool, which may be the global allocator. If only `leaks` is set, this and all
    /// later calls do not use the global allocator.
    ///
    /// # Errors
    /// As [`Checked::new`], and [`Error::OutOfMemory`] for the memory of this object.
    ///
    /// # Safety
    /// The pool is used through the result only.
    pub unsafe fn new_static(pool: &'static dyn Pool, settings: CheckSettings) -> Result<&'static Self> {
        let slot = STATIC_SLOTS.get_or_grow(CLAIMED.fetch_add(1, Ordering::Relaxed))?.0.get();
        let checked = Self::build(Inner::Static(pool), settings, true)?;
        // SAFETY: this call claimed the slot. It is not written again, and is never unmapped.
        let checked = unsafe { (*slot).write(checked) };
        // SAFETY: the slot never moves.
        unsafe { checked.install() }?;
        Ok(checked)
    }

    /// Builds the adaptor, which [`Checked::install`] puts into effect at its final address.
    fn build(inner: Inner, settings: CheckSettings, is_global: bool) -> Result<Self> {
        settings.check(&*inner)?;
        let owner = tracker::owner_of_pool(&*inner).ok_or(missing("being checked"))?;
        let knows_leaks = inner.inspect().is_some_and(|inspect| inspect.leaks(&mut |_| ()));
        let needs_sites = match settings.leaks {
            Leaks::Off => false,
            Leaks::Count => !knows_leaks,
            Leaks::Sites => true,
        };
        let sample = if matches!(settings.leaks, Leaks::Sites) { settings.leak_sample.max(1) } else { 0 };
        let sites = needs_sites.then(|| Sites::new(sample, !knows_leaks));
        let quarantine = settings.quarantine_bytes().map(Quarantine::new);
        Ok(Self {
            inner,
            owner,
            checks_blocks: settings.history > 0 || sites.is_some() || quarantine.is_some(),
            began: Instant::now(),
            history: History::new(settings.history),
            sites,
            quarantine,
            frees: ActiveFrees::new(),
            process: fork::generation(),
            is_global,
            settings,
        })
    }

    /// Replaces the pool in the tracker, and registers for the report at the end of the process.
    ///
    /// # Safety
    /// The adaptor does not move until it is dropped.
    unsafe fn install(&self) -> Result<()> {
        // SAFETY: passed on to the caller; `drop` unregisters it.
        unsafe { self.register_for_exit() }?;
        // Last, because it cannot fail.
        // SAFETY: no block is live, and `drop` restores the pool.
        unsafe { tracker::replace_pool(self.owner, self) };
        Ok(())
    }

    /// Returns the time since the pool was wrapped.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns whether this is a forked child and the memory belongs to its parent.
    fn is_frozen(&self) -> bool {
        self.process != fork::generation() && self.provider().visibility() == Visibility::Shared
    }

    /// Records an event in the history, if it is on.
    fn record(
        &self,
        kind: EventKind,
        address: Address,
        (size, block_size): (u64, u64),
        reason: &'static str,
    ) {
        if self.history.is_on() {
            let (at, thread) = (self.now(), thread_id());
            self.history.record(&Event { at, thread, kind, address, size, block_size, reason });
        }
    }

    /// Checks and records an allocation that succeeded.
    fn after_allocate(&self, address: Address, layout: Layout) {
        self.frees.end(address);
        let size = layout.size() as u64;
        let block = self.inner.block_at(address).map_or(0, |block| block.size);
        if matches!(self.settings.poison, Poison::All) {
            // SAFETY: the caller of `allocate` does not have the block yet, and
            // `CheckSettings::check` made sure that the memory is host-accessible.
            unsafe { poison::fill(address, block, CheckSettings::NEW_BYTE) };
        }
        if let Some(sites) = &self.sites {
            sites.insert(address, size, block as u64, self.now());
        }
        self.record(EventKind::Allocate, address, (size, block as u64), "");
    }

    /// Runs `free` for the block at `address`, with the checks and records of a free.
    fn checked_free(
        &self,
        address: Address,
        free: impl FnOnce(Option<BlockSpan>) -> Result<()>,
    ) -> Result<()> {
        if !self.checks_blocks || self.is_frozen() {
            return free(None);
        }
        let Some(_active) = self.frees.begin(address) else {
            return Err(self.record_failed_free(Error::NotAllocated { address }, address));
        };
        let block = self.inner.block_at(address).ok().filter(|block| block.address == address);
        // Before the free: after it, another thread may allocate the block.
        let removed = match (&self.sites, block) {
            (Some(sites), Some(_)) => sites.remove(address),
            _ => None,
        };
        if let Some(block) = block {
            self.record(EventKind::Free, address, (0, block.size as u64), "");
        }
        let Err(error) = free(block) else { return Ok(()) };
        if let (Some(sites), Some(block)) = (&self.sites, removed) {
            sites.restore(address, block);
        }
        Err(self.record_failed_free(error, address))
    }

    /// Records a failed free. Returns its error, with the earlier free if the history has it.
    fn record_failed_free(&self, error: Error, address: Address) -> Error {
        let error = match (error, self.history.last_free(address, self.now())) {
            (Error::NotAllocated { address }, Some(by)) => Error::FreedTwice { address, by },
            _ => error,
        };
        self.record(EventKind::FreeRefused, address, (0, 0), reason(&error));
        error
    }

    fn inner_deferred_free(&self) -> Result<&dyn DeferredFree> {
        self.inner.deferred_free().ok_or(missing("freeing with a completion"))
    }
}

// SAFETY: the blocks are those of the inner pool, which upholds the contract.
unsafe impl Pool for Checked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn provider(&self) -> &ProviderRef {
        self.inner.provider()
    }

    fn allocate(&self, layout: Layout) -> Result<Address> {
        let result = pool::allocate(&*self.inner, layout);
        if self.checks_blocks {
            match &result {
                Ok(address) => self.after_allocate(*address, layout),
                Err(error) => {
                    let size = layout.size() as u64;
                    self.record(EventKind::AllocateRefused, Address::from_bits(0), (size, 0), reason(error));
                }
            }
        }
        result
    }

    fn allocate_fast(&self, layout: Layout) -> Option<Address> {
        if self.checks_blocks { None } else { self.inner.allocate_fast(layout) }
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.checked_free(address, |block| match (&self.quarantine, block) {
            // SAFETY: passed on to the caller, here and below.
            (Some(quarantine), Some(block)) if quarantine.fits(block.size) => unsafe {
                match quarantine.free(self.inner_deferred_free()?, block, self.has_poison()) {
                    // The pool holds blocks for importers only, so it has no quarantine.
                    Err(Error::NotSupported { .. }) => pool::free(&*self.inner, address),
                    freed => freed,
                }
            },
            // SAFETY: as above.
            _ => unsafe { pool::free(&*self.inner, address) },
        })
    }

    unsafe fn free_fast(&self, address: Address) -> bool {
        // SAFETY: passed on to the caller.
        !self.checks_blocks && unsafe { self.inner.free_fast(address) }
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        self.inner.block_at(address)
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        let released = self.inner.trim(keep)?;
        self.record(EventKind::Trim, Address::from_bits(0), (released as u64, keep as u64), "");
        Ok(released)
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = self.inner.statistics();
        let quarantined = self.quarantine.as_ref().map_or(0, Quarantine::bytes).min(statistics.held_bytes);
        statistics.held_bytes -= quarantined;
        statistics.quarantined_bytes += quarantined;
        statistics
    }

    fn reuse(&self) -> Reuse {
        self.inner.reuse()
    }

    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        self.inner.deferred_free().map(|_| self as &dyn DeferredFree)
    }

    fn controls(&self) -> Option<&dyn Controls> {
        self.inner.controls()
    }

    fn reserves(&self) -> Option<&dyn Reserve> {
        self.inner.reserves()
    }

    fn share_limit(&self) -> Option<&dyn ShareLimit> {
        self.inner.share_limit()
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

// SAFETY: the inner pool upholds the contract. A quarantined block is one of its deferred frees.
unsafe impl DeferredFree for Checked {
    fn mark_exported(&self, address: Address) -> Result<()> {
        self.inner_deferred_free()?.mark_exported(address)
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        // SAFETY: passed on to the caller.
        self.checked_free(address, |_| unsafe { self.inner_deferred_free()?.free_after(address, completion) })
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        if let Freed::Block { address } = freed
            && let Some(quarantine) = &self.quarantine
            && let Some(size) = quarantine.remove(address)
            && self.has_poison()
        {
            self.check_poison(address, size);
        }
        // SAFETY: passed on to the caller.
        unsafe { self.inner_deferred_free()?.reclaim(freed) }
    }
}

impl Inspect for Checked {
    fn map(&self) -> Option<PoolMap> {
        let mut map = self.inner.inspect()?.map()?;
        if let Some(quarantine) = &self.quarantine {
            for region in &mut map.regions {
                if region.pieces.iter().any(|piece| piece.state == PieceState::Held) {
                    region.pieces = quarantine.relabel(region.base, &region.pieces);
                }
            }
        }
        Some(map)
    }

    fn history(&self) -> Option<PoolHistory> {
        self.history.read(self.name(), || self.now())
    }

    fn leaks(&self, visit: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        self.visit_leaks(LeakTime::Requested, visit)
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        if !self.is_frozen() {
            if let Some(quarantine) = &self.quarantine {
                quarantine.release_all();
                if let Some(controls) = self.inner.controls() {
                    controls.drain(Duration::ZERO);
                }
            }
            self.report_leaks(LeakTime::PoolEnd);
        }
        self.unregister_for_exit();
        // SAFETY: the pool is dropped after this, and drops its upstream before itself.
        unsafe { tracker::replace_pool(self.owner, &*self.inner) };
    }
}

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checked pool {:?} over {:?}", self.name(), self.provider())
    }
}
