//! The driver as a whole, and its devices.

use std::ffi::{c_char, c_int, c_uint};

use cuda_sys::*;

use crate::entry::{entry, guarded, put};
use crate::state::State;

/// Starts the driver.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    guarded(|| State::start().map(|_| ()))
}

/// The version of the interface.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    let found = State::get().map_or(12040, |state| state.settings.version);
    // SAFETY: a pointer of the application.
    guarded(|| unsafe { put(version, found) })
}

/// Null for what has no name.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    guarded(|| {
        let name = names().find(|(known, _)| *known == error.0).map(|(_, name)| name.as_ptr());
        // SAFETY: a pointer of the application.
        unsafe { put(text, name.unwrap_or(std::ptr::null())) }?;
        if name.is_some() { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE.into()) }
    })
}

/// As the name: there are no other texts here.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { cuGetErrorName(error, text) }
}

/// The names of all answers, as C has them, for good.
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

/// The device at a place among those that the process sees.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    entry("cuDeviceGet", |state| {
        state.device(ordinal)?;
        // SAFETY: a pointer of the application.
        unsafe { put(device, ordinal) }
    })
}

/// How many there are.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: a pointer of the application.
    entry("cuDeviceGetCount", |state| unsafe {
        put(count, c_int::try_from(state.devices.len()).unwrap_or(0))
    })
}

/// A name for people.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    entry("cuDeviceGetName", |state| {
        let text = format!("umf software device {}", state.device(device)?.number);
        let room = usize::try_from(length).unwrap_or(0);
        if name.is_null() || room == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        for (place, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
            // SAFETY: the application's, which has so much room.
            unsafe { name.cast::<u8>().add(place).write(byte) };
        }
        Ok(())
    })
}

/// The same for the same device of the machine, whatever its place is in a process.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> CUresult {
    entry("cuDeviceGetUuid", |state| {
        let mut bytes = *b"umf-soft-cuda\0\0\0";
        bytes[12..].copy_from_slice(&state.device(device)?.number.to_be_bytes());
        // SAFETY: a pointer of the application.
        unsafe { put(uuid, CUuuid { bytes }) }
    })
}

/// Bytes of a device.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    entry("cuDeviceTotalMem", |state| {
        let total = state.device(device)?.memory.limit();
        // SAFETY: a pointer of the application.
        unsafe { put(bytes, usize::try_from(total).unwrap_or(usize::MAX)) }
    })
}

/// What is asked about a device; 0 for what this driver does not know.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    entry("cuDeviceGetAttribute", |state| {
        let number = state.device(device)?.number;
        let has = |what: &str| c_int::from(state.settings.has(what));
        let found = match attribute {
            CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING | CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => 1,
            CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY | CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => {
                has("managed")
            }
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => has("virtual"),
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => has("fds"),
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED => has("fabric"),
            CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED => has("dma-buf"),
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => c_int::try_from(number).unwrap_or(0) + 1,
            _ => 0,
        };
        // SAFETY: a pointer of the application.
        unsafe { put(value, found) }
    })
}

/// Whether one device reaches the memory of another.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    device: CUdevice,
    peer: CUdevice,
) -> CUresult {
    entry("cuDeviceCanAccessPeer", |state| {
        let (one, other) = (state.device(device)?.number, state.device(peer)?.number);
        // SAFETY: a pointer of the application. No device is a peer of itself.
        unsafe { put(can, c_int::from(one != other && state.reaches(one, other))) }
    })
}
