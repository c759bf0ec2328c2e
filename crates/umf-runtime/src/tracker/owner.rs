//! The registry of region owners: [`OwnerId`] stands for an upstream, its provider and its pool.

use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use umf_sync::{Lock, fork};

use umf_core::{Error, Pool, ProviderRef, Result};

#[cfg(doc)]
use super::Upstream;

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
        let live = |state| (state & (LIVE | REPLACING) == LIVE).then_some(state + 1);
        while let Err(state) = record.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, live) {
            if state & REPLACING == 0 {
                return None;
            }
            std::thread::yield_now();
        }
        Some(OwnerGuard { record, id: self })
    }

    /// The pool, without keeping it alive: for `free(address)`, which costs no shared write.
    ///
    /// # Safety
    /// The caller owns a live block of the pool for as long as it uses the reference, which keeps
    /// the pool alive; and it found this id through the address of that block.
    #[inline]
    #[must_use]
    pub unsafe fn pool_unguarded<'a>(self) -> Option<&'a dyn Pool> {
        // SAFETY: a pool is set, if ever, before its first region is there, and stays until the
        // last is gone; the caller has a block in one, so that `replace_pool` does not run.
        unsafe { (*self.record()?.pool.get()).map(|pool| pool.0.as_ref()) }
    }
}

/// The life of a number, for its [`Upstream`].
impl OwnerId {
    /// Allocates an unused number.
    pub(super) fn enter(provider: &ProviderRef) -> Result<Self> {
        // With the fork handlers in place before the lock is taken.
        fork::generation();
        let mut next = NEXT.lock();
        for step in 0..LIMIT - 1 {
            let number = (*next - 1 + step) % (LIMIT - 1) + 1;
            let record = &OWNERS[number];
            if record.state.load(Ordering::Acquire) != 0 {
                continue;
            }
            // SAFETY: state 0 means that no guard and no owner exists; the lock keeps other makers
            // out.
            unsafe {
                *record.provider.get() = Some(provider.clone());
                *record.pool.get() = None;
            }
            record.process.store(fork::generation(), Ordering::Relaxed);
            record.state.store(LIVE, Ordering::Release);
            END.fetch_max(number + 1, Ordering::AcqRel);
            *next = number + 1;
            return Ok(Self(u32::try_from(number).unwrap_or(0)));
        }
        Err(Error::TooMany { what: "users of providers", limit: LIMIT - 1 })
    }

    /// # Safety
    /// As [`Upstream::set_pool`].
    pub(super) unsafe fn set_pool(self, pool: NonNull<dyn Pool>) {
        if let Some(record) = self.record() {
            // SAFETY: readers look at the cell only once POOL is set, which is below.
            unsafe { *record.pool.get() = Some(PoolPointer(pool)) };
            record.state.fetch_or(POOL, Ordering::Release);
        }
    }

    pub(super) fn has_pool(self) -> bool {
        self.record().is_some_and(|record| record.state.load(Ordering::Relaxed) & POOL != 0)
    }

    /// From now on no guard is made. The number is not given to another yet.
    pub(super) fn close(self) {
        if let Some(record) = self.record() {
            // CLOSING keeps the record from being handed out again until it is empty.
            let closing = |state| Some((state | CLOSING) & !(LIVE | POOL));
            let _ = record.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, closing);
        }
    }

    pub(super) fn wait_for_guards(self) {
        while self.record().is_some_and(|record| record.state.load(Ordering::Acquire) & USERS != 0) {
            std::thread::yield_now();
        }
    }

    /// Gives the number up; yields the provider, to be dropped.
    ///
    /// # Safety
    /// It was [closed](OwnerId::close), and all guards were [waited for](OwnerId::wait_for_guards);
    /// once.
    pub(super) unsafe fn leave(self) -> Option<ProviderRef> {
        let record = self.record()?;
        // SAFETY: no guard is left, none can be made without LIVE, and CLOSING keeps makers away.
        let provider = unsafe {
            *record.pool.get() = None;
            (*record.provider.get()).take()
        };
        record.state.store(0, Ordering::Release);
        provider
    }
}

