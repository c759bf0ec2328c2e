//! tcmalloc, opened at run time: nothing has to be built for it.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

use super::allocator::Allocator;

/// As Debian's package `libtcmalloc-minimal4` and others call it.
const LIBRARY: &str = "libtcmalloc_minimal.so.4";

/// The library's functions.
pub(super) struct TcMalloc {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    property: unsafe extern "C" fn(*const c_char, *mut usize) -> c_int,
    /// Keeps them in memory.
    _library: Library,
}

impl TcMalloc {
    /// Opens the library where it is installed.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn open() -> Result<TcMalloc, String> {
        // SAFETY: the library does nothing at its loading but set itself up; it is never unloaded while in use.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|_| {
            format!("no {LIBRARY} here (apt-get install libtcmalloc-minimal4): tcmalloc is not measured")
        })?;
        let missing = |error: libloading::Error| format!("{LIBRARY}: {error}: tcmalloc is not measured");
        // SAFETY: the types are those of gperftools/tcmalloc.h and malloc_extension_c.h.
        unsafe {
            Ok(TcMalloc {
                malloc: *library.get(b"tc_malloc").map_err(missing)?,
                free: *library.get(b"tc_free").map_err(missing)?,
                property: *library.get(b"MallocExtension_GetNumericProperty").map_err(missing)?,
                _library: library,
            })
        }
    }

    fn property(&self, name: &std::ffi::CStr) -> Option<u64> {
        let mut value = 0;
        // SAFETY: the name ends with zero, and the pointer is to a live local.
        (unsafe { (self.property)(name.as_ptr(), &raw mut value) } != 0).then_some(value as u64)
    }
}

impl Allocator for TcMalloc {
    /// An address with its provenance exposed: pointers do not go from thread to thread.
    type Block = usize;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> Result<usize, &'static str> {
        // SAFETY: it has no conditions.
        let pointer = unsafe { (self.malloc)(size) };
        if pointer.is_null() { Err("out of memory") } else { Ok(pointer.expose_provenance()) }
    }

    #[inline]
    unsafe fn free(&self, block: usize, _size: usize) -> Result<(), &'static str> {
        // SAFETY: the caller's contract.
        unsafe { (self.free)(std::ptr::with_exposed_provenance_mut(block)) };
        Ok(())
    }

    fn pointer(&self, block: usize) -> Option<*mut u8> {
        Some(std::ptr::with_exposed_provenance_mut(block))
    }

    /// Its heap, without what it has given back.
    fn reserved(&self) -> Option<u64> {
        let heap = self.property(c"generic.heap_size")?;
        Some(heap.saturating_sub(self.property(c"tcmalloc.pageheap_unmapped_bytes")?))
    }
}
