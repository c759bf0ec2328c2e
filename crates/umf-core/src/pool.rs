//! Pools: fine-grained blocks out of coarse regions.

use core::time::Duration;
use std::sync::Arc;

use crate::held::{HeldStatistics, OnFree};
use crate::history::PoolHistory;
use crate::leaks::LeakReport;
use crate::limit::SharedLimit;
use crate::map::PoolMap;
use crate::shortage::OutOfMemory;
use crate::statistics::PoolStatistics;
use crate::{Address, Completion, Layout, ProviderRef, Region, Result};

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
/// All methods may be called from several threads at once; a block may be freed by any thread. A pool
/// never touches the memory that it hands out: what it has to remember lies elsewhere. Memory handed out
/// again holds what its former owner left there.
///
/// Misuse is an error in every build, never corruption: zero size, overflow and bad alignments by the type
/// [`Layout`]; a foreign, interior or twice freed address by [`Pool::free`]. (What cannot be detected is a
/// block freed by someone who does not own it, while it is live.)
///
/// A pool is accepted by `umf_testkit::pool_conformance!`, in one line.
///
/// # Safety
/// An implementor promises that the blocks it hands out lie in regions of its provider, are aligned, do not
/// overlap, and stay valid until freed; that it tells [`crate::observer::before_free`] before a block
/// that [`Pool::mark_exported`] marked can be handed out again; and that a block for which this answers with leases, and that
/// [`crate::Upstream::hold`] then holds, is not handed out before [`Pool::let_go`].
pub unsafe trait Pool: Send + Sync {
    /// The name of this instance, for people.
    fn name(&self) -> &str;

    /// Where its regions come from.
    fn provider(&self) -> &ProviderRef;

    /// Allocates a block of at least `layout.size()` bytes at a multiple of `layout.align()`.
    ///
    /// # Errors
    /// [`crate::Error::BadAlignment`] beyond what the provider can give, [`crate::Error::OutOfMemory`],
    /// [`crate::Error::LimitReached`], [`crate::Error::HeldLimit`], [`crate::Error::Frozen`] in a forked child if the memory is shared, and
    /// the provider's own.
    fn allocate(&self, layout: Layout) -> Result<Address>;

    /// Allocates as [`Pool::allocate`] does, where that is a matter of a few instructions; `None` says nothing but that `allocate` is to be
    /// called. What this returns fits into registers. Callers use [`allocate`].
    #[inline]
    fn allocate_at_once(&self, layout: Layout) -> Option<Address> {
        let _ = layout;
        None
    }

    /// Frees a block. One that other processes have open is not handed out again before they have closed it.
    ///
    /// In a forked child, freeing a block of inherited shared memory does nothing and succeeds: it belongs to
    /// the parent.
    ///
    /// # Errors
    /// [`crate::Error::ForeignAddress`], [`crate::Error::InteriorAddress`], [`crate::Error::NotAllocated`] (or
    /// [`crate::Error::FreedTwice`], where a history tells more). After an error nothing has changed.
    ///
    /// # Safety
    /// The caller owns the block, and nobody uses it any more. (An address that is no live block is safe to
    /// pass: it is an error.)
    unsafe fn free(&self, address: Address) -> Result<()>;

    /// Frees as [`Pool::free`] does, where that is a matter of a few instructions; if this is `false`, nothing has happened, and `free` is
    /// to be called. Callers use [`free`].
    ///
    /// # Safety
    /// As [`Pool::free`].
    #[inline]
    unsafe fn free_at_once(&self, address: Address) -> bool {
        let _ = address;
        false
    }

