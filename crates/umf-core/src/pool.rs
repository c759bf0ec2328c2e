//! Pools: fine-grained blocks out of coarse regions.
//!
//! [`Pool`] has the methods that every pool implements. Each optional ability is a trait, which an
//! accessor of [`Pool`] returns:
//!
//! | ability | trait |
//! |---|---|
//! | frees blocks that are still in use | [`DeferredFree`] |
//! | can be configured while in use | [`Controls`]; `umf_runtime::Upstream` implements it |
//! | reserves memory, and releases it when idle | [`Reserve`] |
//! | releases free memory for other pools | [`ShareLimit`] |
//! | reports its regions, events and live blocks | [`Inspect`] |
//!
//! [`missing`] is the error for a missing ability.

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

/// The address and size of a live block, which [`Pool::block_at`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSpan {
    /// The address that [`Pool::allocate`] returned.
    pub address: Address,
    /// The usable size in bytes, at least the requested size.
    pub size: usize,
}

/// Memory that is freed: a block or a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// A block, which its pool may reuse.
    Block {
        /// The address that the pool returned.
        address: Address,
    },
    /// A region, which goes back to its provider.
    Region(Region),
}

/// The time from which a pool may allocate the memory of a freed block again: see [`Pool::reuse`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reuse {
    /// From the free of the block on, or from its [`DeferredFree::reclaim`].
    #[default]
    EachBlock,
    /// While no block of the pool is live or held. The pool may wait until [`Pool::trim`] is called
    /// in such a moment. A bump arena reuses memory in this way.
    WhenEmpty,
}

/// Hands out blocks from regions.
///
/// Several threads may call all methods at the same time. Any thread may free a block. A pool never
/// accesses the memory of its blocks: its metadata lies elsewhere. A reused block has the contents
/// that its former owner left.
///
/// Misuse is an error in every build, and never corrupts memory. The type [`Layout`] excludes size
/// zero, overflow and invalid alignments. [`Pool::free`] fails for foreign, interior and already
/// freed addresses. A pool cannot detect the free of a live block that the caller does not own.
///
/// `umf_testkit::pool_conformance!` tests a pool by one line.
///
/// # Safety
/// An implementor promises that its blocks lie in regions of its provider, are aligned, do not
/// overlap, and stay valid until freed.
pub unsafe trait Pool: Send + Sync {
    /// Returns the name of this instance, for people.
    fn name(&self) -> &str;

    /// Returns the provider of its regions.
    fn provider(&self) -> &ProviderRef;

    /// Allocates a block of at least `layout.size()` bytes at a multiple of `layout.align()`.
    ///
    /// # Errors
    /// [`Error::BadAlignment`] if the provider does not support the alignment;
    /// [`Error::OutOfMemory`], [`Error::LimitReached`], [`Error::HeldLimit`]; [`Error::Frozen`] in
    /// a forked child that has inherited shared memory; the provider's.
    fn allocate(&self, layout: Layout) -> Result<Address>;

    /// Allocates as [`Pool::allocate`] does, if a few instructions suffice. `None` means only that
    /// the caller must call `allocate`. The result fits into registers. Callers use [`allocate`].
    #[inline]
    fn allocate_fast(&self, layout: Layout) -> Option<Address> {
        let _ = layout;
        None
    }

    /// Frees a block. If other processes have it open, the free is deferred: see [`DeferredFree`].
    ///
    /// In a forked child, freeing a block of inherited shared memory does nothing and succeeds: the
    /// block belongs to the parent.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::InteriorAddress`], [`Error::NotAllocated`];
    /// [`Error::FreedTwice`] if the history has the first free. After an error nothing has changed.
    ///
    /// # Safety
    /// The caller owns the block, and no thread uses it any more. It is safe to pass an address
    /// that is not a live block: it is an error.
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

    /// Returns the live block that contains `address`.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::NotAllocated`].
    fn block_at(&self, address: Address) -> Result<BlockSpan>;

    /// Releases free memory to the provider until at most `keep` bytes of free memory are left.
    /// Returns the released bytes. Memory in the caches of other threads is released at the next
    /// operation or at the exit of these threads.
    ///
    /// # Errors
    /// The provider's. Memory that it fails to take back stays in the pool.
    fn trim(&self, keep: usize) -> Result<usize>;

    /// Returns the statistics. This call adds them up, so that counting costs nothing on fast
    /// paths.
    fn statistics(&self) -> PoolStatistics;

    /// Returns when the memory of a freed block is reused. Always returns the same. A pool with
    /// [`Reuse::WhenEmpty`] still detects invalid and second frees, and counts live blocks.
    fn reuse(&self) -> Reuse {
        Reuse::EachBlock
    }

    /// Returns the ability to defer frees, if this pool has it. Only such a pool can export its
    /// blocks.
    fn deferred_free(&self) -> Option<&dyn DeferredFree> {
        None
    }

    /// Returns the ability to be configured while in use, if this pool has it.
    fn controls(&self) -> Option<&dyn Controls> {
        None
    }

    /// Returns the ability to reserve memory, if this pool has it.
    fn reserves(&self) -> Option<&dyn Reserve> {
        None
    }

    /// Returns the ability to release free memory for other pools, if this pool has it.
    fn share_limit(&self) -> Option<&dyn ShareLimit> {
        None
    }

    /// Returns the ability to report on the pool's regions and blocks, if this pool has it.
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }
}

/// Returns the error for an ability that a pool does not have. `what` names the ability.
#[must_use]
pub const fn missing(what: &'static str) -> Error {
    Error::NotSupported { what, owner: "this kind of pool", native: 0 }
}

