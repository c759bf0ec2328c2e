//! Pools: fine-grained blocks out of coarse regions.
//!
//! [`Pool`] is the small mandatory part. An accessor yields each further ability, a trait of its
//! own: [`DeferredFree`] (blocks that stay in use after their free), [`Controls`] (what can be set
//! while the pool is in use), [`Reserve`] (memory ahead of need), [`ShareLimit`] (free memory for
//! other pools), [`Inspect`] (what the pool knows of itself). `umf_runtime::Upstream` implements
//! [`Controls`] for the pools that hold one. Callers turn a missing ability into an error with
//! [`missing`].

use core::time::Duration;
use std::sync::Arc;

use crate::deferred::{DeferredStatistics, OnFree};
use crate::history::PoolHistory;
use crate::leaks::LeakReport;
use crate::limit::SharedLimit;
use crate::map::PoolMap;
use crate::out_of_memory::OnOutOfMemory;
use crate::statistics::PoolStatistics;
use crate::{Address, Completion, Error, Layout, ProviderRef, Region, Result};

/// A live block: what [`Pool::block_at`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSpan {
    /// Where the block begins, as [`Pool::allocate`] returned it.
    pub address: Address,
    /// Bytes that its owner may use, at least what was asked for.
    pub size: usize,
}

/// Memory that is freed, in one of two sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// A block goes back to its pool, which may hand it out again.
    Block {
        /// Its address, as the pool handed it out.
        address: Address,
    },
    /// A region goes back to its provider.
    Region(Region),
}

/// Hands out blocks from regions.
///
/// All methods may be called from several threads at once. Any thread may free a block. A pool
/// never touches the memory that it hands out: its metadata lies elsewhere. Memory that is handed
/// out again has the contents that its former owner left there.
///
/// Misuse is an error in every build, never corruption: the type [`Layout`] excludes size zero,
/// overflow and bad alignments; [`Pool::free`] refuses foreign, interior and already freed
/// addresses. A pool cannot detect that a caller frees a live block of another owner.
///
/// `umf_testkit::pool_conformance!` tests a pool, in one line.
///
/// # Safety
/// An implementor promises that its blocks lie in regions of its provider, are aligned, do not
/// overlap, and stay valid until freed.
pub unsafe trait Pool: Send + Sync {
    /// The name of this instance, for people.
    fn name(&self) -> &str;

    /// Where its regions come from.
    fn provider(&self) -> &ProviderRef;

    /// Allocates a block of at least `layout.size()` bytes at a multiple of `layout.align()`.
    ///
    /// # Errors
    /// [`Error::BadAlignment`] beyond what the provider can give, [`Error::OutOfMemory`],
    /// [`Error::LimitReached`], [`Error::HeldLimit`], [`Error::Frozen`] in a forked child if the
    /// memory is shared, and the provider's own.
    fn allocate(&self, layout: Layout) -> Result<Address>;

    /// Allocates as [`Pool::allocate`] does, if a few instructions suffice. `None` means only that
    /// the caller must call `allocate`. The result fits into registers. Callers use [`allocate`].
    #[inline]
    fn allocate_fast(&self, layout: Layout) -> Option<Address> {
        let _ = layout;
        None
    }

    /// Frees a block. If other processes have it open, [`DeferredFree`] says what happens.
    ///
    /// In a forked child, freeing a block of inherited shared memory does nothing and succeeds: the
    /// block belongs to the parent.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::InteriorAddress`], [`Error::NotAllocated`]
    /// ([`Error::FreedTwice`] if a history knows the first free). After an error nothing has
    /// changed.
    ///
    /// # Safety
    /// The caller owns the block, and no thread uses it any more. An address that is no live block
    /// is safe to pass: it is an error.
    unsafe fn free(&self, address: Address) -> Result<()>;

    /// Frees as [`Pool::free`] does, if a few instructions suffice. `false` means that nothing has
    /// happened and the caller must call `free`. Callers use [`free`].
    ///
    /// # Safety
    /// As [`Pool::free`].
    #[inline]
    unsafe fn free_fast(&self, address: Address) -> bool {
        let _ = address;
        false
    }

