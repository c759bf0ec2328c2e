//! What the driver answers, as errors of umf.

use cuda_sys::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, Failure};
use umf_core::Error;

/// Who is asked.
pub(crate) const OWNER: &str = "the CUDA driver";

/// For `map_err`: a call that failed.
pub(crate) fn error(failure: Failure) -> Error {
    let result = failure.result();
    match failure {
        Failure::Absent { function } => {
            Error::NotSupported { what: function, owner: "this CUDA driver", native: 0 }
        }
        _ if result == CUDA_ERROR_NOT_SUPPORTED => {
            Error::NotSupported { what: failure.function(), owner: "this CUDA device or system", native: 0 }
        }
        _ => Error::Driver {
            call: failure.function(),
            code: i64::from(result.0),
            name: result.name().unwrap_or("an answer without a name"),
            meaning: result.meaning(),
        },
    }
}

/// As [`error`] where `size` bytes were asked for.
pub(crate) fn memory_error(size: usize) -> impl Fn(Failure) -> Error {
    move |failure| match failure.result() {
        CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { size, owner: "the CUDA device", native: 0 },
        _ => error(failure),
    }
}
