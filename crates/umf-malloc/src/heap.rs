//! Which pool serves, and how it is made.
//!
//! The first one is made by the first allocation, or when the library is loaded, whatever comes first. Nobody waits while that
//! happens: other allocations are [`early`](crate::early) ones. Where the memory is shared, a forked child makes another pool, over private
//! memory, and what it inherited is read, copied and never freed.

use core::ffi::c_char;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use umf_core::{Address, BlockSpan, Error, Layout, Pool, Provider, Result};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::HostProvider;

use crate::fork;
use crate::next::Next;
use crate::settings::{Disposition, Settings};
use crate::shared::Shared;
use crate::tell::{Text, tell};

/// Larger requests are mappings of their own.
pub(crate) const LARGEST_POOLED: usize = 8 << 20;
/// How long free memory stays in the process, about.
const RELEASE_AFTER: Duration = Duration::from_secs(10);

static PRIVATE: HostProvider = HostProvider::private_static();

/// The pool that serves.
static SERVING: AtomicPtr<SlabPool> = AtomicPtr::new(ptr::null_mut());
/// The same, where nothing else has to be looked at.
static AT_ONCE: AtomicPtr<SlabPool> = AtomicPtr::new(ptr::null_mut());
/// One that served before, and does no more.
static RETIRED: AtomicPtr<SlabPool> = AtomicPtr::new(ptr::null_mut());
/// The pool that serves is over shared memory.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// What shared memory is, in the words of [`umf_runtime::preloaded_heap`].
static KIND: AtomicU32 = AtomicU32::new(umf_runtime::preloaded_heap::PRIVATE);
/// Requests for fewer bytes go to the next allocator, where there is one.
static THRESHOLD: AtomicUsize = AtomicUsize::new(0);

const UNMADE: u8 = 0;
const MAKING: u8 = 1;
const MADE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNMADE);
/// The environment was read.
static IS_SET: AtomicBool = AtomicBool::new(false);

fn pool(place: &AtomicPtr<SlabPool>) -> Option<&'static SlabPool> {
    // SAFETY: only pools that live for ever are stored.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// The pool, where a request is a matter of its common path.
#[inline(always)]
pub(crate) fn at_once() -> Option<&'static SlabPool> {
    pool(&AT_ONCE)
}

/// The next allocator, if requests of this size are its own.
#[inline]
pub(crate) fn next_for(size: usize) -> Option<Next> {
    if size < THRESHOLD.load(Ordering::Relaxed) { Next::known() } else { None }
}

/// The next allocator, if any requests are its own.
pub(crate) fn next() -> Option<Next> {
    next_for(0)
}

/// The pool that serves, which is made if need be; `None` as long as it is not there. The calling thread is busy.
pub(crate) fn serving() -> Option<&'static SlabPool> {
    pool(&SERVING).or_else(make)
}

/// What the memory of the pool that serves is, in the words of [`umf_runtime::preloaded_heap`].
pub(crate) extern "C" fn kind() -> u32 {
    if IS_SHARED.load(Ordering::Relaxed) {
        KIND.load(Ordering::Relaxed)
    } else {
        umf_runtime::preloaded_heap::PRIVATE
    }
}

/// The live block around `address`.
pub(crate) fn block_around(address: Address) -> Option<BlockSpan> {
    [&SERVING, &RETIRED].into_iter().find_map(|place| pool(place)?.block_at(address).ok())
}

/// The live block at `address`, and its pool, which may have retired.
pub(crate) fn find(address: Address) -> Option<(&'static SlabPool, BlockSpan)> {
    [&SERVING, &RETIRED].into_iter().find_map(|place| {
        let pool = pool(place)?;
        let block = pool.block_at(address).ok().filter(|block| block.address == address)?;
        Some((pool, block))
    })
}

/// Whether this pool serves, and its memory is this process's alone.
pub(crate) fn is_private(pool: &SlabPool) -> bool {
    !IS_SHARED.load(Ordering::Relaxed) && ptr::eq(SERVING.load(Ordering::Acquire), pool)
}

/// Frees a block, whichever pool it is from.
///
/// # Errors
/// [`Error::ForeignAddress`] if from none, and what else [`Pool::free`] says.
///
/// # Safety
/// As [`Pool::free`].
pub(crate) unsafe fn free(address: Address) -> Result<()> {
    let mut result = Err(Error::ForeignAddress { address, owner: "this library" });
    for place in [&SERVING, &RETIRED] {
        if let Some(pool) = pool(place)
            && let Err(Error::ForeignAddress { .. }) = result
        {
            // SAFETY: passed on to the caller.
            result = unsafe { pool.free(address) };
        }
    }
    result
}

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// There is no pool yet.
    Pool,
    /// The pool has none.
    Memory,
}