    /// The live block that holds `address`, which may lie inside it.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::NotAllocated`].
    fn block_at(&self, address: Address) -> Result<BlockSpan>;

    /// Gives free memory back to the provider until at most `keep` bytes of free memory are left,
    /// and returns how many bytes went. Memory in the caches of other threads goes at the next
    /// operation or at the exit of those threads.
    ///
    /// # Errors
    /// The provider's; memory that could not be given back stays in the pool.
    fn trim(&self, keep: usize) -> Result<usize>;

    /// What the pool holds. Summed up by this call; counting costs nothing on the fast path.
    fn statistics(&self) -> PoolStatistics;

    /// How blocks stay in use after their free, if this pool can keep them from reuse. Only such a
    /// pool can export its blocks.
    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        None
    }

    /// What can be set while the pool is in use, if anything can.
    fn controls(&self) -> Option<&dyn Controls> {
        None
    }

    /// How to get memory before it is needed and give it back in idle moments, if this pool can.
    fn reserves(&self) -> Option<&dyn Reserve> {
        None
    }

    /// How to get free memory for other pools under a shared limit, if this pool can give some.
    fn share_limit(&self) -> Option<&dyn ShareLimit> {
        None
    }

    /// What the pool knows of its regions and blocks, if it can tell.
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }
}

/// The error of an ability that a pool does not have.
#[must_use]
pub const fn missing(what: &'static str) -> Error {
    Error::NotSupported { what, owner: "this kind of pool", native: 0 }
}

/// Blocks that stay in use after their free: importers have them open, or a device works on them.
///
/// Such a block is held (`umf_runtime::deferred`): its exports are retired at once, it does not
/// count as live, freeing it again is an error, and it counts as held and against the pool's
/// limits. It is not handed out, and its region does not go back to the provider, before
/// [`DeferredFree::reclaim`].
///
/// # Safety
/// An implementor promises that it calls `umf_runtime::observer::before_free` before a block that
/// [`DeferredFree::mark_exported`] marked can be handed out again; and that a block for which this
/// answers with leases, and that `umf_runtime::Upstream::defer` then holds, is not handed out
/// before [`DeferredFree::reclaim`].
pub unsafe trait DeferredFree: Send + Sync {
    /// Marks the live block at `address` (its start) as exported: its free is announced to
    /// `umf_runtime::observer::before_free`. Marking twice has the effect of marking once.
    ///
    /// Exporters call this under locks that their observers take, so it must not wait for a lock
    /// that the pool holds while it calls `before_free`.
    ///
    /// # Errors
    /// As [`Pool::block_at`], and [`Error::InteriorAddress`].
    fn mark_exported(&self, address: Address) -> Result<()>;

    /// Frees a block that may still be in use until `completion` is [`crate::Progress::Ready`], for
    /// instance by work that was given to a device. The block is held meanwhile.
    ///
    /// Does not block. A pool looks at a few completions where a thread needs blocks that it does
    /// not have at hand; at all of them when it is trimmed, when an allocation would fail, in
    /// `umf_runtime::deferred::poll` and in [`Controls::drain`]. A pool that is dropped leaves the
    /// regions of such blocks, and keeps their provider, until a `umf_runtime::deferred::poll`
    /// finds them ready.
    ///
    /// # Errors
    /// As [`Pool::free`]: then nothing has changed.
    ///
    /// # Safety
    /// The caller owns the block, and no thread uses it any more once `completion` is ready.
    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()>;

    /// Takes back what was held (see `umf_runtime::deferred`). A block that
    /// `umf_runtime::Upstream::defer` or `umf_runtime::Upstream::defer_until` held may be handed
    /// out again. A region whose `umf_runtime::Upstream::free` returned
    /// `umf_runtime::deferred::FreeOutcome::Deferred` has gone to the provider and does not count
    /// any more. `umf_runtime::deferred::poll` calls this in any thread, once for each.
    ///
    /// # Errors
    /// For a block: why it cannot be taken back, for instance because it is a region that the
    /// provider refuses. It stays held.
    ///
    /// # Safety
    /// The pool holds the block or region, and it is not in use.
    unsafe fn reclaim(&self, freed: Freed) -> Result<()>;
}

