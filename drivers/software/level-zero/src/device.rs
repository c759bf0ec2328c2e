//! Devices and their properties.

use level_zero_sys::*;
use soft_device::{now, read_argument, write_result};

use crate::driver::field;
use crate::queue::GROUPS;
use crate::state::{Device, DriverState, ZeResult, counted, entry};

/// The size of a cache line, in bytes.
const CACHE_LINE: usize = 64;
/// An unassigned vendor id, so that no program takes the device for known hardware.
const VENDOR: u32 = 0x5af7;
/// Ticks per second: the timer counts nanoseconds.
const TICKS: u64 = 1_000_000_000;

pub(crate) unsafe extern "C" fn get_devices(
    driver: ze_driver_handle_t,
    count: *mut u32,
    devices: *mut ze_device_handle_t,
) -> ze_result_t {
    entry("zeDeviceGet", |state| {
        state.driver(driver)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe { counted(count, devices, state.roots.iter().copied()) }
    })
}

pub(crate) unsafe extern "C" fn get_sub_devices(
    device: ze_device_handle_t,
    count: *mut u32,
    sub_devices: *mut ze_device_handle_t,
) -> ze_result_t {
    entry("zeDeviceGetSubDevices", |state| {
        let device = state.device(device)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe { counted(count, sub_devices, device.sub_devices.iter().copied()) }
    })
}

pub(crate) unsafe extern "C" fn get_root_device(
    device: ze_device_handle_t,
    root: *mut ze_device_handle_t,
) -> ze_result_t {
    entry("zeDeviceGetRootDevice", |state| {
        let device = state.device(device)?;
        let found = device.sub_device.map_or(ze_device_handle_t::NULL, |(_, root)| root);
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(root, found) }?)
    })
}

pub(crate) unsafe extern "C" fn get_properties(
    device: ze_device_handle_t,
    properties: *mut ze_device_properties_t,
) -> ze_result_t {
    entry("zeDeviceGetProperties", |state| {
        let device = state.device(device)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let requested = read_argument(properties)?;
            Ok(write_result(properties, describe(state, &device, requested))?)
        }
    })
}

/// Returns the properties of a device, with the type and the chain of the `requested` structure.
fn describe(
    state: &DriverState,
    device: &Device,
    requested: ze_device_properties_t,
) -> ze_device_properties_t {
    let sub_device = device.sub_device.map(|(index, _)| index);
    // Structure version 1.2 expects ticks per second, the older one nanoseconds per tick.
    let timer_resolution = if requested.stype == ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2 { TICKS } else { 1 };
    let mut uuid = *b"umf soft 0000 00";
    uuid[9..13].copy_from_slice(&device.index.to_be_bytes());
    uuid[14..].copy_from_slice(
        &u16::try_from(sub_device.map_or(0, |index| index + 1)).unwrap_or(u16::MAX).to_be_bytes(),
    );
    let name = match sub_device {
        None => format!("software device {} (memory of the host, for tests)", device.index),
        Some(index) => {
            format!("software device {}, part {index} (memory of the host, for tests)", device.index)
        }
    };
    ze_device_properties_t {
        stype: requested.stype,
        pNext: requested.pNext,
        r#type: ZE_DEVICE_TYPE_GPU,
        vendorId: VENDOR,
        deviceId: device.index,
        flags: if sub_device.is_some() { ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE } else { 0 },
        subdeviceId: sub_device.unwrap_or(0),
        coreClockRate: 1000,
        maxMemAllocSize: state.settings.largest,
        maxHardwareContexts: u32::MAX,
        maxCommandQueuePriority: 0,
        numThreadsPerEU: 1,
        physicalEUSimdWidth: 1,
        numEUsPerSubslice: 1,
        numSubslicesPerSlice: 1,
        numSlices: 1,
        timerResolution: timer_resolution,
        timestampValidBits: 64,
        kernelTimestampValidBits: 64,
        uuid: ze_device_uuid_t { id: uuid },
        name: field(&name),
    }
}

