//! Result codes, failures, and [`call`], which runs every exported function.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use umf_core::Error;

use crate::last_error;

/// `umf_result_t`.
pub(crate) type Code = i32;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const OUT_OF_HOST_MEMORY: Code = 1;
pub(crate) const PROVIDER_SPECIFIC: Code = 2;
pub(crate) const INVALID_ARGUMENT: Code = 3;
pub(crate) const INVALID_ALIGNMENT: Code = 4;
pub(crate) const NOT_SUPPORTED: Code = 5;
pub(crate) const USER_SPECIFIC: Code = 6;
pub(crate) const DEPENDENCY_UNAVAILABLE: Code = 7;
pub(crate) const OUT_OF_RESOURCES: Code = 8;
pub(crate) const INVALID_CTL_PATH: Code = 9;
pub(crate) const UNKNOWN: Code = 0x7fff_fffe;

/// Result of a function of this crate.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// A failed call: the result code for C, and the text for the log.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    code: Code,
    why: Why,
}

#[derive(Clone, Debug)]
enum Why {
    LogSettings(&'static str),
    Memory(Error),
    Ipc(Box<umf_ipc::Error>),
    Umf(Box<umf::Error>),
}

impl Failure {
    /// Creates a failure with a text that tells what to do.
    pub(crate) const fn new(code: Code, why: &'static str) -> Self {
        Self { code, why: Why::LogSettings(why) }
    }

    /// An invalid argument.
    pub(crate) const fn argument(why: &'static str) -> Self {
        Self::new(INVALID_ARGUMENT, why)
    }

    /// An operation that this memory, provider or pool does not support.
    pub(crate) const fn unsupported(why: &'static str) -> Self {
        Self::new(NOT_SUPPORTED, why)
    }

    /// A result code that a function of a table returned. The failure is the one that this library
    /// recorded in that function, if it did: the table may be its own, or forward to it.
    pub(crate) fn foreign(code: Code) -> Self {
        last_error::failure_within(code).unwrap_or(Self::new(
            code,
            "a function of the provider or pool failed with this result; ask the provider for its native error",
        ))
    }

    /// Returns whether a driver or the system caused the failure, whose error number is known.
    pub(crate) fn is_native(&self) -> bool {
        let is_native = |error: &Error| {
            matches!(error, Error::Driver { .. } | Error::Native { .. } | Error::OutOfMemory { .. })
        };
        match &self.why {
            Why::Memory(error) => is_native(error),
            Why::Ipc(error) => matches!(&**error, umf_ipc::Error::Memory(error) if is_native(error)),
            Why::LogSettings(_) | Why::Umf(_) => false,
        }
    }

    /// Returns whether the settings are wrong: a file or a variable.
    pub(crate) fn is_of_settings(&self) -> bool {
        matches!(&self.why, Why::Umf(error) if matches!(**error, umf::Error::Settings(_)))
    }

    /// Returns the result code for C.
    pub(crate) const fn code(&self) -> Code {
        self.code
    }

    /// Replaces the result code.
    pub(crate) fn with_code(mut self, code: Code) -> Self {
        self.code = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::LogSettings(why) => f.write_str(why),
            Why::Memory(error) => error.fmt(f),
            Why::Ipc(error) => error.fmt(f),
            Why::Umf(error) => error.fmt(f),
        }
    }
}

fn code_of(error: &Error) -> Code {
    match error {
        Error::OutOfMemory { .. } | Error::SizeOverflow { .. } => OUT_OF_HOST_MEMORY,
        Error::LimitReached { .. } | Error::HeldLimit { .. } | Error::TooMany { .. } => OUT_OF_RESOURCES,
        Error::BadAlignment { .. } => INVALID_ALIGNMENT,
        Error::Frozen { .. } | Error::NotSupported { .. } => NOT_SUPPORTED,
        Error::Driver { name, .. } => code_of_answer(name),
        Error::Native { .. } => PROVIDER_SPECIFIC,
        _ => INVALID_ARGUMENT,
    }
}

/// Returns the original's result code for a driver's result, by its name in the driver's
/// specification.
fn code_of_answer(name: &str) -> Code {
    match name {
        "ZE_RESULT_ERROR_INVALID_ARGUMENT" | "CUDA_ERROR_INVALID_VALUE" | "CUDA_ERROR_INVALID_HANDLE" => {
            INVALID_ARGUMENT
        }
        "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY" | "CUDA_ERROR_OUT_OF_MEMORY" => OUT_OF_HOST_MEMORY,
        "CUDA_ERROR_DEINITIALIZED" => OUT_OF_RESOURCES,
        _ => PROVIDER_SPECIFIC,
    }
}

