//! Functions of the driver, its devices and contexts, and the stack of contexts of each thread.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{lock, write_result};

use crate::state::{CudaResult, Device, DriverState, entry, guarded};

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
    let found = DriverState::get().map_or(12040, |state| state.settings.version);
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
        let capacity = usize::try_from(length).unwrap_or(0);
        if name.is_null() || capacity == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        for (place, byte) in text.bytes().take(capacity - 1).chain([0]).enumerate() {
            // SAFETY: the application's buffer has `length` bytes.
            unsafe { name.cast::<u8>().add(place).write(byte) };
        }
        Ok(())
    })
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

/// A context: the owner of memory and streams.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: CUdevice,
    /// The contexts with enabled peer access.
    pub(crate) peers: Mutex<HashSet<usize>>,
}

thread_local! {
    /// The stack of contexts of this thread; the current one is last.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn number(context: CUcontext) -> usize {
    context.0.addr()
}

pub(crate) fn handle(number: usize) -> CUcontext {
    CUcontext(std::ptr::without_provenance_mut(number))
}

/// The current context of a thread, with its handle and device.
pub(crate) struct Current<'s> {
    pub(crate) number: usize,
    pub(crate) ordinal: CUdevice,
    pub(crate) device: &'s Device,
    pub(crate) context: Arc<Context>,
}

impl DriverState {
    /// Returns the current context of this thread.
    pub(crate) fn current(&self) -> CudaResult<Current<'_>> {
        let number = STACK.with_borrow(|stack| stack.last().copied()).filter(|number| *number != 0);
        let number = number.ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        let context = self.contexts.get(number).map_err(|_| CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        Ok(Current { number, ordinal: context.device, device: self.device(context.device)?, context })
    }

    /// Destroys a context, its memory and its streams.
    fn destroy(&self, number: usize) -> CudaResult {
        self.contexts.remove(number).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?;
        self.core.addresses.remove_all(|range| range.owner.context == number);
        self.streams.retain(|stream| stream.context != number);
        Ok(())
    }
}

/// Retains the primary context of a device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    entry("cuDevicePrimaryCtxRetain", |state| {
        let mut primary = lock(&state.device(device)?.primary);
        let (number, count) = match *primary {
            Some((number, count)) => (number, count + 1),
            None => (state.contexts.insert(Context { device, peers: Mutex::default() }), 1),
        };
        *primary = Some((number, count));
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(context, handle(number)) }?)
    })
}

/// Releases it; the last release destroys it.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    guarded(|| {
        let state = DriverState::get()?;
        let mut primary = lock(&state.device(device)?.primary);
        match *primary {
            None => Err(CUDA_ERROR_INVALID_CONTEXT.into()),
            Some((number, 1)) => {
                *primary = None;
                state.destroy(number)
            }
            Some((number, count)) => {
                *primary = Some((number, count - 1));
                Ok(())
            }
        }
    })
}

/// Creates a context, and makes it current.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(
    context: *mut CUcontext,
    _flags: c_uint,
    device: CUdevice,
) -> CUresult {
    entry("cuCtxCreate", |state| {
        state.device(device)?;
        let number = state.contexts.insert(Context { device, peers: Mutex::default() });
        STACK.with_borrow_mut(|stack| stack.push(number));
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(context, handle(number)) }?)
    })
}

/// Destroys a context, its memory and its streams.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    entry("cuCtxDestroy", |state| {
        state.destroy(number(context))?;
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&number(context)) {
                stack.pop();
            }
        });
        Ok(())
    })
}

/// Returns the current context of this thread.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    guarded(|| {
        DriverState::get()?;
        let current = STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0));
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(context, handle(current)) }?)
    })
}

/// Replaces the context of this thread.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    entry("cuCtxSetCurrent", |state| {
        if !context.is_null() {
            state.contexts.get(number(context)).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            if !context.is_null() {
                stack.push(number(context));
            }
        });
        Ok(())
    })
}

/// Pushes a context on the stack of this thread.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    entry("cuCtxPushCurrent", |state| {
        state.contexts.get(number(context)).map_err(|_| match context.is_null() {
            true => CUDA_ERROR_INVALID_CONTEXT,
            false => CUDA_ERROR_CONTEXT_IS_DESTROYED,
        })?;
        STACK.with_borrow_mut(|stack| stack.push(number(context)));
        Ok(())
    })
}

/// Pops a context from the stack of this thread.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    guarded(|| {
        DriverState::get()?;
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(context, handle(popped)) }?)
    })
}

/// Returns the device of the current context.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    entry("cuCtxGetDevice", |state| Ok(unsafe { write_result(device, state.current()?.ordinal) }?))
}

/// Gives the current context access to the memory of another context.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, _flags: c_uint) -> CUresult {
    entry("cuCtxEnablePeerAccess", |state| {
        let current = state.current()?;
        let other = state.contexts.get(number(peer)).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?;
        if !state.can_access(current.device.number, state.device(other.device)?.number)
            || current.ordinal == other.device
        {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.into());
        }
        if !lock(&current.context.peers).insert(number(peer)) {
            return Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.into());
        }
        Ok(())
    })
}
