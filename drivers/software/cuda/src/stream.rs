//! Streams: [`StreamObject`], the default streams of contexts and threads, and the order between
//! them.
//!
//! As in NVIDIA's driver, the legacy default stream of a context and its blocking streams wait for
//! each other. Streams created with `CU_STREAM_NON_BLOCKING` do not take part.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{
    Call, Command, Error, Event, HandleTable, Stream, Timeout, Work, is_main_thread, lock, write_result,
};

use crate::context::{self, Current};
use crate::state::{CudaResult, DriverState, entry};

/// The priorities of streams, from the highest to the lowest.
pub(crate) const PRIORITIES: RangeInclusive<c_int> = -5..=0;

/// A stream of a context.
pub(crate) struct StreamObject {
    /// Unique among the streams of a process, over time.
    pub(crate) id: usize,
    /// The handle of its context.
    pub(crate) context: usize,
    pub(crate) device: CUdevice,
    pub(crate) stream: Stream,
    flags: c_uint,
    priority: c_int,
}

impl StreamObject {
    fn is_blocking(&self) -> bool {
        self.flags & CU_STREAM_NON_BLOCKING == 0
    }
}

/// The legacy default stream of a context.
pub(crate) struct DefaultStream {
    pub(crate) object: Arc<StreamObject>,
    /// Its last command. Locked while commands are submitted, so that the order is the same for all
    /// streams.
    last: Mutex<Option<Arc<Event>>>,
}

impl DefaultStream {
    pub(crate) fn new(stream: Stream, context: usize, device: CUdevice) -> Self {
        let id = HandleTable::<StreamObject>::next();
        let object = StreamObject { id, context, device, stream, flags: 0, priority: 0 };
        Self { object: Arc::new(object), last: Mutex::default() }
    }
}

/// The default streams of a thread, by context.
#[derive(Default)]
struct ThreadStreams(HashMap<usize, usize>);

impl Drop for ThreadStreams {
    /// Waits for the streams of a thread that ends. The main thread ends with the process, which
    /// does not wait for any stream.
    fn drop(&mut self) {
        if is_main_thread() {
            return;
        }
        let Ok(state) = DriverState::get() else { return };
        for handle in self.0.values() {
            if let Ok(object) = state.streams.remove(*handle) {
                let _ = object.stream.wait(Timeout::Never);
            }
        }
    }
}

thread_local! {
    static THREAD_STREAMS: RefCell<ThreadStreams> = RefCell::default();
}

impl DriverState {
    fn create_stream(&self, current: &Current<'_>, flags: c_uint, priority: c_int) -> usize {
        let id = HandleTable::<StreamObject>::next();
        let (context, device, stream) = (current.number, current.ordinal, self.core.stream());
        self.streams.insert_as(id, StreamObject { id, context, device, stream, flags, priority });
        id
    }

    /// Returns the default stream of this thread in the current context.
    fn thread_stream(&self) -> CudaResult<Arc<StreamObject>> {
        let current = self.current()?;
        THREAD_STREAMS.with_borrow_mut(|streams| {
            let known = streams.0.get(&current.number).and_then(|handle| self.streams.get(*handle).ok());
            if let Some(known) = known {
                return Ok(known);
            }
            let handle = self.create_stream(&current, 0, 0);
            streams.0.insert(current.number, handle);
            Ok(self.streams.get(handle)?)
        })
    }

    /// Returns the stream of a handle: one of `cuStreamCreate`, or a default stream.
    pub(crate) fn stream(&self, stream: CUstream) -> CudaResult<Arc<StreamObject>> {
        match stream.0.addr() {
            0 | CU_STREAM_LEGACY => Ok(Arc::clone(&self.current()?.context.stream.object)),
            CU_STREAM_PER_THREAD => self.thread_stream(),
            handle => Ok(self.streams.get(handle)?),
        }
    }

    /// Submits a command. It executes after the commands that the order of streams puts before it.
    pub(crate) fn submit_to(&self, object: &StreamObject, mut command: Command) -> CudaResult {
        let context = self.contexts.get(object.context).map_err(|_| CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        let mut last = lock(&context.stream.last);
        if object.id == context.stream.object.id {
            for other in self.streams.all(|other| other.context == object.context && other.is_blocking()) {
                // A stream that failed has no work to wait for.
                if other.stream.is_idle().unwrap_or(true) {
                    continue;
                }
                let point = Arc::<Event>::default();
                if other.stream.submit(vec![Command::marker(Vec::new(), Some(Arc::clone(&point)))]).is_ok() {
                    command.after.push(point);
                }
            }
            let signal = Arc::clone(command.signal.get_or_insert_default());
            object.stream.submit(vec![command])?;
            *last = Some(signal);
            return Ok(());
        }
        if object.is_blocking() {
            command.after.extend(last.clone().filter(|point| !point.is_over()));
        }
        Ok(object.stream.submit(vec![command])?)
    }

    /// Submits an empty command to a stream. Returns the event that it signals.
    pub(crate) fn mark(&self, object: &StreamObject) -> CudaResult<Arc<Event>> {
        let point = Arc::<Event>::default();
        self.submit_to(object, Command::marker(Vec::new(), Some(Arc::clone(&point))))?;
        Ok(point)
    }

    /// Submits a function that the stream's thread calls.
    fn call_in(
        &self,
        stream: CUstream,
        function: impl Fn(&dyn Fn() -> soft_device::Result<()>) -> soft_device::Result<()> + Send + Sync + 'static,
    ) -> CudaResult {
        let work = Work::Call(Call::new(function));
        self.submit_to(&*self.stream(stream)?, work.into())
    }
}

/// Creates a stream of the current context.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    // SAFETY: the caller upholds the contract.
    entry("cuStreamCreate", |state| unsafe { create(state, stream, flags, 0) })
}