/// Reads a structure of the application, changes it with `change`, and writes it back.
///
/// # Safety
/// The pointer is null or leads to an initialized structure.
unsafe fn fill<T: Copy>(
    function: &'static str,
    device: ze_device_handle_t,
    to: *mut T,
    change: impl FnOnce(&DriverState, &Device, &mut T) -> ZeResult,
) -> ze_result_t {
    entry(function, |state| {
        let device = state.device(device)?;
        // SAFETY: the caller upholds the contract.
        unsafe {
            let mut filled = read_argument(to)?;
            change(state, &device, &mut filled)?;
            Ok(write_result(to, filled)?)
        }
    })
}

pub(crate) unsafe extern "C" fn get_compute_properties(
    device: ze_device_handle_t,
    to: *mut ze_device_compute_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    unsafe {
        fill("zeDeviceGetComputeProperties", device, to, |_, _, filled| {
            // The device does not compute. The values are 1, since callers may divide by them.
            let ze_device_compute_properties_t { stype, pNext, .. } = *filled;
            *filled = ze_device_compute_properties_t {
                stype,
                pNext,
                maxTotalGroupSize: 1,
                maxGroupSizeX: 1,
                maxGroupSizeY: 1,
                maxGroupSizeZ: 1,
                maxGroupCountX: 1,
                maxGroupCountY: 1,
                maxGroupCountZ: 1,
                maxSharedLocalMemory: 1,
                numSubGroupSizes: 1,
                ..Default::default()
            };
            filled.subGroupSizes[0] = 1;
            Ok(())
        })
    }
}

pub(crate) unsafe extern "C" fn get_module_properties(
    device: ze_device_handle_t,
    to: *mut ze_device_module_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    unsafe {
        fill("zeDeviceGetModuleProperties", device, to, |_, _, filled| {
            let ze_device_module_properties_t { stype, pNext, .. } = *filled;
            *filled = ze_device_module_properties_t { stype, pNext, ..Default::default() };
            Ok(())
        })
    }
}

pub(crate) unsafe extern "C" fn get_image_properties(
    device: ze_device_handle_t,
    to: *mut ze_device_image_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    unsafe {
        fill("zeDeviceGetImageProperties", device, to, |_, _, filled| {
            let ze_device_image_properties_t { stype, pNext, .. } = *filled;
            *filled = ze_device_image_properties_t { stype, pNext, ..Default::default() };
            Ok(())
        })
    }
}

/// Fills an array of structures. Each keeps its type and chain.
///
/// # Safety
/// As for [`counted`], with initialized structures in the array.
unsafe fn fill_all<T: Copy>(
    function: &'static str,
    device: ze_device_handle_t,
    count: *mut u32,
    array: *mut T,
    items: impl FnOnce(&DriverState, &Device) -> Vec<Box<dyn Fn(&mut T)>>,
) -> ze_result_t {
    entry(function, |state| {
        let device = state.device(device)?;
        let items = items(state, &device);
        // SAFETY: the caller upholds the contract.
        unsafe {
            let capacity = read_argument(count)?;
            for (index, item) in items.iter().take(capacity as usize).enumerate() {
                if !array.is_null() {
                    let mut filled = read_argument(array.add(index))?;
                    item(&mut filled);
                    write_result(array.add(index), filled)?;
                }
            }
            counted(count, std::ptr::null_mut(), items.iter())
        }
    })
}

pub(crate) unsafe extern "C" fn get_command_queue_group_properties(
    device: ze_device_handle_t,
    count: *mut u32,
    groups: *mut ze_command_queue_group_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    unsafe {
        fill_all("zeDeviceGetCommandQueueGroupProperties", device, count, groups, |_, _| {
            let fill_group = |filled: &mut ze_command_queue_group_properties_t,
                              group: &crate::queue::Group| {
                filled.flags = group.flags;
                filled.maxMemoryFillPatternSize = group.pattern;
                filled.numQueues = group.queues;
            };
            GROUPS
                .iter()
                .map(|group| Box::new(move |filled: &mut _| fill_group(filled, group)) as Box<dyn Fn(&mut _)>)
                .collect()
        })
    }
}

