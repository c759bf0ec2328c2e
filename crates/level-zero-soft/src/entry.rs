//! What every function of the driver goes through: it is checked that the driver runs, faults are played, and no panic leaves.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use level_zero_sys::*;

use soft_device::{Action, Error};

use crate::state::State;

/// Why a function does not do what it should: the answer, and why.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) result: ze_result_t,
    why: String,
}

pub(crate) type Done<T = ()> = Result<T, Refusal>;

impl Refusal {
    pub(crate) fn new(result: ze_result_t, why: impl Into<String>) -> Self {
        Self { result, why: why.into() }
    }
}

impl From<ze_result_t> for Refusal {
    fn from(result: ze_result_t) -> Self {
        Self::new(result, result.text())
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let result = match &error {
            Error::OutOfDeviceMemory { .. } => ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
            Error::OutOfFds { .. } => ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
            Error::Lost => ZE_RESULT_ERROR_DEVICE_LOST,
            Error::NotReady => ZE_RESULT_NOT_READY,
            Error::OutOfBounds { .. } | Error::NotMapped { .. } | Error::NotMemory { .. } => {
                ZE_RESULT_ERROR_INVALID_ARGUMENT
            }
            Error::NoFd { .. } => ZE_RESULT_ERROR_INVALID_ARGUMENT,
            Error::NoHandle { .. } => ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
            Error::System { .. } => ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
        };
        Self::new(result, error.to_string())
    }
}

thread_local! {
    /// What `zeDriverGetLastErrorDescription` tells.
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// The last refusal of this thread: stays where it is until the next.
pub(crate) fn last_refusal() -> *const c_char {
    // A thread that ends has none any more.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

fn remember(function: &str, refusal: &Refusal) {
    // Waiting is no error.
    if refusal.result != ZE_RESULT_NOT_READY {
        let text =
            CString::new(format!("{function}: {}", refusal.why).replace('\0', " ")).unwrap_or_default();
        // A thread that ends has no place for it any more.
        let _ = LAST.try_with(|last| last.replace(text));
    }
}

/// Runs a function of the driver.
pub(crate) fn entry(function: &'static str, body: impl FnOnce(&'static State) -> Done) -> ze_result_t {
    guarded(function, || {
        let state = State::get().ok_or(ZE_RESULT_ERROR_UNINITIALIZED)?;
        play(state, function)?;
        body(state)
    })
}

/// Plays the fault that was asked for, if there is one for this call.
pub(crate) fn play(state: &State, function: &str) -> Done {
    match state.faults.hit(function) {
        None => Ok(()),
        Some(Action::Answer(answer)) => Err(Refusal::new(ze_result_t(answer), "a fault that was asked for")),
        Some(Action::Lose) => {
            state.lose();
            Err(ZE_RESULT_ERROR_DEVICE_LOST.into())
        }
    }
}

/// Runs what needs no driver that runs yet.
pub(crate) fn guarded(function: &'static str, body: impl FnOnce() -> Done) -> ze_result_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ZE_RESULT_SUCCESS,
        Ok(Err(refusal)) => {
            remember(function, &refusal);
            refusal.result
        }
        Err(_) => ZE_RESULT_ERROR_UNKNOWN,
    }
}

/// Answers for all functions that this driver does not have. It takes no parameters: callers who pass some lose nothing by it
/// on the systems that this is for, where the caller owns the space of parameters.
pub(crate) unsafe extern "C" fn unsupported() -> ze_result_t {
    ZE_RESULT_ERROR_UNSUPPORTED_FEATURE
}
