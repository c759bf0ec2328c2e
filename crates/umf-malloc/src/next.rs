//! The allocator that the program would have had without this library.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that has one of that name.
struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn find(&self) -> bool {
        // SAFETY: a C string; the handle asks for what comes after this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        !found.is_null()
    }
}

static MALLOC: Function = Function::new(c"malloc");
static CALLOC: Function = Function::new(c"calloc");
static REALLOC: Function = Function::new(c"realloc");
static FREE: Function = Function::new(c"free");
static MEMALIGN: Function = Function::new(c"memalign");
static USABLE_SIZE: Function = Function::new(c"malloc_usable_size");

/// Another allocator, all of whose functions were found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next(());

/// What makes a function of an address that [`Function::find`] found.
macro_rules! call {
    ($function:ident as $kind:ty, $($argument:expr),*) => {{
        let found = $function.found.load(Ordering::Acquire);
        // SAFETY: a `Next` exists, so it was found; every C library declares it so.
        let function = unsafe { core::mem::transmute::<*mut c_void, $kind>(found) };
        // SAFETY: passed on to the caller of the method.
        unsafe { function($($argument),*) }
    }};
}

impl Next {
    /// Looks for it, and allocates a block once. The calling thread is busy: finding a function may allocate.
    ///
    /// The first `malloc` of glibc sets its heap up without a lock, and `fork` takes none before that. glibc counts on
    /// the first allocation being made before there are threads, which does not hold for an allocator that serves some
    /// sizes only: a fork in that moment gave the child a heap that was set up in half.
    pub(crate) fn find() -> Option<Self> {
        let functions = [&MALLOC, &CALLOC, &REALLOC, &FREE, &MEMALIGN, &USABLE_SIZE];
        if !functions.iter().all(|function| function.find()) {
            return None;
        }
        let next = Self(());
        let block = next.allocate(1, 1);
        // SAFETY: its own block, or null.
        unsafe { next.free(block) };
        Some(next)
    }

    /// What [`Next::find`] found before.
    pub(crate) fn known() -> Option<Self> {
        (!USABLE_SIZE.found.load(Ordering::Acquire).is_null()).then_some(Self(()))
    }

    pub(crate) fn allocate(self, size: usize, align: usize) -> *mut c_void {
        if align <= super::ALIGN {
            call!(MALLOC as unsafe extern "C" fn(usize) -> *mut c_void, size)
        } else {
            call!(MEMALIGN as unsafe extern "C" fn(usize, usize) -> *mut c_void, align, size)
        }
    }

    pub(crate) fn allocate_zeroed(self, size: usize) -> *mut c_void {
        call!(CALLOC as unsafe extern "C" fn(usize, usize) -> *mut c_void, 1, size)
    }

    /// # Safety
    /// As `realloc`: it is a block of this allocator.
    pub(crate) unsafe fn reallocate(self, block: *mut c_void, size: usize) -> *mut c_void {
        call!(REALLOC as unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void, block, size)
    }

    /// # Safety
    /// As `free`: it is a block of this allocator.
    pub(crate) unsafe fn free(self, block: *mut c_void) {
        call!(FREE as unsafe extern "C" fn(*mut c_void), block);
    }

    /// # Safety
    /// It is a block of this allocator.
    pub(crate) unsafe fn usable_size(self, block: *mut c_void) -> usize {
        call!(USABLE_SIZE as unsafe extern "C" fn(*mut c_void) -> usize, block)
    }
}
