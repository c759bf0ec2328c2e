//! Converts failed calls of the driver to errors of umf, and keeps the last one of each thread.

use core::cell::Cell;

use level_zero_sys::{
    Failure, OpenError, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
    ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT, ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
};
use umf_core::{Error, Layout};

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
}

/// Returns the last failed Level Zero call of this crate in the current thread: the function and
/// its `ze_result_t`. [`umf_core::Error`] does not carry the result in all of its variants.
#[must_use]
pub fn last_failure() -> Option<Failure> {
    LAST.get()
}

/// Records a failed call for [`last_failure`], and converts it to an error.
pub(crate) fn driver_error(failure: Failure) -> Error {
    LAST.set(Some(failure));
    let what = failure.function();
    match failure {
        Failure::Refused { result, .. } if result != ZE_RESULT_ERROR_UNSUPPORTED_FEATURE => Error::Driver {
            call: what,
            code: i64::from(result.0),
            name: result.name().unwrap_or("an unknown ze_result_t"),
            meaning: result.text(),
        },
        Failure::Absent { .. } => Error::NotSupported {
            what,
            owner: "this Level Zero loader or driver; install a newer one",
            native: 0,
        },
        _ => Error::NotSupported { what, owner: "this Level Zero driver", native: 0 },
    }
}

/// Converts a failed allocation to an error.
pub(crate) fn allocation_error(failure: Failure, layout: Layout) -> Error {
    let error = driver_error(failure);
    let out_of = |owner| Error::OutOfMemory { size: layout.size(), owner, native: 0 };
    match failure.result() {
        ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => out_of("the Level Zero device"),
        ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY => out_of("the Level Zero driver's host memory"),
        ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT => Error::BadAlignment { align: layout.align() },
        _ => error,
    }
}

/// Converts a failure to open the loader to an error.
pub(crate) fn open_error(error: &OpenError) -> Error {
    let owner = match error {
        OpenError::Library { .. } => {
            "this machine: its loader libze_loader.so.1 cannot be opened (install it, Debian: libze1)"
        }
        _ => "the library at the configured path: it is neither a Level Zero loader nor a driver",
    };
    Error::NotSupported { what: "Level Zero", owner, native: 0 }
}

/// The error for a loader without drivers.
pub(crate) const NO_DRIVER: Error = Error::NotSupported {
    what: "Level Zero",
    owner: "this machine: its loader finds no driver (install the driver of the device, Debian: libze-intel-gpu1; or name \
            one in ZE_ENABLE_ALT_DRIVERS)",
    native: 0,
};
