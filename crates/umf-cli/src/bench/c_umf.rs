//! `libumf.so.1` with a pool, opened at run time: the C library that this project measures itself by, release 1.x, and this
//! project's own.
//!
//! The prototypes are those of the original's headers.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Its name in the rows.
pub(super) const NAME: &str = "umf (C)";

type Status = c_int;
type Opaque = *mut c_void;

/// How many slabs it keeps per bucket: all that the workloads free at a time. (With its default it unmaps most large blocks.)
pub(super) const CAPACITY: usize = 64;

/// Whom the memory of its pool is for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Memory {
    Private = 1,
    Shared = 2,
}

/// The library's pools that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Disjoint,
    Jemalloc,
}

/// How a pool is made; what is `None` is left to the library.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub kind: Kind,
    pub memory: Memory,
    /// Bytes of the largest block that is pooled.
    pub largest_pooled: Option<usize>,
    /// Slabs that are kept per bucket.
    pub capacity: Option<usize>,
}

impl Settings {
    /// The library's own.
    pub(super) const fn default_over(memory: Memory) -> Settings {
        Settings { kind: Kind::Disjoint, memory, largest_pooled: None, capacity: None }
    }

    /// All that the workloads of `umf bench pool` free is pooled.
    pub(super) const fn pooling(memory: Memory) -> Settings {
        Settings { kind: Kind::Disjoint, memory, largest_pooled: Some(4 << 20), capacity: Some(CAPACITY) }
    }
}

/// A call that the library refused.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("libumf.so.1: {call} failed with status {status}")]
pub(super) struct Refused {
    call: &'static str,
    status: Status,
}

/// `umfCtlGet`: a variable by name, with what stands for `{}` in the name behind its size.
type Read = unsafe extern "C" fn(*const c_char, *mut c_void, usize, ...) -> Status;

/// The library with a pool.
pub(super) struct CUmf {
    pool: Opaque,
    handler: Opaque,
    provider: Opaque,
    malloc: unsafe extern "C" fn(Opaque, usize) -> Opaque,
    free: unsafe extern "C" fn(Opaque) -> Status,
    free_in_pool: unsafe extern "C" fn(Opaque, Opaque) -> Status,
    by_pointer: unsafe extern "C" fn(*const c_void, *mut Opaque) -> Status,
    read: Read,
    get: unsafe extern "C" fn(*const c_void, *mut Opaque, *mut usize) -> Status,
    put: unsafe extern "C" fn(Opaque) -> Status,
    open: unsafe extern "C" fn(Opaque, Opaque, *mut Opaque) -> Status,
    close: unsafe extern "C" fn(Opaque) -> Status,
    destroy_pool: unsafe extern "C" fn(Opaque) -> Status,
    destroy_provider: unsafe extern "C" fn(Opaque) -> Status,
    /// Keeps the functions in memory.
    _library: Library,
}

// SAFETY: the library's functions may be called from several threads at once; the handles are plain pointers.
unsafe impl Send for CUmf {}
// SAFETY: as above.
unsafe impl Sync for CUmf {}

impl CUmf {
    /// Opens the library, which `option` named, and makes a pool.
    ///
    /// # Errors
    /// It cannot be loaded, or does not do that.
    pub(super) fn open(option: &str, path: &Path, settings: Settings) -> Result<CUmf, Failure> {
        let wrong =
            |error: &dyn std::fmt::Display| Failure::Told(format!("{option} {}: {error}", path.display()));
        // SAFETY: whoever names a library trusts its code to run. Its symbols are seen by nobody else (RTLD_LOCAL).
        let library =
            unsafe { Library::new(path) }.map_err(|error| match std::error::Error::source(&error) {
                Some(source) => wrong(&format!("{source} (what it needs is searched in LD_LIBRARY_PATH)")),
                None => wrong(&error),
            })?;
        // SAFETY: each type is the prototype in the headers of release 1.x of the library; the calls are in the order
        // that they ask for, with pointers to live locals.
        unsafe { Self::make(library, settings) }.map_err(|error| wrong(&error))
    }

