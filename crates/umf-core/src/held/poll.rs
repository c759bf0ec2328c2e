//! Looking which leases are gone, and letting go.

use core::cell::Cell;

use super::records::{Item, What};
use super::registry::{Begun, REGISTRY};
use super::upstream::purge;
use crate::observer::Freed;
use crate::step::{Step, step};
use crate::tracker::{self, OwnerGuard, OwnerId};
use crate::{Error, Result};

/// Looks at up to `most` items of an account, each once; yields the bytes that were let go.
pub(super) fn account(account: u32, most: u32) -> u64 {
    let count = REGISTRY.lock().count(account).min(most);
    let mut went = 0;
    for _ in 0..count {
        let Some(begun) = REGISTRY.lock().begin(account) else { break };
        let listed = Cell::new(begun.number);
        went += Look { account, begun, listed }.settle();
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
    /// Lets go of the item if nobody leases it; yields its bytes then.
    fn settle(&self) -> u64 {
        let Begun { number, item } = &self.begun;
        if item.leases.is_leased(item.base, item.size) {
            return 0;
        }
        let owner = OwnerId::from_number(self.account).and_then(OwnerId::guard);
        if item.purged
            && matches!(item.what, What::Block)
            && let Some(provider) = owner.as_ref().and_then(OwnerGuard::provider)
        {
            // Readers may have brought pages back. (Those of a region go with it.)
            purge(provider, item.base, item.size);
        }
        self.listed.set(0);
        let detached = REGISTRY.lock().detach(*number);
        let Some(mut held) = detached else { return 0 };
        step(Step::HeldLeaving);
        match let_go(&mut held, owner.as_ref()) {
            Ok(bytes) => {
                REGISTRY.lock().forget(self.account, *number, &held);
                bytes
            }
            Err(error) => {
                if !core::mem::replace(&mut held.refused, true) {
                    let address = held.base;
                    tracing::error!(%address, size = held.size, %error, "memory that nobody leases any more was not taken back; it stays held");
                }
                REGISTRY.lock().attach(self.account, *number, held);
                0
            }
        }
    }
}

/// Hands the memory to whoever gets it.
fn let_go(held: &mut Item, owner: Option<&OwnerGuard>) -> Result<u64> {
    let size = held.size as u64;
    let pool = owner.and_then(OwnerGuard::pool);
    match &mut held.what {
        What::Lent => return Ok(0),
        What::Block => {
            let gone = Error::NotAllocated { address: held.base };
            // SAFETY: the pool gave the block to `hold`, and it was detached, so that it is given back once.
            unsafe { pool.ok_or(gone)?.let_go(Freed::Block { address: held.base }) }?;
            step(Step::HeldBlockReturned);
        }
        What::Region(region, number, provider) => {
            let known = number.take();
            if let Some(number) = known {
                tracker::remove(number, *region);
            }
            // SAFETY: whoever freed the region does not use it, and nobody leases it any more; it was detached, so that this
            // happens once.
            if let Err(error) = unsafe { provider.free(*region) } {
                // As in `Upstream::free`: what is not found at worst is merely not found.
                if let (Some(_), Some(owner)) = (known, owner) {
                    *number = tracker::insert_ended(*region, owner.id()).ok();
                }
                return Err(error);
            }
            step(Step::HeldRegionReturned);
            if let Some(pool) = pool {
                // SAFETY: the region is one of the pool's, which knows that it was held.
                let noted = unsafe { pool.let_go(Freed::Region(*region)) };
                if let Err(error) = noted {
                    tracing::error!(address = %region.base(), %error, "the pool did not take note of a region that went");
                }
            }
        }
    }
    Ok(size)
}
