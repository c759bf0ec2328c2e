//! The pool that serves the process: how it is created, found and replaced.
//!
//! The first allocation creates the pool, or loading the library does, whichever comes first. Other
//! threads do not wait for it: the [`bootstrap`](crate::bootstrap) allocator serves their requests.
//!
//! If the heap lies in shared memory, a forked child retires the inherited pool and creates another
//! one over private memory. Inherited blocks can be read and copied, and are never freed.

use core::ffi::c_char;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use umf_core::{Address, BlockSpan, Error, Layout, Pool, Provider, Result};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::HostProvider;

use crate::next::NextAllocator;
use crate::settings::{Disposition, Printable, Settings, report};
use crate::shared::{self, SharedProvider};

/// The largest request that is served from slabs and caches. Larger blocks are mappings of their
/// own.
pub(crate) const LARGEST_POOLED: usize = 8 << 20;
/// The approximate age at which free memory is released to the system.
const RELEASE_AFTER: Duration = Duration::from_secs(10);

static PRIVATE: HostProvider = HostProvider::private_static();

/// The current pool: all new blocks come from it.
static CURRENT: AtomicPtr<SlabPool> = AtomicPtr::new(ptr::null_mut());
/// The current pool for the fast paths; null if some requests go to the next allocator.
static FAST: AtomicPtr<SlabPool> = AtomicPtr::new(ptr::null_mut());
/// The pool before the current one. Its blocks are still live.
static RETIRED: AtomicPtr<SlabPool> = AtomicPtr::new(ptr::null_mut());
/// Whether the current pool is over shared memory.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// The kind of shared memory, a constant of [`umf_runtime::preloaded_heap`].
static KIND: AtomicU32 = AtomicU32::new(umf_runtime::preloaded_heap::PRIVATE);
/// Requests for fewer bytes go to the next allocator, if there is one.
static THRESHOLD: AtomicUsize = AtomicUsize::new(0);

const ABSENT: u8 = 0;
const CREATING: u8 = 1;
const CREATED: u8 = 2;
/// Whether the current pool exists. [`CREATED`] also says that creating it failed.
static CREATION: AtomicU8 = AtomicU8::new(ABSENT);
/// Whether `UMF_PROXY` was read.
static IS_CONFIGURED: AtomicBool = AtomicBool::new(false);

fn load(pool: &AtomicPtr<SlabPool>) -> Option<&'static SlabPool> {
    // SAFETY: only pools of `SlabPool::new_static` are stored, which are never dropped.
    unsafe { pool.load(Ordering::Acquire).as_ref() }
}

/// Returns the current pool, if a request may take its fast path without further checks.
#[inline(always)]
pub(crate) fn fast_pool() -> Option<&'static SlabPool> {
    load(&FAST)
}

/// Returns the next allocator, if it serves requests of this size.
#[inline]
pub(crate) fn next_for(size: usize) -> Option<NextAllocator> {
    if size < THRESHOLD.load(Ordering::Relaxed) { NextAllocator::get() } else { None }
}

/// Returns the next allocator, if it serves any requests.
pub(crate) fn next() -> Option<NextAllocator> {
    next_for(0)
}

/// Returns the current pool, which is created if need be; `None` while another thread creates it.
/// The calling thread has a [`ReentrancyGuard`](crate::reentrancy::ReentrancyGuard).
pub(crate) fn current_pool() -> Option<&'static SlabPool> {
    load(&CURRENT).or_else(create)
}

/// Returns the kind of the current pool's memory, a constant of [`umf_runtime::preloaded_heap`].
pub(crate) extern "C" fn kind() -> u32 {
    if IS_SHARED.load(Ordering::Relaxed) {
        KIND.load(Ordering::Relaxed)
    } else {
        umf_runtime::preloaded_heap::PRIVATE
    }
}

/// Returns the live block that holds `address`.
pub(crate) fn block_around(address: Address) -> Option<BlockSpan> {
    [&CURRENT, &RETIRED].into_iter().find_map(|pool| load(pool)?.block_at(address).ok())
}

/// Returns the live block that begins at `address`, and its pool, which may be retired.
pub(crate) fn find(address: Address) -> Option<(&'static SlabPool, BlockSpan)> {
    [&CURRENT, &RETIRED].into_iter().find_map(|pool| {
        let pool = load(pool)?;
        let block = pool.block_at(address).ok().filter(|block| block.address == address)?;
        Some((pool, block))
    })
}

/// Returns whether a pool is the current one, over private memory.
pub(crate) fn is_private(pool: &SlabPool) -> bool {
    !IS_SHARED.load(Ordering::Relaxed) && ptr::eq(CURRENT.load(Ordering::Acquire), pool)
}

/// Frees a block of the current or the retired pool.
///
/// # Errors
/// [`Error::ForeignAddress`] for a block of neither, and those of [`Pool::free`].
///
/// # Safety
/// As [`Pool::free`].
pub(crate) unsafe fn free(address: Address) -> Result<()> {
    let mut result = Err(Error::ForeignAddress { address, owner: "this library" });
    for pool in [&CURRENT, &RETIRED] {
        if let Some(pool) = load(pool)
            && let Err(Error::ForeignAddress { .. }) = result
        {
            // SAFETY: passed on to the caller.
            result = unsafe { pool.free(address) };
        }
    }
    result
}

/// The reason why the heap has no block for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeapError {
    /// The pool does not exist yet.
    NoPool,
    /// The pool is out of memory.
    OutOfMemory,
}

