//! A memory provider for umf as a shared object.
//!
//! Build it, and set its path in `umf.toml` (that of the user, of the system, or of `UMF_TOML`):
//!
//! ```sh
//! cargo build --release --manifest-path examples/plugin/Cargo.toml
//! ```
//!
//! ```toml
//! [provider.mine]
//! kind = "plugin"
//! path = "/opt/mine/libumf_example_plugin.so"
//! params = { name = "mine", limit = 1073741824 }
//!
//! [pool.default]
//! provider = "mine"
//! ```
//!
//! umf passes `params` of `umf.toml` to [`initialize`] as JSON. This plugin has two parameters:
//! `name`, and `limit`, the most bytes that are allocated at a time (0: no limit).
//!
//! The memory is anonymous and private. It has no IPC handles, so those members of the table are
//! NULL. A plugin in C has the same functions, and includes UMF's `umf/memory_provider_ops.h` in
//! place of [`table`].
//!
//! Two rules for a plugin in Rust: no panic may cross a C function, and the table is the only
//! interface, because program and plugin have separate Rust standard libraries.

mod params;
mod table;

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use params::Params;
use table::{Code, Table, code};

/// The state of a provider, which umf passes to every call.
struct Provider {
    name: CString,
    limit: usize,
    live: AtomicUsize,
}

thread_local! {
    /// The errno of this thread's last failure.
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
}

/// The operations, in the layout of UMF 1.2.
static TABLE: Table = Table {
    version: 0x1_0002,
    initialize: Some(initialize),
    finalize: Some(finalize),
    alloc: Some(alloc),
    free: Some(free),
    get_last_native_error: Some(get_last_native_error),
    get_recommended_page_size: Some(get_recommended_page_size),
    get_min_page_size: Some(get_min_page_size),
    get_name: Some(get_name),
    ext_purge_lazy: Some(purge_lazy),
    ext_purge_force: Some(purge_force),
    ext_allocation_merge: None,
    ext_allocation_split: None,
    ext_get_ipc_handle_size: None,
    ext_get_ipc_handle: None,
    ext_put_ipc_handle: None,
    ext_open_ipc_handle: None,
    ext_close_ipc_handle: None,
    ext_ctl: None,
    ext_get_allocation_properties: None,
    ext_get_allocation_properties_size: None,
    get_cache_line_size: Some(get_cache_line_size),
};

/// The entry point of a plugin.
#[unsafe(no_mangle)]
pub extern "C" fn umfPluginProviderOps() -> *const Table {
    &raw const TABLE
}

/// Returns the provider of a state.
///
/// # Safety
/// `state` came from [`initialize`] and was not finalised.
unsafe fn provider<'a>(state: *mut c_void) -> &'a Provider {
    // SAFETY: by this function's contract, `state` is the address of a box from `initialize`.
    unsafe { &*state.cast::<Provider>() }
}

/// Stores errno for [`get_last_native_error`], and returns the result code for it.
fn native_error() -> Code {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    LAST_ERROR.set(errno);
    if errno == libc::ENOMEM { code::OUT_OF_HOST_MEMORY } else { code::PROVIDER_SPECIFIC }
}

unsafe extern "C" fn initialize(params: *const c_void, state: *mut *mut c_void) -> Code {
    let json = if params.is_null() {
        ""
    } else {
        // SAFETY: umf passes NULL or a NUL-terminated string.
        match unsafe { CStr::from_ptr(params.cast()) }.to_str() {
            Ok(json) => json,
            Err(_) => return code::INVALID_ARGUMENT,
        }
    };
    let Some(Params { name, limit }) = Params::parse(json) else { return code::INVALID_ARGUMENT };
    let Ok(name) = CString::new(name) else { return code::INVALID_ARGUMENT };
    let provider = Box::new(Provider { name, limit, live: AtomicUsize::new(0) });
    // SAFETY: umf passes a valid pointer for the result.
    unsafe { state.write(Box::into_raw(provider).cast()) };
    code::SUCCESS
}

unsafe extern "C" fn finalize(state: *mut c_void) -> Code {
    // SAFETY: umf calls this once, and makes no call with this state afterwards.
    drop(unsafe { Box::from_raw(state.cast::<Provider>()) });
    code::SUCCESS
}

