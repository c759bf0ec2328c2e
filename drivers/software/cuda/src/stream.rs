//! Streams, events, copies and fills. A copy without a stream is synchronous.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Command, Event, Mapping, MemoryRange, Span, Stream, Timeout, Work, lock, write_result};

use crate::memory::{Access, Allocation};
use crate::state::{CudaResult, Device, DriverState, StreamObject, entry};

/// An event: the point in a stream at which it was last recorded.
#[derive(Default)]
pub(crate) struct EventObject {
    recorded: Mutex<Option<Arc<Event>>>,
}

impl DriverState {
    /// Calls `with` with a stream; null is the default stream of the current device.
    pub(crate) fn stream<R>(
        &self,
        stream: CUstream,
        with: impl FnOnce(&Stream) -> CudaResult<R>,
    ) -> CudaResult<R> {
        if stream.is_null() {
            return with(&self.current()?.device.stream);
        }
        with(&self.streams.get(stream.0.addr())?.stream)
    }

    fn recorded(&self, event: CUevent) -> CudaResult<Option<Arc<Event>>> {
        Ok(lock(&self.events.get(event.0.addr())?.recorded).clone())
    }
}

/// Creates a stream of the current context.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, _flags: c_uint) -> CUresult {
    entry("cuStreamCreate", |state| {
        let made = state.core.stream();
        let number = state.streams.insert(StreamObject { context: state.current()?.number, stream: made });
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(stream, CUstream(std::ptr::without_provenance_mut(number))) }?)
    })
}

/// Destroys a stream after its commands have executed.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    entry("cuStreamDestroy", |state| {
        let removed = state.streams.remove(stream.0.addr())?;
        Ok(removed.stream.wait(Timeout::Never)?)
    })
}

/// Waits until all submitted commands have executed.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    entry("cuStreamSynchronize", |state| state.stream(stream, |stream| Ok(stream.wait(Timeout::Never)?)))
}

/// Creates an event.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, _flags: c_uint) -> CUresult {
    entry("cuEventCreate", |state| {
        state.current()?;
        let number = state.events.insert(EventObject::default());
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(event, CUevent(std::ptr::without_provenance_mut(number))) }?)
    })
}

/// Destroys an event.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    entry("cuEventDestroy", |state| Ok(state.events.remove(event.0.addr()).map(drop)?))
}

/// Records an event: it completes after the commands submitted so far.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    entry("cuEventRecord", |state| {
        let event = state.events.get(event.0.addr())?;
        let point = Arc::<Event>::default();
        let marker = Command::marker(Vec::new(), Some(Arc::clone(&point)));
        state.stream(stream, |stream| Ok(stream.submit(vec![marker])?))?;
        *lock(&event.recorded) = Some(point);
        Ok(())
    })
}

/// Returns success if an event is complete.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    entry("cuEventQuery", |state| match state.recorded(event)? {
        Some(point) if point.signalled().is_none() => Err(CUDA_ERROR_NOT_READY.into()),
        _ => Ok(()),
    })
}

/// Waits until an event is complete.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    entry("cuEventSynchronize", |state| match state.recorded(event)? {
        Some(point) => Ok(point.wait(Timeout::Never, || state.core.health.check())?),
        None => Ok(()),
    })
}

/// Returns the time between two complete events in milliseconds.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    entry("cuEventElapsedTime", |state| {
        let (Some(start), Some(end)) = (state.recorded(start)?, state.recorded(end)?) else {
            return Err(CUDA_ERROR_INVALID_HANDLE.into());
        };
        let (Some(start), Some(end)) = (start.signalled(), end.signalled()) else {
            return Err(CUDA_ERROR_NOT_READY.into());
        };
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(milliseconds, end.end.saturating_sub(start.end) as f32 / 1e6) }?)
    })
}

impl DriverState {
    fn span(&self, device: &Device, address: u64, size: usize, access: Access) -> CudaResult<Span> {
        let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let check = |range: &MemoryRange<Allocation>| range.owner.check_use(device, access);
        let is_reserved = |range: &Mapping| {
            start < range.address() + range.size() && range.address() < start.saturating_add(size)
        };
        // Reserved addresses without a mapping would pass as memory of the application.
        if self.core.addresses.find(start).is_none() && lock(&self.reservations).iter().any(is_reserved) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        self.core.addresses.span(start, size, check)
    }

    /// Submits a command to a stream. Without a stream, waits until it has executed.
    fn submit(&self, stream: Option<CUstream>, work: impl FnOnce(&Device) -> CudaResult<Work>) -> CudaResult {
        let current = self.current()?;
        let work = work(current.device)?;
        let command = Command { wait: Vec::new(), work, signal: None };
        let wait = stream.is_none();
        self.stream(stream.unwrap_or(CUstream::NULL), |stream| {
            stream.submit(vec![command])?;
            if wait { Ok(stream.wait(Timeout::Never)?) } else { Ok(()) }
        })
    }

    fn copy(&self, to: u64, from: u64, size: usize, stream: Option<CUstream>) -> CudaResult {
        if size == 0 {
            return Ok(());
        }
        self.submit(stream, |device| {
            let to = self.span(device, to, size, Access::ReadWrite)?;
            Ok(Work::Copy { to, from: self.span(device, from, size, Access::Read)? })
        })
    }

    fn fill(&self, to: u64, value: u8, size: usize, stream: Option<CUstream>) -> CudaResult {
        if size == 0 {
            return Ok(());
        }
        self.submit(stream, |device| {
            let to = self.span(device, to, size, Access::ReadWrite)?;
            Ok(Work::Fill { to, pattern: vec![value] })
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
    entry("cuMemsetD8", |state| state.fill(to, value, size, None))
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
    entry("cuMemsetD8Async", |state| state.fill(to, value, size, Some(stream)))
}
