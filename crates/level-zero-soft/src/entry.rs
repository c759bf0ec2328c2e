//! What every function of the driver goes through: it is checked that the driver runs, faults are played, and no panic leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};

use level_zero_sys::*;

use soft_device::{Action, Error};

use crate::state::State;

/// Why a function does not do what it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal(pub(crate) ze_result_t);

pub(crate) type Done<T = ()> = Result<T, Refusal>;

impl From<ze_result_t> for Refusal {
    fn from(result: ze_result_t) -> Self {
        Self(result)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::OutOfDeviceMemory => ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
            Error::OutOfFds | Error::System(_) => ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
            Error::Lost => ZE_RESULT_ERROR_DEVICE_LOST,
            Error::NotReady => ZE_RESULT_NOT_READY,
            Error::Invalid => ZE_RESULT_ERROR_INVALID_ARGUMENT,
            Error::NoHandle => ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
        })
    }
}

/// Runs a function of the driver.
pub(crate) fn entry(function: &'static str, body: impl FnOnce(&'static State) -> Done) -> ze_result_t {
    guarded(|| {
        let state = State::get().ok_or(ZE_RESULT_ERROR_UNINITIALIZED)?;
        play(state, function)?;
        body(state)
    })
}

/// Plays the fault that was asked for, if there is one for this call.
pub(crate) fn play(state: &State, function: &str) -> Done {
    match state.faults.hit(function) {
        None => Ok(()),
        Some(Action::Answer(answer)) => Err(Refusal(ze_result_t(answer))),
        Some(Action::Lose) => {
            state.lose();
            Err(ZE_RESULT_ERROR_DEVICE_LOST.into())
        }
    }
}

/// Runs what needs no driver that runs yet.
pub(crate) fn guarded(body: impl FnOnce() -> Done) -> ze_result_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ZE_RESULT_SUCCESS,
        Ok(Err(refusal)) => refusal.0,
        Err(_) => ZE_RESULT_ERROR_UNKNOWN,
    }
}

/// Answers for all functions that this driver does not have. It takes no parameters: callers who pass some lose nothing by it
/// on the systems that this is for, where the caller owns the space of parameters.
pub(crate) unsafe extern "C" fn unsupported() -> ze_result_t {
    ZE_RESULT_ERROR_UNSUPPORTED_FEATURE
}