    /// # Safety
    /// `library` is a libumf of release 1.x.
    unsafe fn make(library: Library, wanted: Settings) -> Result<CUmf, String> {
        type Ops = unsafe extern "C" fn() -> *const c_void;
        type Create = unsafe extern "C" fn(*mut Opaque) -> Status;
        type SetVisibility = unsafe extern "C" fn(Opaque, c_uint) -> Status;
        type SetSize = unsafe extern "C" fn(Opaque, usize) -> Status;
        type CreateProvider = unsafe extern "C" fn(*const c_void, *const c_void, *mut Opaque) -> Status;
        type CreatePool =
            unsafe extern "C" fn(*const c_void, Opaque, *const c_void, c_uint, *mut Opaque) -> Status;
        type Handler = unsafe extern "C" fn(Opaque, *mut Opaque) -> Status;

        let mut settings = ptr::null_mut();
        let mut provider = ptr::null_mut();
        let mut pool = ptr::null_mut();
        let mut handler = ptr::null_mut();
        // SAFETY: the caller's contract; the pointers are to live locals.
        unsafe {
            check(
                "provider settings",
                function::<Create>(&library, "umfOsMemoryProviderParamsCreate")?(&raw mut settings),
            )?;
            let set = function::<SetVisibility>(&library, "umfOsMemoryProviderParamsSetVisibility")?;
            check("visibility", set(settings, wanted.memory as c_uint))?;
            let ops = function::<Ops>(&library, "umfOsMemoryProviderOps")?();
            let create = function::<CreateProvider>(&library, "umfMemoryProviderCreate")?;
            check("provider", create(ops, settings, &raw mut provider))?;
            let (create_settings, ops) = match wanted.kind {
                Kind::Disjoint => ("umfDisjointPoolParamsCreate", "umfDisjointPoolOps"),
                Kind::Jemalloc => ("umfJemallocPoolParamsCreate", "umfJemallocPoolOps"),
            };
            check("pool settings", function::<Create>(&library, create_settings)?(&raw mut settings))?;
            if let Some(size) = wanted.largest_pooled {
                let set = function::<SetSize>(&library, "umfDisjointPoolParamsSetMaxPoolableSize")?;
                check("largest pooled", set(settings, size))?;
            }
            if let Some(slabs) = wanted.capacity {
                let set = function::<SetSize>(&library, "umfDisjointPoolParamsSetCapacity")?;
                check("capacity", set(settings, slabs))?;
            }
            let ops = function::<Ops>(&library, ops)?();
            let create = function::<CreatePool>(&library, "umfPoolCreate")?;
            check("pool", create(ops, provider, settings, 0, &raw mut pool))?;
            check("handler", function::<Handler>(&library, "umfPoolGetIPCHandler")?(pool, &raw mut handler))?;
        }
        // SAFETY: as above.
        unsafe {
            Ok(CUmf {
                pool,
                handler,
                provider,
                malloc: function(&library, "umfPoolMalloc")?,
                free: function(&library, "umfFree")?,
                free_in_pool: function(&library, "umfPoolFree")?,
                by_pointer: function(&library, "umfPoolByPtr")?,
                read: function(&library, "umfCtlGet")?,
                get: function(&library, "umfGetIPCHandle")?,
                put: function(&library, "umfPutIPCHandle")?,
                open: function(&library, "umfOpenIPCHandle")?,
                close: function(&library, "umfCloseIPCHandle")?,
                destroy_pool: function(&library, "umfPoolDestroy")?,
                destroy_provider: function(&library, "umfMemoryProviderDestroy")?,
                _library: library,
            })
        }
    }

    /// A block of its pool.
    pub(super) fn allocate(&self, size: usize) -> Result<*mut c_void, Refused> {
        // SAFETY: the pool is live.
        let pointer = unsafe { (self.malloc)(self.pool, size) };
        if pointer.is_null() { Err(Refused { call: "umfPoolMalloc", status: 0 }) } else { Ok(pointer) }
    }