/// Frees of blocks that are still in use: importers have them open, or a device works on them.
///
/// Such a block is held (`umf_runtime::deferred`). Its exports are retired at once. It does not
/// count as live, and freeing it again is an error. It counts as held and against the pool's
/// limits. It is not reused, and its region does not go back to the provider, before
/// [`DeferredFree::reclaim`].
///
/// # Safety
/// An implementor promises:
/// - It calls `umf_runtime::observer::before_free` before it reuses a block that
///   [`DeferredFree::mark_exported`] marked.
/// - If that returns leases and `umf_runtime::Upstream::defer` holds the block, it does not reuse
///   the block before [`DeferredFree::reclaim`].
pub unsafe trait DeferredFree: Send + Sync {
    /// Marks the live block at `address`, its start, as exported: its free calls
    /// `umf_runtime::observer::before_free`. Idempotent.
    ///
    /// Exporters call this under locks that their observers acquire. So it must not wait for a lock
    /// that the pool holds during `before_free`.
    ///
    /// # Errors
    /// As [`Pool::block_at`], and [`Error::InteriorAddress`].
    fn mark_exported(&self, address: Address) -> Result<()>;

    /// Frees a block that may be in use until `completion` is [`crate::Progress::Ready`], for
    /// example by work of a device. The block is held meanwhile.
    ///
    /// Does not block. A pool polls a few completions on its slow paths. It polls all of them when
    /// it is trimmed, when an allocation would fail, in `umf_runtime::deferred::poll` and in
    /// [`Controls::drain`]. If the pool is dropped, the regions of such blocks stay, and keep their
    /// provider alive, until a `umf_runtime::deferred::poll` finds the completions ready.
    ///
    /// # Errors
    /// As [`Pool::free`]; [`Error::NotSupported`] if this kind of pool holds blocks for importers
    /// only. After an error nothing has changed: the block is live.
    ///
    /// # Safety
    /// The caller owns the block, and no thread uses it any more once `completion` is ready.
    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()>;

    /// Completes a deferred free (see `umf_runtime::deferred`). A block that
    /// `umf_runtime::Upstream::defer` or `umf_runtime::Upstream::defer_until` held may be reused. A
    /// region whose `umf_runtime::Upstream::free` returned
    /// `umf_runtime::deferred::FreeOutcome::Deferred` has gone back to the provider and does not
    /// count any more. `umf_runtime::deferred::poll` calls this in any thread, once for each free.
    ///
    /// # Errors
    /// For a block, the reason why it cannot be freed: for example, it is a region that the
    /// provider fails to free. It stays held.
    ///
    /// # Safety
    /// The pool holds the block or region, and it is not in use.
    unsafe fn reclaim(&self, freed: Freed) -> Result<()>;
}

/// Configuration of a pool while it is in use. `umf_runtime::Upstream` implements it for its pool.
pub trait Controls: Send + Sync {
    /// Sets the policy for blocks that are freed while other processes have them open, and the
    /// limit of held bytes; 0 is unlimited. Above the limit, allocations fail with
    /// [`Error::HeldLimit`]. Applies to later frees.
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64);

    /// Sets the callback that runs before an allocation fails for lack of memory or because of a
    /// limit: see [`crate::out_of_memory`]. `None`, the default, removes it.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if this kind of pool never calls the callback.
    fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) -> Result<()>;

    /// Waits until all deferred frees of the pool are reclaimed, for at most `timeout`. Returns
    /// those that are left.
    fn drain(&self, timeout: Duration) -> DeferredStatistics;
}

/// Reservation of memory before it is needed, and its release when the application is idle.
pub trait Reserve: Send + Sync {
    /// Allocates from the provider until the pool has at least `bytes`, live blocks included.
    /// Populates the pages if the provider can ([`crate::Provider::populate`]). Returns the
    /// allocated bytes. Idempotent. Blocks that are regions of their own do not count.
    ///
    /// Reserved memory is not released automatically. [`Pool::trim`] releases it like other free
    /// memory; the rest stays reserved. An allocation that would fail otherwise releases it too.
    ///
    /// # Errors
    /// As [`Pool::allocate`]. After an error nothing is allocated.
    fn reserve(&self, bytes: usize) -> Result<usize>;

    /// Applies the pool's release policy now. Returns the released bytes. Pools apply it on their
    /// slow paths, so this is for an application that is idle.
    ///
    /// # Errors
    /// As [`Pool::trim`].
    fn purge(&self) -> Result<usize>;
}

/// Release of free memory for other pools.
pub trait ShareLimit: Send + Sync {
    /// Releases up to `bytes` of free memory, because another pool with the shared `limit` lacks
    /// them. Returns the released bytes; 0 if this pool does not count against the limit. Reserved
    /// memory ([`Reserve::reserve`]) stays.
    ///
    /// `umf_runtime::limit::reclaim` calls this in any thread, without a lock, possibly while
    /// another thread drops this pool.
    fn yield_free(&self, limit: &SharedLimit, bytes: u64) -> u64;
}

/// Reports on a pool's regions and blocks. `None` and `false` mean that the pool has no such
/// report.
pub trait Inspect: Send + Sync {
    /// Returns a map of the pool's regions. Other threads continue, so its parts may be of
    /// different times.
    fn map(&self) -> Option<PoolMap> {
        None
    }

    /// Returns the latest events, if the pool is configured to record them.
    fn history(&self) -> Option<PoolHistory> {
        None
    }

    /// Calls `visit` with the live blocks, and with their allocation sites if the pool is
    /// configured to record them. Returns whether it did.
    fn leaks(&self, visit: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        let _ = visit;
        false
    }
}

/// Allocates a block by [`Pool::allocate_fast`], else by [`Pool::allocate`].
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

/// Frees a block by [`Pool::free_fast`], else by [`Pool::free`].
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
