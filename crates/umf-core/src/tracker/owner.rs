//! [`Upstream`]: the one way in which pools get regions, and the registry of who owns what.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;

use super::record::REGIONS;
use super::{RegionNumber, end, find, insert, mark_exported, remove, replace};
use crate::held::{Fate, Joined, Policy};
use crate::lock::Lock;
use crate::observer::{Freed, Leases, before_free};
use crate::shortage::Slot;
use crate::step::{Step, step};
use crate::{Address, Error, Layout, Pool, Provider, Region, Result, fork};

/// A provider that is kept alive by a reference count, or for ever.
///
/// The second form is for a pool that is the global allocator: it is made before anything can be
/// allocated.
#[derive(Clone)]
pub enum ProviderRef {
    /// Reference counted.
    Shared(Arc<dyn Provider>),
    /// Static.
    Static(&'static dyn Provider),
}

impl Deref for ProviderRef {
    type Target = dyn Provider;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shared(provider) => &**provider,
            Self::Static(provider) => *provider,
        }
    }
}

impl fmt::Debug for ProviderRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} provider {:?}", self.kind(), self.name())
    }
}

impl<P: Provider + 'static> From<Arc<P>> for ProviderRef {
    fn from(provider: Arc<P>) -> Self {
        Self::Shared(provider)
    }
}

impl From<Arc<dyn Provider>> for ProviderRef {
    fn from(provider: Arc<dyn Provider>) -> Self {
        Self::Shared(provider)
    }
}

/// The number of an [`Upstream`], as the tracker stores it. Reused after the upstream is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerId(u32);

impl OwnerId {
    /// The number, from 1 to 16,383.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    #[inline]
    fn record(self) -> Option<&'static OwnerRecord> {
        OWNERS.get(self.0 as usize)
    }

    /// Keeps provider and pool from going away while the guard lives; `None` if they are gone.
    #[must_use]
    pub fn guard(self) -> Option<OwnerGuard> {
        let record = self.record()?;
        let live = |state| (state & LIVE != 0).then_some(state + 1);
        record.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, live).ok()?;
        Some(OwnerGuard { record, id: self })
    }

    /// The pool, without keeping it alive: for `free(address)`, which costs no shared write.
    ///
    /// # Safety
    /// The caller owns a live block of the pool for as long as it uses the reference, which keeps the pool
    /// alive; and it found this id through the address of that block.
    #[inline]
    #[must_use]
    pub unsafe fn pool_unguarded<'a>(self) -> Option<&'a dyn Pool> {
        // SAFETY: a pool is set, if ever, before its first region is there, and stays until the last is gone; the caller
        // has a block in one.
        unsafe { (*self.record()?.pool.get()).map(|pool| pool.0.as_ref()) }
    }
}

/// Provider and pool of a region, kept from going away.
#[derive(Debug)]
pub struct OwnerGuard {
    record: &'static OwnerRecord,
    id: OwnerId,
}

impl OwnerGuard {
    /// The number that it guards.
    #[must_use]
    pub const fn id(&self) -> OwnerId {
        self.id
    }

    /// The provider.
    #[must_use]
    pub fn provider(&self) -> Option<&ProviderRef> {
        // SAFETY: while a guard exists the record is not changed, except for setting the pool once.
        unsafe { (*self.record.provider.get()).as_ref() }
    }

    /// The pool; `None` if the region belongs to no pool.
    #[must_use]
    pub fn pool(&self) -> Option<&dyn Pool> {
        if self.record.state.load(Ordering::Acquire) & POOL == 0 {
            return None;
        }
        // SAFETY: POOL says that the pool is set, and it is dropped after its upstream, which waits for
        // this guard.
        unsafe { (*self.record.pool.get()).map(|pool| pool.0.as_ref()) }
    }
}

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        self.record.state.fetch_sub(1, Ordering::Release);
    }
}

const LIVE: u32 = 1 << 31;
const POOL: u32 = 1 << 30;
const CLOSING: u32 = 1 << 29;
const USERS: u32 = CLOSING - 1;
const LIMIT: usize = 1 << 14;

#[derive(Clone, Copy)]
struct PoolPointer(NonNull<dyn Pool>);

