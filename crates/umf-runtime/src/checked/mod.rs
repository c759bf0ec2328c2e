//! [`Checked`]: finds mistakes in the use of any pool.
//!
//! It stands before a pool and sees what is allocated and freed, not what the pool does inside. The
//! tracker shows it instead of the pool, so that a free by address, an export and a reclaimed block
//! come here first. With nothing that concerns each block set, it passes the fast paths on.
//!
//! | module | idea |
//! |---|---|
//! | `history` | the last events of each thread |
//! | `sites` | where live blocks were allocated |
//! | `frees` | of two frees of a block at the same instant one is refused |
//! | `quarantine` | a freed block waits, as a deferred free whose completion ends with the quarantine |
//! | `poison` | what waits is filled, and compared before it is used again |
//! | `report` | leaks at the end of the pool or process, and faults |
//! | `settings` | what can be set |

mod frees;
mod history;
mod poison;
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
    Reserve, Result, ShareLimit, Visibility,
};
use umf_os::process::thread_id;

use frees::Frees;
use history::History;
use quarantine::Quarantine;
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

/// A pool that checks the use of another one.
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
    /// Whether each allocation and free is looked at.
    each_block: bool,
    began: Instant,
    history: History,
    /// Live blocks, all or a sample, if leaks are reported with sites or the pool does not count.
    sites: Option<Sites>,
    quarantine: Option<Quarantine>,
    /// A pool may let two frees of a block succeed that are at the same instant: see `frees`.
    frees: Frees,
    /// The process in which this was made, as [`fork::generation`] counts.
    process: u32,
    /// The pool may be the global allocator: reports allocate nothing.
    is_global: bool,
}

struct StaticSlot(UnsafeCell<MaybeUninit<Checked>>);

// SAFETY: the thread that took the number of a place writes it once, before a reference to it
// exists.
unsafe impl Sync for StaticSlot {}
// SAFETY: anything is a valid `MaybeUninit`.
unsafe impl Zeroable for StaticSlot {}

static STATIC_SLOTS: Chunks<StaticSlot, 1> = Chunks::new();
static TAKEN: AtomicU32 = AtomicU32::new(0);

impl Checked {
    /// Checks the use of `pool`, which nothing else refers to, and of which no block is live.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for settings out of range, poison over memory that the CPU must
    /// not touch, and a pool that is in use; [`Error::NotSupported`] if the pool cannot defer frees
    /// and a quarantine or poison is set, or if the C library cannot tell allocation sites.
    pub fn new(mut pool: Arc<dyn Pool>, settings: CheckSettings) -> Result<Arc<Self>> {
        if Arc::get_mut(&mut pool).is_none() || pool.statistics().live_blocks != 0 {
            return Err(Error::InvalidArgument {
                what: "pool",
                why: "a pool that is in use cannot be checked",
            });
        }
        let checked = Arc::new(Self::unplaced(Inner::Shared(pool), settings, false)?);
        // SAFETY: the content of an `Arc` does not move, and `drop` undoes this.
        unsafe { checked.settle() }?;
        Ok(checked)
    }

