//! What the driver says, as errors of umf.

use core::cell::Cell;

use level_zero_sys::{
    Failure, OpenError, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
    ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT, ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
};
use umf_core::{Error, Layout};

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
}

/// The last call of a Level Zero function that failed in this thread, in this crate: with the function, and the answer by the
/// specification's name. [`umf_core::Error::OutOfMemory`] and others do not carry it.
#[must_use]
pub fn last_failure() -> Option<Failure> {
    LAST.get()
}

/// A failed call as an error.
pub(crate) fn error(failure: Failure) -> Error {
    LAST.set(Some(failure));
    let what = failure.function();
    match failure {
        Failure::Refused { result, .. } if result != ZE_RESULT_ERROR_UNSUPPORTED_FEATURE => Error::Driver {
            call: what,
            code: i64::from(result.0),
            name: result.name().unwrap_or("an answer without a name"),
            meaning: result.text(),
        },
        Failure::Absent { .. } => Error::NotSupported {
            what,
            owner: "this Level Zero loader or driver; a newer one may",
            native: 0,
        },
        _ => Error::NotSupported { what, owner: "this Level Zero driver", native: 0 },
    }
}

/// A failed allocation as an error.
pub(crate) fn of_allocation(failure: Failure, layout: Layout) -> Error {
    let error = error(failure);
    let out_of = |owner| Error::OutOfMemory { size: layout.size(), owner, native: 0 };
    match failure.result() {
        ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => out_of("the Level Zero device"),
        ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY => {
            out_of("the Level Zero driver, which has no memory of the host left")
        }
        ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT => Error::BadAlignment { align: layout.align() },
        _ => error,
    }
}

/// That there is no loader, as an error.
pub(crate) fn of_opening(error: &OpenError) -> Error {
    let owner = match error {
        OpenError::Library { .. } => {
            "this machine: its loader libze_loader.so.1 cannot be opened (install it, Debian: libze1)"
        }
        _ => "what was named as its loader, which is none",
    };
    Error::NotSupported { what: "Level Zero", owner, native: 0 }
}

/// That there is no driver, as an error.
pub(crate) const NO_DRIVER: Error = Error::NotSupported {
    what: "Level Zero",
    owner: "this machine: its loader finds no driver (install the one of your device, Debian: libze-intel-gpu1; or name one in \
            ZE_ENABLE_ALT_DRIVERS)",
    native: 0,
};