/// The number of a pool that has its regions through an [`Upstream`].
pub(crate) fn owner_of_pool(pool: &dyn Pool) -> Option<OwnerId> {
    (1..END.load(Ordering::Acquire)).find_map(|number| {
        let id = u32::try_from(number).ok().and_then(OwnerId::from_number)?;
        let guard = id.guard()?;
        guard.pool().is_some_and(|other| core::ptr::addr_eq(other, pool)).then_some(id)
    })
}

/// Has the tracker show another pool for a number, when no thread is shown the former one any more.
/// In a child of the process that made the number, guards of the parent's threads never end: none
/// is waited for.
///
/// # Safety
/// No thread uses a block of the number's regions meanwhile. The new pool stays where it is and
/// alive until it is replaced, or the upstream is dropped.
pub(crate) unsafe fn replace_pool(id: OwnerId, pool: &dyn Pool) {
    let Some(record) = id.record() else { return };
    // SAFETY: only the lifetime of the trait object changes, and the caller answers for it.
    let pool = unsafe { core::mem::transmute::<NonNull<dyn Pool>, NonNull<dyn Pool>>(NonNull::from(pool)) };
    loop {
        // A fork waits for the lock, so that no child finds a replacement half done.
        let replacing = NEXT.lock();
        let state = record.state.load(Ordering::Relaxed);
        let is_inherited = record.process.load(Ordering::Relaxed) != fork::generation();
        let is_free = state & USERS == 0 || is_inherited;
        if is_free
            && record
                .state
                .compare_exchange(state, state | REPLACING, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            // SAFETY: no guard of this process is left, none is made before the store below, and
            // the caller keeps blocks out, through which `pool_unguarded` is reached.
            unsafe { *record.pool.get() = Some(PoolPointer(pool)) };
            record.state.store(state, Ordering::Release);
            return;
        }
        drop(replacing);
        std::thread::yield_now();
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
        // SAFETY: while a guard exists the provider is not changed.
        unsafe { (*self.record.provider.get()).as_ref() }
    }

    /// The pool; `None` if the region belongs to no pool.
    #[must_use]
    pub fn pool(&self) -> Option<&dyn Pool> {
        if self.record.state.load(Ordering::Acquire) & POOL == 0 {
            return None;
        }
        // SAFETY: POOL says that the pool is set, and it is dropped after its upstream, which waits
        // for this guard.
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
/// The pool is being replaced: no guard is made meanwhile.
const REPLACING: u32 = 1 << 28;
const USERS: u32 = REPLACING - 1;
const LIMIT: usize = 1 << 14;

#[derive(Clone, Copy)]
struct PoolPointer(NonNull<dyn Pool>);

struct OwnerRecord {
    /// Four flags, and the number of guards.
    state: AtomicU32,
    /// The process that made it, as [`fork::generation`] counts.
    process: AtomicU32,
    provider: UnsafeCell<Option<ProviderRef>>,
    pool: UnsafeCell<Option<PoolPointer>>,
}

// SAFETY: the cells are written only before LIVE or POOL is set, after all guards are gone, or by
// `replace_pool`, which lets no guard be made meanwhile; providers and pools are `Send + Sync`.
unsafe impl Sync for OwnerRecord {}

impl fmt::Debug for OwnerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner record, state {:#x}", self.state.load(Ordering::Relaxed))
    }
}

static OWNERS: [OwnerRecord; LIMIT] = [const {
    OwnerRecord {
        state: AtomicU32::new(0),
        process: AtomicU32::new(0),
        provider: UnsafeCell::new(None),
        pool: UnsafeCell::new(None),
    }
}; LIMIT];

/// Where to begin looking for a free record. Record 0 is not used.
static NEXT: Lock<usize> = Lock::new(1);

/// Records from here on were never used.
static END: AtomicUsize = AtomicUsize::new(1);

/// Shows every pool that has its regions through an [`Upstream`], in no order. A pool that is being
/// dropped waits until `look` has returned; `look` must not drop one.
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
