//! Contexts, and which one each thread has.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::c_uint;
use std::sync::{Arc, Mutex};

use cuda_sys::*;
use soft_device::lock;

use crate::entry::{Done, entry, guarded, put};
use crate::state::{Device, State};

/// What memory and streams belong to.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: CUdevice,
    /// Contexts whose memory it was given access to.
    pub(crate) peers: Mutex<HashSet<usize>>,
}

thread_local! {
    /// The contexts of this thread, the current one last.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn number(context: CUcontext) -> usize {
    context.0.addr()
}

pub(crate) fn handle(number: usize) -> CUcontext {
    CUcontext(std::ptr::without_provenance_mut(number))
}

/// The current context, its number and its device.
pub(crate) struct Current<'s> {
    pub(crate) number: usize,
    pub(crate) ordinal: CUdevice,
    pub(crate) device: &'s Device,
    pub(crate) context: Arc<Context>,
}

impl State {
    /// The context of this thread.
    pub(crate) fn current(&self) -> Done<Current<'_>> {
        let number = STACK.with_borrow(|stack| stack.last().copied()).filter(|number| *number != 0);
        let number = number.ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        let context = self.contexts.get(number).map_err(|_| CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        Ok(Current { number, ordinal: context.device, device: self.device(context.device)?, context })
    }

    /// A context goes, and everything that was made in it.
    fn destroy(&self, number: usize) -> Done {
        self.contexts.remove(number).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?;
        for start in self.addresses.all(|range| range.owner.context == number) {
            self.addresses.remove(start, |range| range.owner.context == number);
        }
        self.streams.retain(|stream| stream.context != number);
        Ok(())
    }
}

/// Retains the context that all of a process share.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    entry("cuDevicePrimaryCtxRetain", |state| {
        let mut primary = lock(&state.device(device)?.primary);
        let (number, count) = match *primary {
            Some((number, count)) => (number, count + 1),
            None => (state.contexts.insert(Context { device, peers: Mutex::default() }), 1),
        };
        *primary = Some((number, count));
        // SAFETY: a pointer of the application.
        unsafe { put(context, handle(number)) }
    })
}

/// Lets go of it; the last who does destroys it.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    guarded(|| {
        let state = State::get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
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

/// A context of one's own, which is current from then on.
///
/// # Safety
/// As the interface has it.
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
        // SAFETY: a pointer of the application.
        unsafe { put(context, handle(number)) }
    })
}

/// Destroys a context, its memory and its streams.
///
/// # Safety
/// As the interface has it.
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

/// The context of this thread.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    guarded(|| {
        State::get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let current = STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0));
        // SAFETY: a pointer of the application.
        unsafe { put(context, handle(current)) }
    })
}

/// Replaces the context of this thread.
///
/// # Safety
/// As the interface has it.
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

/// Puts a context on top of those of this thread.
///
/// # Safety
/// As the interface has it.
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

/// Takes it away again.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    guarded(|| {
        State::get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: a pointer of the application.
        unsafe { put(context, handle(popped)) }
    })
}

/// The device of the current context.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    // SAFETY: a pointer of the application.
    entry("cuCtxGetDevice", |state| unsafe { put(device, state.current()?.ordinal) })
}

/// Gives the current context access to the memory of another.
///
/// # Safety
/// As the interface has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, _flags: c_uint) -> CUresult {
    entry("cuCtxEnablePeerAccess", |state| {
        let current = state.current()?;
        let other = state.contexts.get(number(peer)).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?;
        if !state.reaches(current.device.number, state.device(other.device)?.number)
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
