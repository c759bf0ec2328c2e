//! What every function of the driver goes through: it is checked that the driver runs, faults are played, and no panic leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_sys::*;
use soft_device::{Action, Error};

use crate::state::State;

/// Why a function does not do what it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal(pub(crate) CUresult);

pub(crate) type Done<T = ()> = Result<T, Refusal>;

impl From<CUresult> for Refusal {
    fn from(result: CUresult) -> Self {
        Self(result)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(match &error {
            Error::OutOfDeviceMemory => CUDA_ERROR_OUT_OF_MEMORY,
            Error::Lost => CUDA_ERROR_LAUNCH_FAILED,
            Error::NotReady => CUDA_ERROR_NOT_READY,
            Error::NoHandle => CUDA_ERROR_INVALID_HANDLE,
            Error::System(errno) if errno.raw_os_error() == 12 => CUDA_ERROR_OUT_OF_MEMORY,
            Error::OutOfFds | Error::System(_) => CUDA_ERROR_OPERATING_SYSTEM,
            Error::Invalid => CUDA_ERROR_INVALID_VALUE,
        })
    }
}

/// Runs a function of the driver.
pub(crate) fn entry(function: &'static str, body: impl FnOnce(&'static State) -> Done) -> CUresult {
    guarded(|| {
        let state = State::get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        match state.faults.hit(function) {
            None => {}
            Some(Action::Answer(answer)) => return Err(Refusal(CUresult(answer))),
            Some(Action::Lose) => state.health.lose(),
        }
        state.health.check()?;
        body(state)
    })
}

/// Runs what needs no driver that runs, or works whatever became of the device.
pub(crate) fn guarded(body: impl FnOnce() -> Done) -> CUresult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(refusal)) => refusal.0,
        Err(_) => CUDA_ERROR_UNKNOWN,
    }
}

/// Writes a result.
///
/// # Safety
/// The pointer is null or valid for a write.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) -> Done {
    if pointer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE.into());
    }
    // SAFETY: the caller's promise.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Reads an argument.
///
/// # Safety
/// The pointer is null or valid for a read.
pub(crate) unsafe fn get<T: Copy>(pointer: *const T) -> Done<T> {
    if pointer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE.into());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { pointer.read_unaligned() })
}