fn code_of_ipc(error: &umf_ipc::Error) -> Code {
    match error {
        umf_ipc::Error::Memory(error) => code_of(error),
        umf_ipc::Error::LimitReached { .. } | umf_ipc::Error::NoLeaseRow { .. } => OUT_OF_RESOURCES,
        umf_ipc::Error::UnknownProvider { .. } => NOT_SUPPORTED,
        umf_ipc::Error::TimedOut { .. } | umf_ipc::Error::System { .. } => UNKNOWN,
        // The original reports an invalid argument for a producer that is gone, and for all other
        // errors.
        _ => INVALID_ARGUMENT,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: code_of(&error), why: Why::Memory(error) }
    }
}

impl From<umf_ipc::Error> for Failure {
    fn from(error: umf_ipc::Error) -> Self {
        Self { code: code_of_ipc(&error), why: Why::Ipc(Box::new(error)) }
    }
}

impl From<umf::Error> for Failure {
    fn from(error: umf::Error) -> Self {
        match error {
            umf::Error::Memory(error) => error.into(),
            umf::Error::Ipc(error) => error.into(),
            // The native error has the text.
            error @ umf::Error::Settings(_) => {
                Self { code: PROVIDER_SPECIFIC, why: Why::Umf(Box::new(error)) }
            }
            error => Self { code: UNKNOWN, why: Why::Umf(Box::new(error)) },
        }
    }
}

/// Runs the body of the exported function `name`. Logs and records a failure or panic, and returns
/// its result code.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Outcome<()>) -> Code {
    let _running = last_error::enter();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(failure)) => failed(name, failure),
        Err(_) => panicked(name),
    }
}

/// As [`call`], for a function that does not return a result code. Returns `otherwise` on a
/// failure.
pub(crate) fn call_with<T>(name: &'static str, otherwise: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let _running = last_error::enter();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            failed(name, failure);
            otherwise
        }
        Err(_) => {
            panicked(name);
            otherwise
        }
    }
}

#[cold]
fn failed(name: &'static str, failure: Failure) -> Code {
    let code = failure.code();
    tracing::error!("{name}: {failure} (result {code})");
    last_error::record_call(name, failure);
    code
}

#[cold]
fn panicked(name: &'static str) -> Code {
    tracing::error!("{name}: a bug in this library; please report it (result {UNKNOWN})");
    last_error::record_call(name, Failure::new(UNKNOWN, "a bug in this library; please report it"));
    UNKNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_nearest_code() {
        let of = |error: Error| Failure::from(error).code();
        assert_eq!(of(Error::ZeroSize), INVALID_ARGUMENT);
        assert_eq!(of(Error::BadAlignment { align: 3 }), INVALID_ALIGNMENT);
        assert_eq!(of(Error::OutOfMemory { size: 1, owner: "test", native: 12 }), OUT_OF_HOST_MEMORY);
        assert_eq!(of(Error::TooMany { what: "tests", limit: 1 }), OUT_OF_RESOURCES);
        assert_eq!(of(Error::Frozen { what: "test" }), NOT_SUPPORTED);
        assert_eq!(of(Error::native("mmap", 22)), PROVIDER_SPECIFIC);
        for (name, code) in [
            ("ZE_RESULT_ERROR_INVALID_ARGUMENT", INVALID_ARGUMENT),
            ("CUDA_ERROR_INVALID_VALUE", INVALID_ARGUMENT),
            ("CUDA_ERROR_INVALID_HANDLE", INVALID_ARGUMENT),
            ("CUDA_ERROR_DEINITIALIZED", OUT_OF_RESOURCES),
            ("ZE_RESULT_ERROR_DEVICE_LOST", PROVIDER_SPECIFIC),
        ] {
            assert_eq!(of(Error::Driver { call: "test", code: 1, name, meaning: "" }), code, "{name}");
        }
        assert_eq!(Failure::from(umf_ipc::Error::OtherBoot).code(), INVALID_ARGUMENT);
        assert_eq!(Failure::from(umf_ipc::Error::Memory(Error::ZeroSize)).code(), INVALID_ARGUMENT);
        let text = Failure::from(Error::native("mmap", 22)).to_string();
        assert!(text.contains("mmap failed"), "{text}");
    }

    #[test]
    fn a_panic_is_a_result() {
        assert_eq!(call("test", || panic!("on purpose")), UNKNOWN);
        assert_eq!(call_with("test", 7, || panic!("on purpose")), 7);
        assert_eq!(call("test", || Err(Failure::argument("test"))), INVALID_ARGUMENT);
        assert_eq!(call("test", || Ok(())), SUCCESS);
    }
}
