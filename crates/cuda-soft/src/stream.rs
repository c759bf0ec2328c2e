//! Streams and events.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Command, Event, Stream, Timeout, lock};

use crate::entry::{Done, entry, put};
use crate::state::{State, StreamObject};

/// What an event stands for: the last point that it was recorded at.
#[derive(Default)]
pub(crate) struct EventObject {
    recorded: Mutex<Option<Arc<Event>>>,
}

impl State {
    /// Does something with a stream; the one without a name is that of the current device.
    pub(crate) fn stream<R>(&self, stream: CUstream, with: impl FnOnce(&Stream) -> Done<R>) -> Done<R> {
        if stream.is_null() {
            return with(&self.current()?.device.stream);
        }
        with(&self.streams.get(stream.0.addr())?.stream)
    }

    fn recorded(&self, event: CUevent) -> Done<Option<Arc<Event>>> {
        Ok(lock(&self.events.get(event.0.addr())?.recorded).clone())
    }
}

/// A stream of the current context.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, _flags: c_uint) -> CUresult {
    entry("cuStreamCreate", |state| {
        let made = Stream::new(Arc::clone(&state.health), state.settings.delay);
        let number = state.streams.insert(StreamObject { context: state.current()?.number, stream: made });
        // SAFETY: a pointer of the application.
        unsafe { put(stream, CUstream(std::ptr::without_provenance_mut(number))) }
    })
}

/// Destroys it; what was submitted is done first.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    entry("cuStreamDestroy", |state| {
        let removed = state.streams.remove(stream.0.addr())?;
        Ok(removed.stream.wait(Timeout::Never)?)
    })
}

/// Waits for everything that was submitted.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    entry("cuStreamSynchronize", |state| state.stream(stream, |stream| Ok(stream.wait(Timeout::Never)?)))
}

/// An event.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, _flags: c_uint) -> CUresult {
    entry("cuEventCreate", |state| {
        state.current()?;
        let number = state.events.insert(EventObject::default());
        // SAFETY: a pointer of the application.
        unsafe { put(event, CUevent(std::ptr::without_provenance_mut(number))) }
    })
}

/// Destroys it.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    entry("cuEventDestroy", |state| Ok(state.events.remove(event.0.addr()).map(drop)?))
}

/// From now on it stands for what was submitted until now.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    entry("cuEventRecord", |state| {
        let event = state.events.get(event.0.addr())?;
        let point = Arc::<Event>::default();
        let marker = Command::nothing(Vec::new(), Some(Arc::clone(&point)));
        state.stream(stream, |stream| Ok(stream.submit(vec![marker])?))?;
        *lock(&event.recorded) = Some(point);
        Ok(())
    })
}

/// Whether it is done.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    entry("cuEventQuery", |state| match state.recorded(event)? {
        Some(point) if point.signalled().is_none() => Err(CUDA_ERROR_NOT_READY.into()),
        _ => Ok(()),
    })
}

/// Waits until it is.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    entry("cuEventSynchronize", |state| match state.recorded(event)? {
        Some(point) => Ok(point.wait(Timeout::Never, || state.health.check())?),
        None => Ok(()),
    })
}

/// The time between the points at which two events were recorded, which the stream has passed, in milliseconds.
///
/// # Safety
/// As the interface has it.
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
        // SAFETY: a pointer of the application.
        unsafe { put(milliseconds, end.end.saturating_sub(start.end) as f32 / 1e6) }
    })
}
