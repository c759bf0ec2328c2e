//! [`OwnerId`]: the number of an upstream, and the record with its provider and pool.

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
    /// Returns the number, from 1 to 16,383.
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

    /// Returns a guard that keeps provider and pool alive; `None` if the upstream was dropped.
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

    /// Returns the pool without a guard. For `free(address)`, which must not write shared memory.
    ///
    /// # Safety
    /// The caller found this id through the address of a live block that it owns. It owns the block
    /// as long as it uses the reference: a pool with live blocks is not dropped.
    #[inline]
    #[must_use]
    pub unsafe fn pool_unguarded<'a>(self) -> Option<&'a dyn Pool> {
        // SAFETY: the pool is set before its first region is allocated, and is not cleared before
        // its last region is freed. The caller has a live block, so `replace_pool` does not run.
        unsafe { (*self.record()?.pool.get()).map(|pool| pool.0.as_ref()) }
    }
}

/// The lifecycle of a number, for its [`Upstream`].
impl OwnerId {
    /// Allocates an unused number.
    pub(super) fn enter(provider: &ProviderRef) -> Result<Self> {
        // Installs the fork handlers before the lock is acquired.
        fork::generation();
        let mut next = NEXT.lock();
        for step in 0..LIMIT - 1 {
            let number = (*next - 1 + step) % (LIMIT - 1) + 1;
            let record = &OWNERS[number];
            if record.state.load(Ordering::Acquire) != 0 {
                continue;
            }
            // SAFETY: state 0 means that there is no guard and no upstream. The lock excludes other
            // calls of `enter`.
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
        Err(Error::TooMany { what: "upstreams of providers", limit: LIMIT - 1 })
    }

    /// Sets the pool.
    ///
    /// # Safety
    /// As [`Upstream::set_pool`].
    pub(super) unsafe fn set_pool(self, pool: NonNull<dyn Pool>) {
        if let Some(record) = self.record() {
            // SAFETY: readers access the cell only after POOL is set, which happens below.
            unsafe { *record.pool.get() = Some(PoolPointer(pool)) };
            record.state.fetch_or(POOL, Ordering::Release);
        }
    }

    pub(super) fn has_pool(self) -> bool {
        self.record().is_some_and(|record| record.state.load(Ordering::Relaxed) & POOL != 0)
    }

    /// Prevents further guards. The number is not reused yet.
    pub(super) fn close(self) {
        if let Some(record) = self.record() {
            // CLOSING keeps `enter` from reusing the record before `leave`.
            let closing = |state| Some((state | CLOSING) & !(LIVE | POOL));
            let _ = record.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, closing);
        }
    }

    /// Waits until all guards are dropped.
    pub(super) fn wait_for_guards(self) {
        while self.record().is_some_and(|record| record.state.load(Ordering::Acquire) & USERS != 0) {
            std::thread::yield_now();
        }
    }

    /// Releases the number. Returns the provider, for the caller to drop.
    ///
    /// # Safety
    /// Called once, after [`OwnerId::close`] and [`OwnerId::wait_for_guards`].
    pub(super) unsafe fn leave(self) -> Option<ProviderRef> {
        let record = self.record()?;
        // SAFETY: no guard is left, none is made without LIVE, and CLOSING excludes `enter`.
        let provider = unsafe {
            *record.pool.get() = None;
            (*record.provider.get()).take()
        };
        record.state.store(0, Ordering::Release);
        provider
    }
}

/// Returns the number of a pool that uses an [`Upstream`].
pub(crate) fn owner_of_pool(pool: &dyn Pool) -> Option<OwnerId> {
    (1..END.load(Ordering::Acquire)).find_map(|number| {
        let id = u32::try_from(number).ok().and_then(OwnerId::from_number)?;
        let guard = id.guard()?;
        guard.pool().is_some_and(|other| core::ptr::addr_eq(other, pool)).then_some(id)
    })
}

