//! [`NextAllocator`]: the allocator that follows this library in symbol order, usually that of the
//! C library.
//!
//! It serves requests below `size.threshold`, and all requests if no pool can be created.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function, as `dlsym(RTLD_NEXT)` finds it.
struct NextFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl NextFunction {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn find(&self) -> bool {
        // SAFETY: the name is a C string, and the handle is a constant of `dlsym`.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        !found.is_null()
    }
}

static MALLOC: NextFunction = NextFunction::new(c"malloc");
static CALLOC: NextFunction = NextFunction::new(c"calloc");
static REALLOC: NextFunction = NextFunction::new(c"realloc");
static FREE: NextFunction = NextFunction::new(c"free");
static MEMALIGN: NextFunction = NextFunction::new(c"memalign");
static USABLE_SIZE: NextFunction = NextFunction::new(c"malloc_usable_size");

/// The next allocator. A value exists only once all its functions were found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextAllocator(());

/// Calls a function that [`NextFunction::find`] found.
macro_rules! call {
    ($function:ident as $kind:ty, $($argument:expr),*) => {{
        let found = $function.found.load(Ordering::Acquire);
        // SAFETY: a `NextAllocator` exists, so the function was found, and C declares it with this
        // type.
        let function = unsafe { core::mem::transmute::<*mut c_void, $kind>(found) };
        // SAFETY: passed on to the caller of the method.
        unsafe { function($($argument),*) }
    }};
}

impl NextAllocator {
    /// Looks up the functions, then allocates and frees one block. The calling thread has a
    /// [`ReentrancyGuard`](crate::reentrancy::ReentrancyGuard), since `dlsym` may allocate.
    ///
    /// The first `malloc` of glibc initialises its heap without a lock, and `fork` before that
    /// takes none. glibc relies on an allocation before the first thread. An allocator that serves
    /// some sizes only may get its first request later: a fork at that moment gave the child a heap
    /// that was half initialised.
    pub(crate) fn find() -> Option<Self> {
        let functions = [&MALLOC, &CALLOC, &REALLOC, &FREE, &MEMALIGN, &USABLE_SIZE];
        if !functions.iter().all(|function| function.find()) {
            return None;
        }
        let next = Self(());
        let block = next.allocate(1, 1);
        // SAFETY: the block is one of this allocator, or null.
        unsafe { next.free(block) };
        Some(next)
    }

    /// Returns the allocator if [`NextAllocator::find`] has found it.
    pub(crate) fn get() -> Option<Self> {
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
    /// As `realloc`, and `block` is one of this allocator.
    pub(crate) unsafe fn reallocate(self, block: *mut c_void, size: usize) -> *mut c_void {
        call!(REALLOC as unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void, block, size)
    }

    /// # Safety
    /// As `free`, and `block` is one of this allocator.
    pub(crate) unsafe fn free(self, block: *mut c_void) {
        call!(FREE as unsafe extern "C" fn(*mut c_void), block);
    }

    /// # Safety
    /// `block` is one of this allocator.
    pub(crate) unsafe fn usable_size(self, block: *mut c_void) -> usize {
        call!(USABLE_SIZE as unsafe extern "C" fn(*mut c_void) -> usize, block)
    }
}
