//! The part of `libtbbmalloc.so.2` that makes pools of memory of others.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// `rml::MemoryPool`.
pub(super) type Opaque = *mut c_void;

/// `rml::MemPoolPolicy`, version 1.
#[repr(C)]
pub(super) struct Policy {
    pub(super) allocate: unsafe extern "C" fn(id: isize, bytes: *mut usize) -> *mut c_void,
    pub(super) free: unsafe extern "C" fn(id: isize, memory: *mut c_void, bytes: usize) -> c_int,
    pub(super) granularity: usize,
    pub(super) version: c_int,
    /// Bit 0: all memory is given at once. Bit 1: no memory is given back.
    pub(super) flags: c_uint,
}

/// `TBBMALLOC_POOL_VERSION`.
pub(super) const VERSION: c_int = 1;
/// `keepAllMemory`.
pub(super) const KEEP_ALL: c_uint = 1 << 1;

/// What is called of it.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) create: unsafe extern "C" fn(id: isize, policy: *const Policy, pool: *mut Opaque) -> c_int,
    pub(super) destroy: unsafe extern "C" fn(Opaque) -> bool,
    pub(super) malloc: unsafe extern "C" fn(Opaque, usize) -> *mut c_void,
    pub(super) realloc: unsafe extern "C" fn(Opaque, *mut c_void, usize) -> *mut c_void,
    pub(super) aligned_malloc: unsafe extern "C" fn(Opaque, usize, usize) -> *mut c_void,
    pub(super) free: unsafe extern "C" fn(Opaque, *mut c_void) -> bool,
    pub(super) size: unsafe extern "C" fn(Opaque, *mut c_void) -> usize,
}

/// The library stays loaded once it was.
struct Loaded {
    functions: Functions,
    _library: Library,
}

/// Its functions; `None` if it is not installed, or not as expected.
pub(super) fn functions() -> Option<Functions> {
    static LOADED: OnceLock<Option<Loaded>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map(|loaded| loaded.functions)
}

fn load() -> Option<Loaded> {
    // SAFETY: runs the initialisers of oneTBB's allocator, which the program asks for with a scalable pool.
    let library = unsafe { Library::open(Some("libtbbmalloc.so.2"), RTLD_NOW | RTLD_LOCAL) };
    let library = library.inspect_err(|error| tracing::error!("libtbbmalloc.so.2: {error}")).ok()?;
    // SAFETY: the names carry the types of the C++ functions.
    let functions = unsafe {
        Functions {
            create: *library.get(b"_ZN3rml14pool_create_v1ElPKNS_13MemPoolPolicyEPPNS_10MemoryPoolE").ok()?,
            destroy: *library.get(b"_ZN3rml12pool_destroyEPNS_10MemoryPoolE").ok()?,
            malloc: *library.get(b"_ZN3rml11pool_mallocEPNS_10MemoryPoolEm").ok()?,
            realloc: *library.get(b"_ZN3rml12pool_reallocEPNS_10MemoryPoolEPvm").ok()?,
            aligned_malloc: *library.get(b"_ZN3rml19pool_aligned_mallocEPNS_10MemoryPoolEmm").ok()?,
            free: *library.get(b"_ZN3rml9pool_freeEPNS_10MemoryPoolEPv").ok()?,
            size: *library.get(b"_ZN3rml10pool_msizeEPNS_10MemoryPoolEPv").ok()?,
        }
    };
    Some(Loaded { functions, _library: library })
}