/// Replaces the pool of a number, after all guards are dropped. In a forked child it does not wait
/// for the guards of an inherited number: those of the parent's threads never end.
///
/// # Safety
/// No thread uses a block of the number's regions meanwhile. The new pool does not move and stays
/// alive until it is replaced or the upstream is dropped.
pub(crate) unsafe fn replace_pool(id: OwnerId, pool: &dyn Pool) {
    let Some(record) = id.record() else { return };
    // SAFETY: only the lifetime of the trait object changes, which the caller guarantees.
    let pool = unsafe { core::mem::transmute::<NonNull<dyn Pool>, NonNull<dyn Pool>>(NonNull::from(pool)) };
    loop {
        // A fork waits for this lock, so no child sees REPLACING set.
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
            // SAFETY: no guard of this process is left, and none is made before the store below.
            // No block is in use, so no thread calls `pool_unguarded`.
            unsafe { *record.pool.get() = Some(PoolPointer(pool)) };
            record.state.store(state, Ordering::Release);
            return;
        }
        drop(replacing);
        std::thread::yield_now();
    }
}

/// A guard that keeps the provider and pool of an upstream alive.
#[derive(Debug)]
pub struct OwnerGuard {
    record: &'static OwnerRecord,
    id: OwnerId,
}

impl OwnerGuard {
    /// Returns the number of the upstream.
    #[must_use]
    pub const fn id(&self) -> OwnerId {
        self.id
    }

    /// Returns the provider.
    #[must_use]
    pub fn provider(&self) -> Option<&ProviderRef> {
        // SAFETY: the provider does not change while a guard exists.
        unsafe { (*self.record.provider.get()).as_ref() }
    }

    /// Returns the pool; `None` if the upstream belongs to no pool.
    #[must_use]
    pub fn pool(&self) -> Option<&dyn Pool> {
        if self.record.state.load(Ordering::Acquire) & POOL == 0 {
            return None;
        }
        // SAFETY: POOL is set, so the pool is. The pool is dropped after its upstream, which waits
        // for this guard.
        unsafe { (*self.record.pool.get()).map(|pool| pool.0.as_ref()) }
    }
}

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        self.record.state.fetch_sub(1, Ordering::Release);
    }
}

/// Guards can be made.
const LIVE: u32 = 1 << 31;
/// The pool is set.
const POOL: u32 = 1 << 30;
/// The upstream is being dropped.
const CLOSING: u32 = 1 << 29;
/// The pool is being replaced: no guard is made meanwhile.
const REPLACING: u32 = 1 << 28;
/// The number of guards.
const USERS: u32 = REPLACING - 1;
const LIMIT: usize = 1 << 14;

#[derive(Clone, Copy)]
struct PoolPointer(NonNull<dyn Pool>);

struct OwnerRecord {
    /// Four flags, and the number of guards. 0 is an unused record.
    state: AtomicU32,
    /// The process that made it ([`fork::generation`]).
    process: AtomicU32,
    provider: UnsafeCell<Option<ProviderRef>>,
    pool: UnsafeCell<Option<PoolPointer>>,
}

// SAFETY: the cells are written only before LIVE or POOL is set, after all guards are dropped, or
// by `replace_pool`, which prevents guards meanwhile. Providers and pools are `Send + Sync`.
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

/// The number at which the search for an unused record begins. Record 0 is never used.
static NEXT: Lock<usize> = Lock::new(1);

/// Records from here on were never used.
static END: AtomicUsize = AtomicUsize::new(1);

/// Calls `visit` with every pool that uses an [`Upstream`], in no order. The drop of a pool waits
/// until `visit` has returned. `visit` must not drop a pool.
pub fn for_each_pool(mut visit: impl FnMut(&dyn Pool)) {
    for number in 1..END.load(Ordering::Acquire) {
        let id = u32::try_from(number).ok().and_then(OwnerId::from_number);
        if let Some(guard) = id.and_then(OwnerId::guard)
            && let Some(pool) = guard.pool()
        {
            visit(pool);
        }
    }
}