unsafe extern "C" fn alloc(state: *mut c_void, size: usize, align: usize, place: *mut *mut c_void) -> Code {
    // SAFETY: umf passes the state from `initialize`.
    let provider = unsafe { provider(state) };
    let fits =
        |live: usize| live.checked_add(size).filter(|&sum| provider.limit == 0 || sum <= provider.limit);
    if provider.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
        return code::OUT_OF_HOST_MEMORY;
    }
    let memory = map(size, align);
    if memory.is_null() {
        let code = native_error();
        provider.live.fetch_sub(size, Ordering::Relaxed);
        return code;
    }
    // SAFETY: umf passes a valid pointer for the result.
    unsafe { place.write(memory) };
    code::SUCCESS
}

unsafe extern "C" fn free(state: *mut c_void, memory: *mut c_void, size: usize) -> Code {
    // SAFETY: the allocation is live, and by UMF's contract it is not in use.
    if unsafe { libc::munmap(memory, size) } != 0 {
        return native_error();
    }
    // SAFETY: umf passes the state from `initialize`.
    unsafe { provider(state) }.live.fetch_sub(size, Ordering::Relaxed);
    code::SUCCESS
}

unsafe extern "C" fn get_last_native_error(
    _: *mut c_void,
    message: *mut *const c_char,
    native: *mut i32,
) -> Code {
    let last = LAST_ERROR.get();
    // SAFETY: umf passes valid pointers for both results. The text of `strerror` stays valid until
    // this thread's next call, as UMF requires.
    unsafe {
        message.write(if last == 0 { null() } else { libc::strerror(last) });
        native.write(last);
    }
    code::SUCCESS
}

unsafe extern "C" fn get_recommended_page_size(_: *mut c_void, _: usize, page: *mut usize) -> Code {
    // SAFETY: umf passes a valid pointer for the result.
    unsafe { page.write(page_size()) };
    code::SUCCESS
}

unsafe extern "C" fn get_min_page_size(_: *mut c_void, _: *const c_void, page: *mut usize) -> Code {
    // SAFETY: umf passes a valid pointer for the result.
    unsafe { page.write(page_size()) };
    code::SUCCESS
}

unsafe extern "C" fn get_name(state: *mut c_void, name: *mut *const c_char) -> Code {
    // With NULL, UMF asks for the default name.
    let text = if state.is_null() {
        params::DEFAULT_NAME.as_ptr()
    } else {
        // SAFETY: umf passes NULL or the state from `initialize`.
        unsafe { provider(state) }.name.as_ptr()
    };
    // SAFETY: umf passes a valid pointer for the result.
    unsafe { name.write(text) };
    code::SUCCESS
}

unsafe extern "C" fn purge_lazy(_: *mut c_void, memory: *mut c_void, size: usize) -> Code {
    // SAFETY: the range has whole pages of a live allocation, whose contents the caller discards.
    if unsafe { libc::madvise(memory, size, libc::MADV_FREE) } == 0 { code::SUCCESS } else { native_error() }
}

unsafe extern "C" fn purge_force(_: *mut c_void, memory: *mut c_void, size: usize) -> Code {
    // SAFETY: as above. Private anonymous memory reads as zero afterwards.
    if unsafe { libc::madvise(memory, size, libc::MADV_DONTNEED) } == 0 {
        code::SUCCESS
    } else {
        native_error()
    }
}

/// Returns the size of a page in bytes.
fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Maps `size` bytes at a multiple of `align`, both multiples of the page size. Returns NULL with
/// errno on failure.
fn map(size: usize, align: usize) -> *mut c_void {
    let extra = align.saturating_sub(page_size());
    let padded = size.saturating_add(extra);
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice changes no existing memory.
    let start = unsafe { libc::mmap(null_mut(), padded, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return null_mut();
    }
    let before = start.addr().next_multiple_of(align.max(1)) - start.addr();
    let base = start.wrapping_byte_add(before);
    for (part, len) in [(start, before), (base.wrapping_byte_add(size), extra - before)] {
        if len > 0 {
            // SAFETY: the part lies in the mapping from above, and is not in use.
            unsafe { libc::munmap(part, len) };
        }
    }
    base
}

unsafe extern "C" fn get_cache_line_size(_: *mut c_void, size: *mut usize) -> Code {
    // SAFETY: umf passes a valid pointer for the result.
    unsafe { size.write(64) };
    code::SUCCESS
}
