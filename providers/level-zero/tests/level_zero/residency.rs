//! Residency on other devices: of live and future regions, and after errors.

use umf_core::Provider;

use super::driver::{User, run_in_child};
use super::{allocate, built, device, free};

#[test]
fn live_and_future_regions_are_resident_until_evicted() {
    run_in_child(
        "residency::live_and_future_regions_are_resident_until_evicted",
        &[("ZE_SOFT_DEVICES", "4")],
        || {
            let user = User::direct();
            let residents = || user.count(c"residents");
            let provider = built(device().resident([1]));
            let first = allocate(&provider, 100).unwrap();
            assert_eq!(residents(), 1);
            let second = allocate(&provider, 100).unwrap();
            assert_eq!(residents(), 2);
            assert!(provider.set_resident(2, true).unwrap());
            assert!(!provider.set_resident(2, true).unwrap(), "it is already");
            assert_eq!(residents(), 4);
            let third = allocate(&provider, 100).unwrap();
            assert_eq!(residents(), 6);
            assert!(provider.set_resident(1, false).unwrap());
            assert_eq!(residents(), 3);
            assert!(!provider.set_resident(3, false).unwrap());
            assert!(provider.set_resident(4, true).unwrap_err().to_string().contains("number of devices"));
            for region in [first, second, third] {
                free(&provider, region).unwrap();
            }
            assert_eq!((residents(), user.count(c"allocations")), (0, 0));
        },
    );
}

#[test]
fn failed_change_leaves_residency_unchanged() {
    run_in_child("residency::failed_change_leaves_residency_unchanged", &[("ZE_SOFT_DEVICES", "4")], || {
        let user = User::direct();
        let residents = || user.count(c"residents");
        let provider = built(device().resident([1]));
        let regions: Vec<_> = (0..4).map(|_| allocate(&provider, 100).unwrap()).collect();
        assert_eq!(residents(), 4);
        // Of four regions the third fails.
        user.faults(c"zeContextMakeMemoryResident:3=ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY");
        let refused = provider.set_resident(2, true).unwrap_err().to_string();
        assert!(
            refused.contains("zeContextMakeMemoryResident failed: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
            "{refused}"
        );
        assert_eq!(residents(), 4);
        user.faults(c"zeContextEvictMemory:2=ZE_RESULT_ERROR_UNKNOWN");
        assert!(provider.set_resident(1, false).is_err());
        assert_eq!(residents(), 4);
        user.faults(c"");
        let more = allocate(&provider, 100).unwrap();
        assert_eq!(residents(), 5, "as before: on the first peer alone");
        // An allocation that cannot be made resident on all devices fails.
        assert!(provider.set_resident(3, true).unwrap());
        assert_eq!(residents(), 10);
        let before = user.count(c"allocations");
        user.faults(c"zeContextMakeMemoryResident:2=ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY");
        assert!(allocate(&provider, 100).is_err());
        assert_eq!((residents(), user.count(c"allocations")), (10, before));
        for region in regions.into_iter().chain([more]) {
            free(&provider, region).unwrap();
        }
        assert_eq!((residents(), provider.statistics().bytes()), (0, 0));
    });
}

#[test]
fn peer_can_access_resident_memory() {
    run_in_child("residency::peer_can_access_resident_memory", &[("ZE_SOFT_RESIDENCY", "strict")], || {
        let user = User::direct();
        // SAFETY: live handles of this driver, which the provider keeps alive.
        let made = unsafe {
            umf_provider_level_zero::LevelZeroProvider::from_context(
                user.api.clone(),
                user.context,
                user.devices[0],
                level_zero_sys::ZE_MEMORY_TYPE_DEVICE,
            )
        };
        let provider = built(made);
        let region = allocate(&provider, 100).unwrap();
        let address = usize::try_from(region.base().value()).unwrap();
        let peer = user.list_of(user.devices[1], level_zero_sys::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
        assert!(user.write_by(peer, address, b"peer").is_err());
        provider.set_resident_on(user.devices[1], true).unwrap();
        user.write_by(peer, address, b"peer").unwrap();
        assert_eq!(super::get(&provider, &region, 4), b"peer");
        assert_eq!(provider.name(), "level-zero");
        free(&provider, region).unwrap();
    });
}
