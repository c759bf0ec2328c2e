//! What is called of jemalloc: the one module that does.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use tikv_jemalloc_sys as je;
use umf_core::{Error, Result};
use umf_sync::Lock;

pub(crate) use je::extent_hooks_t as HookTable;

/// Taken by a thread for its first call of jemalloc: that takes a lock which jemalloc's own handlers of forks leave out (where it has
/// its thread-local storage by a pthread key).
static FIRST: Lock<()> = Lock::new(());

thread_local! {
    /// The thread has called jemalloc.
    static IS_READY: Cell<bool> = const { Cell::new(false) };
}

/// To be called by a thread before it calls anything else here that allocates, frees, or is a command.
pub(crate) fn ready() {
    #[cold]
    fn be_ready() {
        let _first = FIRST.lock();
        begin();
        IS_READY.set(true);
    }
    if !IS_READY.get() {
        be_ready();
    }
}

/// The thread is at its end, and jemalloc may have forgotten it.
pub(crate) fn thread_ends() {
    IS_READY.set(false);
}

/// Has jemalloc begin, and take part in forks, if it has not.
pub(crate) fn begin() {
    // (Whatever it says.)
    let _ = read::<usize>(c"arenas.page");
}

/// jemalloc's page: extents are multiples of it.
pub(crate) const PAGE: usize = 4096;

/// `arena_config_t`, which the bindings leave out.
#[repr(C)]
struct ArenaConfig {
    hooks: *mut HookTable,
    /// Whether the arena's own records come through the hooks as well.
    metadata_use_hooks: bool,
}

const fn failed(native: c_int) -> Error {
    Error::native("mallctl", native)
}

/// Reads a value of jemalloc's tree. `T` is what the documentation says of it.
pub(crate) fn read<T: Copy>(name: &CStr) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut size = size_of::<T>();
    // SAFETY: the place is as large as is said; jemalloc refuses another size.
    let code = unsafe { je::mallctl(name.as_ptr(), value.as_mut_ptr().cast(), &raw mut size, null_mut(), 0) };
    if code != 0 || size != size_of::<T>() {
        return Err(failed(code));
    }
    // SAFETY: jemalloc has written all of it.
    Ok(unsafe { value.assume_init() })
}

/// As [`read`], with a number in the middle of the name.
pub(crate) fn read_of<T: Copy>(before: &str, number: u32, after: &str) -> Result<T> {
    let mut name = [0_u8; 64];
    let name = named(&mut name, before, number, after).ok_or(failed(0))?;
    read(name)
}

fn named<'a>(room: &'a mut [u8; 64], before: &str, number: u32, after: &str) -> Option<&'a CStr> {
    use std::io::Write;
    let mut rest = &mut room[..];
    write!(rest, "{before}{number}{after}\0").ok()?;
    CStr::from_bytes_until_nul(room).ok()
}

/// Whether jemalloc is set to write into blocks by itself, as `MALLOC_CONF` can have it.
pub(crate) fn fills_blocks() -> bool {
    let is_on = |name| read::<bool>(name).unwrap_or(false);
    let junk = read::<*const c_char>(c"opt.junk").ok().and_then(NonNullText::new);
    is_on(c"opt.zero") || junk.is_some_and(|junk| junk.0 != c"false")
}