    /// Frees a block that may still be in use until `completion` is ready, by work that was given to a device for instance. Its exports
    /// are retired at once, it does not count as live any more, and freeing it again is an error; but it is not handed out, and its
    /// region does not go back to the provider, before the completion is [`crate::Progress::Ready`]. Meanwhile it counts as held
    /// ([`crate::held`]), and against the pool's limits.
    ///
    /// Nobody waits: completions are looked at a few at a time, where a thread needs blocks that it does not have at hand; all of them
    /// when the pool is trimmed, when an allocation would fail, and by [`crate::held::poll`] and [`Pool::drain`]. A pool that is dropped
    /// leaves the regions with such blocks in them, and keeps their provider, until a [`crate::held::poll`] finds them ready.
    ///
    /// # Errors
    /// As [`Pool::free`]: then nothing has changed. [`crate::Error::NotSupported`] if this kind of pool cannot.
    ///
    /// # Safety
    /// The caller owns the block, and nobody uses it any more once `completion` is ready.
    unsafe fn free_after(&self, address: Address, completion: Arc<dyn Completion>) -> Result<()> {
        let _ = (address, completion);
        Err(crate::Error::NotSupported {
            what: "freeing with a completion",
            owner: "this kind of pool",
            native: 0,
        })
    }

    /// The live block that holds `address`, which may lie inside it.
    ///
    /// # Errors
    /// [`crate::Error::ForeignAddress`], [`crate::Error::NotAllocated`].
    fn block_at(&self, address: Address) -> Result<BlockSpan>;

    /// Flags the live block at `address` (its start) as exported: [`crate::observer::before_free`] is told
    /// when it is freed. Flagging twice is one flag.
    ///
    /// Exporters call this under locks that their observers take: so it must not wait for a lock that the pool
    /// holds while it calls `before_free`.
    ///
    /// # Errors
    /// As [`Pool::block_at`], and [`crate::Error::InteriorAddress`].
    fn mark_exported(&self, address: Address) -> Result<()>;

    /// Gives free memory back to the provider until at most `keep` bytes of free memory are left, and
    /// returns how many bytes went. What other threads' caches hold goes at those threads' next
    /// operation or exit.
    ///
    /// # Errors
    /// What the provider says; memory that could not be given back stays in the pool.
    fn trim(&self, keep: usize) -> Result<usize>;

    /// Sees to it that at least `bytes` of the provider's memory are there to be handed out, blocks that are live included, with their
    /// pages made if the provider can ([`crate::Provider::populate`]); returns how many bytes came for that. So reserving the same
    /// again changes nothing. (Memory that this pool hands out as regions of their own comes on top.)
    ///
    /// What is reserved is not given back unasked. [`Pool::trim`] gives it back like other free memory; what is left then stays
    /// reserved. An allocation that would fail otherwise gives it back too.
    ///
    /// # Errors
    /// As [`Pool::allocate`], and [`crate::Error::NotSupported`] if this kind of pool keeps nothing. After an error nothing has
    /// come.
    fn reserve(&self, bytes: usize) -> Result<usize> {
        let _ = bytes;
        Err(crate::Error::NotSupported { what: "reserving ahead", owner: "this kind of pool", native: 0 })
    }

    /// Gives back at once what the pool's release policy, if it has one, says that it should by now; returns how many bytes went.
    /// For applications that have idle moments: otherwise pools do so on their slow paths.
    ///
    /// # Errors
    /// As [`Pool::trim`].
    fn tidy(&self) -> Result<usize> {
        Ok(0)
    }

    /// Gives `bytes` of memory back if so many are free here, otherwise what is free, because another pool lacks them that shares
    /// `limit` with this one; yields how many bytes went. Nothing, if this pool does not count against that limit. What is reserved ([`Pool::reserve`]) stays.
    ///
    /// Called by [`SharedLimit::reclaim`] in any thread, without a lock, possibly while this pool is being dropped by another.
    fn yield_free(&self, limit: &SharedLimit, bytes: u64) -> u64 {
        let _ = (limit, bytes);
        0
    }