/// Creates a stream with a priority, which is limited to the supported range and has no effect.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    // SAFETY: the caller upholds the contract.
    entry("cuStreamCreateWithPriority", |state| unsafe { create(state, stream, flags, priority) })
}

/// Creates a stream.
///
/// # Safety
/// `stream` is null or valid for a write.
unsafe fn create(state: &DriverState, stream: *mut CUstream, flags: c_uint, priority: c_int) -> CudaResult {
    // SAFETY: the caller upholds the contract.
    unsafe { write_result(stream, CUstream::NULL) }?;
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE.into());
    }
    let priority = priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
    let number = state.create_stream(&state.current()?, flags, priority);
    // SAFETY: as above.
    Ok(unsafe { write_result(stream, CUstream(std::ptr::without_provenance_mut(number))) }?)
}

/// Destroys a stream after its commands have executed. A call of the stream cannot destroy it.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    entry("cuStreamDestroy", |state| {
        let executed = state.streams.get(stream.0.addr())?.stream.wait(Timeout::Never);
        if executed != Err(Error::OwnStream) {
            state.streams.remove(stream.0.addr())?;
        }
        Ok(executed?)
    })
}

/// Waits until all submitted commands have executed.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    entry("cuStreamSynchronize", |state| {
        let object = state.stream(stream)?;
        // The default stream waits for the blocking streams too.
        if object.id == state.current().map_or(0, |current| current.context.stream.object.id) {
            state.mark(&object)?;
        }
        object.stream.wait(Timeout::Never)?;
        state.trim_pools();
        Ok(())
    })
}

/// Returns success if all submitted commands have executed.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    entry("cuStreamQuery", |state| {
        let is_idle = state.stream(stream)?.stream.is_idle()?;
        if is_idle { Ok(()) } else { Err(CUDA_ERROR_NOT_READY.into()) }
    })
}

/// Returns the context of a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CUresult {
    entry("cuStreamGetCtx", |state| {
        let number = state.stream(stream)?.context;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(context, context::handle(number)) }?)
    })
}

/// Returns the flags of a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> CUresult {
    // SAFETY: the application passes a valid or null pointer, as the interface requires.
    entry("cuStreamGetFlags", |state| Ok(unsafe { write_result(flags, state.stream(stream)?.flags) }?))
}

/// Returns the priority of a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int) -> CUresult {
    entry("cuStreamGetPriority", |state| {
        let found = state.stream(stream)?.priority;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(priority, found) }?)
    })
}

/// Returns that a stream does not capture its work: this driver has no graphs.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> CUresult {
    entry("cuStreamIsCapturing", |state| {
        state.stream(stream)?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(status, CU_STREAM_CAPTURE_STATUS_NONE) }?)
    })
}

/// Returns the same as `cuStreamIsCapturing`, and no graph.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
    graph: *mut *mut c_void,
    dependencies: *mut *const c_void,
    edges: *mut *const c_void,
    count: *mut usize,
) -> CUresult {
    entry("cuStreamGetCaptureInfo", |state| {
        state.stream(stream)?;
        // SAFETY: the application passes valid or null pointers. Only the first one is required.
        unsafe {
            write_result(status, CU_STREAM_CAPTURE_STATUS_NONE)?;
            let _ = write_result(id, 0);
            let _ = write_result(graph, std::ptr::null_mut());
            let _ = write_result(dependencies, std::ptr::null());
            let _ = write_result(edges, std::ptr::null());
            let _ = write_result(count, 0);
        }
        Ok(())
    })
}

/// Lets later commands of a stream wait for the last recording of an event.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult {
    entry("cuStreamWaitEvent", |state| {
        let object = state.stream(stream)?;
        // Only graphs use flags.
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        match state.event(event)?.point() {
            Some(point) => state.submit_to(&object, point.into_wait()),
            None => Ok(()),
        }
    })
}

/// A pointer that a callback of the application gets.
struct UserData(*mut c_void);

// SAFETY: the application accepts that the driver passes the pointer to the callback in another
// thread.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

impl UserData {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Calls a function of the application in the order of a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> CUresult {
    entry("cuLaunchHostFunc", |state| {
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let data = UserData(data);
        state.call_in(stream, move |_| {
            // SAFETY: the application's function, with its argument.
            unsafe { function(data.get()) };
            Ok(())
        })
    })
}

/// Calls a function of the application in the order of a stream.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamAddCallback(
    stream: CUstream,
    function: CUstreamCallback,
    data: *mut c_void,
    flags: c_uint,
) -> CUresult {
    entry("cuStreamAddCallback", |state| {
        let function = function.filter(|_| flags == 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let data = UserData(data);
        state.call_in(stream, move |_| {
            // SAFETY: the application's function, with its arguments.
            unsafe { function(stream, CUDA_SUCCESS, data.get()) };
            Ok(())
        })
    })
}
