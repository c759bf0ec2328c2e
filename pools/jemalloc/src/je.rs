//! The calls of jemalloc. No other module calls it.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use tikv_jemalloc_sys as je;
use umf_core::{Error, Result};
use umf_sync::Lock;

pub(crate) use je::extent_hooks_t as HookTable;

/// Held by a thread during its first call of jemalloc. If jemalloc keeps thread-local data under a
/// pthread key, that call takes a lock which jemalloc's own fork handlers do not take.
static FIRST_CALL: Lock<()> = Lock::new(());

thread_local! {
    /// Whether the thread has called jemalloc.
    static IS_READY: Cell<bool> = const { Cell::new(false) };
}

/// Prepares the calling thread for jemalloc. Must be called before the thread allocates, frees or
/// runs commands.
pub(crate) fn ensure_ready() {
    #[cold]
    fn first_call() {
        let _first = FIRST_CALL.lock();
        initialise();
        IS_READY.set(true);
    }
    if !IS_READY.get() {
        first_call();
    }
}

/// Notes that the calling thread ends, and that jemalloc may have dropped its data.
pub(crate) fn end_thread() {
    IS_READY.set(false);
}

/// Initialises jemalloc, which then registers its fork handlers.
pub(crate) fn initialise() {
    // Any call initialises it; the value does not matter.
    let _ = read::<usize>(c"arenas.page");
}

/// The page size of jemalloc. Extents are multiples of it.
pub(crate) const PAGE: usize = 4096;

/// `arena_config_t`, which the bindings leave out.
#[repr(C)]
struct ArenaConfig {
    hooks: *mut HookTable,
    /// Whether the metadata of the arena comes through the hooks as well.
    metadata_use_hooks: bool,
}

const fn failed(native: c_int) -> Error {
    Error::native("mallctl", native)
}

/// Reads a value of the `mallctl` tree. `T` is the type that the manual page documents.
pub(crate) fn read<T: Copy>(name: &CStr) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut size = size_of::<T>();
    // SAFETY: `value` has `size` bytes, and jemalloc rejects another size than that of the value.
    let code = unsafe { je::mallctl(name.as_ptr(), value.as_mut_ptr().cast(), &raw mut size, null_mut(), 0) };
    if code != 0 || size != size_of::<T>() {
        return Err(failed(code));
    }
    // SAFETY: jemalloc has written `size` bytes.
    Ok(unsafe { value.assume_init() })
}

/// Reads a value with a number in the middle of its name.
pub(crate) fn read_of<T: Copy>(before: &str, number: u32, after: &str) -> Result<T> {
    let mut name = [0_u8; 64];
    let name = named(&mut name, before, number, after).ok_or(failed(0))?;
    read(name)
}

fn named<'a>(buffer: &'a mut [u8; 64], before: &str, number: u32, after: &str) -> Option<&'a CStr> {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    write!(rest, "{before}{number}{after}\0").ok()?;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// Returns whether the options `junk` or `zero` of `MALLOC_CONF` have jemalloc write into blocks.
pub(crate) fn fills_blocks() -> bool {
    let is_on = |name| read::<bool>(name).unwrap_or(false);
    let junk = read::<*const c_char>(c"opt.junk").ok().and_then(OptionText::new);
    is_on(c"opt.zero") || junk.is_some_and(|junk| junk.0 != c"false")
}

/// The value of a string option of jemalloc.
struct OptionText(&'static CStr);

impl OptionText {
    fn new(text: *const c_char) -> Option<Self> {
        // SAFETY: options are C strings that are never freed.
        (!text.is_null()).then(|| Self(unsafe { CStr::from_ptr(text) }))
    }
}

/// Returns a spare arena, or creates one, with these hooks.
///
/// # Errors
/// [`Error::TooMany`] if jemalloc has no more arenas in this process.
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
    // SAFETY: pointers and sizes match the types, and the hooks stay valid, as the caller says.
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
    // SAFETY: `hooks` is a pointer to a table that stays valid, as the caller says.
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
/// [`Error::Native`] if jemalloc refuses; the arena is unchanged.
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

/// The most arenas of a process, those of jemalloc itself included.
pub(crate) const ARENAS: usize = 4095;

/// The error for more arenas than jemalloc has.
pub(crate) const NO_ARENA: Error = Error::TooMany { what: "arenas of jemalloc", limit: ARENAS };

/// Runs a command on an arena.
fn command(arena: u32, what: &str) -> Result<()> {
    let mut name = [0_u8; 64];
    let name = named(&mut name, "arena.", arena, what).ok_or(failed(0))?;
    // SAFETY: the command has no arguments.
    match unsafe { je::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) } {
        0 => Ok(()),
        code => Err(failed(code)),
    }
}

/// Frees all extents of an arena through its hooks, those of live blocks included. Extents that a
/// hook refuses stay in the arena.
///
/// # Safety
/// Nothing uses the arena's blocks any more, and no cache has any of them.
pub(crate) unsafe fn empty_arena(arena: u32) -> Result<()> {
    command(arena, ".reset")?;
    purge_arena(arena)
}

/// Destroys an arena: frees all its extents through its hooks, those of live blocks included. The
/// next arena to be created may get its number.
///
/// # Safety
/// No thread uses the arena or its blocks any more, and no cache has any of them.
pub(crate) unsafe fn destroy_arena(arena: u32) -> Result<()> {
    command(arena, ".destroy")
}

/// Frees all unused extents of an arena through its hooks.
pub(crate) fn purge_arena(arena: u32) -> Result<()> {
    command(arena, ".purge")
}

/// Creates a cache for one thread; `None` beyond 4,093 caches in one process, or without memory.
pub(crate) fn create_cache() -> Option<u32> {
    read::<u32>(c"tcache.create").ok()
}

/// Flushes the blocks of a cache to their arenas, and destroys it.
///
/// # Safety
/// `create_cache` returned it, and no thread uses it now or later.
pub(crate) unsafe fn destroy_cache(cache: u32) {
    let mut cache = cache;
    // SAFETY: `cache` has the size that is passed.
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

/// Returns the flags that select a cache, or none.
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

/// Allocates a block.
///
/// # Safety
/// The arena and the cache in `flags` exist, and no other thread uses the cache. `size` is not 0.
#[inline]
pub(crate) unsafe fn allocate(size: usize, flags: c_int) -> Option<NonNull<c_void>> {
    // SAFETY: passed on to the caller.
    NonNull::new(unsafe { je::mallocx(size, flags) })
}

/// Returns the bytes that a block for `size` bytes would have; 0 if `size` is too large.
pub(crate) fn usable(size: usize, flags: c_int) -> usize {
    // SAFETY: the call only computes, and the size is not 0.
    unsafe { je::nallocx(size.max(1), flags) }
}

/// Frees a block.
///
/// # Safety
/// `block` is live, has this usable size, and no thread uses it. The cache in `flags` is as in
/// [`allocate`].
#[inline]
pub(crate) unsafe fn free(block: NonNull<c_void>, size: usize, flags: c_int) {
    // SAFETY: passed on to the caller.
    unsafe { je::sdallocx(block.as_ptr(), size, flags) };
}
