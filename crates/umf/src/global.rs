//! [`GlobalPool`]: a slab pool as the allocator of a whole program.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicPtr, Ordering};

use umf_core::Address;
use umf_core::checked::{CheckSettings, Checked, Leaks};
use umf_core::{Pool, pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::HostProvider;

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

    fn pool(&self) -> Option<&'static SlabPool> {
        let pool = self.pool.load(Ordering::Acquire);
        if pool.is_null() {
            return self.make();
        }
        // SAFETY: only `make` stores pointers here, to pools that live for ever.
        Some(unsafe { &*pool })
    }

    #[cold]
    fn make(&self) -> Option<&'static SlabPool> {
        let settings = SlabSettings::new().name("global");
        let made = SlabPool::new_static(&PROVIDER, settings).ok()?;
        let pointer = std::ptr::from_ref(made).cast_mut();
        match self.pool.compare_exchange(std::ptr::null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(made),
            // Another thread was first; this pool stays empty.
            // SAFETY: as in `pool`.
            Err(first) => Some(unsafe { &*first }),
        }
    }

    #[cold]
    fn checked(&self) -> Option<&'static Checked> {
        let checked = self.checked.load(Ordering::Acquire);
        if !checked.is_null() {
            // SAFETY: only the code below stores pointers here, to objects that live for ever.
            return Some(unsafe { &*checked });
        }
        let checks = CheckSettings::new().leaks(self.leaks).leak_sample(self.leak_sample);
        let pool = SlabPool::new_static(&PROVIDER, SlabSettings::new().name("global")).ok()?;
        // SAFETY: nothing else has the pool, except for its statistics.
        let made = unsafe { Checked::new_static(pool, checks) }.ok()?;
        let pointer = std::ptr::from_ref(made).cast_mut();
        match self.checked.compare_exchange(
            std::ptr::null_mut(),
            pointer,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => {
                self.pool.store(std::ptr::from_ref(pool).cast_mut(), Ordering::Release);
                Some(made)
            }
            // Another thread was first; this pool stays empty.
            // SAFETY: as above.
            Err(first) => Some(unsafe { &*first }),
        }
    }

    /// What the pool holds; `None` before it was first used.
    #[must_use]
    pub fn statistics(&self) -> Option<umf_core::statistics::PoolStatistics> {
        let pool = self.pool.load(Ordering::Acquire);
        // SAFETY: as in `pool`.
        (!pool.is_null()).then(|| unsafe { &*pool }.statistics())
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
            let address = match self.leaks {
                Leaks::Off => self.pool()?.allocate(layout),
                _ => pool::allocate(self.checked()?, layout),
            };
            address.ok()?.as_ptr()
        });
        block.unwrap_or(std::ptr::null_mut())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _layout: Layout) {
        let address = Address::from_ptr(pointer);
        let freed = match self.leaks {
            // SAFETY: the caller's contract: the block came from `alloc` and is not used any more.
            Leaks::Off => self.pool().map(|pool| unsafe { pool.free(address) }),
            // SAFETY: as above.
            _ => self.checked().map(|pool| unsafe { pool::free(pool, address) }),
        };
        debug_assert!(freed.is_none_or(|freed| freed.is_ok()));
    }
}
