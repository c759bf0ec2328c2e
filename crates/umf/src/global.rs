//! [`GlobalPool`]: a slab pool as the global allocator of a program.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicPtr, Ordering};

use umf_core::Address;
use umf_core::{Pool, pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::HostProvider;
use umf_runtime::checked::{CheckSettings, Checked, Leaks};

/// A slab pool over private host memory as the global allocator:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: umf::GlobalPool = umf::GlobalPool::new();
/// # fn main() { assert_eq!(vec![7; 1000].iter().sum::<i32>(), 7000); }
/// ```
///
/// The pool is created on first use, and its metadata is never freed. It works in both processes
/// after a fork.
#[derive(Debug)]
pub struct GlobalPool {
    pool: AtomicPtr<SlabPool>,
    /// The pool wrapped in leak reporting, if that is on. Then `pool` stays null.
    checked: AtomicPtr<Checked>,
    leaks: Leaks,
    leak_sample: u32,
}

static PROVIDER: HostProvider = HostProvider::private_static();

impl GlobalPool {
    /// Returns an allocator for a `static`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pool: AtomicPtr::new(std::ptr::null_mut()),
            checked: AtomicPtr::new(std::ptr::null_mut()),
            leaks: Leaks::Off,
            leak_sample: 1,
        }
    }

    /// Sets what is written to standard error about blocks that are live when the process exits.
    /// Every program has some. Default: [`Leaks::Off`].
    ///
    /// With [`Leaks::Sites`] the call stack of one in `sample` allocations is recorded; 0 acts as
    /// 1. Symbol names need allocations, so stacks are files and offsets, for `addr2line`.
    #[must_use]
    pub const fn leaks(mut self, leaks: Leaks, sample: u32) -> Self {
        self.leaks = leaks;
        self.leak_sample = sample;
        self
    }

    /// Returns the pool if it exists and leak reporting is off.
    #[inline]
    fn pool(&self) -> Option<&'static SlabPool> {
        let pool = self.pool.load(Ordering::Acquire);
        // SAFETY: only `create` stores a pointer here, to a pool that is never freed.
        (!pool.is_null()).then(|| unsafe { &*pool })
    }

    /// Returns the pool with leak reporting, if it exists.
    fn checked(&self) -> Option<&'static Checked> {
        let checked = self.checked.load(Ordering::Acquire);
        // SAFETY: only `create` stores a pointer here, to a pool that is never freed.
        (!checked.is_null()).then(|| unsafe { &*checked })
    }

    /// Returns the pool where [`Self::pool`] has none: creates it, or returns the one with leak
    /// reporting.
    #[cold]
    fn create(&self) -> Option<&'static dyn Pool> {
        if let Some(checked) = self.checked() {
            return Some(checked);
        }
        let made = SlabPool::new_static(&PROVIDER, SlabSettings::new().name("global")).ok()?;
        // If another thread publishes its pool first, this pool stays empty.
        if matches!(self.leaks, Leaks::Off) {
            let pointer = std::ptr::from_ref(made).cast_mut();
            let null = std::ptr::null_mut();
            let _ = self.pool.compare_exchange(null, pointer, Ordering::AcqRel, Ordering::Acquire);
            return self.pool().map(|pool| pool as &dyn Pool);
        }
        let checks = CheckSettings::new().leaks(self.leaks).leak_sample(self.leak_sample);
        // SAFETY: the pool was created above, and no other code has a reference to it.
        let made = unsafe { Checked::new_static(made, checks) }.ok()?;
        let (pointer, null) = (std::ptr::from_ref(made).cast_mut(), std::ptr::null_mut());
        let _ = self.checked.compare_exchange(null, pointer, Ordering::AcqRel, Ordering::Acquire);
        self.checked().map(|pool| pool as &dyn Pool)
    }

    /// Returns the pool's statistics, or `None` before the first allocation.
    #[must_use]
    pub fn statistics(&self) -> Option<umf_core::statistics::PoolStatistics> {
        let checked = || self.checked().map(Pool::statistics);
        self.pool().map(Pool::statistics).or_else(checked)
    }
}

impl Default for GlobalPool {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: by the contract of `Pool`, blocks are aligned, large enough, disjoint and valid until
// freed. No function here unwinds or allocates from the global allocator.
unsafe impl GlobalAlloc for GlobalPool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = umf_core::Layout::try_from(layout).ok().and_then(|layout| {
            let address = match self.pool() {
                Some(pool) => pool.allocate(layout),
                None => pool::allocate(self.create()?, layout),
            };
            address.ok()?.as_ptr()
        });
        block.unwrap_or(std::ptr::null_mut())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _layout: Layout) {
        let address = Address::from_ptr(pointer);
        let freed = match self.pool() {
            // SAFETY: by the caller's contract the block came from `alloc` and is not in use.
            Some(pool) => Some(unsafe { pool.free(address) }),
            // SAFETY: as above.
            None => self.create().map(|pool| unsafe { pool::free(pool, address) }),
        };
        debug_assert!(freed.is_none_or(|freed| freed.is_ok()));
    }
}