    /// Frees a block, of whatever pool.
    ///
    /// # Safety
    /// The block came from [`CUmf::allocate`] and is not used any more.
    pub(super) unsafe fn free(&self, pointer: *mut c_void) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        told("umfFree", unsafe { (self.free)(pointer) })
    }

    /// Frees a block of which the caller knows the pool.
    ///
    /// # Safety
    /// As [`CUmf::free`].
    pub(super) unsafe fn free_in_pool(&self, pointer: *mut c_void) -> Result<(), Refused> {
        // SAFETY: the caller's contract; the pool is live.
        told("umfPoolFree", unsafe { (self.free_in_pool)(self.pool, pointer) })
    }

    /// Finds the pool of an address.
    pub(super) fn find_pool(&self, pointer: *const c_void) -> Result<(), Refused> {
        let mut pool = ptr::null_mut();
        // SAFETY: the library looks the address up; the result goes to a live local.
        let status = unsafe { (self.by_pointer)(pointer, &raw mut pool) };
        let call = "umfPoolByPtr";
        if status == 0 && pool != self.pool { Err(Refused { call, status: -1 }) } else { told(call, status) }
    }

    /// Bytes that the pool has from its provider, as the provider counts them.
    pub(super) fn provider_bytes(&self) -> Option<u64> {
        let name = c"umf.provider.by_handle.{}.stats.allocated_memory";
        let mut bytes = 0_usize;
        // SAFETY: the name asks for one value, the provider's handle, and yields a `size_t` into a live local.
        let status =
            unsafe { (self.read)(name.as_ptr(), (&raw mut bytes).cast(), size_of::<usize>(), self.provider) };
        (status == 0).then_some(bytes as u64)
    }

    /// Exports a block and gives the export back.
    pub(super) fn get_and_put(&self, pointer: *mut c_void) -> Result<(), Refused> {
        let (mut handle, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the library looks the address up before it uses it; the handle is given back once.
        unsafe {
            told("umfGetIPCHandle", (self.get)(pointer, &raw mut handle, &raw mut size))?;
            told("umfPutIPCHandle", (self.put)(handle))
        }
    }

    /// The bytes of a block's handle.
    pub(super) fn handle(&self, pointer: *mut c_void) -> Result<Vec<u8>, Refused> {
        let (mut handle, mut size) = (ptr::null_mut(), 0);
        // SAFETY: as in `get_and_put`; the library says how many bytes the handle has. It is never given back, so the
        // export stays.
        unsafe {
            told("umfGetIPCHandle", (self.get)(pointer, &raw mut handle, &raw mut size))?;
            Ok(std::slice::from_raw_parts(handle.cast::<u8>(), size).to_vec())
        }
    }

    /// Opens another process's handle and closes it.
    pub(super) fn open_and_close(&self, handle: &[u8]) -> Result<(), Refused> {
        let mut pointer = ptr::null_mut();
        // SAFETY: the bytes are a handle that `handle` made in another process; the library does not write to them.
        unsafe {
            let handle = handle.as_ptr().cast_mut().cast();
            told("umfOpenIPCHandle", (self.open)(self.handler, handle, &raw mut pointer))?;
            told("umfCloseIPCHandle", (self.close)(pointer))
        }
    }
}

impl Drop for CUmf {
    fn drop(&mut self) {
        // SAFETY: both were made by `make`, and nobody uses them, or what came from them, any more.
        unsafe {
            (self.destroy_pool)(self.pool);
            (self.destroy_provider)(self.provider);
        }
    }
}

/// # Safety
/// `F` is the type of the function of this name.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's contract.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
}

fn check(call: &'static str, status: Status) -> Result<(), String> {
    told(call, status).map_err(|refused| refused.to_string())
}

#[inline]
fn told(call: &'static str, status: Status) -> Result<(), Refused> {
    if status == 0 { Ok(()) } else { Err(Refused { call, status }) }
}
