//! [`GlobalPool`]: a slab pool as the allocator of a whole program.

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
/// It takes its first memory when it is first used, and never gives its metadata back. After a fork it works on in
/// both processes.
#[derive(Debug)]
pub struct GlobalPool {
    pool: AtomicPtr<SlabPool>,
    /// What reports leaks, before the pool, if that is set.
    checked: AtomicPtr<Checked>,
    leaks: Leaks,
    leak_sample: u32,
}

static PROVIDER: HostProvider = HostProvider::private_static();

impl GlobalPool {
    /// For a `static`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pool: AtomicPtr::new(std::ptr::null_mut()),
            checked: AtomicPtr::new(std::ptr::null_mut()),
            leaks: Leaks::Off,
            leak_sample: 1,
        }
    }

    /// What is written to standard error at the end of the process of blocks that are live then: some are in every program.
    /// Default: [`Leaks::Off`]. With [`Leaks::Sites`], of one in `sample` allocations it is remembered where it was (0
    /// acts as 1). Where that is cannot be told by name without allocating: stacks have files and offsets, for `addr2line`.
    #[must_use]
    pub const fn leaks(mut self, leaks: Leaks, sample: u32) -> Self {
        self.leaks = leaks;
        self.leak_sample = sample;
        self
    }

    /// The pool, if it is there and allocations are not checked.
    #[inline]
    fn pool(&self) -> Option<&'static SlabPool> {
        let pool = self.pool.load(Ordering::Acquire);
        // SAFETY: only `make` stores pointers here, to pools that live for ever.
        (!pool.is_null()).then(|| unsafe { &*pool })
    }

    /// What reports leaks, if it is there.
    fn checked(&self) -> Option<&'static Checked> {
        let checked = self.checked.load(Ordering::Acquire);
        // SAFETY: as in `pool`.
        (!checked.is_null()).then(|| unsafe { &*checked })
    }

    /// The pool where `pool` has none.
    #[cold]
    fn make(&self) -> Option<&'static dyn Pool> {
        if let Some(checked) = self.checked() {
            return Some(checked);
        }
        let made = SlabPool::new_static(&PROVIDER, SlabSettings::new().name("global")).ok()?;
        // If another thread is first, this pool stays empty.
        if matches!(self.leaks, Leaks::Off) {
            let pointer = std::ptr::from_ref(made).cast_mut();
            let null = std::ptr::null_mut();
            let _ = self.pool.compare_exchange(null, pointer, Ordering::AcqRel, Ordering::Acquire);
            return self.pool().map(|pool| pool as &dyn Pool);
        }
        let checks = CheckSettings::new().leaks(self.leaks).leak_sample(self.leak_sample);
        // SAFETY: nothing else has the pool.
        let made = unsafe { Checked::new_static(made, checks) }.ok()?;
        let (pointer, null) = (std::ptr::from_ref(made).cast_mut(), std::ptr::null_mut());
        let _ = self.checked.compare_exchange(null, pointer, Ordering::AcqRel, Ordering::Acquire);
        self.checked().map(|pool| pool as &dyn Pool)
    }

    /// What the pool holds; `None` before it was first used.
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

// SAFETY: blocks are aligned, large enough, do not overlap and stay valid until freed, by the contract of `Pool`;
// nothing here unwinds or allocates from the global allocator.
unsafe impl GlobalAlloc for GlobalPool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = umf_core::Layout::try_from(layout).ok().and_then(|layout| {
            let address = match self.pool() {
                Some(pool) => pool.allocate(layout),
                None => pool::allocate(self.make()?, layout),
            };
            address.ok()?.as_ptr()
        });
        block.unwrap_or(std::ptr::null_mut())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _layout: Layout) {
        let address = Address::from_ptr(pointer);
        let freed = match self.pool() {
            // SAFETY: the caller's contract: the block came from `alloc` and is not used any more.
            Some(pool) => Some(unsafe { pool.free(address) }),
            // SAFETY: as above.
            None => self.make().map(|pool| unsafe { pool::free(pool, address) }),
        };
        debug_assert!(freed.is_none_or(|freed| freed.is_ok()));
    }
}
