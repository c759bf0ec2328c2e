//! What a provider exports: [`fi_provider`], by the function `fi_prov_ini` of its library.

use core::ffi::{c_char, c_int, c_void};

use crate::info::{fi_fabric_attr, fi_info};
use crate::objects::{fi_context, fid_fabric};

/// The end of the name of a provider's library: `libNAME-fi.so`.
pub const FI_LIB_SUFFIX: &str = "fi.so";

/// The function that a provider's library exports by the name `fi_prov_ini`. The library calls it
/// once, after it has loaded the provider, and keeps the pointer. Null means that the provider does
/// not work here.
pub type fi_prov_ini = unsafe extern "C" fn() -> *mut fi_provider;

/// The function that lists what there is: a provider's, and the library's of this name. The arguments
/// are the application's version, a host and a service or null, flags, hints or null, and where to
/// write the list.
pub type fi_getinfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;

/// The function that opens a fabric: a provider's, and the library's of this name.
pub type fi_fabric = unsafe extern "C" fn(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;

structures! { STRUCTURES;
    /// A provider.
    fi_provider as fi_provider {
        /// The provider's own version. Of two providers of one name, the library uses the newer
        /// one.
        version: u32;
        /// The version of the interface that the provider implements. A library ignores a provider
        /// that is older than 1.3. It does not ask a provider that is older than the application's
        /// version.
        fi_version: u32;
        /// The library writes here.
        context: fi_context;
        name: *const c_char;
        /// Returns a list of what the provider offers for the hints, or `-FI_ENODATA`. The library
        /// frees the list with its `fi_freeinfo`.
        getinfo: Option<fi_getinfo>;
        /// Opens a fabric. Required.
        fabric: Option<fi_fabric>;
        /// Called before the library is unloaded.
        cleanup: Option<unsafe extern "C" fn()>;
    }
}
