//! Allocating and freeing: limits, policies, properties, application contexts, forks.

use level_zero_sys::ZE_MEMORY_TYPE_DEVICE;
use umf_core::{Address, Error, Layout, Property, PropertyValue, Provider};
use umf_provider_level_zero::{FreePolicy, LevelZeroProvider, last_failure};

use super::driver::{self, User, run_in_child};
use super::{allocate, built, device, free, get, put, soft};

#[test]
fn regions_have_page_size_and_properties_of_the_driver() {
    let provider = built(device());
    assert_eq!(provider.page_size(), 64 << 10);
    assert_eq!(built(LevelZeroProvider::host(soft())).page_size(), 4096);
    let region = allocate(&provider, 1).unwrap();
    assert_eq!(region.size(), 64 << 10);
    let properties = provider.properties().unwrap();
    let property = |property| properties.property(&region, property).unwrap();
    assert!(matches!(property(Property::AllocationId), PropertyValue::Number(id) if id > 0));
    assert!(matches!(property(Property::CacheLine), PropertyValue::Number(64)));
    assert!(matches!(property(Property::Context), PropertyValue::Handle(handle) if handle != 0));
    assert!(matches!(property(Property::Device), PropertyValue::Handle(handle) if handle != 0));
    assert_eq!(provider.statistics().bytes(), 64 << 10);
    free(&provider, region).unwrap();
    assert_eq!(provider.statistics().bytes(), 0);
}

#[test]
fn missing_device_driver_or_loader_is_named() {
    let refused =
        |builder: umf_provider_level_zero::LevelZeroBuilder| builder.build().unwrap_err().to_string();
    let library = driver::library();
    let selector = |device| umf_provider_level_zero::DeviceSelector::device(device).loader(library.clone());
    assert!(refused(LevelZeroProvider::device(selector(2))).contains("device"), "of two devices");
    assert!(refused(LevelZeroProvider::device(selector(0).driver(1))).contains("driver"));
    assert!(refused(device().ordinal(1)).contains("ordinal"));
    assert!(refused(device().resident([7])).contains("device"));
    let nowhere = umf_provider_level_zero::DeviceSelector::device(0).loader("/nowhere/libze_loader.so.1");
    assert!(refused(LevelZeroProvider::device(nowhere)).contains("libze1"));
}

#[test]
fn page_size_without_query_is_probed_without_leak() {
    let settings = [("ZE_SOFT_FAULTS", "zeVirtualMemQueryPageSize:*=ZE_RESULT_ERROR_UNSUPPORTED_FEATURE")];
    run_in_child("regions::page_size_without_query_is_probed_without_leak", &settings, || {
        let user = User::direct();
        for builder in [device(), LevelZeroProvider::managed(soft())] {
            assert_eq!(built(builder).page_size(), 64 << 10);
            assert_eq!((user.count(c"allocations"), user.count(c"memory")), (0, 0));
        }
    });
}

#[test]
fn alignment_above_driver_maximum_is_an_error() {
    let provider = built(device());
    for align in [1, 4096, 1 << 21, 1 << 25] {
        let region = provider.allocate(Layout::new(100, align).unwrap()).unwrap();
        assert!(region.base().is_aligned_to(align.max(64 << 10)));
        free(&provider, region).unwrap();
    }
    let refused = provider.allocate(Layout::new(100, 1 << 40).unwrap());
    assert_eq!(refused, Err(Error::BadAlignment { align: 1 << 40 }));
    assert_eq!(last_failure().unwrap().function(), "zeMemAllocDevice");
}

#[test]
fn allocation_above_device_limit_uses_relaxed_limits() {
    let settings = [("ZE_SOFT_MAX_ALLOCATION", "1M"), ("ZE_SOFT_MEMORY", "8M")];
    run_in_child("regions::allocation_above_device_limit_uses_relaxed_limits", &settings, || {
        let provider = built(device());
        let region = allocate(&provider, 4 << 20).unwrap();
        put(&provider, &region, &[7; 4 << 20]);
        assert_eq!(get(&provider, &region, 4 << 20), vec![7; 4 << 20]);
        // The size of the device's memory stays a limit.
        let refused = allocate(&provider, 8 << 20).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
        let last = last_failure().unwrap().to_string();
        assert!(last.contains("zeMemAllocDevice: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"), "{last}");
        free(&provider, region).unwrap();
    });
}

#[test]
fn every_free_policy_frees() {
    for policy in [FreePolicy::Default, FreePolicy::Blocking, FreePolicy::Deferred] {
        let provider = built(device().free_policy(policy));
        let region = allocate(&provider, 1 << 20).unwrap();
        free(&provider, region).unwrap();
        assert!(free(&provider, region).is_err());
    }
}

