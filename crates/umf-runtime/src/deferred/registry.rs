//! [`DeferredRegistry`]: the lists of deferred frees, in their own metadata mappings.
//!
//! Under its lock no foreign code runs, nothing is dropped, and the global allocator is not used.
//! An item that a thread polls stays in its list, marked busy. Reclaiming takes it out.

use core::sync::atomic::{AtomicU64, Ordering};

use super::items::{Account, DeferredItem, DeferredRecord, DeferredSlot, List, Users};
use umf_core::deferred::DeferredStatistics;
use umf_core::{Region, Result};
use umf_sync::table::Table;
use umf_sync::{Lock, chunks::Chunks, fork};

static RECORDS: Table<DeferredRecord> = Table::new(u32::MAX >> 2);
static ACCOUNTS: Chunks<Account> = Chunks::new();
/// Bytes of items that there was no memory for.
static UNRECORDED: AtomicU64 = AtomicU64::new(0);

/// Regions whose upstream is gone.
pub(super) const ORPHANS: u32 = 0;

/// The one value through which slots and lists are reached.
pub(super) struct DeferredRegistry {
    /// Accounts from here on were never used.
    end: u32,
    /// The last number of a claim.
    claims: u64,
    /// Called by [`super::poll`] when it has looked at all items.
    pub(super) after_poll: Option<fn()>,
}

pub(super) static REGISTRY: Lock<DeferredRegistry> =
    Lock::new(DeferredRegistry { end: 0, claims: 0, after_poll: None });

/// An item that the calling thread polls: its number and a copy.
pub(super) struct Begun {
    pub(super) number: u32,
    pub(super) item: DeferredItem,
}

/// The result of [`DeferredRegistry::claim`].
pub(super) enum Claimed {
    /// Numbers of items that were taken out, linked by [`DeferredRegistry::pop`].
    Chain(u32),
    /// Another thread is polling one of the items: try again.
    Busy,
}

impl DeferredRegistry {
    pub(super) const fn end(&self) -> u32 {
        self.end
    }

    fn slot(&mut self, number: u32) -> Option<&mut DeferredSlot> {
        let record = RECORDS.get(number).filter(|_| number != 0)?;
        // SAFETY: there is one `DeferredRegistry`, and it is borrowed mutably for as long as the
        // reference lives.
        Some(unsafe { &mut *record.0.get() })
    }

    fn list(&mut self, account: u32) -> Option<&mut List> {
        let account = ACCOUNTS.get(account)?;
        // SAFETY: as in `slot`.
        Some(unsafe { &mut *account.list.get() })
    }

    fn item(&mut self, number: u32) -> Option<&mut DeferredItem> {
        let slot = self.slot(number).filter(|slot| slot.full)?;
        // SAFETY: `full` says that there is one.
        Some(unsafe { slot.item.assume_init_mut() })
    }

    /// Adds an item; gives it back, to be dropped without the lock, if there is no memory.
    fn insert(&mut self, account: u32, item: DeferredItem) -> Result<(), DeferredItem> {
        let Ok(accounts) = ACCOUNTS.get_or_grow(account) else { return Err(item) };
        let Ok((number, _)) = RECORDS.allocate() else { return Err(item) };
        self.end = self.end.max(account + 1);
        accounts.count(&item);
        self.attach(account, number, item);
        Ok(())
    }

    /// Puts an item that counts already into a slot and its list.
    pub(super) fn attach(&mut self, account: u32, number: u32, item: DeferredItem) {
        if let Some(slot) = self.slot(number) {
            *slot = DeferredSlot {
                next: 0,
                prev: 0,
                account,
                claim: 0,
                busy: false,
                full: true,
                item: core::mem::MaybeUninit::new(item),
            };
            self.link(number);
        }
    }

