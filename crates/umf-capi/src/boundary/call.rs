//! [`call`]: every function of the interface runs in it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Code, Failure, Outcome, SUCCESS, UNKNOWN};

/// Runs the body of the function `name`; a failure becomes its code, and is logged. So is a panic, which C must not see.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Outcome<()>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(failure)) => failed(name, &failure),
        Err(_) => panicked(name),
    }
}

/// The same for a function that returns something else than a code: `otherwise` where it fails.
pub(crate) fn call_with<T>(name: &'static str, otherwise: T, body: impl FnOnce() -> Outcome<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            failed(name, &failure);
            otherwise
        }
        Err(_) => {
            panicked(name);
            otherwise
        }
    }
}

#[cold]
fn failed(name: &'static str, failure: &Failure) -> Code {
    tracing::error!("{name}: {failure} (result {})", failure.code());
    failure.code()
}

#[cold]
fn panicked(name: &'static str) -> Code {
    tracing::error!("{name}: a bug in this library; please report it (result {UNKNOWN})");
    UNKNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_result() {
        assert_eq!(call("test", || panic!("on purpose")), UNKNOWN);
        assert_eq!(call_with("test", 7, || panic!("on purpose")), 7);
        assert_eq!(call("test", || Err(Failure::argument("test"))), super::super::INVALID_ARGUMENT);
        assert_eq!(call("test", || Ok(())), SUCCESS);
    }
}