/// Allocates from the current pool. The calling thread has a
/// [`ReentrancyGuard`](crate::reentrancy::ReentrancyGuard).
pub(crate) fn allocate(layout: Layout) -> Result<Address, HeapError> {
    let pool = current_pool().ok_or(HeapError::NoPool)?;
    match pool.allocate(layout) {
        Ok(block) => Ok(block),
        // The program closed the memory file, or this is a child whose fork ran no handlers.
        Err(Error::Frozen { .. }) => {
            retire(pool);
            let pool = current_pool().ok_or(HeapError::NoPool)?;
            pool.allocate(layout).map_err(|_| HeapError::OutOfMemory)
        }
        Err(_) => Err(HeapError::OutOfMemory),
    }
}

/// Retires the current pool if it is over shared memory.
pub(crate) fn retire_shared() {
    if IS_SHARED.load(Ordering::Relaxed)
        && let Some(old) = load(&CURRENT)
    {
        retire(old);
    }
}

/// Retires the current pool. The next allocation creates another one.
fn retire(old: &'static SlabPool) {
    let old = ptr::from_ref(old).cast_mut();
    RETIRED.store(old, Ordering::Release);
    let none = ptr::null_mut();
    // If another thread was faster, its new pool stays.
    let _ = FAST.compare_exchange(old, none, Ordering::AcqRel, Ordering::Relaxed);
    if CURRENT.compare_exchange(old, none, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        IS_SHARED.store(false, Ordering::Relaxed);
        CREATION.store(ABSENT, Ordering::Release);
    }
}

/// Creates the current pool, unless another thread does so.
#[cold]
fn create() -> Option<&'static SlabPool> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library defines the word; programs must not change the environment while others
    // read it.
    if unsafe { environ.is_null() } && !IS_CONFIGURED.load(Ordering::Relaxed) {
        // The C library has not set the environment yet.
        return None;
    }
    CREATION.compare_exchange(ABSENT, CREATING, Ordering::AcqRel, Ordering::Acquire).ok()?;
    let settings =
        if IS_CONFIGURED.swap(true, Ordering::Relaxed) { Settings::DEFAULT } else { read_settings() };
    let has_addresses = has_addresses();
    let pool = has_addresses.then(|| pool_over_shared(settings).or_else(|| pool_over(&PRIVATE))).flatten();
    if pool.is_none() && NextAllocator::find().is_some() {
        let why = if has_addresses {
            "cannot create a pool"
        } else {
            "cannot create a pool within the address space limit (ulimit -v)"
        };
        report(format_args!("{why}; the next allocator serves all requests"));
        THRESHOLD.store(usize::MAX, Ordering::Relaxed);
    }
    if let Some(pool) = pool {
        shared::add_fork_hooks();
        CURRENT.store(ptr::from_ref(pool).cast_mut(), Ordering::Release);
        if next().is_none() {
            FAST.store(ptr::from_ref(pool).cast_mut(), Ordering::Release);
        }
    }
    // After a failure no thread tries again: the bootstrap or the next allocator serves the
    // requests.
    CREATION.store(CREATED, Ordering::Release);
    pool
}

/// Returns whether the address space limit leaves room for the tables of a pool and some memory. A
/// pool that fails half-way would use up what is left.
fn has_addresses() -> bool {
    /// 30 MB of tables, most of which are never touched, and what a small program needs besides.
    const POOL: usize = 44 << 20;
    let mut limit = core::mem::MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: `limit` is valid for the write, and is read only if the call has written it.
    let is_bounded = unsafe {
        libc::getrlimit(libc::RLIMIT_AS, limit.as_mut_ptr()) == 0
            && limit.assume_init().rlim_cur != libc::RLIM_INFINITY
    };
    if !is_bounded {
        return true;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let probe = unsafe { libc::mmap(ptr::null_mut(), POOL, libc::PROT_NONE, flags, -1, 0) };
    // SAFETY: the mapping was made above, and no other thread knows it.
    probe != libc::MAP_FAILED && unsafe { libc::munmap(probe, POOL) } == 0
}

fn read_settings() -> Settings {
    let settings = umf_os::environment::with_variable(c"UMF_PROXY", |text| {
        Settings::parse(text.to_bytes(), |part, why| {
            report(format_args!("UMF_PROXY: '{}' is ignored: {why}", Printable(part)));
        })
    });
    let Some(settings) = settings else { return Settings::DEFAULT };
    if settings.threshold > 0 {
        match NextAllocator::find() {
            Some(_) => THRESHOLD.store(settings.threshold, Ordering::Relaxed),
            None => report(format_args!("UMF_PROXY: size.threshold is ignored: there is no other allocator")),
        }
    }
    settings
}

fn pool_over_shared(settings: Settings) -> Option<&'static SlabPool> {
    if settings.disposition == Disposition::Private {
        return None;
    }
    match SharedProvider::create(settings.disposition) {
        Ok(provider) => {
            let kind = match settings.disposition {
                Disposition::SharedShm => umf_runtime::preloaded_heap::SHARED_SHM,
                _ => umf_runtime::preloaded_heap::SHARED_FD,
            };
            KIND.store(kind, Ordering::Relaxed);
            IS_SHARED.store(true, Ordering::Relaxed);
            pool_over(provider).or_else(|| {
                IS_SHARED.store(false, Ordering::Relaxed);
                None
            })
        }
        Err(error) => {
            report(format_args!("UMF_PROXY: memory is private, because: {error}"));
            None
        }
    }
}

fn pool_over(provider: &'static dyn Provider) -> Option<&'static SlabPool> {
    let settings = SlabSettings::new()
        .name("malloc")
        .min_block_size(crate::ALIGN)
        .max_poolable_size(LARGEST_POOLED)
        .release_after(RELEASE_AFTER);
    SlabPool::new_static(provider, settings)
        .inspect_err(|error| report(format_args!("cannot create a pool: {error}")))
        .ok()
}