    /// Puts back an item that was detached and that its pool or provider failed to take back. It
    /// has no users any more. Returns the former users, for the caller to drop without the lock.
    pub(super) fn attach_again(&mut self, account: u32, number: u32, mut item: DeferredItem) -> Users {
        let counts = ACCOUNTS.get(account);
        counts.inspect(|counts| counts.discount(&item));
        let users = core::mem::replace(&mut item.users, Users::NONE);
        counts.inspect(|counts| counts.count(&item));
        self.attach(account, number, item);
        users
    }

    fn link(&mut self, number: u32) {
        let Some(account) = self.slot(number).map(|slot| slot.account) else { return };
        let is_part = self.item(number).is_some_and(|item| item.is_part());
        let Some(list) = self.list(account) else { return };
        let last = core::mem::replace(&mut list.last, number);
        list.count += 1;
        list.parts += u32::from(is_part);
        if last == 0 {
            list.first = number;
        }
        if let Some(last) = self.slot(last) {
            last.next = number;
        }
        if let Some(slot) = self.slot(number) {
            (slot.prev, slot.next) = (last, 0);
        }
    }

    fn unlink(&mut self, number: u32) {
        let Some((account, next, prev)) = self.slot(number).map(|slot| (slot.account, slot.next, slot.prev))
        else {
            return;
        };
        if let Some(next) = self.slot(next) {
            next.prev = prev;
        }
        if let Some(prev) = self.slot(prev) {
            prev.next = next;
        }
        let is_part = self.item(number).is_some_and(|item| item.is_part());
        let Some(list) = self.list(account) else { return };
        // (A child that is forked in the middle of a look begins at 0.)
        list.count = list.count.saturating_sub(1);
        list.parts = list.parts.saturating_sub(u32::from(is_part));
        if list.first == number {
            list.first = next;
        }
        if list.last == number {
            list.last = prev;
        }
    }

    /// Whether the account has items that are not regions.
    pub(super) fn has_parts(&mut self, account: u32) -> bool {
        self.list(account).is_some_and(|list| list.parts > 0)
    }

    /// How many items there are to look at.
    pub(super) fn count(&mut self, account: u32) -> u32 {
        self.list(account).filter(|list| !list.closed).map_or(0, |list| list.count)
    }

    /// Marks the item that was not looked at for the longest time as busy, and moves it to the end
    /// of its list.
    pub(super) fn begin(&mut self, account: u32) -> Option<Begun> {
        let list = self.list(account).filter(|list| !list.closed)?;
        let (mut number, count) = (list.first, list.count);
        for _ in 0..count {
            let slot = self.slot(number)?;
            let next = slot.next;
            if !slot.busy {
                slot.busy = true;
                let item = self.item(number)?.clone();
                self.unlink(number);
                self.link(number);
                let list = self.list(account)?;
                list.busy += 1;
                list.dropping += 1;
                return Some(Begun { number, item });
            }
            number = next;
        }
        None
    }

    /// Takes a busy item out of its list, to let it go. It still counts, and its slot is still its
    /// own.
    pub(super) fn detach(&mut self, number: u32) -> Option<DeferredItem> {
        self.unlink(number);
        let slot = self.slot(number).filter(|slot| slot.full)?;
        slot.full = false;
        // SAFETY: it was full, and is read once.
        Some(unsafe { slot.item.assume_init_read() })
    }

    /// Notes whether the completion of a busy item is lost.
    pub(super) fn set_lost(&mut self, account: u32, number: u32, lost: bool) {
        let Some(item) = self.item(number).filter(|item| item.lost != lost) else { return };
        item.lost = lost;
        let size = item.size as u64;
        match ACCOUNTS.get(account) {
            Some(account) if lost => account.lost.fetch_add(size, Ordering::Relaxed),
            Some(account) => account.lost.fetch_sub(size, Ordering::Relaxed),
            None => 0,
        };
    }

    /// A detached item has been let go.
    pub(super) fn forget(&mut self, account: u32, number: u32, item: &DeferredItem) {
        if let Some(account) = ACCOUNTS.get(account) {
            account.discount(item);
        }
        RECORDS.release(number);
    }

