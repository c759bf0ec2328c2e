//! The driver without a loader: settings, limits, faults, residency, tables.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod driver;

use std::ffi::CStr;

use driver::{User, error_code, handle, library, run_in_child};
use level_zero_sys::*;

/// Returns clients with and without a loader.
fn users(test: &str) -> Vec<User> {
    std::iter::once(User::direct()).chain(User::through_loader(test)).collect()
}

#[test]
fn memory_keeps_copied_content() {
    run_in_child("memory_keeps_copied_content", &[], || {
        for user in users("memory_keeps_copied_content") {
            let address = user.allocate(100_000).unwrap();
            let bytes: Vec<u8> = (0..100_000_u32).map(|index| (index * 7) as u8).collect();
            user.write(address, &bytes).unwrap();
            assert_eq!(user.read(address, bytes.len()).unwrap(), bytes);
            assert_eq!(user.read(address + 99_999, 1).unwrap(), bytes[99_999..]);
            assert_eq!(error_code(user.read(address + 99_999, 2)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
            user.free(address).unwrap();
            assert_eq!(error_code(user.free(address)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
            assert_eq!(user.count(c"allocations"), 0);
            user.finish();
        }
    });
}

#[test]
fn freed_device_memory_can_be_allocated_again() {
    let settings = [("ZE_SOFT_MEMORY", "1M"), ("ZE_SOFT_MAX_ALLOCATION", "512K"), ("ZE_SOFT_DEVICES", "1")];
    run_in_child("freed_device_memory_can_be_allocated_again", &settings, || {
        let user = User::direct();
        assert_eq!(error_code(user.allocate(513 << 10)), ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
        let relaxed = ze_relaxed_allocation_limits_ext_desc_t {
            flags: ZE_RELAXED_ALLOCATION_LIMITS_EXT_FLAG_MAX_SIZE,
            ..Default::default()
        };
        let desc = ze_device_mem_alloc_desc_t { pNext: (&raw const relaxed).cast(), ..Default::default() };
        let device = user.devices[0];
        let all = user.allocate_as(device, 1 << 20, &desc).unwrap();
        assert_eq!(error_code(user.allocate(1)), ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
        user.free(all).unwrap();
        assert_eq!(
            error_code(user.allocate_as(device, (1 << 20) + 1, &desc)),
            ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
        );
        let part = user.allocate(1).unwrap();
        assert_eq!(user.count(c"memory"), 64 << 10);
        user.free(part).unwrap();
        assert_eq!(user.count(c"memory"), 0);
    });
}

#[test]
fn fd_limit_fails_allocations_and_exports() {
    run_in_child("fd_limit_fails_allocations_and_exports", &[("ZE_SOFT_MAX_FDS", "2")], || {
        let user = User::direct();
        let one = user.allocate(1).unwrap();
        let two = user.allocate(1).unwrap();
        assert_eq!(error_code(user.allocate(1)), ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
        assert_eq!(error_code(handle(&user, one)), ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
        user.free(two).unwrap();
        let bytes = handle(&user, one).unwrap();
        assert_eq!(user.count(c"fds"), 2);
        // SAFETY: a handle of this driver.
        unsafe { user.api.zeMemPutIpcHandle(user.context, bytes) }.unwrap();
        user.free(one).unwrap();
        assert_eq!(user.count(c"fds"), 0);
    });
}

#[test]
fn injected_faults_fail_the_named_calls() {
    let faults = "zeMemAllocDevice:2=ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE";
    run_in_child("injected_faults_fail_the_named_calls", &[("ZE_SOFT_FAULTS", faults)], || {
        let user = User::direct();
        let address = user.allocate(1).unwrap();
        assert_eq!(error_code(user.allocate(1)), ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE);
        user.free(user.allocate(1).unwrap()).unwrap();
        // Replaces the faults.
        assert_eq!(user.faults(c"zeMemFree:1+=ZE_RESULT_ERROR_UNKNOWN"), ZE_RESULT_SUCCESS);
        assert_eq!(error_code(user.free(address)), ZE_RESULT_ERROR_UNKNOWN);
        assert_eq!(user.faults(c"zeMemFree:1=nonsense"), ZE_RESULT_ERROR_INVALID_ARGUMENT);
        assert_eq!(error_code(user.free(address)), ZE_RESULT_ERROR_UNKNOWN);
        assert_eq!(user.faults(c""), ZE_RESULT_SUCCESS);
        user.free(address).unwrap();
    });
}

#[test]
fn lost_device_ends_waits_and_frees_memory() {
    run_in_child("lost_device_ends_waits_and_frees_memory", &[("ZE_SOFT_IPC", "opaque-socket")], || {
        let user = User::direct();
        let address = user.allocate(4096).unwrap();
        let bytes = handle(&user, address).unwrap();
        let list = user.list_of(user.devices[0], ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
        let (pool, event) = event(&user);
        let source = [1_u8; 16];
        let to = std::ptr::without_provenance_mut(address);
        // SAFETY: as the specification has it; the source outlives the list.
        unsafe {
            let api = &user.api;
            let mut waited_for = event;
            let from = source.as_ptr().cast();
            api.zeCommandListAppendMemoryCopy(
                list,
                to,
                from,
                16,
                ze_event_handle_t::NULL,
                1,
                &raw mut waited_for,
            )
            .unwrap();
            assert_eq!(error_code(api.zeCommandListHostSynchronize(list, 0)), ZE_RESULT_NOT_READY);
            let waiting = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| api.zeEventHostSynchronize(event, u64::MAX));
                assert_eq!(user.faults(c"zeMemGetIpcHandle:1=lose"), ZE_RESULT_SUCCESS);
                assert_eq!(error_code(handle(&user, address)), ZE_RESULT_ERROR_DEVICE_LOST);
                waiting.join().unwrap()
            });
            assert_eq!(error_code(waiting), ZE_RESULT_ERROR_DEVICE_LOST);
            assert_eq!(
                error_code(api.zeCommandListHostSynchronize(list, u64::MAX)),
                ZE_RESULT_ERROR_DEVICE_LOST
            );
            assert_eq!(error_code(user.allocate(1)), ZE_RESULT_ERROR_DEVICE_LOST);
            assert_eq!(error_code(user.read(address, 1)), ZE_RESULT_ERROR_DEVICE_LOST);
            api.zeMemPutIpcHandle(user.context, bytes).unwrap();
            user.free(address).unwrap();
            api.zeCommandListDestroy(list).unwrap();
            api.zeEventDestroy(event).unwrap();
            api.zeEventPoolDestroy(pool).unwrap();
        }
        assert_eq!(user.count(c"memory") + user.count(c"exports") + user.count(c"events"), 0);
        user.finish();
    });
}

fn event(user: &User) -> (ze_event_pool_handle_t, ze_event_handle_t) {
    let desc = ze_event_pool_desc_t { count: 1, ..Default::default() };
    let event_desc = ze_event_desc_t::default();
    let (mut pool, mut event) = (ze_event_pool_handle_t::NULL, ze_event_handle_t::NULL);
    // SAFETY: arguments as the specification requires.
    unsafe {
        user.api
            .zeEventPoolCreate(user.context, &raw const desc, 0, std::ptr::null_mut(), &raw mut pool)
            .unwrap();
        user.api.zeEventCreate(pool, &raw const event_desc, &raw mut event).unwrap();
    }
    (pool, event)
}

/// A delayed copy is incomplete when the call returns. Later commands of the list execute after it.
#[test]
fn asynchronous_commands_execute_after_the_call() {
    run_in_child("asynchronous_commands_execute_after_the_call", &[("ZE_SOFT_DELAY", "200000")], || {
        let user = User::direct();
        let list = user.list_of(user.devices[0], ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
        let address = user.allocate(16).unwrap();
        let bytes = [9_u8; 16];
        user.write_by(list, address, &bytes).unwrap();
        // SAFETY: arguments as the specification requires.
        let early = unsafe { user.api.zeCommandListHostSynchronize(list, 0) };
        assert_eq!(error_code(early), ZE_RESULT_NOT_READY);
        assert_eq!(user.read_by(list, address, 16).unwrap(), bytes);
        // Freed while the copy runs: the copy keeps the pages.
        user.write_by(list, address, &bytes).unwrap();
        user.free(address).unwrap();
        assert_eq!(user.count(c"allocations"), 0);
        // SAFETY: as above.
        unsafe { user.api.zeCommandListHostSynchronize(list, u64::MAX) }.unwrap();
        assert_eq!(user.count(c"memory"), 0);
    });
}

#[test]
fn sub_devices_share_memory_of_their_device() {
    let settings = [("ZE_SOFT_DEVICES", "3"), ("ZE_SOFT_SUBDEVICES", "2"), ("ZE_SOFT_MEMORY", "1M")];
    run_in_child("sub_devices_share_memory_of_their_device", &settings, || {
        for user in users("sub_devices_share_memory_of_their_device") {
            assert_eq!(user.devices.len(), 3);
            let mut count = 2;
            let mut sub_devices = [ze_device_handle_t::NULL; 2];
            let mut uuids = std::collections::HashSet::new();
            // SAFETY: arguments as the specification requires.
            unsafe {
                let api = &user.api;
                api.zeDeviceGetSubDevices(user.devices[1], &raw mut count, sub_devices.as_mut_ptr()).unwrap();
                assert_eq!(count, 2);
                for device in user.devices.iter().chain(&sub_devices) {
                    let mut properties = ze_device_properties_t::default();
                    api.zeDeviceGetProperties(*device, &raw mut properties).unwrap();
                    let is_sub_device = sub_devices.contains(device);
                    assert_eq!(properties.flags & ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE != 0, is_sub_device);
                    assert!(properties.timerResolution > 0 && properties.maxMemAllocSize > 0);
                    assert!(uuids.insert(properties.uuid.id));
                    assert_eq!(properties.name.last(), Some(&0));
                }
            }
            // Memory of a sub-device is also charged to its root device.
            let half = user.allocate_on(sub_devices[0], 512 << 10).unwrap();
            assert_eq!(error_code(user.allocate_on(sub_devices[0], 1)), ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
            let rest = user.allocate_on(user.devices[1], 512 << 10).unwrap();
            assert_eq!(error_code(user.allocate_on(sub_devices[1], 1)), ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
            user.free(half).unwrap();
            user.free(rest).unwrap();
            user.finish();
        }
    });
}

#[test]
fn peer_accesses_resident_memory_only() {
    run_in_child("peer_accesses_resident_memory_only", &[("ZE_SOFT_RESIDENCY", "strict")], || {
        let user = User::direct();
        let other = user.list_of(user.devices[1], ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
        let address = user.allocate(4096).unwrap();
        user.write(address, &[5; 4096]).unwrap();
        assert_eq!(error_code(user.read_by(other, address, 1)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
        let pointer = std::ptr::without_provenance_mut(address);
        // SAFETY: arguments as the specification requires.
        unsafe {
            let api = &user.api;
            api.zeContextMakeMemoryResident(user.context, user.devices[1], pointer, 4096).unwrap();
            assert_eq!(user.count(c"residents"), 1);
            assert_eq!(user.read_by(other, address, 4096).unwrap(), [5; 4096]);
            let more = api.zeContextMakeMemoryResident(user.context, user.devices[1], pointer, 4097);
            assert_eq!(error_code(more), ZE_RESULT_ERROR_INVALID_ARGUMENT);
            api.zeContextEvictMemory(user.context, user.devices[1], pointer, 4096).unwrap();
        }
        assert_eq!(error_code(user.read_by(other, address, 1)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
        user.free(address).unwrap();
    });
}

#[test]
fn devices_without_peer_access_report_it() {
    run_in_child("devices_without_peer_access_report_it", &[("ZE_SOFT_PEERS", "none")], || {
        let user = User::direct();
        let [one, two] = [user.devices[0], user.devices[1]];
        let address = user.allocate(4096).unwrap();
        let pointer = std::ptr::without_provenance_mut(address);
        let mut properties = ze_device_p2p_properties_t::default();
        let (mut own, mut others) = (2, 2);
        // SAFETY: arguments as the specification requires.
        unsafe {
            user.api.zeDeviceCanAccessPeer(one, one, &raw mut own).unwrap();
            user.api.zeDeviceCanAccessPeer(one, two, &raw mut others).unwrap();
            user.api.zeDeviceGetP2PProperties(one, two, &raw mut properties).unwrap();
            let resident = user.api.zeContextMakeMemoryResident(user.context, two, pointer, 4096);
            assert_eq!(error_code(resident), ZE_RESULT_ERROR_INVALID_ARGUMENT);
        }
        assert_eq!((own, others, properties.flags), (1, 0, 0));
        let other = user.list_of(two, ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
        assert_eq!(error_code(user.read_by(other, address, 1)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
        user.free(address).unwrap();
    });
}

/// The specification has only powers of two, also where a client passes the size of its buffer.
#[test]
fn alignments_are_powers_of_two() {
    run_in_child("alignments_are_powers_of_two", &[], || {
        let user = User::direct();
        let (api, device) = (&user.api, user.devices[0]);
        let (desc, host_desc) = (ze_device_mem_alloc_desc_t::default(), ze_host_mem_alloc_desc_t::default());
        let (desc, host_desc) = (&raw const desc, &raw const host_desc);
        for (size, expected) in [
            (12, ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT),
            (16, ZE_RESULT_SUCCESS),
            (1 << 20, ZE_RESULT_SUCCESS),
            ((1 << 20) + 1, ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT),
        ] {
            let mut found = [std::ptr::null_mut(); 3];
            let [on_device, on_host, shared] = found.each_mut().map(std::ptr::from_mut);
            // SAFETY: arguments as the specification requires.
            let answers = unsafe {
                [
                    api.zeMemAllocDevice(user.context, desc, size, size, device, on_device),
                    api.zeMemAllocHost(user.context, host_desc, size, size, on_host),
                    api.zeMemAllocShared(user.context, desc, host_desc, size, size, device, shared),
                ]
            };
            for (answer, found) in answers.into_iter().zip(found) {
                assert_eq!(answer.map_or_else(Failure::result, |()| ZE_RESULT_SUCCESS), expected, "{size}");
                if expected == ZE_RESULT_SUCCESS {
                    assert_eq!(found.addr() % size, 0);
                    user.free(found.addr()).unwrap();
                }
            }
        }
    });
}

/// A page size is never 0: a query for memory without a size is an error.
#[test]
fn page_size_of_no_memory_is_an_error() {
    run_in_child("page_size_of_no_memory_is_an_error", &[], || {
        let user = User::direct();
        let mut page = 0;
        let mut query = |size| {
            // SAFETY: arguments as the specification requires.
            unsafe {
                user.api.zeVirtualMemQueryPageSize(user.context, user.devices[0], size, &raw mut page)?;
            }
            Ok(page)
        };
        assert_eq!(error_code(query(0)), ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
        for size in [1, 4096, 1 << 21, 1 << 40] {
            assert!(query(size).unwrap().is_power_of_two(), "{size}");
        }
    });
}

/// The case of oneCCL #212 and MPICH #7821: another allocation at the address of one that was
/// freed.
#[test]
fn reused_address_has_another_allocation_id() {
    let settings = [("ZE_SOFT_ADDRESSES", "0x100000000000-0x100000040000")];
    run_in_child("reused_address_has_another_allocation_id", &settings, || {
        let user = User::direct();
        let first = user.allocate(4096).unwrap();
        let id = user.properties(first).id;
        assert_eq!(first, 0x1000_0000_0000);
        user.write(first, &[1; 16]).unwrap();
        user.free(first).unwrap();
        let again = user.allocate(4096).unwrap();
        assert_eq!(again, first);
        assert_ne!(user.properties(again).id, id);
        assert_eq!(user.read(again, 16).unwrap(), [0; 16]);
        // Four pages of 64 KiB are all memory of the device.
        let others: Vec<_> = (0..3).map(|_| user.allocate(1).unwrap()).collect();
        assert_eq!(error_code(user.allocate(1)), ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
        for address in others.into_iter().chain([again]) {
            user.free(address).unwrap();
        }
    });
}

#[test]
fn forked_child_has_no_driver() {
    run_in_child("forked_child_has_no_driver", &[], || {
        let user = User::direct();
        let address = user.allocate(4096).unwrap();
        // SAFETY: the child makes one call and exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let answer = error_code(user.allocate(1));
                libc::_exit(i32::from(answer != ZE_RESULT_ERROR_UNINITIALIZED));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
        user.free(address).unwrap();
    });
}

/// Loaders close their drivers at process exit, when threads of the driver may still run.
#[test]
fn driver_library_is_never_unloaded() {
    run_in_child("driver_library_is_never_unloaded", &[], || {
        let is_there = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("libze_soft.so");
        assert!(!is_there());
        // SAFETY: the driver of this project.
        let driver = unsafe { libloading::Library::new(library()) }.unwrap();
        assert!(is_there());
        driver.close().unwrap();
        assert!(is_there());
    });
}

/// A table is not written past the members of its version: older loaders have smaller tables.
#[test]
fn tables_are_filled_up_to_their_version() {
    type Get = unsafe extern "C" fn(ze_api_version_t, *mut usize) -> ze_result_t;
    const UNTOUCHED: usize = 0x5a5a;
    // SAFETY: the driver of this project; its functions fill tables of pointers.
    unsafe {
        let driver = libloading::Library::new(library()).unwrap();
        let mut tables = 0;
        for table in layout::tables() {
            let Ok(get) = driver.get::<Get>(table.get) else { continue };
            tables += 1;
            for minor in 0..=30 {
                let mut members = [UNTOUCHED; 128];
                let version = make_version(1, minor);
                assert_eq!(get(ze_api_version_t(version), members.as_mut_ptr()), ZE_RESULT_SUCCESS);
                let known = table.members.iter().filter(|member| member.since <= version).count();
                assert!(members[..known].iter().all(|member| *member != UNTOUCHED && *member != 0));
                assert!(
                    members[known..].iter().all(|member| *member == UNTOUCHED),
                    "{} at 1.{minor}",
                    table.name
                );
            }
            let mut members = [UNTOUCHED; 128];
            assert_eq!(
                get(ze_api_version_t(make_version(2, 0)), members.as_mut_ptr()),
                ZE_RESULT_ERROR_UNSUPPORTED_VERSION
            );
            let nowhere = get(ZE_API_VERSION_CURRENT, std::ptr::null_mut());
            assert_eq!(nowhere, ZE_RESULT_ERROR_INVALID_NULL_POINTER);
        }
        assert!(tables > 20, "{tables} tables");
    }
}

/// The queries that conformance programs of other projects make first.
#[test]
fn property_queries_succeed() {
    run_in_child("property_queries_succeed", &[("ZE_SOFT_SUBDEVICES", "2")], || {
        for user in users("property_queries_succeed") {
            let (api, device) = (&user.api, user.devices[0]);
            // SAFETY: arguments as the specification requires.
            unsafe {
                let mut version = ze_api_version_t(0);
                api.zeDriverGetApiVersion(user.driver, &raw mut version).unwrap();
                assert_eq!(version, ZE_API_VERSION_CURRENT);
                let mut count = 0;
                api.zeDriverGetExtensionProperties(user.driver, &raw mut count, std::ptr::null_mut())
                    .unwrap();
                let mut extensions = vec![ze_driver_extension_properties_t::default(); count as usize];
                api.zeDriverGetExtensionProperties(user.driver, &raw mut count, extensions.as_mut_ptr())
                    .unwrap();
                let names: Vec<_> = extensions
                    .iter()
                    .map(|extension| CStr::from_bytes_until_nul(&extension.name).unwrap().to_str().unwrap())
                    .collect();
                assert!(names.contains(&ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME), "{names:?}");

                let mut count = 0;
                api.zeDeviceGetCommandQueueGroupProperties(device, &raw mut count, std::ptr::null_mut())
                    .unwrap();
                let mut groups = vec![ze_command_queue_group_properties_t::default(); count as usize];
                api.zeDeviceGetCommandQueueGroupProperties(device, &raw mut count, groups.as_mut_ptr())
                    .unwrap();
                assert!(groups.iter().all(|group| group.numQueues > 0 && group.maxMemoryFillPatternSize > 0));

                let mut line = ze_device_cache_line_size_ext_t::default();
                let mut cache =
                    ze_device_cache_properties_t { pNext: (&raw mut line).cast(), ..Default::default() };
                let mut count = 1;
                api.zeDeviceGetCacheProperties(device, &raw mut count, &raw mut cache).unwrap();
                assert_eq!(line.cacheLineSize, 64);
                let mut memory = ze_device_memory_properties_t::default();
                api.zeDeviceGetMemoryProperties(device, &raw mut count, &raw mut memory).unwrap();
                assert_eq!((count, memory.totalSize), (1, 1 << 30));
                let mut access = ze_device_memory_access_properties_t::default();
                api.zeDeviceGetMemoryAccessProperties(device, &raw mut access).unwrap();
                assert_ne!(access.deviceAllocCapabilities & ZE_MEMORY_ACCESS_CAP_FLAG_RW, 0);
                let mut external = ze_device_external_memory_properties_t::default();
                api.zeDeviceGetExternalMemoryProperties(device, &raw mut external).unwrap();
                assert_eq!(external.memoryAllocationExportTypes, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD);
                let mut compute = ze_device_compute_properties_t::default();
                let mut module = ze_device_module_properties_t::default();
                let mut image = ze_device_image_properties_t::default();
                let (mut host, mut of_device) = (0, 0);
                api.zeDeviceGetGlobalTimestamps(device, &raw mut host, &raw mut of_device).unwrap();
                assert!(host > 0 && of_device > 0);
                api.zeDeviceGetComputeProperties(device, &raw mut compute).unwrap();
                api.zeDeviceGetModuleProperties(device, &raw mut module).unwrap();
                api.zeDeviceGetImageProperties(device, &raw mut image).unwrap();
            }
            user.finish();
        }
    });
}