/// Allocates from the pool that serves. The calling thread is busy.
pub(crate) fn allocate(layout: Layout) -> Result<Address, Lacking> {
    let pool = serving().ok_or(Lacking::Pool)?;
    match pool.allocate(layout) {
        Ok(block) => Ok(block),
        // A child of which no handler was told, or a program that closed the file.
        Err(Error::Frozen { .. }) => {
            retire(pool);
            serving().ok_or(Lacking::Pool)?.allocate(layout).map_err(|_| Lacking::Memory)
        }
        Err(_) => Err(Lacking::Memory),
    }
}

/// If the pool that serves is over shared memory: from here on another one serves.
pub(crate) fn retire_shared() {
    if IS_SHARED.load(Ordering::Relaxed)
        && let Some(old) = pool(&SERVING)
    {
        retire(old);
    }
}

/// From here on another pool serves than this one.
fn retire(old: &'static SlabPool) {
    let place = ptr::from_ref(old).cast_mut();
    RETIRED.store(place, Ordering::Release);
    let none = ptr::null_mut();
    // (Who is late leaves the next one as it is.)
    let _ = AT_ONCE.compare_exchange(place, none, Ordering::AcqRel, Ordering::Relaxed);
    if SERVING.compare_exchange(place, none, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        IS_SHARED.store(false, Ordering::Relaxed);
        STATE.store(UNMADE, Ordering::Release);
    }
}

/// Makes the pool, if nobody else does.
#[cold]
fn make() -> Option<&'static SlabPool> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: a word of the C library; nobody changes the environment while others read it.
    if unsafe { environ.is_null() } && !IS_SET.load(Ordering::Relaxed) {
        // Before the C library has it. It will come.
        return None;
    }
    STATE.compare_exchange(UNMADE, MAKING, Ordering::AcqRel, Ordering::Acquire).ok()?;
    let settings = if IS_SET.swap(true, Ordering::Relaxed) { Settings::DEFAULT } else { read_settings() };
    let has_addresses = has_addresses();
    let made = has_addresses.then(|| over_shared(settings).or_else(|| over(&PRIVATE))).flatten();
    if made.is_none() && Next::find().is_some() {
        let why = if has_addresses {
            "no pool can be made"
        } else {
            "addresses for a pool (ulimit -v) are too few"
        };
        tell(format_args!("{why}: memory is that of the next allocator"));
        THRESHOLD.store(usize::MAX, Ordering::Relaxed);
    }
    if let Some(made) = made {
        fork::take_part();
        SERVING.store(ptr::from_ref(made).cast_mut(), Ordering::Release);
        if next().is_none() {
            AT_ONCE.store(ptr::from_ref(made).cast_mut(), Ordering::Release);
        }
    }
    // What could not be made is not tried again: what is asked for is early memory then, or there is none.
    STATE.store(MADE, Ordering::Release);
    made
}

/// Whether a pool's tables and some memory have room in this process. To begin with them and fail would cost what is left.
fn has_addresses() -> bool {
    /// The tables are 30 MB, most of which are never touched. The rest is for what a small program needs then.
    const POOL: usize = 44 << 20;
    let mut limit = core::mem::MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: `limit` is valid for the write, and was written if that is what the call says.
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
    // SAFETY: mapped above.
    probe != libc::MAP_FAILED && unsafe { libc::munmap(probe, POOL) } == 0
}

fn read_settings() -> Settings {
    let settings = umf_os::environment::with_variable(c"UMF_PROXY", |text| {
        Settings::parse(text.to_bytes(), |part, why| {
            tell(format_args!("UMF_PROXY: '{}' is ignored: {why}", Text(part)));
        })
    });
    let Some(settings) = settings else { return Settings::DEFAULT };
    if settings.threshold > 0 {
        match Next::find() {
            Some(_) => THRESHOLD.store(settings.threshold, Ordering::Relaxed),
            None => tell(format_args!("UMF_PROXY: size.threshold is ignored: there is no other allocator")),
        }
    }
    settings
}

fn over_shared(settings: Settings) -> Option<&'static SlabPool> {
    if settings.disposition == Disposition::Private {
        return None;
    }
    match Shared::make(settings.disposition) {
        Ok(provider) => {
            let kind = match settings.disposition {
                Disposition::SharedShm => umf_runtime::preloaded_heap::SHARED_SHM,
                _ => umf_runtime::preloaded_heap::SHARED_FD,
            };
            KIND.store(kind, Ordering::Relaxed);
            IS_SHARED.store(true, Ordering::Relaxed);
            over(provider).or_else(|| {
                IS_SHARED.store(false, Ordering::Relaxed);
                None
            })
        }
        Err(error) => {
            tell(format_args!("UMF_PROXY: memory is private, because: {error}"));
            None
        }
    }
}

fn over(provider: &'static dyn Provider) -> Option<&'static SlabPool> {
    let settings = SlabSettings::new()
        .name("malloc")
        .min_block_size(crate::ALIGN)
        .max_poolable_size(LARGEST_POOLED)
        .release_after(RELEASE_AFTER);
    SlabPool::new_static(provider, settings)
        .inspect_err(|error| tell(format_args!("there is no pool: {error}")))
        .ok()
}
