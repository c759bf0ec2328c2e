//! A provider that libfabric loads and lists, and whose fabrics have no domains. A provider begins
//! with this much.
//!
//! Its library is to be named `libempty-fi.so`, in a folder that `FI_PROVIDER_PATH` names.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use libfabric_sys::*;

const NAME: &CStr = c"empty";

/// The libraries of the process, the oldest version first.
fn libraries() -> &'static [Library] {
    static LIBRARIES: OnceLock<Vec<Library>> = OnceLock::new();
    LIBRARIES.get_or_init(Library::loaded)
}

/// Returns the provider to the library that has loaded it.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let Some(library) = libraries().last() else { return null_mut() };
    // Each library writes into the structure, and keeps it until it calls `cleanup`.
    Box::into_raw(Box::new(fi_provider {
        version: make_version(0, 1),
        fi_version: library.version(),
        name: NAME.as_ptr(),
        getinfo: Some(getinfo),
        fabric: Some(fabric),
        ..fi_provider::ZERO
    }))
}

unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi_info,
    list: *mut *mut fi_info,
) -> c_int {
    // SAFETY: hints are null or an entry with its attributes, or null in place of these.
    let kind =
        unsafe { hints.as_ref().and_then(|hints| hints.ep_attr.as_ref()) }.map(|endpoint| endpoint.r#type);
    if kind.is_some_and(|kind| kind != FI_EP_UNSPEC && kind != FI_EP_RDM) {
        return -FI_ENODATA;
    }
    let Some(library) = libraries().last() else { return -FI_ENODATA };
    let info = library.fi_allocinfo();
    if info.is_null() {
        return -FI_ENOMEM;
    }
    // SAFETY: the library has allocated the entry with its attributes, and frees the names by `free`.
    unsafe {
        (*info).caps = FI_MSG | FI_SEND | FI_RECV | FI_LOCAL_COMM;
        (*(*info).ep_attr).r#type = FI_EP_RDM;
        (*(*info).domain_attr).name = libc::strdup(NAME.as_ptr());
        (*(*info).domain_attr).mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        (*(*info).fabric_attr).name = libc::strdup(NAME.as_ptr());
        // The last member that the library has.
        let added: *mut fi_domain_attr_2_5 = (*info).domain_attr.cast();
        if libraries().iter().all(|library| library.version() >= make_version(2, 5)) {
            (*added).max_err_cntr_value = 1000;
        }
        *list = info;
    }
    FI_SUCCESS
}

static OBJECT: fi_ops = fi_ops { close: Some(close), ..fi_ops::UNSUPPORTED };
static FABRIC: fi_ops_fabric = fi_ops_fabric::UNSUPPORTED;

unsafe extern "C" fn fabric(
    _attributes: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    let object = fid { fclass: FI_CLASS_FABRIC, context, ops: OBJECT.as_table() };
    // The library sets the version of the application afterwards.
    let opened = Box::new(fid_fabric { fid: object, ops: FABRIC.as_table(), api_version: 0 });
    // SAFETY: the pointer is valid for a write.
    unsafe { *fabric = Box::into_raw(opened) };
    FI_SUCCESS
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: fabrics alone have this operation, and the application closes each of them once.
    drop(unsafe { Box::from_raw(object.cast::<fid_fabric>()) });
    FI_SUCCESS
}