    /// Sets who is asked when an allocation would fail for lack of memory, also after its limits or the provider say no: see
    /// [`crate::shortage`]. `None` asks nobody, as in the beginning.
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if this kind of pool asks nobody.
    fn set_out_of_memory(&self, callback: Option<Arc<dyn OutOfMemory>>) -> Result<()> {
        let _ = callback;
        Err(crate::Error::NotSupported {
            what: "asking when memory is lacking",
            owner: "this kind of pool",
            native: 0,
        })
    }

    /// Takes back what was held because it was still in use (see [`crate::held`]): a block that
    /// [`crate::Upstream::hold`] or [`crate::Upstream::hold_until`] held may be handed out again; a region whose [`crate::Upstream::free`] said
    /// [`crate::held::Fate::Held`] has gone to the provider and does not count any more. Called by
    /// [`crate::held::poll`] in any thread, once for each.
    ///
    /// # Errors
    /// For a block: why it cannot be taken back, for instance because it is a region that the provider refuses. It stays held.
    ///
    /// # Safety
    /// The pool holds the block or region, and nobody uses it.
    unsafe fn let_go(&self, freed: Freed) -> Result<()> {
        let _ = freed;
        Ok(())
    }

    /// Sets what becomes of blocks that are freed while other processes have them open, and how many bytes may be held (0 is
    /// unlimited) before allocating fails as [`crate::Error::HeldLimit`]. Pools pass it on to
    /// [`crate::Upstream::set_on_free`].
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if this pool never holds anything.
    fn set_on_free(&self, on_free: OnFree, max_held_bytes: u64) -> Result<()> {
        let _ = (on_free, max_held_bytes);
        Err(crate::Error::NotSupported {
            what: "holding freed memory",
            owner: "this kind of pool",
            native: 0,
        })
    }

    /// Waits until nothing of this pool is held any more, but no longer than `timeout`; returns what still is. Pools that
    /// hold something pass it on to [`crate::Upstream::drain`].
    fn drain(&self, timeout: Duration) -> HeldStatistics {
        let _ = timeout;
        HeldStatistics::default()
    }

    /// What the pool's regions look like now. Other threads go on meanwhile, so that the parts may be of different moments.
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if this kind of pool does not keep that in mind.
    fn map(&self) -> Result<PoolMap> {
        Err(crate::Error::NotSupported {
            what: "a map of its regions",
            owner: "this kind of pool",
            native: 0,
        })
    }

    /// What happened in the pool lately, as far as it is set to remember.
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if it remembers nothing.
    fn history(&self) -> Result<PoolHistory> {
        Err(crate::Error::NotSupported { what: "a history", owner: "this kind of pool", native: 0 })
    }

    /// Shows `look` which blocks are live, and where they were allocated as far as the pool is set to remember.
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if this kind of pool cannot tell.
    fn leaks(&self, look: &mut dyn FnMut(&LeakReport<'_>)) -> Result<()> {
        let _ = look;
        Err(crate::Error::NotSupported { what: "a report of leaks", owner: "this kind of pool", native: 0 })
    }

    /// What the pool holds. Summed up when asked for; counting costs nothing on the common path.
    fn statistics(&self) -> PoolStatistics;
}

/// [`Pool::allocate`] by the shortest way.
///
/// # Errors
/// As [`Pool::allocate`].
#[inline]
pub fn allocate(pool: &dyn Pool, layout: Layout) -> Result<Address> {
    match pool.allocate_at_once(layout) {
        Some(address) => Ok(address),
        None => pool.allocate(layout),
    }
}

/// [`Pool::free`] by the shortest way.
///
/// # Errors
/// As [`Pool::free`].
///
/// # Safety
/// As [`Pool::free`].
#[inline]
pub unsafe fn free(pool: &dyn Pool, address: Address) -> Result<()> {
    // SAFETY: passed on to the caller, here and below.
    if unsafe { pool.free_at_once(address) } {
        return Ok(());
    }
    // SAFETY: as above; nothing has happened.
    unsafe { pool.free(address) }
}
