//! A memory provider for umf as a shared object.
//!
//! Build it and say in `umf.toml` (the user's, the system's, or the one that `UMF_TOML` names)
//! where it is:
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
//! `umf.toml`'s `params` arrive in [`initialize`] as JSON. This plugin knows two: `name`, and
//! `limit`, the bytes that may be allocated at a time (0: no limit).
//!
//! The memory is anonymous and private. It has no IPC handles, so those members of the table are
//! NULL; what a plugin cannot do it leaves out. A plugin in C looks the same, and includes UMF's
//! `umf/memory_provider_ops.h` for what [`table`] spells out here.
//!
//! Two rules for what is written in Rust: nothing may panic through a C function, and no state may
//! be shared with the program but through the table, since both have a Rust library of their own.

mod memory;
mod params;
mod table;

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering};

use params::Params;
use table::{Code, Table, code};

/// What the program hands back in every call.
struct Provider {
    name: CString,
    limit: usize,
    live: AtomicUsize,
}

thread_local! {
    /// The errno of this thread's last failure.
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
}

/// UMF's version 1.2.
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

/// The one symbol of a plugin.
#[unsafe(no_mangle)]
pub extern "C" fn umfPluginProviderOps() -> *const Table {
    &raw const TABLE
}

/// # Safety
/// `state` came from [`initialize`] and was not finalised.
unsafe fn provider<'a>(state: *mut c_void) -> &'a Provider {
    // SAFETY: passed on to the caller; `initialize` made it of a box.
    unsafe { &*state.cast::<Provider>() }
}

/// Keeps errno for [`get_last_native_error`]; being out of memory has a result of its own.
fn native_error() -> Code {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    LAST_ERROR.set(errno);
    if errno == libc::ENOMEM { code::OUT_OF_HOST_MEMORY } else { code::PROVIDER_SPECIFIC }
}

unsafe extern "C" fn initialize(params: *const c_void, state: *mut *mut c_void) -> Code {
    let json = if params.is_null() {
        ""
    } else {
        // SAFETY: umf passes NULL or a text that ends with a NUL.
        match unsafe { CStr::from_ptr(params.cast()) }.to_str() {
            Ok(json) => json,
            Err(_) => return code::INVALID_ARGUMENT,
        }
    };
    let Some(Params { name, limit }) = Params::read(json) else { return code::INVALID_ARGUMENT };
    let Ok(name) = CString::new(name) else { return code::INVALID_ARGUMENT };
    let provider = Box::new(Provider { name, limit, live: AtomicUsize::new(0) });
    // SAFETY: the program passes a place for the address.
    unsafe { state.write(Box::into_raw(provider).cast()) };
    code::SUCCESS
}

unsafe extern "C" fn finalize(state: *mut c_void) -> Code {
    // SAFETY: the program calls this once, and nothing with this state after it.
    drop(unsafe { Box::from_raw(state.cast::<Provider>()) });
    code::SUCCESS
}

unsafe extern "C" fn alloc(state: *mut c_void, size: usize, align: usize, place: *mut *mut c_void) -> Code {
    // SAFETY: the program passes the state that it was given.
    let provider = unsafe { provider(state) };
    let fits =
        |live: usize| live.checked_add(size).filter(|&sum| provider.limit == 0 || sum <= provider.limit);
    if provider.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
        return code::OUT_OF_HOST_MEMORY;
    }
    let memory = memory::map(size, align);
    if memory.is_null() {
        let code = native_error();
        provider.live.fetch_sub(size, Ordering::Relaxed);
        return code;
    }
    // SAFETY: the program passes a place for the address.
    unsafe { place.write(memory) };
    code::SUCCESS
}

unsafe extern "C" fn free(state: *mut c_void, memory: *mut c_void, size: usize) -> Code {
    // SAFETY: the allocation is live, and by UMF's contract it is not in use.
    if unsafe { libc::munmap(memory, size) } != 0 {
        return native_error();
    }
    // SAFETY: the program passes the state that it was given.
    unsafe { provider(state) }.live.fetch_sub(size, Ordering::Relaxed);
    code::SUCCESS
}

unsafe extern "C" fn get_last_native_error(
    _: *mut c_void,
    message: *mut *const c_char,
    native: *mut i32,
) -> Code {
    let last = LAST_ERROR.get();
    // SAFETY: the program passes places for both. strerror's text stays until this thread's next
    // call, which is what UMF asks for.
    unsafe {
        message.write(if last == 0 { null() } else { libc::strerror(last) });
        native.write(last);
    }
    code::SUCCESS
}

unsafe extern "C" fn get_recommended_page_size(_: *mut c_void, _: usize, page: *mut usize) -> Code {
    // SAFETY: the program passes a place for the size.
    unsafe { page.write(memory::page_size()) };
    code::SUCCESS
}

unsafe extern "C" fn get_min_page_size(_: *mut c_void, _: *const c_void, page: *mut usize) -> Code {
    // SAFETY: the program passes a place for the size.
    unsafe { page.write(memory::page_size()) };
    code::SUCCESS
}

unsafe extern "C" fn get_name(state: *mut c_void, name: *mut *const c_char) -> Code {
    // UMF may ask for the name that a provider has by default.
    let text = if state.is_null() {
        params::DEFAULT_NAME.as_ptr()
    } else {
        // SAFETY: not NULL, so the state that the program was given.
        unsafe { provider(state) }.name.as_ptr()
    };
    // SAFETY: the program passes a place for the address.
    unsafe { name.write(text) };
    code::SUCCESS
}

unsafe extern "C" fn purge_lazy(_: *mut c_void, memory: *mut c_void, size: usize) -> Code {
    // SAFETY: the range is whole pages of a live allocation, whose content is not needed.
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

unsafe extern "C" fn get_cache_line_size(_: *mut c_void, size: *mut usize) -> Code {
    // SAFETY: the program passes a place for the size.
    unsafe { size.write(64) };
    code::SUCCESS
}