struct OwnerRecord {
    /// Two flags, and the number of guards.
    state: AtomicU32,
    provider: UnsafeCell<Option<ProviderRef>>,
    pool: UnsafeCell<Option<PoolPointer>>,
}

// SAFETY: the cells are written only before LIVE or POOL is set or after all guards are gone; providers and
// pools are `Send + Sync`.
unsafe impl Sync for OwnerRecord {}

impl fmt::Debug for OwnerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner record, state {:#x}", self.state.load(Ordering::Relaxed))
    }
}

static OWNERS: [OwnerRecord; LIMIT] = [const {
    OwnerRecord { state: AtomicU32::new(0), provider: UnsafeCell::new(None), pool: UnsafeCell::new(None) }
}; LIMIT];

/// Where to begin looking for a free record. Record 0 is not used.
static NEXT: Lock<usize> = Lock::new(1);

/// Records from here on were never used.
static END: AtomicUsize = AtomicUsize::new(1);

/// Shows every pool that has its regions through an [`Upstream`], in no order. A pool that is being dropped waits until
/// `look` has returned; `look` must not drop one.
pub fn for_each_pool(mut look: impl FnMut(&dyn Pool)) {
    for number in 1..END.load(Ordering::Acquire) {
        let id = u32::try_from(number).ok().and_then(OwnerId::from_number);
        if let Some(guard) = id.and_then(OwnerId::guard)
            && let Some(pool) = guard.pool()
        {
            look(pool);
        }
    }
}

pub(super) fn lock_for_fork() {
    NEXT.lock_for_fork();
}

/// # Safety
/// [`lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
pub(super) unsafe fn unlock_after_fork() {
    // SAFETY: passed on to the caller.
    unsafe { NEXT.unlock_after_fork() };
}

/// A provider as its user sees it: regions that are got here are tracked, and their exports are retired
/// before they go back.
///
/// Pools hold one; an application that exports regions of a provider without a pool holds one itself.
#[derive(Debug)]
pub struct Upstream {
    id: OwnerId,
    provider: ProviderRef,
    generation: u32,
    policy: Policy,
    slot: Slot,
}

impl Upstream {
    /// Registers a user of `provider`.
    ///
    /// # Errors
    /// [`Error::TooMany`] past 16,383 of them in one process.
    pub fn new(provider: impl Into<ProviderRef>) -> Result<Self> {
        let provider = provider.into();
        // With the fork handlers in place before the lock is taken.
        fork::generation();
        let mut next = NEXT.lock();
        for step in 0..LIMIT - 1 {
            let number = (*next - 1 + step) % (LIMIT - 1) + 1;
            let record = &OWNERS[number];
            if record.state.load(Ordering::Acquire) != 0 {
                continue;
            }
            // SAFETY: state 0 means that no guard and no owner exists; the lock keeps other makers out.
            unsafe {
                *record.provider.get() = Some(provider.clone());
                *record.pool.get() = None;
            }
            record.state.store(LIVE, Ordering::Release);
            END.fetch_max(number + 1, Ordering::AcqRel);
            *next = number + 1;
            let id = OwnerId(u32::try_from(number).unwrap_or(0));
            return Ok(Self {
                id,
                provider,
                generation: fork::generation(),
                policy: Policy::default(),
                slot: Slot::default(),
            });
        }
        Err(Error::TooMany { what: "users of providers", limit: LIMIT - 1 })
    }

    /// Says which pool the regions belong to, once, when the pool has its final address.
    ///
    /// # Safety
    /// The pool stays at that address and alive as long as this upstream, which is dropped before the pool
    /// is (a pool that holds its upstream as a field does that, in its own `drop`). Called once, before the
    /// first region is allocated.
    pub unsafe fn set_pool(&self, pool: NonNull<dyn Pool>) {
        if let Some(record) = self.id.record() {
            // SAFETY: readers look at the cell only once POOL is set, which is below.
            unsafe { *record.pool.get() = Some(PoolPointer(pool)) };
            record.state.fetch_or(POOL, Ordering::Release);
        }
    }

    /// The number under which the tracker knows this upstream.
    #[must_use]
    pub const fn id(&self) -> OwnerId {
        self.id
    }

