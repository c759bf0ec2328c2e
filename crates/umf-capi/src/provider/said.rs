//! The result code that a provider gave, on its way through pools: what they know of is [`umf_core::Error`] alone.

use core::cell::Cell;

use umf_core::Error;

use crate::boundary::{Code, Failure, SUCCESS};

thread_local! {
    static SAID: Cell<Code> = const { Cell::new(SUCCESS) };
}

/// The calling thread's provider said this last.
pub(super) fn say(code: Code) {
    SAID.set(code);
}

/// The failure of an operation that may have failed because its provider did: then with the code that this one gave.
pub(crate) fn explain(error: Error) -> Failure {
    let failure = Failure::from(error);
    match (error, SAID.replace(SUCCESS)) {
        // These come of what the provider said; all others of what was known before it was asked.
        (
            Error::OutOfMemory { .. }
            | Error::Native { .. }
            | Error::Driver { .. }
            | Error::NotSupported { .. }
            | Error::BadAlignment { .. },
            code,
        ) if code != SUCCESS => failure.with_code(code),
        _ => failure,
    }
}
