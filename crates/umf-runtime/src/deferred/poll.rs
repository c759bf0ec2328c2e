//! Polling: finds held memory that is not in use any more, and reclaims it.

use core::cell::Cell;
use core::time::Duration;
use std::time::Instant;

use super::items::{DeferredItem, DeferredMemory};
use super::registry::{self, Begun, REGISTRY};
use super::upstream::purge;
use crate::tracker::{self, OwnerGuard, OwnerId};
use umf_core::Freed;
use umf_core::{Error, Pool, Progress, Result};
use umf_sync::failpoint;

thread_local! {
    /// The thread is polling. A completion or provider that it calls may poll again.
    static IS_POLLING: Cell<bool> = const { Cell::new(false) };
    /// The thread polls all items of an account.
    static IS_POLLING_ALL: Cell<bool> = const { Cell::new(false) };
    /// The account of the item that the thread polls.
    static OWN_POLL: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Returns whether the calling thread polls all held memory, because memory is needed or waited
/// for, and not a few items in passing.
pub(crate) fn is_polling_all() -> bool {
    IS_POLLING_ALL.get()
}

/// Marks the calling thread as polling until this is dropped.
struct PollScope;

impl PollScope {
    fn begin() -> Option<Self> {
        (!IS_POLLING.replace(true)).then_some(Self)
    }
}

impl Drop for PollScope {
    fn drop(&mut self) {
        IS_POLLING.set(false);
        IS_POLLING_ALL.set(false);
    }
}

/// Polls up to `most` items of an account, each once, and returns the bytes that were reclaimed.
/// Returns 0 if the calling thread is already polling.
///
/// If `most` is `u32::MAX`, memory is needed or waited for: the call then waits up to [`PATIENCE`]
/// for other threads that are polling items of the account, and counts what they reclaim.
pub(super) fn account(account: u32, most: u32) -> u64 {
    let Some(_scope) = PollScope::begin() else { return 0 };
    let is_all = most == u32::MAX;
    IS_POLLING_ALL.set(is_all);
    let before = registry::of(account).bytes;
    let count = REGISTRY.lock().count(account).min(most);
    let mut went = 0;
    for _ in 0..count {
        let Some(begun) = REGISTRY.lock().begin(account) else { break };
        OWN_POLL.set(Some(account));
        let _dropping = Dropping(account);
        let listed = Cell::new(begun.number);
        // The item is dropped after the poll of it has ended: it may be the last owner of a
        // provider.
        let (bytes, _gone) = ItemPoll { account, begun, listed }.settle();
        went += bytes;
    }
    if !is_all {
        return went;
    }
    let end = Instant::now() + PATIENCE;
    while is_settling(account) && Instant::now() < end {
        std::thread::yield_now();
    }
    went.max(before.saturating_sub(registry::of(account).bytes))
}

/// The longest wait for polls of other threads. A completion that blocks must not block all others.
const PATIENCE: Duration = Duration::from_millis(2);

/// Returns whether a thread is polling an item of the account, or has yet to drop what it reclaimed.
/// In a completion that calls this, the poll of the calling thread does not count.
pub(super) fn is_settling(account: u32) -> bool {
    let own = u32::from(OWN_POLL.get() == Some(account));
    REGISTRY.lock().dropping(account) > own
}

/// Counts the calling thread among those that [`is_settling`] finds, until this is dropped.
struct Dropping(u32);

impl Drop for Dropping {
    fn drop(&mut self) {
        OWN_POLL.set(None);
        REGISTRY.lock().end_drop(self.0);
    }
}

/// The poll of one item. The item is marked busy until this is dropped.
struct ItemPoll {
    account: u32,
    begun: Begun,
    /// The item's number while it is in its list; then 0.
    listed: Cell<u32>,
}

impl Drop for ItemPoll {
    fn drop(&mut self) {
        REGISTRY.lock().end_look(self.account, self.listed.get());
    }
}

impl ItemPoll {
    /// Reclaims the item if it is not in use. Returns its bytes, and the item for the caller to
    /// drop.
    fn settle(&self) -> (u64, Option<DeferredItem>) {
        let Begun { number, item } = &self.begun;
        let progress = item.users.progress(item.base, item.size);
        let lost = progress == Progress::Lost;
        if lost != item.lost {
            REGISTRY.lock().set_lost(self.account, *number, lost);
        }
        if progress != Progress::Ready {
            if lost && !item.lost {
                tracing::warn!(address = %item.base, size = item.size, "it is not known whether freed memory is still in use: it is held until its completion says that it is ready");
            }
            return (0, None);
        }
        let owner = OwnerId::from_number(self.account).and_then(OwnerId::guard);
        if item.purged
            && matches!(item.what, DeferredMemory::Block)
            && let Some(provider) = owner.as_ref().and_then(OwnerGuard::provider)
        {
            // Importers that read the block may have faulted pages in again. The pages of a region
            // go with the region.
            purge(provider, item.base, item.size);
        }
        self.listed.set(0);
        let detached = REGISTRY.lock().detach(*number);
        let Some(mut held) = detached else { return (0, None) };
        failpoint!("held.leaving");
        match let_go(&mut held, owner.as_ref()) {
            Ok(bytes) => {
                REGISTRY.lock().forget(self.account, *number, &held);
                (bytes, Some(held))
            }
            Err(error) => {
                if !core::mem::replace(&mut held.refused, true) {
                    let address = held.base;
                    tracing::error!(%address, size = held.size, %error, "cannot reclaim freed memory: its pool or provider failed to take it back; it stays held and the next poll tries again");
                }
                let users = REGISTRY.lock().attach_again(self.account, *number, held);
                drop(users);
                (0, None)
            }
        }
    }
}

/// Returns a block to its pool, or a region to its provider.
fn let_go(held: &mut DeferredItem, owner: Option<&OwnerGuard>) -> Result<u64> {
    let size = held.size as u64;
    let pool = owner.and_then(OwnerGuard::pool).and_then(Pool::deferred_free);
    match &mut held.what {
        DeferredMemory::Block => {
            let gone = Error::NotAllocated { address: held.base };
            // SAFETY: the pool passed the block to `defer`. It was detached, so it is returned
            // once.
            unsafe { pool.ok_or(gone)?.reclaim(Freed::Block { address: held.base }) }?;
            failpoint!("held.block_returned");
        }
        DeferredMemory::Region(region, number, provider) => {
            let known = number.take();
            if let Some(number) = known {
                tracker::remove(number, *region);
            }
            // SAFETY: the region was freed and has no leases left. It was detached, so this happens
            // once.
            if let Err(error) = unsafe { provider.free(*region) } {
                // As in `Upstream::free`: keep the region findable; ignore a failure of that.
                if let (Some(_), Some(owner)) = (known, owner) {
                    *number = tracker::insert_retired(*region, owner.id()).ok();
                }
                return Err(error);
            }
            failpoint!("held.region_returned");
            if let Some(pool) = pool {
                // SAFETY: the region is one of the pool's, which knows that it was held.
                let noted = unsafe { pool.reclaim(Freed::Region(*region)) };
                if let Err(error) = noted {
                    tracing::error!(address = %region.base(), %error, "the pool failed to account for a region that went back to its provider");
                }
            }
        }
    }
    Ok(size)
}
