//! `libumf.so.1` with a pool, opened at run time: the original of release 1.x, or this project's
//! library.
//!
//! The prototypes are those of the original's headers.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::allocators::Allocator;

/// The original's name in the rows.
pub const PEER: &str = "umf (C)";

/// Free slabs per bucket that hold all blocks which the workloads free at a time. With its default
/// capacity, the original unmaps most large blocks.
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
            /// Keeps the functions loaded.
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
    umfCtlGet: unsafe extern "C" fn(*const c_char, Opaque, usize, ...) -> Status,
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
    /// Returns the library's default settings.
    #[must_use]
    pub const fn new(visibility: Visibility) -> Settings {
        Settings { jemalloc: false, visibility, largest_pooled: None, capacity: None }
    }

    /// Returns settings with which the pool keeps all blocks that the workloads of the bench `pool`
    /// free.
    #[must_use]
    pub const fn pooling(visibility: Visibility) -> Settings {
        Settings { largest_pooled: Some(4 << 20), capacity: Some(CAPACITY), ..Settings::new(visibility) }
    }
}

/// An error of a call of the library. Small, so that a success costs nothing.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("libumf.so.1: {call} failed with status {status}")]
pub struct CallError {
    call: &'static str,
    status: Status,
}

#[inline]
fn check(call: &'static str, status: Status) -> std::result::Result<(), CallError> {
    if status == 0 { Ok(()) } else { Err(CallError { call, status }) }
}

/// Returns the pointer of a block. Blocks are addresses with exposed provenance, since pointers are
/// not `Send`.
#[inline]
fn pointer(block: usize) -> Opaque {
    ptr::with_exposed_provenance_mut(block)
}

/// The library with a pool.
pub struct Libumf {
    /// Path of the library.
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
    /// Opens the library and creates a pool. The library's symbols are local, so that two libraries
    /// do not collide.
    ///
    /// # Errors
    /// The file cannot be loaded, or is not a libumf.
    pub fn open(path: &Path, settings: Settings) -> Result<Libumf> {
        // SAFETY: the user passed the path, and so trusts the library's code. Each type is the
        // prototype in the headers.
        let functions =
            unsafe { Library::new(path).map_err(Into::into).and_then(|library| Functions::of(library)) };
        let created = functions.and_then(|functions| Self::with(path, functions, settings));
        created
            .map_err(|error| match error.source() {
                Some(source) => {
                    format!("{}: {source} (its libraries are searched in LD_LIBRARY_PATH)", path.display())
                }
                None => format!("{}: {error}", path.display()),
            })
            .map_err(Into::into)
    }

    fn with(path: &Path, functions: Functions, settings: Settings) -> Result<Libumf> {
        let (none, api) = (ptr::null_mut(), &functions);
        let (mut params, mut provider, mut pool, mut handler) = (none, none, none, none);
        // SAFETY: the calls are in the order that the headers require, with pointers to live
        // locals; jemalloc pools take no settings.
        unsafe {
            check("provider settings", (api.umfOsMemoryProviderParamsCreate)(&raw mut params))?;
            let visibility = settings.visibility as c_uint;
            check("visibility", (api.umfOsMemoryProviderParamsSetVisibility)(params, visibility))?;
            let ops = (api.umfOsMemoryProviderOps)();
            check("provider", (api.umfMemoryProviderCreate)(ops, params, &raw mut provider))?;
            (api.umfOsMemoryProviderParamsDestroy)(params);
            if settings.jemalloc {
                let ops = (api.umfJemallocPoolOps)();
                check("jemalloc pool", (api.umfPoolCreate)(ops, provider, none, 0, &raw mut pool))?;
            } else {
                check("pool settings", (api.umfDisjointPoolParamsCreate)(&raw mut params))?;
                if let Some(size) = settings.largest_pooled {
                    check("largest pooled", (api.umfDisjointPoolParamsSetMaxPoolableSize)(params, size))?;
                }
                if let Some(slabs) = settings.capacity {
                    check("capacity", (api.umfDisjointPoolParamsSetCapacity)(params, slabs))?;
                }
                let ops = (api.umfDisjointPoolOps)();
                check("pool", (api.umfPoolCreate)(ops, provider, params, 0, &raw mut pool))?;
                (api.umfDisjointPoolParamsDestroy)(params);
            }
            check("handler", (api.umfPoolGetIPCHandler)(pool, &raw mut handler))?;
        }
        Ok(Libumf { path: path.to_owned(), pool, handler, provider, functions })
    }

    /// Returns the bytes that the pool has from its provider.
    ///
    /// # Errors
    /// The library returns an error.
    pub fn provided(&self) -> std::result::Result<usize, CallError> {
        let path = c"umf.provider.by_handle.{}.stats.allocated_memory";
        let mut bytes = 0_usize;
        let place = (&raw mut bytes).cast();
        // SAFETY: the path has one wildcard, which stands for the handle; the result goes to a live
        // local of its size.
        let status =
            unsafe { (self.functions.umfCtlGet)(path.as_ptr(), place, size_of::<usize>(), self.provider) };
        check("umfCtlGet", status).map(|()| bytes)
    }

    /// Finds the pool of an address.
    ///
    /// # Errors
    /// The library finds a different pool, or none.
    pub fn find_pool(&self, block: usize) -> std::result::Result<(), CallError> {
        let mut pool = ptr::null_mut();
        // SAFETY: the library looks the address up; the result goes to a live local.
        let status = unsafe { (self.functions.umfPoolByPtr)(pointer(block), &raw mut pool) };
        check("umfPoolByPtr", if pool == self.pool { status } else { -1 })
    }

    /// Exports a block, and releases the handle.
    ///
    /// # Errors
    /// The library returns an error.
    pub fn get_and_put(&self, block: usize) -> std::result::Result<(), CallError> {
        let (mut handle, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the library looks the address up; the handle is released once.
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
    pub fn handle(&self, block: usize) -> std::result::Result<Vec<u8>, CallError> {
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
    pub fn open_and_close(&self, handle: &[u8]) -> std::result::Result<(), CallError> {
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
    type Error = CallError;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<usize, CallError> {
        // SAFETY: the pool is live.
        let pointer = unsafe { (self.functions.umfPoolMalloc)(self.pool, size) };
        if pointer.is_null() {
            return Err(CallError { call: "umfPoolMalloc", status: 0 });
        }
        Ok(pointer.expose_provenance())
    }

    #[inline]
    unsafe fn free(&self, block: usize, _: usize) -> std::result::Result<(), CallError> {
        // SAFETY: the caller's contract; the pool is live.
        check("umfPoolFree", unsafe { (self.functions.umfPoolFree)(self.pool, pointer(block)) })
    }
}

/// The library with `umfFree`, which finds the pool of a block.
pub struct FreeAny<'a>(pub &'a Libumf);

impl Allocator for FreeAny<'_> {
    type Block = usize;
    type Error = CallError;

    #[inline]
    fn allocate(&self, size: usize) -> std::result::Result<usize, CallError> {
        self.0.allocate(size)
    }

    #[inline]
    unsafe fn free(&self, block: usize, _: usize) -> std::result::Result<(), CallError> {
        // SAFETY: the caller's contract.
        check("umfFree", unsafe { (self.0.functions.umfFree)(pointer(block)) })
    }
}
