//! [`Heap`]: the interface of `libumf_proxy.so` for `libumf.so.1`, if both are loaded into one process.
//!
//! Each library has its own copy of umf, with a tracker, a ledger and caches. The proxy library
//! owns the heap: it finds its blocks, exports them from its ledger, and retires the exports on
//! free. `libumf.so.1` calls it through a table of C functions, which it looks up by a name with a
//! version. Two releases with different versions work independently of each other.

use core::ffi::{CStr, c_char, c_void};

/// The symbol under which the table is exported.
pub const NAME: &CStr = c"umf_proxy_heap_2";

/// The size of a handle in bytes.
pub const HANDLE: usize = 256;

/// Kind of heap: memory of this process only.
pub const PRIVATE: u32 = 0;
/// Kind of heap: a memfd.
pub const SHARED_FD: u32 = 1;
/// Kind of heap: a named memory file, which cannot be sealed.
pub const SHARED_SHM: u32 = 2;

/// Result: success.
pub const OK: i32 = 0;
/// Result: the address lies in no live block of the heap.
pub const NOT_FOUND: i32 = 1;
/// Result: the heap is private, or this process is a forked child that has inherited it.
pub const NOT_SHARED: i32 = 2;
/// Result: a limit of the settings or of the system was reached.
pub const LIMIT: i32 = 3;
/// Result: another error.
pub const FAILED: i32 = 4;

/// A live block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The address of its first byte.
    pub base: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// The settings of exports. Those of the first export apply to all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Exports {
    /// The exchange methods to try, in order: 1 pidfd, 2 procfs, 3 socket, 4 directory. 0 ends the
    /// list; an empty list selects the default.
    pub exchange: [u8; 4],
    /// Not 0: an export beyond the limit is an error.
    pub limit_is_hard: u32,
    /// The process that may ptrace this one in spite of Yama: a pid, -1 for any, 0 for no change.
    pub ptracer: i64,
    /// The limit of the native exports that are cached; 0 is unlimited.
    pub max_created_handles: u64,
    /// The directory of sockets, valid during the call; null if there is none.
    pub directory: *const c_char,
    /// Which importers the sockets answer: 0 those of the same user, 1 also those of the group, 2
    /// also those that prove the handle's key.
    pub allow: u32,
}

/// The table of functions. Any thread may call them at any time. They preserve `errno`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// Returns [`PRIVATE`], [`SHARED_FD`] or [`SHARED_SHM`].
    pub kind: extern "C" fn() -> u32,
    /// Finds the live block that contains an address. Returns [`OK`] or [`NOT_FOUND`].
    pub find: unsafe extern "C" fn(address: *const c_void, block: *mut Block) -> i32,
    /// Exports the live block that contains an address until it is freed, and writes its handle.
    pub export: unsafe extern "C" fn(
        address: *const c_void,
        settings: *const Exports,
        handle: *mut [u8; HANDLE],
        block: *mut Block,
    ) -> i32,
    /// `malloc(3)`.
    pub malloc: extern "C" fn(usize) -> *mut c_void,
    /// `calloc(3)`.
    pub calloc: extern "C" fn(usize, usize) -> *mut c_void,
    /// `realloc(3)`.
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    /// `memalign(3)`.
    pub memalign: extern "C" fn(usize, usize) -> *mut c_void,
    /// `free(3)`.
    pub free: unsafe extern "C" fn(*mut c_void),
    /// `malloc_trim(3)`.
    pub trim: extern "C" fn(usize) -> i32,
}