    /// Ends what [`DeferredRegistry::begin`] began; `number` is 0 if the item was detached.
    pub(super) fn end_look(&mut self, account: u32, number: u32) {
        if let Some(slot) = self.slot(number) {
            slot.busy = false;
        }
        if let Some(list) = self.list(account) {
            list.busy = list.busy.saturating_sub(1);
        }
    }

    /// Notes that what [`DeferredRegistry::begin`] returned was dropped, and the item if it was
    /// reclaimed.
    pub(super) fn end_drop(&mut self, account: u32) {
        if let Some(list) = self.list(account) {
            list.dropping = list.dropping.saturating_sub(1);
        }
    }

    /// Returns the number of threads between [`DeferredRegistry::begin`] and
    /// [`DeferredRegistry::end_drop`].
    pub(super) fn dropping(&mut self, account: u32) -> u32 {
        self.list(account).map_or(0, |list| list.dropping)
    }

    /// A number for a claim.
    pub(super) const fn next_claim(&mut self) -> u64 {
        self.claims += 1;
        self.claims
    }

    /// Takes everything out that lies in `region`.
    pub(super) fn claim(&mut self, account: u32, region: &Region) -> Claimed {
        let mut chain = 0;
        let mut number = self.list(account).map_or(0, |list| list.first);
        let mut busy = false;
        while let Some(slot) = self.slot(number) {
            let (next, looked_at) = (slot.next, slot.busy);
            if self.item(number).is_some_and(|item| item.lies_in(region)) {
                busy |= looked_at;
                if !looked_at {
                    self.unlink(number);
                    if let Some(slot) = self.slot(number) {
                        slot.next = chain;
                    }
                    chain = number;
                }
            }
            number = next;
        }
        if busy && chain == 0 { Claimed::Busy } else { Claimed::Chain(chain) }
    }

    /// The first item of a claimed chain, and the rest of the chain.
    pub(super) fn pop(&mut self, account: u32, chain: u32) -> Option<(DeferredItem, u32)> {
        let slot = self.slot(chain).filter(|slot| slot.full)?;
        slot.full = false;
        let next = slot.next;
        // SAFETY: it was full, and is read once.
        let item = unsafe { slot.item.assume_init_read() };
        self.forget(account, chain, &item);
        Some((item, next))
    }

    /// The users of an item that lies partly in `region` and that this claim has not seen; they
    /// stay where they are.
    pub(super) fn peek(&mut self, account: u32, region: &Region, claim: u64) -> Option<Users> {
        let mut number = self.list(account)?.first;
        loop {
            let slot = self.slot(number)?;
            let (next, seen) = (slot.next, slot.claim == claim);
            if !seen {
                slot.claim = claim;
                if let Some(item) = self.item(number).filter(|item| item.touches(region)) {
                    return Some(item.users.clone());
                }
            }
            number = next;
        }
    }

    /// Stops further polls of the account. Returns whether all polls that had begun have ended.
    pub(super) fn close(&mut self, account: u32) -> bool {
        self.list(account).is_none_or(|list| {
            list.closed = true;
            list.busy == 0
        })
    }

    /// Makes a closed and empty account one that can be used again.
    pub(super) fn reopen(&mut self, account: u32) {
        if let Some(list) = self.list(account) {
            list.closed = false;
        }
    }

    /// The first item of a closed account.
    pub(super) fn first(&mut self, account: u32) -> Option<(u32, &mut DeferredItem)> {
        let number = self.list(account)?.first;
        Some((number, self.item(number)?))
    }

    /// Moves an item of a closed account to [`ORPHANS`].
    pub(super) fn orphan(&mut self, account: u32, number: u32) {
        // The account of the orphans lies in the first chunk of the table, as that of the first
        // upstream that held anything.
        let Ok(to) = ACCOUNTS.get_or_grow(ORPHANS) else { return };
        if let Some(from) = ACCOUNTS.get(account)
            && let Some(item) = self.item(number)
        {
            from.discount(item);
            to.count(item);
        }
        self.unlink(number);
        if let Some(slot) = self.slot(number) {
            slot.account = ORPHANS;
        }
        self.link(number);
    }

