//! Copies and fills. One without a stream is synchronous, and executes in the default stream.

use std::ffi::c_void;

use cuda_sys::*;
use soft_device::{Mapping, MemoryRange, Span, Timeout, Work, lock};

use crate::memory::{Access, Allocation};
use crate::state::{CudaResult, Device, DriverState, entry};

impl DriverState {
    fn span(&self, device: &Device, address: u64, size: usize, access: Access) -> CudaResult<Span> {
        let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let check = |range: &MemoryRange<Allocation>| range.owner.check_use(device, access);
        let is_reserved = |range: &Mapping| {
            start < range.address() + range.size() && range.address() < start.saturating_add(size)
        };
        // Reserved addresses without memory would pass as memory of the application.
        if self.core.addresses.find(start).is_none()
            && (lock(&self.reservations).iter().any(is_reserved)
                || self.pools.overlaps(start, start.saturating_add(size)))
        {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        self.core.addresses.span(start, size, check)
    }

    /// Submits a command to a stream. Without a stream, waits until it has executed.
    fn submit(&self, stream: Option<CUstream>, work: impl FnOnce(&Device) -> CudaResult<Work>) -> CudaResult {
        let object = self.stream(stream.unwrap_or(CUstream::NULL))?;
        let work = work(self.device(object.device)?)?;
        self.submit_to(&object, work.into())?;
        if stream.is_none() {
            object.stream.wait(Timeout::Never)?;
        }
        Ok(())
    }

    pub(crate) fn copy(&self, to: u64, from: u64, size: usize, stream: Option<CUstream>) -> CudaResult {
        if size == 0 {
            return Ok(());
        }
        self.submit(stream, |device| {
            let to = self.span(device, to, size, Access::ReadWrite)?;
            Ok(Work::Copy { to, from: self.span(device, from, size, Access::Read)? })
        })?;
        // As in NVIDIA's driver, a copy of pageable memory does not return before it has executed.
        // Clients free the memory then.
        match stream {
            Some(stream) if self.is_pageable(to) || self.is_pageable(from) => {
                Ok(self.stream(stream)?.stream.wait(Timeout::Never)?)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether an address is in memory of the application that is not registered.
    fn is_pageable(&self, address: u64) -> bool {
        usize::try_from(address)
            .is_ok_and(|at| self.core.addresses.find(at).is_none() && self.registration(at).is_none())
    }

    /// Fills memory with `count` copies of a value, at an address that is a multiple of its size.
    fn fill<const N: usize>(
        &self,
        to: u64,
        value: [u8; N],
        count: usize,
        stream: Option<CUstream>,
    ) -> CudaResult {
        let size = count.checked_mul(N).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !to.is_multiple_of(N as u64) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        if size == 0 {
            return Ok(());
        }
        self.submit(stream, |device| {
            let to = self.span(device, to, size, Access::ReadWrite)?;
            Ok(Work::Fill { to, pattern: value.to_vec() })
        })
    }
}

/// Copies from the host to a device.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize) -> CUresult {
    entry("cuMemcpyHtoD", |state| state.copy(to, from.addr() as u64, size, None))
}

/// Copies from a device to the host.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize) -> CUresult {
    entry("cuMemcpyDtoH", |state| state.copy(to.addr() as u64, from, size, None))
}

/// Copies between devices.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> CUresult {
    entry("cuMemcpyDtoD", |state| state.copy(to, from, size, None))
}

/// Copies between any two addresses, in a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemcpyAsync", |state| state.copy(to, from, size, Some(stream)))
}

/// Fills memory with a byte.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, size: usize) -> CUresult {
    entry("cuMemsetD8", |state| state.fill(to, [value], size, None))
}

/// Fills memory with a byte, in a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: u8,
    size: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemsetD8Async", |state| state.fill(to, [value], size, Some(stream)))
}

/// Copies from the host to a device, in a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    size: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemcpyHtoDAsync", |state| state.copy(to, from.addr() as u64, size, Some(stream)))
}

/// Copies from a device to the host, in a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemcpyDtoHAsync", |state| state.copy(to.addr() as u64, from, size, Some(stream)))
}

/// Copies between devices, in a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemcpyDtoDAsync", |state| state.copy(to, from, size, Some(stream)))
}

/// Fills memory with a 16-bit value, in a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD16Async(
    to: CUdeviceptr,
    value: u16,
    count: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemsetD16Async", |state| state.fill(to, value.to_ne_bytes(), count, Some(stream)))
}

/// Fills memory with a 32-bit value, in a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32Async(
    to: CUdeviceptr,
    value: u32,
    count: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemsetD32Async", |state| state.fill(to, value.to_ne_bytes(), count, Some(stream)))
}
