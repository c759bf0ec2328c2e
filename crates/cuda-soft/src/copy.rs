//! Copies and fills. What has no stream waits until it is done.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_sys::*;
use soft_device::{Command, Mapping, Range, Span, Timeout, Work, lock};

use crate::entry::{Done, entry};
use crate::memory::{Access, Allocation};
use crate::state::{Device, State};

impl State {
    fn span(&self, device: &Device, address: u64, size: usize, access: Access) -> Done<Span> {
        let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let check = |range: &Range<Arc<Allocation>>| range.owner.check_use(device, access);
        let is_reserved = |range: &Mapping| {
            start < range.address() + range.size() && range.address() < start.saturating_add(size)
        };
        // Reserved addresses where nothing is mapped look like memory of the application.
        if self.addresses.find(start).is_none() && lock(&self.reservations).iter().any(is_reserved) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        self.addresses.span(start, size, check)
    }

    /// Submits a command to a stream; waits for it if it has none.
    fn submit(&self, stream: Option<CUstream>, work: impl FnOnce(&Device) -> Done<Work>) -> Done {
        let current = self.current()?;
        let work = work(current.device)?;
        let command = Command { wait: Vec::new(), work, signal: None };
        let wait = stream.is_none();
        self.stream(stream.unwrap_or(CUstream::NULL), |stream| {
            stream.submit(vec![command])?;
            if wait { Ok(stream.wait(Timeout::Never)?) } else { Ok(()) }
        })
    }

    fn copy(&self, to: u64, from: u64, size: usize, stream: Option<CUstream>) -> Done {
        if size == 0 {
            return Ok(());
        }
        self.submit(stream, |device| {
            let to = self.span(device, to, size, Access::ReadWrite)?;
            Ok(Work::Copy { to, from: self.span(device, from, size, Access::Read)? })
        })
    }

    fn fill(&self, to: u64, value: u8, size: usize, stream: Option<CUstream>) -> Done {
        if size == 0 {
            return Ok(());
        }
        self.submit(stream, |device| {
            let to = self.span(device, to, size, Access::ReadWrite)?;
            Ok(Work::Fill { to, pattern: vec![value] })
        })
    }
}

/// From the host to a device.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize) -> CUresult {
    entry("cuMemcpyHtoD", |state| state.copy(to, from.addr() as u64, size, None))
}

/// From a device to the host.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize) -> CUresult {
    entry("cuMemcpyDtoH", |state| state.copy(to.addr() as u64, from, size, None))
}

/// Between devices.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> CUresult {
    entry("cuMemcpyDtoD", |state| state.copy(to, from, size, None))
}

/// Between any two places, in a stream.
///
/// # Safety
/// As the interface has it.
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
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, size: usize) -> CUresult {
    entry("cuMemsetD8", |state| state.fill(to, value, size, None))
}

/// Fills memory with a byte, in a stream.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: u8,
    size: usize,
    stream: CUstream,
) -> CUresult {
    entry("cuMemsetD8Async", |state| state.fill(to, value, size, Some(stream)))
}
