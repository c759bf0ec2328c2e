//! [`Heap`]: what `libumf_proxy.so` lets `libumf.so.1` know of its heap, where both are in one process.
//!
//! Each has its own copy of umf, with a tracker, a ledger and caches. What belongs to the heap
//! stays with the library whose heap it is: it finds its blocks, exports them from a ledger of its
//! own, and retires them when they are freed. The other one asks. Between them is a table of C
//! functions under a name with a version: two releases that do not know each other's version go on
//! as if they were alone.

use core::ffi::{CStr, c_void};

/// Under which the table is exported.
pub const NAME: &CStr = c"umf_proxy_heap_1";

/// Bytes of a handle.
pub const HANDLE: usize = 256;

/// The memory is the process's alone.
pub const PRIVATE: u32 = 0;
/// It is a memory file.
pub const SHARED_FD: u32 = 1;
/// It is a memory file with a name, which cannot be sealed.
pub const SHARED_SHM: u32 = 2;

/// It worked.
pub const OK: i32 = 0;
/// The address lies in no live block of the heap.
pub const NOT_FOUND: i32 = 1;
/// The heap's memory is private, or belongs to the parent that this process was forked from.
pub const NOT_SHARED: i32 = 2;
/// A limit of the settings, or of the system.
pub const LIMIT: i32 = 3;
/// Anything else.
pub const FAILED: i32 = 4;

/// A live block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Where it begins.
    pub base: usize,
    /// How many bytes it has.
    pub size: usize,
}

/// How the heap is exported. The first export decides for all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Exports {
    /// Ways for others to get at the memory, in their order: 1 pidfd, 2 procfs, 3 socket. 0 ends
    /// them; none at all is the choice of umf.
    pub exchange: [u8; 4],
    /// A limit is an error when it is reached.
    pub limit_is_hard: u32,
    /// The process that may attach in spite of yama: a pid, -1 for any, 0 for the current setting.
    pub ptracer: i64,
    /// The most native exports that are kept, 0 for no limit.
    pub max_created_handles: u64,
}

/// The table. Its functions may be called by any thread at any time, and keep `errno`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// [`PRIVATE`], [`SHARED_FD`] or [`SHARED_SHM`].
    pub kind: extern "C" fn() -> u32,
    /// The live block around an address: [`OK`] or [`NOT_FOUND`].
    pub find: unsafe extern "C" fn(address: *const c_void, block: *mut Block) -> i32,
    /// Exports the live block around an address until it is freed, and writes its handle.
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