pub(crate) unsafe extern "C" fn get_memory_properties(
    device: ze_device_handle_t,
    count: *mut u32,
    memories: *mut ze_device_memory_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    unsafe {
        fill_all("zeDeviceGetMemoryProperties", device, count, memories, |_, device| {
            let size = device.memory[0].limit();
            vec![Box::new(move |filled: &mut ze_device_memory_properties_t| {
                (filled.flags, filled.maxClockRate, filled.maxBusWidth) = (0, 1000, 64);
                filled.totalSize = size;
                filled.name = field("memfd");
                let more = chain::find_mut::<ze_device_memory_ext_properties_t>(filled.pNext);
                if let Ok(mut filled) = read_argument(more) {
                    filled.r#type = ZE_DEVICE_MEMORY_EXT_TYPE_DDR;
                    filled.physicalSize = size;
                    (filled.readBandwidth, filled.writeBandwidth) = (0, 0);
                    filled.bandwidthUnit = ZE_BANDWIDTH_UNIT_UNKNOWN;
                    let _ = write_result(more, filled);
                }
            })]
        })
    }
}

pub(crate) unsafe extern "C" fn get_cache_properties(
    device: ze_device_handle_t,
    count: *mut u32,
    caches: *mut ze_device_cache_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    unsafe {
        fill_all("zeDeviceGetCacheProperties", device, count, caches, |_, _| {
            vec![Box::new(|filled: &mut ze_device_cache_properties_t| {
                (filled.flags, filled.cacheSize) = (0, 1 << 20);
                let line = chain::find_mut::<ze_device_cache_line_size_ext_t>(filled.pNext);
                if let Ok(mut filled) = read_argument(line) {
                    filled.cacheLineSize = CACHE_LINE;
                    let _ = write_result(line, filled);
                }
            })]
        })
    }
}

pub(crate) unsafe extern "C" fn get_memory_access_properties(
    device: ze_device_handle_t,
    to: *mut ze_device_memory_access_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    unsafe {
        fill("zeDeviceGetMemoryAccessProperties", device, to, |_, _, filled| {
            let plain = ZE_MEMORY_ACCESS_CAP_FLAG_RW;
            let shared = plain | ZE_MEMORY_ACCESS_CAP_FLAG_CONCURRENT;
            filled.hostAllocCapabilities = shared;
            filled.deviceAllocCapabilities = plain;
            filled.sharedSingleDeviceAllocCapabilities = shared;
            filled.sharedCrossDeviceAllocCapabilities = shared;
            filled.sharedSystemAllocCapabilities = plain;
            Ok(())
        })
    }
}

pub(crate) unsafe extern "C" fn get_external_memory_properties(
    device: ze_device_handle_t,
    to: *mut ze_device_external_memory_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    unsafe {
        fill("zeDeviceGetExternalMemoryProperties", device, to, |_, _, filled| {
            let fd = ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD;
            filled.memoryAllocationImportTypes = fd | ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF;
            filled.memoryAllocationExportTypes = fd;
            (filled.imageImportTypes, filled.imageExportTypes) = (0, 0);
            Ok(())
        })
    }
}

fn are_peers(state: &DriverState, one: &Device, other: &Device) -> bool {
    state.core.settings.peers || one.root() == other.root()
}

pub(crate) unsafe extern "C" fn get_p2p_properties(
    device: ze_device_handle_t,
    peer: ze_device_handle_t,
    to: *mut ze_device_p2p_properties_t,
) -> ze_result_t {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    unsafe {
        fill("zeDeviceGetP2PProperties", device, to, |state, device, filled| {
            let peer = state.device(peer)?;
            let reach = are_peers(state, device, &peer);
            filled.flags = if reach { ZE_DEVICE_P2P_PROPERTY_FLAG_ACCESS } else { 0 };
            Ok(())
        })
    }
}

pub(crate) unsafe extern "C" fn can_access_peer(
    device: ze_device_handle_t,
    peer: ze_device_handle_t,
    value: *mut ze_bool_t,
) -> ze_result_t {
    entry("zeDeviceCanAccessPeer", |state| {
        let (device, peer) = (state.device(device)?, state.device(peer)?);
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(value, u8::from(are_peers(state, &device, &peer))) }?)
    })
}

pub(crate) unsafe extern "C" fn get_global_timestamps(
    device: ze_device_handle_t,
    host: *mut u64,
    of_device: *mut u64,
) -> ze_result_t {
    entry("zeDeviceGetGlobalTimestamps", |state| {
        state.device(device)?;
        let now = now();
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            write_result(host, now)?;
            Ok(write_result(of_device, now)?)
        }
    })
}