    /// As [`Checked::new`], for a pool that lives for ever and may be the global allocator: with
    /// leaks alone set, nothing is allocated from that.
    ///
    /// # Errors
    /// As [`Checked::new`], and [`Error::OutOfMemory`] for the memory of this object.
    ///
    /// # Safety
    /// Nothing uses `pool` other than through the result.
    pub unsafe fn new_static(pool: &'static dyn Pool, settings: CheckSettings) -> Result<&'static Self> {
        let place = STATIC_SLOTS.get_or_grow(TAKEN.fetch_add(1, Ordering::Relaxed))?.0.get();
        let checked = Self::unplaced(Inner::Static(pool), settings, true)?;
        // SAFETY: the place is this call's own; it is never written again, and never unmapped.
        let checked = unsafe { (*place).write(checked) };
        // SAFETY: it stays there for ever.
        unsafe { checked.settle() }?;
        Ok(checked)
    }

    fn unplaced(inner: Inner, settings: CheckSettings, is_global: bool) -> Result<Self> {
        settings.check(&*inner)?;
        let owner = tracker::owner_of_pool(&*inner).ok_or(missing("being checked"))?;
        let knows_leaks = inner.inspect().is_some_and(|inspect| inspect.leaks(&mut |_| ()));
        let keeps_blocks = match settings.leaks {
            Leaks::Off => false,
            Leaks::Count => !knows_leaks,
            Leaks::Sites => true,
        };
        let sample = if matches!(settings.leaks, Leaks::Sites) { settings.leak_sample.max(1) } else { 0 };
        let sites = keeps_blocks.then(|| Sites::new(sample, !knows_leaks));
        let quarantine = settings.quarantine_bytes().map(Quarantine::new);
        Ok(Self {
            inner,
            owner,
            each_block: settings.history > 0 || sites.is_some() || quarantine.is_some(),
            began: Instant::now(),
            history: History::new(settings.history),
            sites,
            quarantine,
            frees: Frees::new(),
            process: fork::generation(),
            is_global,
            settings,
        })
    }

    /// Has the tracker show this instead of the pool.
    ///
    /// # Safety
    /// It stays where it is until dropped.
    unsafe fn settle(&self) -> Result<()> {
        // SAFETY: passed on to the caller; `drop` leaves.
        unsafe { self.watch_end_of_process() }?;
        // Last, since it cannot fail.
        // SAFETY: no block is live, and `drop` puts the pool back before this goes.
        unsafe { tracker::replace_pool(self.owner, self) };
        Ok(())
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether this is a forked child, and the memory its parent's.
    fn is_frozen(&self) -> bool {
        self.process != fork::generation() && self.provider().visibility() == Visibility::Shared
    }

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

    /// A block was handed out.
    fn allocated(&self, address: Address, layout: Layout) {
        self.frees.end(address);
        let size = layout.size() as u64;
        let block = self.inner.block_at(address).map_or(0, |block| block.size);
        if matches!(self.settings.poison, Poison::All) {
            // SAFETY: the block has not reached its owner yet, and `CheckSettings::check` asked the
            // provider.
            unsafe { poison::fill(address, block, CheckSettings::NEW_BYTE) };
        }
        if let Some(sites) = &self.sites {
            sites.remember(address, size, block as u64, self.now());
        }
        self.record(EventKind::Allocate, address, (size, block as u64), "");
    }

    /// Runs `free` for the block at `address` and records it.
    fn freeing(&self, address: Address, free: impl FnOnce(Option<BlockSpan>) -> Result<()>) -> Result<()> {
        if !self.each_block || self.is_frozen() {
            return free(None);
        }
        let Some(_under_way) = self.frees.begin(address) else {
            return Err(self.refused(Error::NotAllocated { address }, address));
        };
        let block = self.inner.block_at(address).ok().filter(|block| block.address == address);
        // Before the free: afterwards the block may have another owner.
        let site = match (&self.sites, block) {
            (Some(sites), Some(_)) => sites.forget(address),
            _ => None,
        };
        if let Some(block) = block {
            self.record(EventKind::Free, address, (0, block.size as u64), "");
        }
        let Err(error) = free(block) else { return Ok(()) };
        if let (Some(sites), Some(site)) = (&self.sites, site) {
            sites.put_back(address, site);
        }
        Err(self.refused(error, address))
    }

    /// Records a free that is refused, and returns why it is.
    fn refused(&self, error: Error, address: Address) -> Error {
        let error = match (error, self.history.last_free(address, self.now())) {
            (Error::NotAllocated { address }, Some(by)) => Error::FreedTwice { address, by },
            _ => error,
        };
        self.record(EventKind::FreeRefused, address, (0, 0), reason(&error));
        error
    }

    fn deferring(&self) -> Result<&dyn DeferredFree> {
        self.inner.deferred_free().ok_or(missing("freeing with a completion"))
    }
}

// SAFETY: blocks are those of the inner pool, which keeps the promises.
unsafe impl Pool for Checked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn provider(&self) -> &ProviderRef {
        self.inner.provider()
    }

    fn allocate(&self, layout: Layout) -> Result<Address> {
        let got = pool::allocate(&*self.inner, layout);
        if self.each_block {
            match &got {
                Ok(address) => self.allocated(*address, layout),
                Err(error) => {
                    let size = layout.size() as u64;
                    self.record(EventKind::AllocateRefused, Address::from_bits(0), (size, 0), reason(error));
                }
            }
        }
        got
    }

    fn allocate_fast(&self, layout: Layout) -> Option<Address> {
        if self.each_block { None } else { self.inner.allocate_fast(layout) }
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.freeing(address, |block| match (&self.quarantine, block) {
            // SAFETY: passed on to the caller, here and below.
            (Some(quarantine), Some(block)) if quarantine.takes(block.size) => unsafe {
                quarantine.free(self.deferring()?, block, self.poisons())
            },
            // SAFETY: as above.
            _ => unsafe { pool::free(&*self.inner, address) },
        })
    }

    unsafe fn free_fast(&self, address: Address) -> bool {
        // SAFETY: passed on to the caller.
        !self.each_block && unsafe { self.inner.free_fast(address) }
    }

    fn block_at(&self, address: Address) -> Result<BlockSpan> {
        self.inner.block_at(address)
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        let went = self.inner.trim(keep)?;
        self.record(EventKind::Trim, Address::from_bits(0), (went as u64, keep as u64), "");
        Ok(went)
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = self.inner.statistics();
        let quarantined = self.quarantine.as_ref().map_or(0, Quarantine::bytes).min(statistics.held_bytes);
        statistics.held_bytes -= quarantined;
        statistics.quarantined_bytes += quarantined;
        statistics
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

// SAFETY: the inner pool keeps the promises. What it holds for the quarantine it reclaims as all
// else.
unsafe impl DeferredFree for Checked {
    fn mark_exported(&self, address: Address) -> Result<()> {
        self.deferring()?.mark_exported(address)
    }

    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        // SAFETY: passed on to the caller.
        self.freeing(address, |_| unsafe { self.deferring()?.free_after(address, completion) })
    }

    unsafe fn reclaim(&self, freed: Freed) -> Result<()> {
        if let Freed::Block { address } = freed
            && let Some(quarantine) = &self.quarantine
            && let Some(size) = quarantine.end(address)
            && self.poisons()
        {
            self.check_poison(address, size);
        }
        // SAFETY: passed on to the caller.
        unsafe { self.deferring()?.reclaim(freed) }
    }
}

impl Inspect for Checked {
    fn map(&self) -> Option<PoolMap> {
        let mut map = self.inner.inspect()?.map()?;
        if let Some(quarantine) = &self.quarantine {
            for region in &mut map.regions {
                let held = region.pieces.iter().position(|piece| piece.state == PieceState::Held);
                if held.is_some() {
                    region.pieces = quarantine.relabelled(region.base, &region.pieces);
                }
            }
        }
        Some(map)
    }

    fn history(&self) -> Option<PoolHistory> {
        self.history.read(self.name(), || self.now())
    }

    fn leaks(&self, look: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        self.show_leaks(LeakTime::Asked, look)
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
            self.tell_leaks(LeakTime::PoolEnd);
        }
        self.forget_end_of_process();
        // SAFETY: the pool is dropped after this, and its upstream before it.
        unsafe { tracker::replace_pool(self.owner, &*self.inner) };
    }
}

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checked pool {:?} over {:?}", self.name(), self.provider())
    }
}
