//! Loading loaders and drivers, tables of older versions, results and chains.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use level_zero_sys::*;

#[test]
fn invalid_loader_is_named_in_the_error() {
    // SAFETY: the file does not exist, or is the C library.
    let (missing, other, driver) = unsafe {
        (
            Api::load_from("/nonexistent/libze_loader.so.1"),
            Api::load_from("libc.so.6"),
            Api::load_driver("libc.so.6"),
        )
    };
    let missing = missing.unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/libze_loader.so.1") && missing.contains("libze1"), "{missing}");
    let other = other.unwrap_err().to_string();
    assert!(other.contains("libc.so.6") && other.contains("zeInit"), "{other}");
    let driver = driver.unwrap_err().to_string();
    assert!(driver.contains("zeGetGlobalProcAddrTable"), "{driver}");
}

/// Calls through the system's loader return a result, with or without drivers.
#[test]
fn calls_through_the_loader_return_a_result() {
    // SAFETY: the system's loader.
    let api = match unsafe { Api::load() } {
        Ok(api) => api,
        Err(error) => return println!("umf-skip: calls_through_the_loader_return_a_result: {error}"),
    };
    let mut drivers = 0;
    // SAFETY: only the number of drivers is queried.
    let answer =
        unsafe { api.zeInit(0).and_then(|()| api.zeDriverGet(&raw mut drivers, std::ptr::null_mut())) };
    match answer {
        Ok(()) => println!("{drivers} drivers"),
        Err(failure) => {
            assert!(failure.function() == "zeInit" || failure.function() == "zeDriverGet");
            assert_ne!(failure.result(), ZE_RESULT_SUCCESS);
            assert!(failure.to_string().contains("ZE_RESULT_ERROR_UNINITIALIZED"), "{failure}");
        }
    }
}

/// A table of an older version is not written past its end.
#[test]
fn table_is_filled_up_to_a_version() {
    unsafe extern "C" fn init(_: ze_init_flags_t) -> ze_result_t {
        ZE_RESULT_SUCCESS
    }
    unsafe extern "C" fn init_drivers(
        _: *mut u32,
        _: *mut ze_driver_handle_t,
        _: *mut ze_init_driver_type_desc_t,
    ) -> ze_result_t {
        ZE_RESULT_ERROR_DEVICE_LOST
    }
    let full = ze_global_dditable_t { pfnInit: Some(init), pfnInitDrivers: Some(init_drivers) };
    let mut old = ze_global_dditable_t::default();
    // SAFETY: the table has enough members.
    unsafe { full.fill(&raw mut old, ZE_API_VERSION_1_9) };
    assert!(old.pfnInit.is_some() && old.pfnInitDrivers.is_none());
    // SAFETY: as above.
    unsafe { full.fill(&raw mut old, ZE_API_VERSION_1_10) };
    assert!(old.pfnInitDrivers.is_some());
    assert_eq!(ze_global_dditable_t::known_at(ze_api_version_t(0)), 0);
}

#[test]
fn results_have_the_names_of_the_specification() {
    assert_eq!(
        ZE_RESULT_ERROR_DEVICE_LOST.to_string(),
        "ZE_RESULT_ERROR_DEVICE_LOST (the device hung, was reset or is gone)"
    );
    let unknown = ze_result_t(0x1234);
    assert_eq!(unknown.name(), None);
    assert!(unknown.to_string().starts_with("ze_result_t(0x1234)"), "{unknown}");
}

#[test]
fn chain_search_ends_at_null_or_a_cycle() {
    let mut last = ze_external_memory_export_fd_t::default();
    let last = &raw mut last;
    let mut first = ze_relaxed_allocation_limits_ext_desc_t { pNext: last.cast(), ..Default::default() };
    let first = (&raw mut first).cast();
    // SAFETY: a chain of two structures, and then a cycle.
    unsafe {
        assert_eq!(chain::find_mut::<ze_external_memory_export_fd_t>(first), last);
        assert!(chain::find::<ze_external_memory_import_fd_t>(first).is_null());
        assert!(chain::find::<ze_external_memory_import_fd_t>(std::ptr::null()).is_null());
        (*last).pNext = first;
        assert!(chain::find::<ze_external_memory_import_fd_t>(first).is_null());
        assert_eq!((*last).stype, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD);
    }
}
