//! [`keep_handlers`]: the program's handlers of signals, while libraries are loaded.

use core::{mem, ptr};

use libc::{SIGKILL, SIGSTOP, c_int, sigaction};

/// The signals that are not real-time signals (signal(7)).
const SIGNALS: core::ops::Range<c_int> = 1..32;

/// Runs `load`, and then installs those handlers of signals again that it has replaced.
///
/// A library of a provider may replace them: psm2, which Debian's libfabric loads, has handlers of
/// SIGINT, SIGTERM and of faults from then on, which end the process with exit code 1.
///
/// Handlers that other threads install meanwhile are lost. Calls are made one after another.
pub(super) fn keep_handlers<T>(load: impl FnOnce() -> T) -> T {
    let signals = || SIGNALS.filter(|signal| ![SIGKILL, SIGSTOP].contains(signal));
    let before: Vec<_> = signals().map(|signal| (signal, handler(signal))).collect();
    let loaded = load();
    for (signal, before) in before {
        let (Some(before), Some(now)) = (before, handler(signal)) else { continue };
        if before.sa_sigaction != now.sa_sigaction {
            tracing::debug!(signal, "a library replaced the handler of a signal, which is installed again");
            // SAFETY: the handler was installed before, so that its code exists.
            unsafe { sigaction(signal, &raw const before, ptr::null_mut()) };
        }
    }
    loaded
}

/// Returns the handler of a signal.
fn handler(signal: c_int) -> Option<sigaction> {
    // SAFETY: all bytes may be zero.
    let mut found: sigaction = unsafe { mem::zeroed() };
    // SAFETY: the handler is only read, into memory for one.
    let result = unsafe { sigaction(signal, ptr::null(), &raw mut found) };
    (result == 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_that_a_library_replaces_is_installed_again() {
        extern "C" fn nothing(_signal: c_int) {}
        let before = handler(libc::SIGUSR2).unwrap().sa_sigaction;
        let handler_of_library = nothing as extern "C" fn(c_int);
        let replaced = keep_handlers(|| {
            // SAFETY: the handler does nothing, and its signal is not sent.
            unsafe { libc::signal(libc::SIGUSR2, handler_of_library as libc::sighandler_t) };
            handler(libc::SIGUSR2).unwrap().sa_sigaction
        });
        assert_ne!(replaced, before);
        assert_eq!(handler(libc::SIGUSR2).unwrap().sa_sigaction, before);
    }
}