    /// Forgets everything, without dropping it: it is the parent's.
    fn clear(&mut self) {
        for number in 0..self.end {
            if let Some(account) = ACCOUNTS.get(number) {
                account.bytes.store(0, Ordering::Relaxed);
                account.blocks.store(0, Ordering::Relaxed);
                account.regions.store(0, Ordering::Relaxed);
                account.pending.store(0, Ordering::Relaxed);
                account.lost.store(0, Ordering::Relaxed);
            }
            if let Some(list) = self.list(number) {
                *list = List { first: 0, last: 0, count: 0, parts: 0, busy: 0, dropping: 0, closed: false };
            }
        }
        UNRECORDED.store(0, Ordering::Relaxed);
    }
}

/// Notes bytes that cannot be recorded, and so are never used again.
#[cold]
pub(super) fn lose(item: &DeferredItem) {
    UNRECORDED.fetch_add(item.size as u64, Ordering::Relaxed);
    tracing::error!(
        address = %item.base,
        size = item.size,
        "no memory to note that freed memory is still in use: it is never used again"
    );
}

/// Bytes that the account holds for other processes alone. Takes no lock.
pub(super) fn leased_bytes(account: u32) -> u64 {
    ACCOUNTS.get(account).map_or(0, |account| {
        // In this order: what comes meanwhile is counted too much, not too little.
        let awaited = account.pending.load(Ordering::Relaxed);
        account.bytes.load(Ordering::Relaxed).saturating_sub(awaited)
    })
}

/// Bytes of the account that wait for completions. Takes no lock.
pub(super) fn pending_bytes(account: u32) -> u64 {
    ACCOUNTS.get(account).map_or(0, |account| account.pending.load(Ordering::Relaxed))
}

/// Returns what the account holds. Takes no lock.
pub(super) fn of(account: u32) -> DeferredStatistics {
    let mut held = DeferredStatistics::default();
    if let Some(account) = ACCOUNTS.get(account) {
        held.blocks = account.blocks.load(Ordering::Relaxed);
        held.regions = account.regions.load(Ordering::Relaxed);
        held.bytes = account.bytes.load(Ordering::Relaxed);
        held.pending_bytes = account.pending.load(Ordering::Relaxed);
        held.lost_bytes = account.lost.load(Ordering::Relaxed);
    }
    held
}

/// Returns what all accounts hold.
pub(super) fn sum() -> DeferredStatistics {
    // Under the lock, so that what moves to the orphans is counted once.
    let registry = REGISTRY.lock();
    let mut sum = DeferredStatistics::default();
    sum.unrecorded_bytes = UNRECORDED.load(Ordering::Relaxed);
    for one in (0..registry.end).map(of) {
        sum.blocks += one.blocks;
        sum.regions += one.regions;
        sum.bytes += one.bytes;
        sum.pending_bytes += one.pending_bytes;
        sum.lost_bytes += one.lost_bytes;
    }
    sum
}

/// As [`DeferredRegistry::insert`], with a fork that is told.
pub(super) fn insert(account: u32, item: DeferredItem) -> Result<(), DeferredItem> {
    // (Fails past 32 users of it: a child then keeps its copies of what is held.)
    let _ = fork::add_hooks(&AT_FORK);
    REGISTRY.lock().insert(account, item)
}

/// A child holds nothing of its parent.
static AT_FORK: fork::Hooks = fork::Hooks {
    child: || {
        // (Taken by what the fork interrupted, if a signal handler forks: then what is held stays.)
        if let Some(mut registry) = REGISTRY.try_lock() {
            registry.clear();
        }
    },
    ..fork::Hooks::NONE
};