/// What can be set of a pool while it is in use. `umf_runtime::Upstream` implements this for pools
/// that have no state of their own for it.
pub trait Controls: Send + Sync {
    /// Sets what becomes of blocks that are freed while other processes have them open, and how
    /// many bytes may be held (0 is unlimited) before allocating fails as [`Error::HeldLimit`].
    /// Concerns what is freed from now on.
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64);

    /// Sets the callback of an allocation that would fail for lack of memory, also after limits or
    /// the provider refused: see [`crate::out_of_memory`]. `None`, the default, removes it.
    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>);

    /// Waits until the pool holds nothing any more, for at most `timeout`; returns what it still
    /// holds.
    fn drain(&self, timeout: Duration) -> DeferredStatistics;
}

/// Memory ahead of need, and back in idle moments.
pub trait Reserve: Send + Sync {
    /// Sees to it that at least `bytes` of the provider's memory can be handed out, live blocks
    /// included, with their pages made if the provider can ([`crate::Provider::populate`]); returns
    /// how many bytes came for that. Reserving the same again changes nothing. Memory that the pool
    /// hands out as regions of their own comes on top.
    ///
    /// Reserved memory is not released automatically. [`Pool::trim`] gives it back like other free
    /// memory, and what is left stays reserved. An allocation that would fail otherwise gives it
    /// back too.
    ///
    /// # Errors
    /// As [`Pool::allocate`]. After an error nothing has come.
    fn reserve(&self, bytes: usize) -> Result<usize>;

    /// Gives back at once what the pool's release policy would give back by now; returns how many
    /// bytes went. For the idle moments of an application: otherwise pools do so on their slow
    /// paths.
    ///
    /// # Errors
    /// As [`Pool::trim`].
    fn purge(&self) -> Result<usize>;
}

/// Free memory for other pools.
pub trait ShareLimit: Send + Sync {
    /// Gives `bytes` of free memory back, or what is free if that is less, because another pool
    /// under `limit` lacks them; returns how many bytes went. 0 if this pool does not count against
    /// that limit. Reserved memory ([`Reserve::reserve`]) stays.
    ///
    /// `umf_runtime::limit::reclaim` calls this in any thread, without a lock, possibly while
    /// another thread drops this pool.
    fn yield_free(&self, limit: &SharedLimit, bytes: u64) -> u64;
}

/// What a pool knows of its regions and blocks. `None` and `false`: it does not know this.
pub trait Inspect: Send + Sync {
    /// The pool's regions as they are now. Other threads go on meanwhile, so the parts may be of
    /// different moments.
    fn map(&self) -> Option<PoolMap> {
        None
    }

    /// The latest events in the pool, as far as it is set to record them.
    fn history(&self) -> Option<PoolHistory> {
        None
    }

    /// Passes the live blocks to `look`, with their allocation sites as far as the pool is set to
    /// record them; whether it did.
    fn leaks(&self, look: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        let _ = look;
        false
    }
}

/// [`Pool::allocate`] by the shortest path.
///
/// # Errors
/// As [`Pool::allocate`].
#[inline]
pub fn allocate(pool: &dyn Pool, layout: Layout) -> Result<Address> {
    match pool.allocate_fast(layout) {
        Some(address) => Ok(address),
        None => pool.allocate(layout),
    }
}

/// [`Pool::free`] by the shortest path.
///
/// # Errors
/// As [`Pool::free`].
///
/// # Safety
/// As [`Pool::free`].
#[inline]
pub unsafe fn free(pool: &dyn Pool, address: Address) -> Result<()> {
    // SAFETY: passed on to the caller, here and below.
    if unsafe { pool.free_fast(address) } {
        return Ok(());
    }
    // SAFETY: as above; nothing has happened.
    unsafe { pool.free(address) }
}
