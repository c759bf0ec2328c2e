//! The C side of variable arguments (`c/variadic.c`). A `va_list` is passed as one pointer by every 64-bit ABI of Linux.

use core::ffi::{CStr, c_char, c_void};

use umf::plugin::ops::{Ctl, State};

use crate::boundary::Code;

unsafe extern "C" {
    fn umf_capi_next_pointer(more: *mut c_void) -> *mut c_void;
    fn umf_capi_next_size(more: *mut c_void) -> usize;
    fn umf_capi_forward(
        to: Ctl,
        state: State,
        source: i32,
        name: *const c_char,
        argument: *mut c_void,
        size: usize,
        query: i32,
        more: *mut c_void,
    ) -> Code;
    fn umf_capi_forward_none(
        to: Ctl,
        state: State,
        source: i32,
        name: *const c_char,
        argument: *mut c_void,
        size: usize,
        query: i32,
        ...
    ) -> Code;
}

/// The next argument, a pointer. The path says that there is one, as C promises with it.
pub(super) fn next_pointer(more: *mut c_void) -> *mut c_void {
    // SAFETY: a `va_list` that C gave, or started in `c/variadic.c`.
    unsafe { umf_capi_next_pointer(more) }
}

/// The next argument, a `size_t`.
pub(super) fn next_size(more: *mut c_void) -> usize {
    // SAFETY: as above.
    unsafe { umf_capi_next_size(more) }
}

/// Asks a table's `ext_ctl`, with a copy of the arguments.
#[expect(clippy::too_many_arguments, reason = "those of ext_ctl")]
pub(crate) fn forward(
    to: Ctl,
    state: State,
    source: i32,
    name: &CStr,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code {
    forward_raw(to, state, source, name.as_ptr(), argument, size, query, more)
}

/// The same with a name that C gave.
#[expect(clippy::too_many_arguments, reason = "those of ext_ctl")]
pub(crate) fn forward_raw(
    to: Ctl,
    state: State,
    source: i32,
    name: *const c_char,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code {
    if more.is_null() {
        // SAFETY: a function of a table, with its own state; it gets an empty list.
        return unsafe { umf_capi_forward_none(to, state, source, name, argument, size, query) };
    }
    // SAFETY: as above, and `more` is a list that C gave.
    unsafe { umf_capi_forward(to, state, source, name, argument, size, query, more) }
}

/// The same without arguments.
pub(crate) fn forward_none(
    to: Ctl,
    state: State,
    source: i32,
    name: &CStr,
    argument: *mut c_void,
    size: usize,
    query: i32,
) -> Code {
    forward_raw(to, state, source, name.as_ptr(), argument, size, query, core::ptr::null_mut())
}