#[test]
fn application_context_is_used_and_not_destroyed() {
    run_in_child("regions::application_context_is_used_and_not_destroyed", &[], || {
        let user = User::direct();
        let before = (user.count(c"contexts"), user.count(c"allocations"));
        // SAFETY: live handles of this driver, which the provider keeps alive.
        let made = unsafe {
            LevelZeroProvider::from_context(
                user.api.clone(),
                user.context,
                user.devices[1],
                ZE_MEMORY_TYPE_DEVICE,
            )
        };
        let provider = built(made.name("mine"));
        assert_eq!(provider.name(), "mine");
        let region = allocate(&provider, 100).unwrap();
        put(&provider, &region, b"by umf");
        let address = usize::try_from(region.base().value()).unwrap();
        // The application's own list sees it.
        assert_eq!(user.read(address, 6).unwrap(), b"by umf");
        assert_eq!(user.count(c"allocations"), before.1 + 1);
        free(&provider, region).unwrap();
        drop(provider);
        assert_eq!((user.count(c"contexts"), user.count(c"allocations")), before);
        user.finish();
    });
}

#[test]
fn host_memory_needs_no_device() {
    run_in_child("regions::host_memory_needs_no_device", &[], || {
        let user = User::direct();
        let build = |kind| {
            let none = level_zero_sys::ze_device_handle_t::NULL;
            // SAFETY: a live context of this driver, which the provider keeps alive.
            unsafe { LevelZeroProvider::from_context(user.api.clone(), user.context, none, kind) }.build()
        };
        let provider = build(level_zero_sys::ZE_MEMORY_TYPE_HOST).unwrap();
        let region = allocate(&provider, 100).unwrap();
        put(&provider, &region, b"host");
        assert_eq!(get(&provider, &region, 4), b"host");
        free(&provider, region).unwrap();
        assert!(build(ZE_MEMORY_TYPE_DEVICE).is_err(), "device memory needs a device");
    });
}

/// With several drivers, the driver of an application's context is unknown. The provider then has
/// no transfer, and works otherwise.
#[test]
fn host_memory_needs_no_device_with_several_drivers() {
    let test = "regions::host_memory_needs_no_device_with_several_drivers";
    let folder = std::env::temp_dir().join(format!("umf-test-second-driver-{}", std::process::id()));
    let second = folder.join("libze_second.so");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(driver::library(), &second).unwrap();
    let both = format!("{},{}", driver::library().display(), second.display());
    run_in_child(test, &[("ZE_ENABLE_ALT_DRIVERS", &both)], || {
        // SAFETY: the system's loader.
        let api = match unsafe { level_zero_sys::Api::load() } {
            Ok(api) => api,
            Err(error) => return driver::skip(test, &error.to_string()),
        };
        let user = User::new(api);
        let none = level_zero_sys::ze_device_handle_t::NULL;
        let kind = level_zero_sys::ZE_MEMORY_TYPE_HOST;
        // SAFETY: a live context of this loader, which the provider keeps alive.
        let provider = unsafe { LevelZeroProvider::from_context(user.api.clone(), user.context, none, kind) };
        let provider = built(provider);
        let region = allocate(&provider, 100).unwrap();
        assert!(provider.transfer().is_none() && provider.cache_line().is_none());
        let bytes: *mut u8 = region.base().as_ptr().unwrap();
        // SAFETY: a live region of host memory, which only this test uses.
        unsafe {
            bytes.write_bytes(7, 100);
            assert_eq!(bytes.add(99).read(), 7);
        }
        let refused = allocate(&provider, 1 << 50).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
        free(&provider, region).unwrap();
        drop(provider);
        user.finish();
    });
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn export_of_region_freed_without_umf_fails() {
    let settings = [("ZE_SOFT_ADDRESSES", "600000000000-600000800000")];
    run_in_child("regions::export_of_region_freed_without_umf_fails", &settings, || {
        let user = User::direct();
        // SAFETY: as above.
        let made = unsafe {
            LevelZeroProvider::from_context(
                user.api.clone(),
                user.context,
                user.devices[0],
                ZE_MEMORY_TYPE_DEVICE,
            )
        };
        let provider = built(made);
        let region = allocate(&provider, 100).unwrap();
        let address = usize::try_from(region.base().value()).unwrap();
        user.free(address).unwrap();
        // The driver reuses the address for an allocation with another id.
        assert_eq!(user.allocate(100).unwrap(), address);
        let refused = provider.export().unwrap().export(&region).unwrap_err().to_string();
        assert!(refused.contains("without umf"), "{refused}");
        free(&provider, region).unwrap();
    });
}

#[test]
fn forked_child_is_frozen_and_leaves_parent_memory_alone() {
    let provider = built(device());
    let region = allocate(&provider, 100).unwrap();
    put(&provider, &region, b"parent");
    // SAFETY: the child only calls the provider, which takes no lock in a forked child, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let frozen = matches!(allocate(&provider, 1), Err(Error::Frozen { .. }));
        let mut bytes = [0; 6];
        // SAFETY: an error is expected.
        let copied = unsafe { provider.transfer().unwrap().read(region.base(), &mut bytes) };
        let left_alone = free(&provider, region).is_ok() && matches!(copied, Err(Error::Frozen { .. }));
        drop(provider);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(frozen && left_alone))) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(get(&provider, &region, 6), b"parent");
    free(&provider, region).unwrap();
    let nowhere = Address::new(4096).unwrap();
    assert!(free(&provider, umf_core::Region::new(nowhere, 4096)).is_err());
}
