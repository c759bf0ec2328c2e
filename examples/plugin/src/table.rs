//! UMF's provider operations, version 1.2, with the layout of `umf/memory_provider_ops.h`.

use std::ffi::{c_char, c_void};

/// `umf_result_t`.
pub(crate) type Code = i32;

/// The results that this plugin returns.
pub(crate) mod code {
    use super::Code;

    pub(crate) const SUCCESS: Code = 0;
    pub(crate) const OUT_OF_HOST_MEMORY: Code = 1;
    pub(crate) const PROVIDER_SPECIFIC: Code = 2;
    pub(crate) const INVALID_ARGUMENT: Code = 3;
}

type OnRange = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> Code;
type GetSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> Code;
type OnHandle = unsafe extern "C" fn(*mut c_void, *mut c_void) -> Code;
/// An operation that this plugin lacks. Its parameters do not matter, because the member is NULL.
type Absent = unsafe extern "C" fn();

/// `umf_memory_provider_ops_t`. The order of the members is part of the ABI.
#[repr(C)]
pub struct Table {
    pub(crate) version: u32,
    pub(crate) initialize: Option<unsafe extern "C" fn(*const c_void, *mut *mut c_void) -> Code>,
    pub(crate) finalize: Option<unsafe extern "C" fn(*mut c_void) -> Code>,
    pub(crate) alloc: Option<unsafe extern "C" fn(*mut c_void, usize, usize, *mut *mut c_void) -> Code>,
    pub(crate) free: Option<OnRange>,
    pub(crate) get_last_native_error:
        Option<unsafe extern "C" fn(*mut c_void, *mut *const c_char, *mut i32) -> Code>,
    pub(crate) get_recommended_page_size:
        Option<unsafe extern "C" fn(*mut c_void, usize, *mut usize) -> Code>,
    pub(crate) get_min_page_size:
        Option<unsafe extern "C" fn(*mut c_void, *const c_void, *mut usize) -> Code>,
    pub(crate) get_name: Option<unsafe extern "C" fn(*mut c_void, *mut *const c_char) -> Code>,
    pub(crate) ext_purge_lazy: Option<OnRange>,
    pub(crate) ext_purge_force: Option<OnRange>,
    pub(crate) ext_allocation_merge: Option<Absent>,
    pub(crate) ext_allocation_split: Option<Absent>,
    pub(crate) ext_get_ipc_handle_size: Option<GetSize>,
    pub(crate) ext_get_ipc_handle: Option<Absent>,
    pub(crate) ext_put_ipc_handle: Option<OnHandle>,
    pub(crate) ext_open_ipc_handle: Option<Absent>,
    pub(crate) ext_close_ipc_handle: Option<OnRange>,
    pub(crate) ext_ctl: Option<Absent>,
    pub(crate) ext_get_allocation_properties: Option<Absent>,
    pub(crate) ext_get_allocation_properties_size: Option<Absent>,
    pub(crate) get_cache_line_size: Option<GetSize>,
}

const _: () = assert!(size_of::<Table>() == 176);
