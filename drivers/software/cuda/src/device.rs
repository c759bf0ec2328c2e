//! Functions of the driver and of its devices, and the attributes of a device.

use std::ffi::{c_char, c_int, c_uint};

use cuda_sys::*;
use soft_device::write_result;

use crate::entry_points::version as version_of_interface;
use crate::state::{CudaResult, DriverSettings, DriverState, entry, guarded};

/// Initializes the driver.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    guarded(|| DriverState::start().map(|_| ()))
}

/// Returns the version of the interface.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    let found = version_of_interface();
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    guarded(|| Ok(unsafe { write_result(version, found) }?))
}

/// Returns the name of a result, or null if it is unknown.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    guarded(|| {
        let name = names().find(|(known, _)| *known == error.0).map(|(_, name)| name.as_ptr());
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        unsafe { write_result(text, name.unwrap_or(std::ptr::null())) }?;
        if name.is_some() { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE.into()) }
    })
}

/// Returns the name of a result: this driver has no descriptions.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller upholds the contract.
    unsafe { cuGetErrorName(error, text) }
}

/// Returns the names of all results as C strings that live as long as the process.
fn names() -> impl Iterator<Item = (u32, &'static std::ffi::CStr)> {
    static NAMES: std::sync::OnceLock<Vec<(u32, std::ffi::CString)>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| {
        CUresult::NAMES
            .iter()
            .map(|(name, number)| (*number, std::ffi::CString::new(*name).unwrap_or_default()))
            .collect()
    });
    names.iter().map(|(number, name)| (*number, name.as_c_str()))
}

/// Returns the device of an ordinal.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    entry("cuDeviceGet", |state| {
        state.device(ordinal)?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(device, ordinal) }?)
    })
}

/// Returns the number of devices that the process sees.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    entry("cuDeviceGetCount", |state| unsafe {
        Ok(write_result(count, c_int::try_from(state.devices.len()).unwrap_or(0))?)
    })
}

/// Returns the name of a device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    entry("cuDeviceGetName", |state| {
        let text = format!("umf software device {}", state.device(device)?.number);
        // SAFETY: the application's buffer has `length` bytes.
        unsafe { write_text(name, length, &text) }
    })
}

/// Writes a text, shortened to the size of the buffer.
///
/// # Safety
/// The buffer is null or has `length` bytes.
unsafe fn write_text(buffer: *mut c_char, length: c_int, text: &str) -> CudaResult {
    let capacity = usize::try_from(length).unwrap_or(0);
    if buffer.is_null() || capacity == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE.into());
    }
    for (place, byte) in text.bytes().take(capacity - 1).chain([0]).enumerate() {
        // SAFETY: the caller upholds the contract.
        unsafe { buffer.cast::<u8>().add(place).write(byte) };
    }
    Ok(())
}

/// Returns the UUID of a device, which does not depend on its ordinal.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> CUresult {
    entry("cuDeviceGetUuid", |state| {
        let mut bytes = *b"umf-soft-cuda\0\0\0";
        bytes[12..].copy_from_slice(&state.device(device)?.number.to_be_bytes());
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(uuid, CUuuid { bytes }) }?)
    })
}

/// Returns the bytes of a device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    entry("cuDeviceTotalMem", |state| {
        let total = state.device(device)?.memory.limit();
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(bytes, usize::try_from(total).unwrap_or(usize::MAX)) }?)
    })
}

/// The compute capability: that of a device which current clients support.
const COMPUTE_CAPABILITY: (c_int, c_int) = (9, 0);

/// Returns an attribute that is the same for all devices, 0 for unknown ones. Those of kernels have
/// plausible values, since clients divide by them.
fn attribute_value(attribute: CUdevice_attribute, settings: &DriverSettings) -> c_int {
    let has = |what: &str| c_int::from(settings.has(what));
    match attribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        | CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED => 1,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => COMPUTE_CAPABILITY.0,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => COMPUTE_CAPABILITY.1,
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY | CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => has("managed"),
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => has("virtual"),
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => has("fds"),
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED => has("fabric"),
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED => has("dma-buf"),
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED => has("pools"),
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES if has("pools") == 1 && has("fds") == 1 => {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 as c_int
        }
        _ => 0,
    }
}

/// Returns an attribute of a device, 0 for unknown attributes.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    entry("cuDeviceGetAttribute", |state| {
        let number = state.device(device)?.number;
        let found = match attribute {
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => c_int::try_from(number).unwrap_or(0) + 1,
            _ => attribute_value(attribute, &state.settings),
        };
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(value, found) }?)
    })
}

/// Returns whether a device can access the memory of another one.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    device: CUdevice,
    peer: CUdevice,
) -> CUresult {
    entry("cuDeviceCanAccessPeer", |state| {
        let (one, other) = (state.device(device)?.number, state.device(peer)?.number);
        // SAFETY: the application passes a valid or null pointer, as the interface requires. No
        // device is a peer of itself.
        Ok(unsafe { write_result(can, c_int::from(one != other && state.can_access(one, other))) }?)
    })
}