struct NonNullText(&'static CStr);

impl NonNullText {
    fn new(text: *const c_char) -> Option<Self> {
        // SAFETY: options are texts that stay.
        (!text.is_null()).then(|| Self(unsafe { CStr::from_ptr(text) }))
    }
}

/// Returns a spare arena, or creates one, with these hooks.
///
/// # Errors
/// [`Error::TooMany`] past what jemalloc has in one process.
///
/// # Safety
/// The table stays where it is until the arena is destroyed or made spare.
pub(crate) unsafe fn create_arena(hooks: NonNull<HookTable>) -> Result<u32> {
    if let Some(arena) = take_spare() {
        // SAFETY: passed on to the caller; nothing else uses the arena.
        let set = unsafe { set_hooks(arena, hooks.as_ptr()) };
        if set.is_err() {
            SPARE[(arena / u64::BITS) as usize].fetch_or(1 << (arena % u64::BITS), Ordering::AcqRel);
        }
        return set.map(|()| arena);
    }
    let mut config = ArenaConfig { hooks: hooks.as_ptr(), metadata_use_hooks: false };
    let mut arena = 0_u32;
    let mut size = size_of::<u32>();
    // SAFETY: places and sizes are of these types; the hooks stay, as the caller says.
    let code = unsafe {
        je::mallctl(
            c"experimental.arenas_create_ext".as_ptr(),
            (&raw mut arena).cast(),
            &raw mut size,
            (&raw mut config).cast(),
            size_of::<ArenaConfig>(),
        )
    };
    match code {
        0 => Ok(arena),
        _ => Err(NO_ARENA),
    }
}

/// Sets the hooks of an arena.
///
/// # Safety
/// The arena has no extents. The table stays where it is until the arena is destroyed or gets other
/// hooks.
unsafe fn set_hooks(arena: u32, hooks: *mut HookTable) -> Result<()> {
    let mut name = [0_u8; 64];
    let name = named(&mut name, "arena.", arena, ".extent_hooks").ok_or(failed(0))?;
    let mut hooks = hooks;
    let size = size_of::<*mut HookTable>();
    // SAFETY: the place holds a pointer to a table, which stays, as the caller says.
    match unsafe { je::mallctl(name.as_ptr(), null_mut(), null_mut(), (&raw mut hooks).cast(), size) } {
        0 => Ok(()),
        code => Err(failed(code)),
    }
}

/// Arenas without extents, a bit each. A spare arena serves the next pool. jemalloc never unmaps
/// the metadata of a destroyed arena, 2 MiB or more, under its default option `retain`.
///
/// Each change is one atomic operation, so that the set is valid in a child forked at any moment.
static SPARE: [AtomicU64; ARENAS.div_ceil(64)] = [const { AtomicU64::new(0) }; ARENAS.div_ceil(64)];

fn take_spare() -> Option<u32> {
    (0_u32..).zip(&SPARE).find_map(|(index, word)| {
        loop {
            let bit = word.load(Ordering::Relaxed).trailing_zeros();
            if bit == u64::BITS {
                return None;
            }
            if word.fetch_and(!(1 << bit), Ordering::AcqRel) & (1 << bit) != 0 {
                return Some(index * u64::BITS + bit);
            }
        }
    })
}

/// Makes an arena spare: the next [`create_arena`] may return it.
///
/// # Errors
/// [`Error::Native`] if jemalloc refuses; the arena is as it was.
///
/// # Safety
/// The arena has no extents ([`empty_arena`]), and nothing uses it any more.
pub(crate) unsafe fn make_spare(arena: u32) -> Result<()> {
    /// Replaces the hooks of the pool, which are a part of it.
    static NO_HOOKS: HookTable = HookTable {
        alloc: Some(refuse),
        dalloc: None,
        destroy: None,
        commit: None,
        decommit: None,
        purge_lazy: None,
        purge_forced: None,
        split: None,
        merge: None,
    };
    let word = SPARE.get((arena / u64::BITS) as usize).ok_or(failed(0))?;
    // SAFETY: passed on to the caller; a static stays, and jemalloc only reads it.
    unsafe { set_hooks(arena, (&raw const NO_HOOKS).cast_mut()) }?;
    word.fetch_or(1 << (arena % u64::BITS), Ordering::AcqRel);
    Ok(())
}

/// Refuses each allocation from a spare arena.
unsafe extern "C" fn refuse(
    _table: *mut HookTable,
    _new_address: *mut c_void,
    _size: usize,
    _align: usize,
    _zero: *mut bool,
    _commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    null_mut()
}

/// Arenas that there can be, those of jemalloc itself included.
pub(crate) const ARENAS: usize = 4095;

/// There are no more.
pub(crate) const NO_ARENA: Error = Error::TooMany { what: "arenas of jemalloc", limit: ARENAS };

fn command(arena: u32, what: &str) -> Result<()> {
    let mut name = [0_u8; 64];
    let name = named(&mut name, "arena.", arena, what).ok_or(failed(0))?;
    // SAFETY: a command without arguments.
    match unsafe { je::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) } {
        0 => Ok(()),
        code => Err(failed(code)),
    }
}

/// Gives all extents of an arena to its hooks, those of live blocks included. Those that a hook
/// refuses stay the arena's.
///
/// # Safety
/// Nothing uses the arena's blocks any more, and no cache has any of them.
pub(crate) unsafe fn empty_arena(arena: u32) -> Result<()> {
    command(arena, ".reset")?;
    purge_arena(arena)
}

/// Gives all extents of an arena to its hooks, those of live blocks included, and the arena's number to whoever wants one next.
///
/// # Safety
/// Nobody uses the arena or its blocks any more, and no cache has any of them.
pub(crate) unsafe fn destroy_arena(arena: u32) -> Result<()> {
    command(arena, ".destroy")
}

/// Gives all free extents of an arena to its hooks.
pub(crate) fn purge_arena(arena: u32) -> Result<()> {
    command(arena, ".purge")
}

/// A cache for one thread; `None` past 4,093 in one process, or without memory.
pub(crate) fn create_cache() -> Option<u32> {
    read::<u32>(c"tcache.create").ok()
}

/// Gives all blocks of a cache to their arenas.
///
/// # Safety
/// `create_cache` gave it; nobody uses it now or later.
pub(crate) unsafe fn destroy_cache(cache: u32) {
    let mut cache = cache;
    // SAFETY: the place is as large as is said.
    let code = unsafe {
        je::mallctl(
            c"tcache.destroy".as_ptr(),
            null_mut(),
            null_mut(),
            (&raw mut cache).cast(),
            size_of::<u32>(),
        )
    };
    debug_assert_eq!(code, 0);
}

/// The flags of a cache, or of none.
#[inline]
pub(crate) const fn cache_flags(cache: Option<u32>) -> c_int {
    match cache {
        Some(cache) => je::MALLOCX_TCACHE(cache as usize),
        None => je::MALLOCX_TCACHE_NONE,
    }
}

#[inline]
pub(crate) const fn arena_flags(arena: u32) -> c_int {
    je::MALLOCX_ARENA(arena as usize)
}

#[inline]
pub(crate) const fn align_flags(align: usize) -> c_int {
    je::MALLOCX_ALIGN(align)
}

/// Allocates.
///
/// # Safety
/// Arena and cache in `flags` exist, and no other thread uses the cache. `size` is not 0.
#[inline]
pub(crate) unsafe fn allocate(size: usize, flags: c_int) -> Option<NonNull<c_void>> {
    // SAFETY: passed on to the caller.
    NonNull::new(unsafe { je::mallocx(size, flags) })
}

/// Bytes that a block of `size` bytes would have; 0 if there is no such size.
pub(crate) fn usable(size: usize, flags: c_int) -> usize {
    // SAFETY: computes only; the size is not 0.
    unsafe { je::nallocx(size.max(1), flags) }
}

/// Frees.
///
/// # Safety
/// A live block of this usable size, which nobody uses; for the cache in `flags` as in [`allocate`].
#[inline]
pub(crate) unsafe fn free(block: NonNull<c_void>, size: usize, flags: c_int) {
    // SAFETY: passed on to the caller.
    unsafe { je::sdallocx(block.as_ptr(), size, flags) };
}
