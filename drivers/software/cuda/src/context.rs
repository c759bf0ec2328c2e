//! Contexts, and the stack of contexts of each thread.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::{Error, HandleTable, Timeout, lock, write_result};

use crate::state::{CudaResult, Device, DriverState, entry, unfaulted};
use crate::stream::{DefaultStream, PRIORITIES};

/// A context: the owner of memory and streams.
pub(crate) struct Context {
    pub(crate) device: CUdevice,
    /// The contexts with enabled peer access.
    pub(crate) peers: Mutex<HashSet<usize>>,
    pub(crate) stream: DefaultStream,
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
    fn create_context(&self, device: CUdevice) -> usize {
        let number = HandleTable::<Context>::next();
        let stream = DefaultStream::new(self.core.stream(), number, device);
        self.contexts.insert_as(number, Context { device, peers: Mutex::default(), stream });
        number
    }

    /// Waits for all streams of a context.
    pub(crate) fn synchronize(&self, context: &Context) -> CudaResult {
        let own = &context.stream.object;
        own.stream.wait(Timeout::Never)?;
        for stream in self.streams.all(|stream| stream.context == own.context) {
            stream.stream.wait(Timeout::Never)?;
        }
        Ok(())
    }

    /// Waits until no stream uses memory. Nothing executes in streams that failed.
    pub(crate) fn wait_for_all(&self) -> CudaResult {
        let defaults = self.contexts.all(|_| true);
        let defaults = defaults.iter().map(|context| Arc::clone(&context.stream.object));
        for object in self.streams.all(|_| true).into_iter().chain(defaults) {
            let executed = object.stream.wait(Timeout::Never);
            if let Err(error @ (Error::Lost | Error::OwnStream)) = executed {
                return Err(error.into());
            }
        }
        Ok(())
    }

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
        self.clear(number);
        Ok(())
    }

    /// Frees the memory and the streams of a context.
    fn clear(&self, number: usize) {
        self.core.addresses.remove_all(|range| range.owner.context == number);
        lock(&self.registrations).retain(|_, registration| registration.context != number);
        self.streams.retain(|stream| stream.context != number);
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
            None => (state.create_context(device), 1),
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
    unfaulted("cuDevicePrimaryCtxRelease", |state| {
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

/// Frees the memory and the streams of the primary context of a device. Those that retained the
/// context still have to release it.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult {
    entry("cuDevicePrimaryCtxReset", |state| {
        if let Some((number, _)) = *lock(&state.device(device)?.primary) {
            state.clear(number);
            lock(&state.contexts.get(number)?.peers).clear();
        }
        Ok(())
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
        let number = state.create_context(device);
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
    unfaulted("cuCtxGetCurrent", |_| {
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
    unfaulted("cuCtxPopCurrent", |_| {
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

/// Waits for all work of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> CUresult {
    entry("cuCtxSynchronize", |state| {
        state.synchronize(&state.current()?.context)?;
        state.trim_pools();
        Ok(())
    })
}

/// Returns the range of stream priorities. Smaller numbers are higher priorities.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> CUresult {
    entry("cuCtxGetStreamPriorityRange", |state| {
        state.current()?;
        // SAFETY: the application passes valid or null pointers. Both may be null.
        unsafe {
            let _ = write_result(least, *PRIORITIES.end());
            let _ = write_result(greatest, *PRIORITIES.start());
        }
        Ok(())
    })
}
