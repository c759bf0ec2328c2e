//! Looking which leases are gone, and letting go.

use core::cell::Cell;

use super::items::{DeferredItem, DeferredMemory};
use super::registry::{Begun, REGISTRY};
use super::upstream::purge;
use crate::tracker::{self, OwnerGuard, OwnerId};
use umf_core::Freed;
use umf_core::{Error, Pool, Progress, Result};
use umf_sync::failpoint;

thread_local! {
    /// The thread is looking already: what it asks may get here again.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
    /// It looks at all that an account has.
    static LOOKS_AT_ALL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread looks at everything that is held, because memory is needed or waited for,
/// and not at a few items in passing.
pub(crate) fn is_polling_all() -> bool {
    LOOKS_AT_ALL.get()
}

/// The thread looks until this is dropped.
struct Looking;

impl Looking {
    fn begin() -> Option<Self> {
        (!LOOKS.replace(true)).then_some(Self)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKS.set(false);
        LOOKS_AT_ALL.set(false);
    }
}

/// Looks at up to `most` items of an account, each once; yields the bytes that were let go. Nothing, if this thread is looking
/// already.
pub(super) fn account(account: u32, most: u32) -> u64 {
    let Some(_looking) = Looking::begin() else { return 0 };
    LOOKS_AT_ALL.set(most == u32::MAX);
    let count = REGISTRY.lock().count(account).min(most);
    let mut went = 0;
    for _ in 0..count {
        let Some(begun) = REGISTRY.lock().begin(account) else { break };
        let listed = Cell::new(begun.number);
        // DeferredMemory held it is dropped when nobody waits for this look any more: it may be the last that refers to a provider.
        let (bytes, _gone) = Look { account, begun, listed }.settle();
        went += bytes;
    }
    went
}

/// A look at one item, which ends when it is dropped.
struct Look {
    account: u32,
    begun: Begun,
    /// The item's number while it is in its list; then 0.
    listed: Cell<u32>,
}

impl Drop for Look {
    fn drop(&mut self) {
        REGISTRY.lock().end_look(self.account, self.listed.get());
    }
}

impl Look {
    /// Lets go of the item if nobody uses it; yields its bytes then, and what is to be dropped.
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
            // Readers may have brought pages back. (Those of a region go with it.)
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
                    tracing::error!(%address, size = held.size, %error, "memory that nobody leases any more was not taken back; it stays held");
                }
                let users = REGISTRY.lock().attach_again(self.account, *number, held);
                drop(users);
                (0, None)
            }
        }
    }
}

/// Hands the memory to whoever gets it.
fn let_go(held: &mut DeferredItem, owner: Option<&OwnerGuard>) -> Result<u64> {
    let size = held.size as u64;
    let pool = owner.and_then(OwnerGuard::pool).and_then(Pool::deferred_free);
    match &mut held.what {
        DeferredMemory::Block => {
            let gone = Error::NotAllocated { address: held.base };
            // SAFETY: the pool gave the block to `hold`, and it was detached, so that it is given back once.
            unsafe { pool.ok_or(gone)?.reclaim(Freed::Block { address: held.base }) }?;
            failpoint!("held.block_returned");
        }
        DeferredMemory::Region(region, number, provider) => {
            let known = number.take();
            if let Some(number) = known {
                tracker::remove(number, *region);
            }
            // SAFETY: whoever freed the region does not use it, and nobody leases it any more; it was detached, so that this
            // happens once.
            if let Err(error) = unsafe { provider.free(*region) } {
                // As in `Upstream::free`: what is not found at worst is merely not found.
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
                    tracing::error!(address = %region.base(), %error, "the pool did not take note of a region that went");
                }
            }
        }
    }
    Ok(size)
}