    /// The provider.
    #[must_use]
    pub const fn provider(&self) -> &ProviderRef {
        &self.provider
    }

    /// Whether memory of this upstream may be allocated here: not if it is shared with the parent that this
    /// process was forked from. Two loads.
    #[inline]
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.generation != fork::generation() && self.provider.visibility() == crate::Visibility::Shared
    }

    /// What becomes of memory that is freed while it is leased.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whom to ask when memory is lacking.
    pub(crate) const fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Allocates a region and tracks it.
    ///
    /// # Errors
    /// Those of [`Provider::allocate`]; [`Error::Frozen`]; [`Error::HeldLimit`]; [`Error::OutOfMemory`] for the tracker's own
    /// memory. After an error nothing is allocated.
    pub fn allocate(&self, layout: Layout) -> Result<(Region, RegionNumber)> {
        if self.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        let pooled = self.id.record().is_some_and(|record| record.state.load(Ordering::Relaxed) & POOL != 0);
        // A pool may be calling with its locks taken; it polls by itself (`admit`).
        if pooled { self.check_held() } else { self.admit() }?;
        let region = self.provider.allocate(layout)?;
        step(Step::UpstreamAllocated);
        match insert(region, self.id) {
            Ok(number) => {
                step(Step::UpstreamTracked);
                Ok((region, number))
            }
            Err(error) => {
                // SAFETY: the region was allocated above and nobody has seen it. A provider that cannot take it
                // back keeps it; the error that matters is the first.
                let _ = unsafe { self.provider.free(region) };
                Err(error)
            }
        }
    }

    /// The number of a region of this upstream that is live.
    fn number_of(&self, region: &Region) -> Result<RegionNumber> {
        let foreign = Error::ForeignAddress { address: region.base(), owner: "this provider's user" };
        let found = self.find_exact(region).ok_or(foreign)?;
        Ok(found)
    }

    fn find_exact(&self, region: &Region) -> Option<RegionNumber> {
        // A nested region may begin at the same address; the record's id decides, and the innermost is what
        // `find` yields, so a region can only be freed after what was carved from it.
        let found = find(region.base())?;
        (found.region == *region && found.owner == self.id).then_some(found.number)
    }

    /// Retires the exports of a region, stops tracking it, and frees it, in this order.
    ///
    /// While other processes have it open, or blocks of it that are held, its provider does not get it back
    /// ([`Fate::Held`]; see [`crate::held`]). It stays tracked meanwhile, and cannot be freed again.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] if it is no live region of this upstream (or regions carved from it are still
    /// live), [`Error::NotAllocated`] if it was freed and is held, or what the provider says; the region then stays tracked,
    /// its exports retired, under another number and without spans: find it again.
    /// In a forked child, freeing shared memory does nothing and succeeds.
    ///
    /// # Safety
    /// As [`Provider::free`].
    pub unsafe fn free(&self, region: Region) -> Result<Fate> {
        if self.is_frozen() {
            return Ok(Fate::Gone);
        }
        let number = self.number_of(&region)?;
        let mut leases = Joined::default();
        self.retire(number, region, &mut leases)?;
        step(Step::UpstreamRetired);
        if self.may_hold() {
            self.claim(&region, &mut leases);
        }
        if let Some(leases) = leases.all().filter(|leases| leases.is_leased(region.base(), region.size())) {
            self.hold_region(region, number, leases);
            return Ok(Fate::Held);
        }
        remove(number, region);
        step(Step::UpstreamRemoved);
        // SAFETY: passed on to the caller; nothing names the region any more.
        let freed = unsafe { self.provider.free(region) };
        step(Step::UpstreamFreed);
        if freed.is_err() {
            // Still mapped as far as anyone knows: keep it findable. If even that fails, it is merely not found. (It was
            // taken out first, because after the provider's free the addresses may be another region's.)
            let _ = insert(region, self.id);
        }
        freed.map(|()| Fate::Gone)
    }

    fn retire(&self, number: RegionNumber, region: Region, leases: &mut Joined) -> Result<()> {
        if end(number, region)?
            && let Some(more) = before_free(Freed::Region(region))
        {
            leases.add(more);
        }
        Ok(())
    }

    /// Remembers the leases on memory that stays in use, for when it is freed.
    fn remember(&self, base: Address, size: usize, leases: Option<&Arc<dyn Leases>>) -> Result<()> {
        match leases.filter(|leases| leases.is_leased(base, size)) {
            Some(leases) => self.lend(base, size, leases),
            None => Ok(()),
        }
    }

    /// Splits a region after `first` bytes, retiring its exports. Where other processes have them open, each part is held when
    /// it is freed.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the provider cannot, or what it says.
    ///
    /// # Safety
    /// The caller owns the region.
    pub unsafe fn split(&self, region: Region, first: usize) -> Result<(Region, Region)> {
        let ability = self.split_merge()?;
        let number = self.number_of(&region)?;
        let mut leases = Joined::default();
        self.retire(number, region, &mut leases)?;
        // What was remembered of the whole before reaches over both parts and stays.
        if let Err(error) = self.remember(region.base(), region.size(), leases.all().as_ref()) {
            revive_exported(number, region);
            return Err(error);
        }
        // SAFETY: passed on to the caller.
        match unsafe { ability.split(region, first) } {
            Ok((low, high)) => {
                step(Step::UpstreamSplit);
                replace(&[(number, region)], &[low, high], self.id)?;
                Ok((low, high))
            }
            Err(error) => {
                revive(number);
                Err(error)
            }
        }
    }

    /// Merges two adjacent regions, retiring their exports. Where other processes have them open, the whole is held when it is
    /// freed.
    ///
    /// # Errors
    /// As [`Upstream::split`].
    ///
    /// # Safety
    /// The caller owns both regions.
    pub unsafe fn merge(&self, low: Region, high: Region) -> Result<Region> {
        let ability = self.split_merge()?;
        let numbers = (self.number_of(&low)?, self.number_of(&high)?);
        for (index, (number, region)) in [(numbers.0, low), (numbers.1, high)].into_iter().enumerate() {
            let mut leases = Joined::default();
            let retired = self.retire(number, region, &mut leases).and_then(|()| {
                self.remember(region.base(), region.size(), leases.all().as_ref())
                    .inspect_err(|_| revive_exported(number, region))
            });
            if let Err(error) = retired {
                if index == 1 {
                    revive(numbers.0);
                }
                return Err(error);
            }
        }
        // SAFETY: passed on to the caller.
        match unsafe { ability.merge(low, high) } {
            Ok(merged) => {
                step(Step::UpstreamMerged);
                replace(&[(numbers.0, low), (numbers.1, high)], &[merged], self.id)?;
                Ok(merged)
            }
            Err(error) => {
                revive(numbers.0);
                revive(numbers.1);
                Err(error)
            }
        }
    }

    fn split_merge(&self) -> Result<&dyn crate::SplitMerge> {
        let unsupported =
            Error::NotSupported { what: "splitting and merging regions", owner: "this provider", native: 0 };
        self.provider.split_merge().ok_or(unsupported)
    }
}

fn revive(number: RegionNumber) {
    if let Some(record) = REGIONS.get(number.0) {
        record.revive();
    }
}

/// As [`revive`], where other processes may still have the region open: its free asks the observers again.
fn revive_exported(number: RegionNumber, region: Region) {
    revive(number);
    let _ = mark_exported(number, region);
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let Some(record) = self.id.record() else { return };
        self.stop_letting_go();
        // CLOSING keeps the record from being handed out again until it is empty.
        let closing = |state| Some((state | CLOSING) & !(LIVE | POOL));
        let _ = record.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, closing);
        if self.generation != fork::generation() {
            // Guards of the parent's threads never end here: the record stays used in this child.
            return;
        }
        while record.state.load(Ordering::Acquire) & USERS != 0 {
            std::thread::yield_now();
        }
        self.orphan();
        // SAFETY: no guard is left, none can be made without LIVE, and CLOSING keeps makers away.
        let provider = unsafe {
            *record.pool.get() = None;
            (*record.provider.get()).take()
        };
        record.state.store(0, Ordering::Release);
        drop(provider);
    }
}
