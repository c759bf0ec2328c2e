//! `libumf.so.1` with a pool, opened at run time: the original of release 1.x, and this project's
//! own.
//!
//! The prototypes are those of the original's headers.

use std::ffi::{c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::allocators::Allocator;

/// The original's name in the rows.
pub const PEER: &str = "umf (C)";

/// Slabs kept per bucket that hold all blocks which the workloads free at a time. With its default,
/// the original unmaps most large blocks.
pub const CAPACITY: usize = 64;

type Status = c_int;
type Opaque = *mut c_void;
type Create = unsafe extern "C" fn(*mut Opaque) -> Status;
type Destroy = unsafe extern "C" fn(Opaque) -> Status;
type SetSize = unsafe extern "C" fn(Opaque, usize) -> Status;
type Ops = unsafe extern "C" fn() -> *const c_void;

/// Declares the functions that are taken from the library.
macro_rules! functions {
    ($($name:ident: $function:ty,)*) => {
        #[allow(non_snake_case, reason = "the names of the library")]
        struct Functions {
            $($name: $function,)*
            /// Keeps the functions in memory.
            _library: Library,
        }

        impl Functions {
            /// # Safety
            /// `library` is a libumf of release 1.x, whose functions have these types.
            unsafe fn of(library: Library) -> Result<Functions> {
                // SAFETY: the caller's contract.
                unsafe {
                    Ok(Functions {
                        $($name: *library.get::<$function>(stringify!($name).as_bytes())?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    umfOsMemoryProviderParamsCreate: Create,
    umfOsMemoryProviderParamsSetVisibility: unsafe extern "C" fn(Opaque, c_uint) -> Status,
    umfOsMemoryProviderParamsDestroy: Destroy,
    umfOsMemoryProviderOps: Ops,
    umfMemoryProviderCreate: unsafe extern "C" fn(*const c_void, *const c_void, *mut Opaque) -> Status,
    umfMemoryProviderDestroy: Destroy,
    umfDisjointPoolParamsCreate: Create,
    umfDisjointPoolParamsSetMaxPoolableSize: SetSize,
    umfDisjointPoolParamsSetCapacity: SetSize,
    umfDisjointPoolParamsDestroy: Destroy,
    umfDisjointPoolOps: Ops,
    umfJemallocPoolOps: Ops,
    umfPoolCreate:
        unsafe extern "C" fn(*const c_void, Opaque, *const c_void, c_uint, *mut Opaque) -> Status,
    umfPoolDestroy: Destroy,
    umfPoolGetIPCHandler: unsafe extern "C" fn(Opaque, *mut Opaque) -> Status,
    umfPoolMalloc: unsafe extern "C" fn(Opaque, usize) -> Opaque,
    umfPoolFree: unsafe extern "C" fn(Opaque, Opaque) -> Status,
    umfFree: unsafe extern "C" fn(Opaque) -> Status,
    umfPoolByPtr: unsafe extern "C" fn(*const c_void, *mut Opaque) -> Status,
    umfGetIPCHandle: unsafe extern "C" fn(*const c_void, *mut Opaque, *mut usize) -> Status,
    umfPutIPCHandle: unsafe extern "C" fn(Opaque) -> Status,
    umfOpenIPCHandle: unsafe extern "C" fn(Opaque, Opaque, *mut Opaque) -> Status,
    umfCloseIPCHandle: unsafe extern "C" fn(Opaque) -> Status,
}

/// Visibility of a pool's memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Visibility {
    /// For this process.
    Private = 1,
    /// For other processes too.
    Shared = 2,
}

/// The settings of a pool.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Whether to create a jemalloc pool instead of a disjoint one.
    pub jemalloc: bool,
    /// Visibility of the memory.
    pub visibility: Visibility,
    /// Bytes of the largest block that is pooled; the library's default if `None`.
    pub largest_pooled: Option<usize>,
    /// Free slabs kept per bucket; the library's default if `None`.
    pub capacity: Option<usize>,
}

impl Settings {
    /// Returns the library's own settings.
    #[must_use]
    pub const fn new(visibility: Visibility) -> Settings {
        Settings { jemalloc: false, visibility, largest_pooled: None, capacity: None }
    }

    /// Returns settings that pool everything which the workloads of the bench `pool` free.
    #[must_use]
    pub const fn pooling(visibility: Visibility) -> Settings {
        Settings { largest_pooled: Some(4 << 20), capacity: Some(CAPACITY), ..Settings::new(visibility) }
    }
}

/// An error of a call of the library. Small, so that a success costs nothing.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("libumf.so.1: {call} failed with status {status}")]
pub struct Refused {
    call: &'static str,
    status: Status,
}

#[inline]
fn check(call: &'static str, status: Status) -> std::result::Result<(), Refused> {
    if status == 0 { Ok(()) } else { Err(Refused { call, status }) }
}

/// Returns the pointer of a block: blocks are addresses with their provenance exposed, since
/// pointers are not `Send`.
#[inline]
fn pointer(block: usize) -> Opaque {
    ptr::with_exposed_provenance_mut(block)
}

/// The library with a pool.
pub struct Libumf {
    /// Where the library is.
    pub path: PathBuf,
    pool: Opaque,
    handler: Opaque,
    provider: Opaque,
    functions: Functions,
}

// SAFETY: the library's functions may be called from several threads; the handles are plain
// pointers.
unsafe impl Send for Libumf {}
// SAFETY: as above.
unsafe impl Sync for Libumf {}

impl Libumf {
    /// Opens the library and makes a pool. Other libraries do not see its symbols.
    ///
    /// # Errors
    /// The file cannot be loaded, or is no libumf.
    pub fn open(path: &Path, settings: Settings) -> Result<Libumf> {
        // SAFETY: the user passed the path, and so trusts the library's code. Each type is the
        // prototype in the headers.
        let functions = unsafe { Library::new(path).map_err(Into::into).and_then(|it| Functions::of(it)) };
        let made = functions.and_then(|functions| Self::with(path, functions, settings));
        made.map_err(|error| match error.source() {
            Some(source) => {
                format!("{}: {source} (its libraries are searched in LD_LIBRARY_PATH)", path.display())
            }
            None => format!("{}: {error}", path.display()),
        })
        .map_err(Into::into)
    }

    fn with(path: &Path, functions: Functions, settings: Settings) -> Result<Libumf> {
        let (none, it) = (ptr::null_mut(), &functions);
        let (mut params, mut provider, mut pool, mut handler) = (none, none, none, none);
        // SAFETY: the calls are in the order that the headers ask for, with pointers to live
        // locals; jemalloc pools take no settings.
        unsafe {
            check("provider settings", (it.umfOsMemoryProviderParamsCreate)(&raw mut params))?;
            let visibility = settings.visibility as c_uint;
            check("visibility", (it.umfOsMemoryProviderParamsSetVisibility)(params, visibility))?;
            let ops = (it.umfOsMemoryProviderOps)();
            check("provider", (it.umfMemoryProviderCreate)(ops, params, &raw mut provider))?;
            (it.umfOsMemoryProviderParamsDestroy)(params);
            if settings.jemalloc {
                let ops = (it.umfJemallocPoolOps)();
                check("jemalloc pool", (it.umfPoolCreate)(ops, provider, none, 0, &raw mut pool))?;
            } else {
                check("pool settings", (it.umfDisjointPoolParamsCreate)(&raw mut params))?;
                if let Some(size) = settings.largest_pooled {
                    check("largest pooled", (it.umfDisjointPoolParamsSetMaxPoolableSize)(params, size))?;
                }
                if let Some(slabs) = settings.capacity {
                    check("capacity", (it.umfDisjointPoolParamsSetCapacity)(params, slabs))?;
                }
                let ops = (it.umfDisjointPoolOps)();
                check("pool", (it.umfPoolCreate)(ops, provider, params, 0, &raw mut pool))?;
                (it.umfDisjointPoolParamsDestroy)(params);
            }
            check("handler", (it.umfPoolGetIPCHandler)(pool, &raw mut handler))?;
        }
        Ok(Libumf { path: path.to_owned(), pool, handler, provider, functions })
    }

    /// Finds the pool of an address.
    ///
    /// # Errors
    /// The library finds a different pool, or none.
    pub fn find_pool(&self, block: usize) -> std::result::Result<(), Refused> {
        let mut pool = ptr::null_mut();
        // SAFETY: the library looks the address up; the result goes to a live local.
        let status = unsafe { (self.functions.umfPoolByPtr)(pointer(block), &raw mut pool) };
        check("umfPoolByPtr", if pool == self.pool { status } else { -1 })
    }

    /// Exports a block, and releases the handle.
    ///
    /// # Errors
    /// The library returns an error.
    pub fn get_and_put(&self, block: usize) -> std::result::Result<(), Refused> {
        let (mut handle, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the library looks the address up; the handle is given back once.
        unsafe {
            check(
                "umfGetIPCHandle",
                (self.functions.umfGetIPCHandle)(pointer(block), &raw mut handle, &raw mut size),
            )?;
            check("umfPutIPCHandle", (self.functions.umfPutIPCHandle)(handle))
        }
    }

    /// Exports a block for the rest of the process's life, and returns the bytes of its handle.
    ///
    /// # Errors
    /// The library returns an error.
    pub fn handle(&self, block: usize) -> std::result::Result<Vec<u8>, Refused> {
        let (mut handle, mut size) = (ptr::null_mut(), 0);
        // SAFETY: as in `get_and_put`; the handle has `size` bytes.
        unsafe {
            check(
                "umfGetIPCHandle",
                (self.functions.umfGetIPCHandle)(pointer(block), &raw mut handle, &raw mut size),
            )?;
            Ok(std::slice::from_raw_parts(handle.cast::<u8>(), size).to_vec())
        }
    }

    /// Opens a handle of another process and closes it.
    ///
    /// # Errors
    /// The library returns an error.
    pub fn open_and_close(&self, handle: &[u8]) -> std::result::Result<(), Refused> {
        let mut pointer = ptr::null_mut();
        let handle = handle.as_ptr().cast_mut().cast();
        // SAFETY: the bytes are a handle that `handle` made in another process; the library does
        // not write to them.
        unsafe {
            check(
                "umfOpenIPCHandle",
                (self.functions.umfOpenIPCHandle)(self.handler, handle, &raw mut pointer),
            )?;
            check("umfCloseIPCHandle", (self.functions.umfCloseIPCHandle)(pointer))
        }
    }
}

impl Drop for Libumf {
    fn drop(&mut self) {
        // SAFETY: both were created by `with`, and dropping has exclusive access.
        unsafe {
            (self.functions.umfPoolDestroy)(self.pool);
            (self.functions.umfMemoryProviderDestroy)(self.provider);
        }
    }
}

impl Allocator for Libumf {
    type Block = usize;
    type Error = Refused;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<usize, Refused> {
        // SAFETY: the pool is live.
        let pointer = unsafe { (self.functions.umfPoolMalloc)(self.pool, size) };
        if pointer.is_null() {
            return Err(Refused { call: "umfPoolMalloc", status: 0 });
        }
        Ok(pointer.expose_provenance())
    }

    #[inline]
    unsafe fn free(&self, block: usize, _: usize) -> std::result::Result<(), Refused> {
        // SAFETY: the caller's contract; the pool is live.
        check("umfPoolFree", unsafe { (self.functions.umfPoolFree)(self.pool, pointer(block)) })
    }
}

/// The library, where frees do not name the pool.
pub struct FreeAny<'a>(pub &'a Libumf);

impl Allocator for FreeAny<'_> {
    type Block = usize;
    type Error = Refused;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<usize, Refused> {
        self.0.allocate(size)
    }

    #[inline]
    unsafe fn free(&self, block: usize, _: usize) -> std::result::Result<(), Refused> {
        // SAFETY: the caller's contract.
        check("umfFree", unsafe { (self.0.functions.umfFree)(pointer(block)) })
    }
}
